"""Keep one SQLite database usable from many processes and threads, through forks and other accidents.

SQLite must not be open while a process forks: the child would inherit its notes about locks that the
child does not hold. So there is one connection a process, opened on first use, closed before a fork and
opened again on either side when it is next needed. One connection means one user at a time: threads of a
process queue for it here, processes queue in SQLite. Both waits are bounded by `busy_seconds`.

SQLite knows its files by descriptor number only. When somebody closed all descriptors of the process, as daemon
libraries do, the numbers may be a stranger's by the next write; so they are compared before each use.

Weakness: a fork that bypasses Python's hooks (from C) while the connection is open is noticed by the
process id alone. The child then opens its own connection and leaves the inherited one untouched, but
SQLite's notes about locks are the parent's until the child execs.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import sqlite3
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import Connection, MetaData, NullPool, create_engine, inspect
from sqlalchemy.exc import DBAPIError

from .errors import StoreBusy, StoreUnavailable, StrPath
from .forks import at_fork
from .signals import Mask, current_mask, defer, set_mask

_BUSY_CODES = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_OPEN_FILES = "/proc/self/fd"
_RETRY_SECONDS = 0.005
_PRAGMAS = (
    "PRAGMA journal_mode = WAL",
    # A power cut may lose the last commits. The log loses nothing, and it is the log that decides.
    "PRAGMA synchronous = NORMAL",
    "PRAGMA temp_store = MEMORY",
)
_EACH_COMMIT_IS_SYNCED = "PRAGMA synchronous = FULL"


class Database:
    """Open one SQLite file lazily, and lend its connection to one transaction at a time.

    Safe to share between threads and to carry across a fork. `busy_seconds` bounds each wait for a lock;
    the tables of `schema` are created when they are missing. With `durable` a commit that returned outlives
    a power cut too; without, only the log does.
    """

    def __init__(
        self,
        path: StrPath,
        schema: MetaData | None = None,
        *,
        busy_seconds: float = 10.0,
        durable: bool = False,
    ) -> None:
        self.path = Path(path).absolute()
        self.busy_seconds = busy_seconds
        self._pragmas = (*_PRAGMAS, _EACH_COMMIT_IS_SYNCED) if durable else _PRAGMAS
        # Made once, here: it opens nothing, but takes the lock of `logging`, which an exception out of a
        # signal handler could leave locked.
        self._engine = create_engine(
            "sqlite+pysqlite://", creator=self._connect, poolclass=NullPool
        )
        self._drivers: list[
            sqlite3.Connection
        ] = []  # every one that was opened here and not yet closed
        self._schemas: list[MetaData] = [schema] if schema is not None else []
        self._turn = threading.RLock()
        self._user: int | None = None  # the thread that has the turn and is in a transaction
        self._mask: Mask | None = None  # what that thread let through before
        self._pid = os.getpid()
        self._connection: Connection | None = None
        self._identity: tuple[int, int] | None = None
        self._descriptors: dict[int, tuple[int, int] | None] = {}
        self._broken = False
        at_fork(before=self._before_fork, parent=self._give_turn_back, child=self._in_child)

    def use(self, schema: MetaData) -> None:
        """Create the missing tables of `schema` when the database is next opened."""
        with self._turn:
            if schema not in self._schemas:
                self._schemas.append(schema)
                self._drop_connection()

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        """Lend the connection for one write: committed at the end, rolled back if anything is raised.

        The write lock is taken at once, so what is read inside cannot change before the commit. A
        thread must not nest it.

        Raises:
            StoreBusy: the write lock was not given within `busy_seconds`.
            StoreUnavailable: the file cannot be opened, read or written.
        """
        with self._lent("BEGIN IMMEDIATE") as connection:
            yield connection

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Lend the connection for one consistent view; inside `begin` it is that transaction's own.

        Keep it short: other threads of the process wait. Raises as `begin` does.
        """
        with self._lent("BEGIN") as connection:
            yield connection

    def close(self) -> None:
        """Close this process's connection; the next use opens it again."""
        with self._turn:
            self._drop_connection()

    @contextmanager
    def _lent(self, begin: str) -> Iterator[Connection]:
        if os.getpid() != self._pid:
            self._in_child()  # a fork that ran no hooks
        me = threading.get_ident()
        outermost = True
        mask = current_mask()
        # Celery's soft time limit raises behind any call, and where a function of Python's begins. It is
        # deferred; where that fails, the turn is taken inside the try, and what the finally calls is C.
        try:
            defer(mask)
            if not self._turn.acquire(timeout=self.busy_seconds):
                raise StoreBusy(self.path, self.busy_seconds)
            outermost = self._user != me
            if not outermost:
                assert begin == "BEGIN", "begin() inside a transaction of the same thread"
                assert self._connection is not None
                yield self._connection
                return
            self._user, self._mask = me, mask
            with self._errors_named(), self._transaction(self._opened(), begin) as connection:
                yield connection
        finally:
            if outermost and self._user == me:
                self._user = None
            try:
                self._turn.release()
            except RuntimeError:
                pass  # it was never given: the wait timed out, or this is a forked child
            finally:
                if mask is not None:
                    set_mask(signal.SIG_SETMASK, mask)

    @contextmanager
    def _transaction(self, connection: Connection, begin: str) -> Iterator[Connection]:
        with connection.begin():
            connection.exec_driver_sql(begin)
            yield connection

    @contextmanager
    def _errors_named(self) -> Iterator[None]:
        """Turn what the driver says into errors that name the file; start afresh after a broken one."""
        try:
            yield
        except (DBAPIError, sqlite3.Error) as error:
            cause = error.orig if isinstance(error, DBAPIError) else error
            if isinstance(cause, sqlite3.IntegrityError | sqlite3.ProgrammingError):
                raise  # a bug of the caller's, not a state of the file
            if _is_busy(cause):
                raise StoreBusy(self.path, self.busy_seconds) from cause
            self._drop_connection()
            raise StoreUnavailable(self.path, str(cause)) from cause

    def _opened(self) -> Connection:
        self._look_at_descriptors()
        connection = self._connection
        if connection is not None and (
            self._identity != _identity_of(self.path)  # replaced: nobody else would read our writes
            or not _at_rest(connection)  # an asynchronous exception cut its last end short
        ):
            self._drop_connection()
        if self._connection is None:
            self._close_drivers()  # one whose end was cut short may still hold the write lock
            self._connection = self._open()
        return self._connection

    def _look_at_descriptors(self) -> None:
        lost = [
            number for number, was in self._descriptors.items() if _descriptor_of(number) != was
        ]
        if any(_descriptor_of(number) is not None for number in lost):
            self._abandon_connection()  # to close it would close, and even write to, what is not ours
            self._broken = True
        elif lost:
            self._drop_connection()
        if self._broken:
            reason = (
                "its descriptors were closed from outside and given to others; restart this process"
            )
            raise StoreUnavailable(self.path, reason)

    def _open(self) -> Connection:
        _prepare_file(self.path)
        before = set(_descriptors_of(self.path))
        connection = self._engine.connect()
        try:
            # A look first: who only reads must not wait for the write lock.
            if not self._has_all_tables(connection):
                with self._transaction(connection, "BEGIN IMMEDIATE"):
                    for schema in self._schemas:
                        schema.create_all(connection)
            opened = set(_descriptors_of(self.path)) - before
        except BaseException:
            connection.close()
            raise
        self._identity = _identity_of(self.path)
        self._descriptors = {number: _descriptor_of(number) for number in opened}
        return connection

    def _has_all_tables(self, connection: Connection) -> bool:
        with self._transaction(connection, "BEGIN"):
            present = set(inspect(connection).get_table_names())
        return all(present.issuperset(schema.tables) for schema in self._schemas)

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.path,
            timeout=self.busy_seconds,
            isolation_level=None,  # transactions begin where we say, not at the driver's first guess
            check_same_thread=False,
        )
        self._drivers.append(connection)
        deadline = time.monotonic() + self.busy_seconds
        for pragma in self._pragmas:
            # Two processes that open a new file at once: SQLite does not wait when it changes the mode.
            while not _done(connection, pragma, deadline):
                time.sleep(_RETRY_SECONDS)
        return connection

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        self._descriptors = {}
        if connection is not None:
            with suppress(DBAPIError, sqlite3.Error):  # it may be given up because it is broken
                connection.close()
        self._close_drivers()

    def _close_drivers(self) -> None:
        """Close what no connection closes any more: an exception may have struck inside its closing.

        Such a one is garbage, but part of a cycle, and keeps its lock until it is collected.
        """
        while self._drivers:
            driver = self._drivers[-1]
            with suppress(sqlite3.Error):
                driver.rollback()  # closing does not end it while one of its statements is alive
            with suppress(sqlite3.Error):
                driver.close()
            self._drivers.pop()

    def _abandon_connection(self) -> None:
        if self._connection is not None:
            # Not even at the interpreter's end: to collect a connection closes it.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._connection))
        for driver in self._drivers:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(driver))
        self._connection, self._drivers = None, []
        self._descriptors = {}

    def _before_fork(self) -> None:
        # Another thread's transaction is waited for. One of the forking thread itself stays as it is.
        if self._turn.acquire(timeout=self.busy_seconds) and self._user is None:
            self._drop_connection()

    def _give_turn_back(self) -> None:
        try:
            self._turn.release()
        except RuntimeError:
            pass  # it was not given before the fork

    def _in_child(self) -> None:
        self._abandon_connection()  # to close an inherited one is as wrong as to use it
        if self._user == threading.get_ident() and self._mask is not None:
            set_mask(signal.SIG_SETMASK, self._mask)  # forked inside a transaction
        self._user = None
        self._turn = threading.RLock()
        self._pid = os.getpid()


def _at_rest(connection: Connection) -> bool:
    driver: Any = connection.connection.dbapi_connection
    return connection.get_transaction() is None and not driver.in_transaction


def _done(connection: sqlite3.Connection, pragma: str, deadline: float) -> bool:
    try:
        connection.execute(pragma).close()
    except sqlite3.Error as error:
        if _is_busy(error) and time.monotonic() < deadline:
            return False
        connection.close()
        raise
    return True


def _is_busy(error: BaseException | None) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _BUSY_CODES


def _identity_of(path: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _descriptor_of(number: int) -> tuple[int, int] | None:
    try:
        found = os.fstat(number)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _descriptors_of(path: Path) -> Iterator[int]:
    """Return which numbers this process has open on the database and the files beside it; Linux only."""
    try:
        numbers = os.listdir(_OPEN_FILES)
    except FileNotFoundError:
        return
    except OSError as error:  # no descriptor is left for the looking
        raise StoreUnavailable(path, error.strerror or str(error)) from error
    for number in numbers:
        with suppress(OSError):  # the listing's own
            if os.readlink(f"{_OPEN_FILES}/{number}").startswith(str(path)):
                yield int(number)


def _prepare_file(path: Path) -> None:
    """Create the file for its owner only, and refuse what is not a plain file; SQLite copies its mode."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Only ever a new file: closing a second descriptor of an open database would drop its locks.
        with suppress(FileExistsError):
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            os.close(os.open(path, flags, 0o600))
        if not stat.S_ISREG(os.lstat(path).st_mode):
            raise StoreUnavailable(path, "it is not a plain file")
    except OSError as error:
        raise StoreUnavailable(path, error.strerror or str(error)) from error


def discard_if_broken(path: Path) -> None:
    """Delete a database that cannot be read, unless somebody has put a new one in its place already.

    The main file goes last: whoever opens a new one then finds no leavings that he would read.
    """
    lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if _is_broken(path):
            for name in (f"{path}-shm", f"{path}-wal", path):
                with suppress(FileNotFoundError):
                    os.unlink(name)
    finally:
        os.close(lock)


def _is_broken(path: Path) -> bool:
    """Read the whole file. Its inode would not tell: the number of a deleted one is given again."""
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=rw", uri=True)) as connection:
            return bool(connection.execute("PRAGMA quick_check(1)").fetchone() != ("ok",))
    except sqlite3.OperationalError:
        return False  # busy, or gone: no reason to delete it
    except sqlite3.DatabaseError:
        return True
