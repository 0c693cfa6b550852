"""Return all that is known of one run, or say that it is not there any more; short histories are not believed."""

from __future__ import annotations

from .errors import HistoryArchived
from .events import Event
from .snapshots import Snapshots
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
