"""Have a person look at a run of which events may be lost with accepted damage of the log."""

from __future__ import annotations

from typing import Any

from celery_commander.engine import RunHistory, State


def park_damaged(history: RunHistory, reason: str) -> tuple[str, dict[str, Any]]:
    """Return the event that parks it; one whose rollback is under way is stuck instead."""
    if history.state is not None and history.state.state is State.ABORTED:
        return "run.stuck", {"generation": history.state.generation, "reason": reason}
    return "run.paused", {"kind": "damage", "due": None, "reason": reason}
