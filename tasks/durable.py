"""Make a task durable: a class that Commander puts over `app.Task`, cooperative with whatever stands below it.

Only a task that asks for it is touched: a plain task keeps Celery's own fast path. What a base class does around the
body (Flask's application context, say) happens inside a run exactly as outside.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from celery import Celery, Task
from kombu.utils.imports import symbol_by_name

from . import attempt, delivery
from .causes import exception_of
from .direct import note_direct_call
from .errors import RetryInsideStep
from .publishing import refuse_replacement
from .verifying import prepare_check

logger = logging.getLogger(__name__)


class CommanderTask(Task):
    """Add `durable=` to a task class; `durable = True` gives it crash-safe runs."""

    abstract = True
    durable = False
    verify: Any = None
    """A function of the result; where it returns False or raises, the run is aborted and undone."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.durable and not hasattr(cls, "_commander_body"):
            _make_durable(cls)


def _make_durable(cls: type[Task]) -> None:
    """Lay the run around what `cls` would call by itself."""
    below_call = _next_call(cls)
    below_success, below_failure = cls.on_success, cls.on_failure

    def body(self: Task, *args: Any, **kwargs: Any) -> Any:
        return (
            self.run(*args, **kwargs) if below_call is None else below_call(self, *args, **kwargs)
        )

    def call(self: Task, *args: Any, **kwargs: Any) -> Any:
        if self.request.called_directly:
            note_direct_call(self)
        if (
            self.request.called_directly
            or self.request.is_eager
            or attempt.is_inside(self.request.id)
        ):
            return (
                Task.__call__(self, *args, **kwargs)
                if below_call is None
                else below_call(self, *args, **kwargs)
            )
        return attempt.perform(self, args, kwargs)

    def on_success(self: Task, retval: Any, task_id: str, args: Any, kwargs: Any) -> Any:
        delivery.told(self.app.commander, task_id)
        return below_success(self, retval, task_id, args, kwargs)

    def on_failure(self: Task, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> Any:
        delivery.told(self.app.commander, task_id, failure=exc)
        return below_failure(self, exc, task_id, args, kwargs, einfo)

    prepare_check(cls)
    _refuse_wrong_sends(cls)
    cls.__call__, cls.on_success, cls.on_failure = call, on_success, on_failure
    cls._commander_body = body
    cls.Request = "celery_commander.tasks.request:DurableRequest"
    cls._commander_strategy, cls.Strategy = cls.Strategy, "celery_commander.tasks.foreign:strategy"


def _refuse_wrong_sends(cls: type[Task]) -> None:
    """Have a body send itself, or what takes its place, only where that can be right."""
    below_retry, below_replace = cls.retry, cls.replace

    def replace(self: Task, sig: Any) -> Any:
        if not (self.request.called_directly or self.request.is_eager):
            refuse_replacement(self, sig)
        return below_replace(self, sig)

    def retry(self: Task, *args: Any, **kwargs: Any) -> Any:
        if attempt.is_in_step():
            raise RetryInsideStep(self.request.id)
        attempt.note_retry(exception_of(args, kwargs))
        return below_retry(self, *args, **kwargs)

    cls.retry, cls.replace = retry, replace


def _next_call(cls: type[Task]) -> Callable[..., Any] | None:
    """Return the `__call__` that a base class or the task itself brings, None when it is Celery's own."""
    for base in cls.__mro__:
        found = vars(base).get("__call__")
        if found is not None:
            return None if base is Task or base.__module__ == Task.__module__ else found
    return None


class DurableTask(CommanderTask):
    """Be the base class of durable tasks: `@app.task(base=DurableTask)` is `@app.task(durable=True)`."""

    abstract = True
    durable = True


def install_task_class(app: Celery) -> None:
    """Put CommanderTask over the app's own task class; `app.Task` made before is made anew."""
    below = symbol_by_name(app.task_cls)
    if not issubclass(below, CommanderTask):
        bases = {"abstract": True, "__module__": __name__}
        app.task_cls = type("Task", (CommanderTask, below), bases)
    app.__dict__.pop("Task", None)
    _follow_registrations(app)


def _follow_registrations(app: Celery) -> None:
    """Make a task that says `durable` durable whatever its base class is: a promise must not depend on that."""
    from_function, register = app._task_from_fun, app.register_task

    def task_from_function(fun: Any, *args: Any, **options: Any) -> Task:
        return made_durable(from_function(fun, *args, **options))

    def register_task(task: Any, **options: Any) -> Task:
        return made_durable(register(task, **options))

    def finalized(sender: Any = None, **_: Any) -> None:
        for task in list(app._tasks.values()):
            made_durable(task)

    app._task_from_fun, app.register_task = task_from_function, register_task
    app.on_after_finalize.connect(finalized, weak=False)


def made_durable(task: Task) -> Task:
    """Return a task, made durable first if it asks for it."""
    cls = type(task)
    if getattr(task, "durable", False) and not hasattr(cls, "_commander_body"):
        _make_durable(cls)
    return task
