"""Every system call of the log refused once: a typed error or none, nothing lost, and the log goes on.

The calls are refused where the log makes them, below its own wrapping, so that what is tried is all of it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from celery_commander.engine import (
    CommanderError,
    EventSourcingEngine,
    LogPoisoned,
    SnapshotMismatch,
    Status,
)
from celery_commander.engine import files as files_module
from tests.engine.histories import settings_in, tell
from tests.engine.ledgers import DELIVERS, write

pytestmark = pytest.mark.crash

READINGS = frozenset(("open", "fstat", "lstat", "pread", "listdir"))
WRITINGS = frozenset(("write", "pwrite", "ftruncate", "fdatasync", "fsync", "flock")) | frozenset(
    ("rename", "link", "mkdir", "unlink")
)
CODES = (errno.EIO, errno.EMFILE, errno.ENOSPC)


class Refusing:
    """Stand in for a module of system calls, and refuse the n-th of them from when it is told to."""

    def __init__(self, real: ModuleType, count: Callable[[str], None]) -> None:
        self._real = real
        self._count = count

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._real, name)
        if name not in READINGS | WRITINGS:
            return real

        def call(*args: Any, **options: Any) -> Any:
            if args[1:] != (fcntl.LOCK_UN,):  # nothing refuses to give a lock back
                self._count(name)
            return real(*args, **options)

        return call


class Fault:
    """Refuse one call, the n-th from arming on; `struck` is its name afterwards."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.struck: str | None = None
        self._left = 0
        self._code = 0
        self._calls: frozenset[str] = frozenset()
        monkeypatch.setattr(files_module, "os", Refusing(os, self._count))
        monkeypatch.setattr(files_module, "fcntl", Refusing(fcntl, self._count))

    @contextmanager
    def at(self, nth: int, calls: frozenset[str] = READINGS | WRITINGS) -> Iterator[None]:
        self.struck, self._left, self._calls = None, nth, calls
        self._code = CODES[nth % len(CODES)]
        try:
            yield
        finally:
            self._left = 0

    def _count(self, name: str) -> None:
        if name not in self._calls:
            return
        self._left -= 1
        if self._left == 0:
            self.struck = name
            raise OSError(self._code, os.strerror(self._code))


@pytest.fixture
def fault(monkeypatch: pytest.MonkeyPatch) -> Fault:
    return Fault(monkeypatch)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a log with a snapshot, an archive, sealed files and one snapshot that waits for its compaction."""
    directory = tmp_path_factory.mktemp("refused") / "made"
    with EventSourcingEngine.open(settings_in(directory)) as log:
        tell(log)
        log.snapshot("first")
        log.compact("first")
        write(log, "late", DELIVERS)
        log.snapshot("ready")
        log.append("note", {"i": 0}, run_id="r")
    return directory


def ride_along(log: EventSourcingEngine) -> None:
    log.append("note", {"i": 1}, run_id="r", wait=False)
    log.sync()


WRITES: dict[str, tuple[Callable[[EventSourcingEngine], object], frozenset[str]]] = {
    "append": (lambda log: log.append("note", {"i": 1}, run_id="r"), READINGS | WRITINGS),
    "ride along": (ride_along, READINGS | WRITINGS),
    "seal": (lambda log: log.seal(), READINGS | WRITINGS),
    "compact": (lambda log: log.compact("ready"), WRITINGS),  # its readings are tried by verifying
}
READS: dict[str, Callable[[EventSourcingEngine], object]] = {
    "history": lambda log: log.history('a "quoted" \\ id'),
    "read": lambda log: list(log.read_from(None)),
    "replay": lambda log: log.replay(),
    "snapshots": lambda log: log.snapshots(),
    "check": lambda log: log.check(),
    "head": lambda log: (log.head(), log.durable_seq, log.first_seq),
}


def worked(directory: Path, work: Callable[[EventSourcingEngine], object], fault: Any) -> bool:
    """Do the work under the fault; tell whether it came to its end. Only an error of ours may come out."""
    is_done = False
    try:
        with EventSourcingEngine.open(settings_in(directory)) as log:
            log.append("warm", {})
            with fault:
                work(log)
            is_done = True
    except CommanderError:
        pass  # closing too may find the log poisoned
    return is_done


def check_after(directory: Path, *, may_be_poisoned: bool, indexes: list[list[int]]) -> None:
    """See that the next process finds all that was acknowledged, and goes on unless a sync had failed."""
    with EventSourcingEngine.open(settings_in(directory)) as log:
        assert log.verify_integrity().status is Status.OK_UNANCHORED
        assert [event.payload["i"] for event in log.history("r")] in indexes
        try:
            log.append("after", {})
        except LogPoisoned:
            assert may_be_poisoned
        else:
            assert log.seal()
            assert log.verify_integrity().status is Status.OK_UNANCHORED


@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", WRITES)
def test_one_refused_call_of_a_writer_is_a_typed_error_and_costs_nothing(
    tmp_path: Path, made: Path, fault: Fault, name: str
) -> None:
    work, calls = WRITES[name]
    appends = name in ("append", "ride along")
    nth, seen = 0, set()
    while nth == 0 or fault.struck is not None:
        nth += 1
        directory = tmp_path / "log"
        shutil.rmtree(directory, ignore_errors=True)
        shutil.copytree(made, directory)
        is_done = worked(directory, work, fault.at(nth, calls))
        seen.add(fault.struck)
        check_after(
            directory,
            may_be_poisoned=fault.struck == "fdatasync",
            indexes=[[0, 1]] if is_done and appends else [[0], [0, 1]],
        )
    assert seen >= {"fdatasync", "flock", "pwrite", "write", None}


@pytest.mark.parametrize("name", READS)
def test_one_refused_call_of_a_reader_is_a_typed_error_and_is_forgotten(
    tmp_path: Path, made: Path, fault: Fault, name: str
) -> None:
    directory = tmp_path / "log"
    shutil.copytree(made, directory)
    with EventSourcingEngine.open(settings_in(directory)) as log:
        expected = READS[name](log)
        nth = 0
        while nth == 0 or fault.struck is not None:
            nth += 1
            try:
                with fault.at(nth):
                    assert READS[name](log) == expected
            except SnapshotMismatch:
                raise  # it is none: nobody has touched a file
            except CommanderError:
                pass
            assert READS[name](log) == expected, (nth, fault.struck)
        assert nth > 3


def test_a_call_refused_to_verification_says_nothing_against_the_log(
    tmp_path: Path, made: Path, fault: Fault
) -> None:
    directory = tmp_path / "log"
    shutil.copytree(made, directory)
    with EventSourcingEngine.open(settings_in(directory)) as log:
        before = {path: path.read_bytes() for path in directory.rglob("*.wal")}
        nth, found = 0, set()
        while nth == 0 or fault.struck is not None:
            nth += 1
            with fault.at(nth):
                found.add(log.verify_integrity().status)
        assert found == {Status.OK_UNANCHORED, Status.UNREADABLE}
        assert {path: path.read_bytes() for path in directory.rglob("*.wal")} == before
        assert log.verify_integrity().status is Status.OK_UNANCHORED


@pytest.mark.parametrize("create", [True, False])
def test_a_call_refused_while_opening_is_a_typed_error_and_holds_no_lock(
    tmp_path: Path, made: Path, fault: Fault, create: bool
) -> None:
    directory = tmp_path / "log"
    shutil.copytree(made, directory)
    nth = 0
    while nth == 0 or fault.struck is not None:
        nth += 1
        opened = None
        try:
            with fault.at(nth):
                opened = EventSourcingEngine.open(settings_in(directory), create=create)
        except CommanderError:
            pass
        with EventSourcingEngine.open(settings_in(directory)) as other:
            other.append("after", {})
        if opened is not None:
            opened.append("after", {})
            opened.close()
    assert nth > (20 if create else 2)
