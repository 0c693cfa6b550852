"""An app that writes down which of our modules and Flower's a Celery process has loaded."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from celery import Celery, signals

from celery_commander.tasks import Commander

DIRECTORY = Path(os.environ.get("LOADED_DIRECTORY", "."))

app = Celery("loaded", broker="memory://", backend="cache+memory://")
app.conf.beat_schedule_filename = str(DIRECTORY / "beat")


def told() -> str:
    return "\n".join(sorted(name for name in sys.modules if "flower" in name.split(".")))


@signals.worker_ready.connect
@signals.beat_init.connect
def tell(**_: object) -> None:
    written = DIRECTORY / "being written"
    written.write_text(told())
    written.rename(DIRECTORY / "loaded")


if "LOADED_DIRECTORY" in os.environ:  # a test imports this, too
    Commander(app, state_directory=DIRECTORY / "state")
