"""Shape what is recorded of a plain task: what happened to it, where and when, and never what it was about.

No arguments, no results, no messages of exceptions and no tracebacks enter the log: they may hold secrets. Of an
exception its type is kept; its text only for those that the pool itself makes (a lost process, a hard limit).
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from billiard.exceptions import Terminated, TimeLimitExceeded, WorkerLostError

from celery_commander.engine import NewEvent

TEXT_CHARACTERS_MAX = 255
"""The longest text that an observation keeps; the same bound as the log's for the id of a run."""
_POOLS_OWN = (WorkerLostError, TimeLimitExceeded, Terminated)


class Observation(NamedTuple):
    """Hold one thing that was seen; made in the task's own thread, so nothing is formatted or encoded here."""

    type: str
    id: Any
    task: Any
    attempt: int | None
    """`retries + 1`. By it a reader orders the attempts: the next one's `received` may precede this one's `retried`."""
    at: float
    """Seconds since 1970, when it was seen; the event's own timestamp says when it was written."""
    more: dict[str, Any] | None = None


def event_of(seen: Observation) -> NewEvent:
    """Return the event to append; its `run` is the task's id, so that `history(task_id)` tells a plain task's story.

    Such an event folds into no run, and nobody's run is touched by it.
    """
    run_id = seen.id if isinstance(seen.id, str) and _is_run_id(seen.id) else None
    data: dict[str, Any] = {"task": text(seen.task), "attempt": seen.attempt, "at": seen.at}
    if run_id is None:
        data["id"] = text(seen.id)
    if seen.type == "task.started":
        data["pid"] = os.getpid()
    if seen.more:
        data.update((key, _plain(value)) for key, value in seen.more.items() if value is not None)
    return NewEvent(seen.type, data, run_id)


def gap_event(count: int, since: float, until: float, reason: str) -> NewEvent:
    """Return what is appended before anything else once observations were dropped; moments are seconds since 1970."""
    data = {"count": count, "since": since, "until": until, "reason": reason, "pid": os.getpid()}
    return NewEvent("subscriber.gap", data)


def text(value: Any) -> str | None:
    """Return a value as text that a log can hold, or None for none."""
    if value is None or (
        type(value) is str and len(value) <= TEXT_CHARACTERS_MAX and value.isascii()
    ):
        return value
    return str(value)[:TEXT_CHARACTERS_MAX].encode("utf-8", "replace").decode("utf-8")


def about(error: BaseException | None) -> dict[str, Any]:
    """Return what may be said of an exception."""
    if error is None:
        return {}
    kind = type(error)
    said: dict[str, Any] = {"exception": text(f"{kind.__module__}.{kind.__qualname__}")}
    if kind in _POOLS_OWN:
        said["reason"] = text(error)
    return said


def _plain(value: Any) -> Any:
    return value if type(value) in (int, float, bool) else text(value)


def _is_run_id(value: str) -> bool:
    if not 1 <= len(value) <= TEXT_CHARACTERS_MAX:
        return False
    return value.isascii() or value == text(value)
