"""Return all that is known of one run or of all, or say that it is not there any more."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from .errors import HistoryArchived
from .events import Event, Position
from .fold import state_after
from .ledger_view import states_of
from .snapshot_file import Head, SnapshotFile
from .snapshots import Snapshots
from .states import RunState
from .wal.index import Index


def events_of(index: Index, snapshots: Snapshots, run_id: str, known_seq: int) -> list[Event]:
    """Return a run's events in order.

    An index that has not heard of event `known_seq`, if that is in the log's files, is made anew.

    Raises:
        HistoryArchived, LogCorrupt, SnapshotMismatch: see EventSourcingEngine.history.
    """
    events = index.history(run_id)
    if known_seq >= index.begins_at and (not events or events[-1].seq < known_seq):
        index.start_over()
        events = index.history(run_id)
    begins_at = index.begins_at
    if begins_at > 1 and (not events or events[0].seq >= begins_at):
        # New since then, or over before: a late duplicate may have been registered as if it were new.
        known = snapshots.state(run_id)
        begun = known is None or (events and events[0].timestamp == known[0].created_at)
        if known is not None and not begun:
            raise HistoryArchived(run_id, known[0].state.value, known[1])
    return events


def replayed(
    begins: tuple[SnapshotFile, Head] | None,
    read_from: Callable[[Position | None], Iterable[Event]],
) -> dict[str, RunState]:
    """Fold a log into the state of every run, from a snapshot on or from its first event."""
    states = {} if begins is None else states_of(*begins)
    for event in read_from(None if begins is None else begins[1].position):
        if event.run_id is not None:
            state = state_after(states.get(event.run_id), event)
            if state is not None:
                states[event.run_id] = state
    return states
