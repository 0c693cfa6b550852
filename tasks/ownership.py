"""Hold one run for as long as a lease says so, and write to the log in its name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from celery_commander.engine import Event, Lease, LeaseLost, NewEvent, RunHistory, State

if TYPE_CHECKING:
    from .install import Commander


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
        self.outcome: State | None = None
        self._next_n = history.next_n

    def append(self, event_type: str, data: Mapping[str, Any], *, wait: bool) -> Event:
        """Append one event as this run's owner; with `wait`, return once it is on disk.

        Raises:
            Fenced: a newer owner has taken the run.
            LogUnavailable: nothing was written.

        """
        event = self.commander.engine.append(
            event_type, data, run_id=self.run_id, token=self.token, n=self._next_n, wait=wait
        )
        self._next_n += 1
        return event

    def fence(self) -> NewEvent:
        """Return the event that ends the right of every older token to write."""
        holder = {"holder": self.lease.holder}
        return NewEvent("run.fenced", holder, run_id=self.run_id, token=self.token)

    def take_and_append(self, *events: tuple[str, Mapping[str, Any]]) -> None:
        """Fence every older token and append the events, in one durable write."""
        self.commander.engine.append_many([self.fence(), *self.numbered(events)], wait=True)

    def numbered(self, events: Sequence[tuple[str, Mapping[str, Any]]]) -> list[NewEvent]:
        """Return the events with this run's token and next numbers, for a batch that spans several runs."""
        made = [
            NewEvent(event_type, data, run_id=self.run_id, token=self.token, n=self._next_n + i)
            for i, (event_type, data) in enumerate(events)
        ]
        self._next_n += len(made)
        return made

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
