"""A log of which a sync has failed goes on at an operator's word, in files of which none has."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from celery_commander.engine import (
    EventSourcingEngine,
    LogCorrupt,
    LogMoved,
    LogPoisoned,
    NewEvent,
    Status,
)
from celery_commander.engine.files import Files
from tests.engine.forked import Forked

from .logs import STRACE, acknowledged, heard, writer
from .test_seal_kills import CALLS_MAX, kill_before, killed

pytestmark = [pytest.mark.crash]

GOOD = Status.OK_UNANCHORED


class RefusingDisk(Files):
    """A disk whose syncs fail while it is told so."""

    def __init__(self) -> None:
        self.refuses = False

    def sync(self, fd: int) -> None:
        if self.refuses:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().sync(fd)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "events.wal"


def poisoned(path: Path, *, seal: bool = False, unwaited: int = 2) -> None:
    """Leave a log with four events on disk and more that are only written, of which a sync has failed."""
    disk = RefusingDisk()
    log = EventSourcingEngine.open(path, files=disk)
    if seal:
        log.append("note", {"i": -1})
        log.seal()
    for number in range(3):
        log.append("note", {"i": number}, run_id="r")
    log.append_many([NewEvent("note", {"i": 9}, "r")] * unwaited, wait=False)
    disk.refuses = True
    for end in (log.sync, log.close):
        with pytest.raises(LogPoisoned):
            end()


def quarantined(path: Path) -> list[str]:
    directory = Path(f"{path}.d/quarantine")
    return sorted(os.listdir(directory)) if directory.exists() else []


def leftovers(path: Path) -> list[str]:
    names = os.listdir(f"{path}.d")
    return [name for name in names if name in ("POISONED", "mended", "newborn")]


@pytest.mark.parametrize("boot", [None, "another"], ids=["this boot", "after a reboot"])
@pytest.mark.parametrize("seal", [False, True], ids=["first file", "later file"])
def test_a_poisoned_log_goes_on_after_its_repair(path: Path, boot: str | None, seal: bool) -> None:
    poisoned(path, seal=seal)
    with EventSourcingEngine.open(path, boot_id=boot) as log:
        before = list(log._log.reader.read(None))  # what no sync has vouched for as well
        with pytest.raises(LogPoisoned):
            log.append("note", {})
        inode = path.stat().st_ino
        report = log.repair("ticket 7")
        assert report is not None
        assert (report.through, report.quarantine) == (before[-1].seq, None)
        assert "Input/output error" in report.reason
        assert path.stat().st_ino != inode
        assert leftovers(path) == quarantined(path) == []
        event = log.append("note", {"i": "after"}, run_id="r")
        after = list(log.read_from(None))
        assert after[: len(before)] == before
        assert [each.type for each in after[len(before) :]] == [
            "wal.sealed",
            "wal.repaired",
            "note",
        ]
        note = after[-2].payload
        assert (note["by"], note["bytes"], note["quarantine"]) == ("ticket 7", 0, None)
        assert "Input/output error" in note["reason"]
        assert log.history("r")[-1] == event
        assert log.verify_integrity().status is GOOD
        assert log.repair("ticket 7") is None
    with EventSourcingEngine.open(path, boot_id="a third") as log:
        assert list(log.read_from(None)) == after
        log.append("note", {})


def test_processes_that_were_told_no_go_on_by_themselves(path: Path) -> None:
    disk = RefusingDisk()
    with EventSourcingEngine.open(path, files=disk) as log:
        log.append("note", {"i": 0}, run_id="r")

        def live(child: Forked) -> tuple[int, int]:
            log.append("note", {"i": 1}, run_id="r")
            child.say("ready")
            child.hear()
            with pytest.raises(LogPoisoned):
                log.append("note", {"i": 2}, run_id="r")
            child.say("told")
            child.hear()
            event = log.append("note", {"i": 3}, run_id="r")
            return event.seq, len(log.history("r"))

        with Forked(live) as child:
            assert child.hear() == "ready"
            log.append("note", {"i": 9}, wait=False)
            disk.refuses = True
            with pytest.raises(LogPoisoned):
                log.sync()
            disk.refuses = False
            child.say("go")
            assert child.hear() == "told"
            assert log.repair("me") is not None
            child.say("go")
            seq, events = child.result()
        assert events == 3
        assert log.append("note", {"i": 4}).seq == seq + 1
        log.sync()
        assert log.verify_integrity().status is GOOD


@pytest.mark.parametrize("harm", [b"half a line", bytes(700), b"\n"])
def test_what_does_not_verify_behind_the_durable_events_is_kept_in_quarantine(
    path: Path, harm: bytes
) -> None:
    poisoned(path)
    content = path.read_bytes()
    last = content.rfind(b"\n", 0, -1) + 1
    path.write_bytes(content[:last] + harm)  # what came back after a restart instead of the page
    with EventSourcingEngine.open(path, boot_id="another") as log:
        report = log.repair("me")
        assert report is not None
        assert report.quarantine is not None
        assert quarantined(path) == [report.quarantine]
        kept = Path(f"{path}.d/quarantine/{report.quarantine}").read_bytes()
        assert (kept, len(kept)) == (harm, report.quarantined_bytes)
        notes = [event for event in log.read_from(None) if event.type == "wal.repaired"]
        assert [note.payload["quarantine"] for note in notes] == [report.quarantine]
        assert log.verify_integrity().status is GOOD
        log.append("note", {})


@pytest.mark.parametrize(
    "harm,error",
    [
        (lambda content: content[:300] + b"#" + content[301:], LogCorrupt),
        (lambda content: content[: content.rfind(b"\n", 0, len(content) // 2) + 1], LogMoved),
    ],
    ids=["altered", "cut"],
)
def test_events_that_were_on_disk_are_not_given_up(
    path: Path, harm: Callable[[bytes], bytes], error: type[Exception]
) -> None:
    poisoned(path)
    harmed = harm(path.read_bytes())
    path.write_bytes(harmed)
    with EventSourcingEngine.open(path, create=False) as log:
        with pytest.raises(error):
            log.repair("me")
        assert path.read_bytes() == harmed
        assert leftovers(path) == ["POISONED"]


def test_a_disk_that_still_refuses_leaves_the_log_as_it_was(path: Path) -> None:
    poisoned(path)
    before, disk = path.read_bytes(), RefusingDisk()
    with EventSourcingEngine.open(path, files=disk) as log:
        disk.refuses = True
        with pytest.raises(LogPoisoned, match="cannot be repaired now"):
            log.repair("me")
        assert path.read_bytes() == before
        assert Path(f"{path}.d/POISONED").exists()
        with pytest.raises(LogPoisoned):
            log.append("note", {})
        disk.refuses = False
        assert log.repair("me") is not None
        log.append("note", {})
        assert leftovers(path) == []


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

    def remove(self, path: Path) -> None:
        self.seen.append(("remove", path.name))
        super().remove(path)


def test_both_files_are_on_disk_before_they_get_their_names(path: Path) -> None:
    poisoned(path)
    disk = WatchedDisk()
    with EventSourcingEngine.open(path, files=disk) as log:
        disk.seen.clear()
        assert log.repair("me") is not None
    steps = [
        ("sync", "mended"),
        ("sync", "newborn"),
        ("rename", "mended"),
        ("sync", "segments"),
        ("rename", "newborn"),
        ("sync", "state"),
        ("remove", "POISONED"),
        ("sync", "events.wal.d"),
    ]
    assert [step for step in disk.seen if step in steps[:-1]] == steps[:-1]
    assert disk.seen[-1] == steps[-1]


@pytest.mark.parametrize("by", ["", "  ", "x" * 201])
def test_somebody_must_answer_for_it(path: Path, by: str) -> None:
    poisoned(path)
    with EventSourcingEngine.open(path) as log, pytest.raises(ValueError, match="who answers"):
        log.repair(by)


def test_a_log_that_is_well_needs_none(path: Path) -> None:
    with EventSourcingEngine.open(path) as log:
        before = path.read_bytes()
        assert log.repair("me") is None
        assert path.read_bytes() == before


@pytest.mark.parametrize("torn", [False, True])
@pytest.mark.parametrize("boot", [None, "another"], ids=["this boot", "after a reboot"])
def test_killed_anywhere_a_repair_is_done_again(
    tmp_path: Path, boot: str | None, torn: bool
) -> None:
    kills = 0
    for nth in range(1, CALLS_MAX * 2):
        path = tmp_path / f"{nth}" / "events.wal"
        poisoned(path)
        if torn:
            with path.open("ab") as file:
                file.write(b"torn")
        with EventSourcingEngine.open(path, boot_id=boot) as log:
            before = list(log.read_from(None))

            def mend(log: EventSourcingEngine = log, nth: int = nth) -> None:
                kill_before(log, nth)
                log.repair("first")

            if not killed(mend):
                break
            kills += 1
            assert list(log.read_from(None))[: len(before)] == before
            assert log.verify_integrity().status in (GOOD, Status.TORN_TAIL), nth
            log.repair("second")
            log.append("note", {"i": "after"})
            assert list(log.read_from(None))[: len(before)] == before
            assert log.verify_integrity().status is GOOD, nth
            assert leftovers(path) == []
            kept = quarantined(path)
            assert len(kept) == torn, nth
            assert not any(name.endswith(".unfinished") for name in kept)
        with EventSourcingEngine.open(path, boot_id="a third") as log:
            assert log.verify_integrity().status is GOOD, nth
    assert kills > 25


def test_a_repair_cut_off_by_a_power_cut_is_done_again_although_the_mark_had_never_reached_the_disk(
    tmp_path: Path,
) -> None:
    """Without the mark the next boot would meet the old file, and a sealed copy of it that knows more."""
    marked = 0
    for nth in range(1, CALLS_MAX * 2):
        path = tmp_path / f"{nth}" / "events.wal"
        poisoned(path)
        Path(f"{path}.d/POISONED").unlink()  # `control` still stops this boot
        with EventSourcingEngine.open(path) as log:
            before = list(log.read_from(None))

            def mend(log: EventSourcingEngine = log, nth: int = nth) -> None:
                kill_before(log, nth)
                log.repair("first")

            if not killed(mend):
                break
        with EventSourcingEngine.open(path, boot_id="another") as log:
            marked += log.repair("second") is not None
            log.append("note", {"i": "after"})
            assert list(log.read_from(None))[: len(before)] == before, nth
            assert log.verify_integrity().status is GOOD, nth
    assert marked > 20


@pytest.mark.skipif(not Path(STRACE).exists(), reason="needs strace")
def test_a_sync_that_really_failed_is_repaired_and_nothing_acknowledged_is_lost(path: Path) -> None:
    with EventSourcingEngine.open(path) as log:
        log.append("note", {})
    fault = ["-e", "trace=fdatasync", "-e", "inject=fdatasync:error=EIO:when=3"]
    lines = heard(writer(path, "r", 10, strace=fault))
    assert lines[-1][:2] == ["error", "LogPoisoned"]
    with EventSourcingEngine.open(path) as log:
        assert log.repair("me") is not None
        told = {event.payload["i"]: event.seq for event in log.history("r")}
        assert acknowledged(lines).items() <= told.items()
        log.append("note", {})
        assert log.verify_integrity().status is GOOD
