"""Torn is not corrupt: what a crash may leave is set aside, what was durable is never touched."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from celery_commander.engine import LogCorrupt, LogMoved, Status

from .logs import (
    BOOT,
    NEXT_BOOT,
    active,
    add,
    cut,
    flip,
    lines_of,
    made_log,
    open_log,
    quarantined,
    types_of,
)


def test_a_last_frame_cut_at_any_byte_is_set_aside_after_a_power_cut(tmp_path: Path) -> None:
    """See etcd-io/etcd#5230 and #11488: half a record at the end, and the server refused to start."""
    path = made_log(tmp_path)
    whole = path.read_bytes()
    last = lines_of(path)[-1]
    for kept in range(1, len(last)):
        path.write_bytes(whole[: len(whole) - len(last) + kept])
        for old in quarantined(path):
            old.unlink()
        with open_log(tmp_path, boot_id=f"boot {kept}") as log:
            assert types_of(log) == ["wal.created"] + ["note"] * 4 + ["wal.repaired"]
            repaired = list(log.read_from(None))[-1].payload
            assert (repaired["bytes"], repaired["seq"]) == (kept, 6)
            assert log.append("note", {}).seq == 7
            assert log.verify_integrity().status is Status.OK_UNANCHORED
        (aside,) = quarantined(path)
        assert aside.read_bytes() == last[:kept]
        assert aside.name == repaired["quarantine"]


@pytest.mark.parametrize("boot_id", [BOOT, NEXT_BOOT], ids=["killed process", "power cut"])
@pytest.mark.parametrize(
    "tail",
    [bytes(4096), random.Random(5).randbytes(3000), b"\n\n\n", b"x" * (2 * 1024 * 1024 + 7)],
    ids=["zeros", "noise", "empty lines", "longer than any line"],
)
def test_a_tail_that_is_no_event_is_set_aside_and_the_log_goes_on(
    tmp_path: Path, tail: bytes, boot_id: str
) -> None:
    path = made_log(tmp_path)
    add(path, tail)
    with open_log(tmp_path, boot_id=boot_id) as log:
        assert types_of(log) == ["wal.created"] + ["note"] * 5 + ["wal.repaired"]
        log.append("note", {})
        assert log.verify_integrity().status is Status.OK_UNANCHORED
    (aside,) = quarantined(path)
    assert aside.read_bytes() == tail


def test_a_killed_writers_whole_line_is_rolled_forward(tmp_path: Path) -> None:
    path = made_log(tmp_path)
    control = Path(f"{path}.d/control")
    before = control.read_bytes()
    with open_log(tmp_path) as log:
        written = log.append("note", {"i": "unpublished"}, run_id="r-0")
    control.write_bytes(
        before
    )  # as if it had been killed between the write and publishing the head
    with open_log(tmp_path) as log:
        assert list(log.read_from(None))[-1] == written
        assert log.head() == (written.seq, written.hash)
        assert quarantined(path) == []


def test_a_killed_writers_half_batch_keeps_the_whole_lines_of_it(tmp_path: Path) -> None:
    path = made_log(tmp_path)
    control = Path(f"{path}.d/control")
    before = control.read_bytes()
    with open_log(tmp_path) as log:
        log.append("note", {"i": "whole"})
        log.append("note", {"i": "half"})
    control.write_bytes(before)
    cut(path, path.stat().st_size - 20)
    with open_log(tmp_path) as log:
        assert types_of(log) == ["wal.created"] + ["note"] * 6 + ["wal.repaired"]


def test_a_bad_byte_before_the_durable_position_is_corruption_and_nothing_is_cut(
    tmp_path: Path,
) -> None:
    path = made_log(tmp_path)
    lines = lines_of(path)
    offset = len(b"".join(lines[:3])) + 100  # in event 3
    flip(path, offset)
    content = path.read_bytes()
    with open_log(tmp_path, boot_id=NEXT_BOOT) as log:
        with pytest.raises(LogCorrupt) as raised:
            log.append("note", {})
        assert raised.value.seq == 3
        assert raised.value.offset == len(b"".join(lines[:3]))
        report = log.verify_integrity()
        assert (report.status, report.events) == (Status.CORRUPT, 2)
    assert path.read_bytes() == content
    assert quarantined(path) == []


def test_every_bit_of_a_middle_line_flipped_is_corrupt_and_never_torn(tmp_path: Path) -> None:
    path = made_log(tmp_path)
    lines = lines_of(path)
    start = len(b"".join(lines[:3]))
    for at in range(len(lines[3])):
        flip(path, start + at, 1 << (at % 8))
        with open_log(tmp_path, boot_id=f"boot {at}") as log, pytest.raises(LogCorrupt):
            log.append("note", {})
        flip(path, start + at, 1 << (at % 8))
    with open_log(tmp_path, boot_id="the last boot") as log:
        log.append("note", {})


def test_a_later_line_that_survived_tells_that_a_lost_one_was_durable(tmp_path: Path) -> None:
    path = made_log(tmp_path)
    lines = lines_of(path)
    zeroed = bytes(len(lines[-3]))
    path.write_bytes(b"".join(lines[:-3]) + zeroed + b"".join(lines[-2:]))
    content = path.read_bytes()
    with open_log(tmp_path, boot_id=NEXT_BOOT) as log, pytest.raises(LogCorrupt) as raised:
        log.append("note", {})
    assert raised.value.seq == 4
    assert path.read_bytes() == content


def test_two_unsynced_lines_may_reach_the_disk_in_either_order(tmp_path: Path) -> None:
    path = active(tmp_path)
    with open_log(tmp_path) as log:
        log.append("note", {})
        log.append("first", {}, wait=False)
        log.append("second", {}, wait=False)
    lines = lines_of(path)
    path.write_bytes(b"".join(lines[:-2]) + bytes(len(lines[-2])) + lines[-1])
    with open_log(tmp_path, boot_id=NEXT_BOOT) as log:
        assert types_of(log) == ["wal.created", "note", "wal.repaired"]


def test_a_lost_or_foreign_control_costs_a_reading_and_nothing_else(tmp_path: Path) -> None:
    path = made_log(tmp_path)
    control = Path(f"{path}.d/control")
    for content in (b"", os.urandom(1024), bytes(1024)):
        control.write_bytes(content)
        with open_log(tmp_path) as log:
            assert log.append("note", {}).seq == len(lines_of(path)) - 1
            assert log.verify_integrity().status is Status.OK_UNANCHORED
    assert quarantined(path) == []


def test_a_repair_killed_before_its_event_is_noted_at_the_next_opening(tmp_path: Path) -> None:
    path = made_log(tmp_path)
    aside = Path(f"{path}.d/quarantine")
    aside.mkdir(mode=0o700)
    name = f"{7:020d}-{path.stat().st_size}-0123456789abcdef"
    (aside / f"{name}.unfinished").write_bytes(b"what was cut")
    (aside / f"{name}.unfinished").chmod(0o600)
    with open_log(tmp_path) as log:
        assert types_of(log)[-1] == "wal.repaired"
    assert [kept.name for kept in quarantined(path)] == [name]
    with open_log(tmp_path) as log:
        assert types_of(log).count("wal.repaired") == 1


@pytest.mark.parametrize("line_boundary", [True, False])
def test_a_log_cut_from_outside_stops_at_the_next_append(
    tmp_path: Path, line_boundary: bool
) -> None:
    path = active(tmp_path)
    with open_log(tmp_path) as log:
        for index in range(5):
            log.append("note", {"i": index})
        size = path.stat().st_size
        cut(path, size - len(lines_of(path)[-1]) if line_boundary else size - 10)
        content = path.read_bytes()
        with pytest.raises(LogMoved):
            log.append("note", {})
        with open_log(tmp_path) as late, pytest.raises(LogMoved):
            late.append("note", {})
    assert path.read_bytes() == content


def test_an_old_copy_of_the_same_size_is_not_appended_to(tmp_path: Path) -> None:
    path = made_log(tmp_path)
    old = path.read_bytes()
    control = Path(f"{path}.d/control").read_bytes()
    with open_log(tmp_path) as log:
        log.append("note", {"i": "new A"})
    newer = path.read_bytes()
    path.write_bytes(old)
    Path(f"{path}.d/control").write_bytes(control)
    with open_log(tmp_path) as log:
        log.append("note", {"i": "new B"})
    assert path.stat().st_size == len(newer)
    path.write_bytes(newer)
    with open_log(tmp_path) as log:
        for _ in range(2):
            with pytest.raises(LogMoved):
                log.append("note", {})
        assert log.verify_integrity().status is Status.FORKED
    assert path.read_bytes() == newer
