"""Accepting a break survives a kill before each of its file calls, and orders what reaches the disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from celery_commander.engine import (
    EventSourcingEngine,
    LogBroken,
    LogCorrupt,
    LogPoisoned,
)
from celery_commander.engine.files import Files
from tests.engine.forked import Forked
from tests.engine.logs import BOOT, NEXT_BOOT, open_log, segmented
from tests.engine.test_breaks import mark

from .harms import (
    ACCEPTED,
    HARMS,
    broken,
    contents,
)
from .test_seal_kills import CALLS_MAX, kill_before, killed

pytestmark = [pytest.mark.crash]


@pytest.mark.parametrize("boot", [BOOT, NEXT_BOOT], ids=["this boot", "after a reboot"])
@pytest.mark.parametrize(
    "kind", ["a payload in a sealed file", "a missing file", "the active file", "a header"]
)
def test_killed_anywhere_an_acceptance_is_done_again(tmp_path: Path, kind: str, boot: str) -> None:
    kills = 0
    for nth in range(1, CALLS_MAX * 2):
        directory = tmp_path / f"{nth}"
        path = broken(directory, kind)
        before = contents(path)
        with open_log(directory, boot_id=boot) as log:

            def accept(log: EventSourcingEngine = log, nth: int = nth) -> None:
                kill_before(log, nth)
                log.breaks.accept("first")

            if not killed(accept):
                break
            kills += 1
        for after in (boot, "a third"):
            with open_log(directory, boot_id=after) as log:
                if mark(path).exists():
                    with pytest.raises(LogBroken):
                        log.append("note", {})
                again = log.breaks.accept("second")
                report = log.verify_integrity()
                assert report.status is ACCEPTED, (nth, report)
                log.breaks.lift(report)
                assert not mark(path).exists()
                assert again.damages == () or after == boot
                log.append("note", {"i": after})
                assert len(report.accepted) == 1
        if "active" in kind:
            assert before[path.name] in contents(path).values()
        assert not any(Path(f"{path}.d").glob("mended"))
    assert kills > 20


def test_without_the_mark_a_killed_acceptance_would_let_others_append(tmp_path: Path) -> None:
    """The break may have been met by who reads, and never by a verification: then the acceptance marks it."""
    for nth in range(1, CALLS_MAX * 2):
        directory = tmp_path / f"{nth}"
        path = segmented(directory)
        HARMS["the active file"](path)
        with open_log(directory) as log:

            def accept(log: EventSourcingEngine = log, nth: int = nth) -> None:
                kill_before(log, nth)
                log.breaks.accept("first")

            if not killed(accept):
                break
        with open_log(directory, boot_id=NEXT_BOOT) as log:
            if log.breaks.verify().status is not ACCEPTED or mark(path).exists():
                with pytest.raises(LogCorrupt):
                    log.append("note", {})
            log.breaks.accept("second")
            log.breaks.lift(log.verify_integrity())
            log.append("note", {})
            assert log.verify_integrity().status is ACCEPTED


def test_processes_that_were_told_no_go_on_by_themselves(tmp_path: Path) -> None:
    path = segmented(tmp_path)
    with open_log(tmp_path) as log:

        def live(child: Forked) -> int:
            log.append("note", {"i": 1}, run_id="r-1")
            child.say("ready")
            child.hear()
            with pytest.raises(LogBroken):
                log.append("note", {"i": 2})
            child.say("told")
            child.hear()
            return log.append("note", {"i": 3}, run_id="r-1").seq

        with Forked(live) as child:
            assert child.hear() == "ready"
            HARMS["the active file"](path)
            log.verify_integrity()
            child.say("go")
            assert child.hear() == "told"
            done = log.breaks.accept("me")
            child.say("go")
            assert child.result() == done.seq + 1
        assert log.append("note", {}).seq == done.seq + 2
        assert log.verify_integrity().status is ACCEPTED


class WatchedDisk(Files):
    """A disk that notes in which order names are given, taken, and synced."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    def sync(self, fd: int) -> None:
        self.seen.append(("sync", Path(os.readlink(f"/proc/self/fd/{fd}")).name))
        super().sync(fd)

    def sync_directory(self, path: Path) -> None:
        self.seen.append(("sync", path.name))
        super().sync_directory(path)

    def rename(self, source: Path, target: Path) -> None:
        self.seen.append(("rename", source.name))
        super().rename(source, target)

    def link(self, source: Path, target: Path) -> None:
        self.seen.append(("link", target.parent.name))
        super().link(source, target)

    def remove(self, path: Path) -> None:
        self.seen.append(("remove", path.name))
        super().remove(path)


def test_everything_is_on_disk_before_the_fresh_file_gets_its_name(tmp_path: Path) -> None:
    path = broken(tmp_path, "the active file")
    disk = WatchedDisk()
    with EventSourcingEngine.open(path, files=disk, boot_id=BOOT) as log:
        disk.seen.clear()
        log.breaks.accept("me")
    steps = [
        ("sync", "BROKEN"),
        ("sync", "event-sourcing.wal.d"),
        ("sync", "event-sourcing.wal"),
        ("sync", "newborn"),
        ("link", "segments"),
        ("sync", "segments"),
        ("rename", "newborn"),
        ("sync", "state"),
        ("remove", "BROKEN"),
    ]
    found = [step for step in disk.seen if step in steps]
    assert list(dict.fromkeys(found)) == steps
    assert disk.seen[-1] == ("sync", "event-sourcing.wal.d")


def test_a_failed_sync_is_repaired_before_a_break_is_accepted(tmp_path: Path) -> None:
    path = broken(tmp_path)
    Path(f"{path}.d/POISONED").write_text("a sync failed\n")
    Path(f"{path}.d/POISONED").chmod(0o600)
    with open_log(tmp_path) as log:
        with pytest.raises(LogPoisoned):
            log.breaks.accept("me")
        assert log.repair("me") is not None
        with pytest.raises(LogBroken):
            log.append("note", {})
        log.breaks.accept("me")
        log.append("note", {})
        assert log.verify_integrity().status is ACCEPTED
