"""The states of all runs in SQL: the log folded once, so that questions need not read it again.

The log is the truth and this is its shadow: it may lag until `catch_up`, and it is thrown away and
folded anew whenever it could be wrong: another log, a log that lost its tail, another way to fold,
a file that is missing, foreign or broken. For one run of which the freshest word is needed, ask the
log's `history`.

A batch of events is one transaction. It takes the write lock first, so of many processes one folds
at a time and the next goes on where it stopped; a kill in the middle leaves that batch unfolded.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Final

from sqlalchemy import Connection, func, insert, literal_column, select, update
from sqlalchemy.exc import IntegrityError

from .database import discard_if_broken
from .errors import ForeignLog, LogCorrupt, LogMoved, StoreUnavailable
from .events import Event, Position
from .fold import DURABLE_TYPES, FOLD_VERSION, fold_all
from .ledger_counts import count_state, count_unrecorded
from .ledger_rows import Diverged, load, save, unpack, unpack_moment
from .ledger_tallies import COUNTED_TYPES, Gaps, cover, grown_by, tallies
from .ledger_view import LedgerView, restore
from .letters import project as project_dead_letters
from .run_query import RunQuery
from .states import RunState, State
from .tables import LEDGER, folded, runs

if TYPE_CHECKING:
    from sqlalchemy import Select

    from .database import Database
    from .engine import EventSourcingEngine

BATCH_EVENTS: Final = 2_000
"""Events a transaction; it bounds how long others wait for the write lock to about 0.1 s."""

Projection = Callable[
    [Connection, Sequence[Event], Mapping[str, RunState], Mapping[str, RunState]], None
]
"""Writes what else a batch of events says, in its transaction: given the events, and the states before and after."""

_BROKEN_FILE: Final = (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT)
_MOST_SETBACKS: Final = 8


@dataclass(frozen=True, slots=True)
class _Through:
    """How far the log is folded.

    Reading begins behind `before`: the event there is the last one folded and must still be the same.
    After a snapshot there is none to look at, and both are its position.
    """

    position: Position
    hash: str
    before: Position | None


class RunLedger:
    """Answers which runs there are and where they stand, as of the last `catch_up`.

    Safe to share between threads and to carry across a fork, as its database is. Every method
    raises `StoreUnavailable` when the database cannot be used.
    """

    def __init__(
        self,
        database: Database,
        engine: EventSourcingEngine,
        projections: Sequence[Projection] = (project_dead_letters,),
    ) -> None:
        self._database = database
        self._engine = engine
        self._projections = projections
        database.use(LEDGER)

    def catch_up(self, limit: int | None = None) -> int:
        """Fold what the log holds and the ledger does not; return how many events that was.

        It reaches at least what was written before the call, or stops after `limit` events. What
        does not belong to this log is not trusted but made anew.

        Raises:
            LogError: the log cannot be read; the ledger stays as it was.
        """
        return self._over_doubt(limit, afresh=False)

    def rebuild(self) -> int:
        """Forget everything and fold the whole log; return how many events it had.

        A log that was compacted is folded from its newest snapshot on. Others see the ledger grow
        meanwhile; whoever decides catches up first, and so waits.
        """
        return self._over_doubt(None, afresh=True)

    @property
    def folded_through(self) -> Position | None:
        """Return the position of the last folded event; None where nothing of this log is folded."""
        try:
            with self._database.read() as connection:
                through = self._through(connection)
        except Diverged:
            return None
        return None if through is None else through.position

    def get(self, run_id: str) -> RunState | None:
        """Return one run, or None when no event made it."""
        found = self._states(select(runs).where(runs.c.run_id == run_id))
        return found[0] if found else None

    def runs(
        self, state: State | None = None, *, limit: int = 100, offset: int = 0
    ) -> list[RunState]:
        """Return runs, newest first; of one state, or of all."""
        return self.find(RunQuery(state), limit=limit, offset=offset)

    def find(self, query: RunQuery, *, limit: int = 100, offset: int = 0) -> list[RunState]:
        """Return the runs that are looked for, newest first."""
        return self._states(query.select_rows().limit(limit).offset(offset))

    def counts(self, query: RunQuery | None = None) -> dict[State, int]:
        """Return how many runs there are of each state, also of those that have none; of all, or of some."""
        statement = (query or RunQuery()).select_counts()
        with self._database.read() as connection:
            found = {row[0]: row[1] for row in connection.execute(statement)}
        return {state: found.get(state.value, 0) for state in State}

    def count(self, state: State, *, at_most: int) -> int:
        """Return how many runs are in a state, counted no further than `at_most`."""
        with self._database.read() as connection:
            return count_state(connection, state, at_most)

    def unrecorded(self, since: datetime, *, at_most: int) -> int:
        """Return how many runs went by unrecorded since then, counted no further than `at_most`."""
        with self._database.read() as connection:
            return count_unrecorded(connection, since, at_most)

    def backlog(self) -> int:
        """Return how many events of unsettled runs no snapshot covers."""
        return int(self._folded("backlog") or 0)

    def gaps(self) -> Gaps:
        """Return how many observed events the log says were dropped, and when it last said so."""
        at = self._folded("gap_at")
        return Gaps(int(self._folded("gaps") or 0), None if at is None else unpack_moment(at))

    @contextmanager
    def view(self) -> Iterator[LedgerView]:
        """Lend the whole ledger as of one moment; other threads wait for this database meanwhile.

        Raises:
            StoreUnavailable: nothing of this log is folded, or the database cannot be read.
        """
        with self._database.read() as connection:
            through = self._through(connection)
            if through is None:
                raise self._diverged("nothing is folded")
            yield LedgerView(through.position, through.hash, connection)

    def newest_started(self, namespace: str) -> dict[str | None, datetime]:
        """Return, by queue, when the youngest run that was ever claimed had been created.

        A broker hands out a queue's messages about in their order; so a run older than that, which
        nobody claimed, has probably lost its message.
        """
        query = (
            select(runs.c.queue, func.max(runs.c.created_at))
            .where(runs.c.namespace == namespace, runs.c.attempt > literal_column("0"))
            .group_by(runs.c.queue)
        )
        with self._database.read() as connection:
            return {queue: unpack_moment(at) for queue, at in connection.execute(query)}

    def candidates(
        self, namespace: str, limit: int = 100, after: str | None = None
    ) -> list[RunState]:
        """Return the runs that recovery must look at, by id, those behind `after`: a page.

        All but the delivered ones that are committed, compensated or stuck. A paused run is among
        them, due or not.
        """
        query = select(runs).where(
            runs.c.namespace == namespace, runs.c.settled == literal_column("0")
        )
        if after is not None:
            query = query.where(runs.c.run_id > after)
        return self._states(query.order_by(runs.c.run_id).limit(limit))

    def _folded(self, column: str) -> int | None:
        with self._database.read() as connection:
            found: int | None = connection.execute(select(folded.c[column])).scalar()
        return found

    def _states(self, query: Select[tuple[object, ...]]) -> list[RunState]:
        try:
            with self._database.read() as connection:
                return [unpack(row) for row in connection.execute(query)]
        except (ValueError, TypeError) as error:
            raise Diverged(self._database.path, f"a row is not ours ({error})") from error

    def _over_doubt(self, limit: int | None, *, afresh: bool) -> int:
        """Catch up; and once more from the beginning, when what is there cannot be trusted."""
        try:
            return self._fold_batches(limit, afresh=afresh)
        except (IntegrityError, Diverged):
            pass
        except StoreUnavailable as error:  # "error" is said of tables that lack our columns
            code = getattr(error.__cause__, "sqlite_errorcode", 0) & 0xFF
            if code not in (*_BROKEN_FILE, sqlite3.SQLITE_ERROR):
                raise
            if code in _BROKEN_FILE:
                self._database.close()
                discard_if_broken(self._database.path)
        return self._fold_batches(limit, afresh=True)

    def _fold_batches(self, limit: int | None, *, afresh: bool) -> int:
        if not afresh and self._is_current():
            return 0
        target, done, reached, setbacks = self._engine.head()[0], 0, 0, 0
        while limit is None or done < limit:
            size = BATCH_EVENTS if limit is None else min(BATCH_EVENTS, limit - done)
            with self._database.begin() as connection:
                taken, seq = self._fold_batch(connection, size, afresh=afresh)
            done, afresh = done + taken, False
            if taken < size or seq >= target:
                break
            setbacks += seq <= reached  # somebody began anew meanwhile
            reached = seq
            if setbacks > _MOST_SETBACKS:
                raise self._diverged("it loses what was folded")
        return done

    def _is_current(self) -> bool:
        with self._database.read() as connection:
            through = self._through(connection)
        # Asked after the reading above: the log only grows, so a lagging answer is never wrong.
        return through is not None and self._engine.head() == (through.position.seq, through.hash)

    def _fold_batch(self, connection: Connection, size: int, *, afresh: bool) -> tuple[int, int]:
        """Fold up to `size` events; return their number, and how far the ledger is then."""
        if afresh:
            LEDGER.drop_all(connection)
            LEDGER.create_all(connection)
        through = self._through(connection)
        if through is None:
            self._restore(connection)
            through = self._through(connection)
        events = list(islice(self._unread(through), size))
        if not events:
            return 0, through.position.seq if through else 0
        grown = self._fold_runs(connection, events, through)
        self._advance(connection, events, through, grown=grown)
        backlog = cover(connection, events, self._read)
        if backlog is not None:
            connection.execute(update(folded).values(backlog=backlog))
        return len(events), events[-1].seq

    def _restore(self, connection: Connection) -> None:
        """Begin with the newest snapshot where the log does not begin with its first event any more."""
        found = self._engine.snapshot_to_begin_with()
        if found is not None:
            file, head = found
            restore(connection, file, head)
            values = self._folded_values(head.position, head.hash, before=head.position)
            told = {"backlog": 0, "gaps": head.gaps, "gap_at": head.gap_at}
            connection.execute(insert(folded), {"id": 1, **values, **told})

    def _read(self, position: Position | None) -> Iterator[Event]:
        """Read on behind a position; of what is not folded, as observations are, only outlines."""
        return self._engine.outlines_from(position, COUNTED_TYPES)

    def _unread(self, through: _Through | None) -> Iterator[Event]:
        """Return the events after `through`, once the last folded one was found unchanged."""
        if through is None:
            return self._read(None)
        if through.before == through.position:  # a snapshot, checked as a whole
            return self._read(through.position)
        events = self._read(through.before)
        try:
            last = next(events, None)
        except (LogCorrupt, LogMoved, ForeignLog) as error:
            # Perhaps the log was replaced; if it is broken, reading it whole will say so.
            raise self._diverged("the log cannot be read from there") from error
        if last is None or (last.seq, last.hash) != (through.position.seq, through.hash):
            raise self._diverged("the log holds another event there")
        return events

    def _fold_runs(
        self, connection: Connection, events: Sequence[Event], through: _Through | None
    ) -> int:
        """Fold the events of runs; return by how much the backlog grows."""
        durable = [e for e in events if e.run_id is not None and e.type in DURABLE_TYPES]
        fresh = Counter(e.run_id for e in durable if e.run_id is not None)
        known, uncovered = self._load(connection, set(fresh))
        if through and any(state.last_seq > through.position.seq for state in known.values()):
            raise self._diverged("a run is ahead of what was folded")
        states = fold_all(durable, known)
        if not save(connection, known, states, fresh):
            raise self._diverged("a run changed while it was folded")
        for project in self._projections:
            project(connection, durable, known, states)
        return grown_by(known, states, uncovered, fresh)

    def _load(
        self, connection: Connection, run_ids: set[str]
    ) -> tuple[dict[str, RunState], dict[str, int]]:
        try:
            return load(connection, run_ids)
        except (ValueError, TypeError) as error:
            raise self._diverged(f"a row is not ours ({error})") from error

    def _through(self, connection: Connection) -> _Through | None:
        row = connection.execute(select(folded)).first()
        if row is None:
            return None
        if row.log_id != self._engine.log_id:
            raise self._diverged(f"it was folded from log {row.log_id}")
        if row.fold_version != FOLD_VERSION:
            raise self._diverged(f"it was folded by version {row.fold_version}")
        try:
            before = None if row.before is None else Position.parse(row.before)
            return _Through(Position.parse(row.position), row.hash, before)
        except (ValueError, TypeError, AttributeError) as error:
            raise self._diverged("its position is none") from error

    def _advance(
        self,
        connection: Connection,
        events: Sequence[Event],
        through: _Through | None,
        *,
        grown: int,
    ) -> None:
        before = through.position if through is not None else None
        if len(events) > 1:
            before = events[-2].position
        values = {
            **self._folded_values(events[-1].position, events[-1].hash, before=before),
            **tallies(events, grown, is_first=through is None),
        }
        if through is None:
            connection.execute(insert(folded), {"id": 1, **values})
            return
        moved = update(folded).where(folded.c.position == str(through.position)).values(values)
        if connection.execute(moved).rowcount != 1:
            raise self._diverged("somebody else folded meanwhile")

    def _folded_values(
        self, position: Position, hash_: str, *, before: Position | None
    ) -> dict[str, object]:
        return {
            "log_id": self._engine.log_id,
            "fold_version": FOLD_VERSION,
            "position": str(position),
            "hash": hash_,
            "before": None if before is None else str(before),
        }

    def _diverged(self, reason: str) -> Diverged:
        return Diverged(self._database.path, reason)
