"""Others at the log: rotation under live writers, stopped holders of every lock, forks and kills in the middle."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from celery_commander.engine import (
    CommanderError,
    EventSourcingEngine,
    LockTimeout,
    Settings,
    Status,
)
from celery_commander.engine.files import Files
from celery_commander.engine.verify import verify_log
from tests.kit import kill

from .logs import ROOT, STRACE, acknowledged, heard, writer
from .test_seal_kills import SEALER, check

pytestmark = pytest.mark.crash

NAMES = ("r-1", "r-2", "r-3")
ENDLESS = 1_000_000


def under_writers(path: Path, meddle: Callable[[], object]) -> dict[str, dict[int, int]]:
    """Meddle while three processes append without end; return what each was told, once all have stopped."""
    processes = {name: writer(path, name, ENDLESS) for name in NAMES}
    early: dict[str, list[list[str]]] = {name: [] for name in NAMES}
    try:
        for name, process in processes.items():
            assert process.stdout is not None
            early[name] = [process.stdout.readline().split() for _ in range(20)]
        meddle()
        told = {name: early[name] + the_rest(process) for name, process in processes.items()}
    finally:
        for process in processes.values():
            process.kill()
            process.wait()
    for lines in told.values():
        assert lines[-1][:2] == ["error", "LogMoved"], lines[-1]
    return {name: acknowledged(lines) for name, lines in told.items()}


def the_rest(process: subprocess.Popen[str]) -> list[list[str]]:
    assert process.stdout is not None
    with process.stdout as output:  # the same buffer as before: communicate() would begin behind it
        return [line.split() for line in output]


def indexes(log: EventSourcingEngine, name: str) -> dict[int, int]:
    return {event.payload["i"]: event.seq for event in log.history(name)}


def test_a_log_renamed_under_live_writers_stops_them_and_goes_on_once_it_is_back(
    tmp_path: Path,
) -> None:
    path = tmp_path / "events.wal"
    EventSourcingEngine.open(path).close()
    aside = tmp_path / "events.wal.1"
    told = under_writers(path, lambda: path.rename(aside))
    assert not path.exists()
    assert verify_log(aside).status is Status.OK_UNANCHORED
    aside.rename(path)
    with EventSourcingEngine.open(path) as log:
        for name in NAMES:
            seen = indexes(log, name)
            assert seen.items() >= told[name].items()
            assert len(seen) <= len(told[name]) + 1
        log.append("after", {})
        assert log.verify_integrity().status is Status.OK_UNANCHORED


def test_a_log_copied_and_truncated_under_live_writers_stops_them(tmp_path: Path) -> None:
    path = tmp_path / "events.wal"
    EventSourcingEngine.open(path).close()
    copy = tmp_path / "events.wal.1"
    known: dict[str, int] = {}

    def rotate() -> None:
        with EventSourcingEngine.open(path, create=False) as log:
            known.update({name: len(log.history(name)) for name in NAMES})
        shutil.copyfile(path, copy)
        os.truncate(path, 0)

    under_writers(path, rotate)
    assert not verify_log(path).status.is_good
    with pytest.raises(CommanderError):
        EventSourcingEngine.open(path)
    # What had been written before the copy is in the copy, and a later boot goes on with it.
    copy.chmod(0o600)
    copy.replace(path)
    with EventSourcingEngine.open(path, boot_id="the next") as log:
        for name in NAMES:
            seen = indexes(log, name)
            assert list(seen) == list(range(len(seen)))
            assert len(seen) >= known[name] >= 19
        log.append("after", {})
        assert log.verify_integrity().status is Status.OK_UNANCHORED


HOLDER = """
import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600)
fcntl.flock(fd, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""
WAITERS: dict[str, Callable[[EventSourcingEngine], object]] = {
    "append.lock": lambda log: log.append("note", {}, wait=False),
    "sync.lock": lambda log: log.append("note", {}),
    "seal.lock": lambda log: log.seal(),
    "compaction.lock": lambda log: log.snapshot("nightly"),
}


@pytest.mark.parametrize("name", WAITERS)
def test_a_stopped_holder_of_any_lock_is_named_and_waited_for_no_longer_than_the_bound(
    tmp_path: Path, name: str
) -> None:
    path = tmp_path / "events.wal"
    settings = Settings(state_directory=tmp_path, event_sourcing_wal=path, lock_seconds=0.2)
    with EventSourcingEngine.open(settings) as log:
        log.append("note", {})
        holder = subprocess.Popen(
            [sys.executable, "-c", HOLDER, f"{path}.d/{name}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            holder.send_signal(signal.SIGSTOP)
            with pytest.raises(LockTimeout, match=name) as raised:
                WAITERS[name](log)
            assert str(holder.pid) in raised.value.holder
        finally:
            holder.kill()
            holder.communicate()
        WAITERS[name](log)
        assert log.verify_integrity().status is Status.OK_UNANCHORED


class ForkingOnce(Files):
    """Fork a child that lives on while the log is being opened, as a pool of workers does from another thread."""

    child = 0

    def exists(self, path: Path) -> bool:
        if not self.child:
            self.child = os.fork()
            if self.child == 0:
                while True:
                    signal.pause()
        return super().exists(path)


def test_a_child_forked_while_the_log_is_opened_keeps_no_lock(tmp_path: Path) -> None:
    path = tmp_path / "events.wal"
    files = ForkingOnce()
    settings = Settings(state_directory=tmp_path, event_sourcing_wal=path, lock_seconds=0.5)
    try:
        with EventSourcingEngine.open(settings, files=files) as log:
            assert files.child
            assert log.append("note", {}).seq == 2
    finally:
        kill(files.child)
        os.waitpid(files.child, 0)


KILLS = [
    ("openat", "control", (1, 2)),
    ("openat", "newborn", (1,)),
    ("flock", "append.lock", (1, 2, 3, 5)),
    ("flock", "sync.lock", (1, 2)),
    ("linkat", "", (1,)),
    ("fsync", "segments", (1,)),
    ("rename", "newborn", (1,)),
    ("fdatasync", "newborn", (1,)),
]


@pytest.mark.slow
@pytest.mark.skipif(not Path(STRACE).exists(), reason="needs strace")
@pytest.mark.parametrize("call,name,when", KILLS)
def test_a_kill_at_a_call_on_any_of_its_files_loses_nothing(
    tmp_path: Path, call: str, name: str, when: tuple[int, ...]
) -> None:
    for nth in when:
        path = tmp_path / f"{nth}" / "events.wal"
        EventSourcingEngine.open(path).close()
        place = f"{path}.d/{name}" if name else str(path)
        inject = f"inject={call}:signal=SIGKILL:when={nth}"
        traced = [STRACE, "-f", "-qq", "-o", os.devnull, "-P", place, "-e", f"trace={call}"]
        process = subprocess.Popen(
            [*traced, "-e", inject, sys.executable, "-c", SEALER, str(path)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        acks = acknowledged(heard(process))
        assert process.returncode != 0, "it was not killed"
        with EventSourcingEngine.open(path) as log:
            before = [event.payload["i"] for event in log.history("r")]
            assert before == [0] or (not acks and before == [])
            log.append("note", {"i": 1}, run_id="r")
            check(log, [*before, 1])
