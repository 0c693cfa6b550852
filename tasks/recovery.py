"""Act on what the engine decides about runs whose owner is gone: fence, decide, requeue, abort, undo, deliver.

Recovery never executes a body: it writes the decision down and publishes the run's message again, for
whichever worker takes it. Every step is a compare-and-set, so any number of recoverers, and a recoverer that
dies half-way, are harmless.
"""

from __future__ import annotations

import dataclasses
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from celery_commander.engine import (
    Abort,
    Compensate,
    Decision,
    Deliver,
    HistoryArchived,
    LeaseStatus,
    LogCorrupt,
    LogError,
    LogUnavailable,
    Park,
    ParkDamaged,
    ParkVersion,
    Policy,
    Republish,
    Requeue,
    RunState,
    Skip,
    StoreUnavailable,
    UnknownRun,
    Wait,
    plan,
)

from .checkpoints import forget_over
from .evidence import RUNNING, Evidence, Patience, bury, evidently_waiting, queue_is_empty
from .takeover import Found, take_over

if TYPE_CHECKING:
    from .install import Commander

logger = logging.getLogger(__name__)

SLOW_QUEUE = 10
"""How many times pending_after a message may wait in a queue that is not empty before it counts as lost."""

FAILED = "failed, to be tried again"
"""How the reason of a run begins that could not even be looked at."""

BATCH = 200
"""How many runs are read from the ledger at a time."""


@dataclass(frozen=True, slots=True)
class Detail:
    """Say what became of one run in one pass."""

    run_id: str
    action: str
    reason: str


@dataclass(frozen=True, slots=True)
class RecoveryResult:
    """Count what one pass did.

    `recovered` were published again, to go on or to have their outcome told; `aborted` are durably aborted and being
    undone. Runs that were parked, or whose earlier undo was taken up again, are in `details` only.
    """

    scanned: int
    recovered: int
    aborted: int
    skipped: int
    details: tuple[Detail, ...]
    refused: str | None = None
    """Why nothing was decided at all, when the log itself cannot be trusted or written."""

    @property
    def failed(self) -> tuple[Detail, ...]:
        """Return the runs that could not be handled now; until a pass has none, recovery is incomplete."""
        return tuple(detail for detail in self.details if detail.reason.startswith(FAILED))


class RecoveryBootstrapper:
    """Find the runs that nobody owns and see that each goes on, or is undone, or is told."""

    def __init__(self, commander: Commander) -> None:
        self._commander = commander
        self._patience = Patience()
        self._proof_needed = False
        self._checkpoints_after = ""
        self._refused: str | None = None

    def bootstrap(self, force_abort: bool = False, *, dry_run: bool = False) -> RecoveryResult:
        """Look at every run of this namespace once; return what was done, or with `dry_run` what would be.

        `force_abort` aborts and undoes whatever is unfinished and has no living owner. One run that cannot be handled
        now does not stop the others; it is met again at the next pass.
        """
        commander, policy = self._commander, self._policy(force_abort)
        problem = commander.health.problem()
        if problem is not None:  # it would compensate from a history that may be forged
            return self._refuse(_summed([]), problem, dry_run=dry_run)
        details: list[Detail] = []
        self._proof_needed = False
        try:
            dead_holders = commander.leases.dead_holders()
            commander.ledger.catch_up()
            for batch in self._batches():
                details += self._handle(batch, policy, dry_run=dry_run)
            if not dry_run:
                commander.dead_letters.sweep()
                bury(commander, dead_holders)
                self._sweep_liveness()
                self._checkpoints_after = forget_over(commander, after=self._checkpoints_after)
                self._note_swept(_summed(details))
        except LogCorrupt as error:  # not one byte is added behind what does not verify
            return self._refuse(_summed(details), str(error), dry_run=True)
        except (LogError, StoreUnavailable) as error:
            return self._refuse(_summed(details), str(error), dry_run=dry_run)
        self._refused = None
        return _summed(details)

    def decide(self, run_id: str) -> Detail:
        """Look at one run at once and do what is to be done, as the next pass would.

        Raises:
            UnknownRun: no event of it is in the log.
            LogError, StoreUnavailable: nothing is decided now; the next pass tries.

        """
        state = self._commander.history(run_id).state
        if state is None:
            raise UnknownRun(run_id)
        status = self._commander.leases.statuses([run_id])[run_id]
        problem = self._commander.health.problem()
        if problem is not None:
            raise LogUnavailable(self._commander.engine.path, problem)
        (detail,) = self._handle([(state, status)], self._policy(False), dry_run=False)
        return detail

    def _refuse(self, result: RecoveryResult, reason: str, *, dry_run: bool) -> RecoveryResult:
        """Say that no more is decided; in the log once for as long as the reason stays, if it takes that."""
        logger.error("Recovery stops here, the next pass tries again: %s", reason)
        told = dry_run or reason == self._refused
        if not told and self._commander.health.unwritable() is None:
            with suppress(LogError, StoreUnavailable, OSError):
                data = {**_counts(result), "refused": reason}
                self._commander.engine.append("recovery.swept", data, wait=False)
                self._refused = reason
        return dataclasses.replace(result, refused=reason)

    def _sweep_liveness(self) -> None:
        """Remove what dead processes left, unless some run still waits for the proof that its owner is gone."""
        if not self._proof_needed:
            self._commander.leases.sweep_liveness()

    def _note_swept(self, result: RecoveryResult) -> None:
        if result.recovered or result.aborted:
            self._commander.engine.append("recovery.swept", _counts(result), wait=False)

    def _batches(self) -> Iterator[list[tuple[RunState, LeaseStatus]]]:
        after: str | None = None
        while True:
            states = self._commander.ledger.candidates(
                self._commander.namespace, limit=BATCH, after=after
            )
            statuses = self._commander.leases.statuses(state.run_id for state in states)
            yield [(state, statuses[state.run_id]) for state in states]
            if len(states) < BATCH:
                return
            after = states[-1].run_id

    def _policy(self, force_abort: bool) -> Policy:
        settings = self._commander.engine_settings
        return Policy(
            pending_after_seconds=settings.pending_after_seconds,
            max_deaths=settings.max_deaths,
            grace_seconds=2 * settings.lease_seconds,
            force_abort=force_abort or self._commander.settings.force_abort,
        )

    def _handle(
        self, batch: Sequence[tuple[RunState, LeaseStatus]], policy: Policy, *, dry_run: bool
    ) -> list[Detail]:
        """Look at each run of a batch, then take over together those with which something is to be done."""
        details: list[Detail] = []
        to_take: dict[str, Found] = {}
        for state, status in batch:
            looked = self._look(state, status, policy)
            if isinstance(looked, Detail):
                details.append(looked)
            else:
                to_take[state.run_id] = looked
        if dry_run:
            return details + [
                _described(run_id, found.decision) for run_id, found in to_take.items()
            ]
        decided = take_over(self._commander, to_take, policy) if to_take else {}
        for run_id in decided:
            self._patience.note(run_id)
        self._proof_needed |= any(
            state.state in RUNNING and not status.alive and state.run_id not in decided
            for state, status in batch
        )
        return details + [_decided(run_id, decided.get(run_id)) for run_id in to_take]

    def _look(self, state: RunState, status: LeaseStatus, policy: Policy) -> Detail | Found:
        """Return what is to be done with a run, or why nothing is; a run that cannot be read stops no other."""
        try:
            if state.task not in self._commander.app.tasks and not policy.force_abort:
                return Detail(state.run_id, "skip", f"unknown task {state.task}")
            waiting = evidently_waiting(state, status, policy)
            if waiting is not None and (status.alive or not self._may_lack_events(state)):
                return Detail(state.run_id, "skip", waiting)
            return self._plan(state, status, policy)
        except HistoryArchived:
            return Detail(state.run_id, "skip", "finished")  # while this pass was under way
        except LogError:
            raise
        except Exception as error:
            logger.exception("Run %s could not be looked at, the next pass tries.", state.run_id)
            return Detail(state.run_id, "skip", f"{FAILED}: {error}")

    def _may_lack_events(self, state: RunState) -> bool:
        """Return whether damage was accepted since the run's last event: then it is looked at, due or not."""
        lost = self._commander.engine.breaks.lost()
        return any(each.noted_at > state.last_seq for each in lost)

    def _plan(self, state: RunState, status: LeaseStatus, policy: Policy) -> Detail | Found:
        evidence = Evidence.gather(self._commander, state, status)
        facts = evidence.facts()
        decision = plan(evidence.history, policy, facts)
        if isinstance(decision, Skip | Wait):
            return _described(state.run_id, decision)
        told_before = isinstance(decision, Deliver | Compensate) and not facts.owner_dead
        if told_before and not self._is_overdue(evidence, policy):
            return Detail(state.run_id, "skip", "its message may still wait in a queue")
        return Found(evidence.history, facts, decision)

    def _is_overdue(self, evidence: Evidence, policy: Policy) -> bool:
        """Return whether what was published for a run is lost rather than slow: nothing waits, or for very long."""
        state = evidence.history.state
        assert state is not None
        if not self._patience.allows(state.run_id, policy):
            return False
        queue = evidence.may_wait_in(self._commander.app)
        if queue is None or queue_is_empty(self._commander.app, queue):
            return True
        waited = datetime.now(UTC) - state.changed_at
        return waited >= SLOW_QUEUE * timedelta(seconds=policy.pending_after_seconds)


def _decided(run_id: str, decision: Decision | None) -> Detail:
    return (
        _described(run_id, decision) if decision else Detail(run_id, "skip", "claimed by another")
    )


def _described(run_id: str, decision: Decision) -> Detail:
    match decision:
        case Skip(reason=reason) | Wait(reason=reason):
            return Detail(run_id, "skip", reason)
        case Requeue(reason=reason, checkpoint=checkpoint):
            place = f", from checkpoint {checkpoint.id}" if checkpoint else ""
            return Detail(run_id, "requeue", reason + place)
        case Abort(reason=reason):
            return Detail(run_id, "abort", reason)
        case Republish():
            return Detail(run_id, "republish", "its message was lost")
        case Deliver():
            return Detail(run_id, "deliver", "its outcome was not told")
        case Compensate():
            return Detail(run_id, "compensate", "its undo stood still")
        case Park(step=step):
            return Detail(run_id, "park", f"step {step} is in doubt")
        case ParkVersion(reason=reason) | ParkDamaged(reason=reason):
            return Detail(run_id, "park", reason)


def _summed(details: list[Detail]) -> RecoveryResult:
    counted = Counter(detail.action for detail in details)
    return RecoveryResult(
        scanned=len(details),
        recovered=counted["requeue"] + counted["republish"] + counted["deliver"],
        aborted=counted["abort"],
        skipped=counted["skip"],
        details=tuple(details),
    )


def _counts(result: RecoveryResult) -> dict[str, int]:
    return {key: getattr(result, key) for key in ("scanned", "recovered", "aborted", "skipped")}
