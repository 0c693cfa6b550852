"""What goes wrong around sealed files: restarts, full disks, files put back, files that are gone."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from celery_commander.engine import (
    Event,
    EventSourcingEngine,
    Fenced,
    LogCompacted,
    LogCorrupt,
    LogMoved,
    LogUnavailable,
    SnapshotMismatch,
    Status,
)
from celery_commander.engine.wal import StoredLine
from celery_commander.engine.wal.layout import Layout
from tests.kit import wait_until

from .logs import (
    NEXT_BOOT,
    active,
    cut,
    everything,
    lines_of,
    notes,
    open_log,
    segmented,
    small_segments,
    types_of,
)


def test_a_sealed_file_that_lost_all_its_events_is_told_and_not_read_for_ever(
    tmp_path: Path,
) -> None:
    path = segmented(tmp_path, seals=3)
    second = sorted(Path(f"{path}.d/segments").iterdir())[1]
    cut(second, len(lines_of(second)[0]))
    with open_log(tmp_path) as log:
        with pytest.raises(LogCorrupt, match="holds no event"):
            list(log.read_from(None))
        assert log.verify_integrity().status is Status.GAP


def test_a_restart_reads_the_active_file_only_and_compares_its_header(tmp_path: Path) -> None:
    path = segmented(tmp_path)
    segment = Layout.of(path).segment(1)
    damaged = bytearray(segment.read_bytes())
    damaged[400] ^= 1  # would be found, if it were read
    segment.write_bytes(damaged)
    with open_log(tmp_path, boot_id=NEXT_BOOT) as log:
        assert log.append("note", {"i": 9}).seq == 13
        assert log.breaks.verify().status is Status.CORRUPT

    last = Layout.of(path).segment(8)
    lines = last.read_bytes().splitlines(keepends=True)
    last.write_bytes(b"".join(lines[:-1]))
    with open_log(tmp_path, boot_id="a third") as log, pytest.raises(LogCorrupt) as raised:
        log.append("note", {})
    assert (raised.value.seq, raised.value.offset) == (11, 0)


def test_time_does_not_run_backwards_over_a_seal_and_a_restart(tmp_path: Path) -> None:
    late, early = datetime(2030, 1, 1, tzinfo=UTC), datetime(2020, 1, 1, tzinfo=UTC)
    path = active(tmp_path)
    with EventSourcingEngine.open(path, now=lambda: late) as log:
        log.append("note", {})
        log.seal()
    with EventSourcingEngine.open(path, now=lambda: early, boot_id=NEXT_BOOT) as log:
        assert log.append("note", {}).timestamp == late


def test_a_file_put_in_place_of_the_active_one_is_refused_after_a_seal_too(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.append("note", {})
        old = log.path.read_bytes()
        log.seal()
        log.append("note", {})
        copy = tmp_path / "copy"
        copy.write_bytes(log.path.read_bytes())
        copy.chmod(0o600)
        copy.rename(log.path)
        with pytest.raises(LogMoved):
            log.append("note", {})
        log.path.write_bytes(old)
        for late in (log, open_log(tmp_path)):
            with late, pytest.raises(LogMoved):
                late.append("note", {})


def test_a_sealed_file_put_back_as_the_active_one_is_refused(tmp_path: Path) -> None:
    with open_log(tmp_path) as log, open_log(tmp_path) as idle:
        log.append("note", {})
        idle.append("note", {})
        log.seal()
        log.append("note", {})
        Layout.of(log.path).segment(1).rename(log.path)
        for each in (idle, log):
            with pytest.raises(LogMoved):
                each.append("note", {})
        report = log.verify_integrity()
        assert report.status in (Status.TRUNCATED, Status.FORKED)


def test_a_full_disk_at_sealing_leaves_the_log_in_its_old_file(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.append("note", {"i": 0})
        files = log._log._session.files
        real = files.link

        def full(source: Path, target: Path) -> None:
            raise OSError(28, "No space left on device")

        files.link = full  # type: ignore[method-assign]  # the seam is there for this
        with pytest.raises(LogUnavailable, match="No space left"):
            log.seal()
        assert log.append("note", {"i": 1}).position.file == 1
        assert not Layout.of(log.path).newborn.exists()
        files.link = real  # type: ignore[method-assign]  # as above
        assert log.seal()
        assert log.append("note", {"i": 2}).position.file > 1
        assert notes(everything(log)) == [0, 1, 2]
        assert log.verify_integrity().status is Status.OK_UNANCHORED


def test_a_seal_that_cannot_be_made_never_fails_the_append_that_is_due(tmp_path: Path) -> None:
    with EventSourcingEngine.open(small_segments(tmp_path)) as log:
        files = log._log._session.files
        real = files.make_directory

        def full(path: Path) -> None:
            raise OSError(28, "No space left on device")

        files.make_directory = full  # type: ignore[method-assign]  # the seam is there for this
        for index in range(40):
            log.append("note", {"i": index, "x": "y" * 200})
        assert not Layout.of(log.path).segments.exists()
        files.make_directory = real  # type: ignore[method-assign]  # as above
        wait_until(
            lambda: log.append("note", {"i": 0}).seq and Layout.of(log.path).segments.exists()
        )
        assert log.verify_integrity().status is Status.OK_UNANCHORED


def test_a_crash_in_the_next_boot_finds_what_was_torn_behind_a_seal(tmp_path: Path) -> None:
    path = segmented(tmp_path)
    with path.open("ab") as file:
        file.write(b"half a line")
    with open_log(tmp_path, boot_id=NEXT_BOOT) as log:
        log.append("note", {"i": 8})
        assert notes(everything(log)) == list(range(9))
        assert types_of(log)[-2:] == ["wal.repaired", "note"]
        assert log.verify_integrity().status is Status.OK_UNANCHORED


class Kept:
    """Keep the lines of some runs, as a snapshot does."""

    def __init__(self, lines: dict[str, list[StoredLine]], fences: dict[str, int]) -> None:
        self._lines = lines
        self._fences = fences

    def lines(self, run_id: str) -> list[StoredLine]:
        return self._lines.get(run_id, [])

    def fence(self, run_id: str) -> int:
        return self._fences.get(run_id, 0)


def lines(log: EventSourcingEngine, run_id: str) -> list[StoredLine]:
    return [line for line, _ in log._log.index.entries(run_id)]


def test_a_run_whose_files_are_gone_is_looked_up_where_it_is_kept(tmp_path: Path) -> None:
    path = segmented(tmp_path)
    with open_log(tmp_path) as log:
        log.append("run.fenced", {}, run_id="r-0", token=5)
        log.seal()
        log.append("note", {"i": 8}, run_id="r-0")
        kept = Kept({name: lines(log, name) for name in ("r-0", "r-1")}, {"r-0": 5})
        whole = everything(log)
        assert [line.seq for line in kept.lines("r-1")] == [3, 6, 9, 12]
        for number in (1, 5, 8, 11):
            Layout.of(path).segment(number).unlink()
        log._log.reader.forget()
        log._log.retain(kept)
        assert log.first_seq == 15
        assert notes(log._log.index.history("r-1")) == [1, 3, 5, 7]
        assert lines(log, "r-0") == kept.lines("r-0")
    with open_log(tmp_path, boot_id=NEXT_BOOT) as later:
        with pytest.raises(SnapshotMismatch):
            later.history("r-1")
        later._log.retain(kept)
        assert notes(later._log.index.history("r-0")) == [0, 2, 4, 6, 8]
        with pytest.raises(Fenced):
            later.append("step.started", {}, run_id="r-0", token=4)
        later.append("step.started", {}, run_id="r-0", token=5)
        assert [event.seq for event in everything(later)] == [15, 16]
        assert list(later.read_from(whole[13].position)) == everything(later)
        with pytest.raises(LogCompacted) as raised:
            list(later.read_from(whole[5].position))
        assert raised.value.first_seq == 15


def test_a_hole_between_files_stops_the_reader_before_it(tmp_path: Path) -> None:
    path = segmented(tmp_path)
    Layout.of(path).segment(5).unlink()
    with open_log(tmp_path) as log:
        seen: list[Event] = []
        with pytest.raises(LogCorrupt) as raised:
            seen.extend(log.read_from(None))
        assert raised.value.seq == 5


def test_a_reader_whose_next_file_is_compacted_meanwhile_is_told_so(tmp_path: Path) -> None:
    path = segmented(tmp_path)
    with open_log(tmp_path) as log:
        reading = log.read_from(None)
        assert next(reading).seq == 1
        for number in (1, 5):
            Layout.of(path).segment(number).unlink()
        with pytest.raises(LogCompacted) as raised:
            list(reading)
        assert raised.value.first_seq == 8


def test_an_old_copy_of_the_active_file_is_refused_in_the_next_boot_too(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.append("note", {})
        old = log.path.read_bytes()
        log.append("note", {})
        log.seal()
        newer = log.path.read_bytes()
        log.append("note", {})
        log.seal()
    for copy in (
        old,
        newer,
    ):  # one is older than a sealed file of its number, one than a later number
        active(tmp_path).write_bytes(copy)
        with open_log(tmp_path, boot_id=NEXT_BOOT) as later, pytest.raises(LogMoved):
            later.append("note", {})


def test_what_stands_behind_the_last_line_of_a_sealed_file_is_noted_in_the_next(
    tmp_path: Path,
) -> None:
    path = segmented(tmp_path)
    sealed = Layout.of(path).segment(8)
    sealed.replace(
        path
    )  # as if the power went after the last line, before the next file had its place
    with path.open("ab") as file:
        file.write(bytes(600))
    with open_log(tmp_path, boot_id=NEXT_BOOT) as log:
        event = log.append("note", {"i": 6})
        assert (event.seq, event.position.file) == (12, 11)
        assert types_of(log)[-3:] == ["wal.sealed", "wal.repaired", "note"]
        assert log.verify_integrity().status is Status.OK_UNANCHORED
