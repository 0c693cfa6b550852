"""Keep a body that is rehearsed from telling anybody anything by Celery's means: what it sends does not leave.

What it publishes looks published, and never has a result. Where it waits for one, or asks the broker by a connection
of its own, nobody can say how it would go on: that ends the rehearsal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import wraps
from typing import Any, NoReturn, Protocol

from celery import Celery
from celery.backends.base import BaseBackend
from celery.result import AsyncResult, denied_join_result
from celery.states import PENDING
from celery.utils import uuid

from .execution import current_execution


class Rehearsed(Protocol):
    """An execution without effects."""

    def cannot_tell(self, what: str) -> NoReturn:
        """End, because the body does what a rehearsal cannot know the outcome of."""


class SilentBackend(BaseBackend):
    """Keep no result and know none; whoever waits for one ends the rehearsal."""

    persistent = False

    def __init__(self, app: Celery, rehearsed: Rehearsed) -> None:
        super().__init__(app=app, url="silent://")
        self._rehearsed = rehearsed

    def store_result(self, task_id: str, result: Any, *_: Any, **__: Any) -> Any:
        """Drop it."""
        return result

    def get_task_meta(self, task_id: str, *_: Any, **__: Any) -> dict[str, Any]:
        """Answer as of a task that has not begun."""
        return {"task_id": task_id, "status": PENDING, "result": None, "children": []}

    def wait_for_pending(self, result: AsyncResult, *_: Any, **__: Any) -> NoReturn:
        """End the rehearsal."""
        self._rehearsed.cannot_tell(f"waits for the result of task {result.id}")

    def iter_native(self, result: Any, *_: Any, **__: Any) -> NoReturn:
        """End the rehearsal."""
        self._rehearsed.cannot_tell("waits for the results of a group")

    def add_pending_result(self, result: Any, *_: Any, **__: Any) -> Any:
        """Wait for nothing."""
        return result

    def remove_pending_result(self, result: Any, *_: Any, **__: Any) -> Any:
        """Wait for nothing."""
        return result

    def apply_chord(self, *_: Any, **__: Any) -> None:
        """Count nothing: no member of the chord is sent."""

    def save_group(self, group_id: str, result: Any) -> Any:
        """Drop it."""
        return result

    def forget(self, task_id: str) -> None:
        """Forget nothing."""


class SilentProducer:
    """Stand for a way to the broker; canvas asks for one before it knows that it sends nothing."""

    serializer = None

    def __init__(self, rehearsed: Rehearsed) -> None:
        self._rehearsed = rehearsed

    def __getattr__(self, name: str) -> NoReturn:
        self._rehearsed.cannot_tell("asks the broker")


@contextmanager
def still(app: Celery, rehearsed: Rehearsed) -> Iterator[None]:
    """Have the app keep what it is told to itself for a block, in this process.

    As in a worker, waiting for a result inside a task is refused, and tasks are not called where they are sent.
    """
    cls, eager = type(app), app.conf.task_always_eager
    # No version of Celery lets the backend of an app be set, so for a while it is an app of another class.
    app.__class__ = type(cls.__name__, (cls,), {"backend": SilentBackend(app, rehearsed)})
    if eager:
        app.conf.task_always_eager = False
    try:
        with denied_join_result():
            yield
    finally:
        app.__class__ = cls
        if eager:
            app.conf.task_always_eager = eager


def install_stillness(app: Celery) -> None:
    """Put a gate before the app's ways to the broker, which only a rehearsal finds closed."""
    below = app.send_task

    @wraps(below)
    def send_task(*args: Any, **options: Any) -> AsyncResult:
        if current_rehearsal() is None:
            return below(*args, **options)
        made = options.get("result_cls") or app.AsyncResult
        found: AsyncResult = made(options.get("task_id") or uuid())
        return found

    app.send_task = send_task
    app.connection_or_acquire = _gated(app.connection_or_acquire)
    app.producer_or_acquire = _gated(app.producer_or_acquire)


def current_rehearsal() -> Rehearsed | None:
    """Return the rehearsal that goes on here."""
    execution = current_execution.get()
    return execution if execution is not None and execution.is_rehearsal else None  # type: ignore[return-value]


def _gated(way: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(way)
    def through(*args: Any, **options: Any) -> Any:
        rehearsal = current_rehearsal()
        return (
            way(*args, **options) if rehearsal is None else nullcontext(SilentProducer(rehearsal))
        )

    return through
