"""Let a body save its own state, and begin from it when it cannot be replayed from its first line.

A checkpoint takes no index: it may be added to a body, or left out, without making it another one to a replay. Steps
and inputs keep their indexes across a restart, so their keys stay unique and their undos stay owed.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Any

from celery_commander.engine import (
    Checkpoint,
    CheckpointInvalid,
    NonDeterministic,
    RunHistory,
    State,
    StepInDoubt,
    StoreUnavailable,
    UnreadableValue,
    UnrecordableValue,
)

from .errors import RunStopped

if TYPE_CHECKING:
    from .execution import Execution
    from .install import Commander

logger = logging.getLogger(__name__)

OVER = (State.COMMITTED, State.COMPENSATED, State.ABORTED, State.STUCK)

LARGEST_VERSION = 2**53 - 1


class Marks:
    """Answer `checkpoint` and `restored` for the body of one attempt."""

    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        self._known = list(execution.history.checkpoints)
        self._base = execution.history.base
        state = execution.history.state
        self._wanted = state.checkpoint if state else None
        self._has_begun = False
        self.version: int | None = None
        self._recorded = Counter((one.step, one.version) for one in self._known)
        # What a body meets again: at one place it may save several times, and goes on behind one of them.
        self._met = Counter(
            (one.step, one.version)
            for one in self._known
            if self._base is not None and one.step == self._base.step and one.seq <= self._base.seq
        )

    @property
    def first_index(self) -> int:
        """Return the index at which this attempt begins."""
        return self._base.step if self._base else 0

    @property
    def awaits_restored(self) -> bool:
        """Return whether the body has still to ask for the state from which it is to go on."""
        return self._wanted is not None and self.version is None

    def begin(self) -> None:
        """Note that the body did something; one that is to go on from a checkpoint must have asked for it by then.

        Raises:
            StopRun: the body is another one than that which saved the checkpoint.

        """
        self._has_begun = True
        if self.awaits_restored:
            found = "the body's first call is not restored()"
            raise self._differs(f"a start from checkpoint {self._wanted}", found)

    def restored(self, default: Any, version: int) -> Any:
        """Return the state from which this attempt goes on, or the default when it begins at the first line."""
        execution = self._execution
        execution.enter("restored()")
        _check_version(version)
        if self._has_begun:
            reason = (
                "restored() must be the body's first call, before every step, input and checkpoint"
            )
            raise RunStopped(execution.run_id, reason)
        self._has_begun, self.version = True, version
        if self._wanted is None:
            return default
        recorded = f"checkpoint {self._wanted}"
        if self._base is None:
            raise self._differs(recorded, "no event of it")
        if self._base.version != version:
            recorded += f" of version {self._base.version}"
            raise self._differs(recorded, f"restored() of version {version}")
        return self._load(self._base, recorded)

    def _load(self, base: Checkpoint, recorded: str) -> Any:
        execution = self._execution
        try:
            state = execution.commander.checkpoints.load(execution.run_id, base)
        except UnreadableValue as error:
            raise self._differs(recorded, str(error)) from error
        except (CheckpointInvalid, StoreUnavailable) as error:  # recovery decides what comes next
            raise execution.stop(error) from error
        logger.warning("Run %s goes on from %s.", execution.run_id, recorded)
        return state

    def checkpoint(self, state: Any, version: int) -> None:
        """Save a state at the place that the body has reached, unless an earlier attempt did so there."""
        execution = self._execution
        execution.enter("checkpoint()")
        _check_version(version)
        self.begin()
        place = (execution.index, version)
        self._met[place] += 1
        if self._met[place] <= self._recorded[place]:
            return
        for step in execution.state.open_steps if execution.state else ():
            raise execution.stop(StepInDoubt(execution.run_id, step, "before the checkpoint"))
        self._save(state, *place)

    def _save(self, state: Any, step: int, version: int) -> None:
        """Make the content durable, then name it in the log; a store that is away costs the checkpoint, not the run."""
        execution = self._execution
        run_id, store = execution.run_id, execution.commander.checkpoints
        try:
            saved = store.save(
                run_id, state, token=execution.token, named=self._most_wanted(version)
            )
        except UnrecordableValue as error:
            raise execution.stop(error) from error
        except StoreUnavailable as error:
            logger.error("Run %s goes on without a checkpoint at %s: %s", run_id, step, error)
            return
        restorable = self.version == version
        told: dict[str, Any] = {"step": step, "version": version, "restorable": restorable}
        if patches := execution.patches.answers:
            told["patches"] = patches
        content = {"checkpoint": saved.id, "sha256": saved.sha256, "bytes": saved.bytes}
        event = execution.append_or_stop("checkpoint.saved", told | content, wait=True)
        self._known.append(
            Checkpoint(
                id=saved.id,
                step=step,
                version=version,
                sha256=saved.sha256,
                bytes=saved.bytes,
                restorable=restorable,
                seq=event.seq,
                patches=tuple(patches.items()),
            )
        )

    def _most_wanted(self, version: int) -> list[str]:
        """Return the saved ones, first those that a restart would take first."""
        best = sorted(
            self._known,
            key=lambda one: (one == self._base, one.version == version, one.step, one.seq),
            reverse=True,
        )
        return [one.id for one in best]

    def _differs(self, recorded: str, found: str) -> BaseException:
        execution = self._execution
        return execution.stop(NonDeterministic(execution.run_id, execution.index, recorded, found))


def restart_of(execution: Execution) -> tuple[Checkpoint | None, str]:
    """Return the checkpoint at which a body that met other records than its own may begin; or None, and why not.

    A run that changed code has sent to a checkpoint may only be sent further on: each time to a higher index, so that
    two versions of the code cannot send it to and fro.
    """
    version, history = execution.marks.version, execution.commander.history(execution.run_id)
    if version is None:
        return None, "the body does not begin with restored()"
    state, base = history.state, history.base
    fit = history.restarts(version)
    if state is not None and state.checkpoint is not None:
        fit = tuple(one for one in fit if base is not None and one.step > base.step)
    try:
        faults = execution.commander.checkpoints.faults(execution.run_id, fit)
    except StoreUnavailable as error:
        return None, str(error)
    found = next((one for one in fit if one.id not in faults), None)
    return found, _why_none(faults)


def _why_none(faults: dict[str, str]) -> str:
    if not faults:
        return "it has no checkpoint to go on from"
    return "; ".join(f"checkpoint {id} is not believed: {why}" for id, why in faults.items())


def named(checkpoint: Checkpoint, *, conflict: bool) -> dict[str, Any]:
    """Return how `run.requeued` names the checkpoint from which a run goes on."""
    place = {"id": checkpoint.id, "step": checkpoint.step, "version": checkpoint.version}
    return {**place, "conflict": conflict}


def valid_checkpoints(commander: Commander, history: RunHistory) -> frozenset[str] | None:
    """Return which checkpoints of a run may be believed, None when their store cannot say.

    Where a replay needs none, none are looked at.
    """
    state = history.state
    if state is None or not history.checkpoints:
        return frozenset()
    if history.complete and state.checkpoint is None:
        return frozenset()
    try:
        faults = commander.checkpoints.faults(state.run_id, history.checkpoints)
    except StoreUnavailable as error:
        logger.error("Run %s may have to wait: %s", state.run_id, error)
        return None
    return frozenset(one.id for one in history.checkpoints if one.id not in faults)


def forget_over(commander: Commander, *, after: str, limit: int = 200) -> str:
    """Drop what is kept of runs that are over, a page at a time; return where the next page begins."""
    try:
        page = commander.checkpoints.run_ids(after=after, limit=limit)
        over = [run_id for run_id in page if _is_over(commander, run_id)]
        if over:
            commander.checkpoints.forget(over)
    except StoreUnavailable as error:
        logger.warning("Checkpoints of finished runs stay for now: %s", error)
        return after
    return page[-1] if len(page) == limit else ""


def _is_over(commander: Commander, run_id: str) -> bool:
    state = commander.ledger.get(run_id)
    return state is not None and state.state in OVER


def _check_version(version: object) -> None:
    if type(version) is not int or not 0 <= version <= LARGEST_VERSION:
        raise ValueError(f"a checkpoint's version is a whole number, 0 or more, not {version!r}")
