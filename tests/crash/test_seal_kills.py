"""SIGKILL at every system call of sealing, and a crowd that appends through many seals."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from celery_commander.engine import (
    Event,
    EventSourcingEngine,
    LogPoisoned,
    LogUnavailable,
    Status,
)

from .logs import ROOT, STRACE, acknowledged, heard

pytestmark = [pytest.mark.crash]

CALLS = (
    "open",
    "append",
    "write_at",
    "truncate",
    "sync",
    "sync_directory",
    "rename",
    "link",
    "remove",
    "make_directory",
    "try_lock",
    "unlock",
)
CALLS_MAX = 60

SEALER = """
import sys
from celery_commander.engine import EventSourcingEngine
with EventSourcingEngine.open(sys.argv[1]) as log:
    event = log.append("note", {"i": 0}, run_id="r")
    print("ack", 0, event.seq, flush=True)
    log.seal()
"""

CROWD = """
import sys
from celery_commander.engine import EventSourcingEngine, Settings
settings = Settings.at(sys.argv[1])
settings = Settings(state_directory=settings.state_directory, event_sourcing_wal=sys.argv[1], segment_bytes=8192)
name, count = sys.argv[2], int(sys.argv[3])
with EventSourcingEngine.open(settings) as log:
    for index in range(count):
        event = log.append("note", {"by": name, "i": index}, run_id=name, wait=index % 3 == 0)
        print("ack", index, event.seq, flush=True)
    log.sync()
"""


def kill_before(log: EventSourcingEngine, nth: int) -> None:
    """Have this process killed before the n-th call that the log makes from now on."""
    files, left = log._log._session.files, nth

    def counting(call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **options: Any) -> Any:
            nonlocal left
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **options)

        return counted

    for name in CALLS:
        setattr(files, name, counting(getattr(files, name)))


def killed(work: Callable[[], object]) -> bool:
    """Run `work` in a child; tell whether it was killed, or came to its end."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, status
    return os.WIFSIGNALED(status)


def kills_of_a_seal(directory: Path) -> Iterator[EventSourcingEngine]:
    """Yield logs that were open, with two events in them, while another process was killed as it sealed."""
    for nth in range(1, CALLS_MAX):
        path = directory / f"{nth}" / "events.wal"
        with EventSourcingEngine.open(path) as log:
            log.append("note", {"i": 0}, run_id="r")

            def seal(log: EventSourcingEngine = log, nth: int = nth) -> None:
                kill_before(log, nth)
                log.seal()

            if not killed(seal):
                assert nth > 20
                return
            yield log
    raise AssertionError("a seal makes more calls than that")


def check(log: EventSourcingEngine, indexes: list[int], *, is_tidy: bool = True) -> list[Event]:
    """Check what must hold after a crash: every acknowledged event is there, once, in a row of good files.

    What an undone seal left about is tidied away by who opens the log next, or seals it next.
    """
    directory = Path(f"{log.path}.d")
    assert log.verify_integrity().status is Status.OK_UNANCHORED
    events = list(log.read_from(None))
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert [event.payload["i"] for event in log.history("r")] == indexes
    for before, after in pairwise(events):
        assert (after.position.file == after.seq) == (before.type == "wal.sealed")
    assert not list(directory.glob("quarantine/*"))
    if is_tidy:
        assert log.path.stat().st_nlink == 1
        assert not (directory / "newborn").exists()
        assert {each.stat().st_nlink for each in directory.glob("segments/*")} <= {1}
    return events


def test_a_seal_killed_at_any_call_is_made_good_by_a_process_that_was_open(tmp_path: Path) -> None:
    outcomes = set()
    for log in kills_of_a_seal(tmp_path):
        assert log.verify_integrity().status in (Status.OK_UNANCHORED, Status.TORN_TAIL)
        assert [event.payload["i"] for event in log.history("r")] == [0]
        log.append("note", {"i": 1}, run_id="r")
        types = [event.type for event in check(log, [0, 1], is_tidy=False)]
        outcomes.add(tuple(types))
        assert log.seal()
        log.append("note", {"i": 2}, run_id="r")
        check(log, [0, 1, 2])
    undone = ("wal.created", "note", "note")
    assert outcomes == {undone, (*undone[:2], "wal.sealed", "note")}


@pytest.mark.parametrize("boot_id", [None, "the next"])
def test_a_seal_killed_at_any_call_is_made_good_by_who_opens_next(
    tmp_path: Path, boot_id: str | None
) -> None:
    for log in kills_of_a_seal(tmp_path):
        log.close()
        copy = tmp_path / "copy"
        shutil.copytree(log.path.parent, copy)  # a backup: one file with two names becomes two
        for path in (log.path, copy / log.path.name):
            with EventSourcingEngine.open(path, boot_id=boot_id) as later:
                later.append("note", {"i": 1}, run_id="r")
                check(later, [0, 1])
                assert later.seal()
                check(later, [0, 1])
        shutil.rmtree(copy)


@pytest.mark.parametrize("boot_id", [None, "the next"])
def test_who_makes_it_good_may_be_killed_too(tmp_path: Path, boot_id: str | None) -> None:
    for number, log in enumerate(kills_of_a_seal(tmp_path)):
        log.close()
        if number % 2 or not (Path(f"{log.path}.d") / "segments").exists():
            continue  # the first calls leave nothing to be made good

        for nth in range(1, CALLS_MAX):

            def repair(log: EventSourcingEngine = log, nth: int = nth) -> None:
                with EventSourcingEngine.open(log.path, boot_id=boot_id, create=False) as later:
                    kill_before(later, nth)
                    later._log.settle()

            if not killed(repair):
                break
        with EventSourcingEngine.open(log.path, boot_id=boot_id) as later:
            later.append("note", {"i": 1}, run_id="r")
            check(later, [0, 1])


@pytest.mark.skipif(not Path(STRACE).exists(), reason="needs strace")
@pytest.mark.parametrize("call,nth", [("linkat", 1), ("fdatasync", 4), ("rename", 2), ("fsync", 4)])
def test_a_process_killed_by_the_kernel_while_it_seals_loses_nothing(
    tmp_path: Path, call: str, nth: int
) -> None:
    path = tmp_path / "state" / "events.wal"
    EventSourcingEngine.open(path).close()
    inject = ["-e", f"trace={call}", "-e", f"inject={call}:signal=SIGKILL:when={nth}"]
    traced = [STRACE, "-f", "-qq", "-o", os.devnull, *inject]
    process = subprocess.Popen(
        [*traced, sys.executable, "-c", SEALER, str(path)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert acknowledged(heard(process)) == {0: 2}
    assert process.returncode != 0
    with EventSourcingEngine.open(path) as log:
        log.append("note", {"i": 1}, run_id="r")
        check(log, [0, 1])


@pytest.mark.skipif(not Path(STRACE).exists(), reason="needs strace")
def test_a_failed_sync_of_a_seal_poisons_the_log(tmp_path: Path) -> None:
    path = tmp_path / "state" / "events.wal"
    EventSourcingEngine.open(path).close()
    # The first is the append's, the second the seal's first; the third is the next file's and harms nothing.
    for nth, error in ((2, LogPoisoned), (4, LogPoisoned)):
        here = tmp_path / f"{nth}" / "events.wal"
        shutil.copytree(path.parent, here.parent)
        inject = ["-e", "trace=fdatasync", "-e", f"inject=fdatasync:error=EIO:when={nth}"]
        process = subprocess.Popen(
            [
                STRACE,
                "-f",
                "-qq",
                "-o",
                os.devnull,
                *inject,
                sys.executable,
                "-c",
                SEALER,
                str(here),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=ROOT,
        )
        assert acknowledged(heard(process)) == {0: 2}
        assert process.returncode == 1
        with EventSourcingEngine.open(here) as log, pytest.raises(error):
            log.append("note", {})


def test_a_next_file_that_cannot_be_synced_leaves_the_log_in_the_old_one(tmp_path: Path) -> None:
    with EventSourcingEngine.open(tmp_path / "state" / "events.wal") as log:
        log.append("note", {"i": 0}, run_id="r")
        files = log._log._session.files
        real = files.sync

        def failing(fd: int) -> None:
            if "newborn" in os.readlink(f"/proc/self/fd/{fd}"):
                raise OSError(5, "Input/output error")
            real(fd)

        files.sync = failing  # type: ignore[method-assign]  # the seam is there for this
        with pytest.raises(LogUnavailable, match="cannot be made"):
            log.seal()
        files.sync = real  # type: ignore[method-assign]  # as above
        log.append("note", {"i": 1}, run_id="r")
        check(log, [0, 1])
        assert log.seal()


@pytest.mark.timeout(120)
def test_four_processes_that_append_through_many_seals_make_one_chain(tmp_path: Path) -> None:
    path = tmp_path / "state" / "events.wal"
    crowd = {
        f"r-{number}": subprocess.Popen(
            [sys.executable, "-c", CROWD, str(path), f"r-{number}", "250"],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        for number in range(4)
    }
    victim = crowd.pop("r-3")
    assert victim.stdout is not None
    for _ in range(100):
        victim.stdout.readline()
    victim.send_signal(signal.SIGKILL)
    victim.communicate()
    acks = {name: acknowledged(heard(process, 100)) for name, process in crowd.items()}
    with EventSourcingEngine.open(path) as log:
        assert log.verify_integrity().status is Status.OK_UNANCHORED
        events = list(log.read_from(None))
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        assert sum(event.type == "wal.sealed" for event in events) >= 10
        for name, told in acks.items():
            history = log.history(name)
            assert {event.payload["i"]: event.seq for event in history} == told
            assert len(told) == 250
        survivors = [event.payload["i"] for event in log.history("r-3")]
        assert survivors == list(range(len(survivors)))
        assert len(survivors) >= 100
    assert len(list(Path(f"{path}.d/segments").iterdir())) >= 10
