"""The app of these tests on a host whose disk goes away just when the worker is ready."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from celery.signals import worker_ready


@worker_ready.connect(weak=False)
def lose_the_log(**_: Any) -> None:
    """Take the log away once the worker was let in; connected first, so called before anybody else."""
    wal = Path(os.environ["TEST_DIRECTORY"]) / "state" / "event-sourcing.wal"
    wal.rename(wal.with_suffix(".away"))


from tests.celery.durable_app import *  # noqa: E402, F403
