"""Run one attempt of a durable body: give back what is recorded, record what is new, refuse what differs.

The rule of a step, in order: its intent is on disk; the lease still holds; its function runs; its end is written; only
then does its caller see the value, and what it sees is the recorded value, decoded.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from celery_commander.engine import (
    Entry,
    Event,
    InvalidEvent,
    Lease,
    NonDeterministic,
    RunHistory,
    StepInDoubt,
    UnreadableValue,
    UnrecordableValue,
    decode,
    decode_exception,
    encode,
    encode_exception,
)

from .answers import NotDone, Unknown
from .calls import Call, described
from .checkpoints import Marks
from .errors import (
    UNRECORDED,
    NestedUndo,
    RunStopped,
    StopRun,
    is_recordable_end,
    is_termination,
    record_exception,
)
from .ownership import Ownership
from .patches import PATCHED, Patches
from .retrying import LOOK_SECONDS, NO_TRIES, Done, Failed, Tries
from .timeouts import limited, refuse_impossible
from .usage import meta_of

if TYPE_CHECKING:
    from .install import Commander
    from .steps import StepSpec

logger = logging.getLogger(__name__)

current_execution: ContextVar[Execution | None] = ContextVar("commander_execution", default=None)

STEP_ENDS = ("step.completed", "step.failed", "step.try_failed")


class Execution(Ownership):
    """Own a run and execute its body once, from the first line, over what is already recorded."""

    is_rehearsal = False
    is_verifying = False

    def __init__(self, commander: Commander, lease: Lease, history: RunHistory) -> None:
        super().__init__(commander, lease, history)
        self.task_name = history.state.task if history.state else ""
        self.attempt = history.state.attempt if history.state else 1
        self.paused = False
        self.step_key: str | None = None
        self._on_doubt = {entry.step: (entry.name, entry.on_doubt) for entry in history.in_doubt}
        self.marks = Marks(self)
        self._position = self.marks.first_index
        self.patches = Patches(self)
        self._stopped: Exception | None = None

    @property
    def replaying(self) -> bool:
        """Return whether the next step or input is answered from the log."""
        entry = self.history.entries.get(self._position)
        return entry is not None and entry.status != "started"

    @property
    def stopped(self) -> Exception | None:
        """Return why this attempt may not go on, if so, whatever the body made of it."""
        return self._stopped

    def stop(self, error: Exception) -> StopRun:
        """Mark the attempt as over and return what leaves the body."""
        if self._stopped is None:
            self._stopped = error
        return StopRun(self._stopped)

    def step(self, spec: StepSpec, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a step, or give back what it came to before."""
        if self.step_key is not None:
            if spec.undo is not None:
                raise NestedUndo(self.run_id, spec.name)
            return spec.function(*args, **kwargs)
        index = self._next()
        digest = self._digest(spec.name, [list(args), kwargs])
        call = Call(spec, args, kwargs, index, digest, f"{self.run_id}:{index}")
        entry = self._recorded(index, spec.kind, spec.name, digest)
        if entry is None:
            return self._perform(call)
        if entry.ended:
            return self._given(entry)
        if entry.due is not None:
            return self._try_again(call, entry)
        return self._settle_doubt(call, entry)

    def input(self, kind: str, name: str, produce: Callable[[], Any], *, told: Any = None) -> Any:
        """Record one value that the body cannot make twice; a replay gives the recorded one.

        `told` is what the value depends on (arguments), compared at replay. The value is made again when the process
        dies before it was written, so `produce` must not have effects.
        """
        if self.step_key is not None:
            return produce()  # inside a step it is part of the step, whose result is recorded
        index = self._next()
        digest = None if told is None else self._digest(name, told)
        entry = self._recorded(index, kind, name, digest)
        if entry is not None:
            return self._given(entry)
        place = {"step": index, "kind": kind, "name": name, "digest": digest, "meta": {}}
        return self._record(place, produce)

    def _given(self, entry: Entry) -> Any:
        """Return, or raise, what is recorded; what this process lacks a type for ends the attempt."""
        if entry.status == "failed":
            raise decode_exception(entry.value)
        try:
            return decode(entry.value, path=described(entry))
        except UnreadableValue as error:
            raise self.stop(error) from error

    def note_patch(self, index: int, change_id: str, *, is_recorded: bool) -> None:
        """Take the place of a patch, and record it there unless an earlier attempt has."""
        self._position = index + 1
        if not is_recorded:
            place = {"step": index, "kind": PATCHED, "name": change_id, "digest": None}
            told = {**place, "meta": {}, "value": True}
            self.append_or_stop("input.recorded", told, wait=False)

    def _record(self, place: dict[str, Any], produce: Callable[[], Any]) -> Any:
        name, began = place["name"], time.monotonic()
        try:
            made = produce()
        except Exception as error:
            if is_recordable_end(error):  # so that a replay sees the same
                raised = {**place, "raised": True, "value": encode_exception(error)}
                self.append_or_stop("input.recorded", raised, wait=False)
            raise
        value = self._encoded_or_stop(made, name)
        if place["kind"] == "llm":
            place["meta"] = meta_of(made, time.monotonic() - began)
        self.append_or_stop("input.recorded", {**place, "value": value}, wait=False)
        return decode(value)

    def settle_end(self) -> None:
        """Check, when a body has returned, that it asked for everything that is recorded.

        Raises:
            StopRun: a changed body skipped recorded steps, or the attempt was stopped and the body hid it.

        """
        self._refuse_if_over()
        self.marks.begin()
        for step in self.state.open_steps if self.state else ():
            raise self.stop(StepInDoubt(self.run_id, step, self._on_doubt[step][0]))
        left = [entry for index, entry in self.history.entries.items() if index >= self._position]
        if left:
            found = "the body returned"
            raise self.stop(NonDeterministic(self.run_id, left[0].step, described(left[0]), found))

    def note_verifying(self, result: Any, *, is_known: bool) -> None:
        """Record that the result is being verified; `is_known`: an earlier attempt came that far."""
        self.append_or_stop("run.verifying", {"result": result}, wait=not is_known)

    def _refuse_if_over(self) -> None:
        if self._stopped is None and self.paused:
            reason = "self.retry() was called; the retry goes on with the run"
            raise self.stop(RunStopped(self.run_id, reason))
        if self._stopped is not None:
            raise StopRun(self._stopped)

    def enter(self, what: str) -> None:
        """Return when the body may call `what` here and now.

        Raises:
            StopRun: the attempt is over.
            RunStopped: it is called inside a step, or in another thread than the body's.

        """
        self._refuse_if_over()
        self._refuse_other_thread(what)
        if self.step_key is not None:
            raise RunStopped(self.run_id, f"{what} was called inside a step; call it in the body")

    def _refuse_other_thread(self, what: str) -> None:
        if threading.get_ident() != self.thread_id:
            raise RunStopped(self.run_id, f"{what} was called outside the body's thread")

    def _next(self) -> int:
        self._refuse_if_over()
        self._refuse_other_thread("a step or input")
        self.marks.begin()
        index = self.index
        self._position = index + 1
        return index

    def parks(self, step: int) -> bool:
        """Return whether a person is to be asked when this step is in doubt."""
        return self._on_doubt[step][1] == "park"

    @property
    def position(self) -> int:
        """Return the index of the next step or input."""
        return self._position

    @property
    def index(self) -> int:
        """Return the same, as it is counted: what could not be recorded takes no place."""
        return min(self._position, self.state.steps if self.state else 0)

    @property
    def has_more_recorded(self) -> bool:
        """Return whether the body has not come to everything yet that earlier attempts recorded."""
        return self.marks.awaits_restored or any(
            index >= self._position for index in self.history.entries
        )

    def _recorded(self, index: int, kind: str, name: str, digest: str | None) -> Entry | None:
        """Return what is recorded at this place, if anything, after comparing that it is the same thing."""
        entry = self.history.entries.get(index)
        if entry is None or (entry.kind, entry.name, entry.digest) == (kind, name, digest):
            return entry
        same = (entry.kind, entry.name) == (kind, name)
        found = f"{kind} {name}{' with other arguments' if same else ''}"
        raise self.stop(NonDeterministic(self.run_id, index, described(entry), found))

    def _perform(self, call: Call, after: Entry | None = None) -> Any:
        """Try a step until it returns, or has raised what ends it; `after` is what earlier attempts left."""
        attempt = after.attempt + 1 if after is not None else 1
        tries = Tries(after.tries, after.acted) if after is not None else NO_TRIES
        while True:
            self._begin(call, attempt)
            came_to = self._act(call, tries)
            if not isinstance(came_to, Failed):
                return decode(came_to.result)
            attempt, tries = attempt + 1, came_to.tries
            self._wait(came_to.seconds)

    def _begin(self, call: Call, attempt: int) -> None:
        """Write the intent and wait for it, look at the lease once more."""
        spec = call.spec
        refuse_impossible(spec.name, spec.timeout)
        on_doubt = spec.in_doubt or self.commander.settings.in_doubt
        intent = call.intent(attempt, on_doubt)
        self._on_doubt[call.index] = (spec.name, on_doubt)
        self.append_or_stop("step.started", intent, wait=True)  # before the effect
        self._last_look_or_stop()

    def _act(self, call: Call, tries: Tries) -> Done | Failed:
        self.step_key = call.key
        try:
            with limited(call.spec.name, call.spec.timeout):
                result = encode(call.spec.function(*call.args, **call.kwargs), path="result")
        except BaseException as error:
            if is_termination(error):
                self.stop(RunStopped(self.run_id, "its process is being ended"))
            if not is_recordable_end(error):
                raise  # it fell between the effect and its record: the step stays in doubt
            failed = self._failed_try(call, error, tries)
            if failed is not None:
                return failed
            raise self._recorded_failure(call, error, acted=tries.acted) from error
        finally:
            self.step_key = None
        self._record_result(call, result, wait=False)
        return Done(result)

    def _failed_try(self, call: Call, error: BaseException, tries: Tries) -> Failed | None:
        """Record a try that raised and is followed by another; None when it was the last."""
        failed = call.spec.retrying.after(error, tries, not_done=call.spec.not_done)
        if failed is None:
            return None
        data = {
            "step": call.index,
            "tries": failed.tries.failed,
            "acted": failed.tries.acted,
            "due": failed.due(datetime.now(UTC)).isoformat(),
        }

        def append(exception: Any) -> None:
            told = data | {"exception": exception}
            self.append_or_stop("step.try_failed", told, wait=False)

        record_exception(error, append)
        return failed

    def _try_again(self, call: Call, entry: Entry) -> Any:
        """Go on with a step whose last try has raised: wait out what is left, unless its tries are used up by now."""
        assert entry.due is not None
        if entry.tries > call.spec.retrying.retries:  # the code allows fewer than it did
            data = {"step": call.index, "owed": entry.acted and call.spec.undo is not None}
            self.append_or_stop("step.failed", data | {"exception": entry.value}, wait=False)
            raise decode_exception(entry.value)
        left = (entry.due - datetime.now(UTC)).total_seconds()
        self._wait(min(left, call.spec.retrying.longest))
        return self._perform(call, entry)

    def _wait(self, seconds: float) -> None:
        """Sleep between two tries, and stop at once when the run is lost meanwhile."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(left, LOOK_SECONDS))
            self._last_look_or_stop()

    def _record_result(self, call: Call, result: Any, *, wait: bool) -> None:
        data = {"step": call.index, "result": result}
        try:
            self.append_or_stop("step.completed", data, wait=wait)
        except InvalidEvent as error:
            # Too large: it was done, and its result is lost.
            raise self._recorded_failure(call, error, acted=True) from error

    def _recorded_failure(self, call: Call, error: BaseException, *, acted: bool) -> BaseException:
        """Record how a step failed and return what its caller sees: the same at a replay as now.

        `acted` says that an earlier try may have had the effect.
        """
        acted = acted or not isinstance(error, call.spec.not_done)
        owed = call.spec.undo is not None and acted
        data = {"step": call.index, "owed": owed}

        def append(exception: Any) -> None:
            self.append_or_stop("step.failed", data | {"exception": exception}, wait=False)

        return decode_exception(record_exception(error, append))

    def _settle_doubt(self, call: Call, entry: Entry) -> Any:
        """Decide about a step whose end nobody recorded, in the order that is promised; a person's word comes first."""
        if entry.told == "not happened":
            return self._perform(call, entry)
        if call.spec.resolve is not None:
            answer = self._resolve(call)
            if answer is NotDone:
                return self._perform(call, entry)
            if answer is not Unknown:
                result = encode(answer, path="result")
                self._record_result(call, result, wait=True)
                return decode(result)
        if call.spec.retry_in_doubt:
            return self._perform(call, entry)
        raise self.stop(StepInDoubt(self.run_id, entry.step, entry.name))

    def _resolve(self, call: Call) -> Any:
        assert call.spec.resolve is not None
        self.step_key = call.key
        try:
            return call.spec.resolve(call.key)
        except Exception as error:  # noqa: BLE001  # a resolve that fails says nothing
            logger.warning("resolve of step %s in run %s: %s", call.spec.name, self.run_id, error)
            return Unknown
        finally:
            self.step_key = None

    def _digest(self, name: str, told: Any) -> str:
        try:
            return self.commander.store.digest(told)
        except UnrecordableValue as error:
            named = UnrecordableValue(f"{name}: {error.path}", error.type_name, error.reason)
            raise self.stop(named) from error

    def _encoded_or_stop(self, value: Any, path: str) -> Any:
        try:
            return encode(value, path=path)
        except UnrecordableValue as error:
            raise self.stop(error) from error

    def append_or_stop(self, event_type: str, data: Mapping[str, Any], *, wait: bool) -> Event:
        """Append one event of this run; where that cannot be done, the attempt is over."""
        try:
            return self.append(event_type, data, wait=wait)
        except UNRECORDED as error:
            raise self.stop(error) from error
        except InvalidEvent as error:
            if event_type in STEP_ENDS:
                raise
            raise self.stop(error) from error

    def _last_look_or_stop(self) -> None:
        try:
            self.last_look()
        except UNRECORDED as error:
            raise self.stop(error) from error
