"""Run a body over what is recorded of a run, without any effect, and see whether it is still the same body.

Nothing is appended, claimed, called or sent: a step or input that is not recorded ends the rehearsal. Code between the
steps does run, as it would at a real replay.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, NoReturn

from celery import Task
from celery.exceptions import Ignore, Reject, Retry

from celery_commander.engine import (
    Entry,
    Lease,
    NonDeterministic,
    RunHistory,
    State,
    StepInDoubt,
    UnknownTask,
    UnrecordableValue,
)

from .calls import Call, described
from .canvas_values import as_result
from .checkpoints import Marks
from .ends import difference, is_the_bodys
from .errors import BodyExited, HistoryUnreadable, StopRun
from .execution import Execution, current_execution
from .lost import running_threads
from .message import of_history
from .stillness import still
from .verifying import conclude

if TYPE_CHECKING:
    from .install import Commander


class Verdict(Enum):
    """Name what a rehearsal came to."""

    SAME = "same"
    DIVERGED = "diverged"
    NOT_REPLAYABLE = "not replayable"


@dataclass(frozen=True, slots=True)
class Replayed:
    """Say what a body did over the records of a run.

    `steps` is how many records it met as they are, `end` what came behind them. Where it diverged, `index` is the
    place, `recorded` and `found` are both sides.
    """

    run_id: str
    task: str
    state: State | None
    verdict: Verdict
    steps: int
    end: str
    index: int | None = None
    recorded: str | None = None
    found: str | None = None

    def check(self) -> None:
        """Return if the body is the same.

        Raises:
            NonDeterministic: it is another one.
            HistoryUnreadable: it cannot be told.

        """
        if self.verdict is Verdict.DIVERGED:
            raise NonDeterministic(
                self.run_id, self.index or 0, self.recorded or "", self.found or ""
            )
        if self.verdict is Verdict.NOT_REPLAYABLE:
            raise HistoryUnreadable(self.run_id, self.end)


class _Ends(Exception):
    """What would come next is not recorded."""


class _CannotTell(Exception):
    """What would come next depends on what a rehearsal does not have."""


class _NoMarks(Marks):
    """Save nothing."""

    def _save(self, state: Any, step: int, version: int) -> None: ...


class Rehearsal(Execution):
    """Answer a body from what is recorded, and end it where nothing is."""

    is_rehearsal = True

    def __init__(
        self, commander: Commander, history: RunHistory, *, has_secret: bool = True
    ) -> None:
        assert history.state is not None
        self._has_secret = has_secret
        lease = Lease(history.state.run_id, history.state.token, "rehearsal", 0.0, took_over=False)
        super().__init__(commander, lease, history)
        self.marks = _NoMarks(self)

    def append_or_stop(self, event_type: str, data: Mapping[str, Any], *, wait: bool) -> NoReturn:
        """End: whatever would be written is new."""
        what = data.get("name") or ""
        raise self.stop(_Ends(f"it would go on with {event_type} {what}".rstrip()))

    def cannot_tell(self, what: str) -> NoReturn:
        """End: the body does `what`, and how that goes is not recorded."""
        raise self.stop(_CannotTell(f"outside its steps the body {what}, and a rehearsal cannot"))

    def release(self) -> None:
        """Do nothing: nothing was claimed."""

    def _digest(self, name: str, told: Any) -> str:
        if self._has_secret:
            return super()._digest(name, told)
        self._encoded_or_stop(told, name)
        return ""

    def _recorded(self, index: int, kind: str, name: str, digest: str | None) -> Entry | None:
        entry = self.history.entries.get(index)
        if entry is not None and not self._has_secret:
            digest = entry.digest  # what it was made with is the log's alone
        return super()._recorded(index, kind, name, digest)

    def note_verifying(self, result: Any, *, is_known: bool) -> None:
        """Go on where an earlier attempt did; end where none had come."""
        if not is_known:
            raise self.stop(_Ends("its result would be verified"))

    def note_patch(self, index: int, change_id: str, *, is_recorded: bool) -> None:
        """Go on where the patch is recorded; end where it would be new."""
        if not is_recorded:
            raise self.stop(_Ends(f"it would go on with patched {change_id}"))
        super().note_patch(index, change_id, is_recorded=True)

    def _begin(self, call: Call, attempt: int) -> NoReturn:
        raise self.stop(_Ends(f"it would go on with {call.spec.kind} {call.spec.name}"))

    def _settle_doubt(self, call: Call, entry: Any) -> NoReturn:
        raise self.stop(_Ends(f"{entry.kind} {entry.name} is in doubt"))

    def _record(self, place: dict[str, Any], produce: Any) -> NoReturn:
        raise self.stop(_Ends(f"it would go on with {place['kind']} {place['name']}"))

    def _wait(self, seconds: float) -> None: ...


def rehearse(commander: Commander, history: RunHistory, *, has_secret: bool = True) -> Replayed:
    """Run the body of a run's task over the run's history.

    Arguments are recorded as digests under the log's secret: `has_secret` says that this is the log's own commander,
    which compares them. Whatever the body raises is part of the answer; only Ctrl-C comes out.

    Raises:
        UnknownTask: this app does not know the task.

    """
    state = history.state
    assert state is not None
    task = commander.app.tasks.get(state.task)
    if task is None or not hasattr(task, "_commander_body"):
        raise UnknownTask(state.run_id, state.task)
    if not history.created:
        end = "its events were archived; only its state is kept"
        return Replayed(state.run_id, state.task, state.state, Verdict.NOT_REPLAYABLE, 0, end)
    rehearsal = Rehearsal(commander, history, has_secret=has_secret)
    try:
        with still(commander.app, rehearsal):
            told, came_to = _perform(task, rehearsal)
    except StopRun as stop:
        return _stopped(rehearsal, stop.error)
    differs = difference(task, history, came_to)
    if differs is not None:
        return _differs(rehearsal, *differs)
    return _judged(rehearsal, Verdict.SAME, told)


def _perform(task: Task, rehearsal: Rehearsal) -> tuple[str, Any]:
    """Call the body; return how it ended, and with what.

    Raises:
        StopRun: it came to what is not recorded, or to something else than is.

    """
    message = of_history(rehearsal.history)
    args, kwargs, _ = message.body
    context = {**message.headers, "args": args, "kwargs": kwargs, "called_directly": False}
    token = current_execution.set(rehearsal)
    running_threads[threading.get_ident()] = rehearsal.run_id
    task.push_request(**context)
    try:
        result = as_result(task._commander_body(*args, **kwargs))
        return "it returns", conclude(task, rehearsal, result)
    except (StopRun, KeyboardInterrupt):
        raise
    except BaseException as error:  # noqa: BLE001  # the body's own, SystemExit too, is what it came to
        return _after_error(rehearsal, error)
    finally:
        task.pop_request()
        running_threads.pop(threading.get_ident(), None)
        current_execution.reset(token)


def _after_error(rehearsal: Rehearsal, error: BaseException) -> tuple[str, BaseException]:
    """Follow what the body raised, as an attempt does."""
    if rehearsal.stopped is not None:  # it hid why it may not go on
        raise StopRun(rehearsal.stopped) from error
    if isinstance(error, Retry | Ignore | Reject):
        return f"it asks for {type(error).__name__.lower()}", error
    if not isinstance(error, Exception):
        code = error.code if isinstance(error, SystemExit) else repr(error)
        error = BodyExited(rehearsal.run_id, code)
    if rehearsal.has_more_recorded:
        found = f"the body raised {type(error).__name__}: {error}"
        left = "more steps or inputs"
        differs = NonDeterministic(rehearsal.run_id, rehearsal.position, left, found)
        raise StopRun(differs) from error
    return f"it raises {type(error).__name__}", error


def _stopped(rehearsal: Rehearsal, error: Exception) -> Replayed:
    """Judge a body that was stopped: at a difference, where the history ends, or by what it may not do."""
    history = rehearsal.history
    match error:
        case NonDeterministic():
            return _differs(rehearsal, error.recorded, error.found, error.index)
        case _Ends() | StepInDoubt() if is_the_bodys(history):
            return _differs(rehearsal, "the run's end", str(error))
        case _Ends() | StepInDoubt():
            return _judged(rehearsal, Verdict.SAME, str(error))
        case UnrecordableValue():
            return _refused(rehearsal, error)
        case _:
            return _judged(rehearsal, Verdict.NOT_REPLAYABLE, str(error))


def _refused(rehearsal: Rehearsal, error: UnrecordableValue) -> Replayed:
    """Judge a body that hands on what no log can hold: a run is aborted there."""
    place = rehearsal.position - 1
    here = rehearsal.history.entries.get(place)
    if here is not None:
        return _differs(rehearsal, described(here), str(error), place)
    differs = difference(None, rehearsal.history, error)
    if differs is not None:
        return _differs(rehearsal, *differs)
    return _judged(rehearsal, Verdict.SAME, f"it raises {type(error).__name__}")


def _judged(rehearsal: Rehearsal, verdict: Verdict, end: str) -> Replayed:
    state = rehearsal.history.state
    assert state is not None
    steps = sum(1 for index in rehearsal.history.entries if index < rehearsal.position)
    return Replayed(state.run_id, state.task, state.state, verdict, steps, end)


def _differs(rehearsal: Rehearsal, recorded: str, found: str, index: int | None = None) -> Replayed:
    state = rehearsal.history.state
    assert state is not None
    place = rehearsal.position if index is None else index
    return Replayed(
        run_id=state.run_id,
        task=state.task,
        state=state.state,
        verdict=Verdict.DIVERGED,
        steps=place,
        end=str(NonDeterministic(state.run_id, place, recorded, found)),
        index=place,
        recorded=recorded,
        found=found,
    )
