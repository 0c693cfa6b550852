"""Run a body over what is recorded of a run, without any effect, and see whether it is still the same body.

Nothing is appended, claimed, called or sent: a step or input that is not recorded ends the rehearsal. Code between the
steps does run, as it would at a real replay.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from celery import Celery, Task
from celery.exceptions import Ignore, Reject, Retry
from celery.result import AsyncResult
from celery.utils import uuid

from celery_commander.engine import (
    Entry,
    Event,
    Lease,
    NonDeterministic,
    Position,
    RunHistory,
    State,
    StepInDoubt,
    UnknownTask,
    decode_exception,
    encode,
)

from .calls import Call
from .canvas_values import as_result
from .checkpoints import Marks
from .errors import HistoryUnreadable
from .execution import Execution, StopRun, current_execution
from .lost import running_threads
from .message import of_history
from .verifying import conclude

if TYPE_CHECKING:
    from .install import Commander

FORMAT: Final = "commander-history/1"

TOLD_BY_THE_BODY: Final = ("exception", "verification")
"""The reasons of an abort that the body, or its check, brought about."""


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


class _NoMarks(Marks):
    """Save nothing."""

    def _save(self, state: Any, step: int, version: int) -> None: ...


class Rehearsal(Execution):
    """Answer a body from what is recorded, and end it where nothing is."""

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
    which compares them.

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
        told, came_to = _perform(task, rehearsal)
        _compare_end(rehearsal, came_to)
    except StopRun as stop:
        match stop.error:
            case NonDeterministic() as differs:
                return _diverged(rehearsal, differs)
            case _Ends() | StepInDoubt():
                told = str(stop.error)
            case error:
                return _judged(rehearsal, Verdict.NOT_REPLAYABLE, str(error))
    if state.state is State.COMMITTED and isinstance(rehearsal.stopped, _Ends):
        found = f"{rehearsal.stopped}"
        differs = NonDeterministic(state.run_id, rehearsal.position, "the run's end", found)
        return _diverged(rehearsal, differs)
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
    except (Retry, Ignore, Reject) as control:
        return f"it asks for {type(control).__name__.lower()}", control
    except Exception as error:  # the body's own
        if rehearsal.stopped is not None:
            raise StopRun(rehearsal.stopped) from error
        if rehearsal.has_more_recorded:
            found = f"the body raised {type(error).__name__}: {error}"
            left = "more steps or inputs"
            differs = NonDeterministic(rehearsal.run_id, rehearsal.position, left, found)
            raise StopRun(differs) from error
        return f"it raises {type(error).__name__}", error
    finally:
        task.pop_request()
        running_threads.pop(threading.get_ident(), None)
        current_execution.reset(token)


def _compare_end(rehearsal: Rehearsal, came_to: Any) -> None:
    """Compare how a body ended with how its run did, where the run's end was the body's.

    Raises:
        StopRun: they differ.

    """
    outcome = rehearsal.history.outcome
    if outcome is None or isinstance(came_to, Retry | Ignore | Reject):
        return
    kind, recorded = outcome
    if kind == "result":
        same = not isinstance(came_to, Exception) and encode(came_to, path="result") == recorded
        told = "the recorded result"
    elif rehearsal.history.abort_reason in TOLD_BY_THE_BODY:
        raised = decode_exception(recorded)
        same = _named(came_to) == _named(raised)
        told = _named(raised)
    else:
        return
    if not same:
        found = _named(came_to) if isinstance(came_to, Exception) else "another result"
        raise StopRun(NonDeterministic(rehearsal.run_id, rehearsal.position, told, found))


def _named(error: Any) -> str:
    return f"{type(error).__name__}: {error}" if isinstance(error, BaseException) else "a result"


def _judged(rehearsal: Rehearsal, verdict: Verdict, end: str) -> Replayed:
    state = rehearsal.history.state
    assert state is not None
    steps = sum(1 for index in rehearsal.history.entries if index < rehearsal.position)
    return Replayed(state.run_id, state.task, state.state, verdict, steps, end)


def _diverged(rehearsal: Rehearsal, error: NonDeterministic) -> Replayed:
    state = rehearsal.history.state
    assert state is not None
    return Replayed(
        run_id=state.run_id,
        task=state.task,
        state=state.state,
        verdict=Verdict.DIVERGED,
        steps=error.index,
        end=str(error),
        index=error.index,
        recorded=error.recorded,
        found=error.found,
    )


def install_rehearsal(app: Celery) -> None:
    """Have a body that is rehearsed send nothing; what it gets is a result that never comes."""
    below = app.send_task

    def send_task(*args: Any, **options: Any) -> AsyncResult:
        if isinstance(current_execution.get(), Rehearsal):
            made = options.get("result_cls") or app.AsyncResult
            found: AsyncResult = made(options.get("task_id") or uuid())
            return found
        return below(*args, **options)

    app.send_task = send_task


# --- histories outside a log ----------------------------------------------------------------------


def exported(commander: Commander, run_id: str) -> dict[str, Any]:
    """Return a run's history as a document that stands for itself: plain JSON, with arguments and values.

    Raises:
        HistoryArchived, LogError: it is not there, or cannot be read.

    """
    events = commander.engine.history(run_id)
    return {
        "format": FORMAT,
        "run_id": run_id,
        "log_id": commander.engine.log_id,
        "exported_at": datetime.now(UTC).isoformat(),
        "events": [
            {
                "seq": event.seq,
                "id": event.id,
                "type": event.type,
                "timestamp": event.timestamp.isoformat(),
                "n": event.n,
                "token": event.token,
                "hash": event.hash,
                "data": event.payload,
            }
            for event in events
        ],
    }


def imported(document: Mapping[str, Any]) -> RunHistory:
    """Return the history that a document holds.

    Raises:
        HistoryUnreadable: it is no such document.

    """
    run_id = str(document.get("run_id")) if isinstance(document, Mapping) else "?"
    try:
        if document["format"] != FORMAT:
            raise HistoryUnreadable(run_id, f"its format is {document['format']!r}, not {FORMAT!r}")
        history = RunHistory.of([_event(run_id, each) for each in document["events"]])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise HistoryUnreadable(run_id, f"it is no exported history ({error!r})") from error
    if history.state is None:
        raise HistoryUnreadable(run_id, "it holds no run")
    return history


def _event(run_id: str, each: Mapping[str, Any]) -> Event:
    return Event(
        Position(each["seq"], 0, 0),
        each["seq"],
        each["id"],
        each["type"],
        datetime.fromisoformat(each["timestamp"]),
        run_id,
        dict(each["data"]),
        each["hash"],
        each["n"],
        each["token"],
    )


def replay_history(app: Celery, history: str | os.PathLike[str] | Mapping[str, Any]) -> Replayed:
    """Run the body of an exported history's task over it, as a test of the code: a file, or the document itself.

    No log, broker or backend is needed; the app must have a Commander and know the task. Arguments of steps are not
    compared, only kinds, names and places: their digests can be made with the log's own secret alone.

    Raises:
        NonDeterministic: the code is another than what was recorded; it names the place and both sides.
        HistoryUnreadable: the document cannot be read, or not be replayed here.
        UnknownTask: the app does not know the task.

    """
    commander: Commander = app.commander
    found = rehearse(commander, imported(read_document(history)), has_secret=False)
    found.check()
    return found


def read_document(history: str | os.PathLike[str] | Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an exported history, read from its file if it is one.

    Raises:
        HistoryUnreadable: there is no such file, or it is no JSON.

    """
    if isinstance(history, Mapping):
        return history
    try:
        document: Mapping[str, Any] = json.loads(Path(history).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise HistoryUnreadable(str(history), str(error)) from error
    return document
