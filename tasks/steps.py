"""Declare a step: the only place where a durable task may touch the world.

A step is an ordinary function with a promise: in a run, its intent is on disk before it is called, its
result is written before its caller sees it, and what was recorded is never done again. What no log can
know is whether a step that was cut short had its effect; the options say what to do then.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Generic, Literal, ParamSpec, TypedDict, TypeVar, overload
from uuid import uuid4

from celery import Task
from celery.local import Proxy

from .execution import current_execution
from .lost import refuse_lost_thread
from .retrying import NEVER, RETRYING, Retrying
from .timeouts import refuse_wrong_timeout

P = ParamSpec("P")
R = TypeVar("R")

plain_key: ContextVar[str | None] = ContextVar("commander_plain_key", default=None)


class Undo(TypedDict):
    """Tell an undo what it undoes. It must tolerate a step that never happened, and being called twice with one key."""

    run: str
    step: int
    args: list[Any]
    kwargs: dict[str, Any]
    result: Any
    """What the step returned; None when it did not return."""
    in_doubt: bool
    """Whether nobody knows if the step had its effect."""
    step_key: str
    """The idempotency key under which the step acted."""
    key: str
    """The idempotency key of this undo: the same at every try."""


@dataclass(frozen=True, slots=True, eq=False)
class StepSpec:
    """Hold what a step was declared with."""

    function: Callable[..., Any]
    name: str
    kind: str = "step"
    compensate: Any = None
    not_done: tuple[type[BaseException], ...] = ()
    resolve: Callable[[str], Any] | None = None
    retry_in_doubt: bool = False
    in_doubt: str | None = None
    retrying: Retrying = NEVER
    timeout: float | None = None

    @property
    def undo(self) -> str | None:
        """Return the name of the task that undoes this step; a task that Celery has not built yet is built here."""
        if self.compensate is None or isinstance(self.compensate, str):
            return self.compensate
        return str(self.compensate.name)


class Step(Generic[P, R]):
    """Call like the function; inside a run the call is recorded, outside it is the plain call."""

    def __init__(self, spec: StepSpec, function: Callable[P, R]) -> None:
        self.spec = spec
        functools.update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the step in the run that goes on here, or call the function plainly."""
        return call(self.spec, args, kwargs)  # type: ignore[no-any-return]  # the recorded value has the function's type

    def __repr__(self) -> str:
        return f"<step {self.spec.name}>"


@overload
def step(function: Callable[P, R], /) -> Step[P, R]: ...
@overload
def step(
    *,
    name: str | None = None,
    compensate: Any = None,
    not_done: tuple[type[BaseException], ...] | type[BaseException] = (),
    resolve: Callable[[str], Any] | None = None,
    retry_in_doubt: bool = False,
    in_doubt: Literal["abort", "park"] | None = None,
    retries: int = 0,
    retry_on: tuple[type[Exception], ...] | type[Exception] = (),
    backoff: float = 1.0,
    backoff_max: float = 60.0,
    jitter: bool = True,
    timeout: float | None = None,
) -> Callable[[Callable[P, R]], Step[P, R]]: ...
def step(function: Any = None, /, **options: Any) -> Any:  # noqa: D417  # the overload above names them
    """Make a function a step.

    Args:
        name: what the log calls it, default the function's qualified name; a rename is a change of code to a replay.
        compensate: the task that undoes it, or that task's name. It is called with an `Undo`.
        not_done: exceptions that prove that the effect did not happen, so that nothing needs to be undone.
        resolve: asked with the step's idempotency key when the step is in doubt: its result, `NotDone` or `Unknown`.
        retry_in_doubt: run it again when in doubt; for effects that may happen twice.
        in_doubt: `"abort"` (undo the run) or `"park"` (ask a person) when nothing else settles the doubt;
            default `commander_in_doubt`.
        retries: how many more tries a call gets that raised one of `retry_on`, under the same idempotency key. Each
            failed try is in the log; a crash repeats none of them. A retry of the whole task (`self.retry`,
            `autoretry_for`) that the last one brought about begins again with all of them.
        retry_on: the exceptions after which the step is tried again; it must be given where `retries` is.
        backoff: seconds until the second try, doubled for each later one, up to `backoff_max` (seconds). The worker's
            slot is held meanwhile: for waits of minutes let the task retry itself. A worker that is told to stop
            hands the run over instead of waiting.
        jitter: wait between half and the whole of that, at random, so that many runs do not come back at once.
        timeout: seconds after which a try raises `StepTimeout`, at whatever it is doing: its effect is then not known,
            so its undo is owed, unless `not_done` lists StepTimeout. It is a signal (SIGALRM), which is heard between
            two lines of Python: one long call into C ends first, and a function that catches Exception may hide it.
            Only where the body runs in the main thread of its process: prefork and solo pools; elsewhere the step is
            refused before it begins.

    Raises:
        TypeError: an option that is not one of these, or of the wrong kind.
        ValueError: a number that cannot work.

    """
    if function is not None:
        return _made(function)
    return functools.partial(_made, **options)


def call(spec: StepSpec, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a step in the run that goes on here; where none does, call the function with a key of its own."""
    execution = current_execution.get()
    if execution is not None:
        return execution.step(spec, args, kwargs)
    refuse_lost_thread(f"step {spec.name}")
    if plain_key.get() is not None:
        return spec.function(*args, **kwargs)
    token = plain_key.set(str(uuid4()))
    try:
        return spec.function(*args, **kwargs)
    finally:
        plain_key.reset(token)


def _refuse_wrong_answers(name: str, compensate: Any = None, resolve: Any = None, **_: Any) -> None:
    """Refuse, where the step is declared, what would fail only after a crash."""
    is_task = compensate is None or isinstance(compensate, str | Proxy | Task)
    if not is_task:
        raise TypeError(
            f"compensate of step {name} takes a task or a task's name, not {compensate!r}; "
            "make the undo a task with @app.task"
        )
    if resolve is not None and not callable(resolve):
        raise TypeError(
            f"resolve of step {name} takes a function of the step's key, not {resolve!r}"
        )


def _made(
    function: Any,
    *,
    name: str | None = None,
    not_done: tuple[type[BaseException], ...] | type[BaseException] = (),
    in_doubt: str | None = None,
    **options: Any,
) -> Step[..., Any]:
    if not callable(function):
        raise TypeError(f"step() takes a function, not {function!r}; options are given by name")
    called = str(getattr(function, "__name__", None) or repr(function))
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise TypeError(f"step {called} is a coroutine or generator; a step is a plain function")
    _refuse_wrong_answers(called, **options)
    refuse_wrong_timeout(called, options.get("timeout"))
    asked = {key: options.pop(key) for key in RETRYING if key in options}
    retrying = Retrying.of(called, **asked)
    listed = not_done if isinstance(not_done, tuple) else (not_done,)
    if not all(isinstance(item, type) and issubclass(item, BaseException) for item in listed):
        raise TypeError(f"not_done of step {called} takes exception classes, not {not_done!r}")
    if in_doubt not in (None, "abort", "park"):
        raise TypeError(f"in_doubt of step {called} takes 'abort' or 'park', not {in_doubt!r}")
    shown = name or str(getattr(function, "__qualname__", repr(function)))
    spec = StepSpec(
        function, shown, not_done=listed, in_doubt=in_doubt, retrying=retrying, **options
    )
    return Step(spec, function)
