"""The ledger as a snapshot keeps it: taken out in one consistent view, and put back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby, islice
from operator import itemgetter
from typing import Any, Final

from sqlalchemy import Connection, Row, Select, insert, literal_column, or_, select, update

from .chain import split_line
from .errors import SnapshotMismatch
from .events import Event, Position, decode_line
from .fold import FOLD_VERSION, fold_all
from .ledger_rows import pack, unpack, unpack_values
from .letters import project_anew
from .snapshot_file import Head, SnapshotFile
from .states import RunState
from .tables import LEDGER, folded, runs
from .wal import StoredLine

_ROWS: Final = 1000
_OWN_TABLES: Final = frozenset({runs.name, folded.name})
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NEW_COLUMNS: Final = pack(RunState("", "", "", None, None, _EPOCH, _EPOCH, 0))
"""What a row from an older version means where it lacks a column."""


@dataclass(frozen=True, slots=True)
class LedgerView:
    """The whole ledger as of one position; usable only while its transaction is open."""

    position: Position
    hash: str
    _connection: Connection

    def gaps(self) -> tuple[int, int | None]:
        """Return how many observed events were dropped, and when that was last told, as the ledger keeps it."""
        row = self._connection.execute(select(folded.c.gaps, folded.c.gap_at)).one()
        return row.gaps, row.gap_at

    def runs(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the row of every run, by the bytes of its id."""
        for row in self._rows(select(runs).order_by(runs.c.run_id)):
            values = dict(row._mapping)
            del values["uncovered"]
            yield row.run_id, values

    def unfinished(self) -> Iterator[RunState]:
        """Yield the runs that something is left to do of, by id: unsettled, or with an open dead letter."""
        is_open = or_(runs.c.settled == literal_column("0"), runs.c.letter.isnot(None))
        for row in self._rows(select(runs).where(is_open).order_by(runs.c.run_id)):
            yield unpack(row)

    def others(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the rows of all other tables, each with its table's name."""
        for table in LEDGER.sorted_tables:
            if table.name not in _OWN_TABLES:
                for row in self._rows(select(table)):
                    yield table.name, dict(row._mapping)

    def _rows(self, query: Select[Any]) -> Iterator[Row[Any]]:
        yield from self._connection.execute(query, execution_options={"yield_per": _ROWS})


def restore(connection: Connection, file: SnapshotFile, head: Head) -> None:
    """Fill empty tables from a snapshot whose bytes were checked.

    One that an older version made is read as well: what was left to do is folded anew from the
    events that it keeps, and what was settled stays as it was settled.
    """
    names = {column.name for column in runs.c}
    rows = (
        {**_NEW_COLUMNS, **{k: v for k, v in row.items() if k in names}, "uncovered": 0}
        for row in file.runs()
    )
    for some in _batches(rows):
        connection.execute(insert(runs), some)
    for name, its_rows in groupby(file.rows(), key=itemgetter(0)):
        table = LEDGER.tables.get(name)
        if table is not None:
            known = {column.name for column in table.c}
            kept = ({k: v for k, v in row.items() if k in known} for _, row in its_rows)
            for some in _batches(kept):
                connection.execute(insert(table), some)
    if head.fold_version != FOLD_VERSION:
        for events in _kept(file):
            for state in fold_all(events).values():
                values = {**pack(state), "uncovered": 0}
                connection.execute(update(runs).where(runs.c.run_id == state.run_id).values(values))
            project_anew(connection, events)


def states_of(file: SnapshotFile, head: Head) -> dict[str, RunState]:
    """Return every run's state as a checked snapshot has it."""
    states = {row["run_id"]: state_of(row) for row in file.runs()}
    if head.fold_version != FOLD_VERSION:
        states.update((state.run_id, state) for state in folded_anew(file))
    return states


def state_of(row: dict[str, Any]) -> RunState:
    """Return the state of a run's row in a snapshot."""
    names = {column.name for column in runs.c}
    return unpack_values({**_NEW_COLUMNS, **{k: v for k, v in row.items() if k in names}})


def folded_anew(file: SnapshotFile) -> Iterator[RunState]:
    """Yield the states of the runs whose events are kept, by today's rules."""
    for events in _kept(file):
        yield from fold_all(events).values()


def _kept(file: SnapshotFile) -> Iterator[list[Event]]:
    """Yield the events that a snapshot keeps, run by run."""
    for _, lines in groupby(file.events(), key=itemgetter(0)):
        yield [_event(file, stored) for _, stored in lines]


def _event(file: SnapshotFile, stored: StoredLine) -> Event:
    parts = split_line(stored.line)
    if parts is None:
        raise SnapshotMismatch(file.path, f"event {stored.seq} does not stand in the grammar")
    return decode_line(parts, Position(stored.seq, stored.file, stored.offset))


def _batches(rows: Iterable[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    rows = iter(rows)
    while some := list(islice(rows, _ROWS)):
        yield some
