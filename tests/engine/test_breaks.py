"""A break that a verification finds stops every appender, and nothing but a break does."""

from __future__ import annotations

import errno
import json
import os
from contextlib import nullcontext
from pathlib import Path

import pytest

from celery_commander.engine import (
    Anchor,
    DiskRefused,
    EventSourcingEngine,
    LogBroken,
    LogCorrupt,
    LogPoisoned,
    LogUnavailable,
    Status,
    Verified,
)
from celery_commander.engine.files import Files

from .forked import Forked
from .logs import BOOT, NEXT_BOOT, add, flip, lines_of, open_log, segmented


def segments(path: Path) -> list[Path]:
    return sorted(Path(f"{path}.d").glob("segments/*.wal"))


def mark(path: Path) -> Path:
    return Path(f"{path}.d/BROKEN")


def middle(path: Path, number: int = 1) -> int:
    """Return an offset in the payload of a file's line; 0 is the header."""
    lines = lines_of(path)
    return sum(map(len, lines[:number])) + len(lines[number]) - 20


def harm(path: Path, kind: str) -> Path:
    """Damage a log of three sealed files; return what was harmed."""
    first, second, _ = segments(path)
    match kind:
        case "a sealed file":
            flip(second, middle(second))
            return second
        case "the first file":
            flip(first, middle(first, 2))
            return first
        case "the active file":
            flip(path, middle(path))
            return path
        case "a header":
            flip(second, 80)
            return second
        case "a missing file":
            second.rename(second.with_suffix(".away"))
            return second
        case "a missing beginning":
            first.rename(first.with_suffix(".away"))
            return first
        case _:
            raise AssertionError(kind)


KINDS = [
    "a sealed file",
    "the first file",
    "the active file",
    "a header",
    "a missing file",
    "a missing beginning",
]


@pytest.mark.parametrize("kind", KINDS)
def test_after_a_break_was_found_no_process_appends_in_this_boot_nor_after_it(
    tmp_path: Path, kind: str
) -> None:
    path = segmented(tmp_path)
    with open_log(tmp_path) as log:

        def live(child: Forked) -> str:
            log.append("note", {"i": 1})
            child.say("ready")
            child.hear()
            with pytest.raises(LogBroken) as raised:
                log.append("note", {"i": 2})
            return str(raised.value)

        with Forked(live) as child:
            assert child.hear() == "ready"
            kept = path.read_bytes()
            harmed = harm(path, kind)
            report = log.verify_integrity()
            assert report.exit_code in (30, 33)
            child.say("go")
            told = child.result()
        with pytest.raises(LogBroken) as raised:
            log.append("note", {})
        error = raised.value
        assert isinstance(error, LogCorrupt)
        assert isinstance(error, LogUnavailable)
        if report.broken_at is not None:
            where = (report.broken_at.seq, report.broken_at.path, report.broken_at.offset)
            assert (error.seq, error.path, error.offset) == where
        assert report.status.name in told
        assert "commander repair" in told
        with pytest.raises(LogBroken):
            log.check()
        assert harmed == path or path.read_bytes() == kept
    for boot in (BOOT, NEXT_BOOT):
        with open_log(tmp_path, boot_id=boot) as log, pytest.raises(LogBroken):
            log.append("note", {})
    assert harmed == path or path.read_bytes() == kept
    assert json.loads(mark(path).read_text())["status"] == report.status.name


@pytest.mark.parametrize("kind", KINDS)
def test_once_the_damage_is_undone_the_mark_can_be_taken_away(tmp_path: Path, kind: str) -> None:
    path = segmented(tmp_path)
    before = {each: each.read_bytes() for each in (*segments(path), path)}
    with open_log(tmp_path) as log:
        harm(path, kind)
        report = log.verify_integrity()
        assert not log.breaks.lift(report)
        for each, content in before.items():
            each.write_bytes(content)
        report = log.verify_integrity()
        assert report.status is Status.OK_UNANCHORED
        with pytest.raises(LogBroken):  # a person must say so
            log.append("note", {})
        assert log.breaks.lift(report)
        assert not mark(path).exists()
        log.append("note", {})
    with open_log(tmp_path, boot_id=NEXT_BOOT) as log:
        log.append("note", {})
        assert log.verify_integrity().status is Status.OK_UNANCHORED
        assert not log.breaks.lift(report)


def test_what_was_written_before_the_break_was_found_is_still_synced(tmp_path: Path) -> None:
    path = segmented(tmp_path)
    with open_log(tmp_path) as log:
        event = log.append("note", {}, wait=False)
        harm(path, "a sealed file")
        log.verify_integrity()
        log.sync()
        assert log.durable_seq >= event.seq
        with pytest.raises(LogBroken):
            log.append("note", {})


def test_anchors_that_contradict_the_log_stop_it(tmp_path: Path) -> None:
    segmented(tmp_path)
    with open_log(tmp_path) as log:
        seq, hash_ = log.head()
        more = Anchor(log.log_id, seq + 3, hash_, log.now())
        assert log.verify_integrity(anchors=[more]).status is Status.TRUNCATED
        with pytest.raises(LogBroken, match="TRUNCATED"):
            log.append("note", {})


def test_an_engine_that_only_reads_stops_nobody(tmp_path: Path) -> None:
    path = segmented(tmp_path)
    harm(path, "a sealed file")
    with EventSourcingEngine.open(path, create=False) as log:
        assert log.verify_integrity().status is Status.CORRUPT
    assert not mark(path).exists()


def test_a_torn_tail_is_no_break(tmp_path: Path) -> None:
    path = segmented(tmp_path)
    with open_log(tmp_path) as log:
        log.append("note", {})
        add(path, b"half a line")
        assert log.verify_integrity().status is Status.TORN_TAIL
        assert not mark(path).exists()
        log.append("note", {})


class Unreadable(Files):
    """A disk on which the sealed files cannot be read while it is told so."""

    def __init__(self) -> None:
        self.refuses = False

    def read(self, fd: int, size: int, offset: int) -> bytes:
        if self.refuses and "segments" in os.readlink(f"/proc/self/fd/{fd}"):
            raise DiskRefused("segments", os.strerror(errno.EIO), errno.EIO)
        return super().read(fd, size, offset)


def test_a_file_that_cannot_be_read_is_no_break(tmp_path: Path) -> None:
    path, disk = segmented(tmp_path), Unreadable()
    with EventSourcingEngine.open(path, files=disk) as log:
        report = log.verify_integrity()
        harm(path, "a sealed file")
        broken = log.verify_integrity
        disk.refuses = True
        assert broken().status is Status.UNREADABLE
        assert not mark(path).exists()
        log.append("note", {})
        assert report.status.is_good


@pytest.mark.parametrize("change", ["mended", "unreadable"])
def test_a_break_that_is_not_found_again_under_the_lock_is_none(
    tmp_path: Path, change: str
) -> None:
    path, disk = segmented(tmp_path), Unreadable()
    with EventSourcingEngine.open(path, files=disk) as log:
        harmed = harm(path, "a sealed file")
        report = log.breaks.verify()
        assert report.status is Status.CORRUPT
        if change == "mended":
            flip(harmed, middle(harmed))
        disk.refuses = change == "unreadable"
        with nullcontext() if change == "mended" else pytest.raises(DiskRefused):
            assert not log.breaks.mark(report)
        assert not mark(path).exists()
        log.append("note", {})


def test_the_second_look_reads_no_more_than_the_broken_file_and_the_one_before_it(
    tmp_path: Path,
) -> None:
    path = segmented(tmp_path, seals=6)
    with open_log(tmp_path) as log:
        harmed = segments(path)[4]
        flip(harmed, middle(harmed))
        report = log.breaks.verify()
        looked: list[Verified | None] = []
        really = log.breaks.verify

        def counting(*, after: Verified | None = None, anchors: object = ()) -> object:
            looked.append(after)
            return really(after=after)

        log.breaks.verify = counting  # type: ignore[method-assign, assignment]
        assert log.breaks.mark(report)
        assert [after.file for after in looked if after] == [int(segments(path)[3].stem)]


def test_who_holds_the_locks_is_waited_for_no_longer_than_the_bound(tmp_path: Path) -> None:
    path = segmented(tmp_path)
    harm(path, "a sealed file")
    with open_log(tmp_path) as log:
        held = Files().open(Path(f"{path}.d/append.lock"), os.O_RDWR)
        assert Files().try_lock(held.fd)
        log.breaks._log.marker._still._lock_seconds = 0.01
        assert log.verify_integrity().status is Status.CORRUPT
        assert not mark(path).exists()
        held.close()
        log.verify_integrity()
        assert mark(path).exists()


@pytest.mark.parametrize("text", ["", "not json", "[]", '{"seq": "x"}'])
def test_a_mark_that_cannot_be_read_stops_everybody_all_the_same(tmp_path: Path, text: str) -> None:
    path = segmented(tmp_path)
    mark(path).write_text(text)
    mark(path).chmod(0o600)
    with open_log(tmp_path) as log:
        with pytest.raises(LogBroken):
            log.append("note", {})
        assert log.breaks.lift(log.verify_integrity())
        log.append("note", {})


def test_who_opened_the_log_before_the_mark_and_never_wrote_is_told_too(tmp_path: Path) -> None:
    path = segmented(tmp_path)
    harm(path, "a sealed file")
    with (
        EventSourcingEngine.open(path, create=False, boot_id=NEXT_BOOT) as log,
        EventSourcingEngine.open(path, create=False, boot_id=NEXT_BOOT) as other,
    ):
        log._log._session.handles()
        assert other.breaks.mark(other.verify_integrity())
        with pytest.raises(LogBroken):
            log.append("note", {})


def test_a_break_that_all_must_be_read_for_is_looked_for_twice(tmp_path: Path) -> None:
    path = segmented(tmp_path)
    with open_log(tmp_path) as log:
        seq, hash_ = log.head()
        more = Anchor(log.log_id, seq + 3, hash_, log.now())
        report = log.breaks.verify(anchors=[more])
        assert not log.breaks.mark(report)  # nobody knows that anchor any more
        assert not mark(path).exists()
        assert log.breaks.mark(report, [more])


def test_a_log_that_changes_under_the_last_look_stays_marked(tmp_path: Path) -> None:
    path = segmented(tmp_path)
    harm(path, "a sealed file")
    with open_log(tmp_path) as log:
        log.verify_integrity()
        assert not log._log.marker.lift(lambda: False)
        assert mark(path).exists()
        with pytest.raises(LogBroken):
            log.append("note", {})


class FailingSyncs(Files):
    """A disk whose syncs fail while it is told so."""

    def __init__(self) -> None:
        self.refuses = False

    def sync(self, fd: int) -> None:
        if self.refuses:
            raise DiskRefused("log", os.strerror(errno.EIO), errno.EIO)
        super().sync(fd)


def test_a_sync_that_fails_behind_a_break_takes_the_mark_from_nobody(tmp_path: Path) -> None:
    path, disk = segmented(tmp_path), FailingSyncs()
    with EventSourcingEngine.open(path, files=disk) as log:
        log.append("note", {}, wait=False)
        harm(path, "a sealed file")
        log.verify_integrity()
        disk.refuses = True
        with pytest.raises(LogPoisoned):
            log.sync()
        promise = log._log.reader.published()[1]
        assert promise is not None
        assert (promise.poisoned, promise.broken) == (True, True)
        disk.refuses = False
        assert log.repair("me") is not None
        promise = log._log.reader.published()[1]
        assert promise is not None
        assert (promise.poisoned, promise.broken) == (False, True)
        with pytest.raises(LogBroken):
            log.append("note", {})
        log.breaks.accept("me")
        log.append("note", {})
