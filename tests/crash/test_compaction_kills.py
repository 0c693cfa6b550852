"""SIGKILL before every call that a snapshot and a compaction make to the disk: the next one finishes."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from celery_commander.engine import Status
from celery_commander.engine.files import Files
from tests.engine.histories import LIVE, hash_of, ledger_of, opened, stored, tell
from tests.engine.ledgers import rows, write

pytestmark = pytest.mark.crash

CALLS = ("append", "write_at", "truncate", "sync", "sync_directory", "remove", "make_directory")


class Watched(Files):
    """Tell somebody of every call that changes the disk, before it is made."""

    def __init__(self, told: Callable[[str, Path], object]) -> None:
        self._told = told
        for name in CALLS:
            setattr(self, name, self._watching(name, getattr(super(), name)))

    def _rename(self, source: Path, target: Path) -> None:
        self._told("rename", target)
        super()._rename(source, target)

    def _link(self, source: Path, target: Path) -> None:
        self._told("link", target)
        super()._link(source, target)

    def _watching(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(what: Any, *args: Any) -> Any:
            path = os.readlink(f"/proc/self/fd/{what}") if isinstance(what, int) else what
            self._told(name, Path(path))
            return real(what, *args)

        return call


def prepared(directory: Path) -> tuple[str, dict[str, list[bytes]]]:
    """Make a log of several sealed files, with a compaction behind it and a snapshot of before."""
    with opened(directory) as engine:
        tell(engine)
        engine.snapshot("first")
        engine.compact("first")
        tell(engine, prefix="more ")
        engine.seal()
        write(engine, "last", ("run.created", "run.started@1"))
        return hash_of(engine.replay()), stored(engine, alive())


def alive() -> list[str]:
    return [*LIVE, *(f"more {run_id}" for run_id in LIVE), "last"]


def killed_at(directory: Path, nth: int) -> bool:
    """Snapshot and compact in a process that dies before its n-th call; tell whether it came that far."""
    pid = os.fork()
    if pid == 0:
        calls = 0

        def told(_: str, __: Path) -> None:
            nonlocal calls
            calls += 1
            if calls == nth:
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            with opened(directory, Watched(told)) as engine:
                engine.snapshot("nightly")
                engine.compact("nightly")
            os._exit(0)
        finally:
            os._exit(1)
    status = os.waitpid(pid, 0)[1]
    assert status in (0, signal.SIGKILL)
    return status != 0


def check(directory: Path, before: str, lines: dict[str, list[bytes]]) -> None:
    """Everything is as it was, and the next one finishes what was begun."""
    with opened(directory) as engine, ledger_of(engine, directory / "new.sqlite") as ledger:
        assert engine.verify_integrity().status is Status.OK_UNANCHORED
        assert hash_of(engine.replay()) == before
        assert stored(engine, alive()) == lines
        ledger.catch_up()
        assert hash_of(rows(ledger)) == before

        engine.snapshot("nightly")
        engine.compact("nightly")
        root = Path(f"{engine.path}.d")
        assert list(root.glob("segments/*")) == []
        names = [path.name for path in sorted(root.glob("snapshots/*"))]
        assert names == [snapshot.path.name for snapshot in engine.snapshots()]
        assert engine.verify_integrity().status is Status.OK_UNANCHORED
        ledger.rebuild()
        assert hash_of(rows(ledger)) == hash_of(engine.replay()) == before
        assert stored(engine, alive()) == lines


@pytest.mark.timeout(180)
def test_a_kill_at_any_call_changes_no_state_and_the_next_one_finishes(tmp_path: Path) -> None:
    before, lines = prepared(tmp_path / "made")
    nth, came_so_far = 0, True
    while came_so_far:
        nth += 1
        directory = tmp_path / f"{nth}"
        shutil.copytree(tmp_path / "made", directory)
        came_so_far = killed_at(directory, nth)
        check(directory, before, lines)
        shutil.rmtree(directory)
    assert nth > 40


def test_old_files_go_only_after_the_snapshot_and_the_claim_are_on_disk(tmp_path: Path) -> None:
    """As in litestream#752: what is removed must be held by something that a power cut leaves."""
    seen: list[tuple[str, Path]] = []
    with opened(tmp_path, Watched(lambda *call: seen.append(call))) as engine:
        tell(engine)
        snapshot = engine.snapshot("nightly")
        engine.compact("nightly")
    partial = snapshot.path.with_name(f"{snapshot.path.name}.partial")
    moved = next(path for name, path in seen if name == "link" and path.parent.name == "archive")
    order = [
        ("sync", partial),
        ("rename", snapshot.path),
        ("sync_directory", snapshot.path.parent),
        ("append", engine.path),  # snapshot.created
        ("sync", engine.path),
        ("append", engine.path),  # wal.compacted
        ("sync", engine.path),
        ("link", moved),
        ("sync_directory", moved.parent),
        ("remove", moved.parent.parent / "segments" / moved.name),
        ("sync_directory", moved.parent.parent / "segments"),
    ]
    at = -1
    for step in order:
        at = seen.index(step, at + 1)
    assert seen.count(("link", moved)) == 1
    assert seen.index(("link", moved)) > seen.index(("sync_directory", snapshot.path.parent))
