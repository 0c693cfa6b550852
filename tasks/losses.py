"""Say how a process was lost, as the worker's main process saw it, and find that again in the log."""

from __future__ import annotations

import re
from collections.abc import Iterable

from celery_commander.engine import Event

LOST = "worker lost"

_CAUSE = re.compile(r"signal \d+ \(\w+\)|exitcode -?\d+")


def note_of_loss(error: BaseException) -> dict[str, str]:
    """Return what is written down of a lost process: its signal or exit code, where Celery knows one."""
    cause = _CAUSE.search(str(error))
    return {"reason": f"{LOST}, {cause.group() if cause else type(error).__name__}"}


def last_loss(events: Iterable[Event]) -> str | None:
    """Return the reason of the newest loss among a run's events, or None where none was seen."""
    reasons = (event.payload.get("reason") for event in events if event.type == "task.failed")
    lost = [reason for reason in reasons if isinstance(reason, str) and reason.startswith(LOST)]
    return lost[-1] if lost else None
