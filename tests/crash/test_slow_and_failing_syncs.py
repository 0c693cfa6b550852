"""A sync that hangs, and one that fails while others wait for it."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from celery_commander.engine import (
    EventSourcingEngine,
    LockTimeout,
    LogPoisoned,
    Settings,
    Status,
)
from celery_commander.engine.files import Files

from .logs import STRACE, acknowledged, heard, writer

pytestmark = pytest.mark.crash


class Hanging(Files):
    """Let a sync hang until it is told to go on."""

    def __init__(self) -> None:
        self.hangs = threading.Event()
        self.goes_on = threading.Event()
        self.goes_on.set()

    def sync(self, fd: int) -> None:
        if not self.goes_on.is_set():
            self.hangs.set()
            assert self.goes_on.wait(60)
        super().sync(fd)


def test_a_sync_that_hangs_makes_others_wait_no_longer_than_their_bound(tmp_path: Path) -> None:
    files = Hanging()
    settings = Settings(state_directory=tmp_path, lock_seconds=0.2)
    with (
        EventSourcingEngine.open(settings, files=files) as log,
        EventSourcingEngine.open(settings) as other,
        ThreadPoolExecutor() as pool,
    ):
        log.append("warm", {})
        files.goes_on.clear()
        hanging = pool.submit(log.append, "note", {"i": 0}, run_id="r")
        try:
            assert files.hangs.wait(60)
            with pytest.raises(LockTimeout, match=r"sync\.lock"):
                other.append("note", {"i": 1}, run_id="r")
            written = other.append(
                "note", {"i": 2}, run_id="r", wait=False
            )  # who need not wait does not
            assert other.durable_seq < written.seq
        finally:
            files.goes_on.set()
        hanging.result(60)
        other.append("note", {"i": 3}, run_id="r")
        assert other.durable_seq > written.seq
        # The one that was not acknowledged had been written all the same: as its error says, it may be there.
        assert [event.payload["i"] for event in other.history("r")] == [0, 1, 2, 3]
        assert other.verify_integrity().status is Status.OK_UNANCHORED


class Refusing(Files):
    """Let syncs and writes fail while it is told so."""

    refuses = False

    def __init__(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        self.meanwhile = meanwhile

    def append(self, fd: int, data: bytes) -> int:
        if self.refuses:
            self.meanwhile()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().append(fd, data)

    def sync(self, fd: int) -> None:
        if self.refuses:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().sync(fd)


def test_a_sync_that_fails_at_the_first_opening_takes_back_nothing_that_was_promised(
    tmp_path: Path,
) -> None:
    settings = Settings(state_directory=tmp_path)
    with EventSourcingEngine.open(settings, boot_id="one") as log:
        for number in range(3):
            log.append("note", {"i": number})
    files = Refusing()
    files.refuses = True
    with EventSourcingEngine.open(settings, boot_id="two", files=files) as log:
        files.refuses = False
        with pytest.raises(LogPoisoned):
            log.append("note", {})
        assert log.durable_seq == 3  # the last line says so
        assert [event.payload.get("i") for event in log.read_from(None)] == [None, 0, 1]


def test_whoever_poisons_the_log_promises_no_less_than_others_have(tmp_path: Path) -> None:
    settings = Settings(state_directory=tmp_path)
    with EventSourcingEngine.open(settings) as other:
        files = Refusing(meanwhile=other.sync)  # others need not wait for the append lock
        with EventSourcingEngine.open(settings, files=files) as log:
            log.append("note", {"i": 0})
            for number in range(1, 4):
                other.append("note", {"i": number}, wait=False)
            files.refuses = True
            with pytest.raises(LogPoisoned):
                log.append("note", {"i": "refused, and cannot be taken back"})
            files.refuses = False
        assert other.durable_seq == 5
        assert [event.payload.get("i") for event in other.read_from(None)] == [None, *range(4)]


@pytest.mark.skipif(not Path(STRACE).exists(), reason="needs strace")
def test_a_sync_that_fails_fails_everybody_who_waits_for_it_in_every_process(
    tmp_path: Path,
) -> None:
    path = tmp_path / "events.wal"
    EventSourcingEngine.open(path).close()
    fault = ["-e", "trace=fdatasync", "-e", "inject=fdatasync:error=EIO:when=20"]
    processes = {f"r-{number}": writer(path, f"r-{number}", 1_000_000) for number in range(3)}
    processes["struck"] = writer(path, "struck", 1_000_000, strace=fault)
    told = {name: heard(process) for name, process in processes.items()}
    with EventSourcingEngine.open(path) as log:
        for name, lines in told.items():
            assert lines[-1][:2] == ["error", "LogPoisoned"], (name, lines[-1])
            seen = {event.payload["i"]: event.seq for event in log.history(name)}
            assert seen.items() >= acknowledged(lines).items()
            assert len(seen) <= len(acknowledged(lines)) + 1
        with pytest.raises(LogPoisoned):
            log.append("after", {})
        assert log.verify_integrity().status is Status.OK_UNANCHORED
