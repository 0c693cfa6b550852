"""Put the ledger into a snapshot, with the events of what is unfinished: all of them, or no snapshot comes of it."""

from __future__ import annotations

from collections.abc import Callable

from .fold import fold_all
from .ledger_view import LedgerView
from .snapshot_file import SnapshotWriter
from .states import RunState
from .wal import StoredLine
from .wal.index import Index


class Incomplete(Exception):
    """An unfinished run's events are not those that the ledger was folded from."""


def fill(
    writer: SnapshotWriter, view: LedgerView, index: Index, keeps: Callable[[RunState], bool]
) -> None:
    """Write a view's rows, then the lines of the runs that something is left to do of, if `keeps` says so.

    A snapshot may come to hold the only copy of these lines, so they are believed only when they fold to
    the run's state. If they do not, the index is made anew first. Of a settled run whose dead letter is
    open the lines may have been let go by an earlier snapshot, under another number of days.

    Raises:
        Incomplete: the lines of an unfinished run do not come to what the ledger says of it.
    """
    for table, row in view.others():
        writer.row(table, row)
    for run_id, row in view.runs():
        writer.run(run_id, row)
    looked_anew = False
    for state in filter(keeps, view.unfinished()):
        lines = _lines_of(state, view, index)
        if lines is None and not looked_anew:
            index.start_over()
            lines, looked_anew = _lines_of(state, view, index), True
        if lines is None and not state.settled:
            raise Incomplete(f"run {state.run_id} is not what its events come to")
        for stored in lines or ():
            writer.event(state.run_id, stored)


def _lines_of(state: RunState, view: LedgerView, index: Index) -> list[StoredLine] | None:
    """Return a run's lines up to the view's end; None when they do not fold to its state."""
    through = view.position.seq
    found = [each for each in index.entries(state.run_id) if each[1].seq <= through]
    folded = fold_all(event for _, event in found).get(state.run_id)
    return [line for line, _ in found] if folded == state else None
