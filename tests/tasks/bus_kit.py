"""Apps with a bus, and how a test hears what waits in a named queue."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from celery import Celery

from celery_commander.tasks import BusMessage, Commander, MessageBus
from tests.kit import PATIENCE_SECONDS

NOWHERE = "redis://127.0.0.1:1/0"


def make_app(tmp_path: Path, broker: str, name: str, **settings: Any) -> Celery:
    app = Celery(name, broker=broker, set_as_current=False)
    if broker.startswith("filesystem"):
        for folder in ("messages", "control"):
            (tmp_path / folder).mkdir(exist_ok=True)
        app.conf.broker_transport_options = {
            "data_folder_in": str(tmp_path / "messages"),
            "data_folder_out": str(tmp_path / "messages"),
            "control_folder": str(tmp_path / "control"),
        }
    quick = {"bus_flush_seconds": 0.2, "state_directory": tmp_path / f"state.{name}"}
    Commander(app, **{**quick, **settings})
    return app


def drain(bus: MessageBus, pattern: str, queue: str, *, count: int = 0) -> list[BusMessage]:
    """Hear at least `count` messages of a named queue, or what there is."""
    heard: list[BusMessage] = []
    bus.listen(
        pattern,
        heard.append,
        queue=queue,
        seconds=PATIENCE_SECONDS if count else 0.3,
        until=lambda: bool(count) and len(heard) >= count,
    )
    return heard
