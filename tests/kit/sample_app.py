"""A Celery app without any of ours, for the kit's own tests: kombu's filesystem transport, no server."""

from __future__ import annotations

import os
import time
from pathlib import Path

from celery import Celery

app = Celery("sample")
_messages = Path(os.environ.get("SAMPLE_MESSAGES", "messages")).absolute()
_messages.mkdir(parents=True, exist_ok=True)
app.conf.update(
    broker_url="filesystem://",
    broker_transport_options={
        "data_folder_in": str(_messages),
        "data_folder_out": str(_messages),
        "control_folder": str(_messages / "control"),
    },
    worker_hijack_root_logger=False,
)


@app.task(name="sample.note")
def note(path: str) -> None:
    """Leave the pid of the child that ran this."""
    Path(path).write_text(str(os.getpid()), encoding="ascii")


@app.task(name="sample.hold")
def hold(path: str, seconds: float) -> None:
    """Say that it began, and keep its child busy."""
    note(path)
    time.sleep(seconds)
