"""Hold one run for as long as a lease says so, and write to the log in its name."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from celery_commander.engine import (
    Event,
    Lease,
    LeaseLost,
    NewEvent,
    Position,
    RunHistory,
    RunState,
    State,
    Void,
    fold,
    state_after,
)

from .announcing import announce
from .errors import VoidEvent

if TYPE_CHECKING:
    from .install import Commander

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Ownership:
    """Own one run: its lease, its token, and the next of its dense numbers.

    Every event of an owner goes through here, so that each carries the token; the log, not this object, compares it.
    """

    def __init__(self, commander: Commander, lease: Lease, history: RunHistory) -> None:
        self.commander = commander
        self.lease = lease
        self.history = history
        self.run_id = str(lease.run_id)
        self.token = lease.token
        self.thread_id = threading.get_ident()
        self.outcome: State | None = None
        self._state = history.state
        self._is_unsure = False

    @property
    def state(self) -> RunState | None:
        """Return the run's state with everything that this owner wrote; read anew when an append was interrupted."""
        if self._is_unsure:
            self._state = self.commander.history(self.run_id).state
            self._is_unsure = False
        return self._state

    def append(self, event_type: str, data: Mapping[str, Any], *, wait: bool) -> Event:
        """Append one event as this run's owner; with `wait`, return once it is on disk.

        Celery's soft time limit may raise at any line of this. So the state counts as unsure from before the append
        until the event is folded, and an interrupted append is settled by asking the log.

        Raises:
            VoidEvent: the event would count for nothing; it was not written.
            Fenced: a newer owner has taken the run.
            LogUnavailable: nothing was written.
        """
        state = self.state
        n = (state.n if state else 0) + 1
        self._refuse_void(state, event_type, data, n)
        self._is_unsure = True
        event = self.commander.engine.append(
            event_type, data, run_id=self.run_id, token=self.token, n=n, wait=wait
        )
        self._state = state_after(state, event)
        self._is_unsure = False
        announce(self.commander, (event,))
        return event

    def _refuse_void(
        self, state: RunState | None, event_type: str, data: Mapping[str, Any], n: int
    ) -> None:
        """Ask the fold before the log: what is not going to count must not be acted on."""
        at = state.changed_at if state else EPOCH
        seq = state.last_seq + 1 if state else 1
        event = Event(
            Position(seq, 0, 0), seq, "", event_type, at, self.run_id, dict(data), "", n, self.token
        )
        folded = fold(state, event)
        if isinstance(folded, Void):
            raise VoidEvent(self.run_id, event_type, folded.reason)

    def fence(self) -> NewEvent:
        """Return the event that ends the right of every older token to write."""
        holder = {"holder": self.lease.holder}
        return NewEvent("run.fenced", holder, run_id=self.run_id, token=self.token)

    def take_and_append(self, *events: tuple[str, Mapping[str, Any]]) -> None:
        """Fence every older token and append the events, in one durable write."""
        numbered = self.numbered(events)
        self._is_unsure = True
        written = self.commander.engine.append_many([self.fence(), *numbered], wait=True)
        announce(self.commander, written)

    def numbered(self, events: Sequence[tuple[str, Mapping[str, Any]]]) -> list[NewEvent]:
        """Return the events with this run's token and next numbers, for a batch that spans several runs."""
        first = (self.state.n if self.state else 0) + 1
        self._is_unsure = True
        return [
            NewEvent(event_type, data, run_id=self.run_id, token=self.token, n=first + i)
            for i, (event_type, data) in enumerate(events)
        ]

    def last_look(self) -> None:
        """Return if the lease still holds; the last thing before an effect.

        Raises:
            LeaseLost: it ran out, or somebody took it over.

        """
        if not self.commander.holder.owns(self.lease):
            raise LeaseLost(self.run_id, self.token)

    def release(self) -> None:
        """Give the lease back; harmless when it was lost."""
        self.commander.holder.release(self.lease)


@contextmanager
def owned(commander: Commander, run_id: str) -> Iterator[Ownership | None]:
    """Own `run_id` for a block, for work beside its body: an undo, a delivery. None when somebody else does."""
    history = commander.history(run_id)
    lease = commander.holder.acquire(run_id, floor=history.state.token if history.state else 0)
    if lease is None:
        yield None
        return
    try:
        yield Ownership(commander, lease, commander.history(run_id))
    finally:
        commander.holder.release(lease)
