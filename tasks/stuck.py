"""Read out of a stuck run's history which undo could not be done; old logs say it there, not in their last event."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from celery_commander.engine import Event, RunHistory, exception_kind


@dataclass(frozen=True, slots=True)
class StuckUndo:
    """Say which undo a stuck run could not do, and how it ended the last time."""

    step: int
    name: str
    """The step that is not undone."""
    undo: str | None
    """The task that undoes it."""
    attempts: int
    """How often the undo was begun, in all generations."""
    error: str | None
    """The kind of the last error."""
    message: str | None
    """What the error says; it may hold what is nobody's business."""


def undo_given_up(events: Sequence[Event]) -> StuckUndo | None:
    """Return the undo that the last of a run's events gives up."""
    if not events or events[-1].type != "run.stuck":
        return None
    said, step = events[-1].payload, events[-1].payload.get("step")
    entry = RunHistory.of(events).entries.get(step) if isinstance(step, int) else None
    if entry is None:
        return None
    begun = [
        event
        for event in events
        if event.type == "compensation.started" and event.payload.get("step") == step
    ]
    error = said.get("exception")
    message = error.get("message") if isinstance(error, Mapping) else None
    return StuckUndo(
        step=entry.step,
        name=entry.name,
        undo=entry.undo,
        attempts=len(begun),
        error=exception_kind(error),
        message=None if message is None else str(message),
    )
