"""Looks that need not be taken are not taken: counted at the seam, never timed."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from celery_commander.engine import (
    EventSourcingEngine,
    Fenced,
    LogCorrupt,
    LogUnavailable,
    Settings,
    SnapshotMismatch,
)
from celery_commander.engine.files import Files
from celery_commander.engine.wal import StoredLine

from .logs import active, flip, lines_of, made_log, open_log


class Counting(Files):
    """Count what is read, and refuse to sleep."""

    def __init__(self) -> None:
        self.bytes_read = 0

    def read(self, fd: int, size: int, offset: int) -> bytes:
        data = super().read(fd, size, offset)
        self.bytes_read += len(data)
        return data

    def nap(self, seconds: float) -> None:
        raise AssertionError("somebody waits")


class Keeper:
    """Keep nothing of what was compacted away but the fences; see whether the log is locked meanwhile."""

    def __init__(self, lock: Path) -> None:
        self.lock = lock
        self.locked: list[bool] = []

    def lines(self, run_id: str) -> list[StoredLine]:
        return []

    def fence(self, run_id: str) -> int:
        fd = os.open(self.lock, os.O_RDWR)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.locked.append(False)
        except BlockingIOError:
            self.locked.append(True)
        finally:
            os.close(fd)
        return 2


def test_what_is_kept_of_a_fence_is_asked_for_while_others_may_append(tmp_path: Path) -> None:
    path = made_log(tmp_path)
    with open_log(tmp_path) as log:
        log.snapshot("s")
        log.compact("s")
        log.history("r-0")  # now it knows where the log begins
        keeper = Keeper(Path(f"{path}.d") / "append.lock")
        log._log.index.retain(keeper)
        with pytest.raises(Fenced):
            log.append("step.started", {}, run_id="r-9", token=1, n=1)
        assert keeper.locked == [False]


def test_a_snapshot_that_is_missing_is_told_without_waiting_for_it(tmp_path: Path) -> None:
    made_log(tmp_path)
    with open_log(tmp_path) as log:
        snapshot = log.snapshot("s")
        log.compact("s")
    snapshot.path.unlink()
    settings = Settings(state_directory=tmp_path / "state")
    with (
        EventSourcingEngine.open(settings, files=Counting()) as log,
        pytest.raises(SnapshotMismatch, match="no snapshot that counts"),
    ):
        log.history("r-0")


def test_a_log_that_is_wrong_is_looked_through_once(tmp_path: Path) -> None:
    read = []
    path = made_log(tmp_path, 30)
    offset = len(b"".join(lines_of(path)[:8])) + 70
    for harmed in (False, True):
        if harmed:
            flip(path, offset)
        files = Counting()
        with EventSourcingEngine.open(active(tmp_path), create=False, files=files) as log:
            before = files.bytes_read
            if harmed:
                with pytest.raises(LogCorrupt):
                    log.history("r-0")
            else:
                assert len(log.history("r-0")) == 15
            read.append(files.bytes_read - before)
    assert read[1] <= read[0]


def test_a_look_in_the_middle_of_a_look_is_refused_at_once(tmp_path: Path) -> None:
    made_log(tmp_path)
    settings = Settings(state_directory=tmp_path / "state")
    with EventSourcingEngine.open(settings, files=Counting()) as log:
        log.snapshot("s")
        log.compact("s")

        class Handler(Keeper):
            def lines(self, run_id: str) -> list[StoredLine]:
                log.history(run_id)
                return []

        log._log.index.retain(Handler(tmp_path))
        with pytest.raises(LogUnavailable, match="interrupted a look"):
            log.history("r-0")
