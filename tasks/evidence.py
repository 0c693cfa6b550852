"""Gather what recovery must know about one run beside its events: who held it, whether that process is gone."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from celery import Celery

from celery_commander.engine import (
    Event,
    Facts,
    LeaseStatus,
    Liveness,
    LivenessRef,
    Policy,
    RunHistory,
    RunState,
    State,
    probe,
)

from .broker import BrokerSilent, messages_in
from .checkpoints import valid_checkpoints

if TYPE_CHECKING:
    from .install import Commander


RUNNING = (State.EXECUTING, State.VERIFYING)


class Patience:
    """Remember when this process last published something for a run, so that a long queue does not become a storm."""

    def __init__(self) -> None:
        self._published: dict[str, tuple[float, int]] = {}

    def note(self, run_id: str) -> None:
        """Note that something was published for the run now."""
        times = self._published.get(run_id, (0.0, 0))[1]
        self._published[run_id] = (time.monotonic(), times + 1)
        if len(self._published) > 100_000:
            self._published.clear()  # forgetting means publishing once too often, which is harmless

    def allows(self, run_id: str, policy: Policy) -> bool:
        """Return whether the pause since the last publication is over; it doubles each time."""
        at, times = self._published.get(run_id, (0.0, 0))
        pause_seconds = policy.pending_after_seconds * 2.0 ** min(times - 1, 16)
        return times == 0 or time.monotonic() - at >= pause_seconds


def evidently_waiting(state: RunState, status: LeaseStatus, policy: Policy) -> str | None:
    """Return why a run needs no closer look, from what the ledger and the lease say; None when it does.

    The ledger may lag, so this only ever postpones: whoever is passed over is met again at the next pass.
    """
    if status.alive:
        return "owner alive"
    if policy.force_abort or status.proven_dead:
        return None
    now = datetime.now(UTC)
    patience = timedelta(seconds=policy.pending_after_seconds)
    match state.state:
        case State.PENDING if now - state.changed_at < patience:
            return "pending"
        case State.ABORTED if now - state.changed_at < patience:
            return "the rollback is under way"
        case State.PAUSED if state.paused_kind == "retry" and state.due_at is not None:
            return "its retry is on its way" if now - state.due_at < patience else None
        case _:
            return None


def queue_is_empty(app: Celery, queue: str) -> bool:
    """Return whether no message waits in a queue; a broker that cannot be asked counts as no.

    A queue that does not exist holds nothing: Redis forgets an empty one.
    """
    try:
        return messages_in(app, [queue])[queue] == 0
    except BrokerSilent:
        return False


def bury(commander: Commander, holders: Iterable[str]) -> None:
    """Give back what dead holders still had when a pass is over; what it decided stands in the log.

    Their claims keep the proof of their death: each names the liveness lock of its process.
    """
    for holder in holders:
        for run_id in commander.leases.runs_of(holder):
            lease = commander.recovery_holder.acquire(run_id, floor=0)
            if lease is not None:
                commander.recovery_holder.release(lease)


@dataclass(frozen=True, slots=True)
class Evidence:
    """Hold a run's history, its lease as it was found, and the claim under which its body last ran."""

    commander: Commander
    history: RunHistory
    status: LeaseStatus
    claim: Event | None
    fenced_at: datetime | None
    """When a newer token than the last claim's was first written: that claim's lease was over by then."""
    died: bool = False
    """Whether the run was parked because its process was proven dead; the proof itself is cleaned away."""

    @classmethod
    def gather(cls, commander: Commander, state: RunState, status: LeaseStatus) -> Evidence:
        """Read the log after the lease (`status`), so that a lease which looks free is not newer than the events.

        `state` is the ledger's word on the run; its history reaches at least as far.
        """
        events = commander.engine.history(state.run_id, known_seq=state.last_seq)
        claim = next((event for event in reversed(events) if event.type == "run.started"), None)
        newer = (
            e
            for e in events
            if claim and e.type == "run.fenced" and (e.token or 0) > (claim.token or 0)
        )
        fence = next(newer, None)
        parked = next((event for event in reversed(events) if event.type == "run.paused"), None)
        return cls(
            commander,
            RunHistory.of(events, commander.engine.breaks.lost()),
            status,
            claim,
            fenced_at=fence.timestamp if fence else None,
            died=parked is not None and parked.payload.get("owner_dead") is True,
        )

    def facts(self) -> Facts:
        """Return the facts on which the decision is made."""
        state = self.history.state
        assert state is not None
        return Facts(
            now=datetime.now(UTC),
            lease="alive" if self.status.alive else "free",
            owner_dead=self._owner_dead(),
            lease_expired_seconds=self._expired_seconds(),
            republished=self.history.republished,
            task_known=state.task in self.commander.app.tasks,
            checkpoints=valid_checkpoints(self.commander, self.history),
            overtaken=self._overtaken(state),
        )

    def _overtaken(self, state: RunState) -> bool:
        """Return whether the broker has gone past this run's message: a younger one of its queue ran, or none waits."""
        if state.state is not State.PENDING:
            return True
        newest = self.commander.ledger.newest_started(state.namespace).get(state.queue)
        if newest is not None and newest > state.changed_at:  # since it was last sent
            return True
        return state.queue is None or queue_is_empty(self.commander.app, state.queue)

    def may_wait_in(self, app: Celery) -> str | None:
        """Return the queue in which what recovery would publish may still wait from an earlier time."""
        state = self.history.state
        if state is None or state.state is not State.ABORTED or not self.history.owed:
            return state.queue if state else None
        queue = app.amqp.router.route({}, self.history.owed[0].undo).get("queue")
        name: str | None = getattr(queue, "name", queue)
        return name

    def _owner_dead(self) -> bool:
        """Return whether whoever was at work is proven to be gone.

        While a body runs that is the process of the last claim, also when a recoverer has had the lease since; so it is
        of a run that was parked inside a step, where that process may still be. Once the run waits otherwise, rolls
        back or is over, that process is history, and only the lease's last holder counts: a link, a taker that had not
        begun, or nobody.
        """
        state = self.history.state
        if state is not None and not self._is_claims_lease():
            if state.state in RUNNING:
                return self._claimer_gone()
            if state.state is State.PAUSED and state.open_steps:
                return self.died or self._claimer_gone()
        return self.status.proven_dead or self._other_boot()

    def _is_claims_lease(self) -> bool:
        return self.claim is None or self.status.token == self.claim.token

    def _claimer_gone(self) -> bool:
        recorded = (self.claim.payload.get("liveness") if self.claim else None) or {}
        try:
            ref = LivenessRef(**recorded)
        except TypeError:
            return False
        clock, settings = self.commander.store.clock, self.commander.engine_settings
        if ref.boot_id != clock.boot_id:
            return True  # nothing outlives its boot
        return probe(settings.liveness_directory, ref, clock.boot_id) is Liveness.FREE

    def _other_boot(self) -> bool:
        state = self.history.state
        row = self.commander.leases.get(state.run_id) if state else None
        return (
            row is not None
            and row.holder is not None
            and row.boot_id != self.commander.store.clock.boot_id
        )

    def _expired_seconds(self) -> float | None:
        """Return how long the lease of the last claim has been over; None when its holder gave it back."""
        if self._is_claims_lease():
            known: float | None = self.status.expired_seconds
            return known
        if self.fenced_at is None:
            return 0.0
        return (datetime.now(UTC) - self.fenced_at).total_seconds()
