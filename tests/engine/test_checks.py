"""Checks that stand behind others: each is looked at alone."""

from __future__ import annotations

import fcntl
import os
import shutil
from hashlib import sha256
from pathlib import Path

import pytest

from celery_commander.engine import (
    EventSourcingEngine,
    LockTimeout,
    LogCorrupt,
    LogMoved,
    LogPoisoned,
    LogUnavailable,
    Settings,
)
from celery_commander.engine.files import Files
from celery_commander.engine.wal import StoredLine
from celery_commander.engine.wal.layout import Layout
from celery_commander.engine.wal.poison import leave_mark

from .ledgers import change
from .logs import BOOT, active, made_log, open_log

INDEX = "state/event-sourcing.wal.d/index.sqlite"


class Keeper:
    """Keep one line of what was compacted away, right or wrong."""

    def __init__(self, line: StoredLine) -> None:
        self.line = line

    def lines(self, run_id: str) -> list[StoredLine]:
        return [self.line]

    def fence(self, run_id: str) -> int:
        return 0


def test_a_kept_line_that_does_not_verify_or_is_of_another_run_is_never_told(
    tmp_path: Path,
) -> None:
    made_log(tmp_path)
    with open_log(tmp_path) as log:
        index = log._log.index
        (line, _), *_ = index.entries("r-0")
        log.snapshot("s")
        log.compact("s")
        index.retain(Keeper(line))
        assert [event.seq for event in log.history("r-0")] == [line.seq]
        with pytest.raises(LogCorrupt, match="another run"):
            index.history("r-1")
        harmed = line._replace(line=line.line.replace(b'"i":0', b'"i":7'))
        index.retain(Keeper(harmed))
        with pytest.raises(LogCorrupt, match="does not verify"):
            index.history("r-0")
        index.retain(Keeper(line._replace(line=b"no line")))
        with pytest.raises(LogCorrupt, match="does not verify"):
            index.history("r-0")


def test_an_index_that_names_another_runs_events_is_made_anew(tmp_path: Path) -> None:
    made_log(tmp_path)
    with open_log(tmp_path) as log:
        whole = {run_id: log.history(run_id) for run_id in ("r-0", "r-1")}
        log._log.index._hand_over()
    names = ["x'" + f'"{run_id}"'.encode().hex() + "'" for run_id in ("r-0", "r-1", "r-2")]
    with open_log(tmp_path) as log:
        for old, new in ((0, 2), (1, 0), (2, 1)):  # each is given the other's
            for table in ("hits", "runs"):
                change(
                    tmp_path / INDEX,
                    f"update {table} set run = {names[new]} where run = {names[old]}",
                )
        assert {run_id: log.history(run_id) for run_id in whole} == whole


def test_who_only_asks_is_told_what_an_append_would_meet(tmp_path: Path) -> None:
    path = made_log(tmp_path)
    layout = Layout.of(path)
    with open_log(tmp_path) as log:
        log.append("note", {})
        log.check()
        size = path.stat().st_size
        os.truncate(path, size - 1)
        with pytest.raises(LogMoved, match="published"):
            log.check()
    shutil.rmtree(tmp_path / "state")
    made_log(tmp_path)
    with open_log(tmp_path) as log:
        log.append("note", {})
        leave_mark(Files(), layout.poisoned, "a sync failed\n")
        with pytest.raises(LogPoisoned):
            log.check()


def test_whatever_is_asked_of_a_closed_engine_is_refused_at_once(tmp_path: Path) -> None:
    made_log(tmp_path)
    log = open_log(tmp_path)
    log.close()
    for ask in (log.settle, log.seal, log.sync, log.check, lambda: log.append("note", {})):
        with pytest.raises(LogUnavailable, match="this engine was closed"):
            ask()


@pytest.mark.parametrize("name", ["seal.lock", "sync.lock", "append.lock"])
def test_a_repair_waits_for_every_lock_no_longer_than_its_bound(tmp_path: Path, name: str) -> None:
    path = made_log(tmp_path)
    settings = Settings(state_directory=tmp_path / "state", lock_seconds=0.2)
    leave_mark(Files(), Layout.of(path).poisoned, "a sync failed\n")
    with EventSourcingEngine.open(settings) as log:
        fd = os.open(Path(f"{path}.d") / name, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            with pytest.raises(LockTimeout):
                log.repair("somebody")
        finally:
            os.close(fd)
        assert Layout.of(path).poisoned.exists()
        assert log.repair("somebody") is not None


def test_the_mark_of_a_failed_sync_is_on_disk_with_what_it_says(tmp_path: Path) -> None:
    class Told(Files):
        def __init__(self) -> None:
            self.synced: list[str] = []

        def sync(self, fd: int) -> None:
            self.synced.append(os.readlink(f"/proc/self/fd/{fd}"))
            super().sync(fd)

        def sync_directory(self, path: Path) -> None:
            self.synced.append(str(path))
            super().sync_directory(path)

    layout, files = Layout.of(made_log(tmp_path)), Told()
    for _ in range(2):  # whoever finds it makes sure of it too
        files.synced.clear()
        leave_mark(files, layout.poisoned, "a sync failed\n")
        assert files.synced == [str(layout.poisoned), str(layout.directory)]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to give a directory away")
def test_nothing_is_left_in_the_directory_of_another_user(tmp_path: Path) -> None:
    path = made_log(tmp_path)
    directory = Path(f"{path}.d")
    for left in directory.glob("index.sqlite*"):
        left.unlink()
    before = sorted(os.listdir(directory))
    for each in (path.parent, path, directory, *directory.iterdir()):
        os.chown(each, 12345, 12345)
    with EventSourcingEngine.open(active(tmp_path), create=False) as log:
        assert len(log.history("r-0")) == 3
        log._log.index._hand_over()
    assert sorted(os.listdir(directory)) == before


def test_a_line_without_its_end_is_no_event_although_its_hash_is_right(tmp_path: Path) -> None:
    path = made_log(tmp_path)
    with open_log(tmp_path) as log:
        log.append("note", {"i": "last"})
        os.truncate(path, path.stat().st_size - 1)  # the LF alone
        with EventSourcingEngine.open(path, create=False, boot_id=BOOT) as onlooker:
            reading = onlooker.outlines_from(None, frozenset())
            with pytest.raises(LogCorrupt) as told:
                list(reading)
            assert told.value.seq == 7


def test_a_chained_line_outside_the_grammar_is_corrupt_to_whoever_reads_it(tmp_path: Path) -> None:
    path = made_log(tmp_path)
    header, *lines = path.read_bytes().splitlines(keepends=True)
    lines[3] = lines[3].replace(b"|note|", b"|no te|", 1)
    previous, chained = lines[2][:64], lines[:3]
    for line in lines[3:]:  # as anybody can who knows the format
        previous = sha256(previous + line[64:-1]).hexdigest().encode()
        chained.append(previous + line[64:])
    path.write_bytes(header + b"".join(chained))
    with (
        EventSourcingEngine.open(active(tmp_path), create=False) as log,
        pytest.raises(LogCorrupt, match="grammar"),
    ):
        list(log.outlines_from(None, frozenset()))
