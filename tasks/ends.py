"""Compare how a body ended with how the log says that its run did."""

from __future__ import annotations

from typing import Any, Final

from celery import Task
from celery.exceptions import Ignore, Reject, Retry, SoftTimeLimitExceeded

from celery_commander.engine import (
    InvalidEvent,
    RunHistory,
    decode,
    decode_exception,
    encode,
    encode_exception,
)

TOLD_BY_THE_BODY: Final = ("exception", "verification")
"""The reasons of an abort that the body, or its check, brought about."""

_BEFELL: Final = (SoftTimeLimitExceeded, InvalidEvent, MemoryError)
"""What a body does not raise again for being the same: a limit of time, memory or size that it met."""


def is_the_bodys(history: RunHistory) -> bool:
    """Tell whether a run has ended, and by its body: a body that is the same comes to that end again."""
    if history.outcome is None:
        return False
    kind, recorded = history.outcome
    if kind == "result":
        return True
    by_the_body = history.abort_reason in TOLD_BY_THE_BODY
    return by_the_body and not isinstance(decode_exception(recorded), _BEFELL)


def difference(task: Task | None, history: RunHistory, came_to: Any) -> tuple[str, str] | None:
    """Return how the run ended and how the body has, where these differ; `came_to` is a result or an exception."""
    if not is_the_bodys(history) or history.outcome is None:
        return None
    kind, recorded = history.outcome
    told = "the recorded result" if kind == "result" else named(decode_exception(recorded))
    ended, value = _end_of(task, came_to)
    if ended == kind == "result":
        return None if value == recorded else (told, "another result")
    if ended == "result":
        return told, "a result"
    return None if ended == kind and value == told else (told, value)


def _end_of(task: Task | None, came_to: Any) -> tuple[str, Any]:
    """Return what a run would record of an end: a result, the name of an exception, or of what is asked of Celery."""
    if isinstance(came_to, Retry) or (isinstance(came_to, Reject) and came_to.requeue):
        return "not over", f"the body asked for {type(came_to).__name__.lower()}"
    if isinstance(came_to, Ignore):
        return "result", encode(None)
    if isinstance(came_to, Exception):
        return "exception", named(decode_exception(encode_exception(came_to)))
    try:
        encoded = encode(came_to, path="result")
        if task is not None:
            check_storable(task, decode(encoded))
    except Exception as error:  # noqa: BLE001  # whatever an encoder raises, it is how the run would end
        return "exception", named(decode_exception(encode_exception(error)))
    return "result", encoded


def check_storable(task: Task, result: Any) -> None:
    """Return if the task's backend can store a result; what it cannot must fail before it is a fact."""
    task.backend.encode(task.backend.prepare_value(result))


def named(error: BaseException) -> str:
    """Return an exception as it is compared and shown."""
    return f"{type(error).__name__}: {error}"
