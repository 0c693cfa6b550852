"""Keep the index between processes, in a small database that may be thrown away at any time."""

from __future__ import annotations

import os
import sqlite3
from array import array
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

VERSION = 3

_BUSY_SECONDS = 0.05
_FIELDS = 5  # of a hit: seq, file, offset of the line before, offset, offset behind
_MARK = "select version, log, begins, seq, start, last, hash, file from mark"
_COUNT = """
insert into runs values (?, ?) on conflict (run) do update set events = events + excluded.events
"""
_SCHEMA = """
create table if not exists hits (run blob, seq integer, file integer, last integer, start integer,
    stop integer, primary key (run, seq)) without rowid;
create table if not exists runs (run blob primary key, events integer) without rowid;
create table if not exists fences (run blob primary key, token integer) without rowid;
create table if not exists mark (one integer primary key check (one = 1), version integer, log text,
    begins integer, seq integer, start integer, last integer, hash text, file integer);
"""


class IndexLost(Exception):
    """The database could not be asked, or is not the one any more that was relied on."""


class Hits(NamedTuple):
    """Say where the events of a run are, in the files from the one that begins with event `begins_at`."""

    begins_at: int
    found: list[tuple[int, ...]]


class Mark(NamedTuple):
    """Say how far the log has been looked at: last seq, where its line ends and begins, its hash, its file."""

    seq: int
    offset: int
    last: int
    hash: str
    file: int


class IndexStore:
    """Hold hits and fences of one log in SQLite; whatever goes wrong with it, the log is read instead."""

    def __init__(self, path: Path, log_id: str) -> None:
        self._path = path
        self._log_id = log_id
        self._connection: sqlite3.Connection | None = None
        self._parents: list[sqlite3.Connection] = []
        self._relied_on = 0  # up to which seq its hits are counted with
        self._pid = os.getpid()

    def forget(self) -> None:
        """Let go of the parent's connection without closing it, which would touch the parent's files."""
        if self._connection is not None and self._pid != os.getpid():
            self._parents.append(self._connection)  # kept, or collecting it would close it
            self._connection = None
        self._pid = os.getpid()

    def close(self) -> None:
        """Close the database, if it is open."""
        self.forget()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def holds_anything(self) -> bool:
        """Tell whether hits may have come from the database."""
        return self._relied_on > 0

    def load(self, is_of: Callable[[Mark], bool]) -> Mark | None:
        """Return how far the database goes, or None; one that is not of this log is removed."""
        if self._connection is None and not self._is_there_for_us():
            return None
        try:
            row = self._open().execute(_MARK).fetchone()
            mark = Mark(*row[3:]) if row is not None else None
            is_ours = mark is None or (row[:2] == (VERSION, self._log_id) and is_of(mark))
        except (sqlite3.Error, OSError, TypeError, ValueError):
            mark, is_ours = None, False
        if not is_ours:
            self.discard()
            return None
        if mark is None:
            return None
        self._relied_on = mark.seq
        return mark

    def fences(self) -> dict[bytes, int]:
        """Return the highest fence of every run that has one."""
        try:
            return dict(self._open().execute("select run, token from fences").fetchall())
        except (sqlite3.Error, OSError) as error:
            raise IndexLost from error

    def hits(self, key: bytes) -> Hits:
        """Return where the events of a run are, as many as were counted when they were entered.

        Raises:
            IndexLost: some of them are not there any more, or none can be asked for.
        """
        if not self._relied_on:
            return Hits(1, [])
        try:
            begins_at, count, found = self._hits(self._open(), key)
        except (sqlite3.Error, OSError, TypeError) as error:
            raise IndexLost from error
        if len(found) != count:
            raise IndexLost
        return Hits(begins_at, found)

    def _hits(
        self, connection: sqlite3.Connection, key: bytes
    ) -> tuple[int, int, list[tuple[int, ...]]]:
        connection.execute("begin")  # all of it of one moment
        try:
            (begins_at,) = connection.execute("select begins from mark").fetchone()
            counted = connection.execute("select events from runs where run = ?", (key,)).fetchone()
            query = "select seq, file, last, start, stop from hits where run = ? order by seq"
            found = connection.execute(query, (key,)).fetchall()
        finally:
            connection.execute("rollback")
        return begins_at, 0 if counted is None else counted[0], found

    def save(
        self,
        mark: Mark,
        tail: Mapping[bytes, array[int]],
        fences: Mapping[bytes, int],
        *,
        begins_at: int = 1,
    ) -> bool:
        """Add a tail; tell whether the database now knows everything up to `mark`.

        What it says of files before `begins_at` is let go: they were compacted away.
        """
        try:
            connection = self._open()
            with connection:
                connection.execute("begin immediate")
                stored = connection.execute("select seq, begins from mark").fetchone()
                known, begun = stored or (0, begins_at)
                if known < mark.seq:
                    _add(connection, tail, fences, known)
                    if begun < begins_at:
                        _let_go(connection, begins_at)
                    connection.execute(
                        "insert or replace into mark values (1, ?, ?, ?, ?, ?, ?, ?, ?)",
                        (VERSION, self._log_id, max(begun, begins_at), *mark),
                    )
        except (sqlite3.Error, OSError, IndexLost):
            return False  # busy, broken or another: the tail stays in memory, which is only larger
        self._relied_on = mark.seq
        return True

    def discard(self) -> None:
        """Remove the database; it is made again when there is enough to put in."""
        self.close()
        self._relied_on = 0
        for suffix in ("", "-wal", "-shm"):
            try:
                Path(f"{self._path}{suffix}").unlink(missing_ok=True)
            except OSError:
                pass  # a place that only may be read: it is not asked again by this process

    def _is_there_for_us(self) -> bool:
        try:
            return os.stat(self._path).st_uid == os.geteuid()
        except OSError:
            return False  # missing, or in a place that this user may not look into

    def _open(self) -> sqlite3.Connection:
        self.forget()
        if self._connection is None:
            if os.stat(self._path.parent).st_uid != os.geteuid():
                raise PermissionError("another user's log is read without leaving anything there")
            os.close(
                os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            )
            connection = sqlite3.connect(
                self._path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
            self._connection = connection
            connection.execute("pragma journal_mode = wal")
            connection.execute("pragma synchronous = normal")
            connection.executescript(_SCHEMA)
            self._refuse_another(connection)
        return self._connection

    def _refuse_another(self, connection: sqlite3.Connection) -> None:
        """See that a database just opened still goes as far as it was relied on: it may be removed at any time."""
        if self._relied_on:
            row = connection.execute("select log, seq from mark").fetchone()
            if row is None or row[0] != self._log_id or row[1] < self._relied_on:
                self.close()
                raise IndexLost


def _add(
    connection: sqlite3.Connection,
    tail: Mapping[bytes, array[int]],
    fences: Mapping[bytes, int],
    known: int,
) -> None:
    """Enter the hits behind event `known`; those up to it are there."""
    for run, numbers in tail.items():
        rows = [
            (run, *numbers[at : at + _FIELDS])
            for at in range(0, len(numbers), _FIELDS)
            if numbers[at] > known
        ]
        if rows:
            connection.executemany("insert into hits values (?, ?, ?, ?, ?, ?)", rows)
            connection.execute(_COUNT, (run, len(rows)))
    connection.executemany("insert or replace into fences values (?, ?)", fences.items())


def _let_go(connection: sqlite3.Connection, begins_at: int) -> None:
    """Remove what is said of files before `begins_at`; a run's fence is then told by what is kept of the run."""
    gone = connection.execute(
        "select run, count(*) from hits where file < ? group by run", (begins_at,)
    )
    for run, count in gone.fetchall():
        connection.execute("update runs set events = events - ? where run = ?", (count, run))
    connection.execute("delete from hits where file < ?", (begins_at,))
    connection.execute("delete from runs where events = 0")
    connection.execute("delete from fences where run not in (select run from runs)")
