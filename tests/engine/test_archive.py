"""The archive, the lock around everything that moves files, and the look afterwards."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from celery_commander.engine import CompactionRefused, IntegrityReport, Status
from celery_commander.engine.archive import alone, prune
from celery_commander.engine.compaction import compact
from celery_commander.engine.files import Files
from celery_commander.engine.wal.layout import Layout
from tests.kit import kill

from .logs import made_log, open_log


class Told(Files):
    """Write down which directories are synced."""

    def __init__(self) -> None:
        self.synced: list[Path] = []

    def sync_directory(self, path: Path) -> None:
        self.synced.append(path)
        super().sync_directory(path)


def compacted(directory: Path) -> Layout:
    path = made_log(directory)
    with open_log(directory) as log:
        log.snapshot("s")
        log.compact("s")
    return Layout.of(path)


def test_what_is_thrown_away_is_gone_from_the_disk_too(tmp_path: Path) -> None:
    layout, files = compacted(tmp_path), Told()
    assert prune(layout, files, datetime.now(UTC), 1) == 0
    assert files.synced == []
    assert prune(layout, files, datetime.now(UTC) + timedelta(days=2), 1) == 1
    assert files.synced == [layout.archive]


@contextmanager
def forked() -> Iterator[None]:
    """Have a child that shares every descriptor, and does nothing."""
    to_child, ours = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(ours)
        os.read(to_child, 1)
        os._exit(0)
    try:
        yield
    finally:
        kill(pid)
        os.waitpid(pid, 0)
        os.close(to_child)
        os.close(ours)


def test_a_child_that_is_forked_in_a_compaction_keeps_nobody_out_afterwards(tmp_path: Path) -> None:
    layout, files = Layout.of(made_log(tmp_path)), Files()
    lock = alone(layout, files, 0.2)
    with lock, forked():
        lock.__exit__(None, None, None)  # while the child lives
        with alone(layout, files, 0.2):
            pass
        lock = alone(layout, files, 0.2)
        lock.__enter__()


def test_a_compaction_looks_again_when_its_files_have_moved(tmp_path: Path) -> None:
    made_log(tmp_path)
    with open_log(tmp_path) as log:
        log.snapshot("s")
        answers = iter([Status.OK_UNANCHORED, Status.GAP])

        def verify() -> IntegrityReport:
            return IntegrityReport(next(answers), 0, "", None, "as the test says")

        with pytest.raises(CompactionRefused, match="as the test says"):
            compact(log._log, log._snapshots, log.settings, name="s", verify=verify)
        assert next(answers, None) is None
