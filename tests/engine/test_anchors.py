"""Anchors: what a log once was, kept where its writer cannot change it, and compared when it is verified."""

from __future__ import annotations

import dataclasses
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from celery_commander.engine import (
    Anchor,
    AnchorContradicted,
    AnchorDirectory,
    AnchorsUnreadable,
    EventSourcingEngine,
    Settings,
    SettingsError,
    Status,
    durable_anchor,
)
from tests.engine.forked import Forked

AT = datetime(2031, 2, 3, 4, 5, 6, tzinfo=UTC)
ONE = Anchor("log-1", 7, "a" * 64, AT)
TWO = Anchor("log-1", 9, "b" * 64, AT)


def test_anchors_are_read_back_in_the_order_of_writing(tmp_path: Path) -> None:
    places = AnchorDirectory(tmp_path / "far" / "away")

    assert places.write(ONE)
    assert places.write(TWO)
    assert places.write(dataclasses.replace(ONE, log_id="log-2"))

    assert places.read("log-1") == [ONE, TWO]
    assert places.read("nobody") == []
    assert (tmp_path / "far" / "away").stat().st_mode & 0o777 == 0o700


def test_a_log_that_stands_still_adds_nothing(tmp_path: Path) -> None:
    places = AnchorDirectory(tmp_path)
    places.write(ONE)

    assert places.write(dataclasses.replace(ONE, at=datetime.now(UTC))) is False
    assert places.read("log-1") == [ONE]


@pytest.mark.parametrize(
    "other", [dataclasses.replace(TWO, hash="c" * 64), dataclasses.replace(TWO, seq=8)]
)
def test_a_log_that_goes_back_is_not_anchored(tmp_path: Path, other: Anchor) -> None:
    places = AnchorDirectory(tmp_path)
    places.write(ONE)
    places.write(TWO)

    with pytest.raises(AnchorContradicted, match="event 9"):
        places.write(other)

    assert places.read("log-1") == [ONE, TWO]


def test_a_line_that_was_torn_at_any_byte_is_not_an_anchor(tmp_path: Path) -> None:
    places = AnchorDirectory(tmp_path)
    places.write(ONE)
    path = tmp_path / "log-1.anchors"
    first = path.stat().st_size
    places.write(TWO)
    whole = path.read_bytes()

    for length in range(first, len(whole)):
        path.write_bytes(whole[:length])
        assert places.read("log-1") == [ONE]
        assert places.write(TWO)
        assert path.read_bytes() == whole


@pytest.mark.parametrize(
    "line", [b"rubbish", b"{}", b"[]", b'{"format":"celery-anchor 1","log_id":"x"}', b"\xff"]
)
def test_what_is_no_anchor_is_named_by_its_line(tmp_path: Path, line: bytes) -> None:
    places = AnchorDirectory(tmp_path)
    places.write(ONE)
    path = tmp_path / "log-1.anchors"
    path.write_bytes(path.read_bytes() + line + b"\n")

    for use in (lambda: places.read("log-1"), lambda: places.write(TWO)):
        with pytest.raises(AnchorsUnreadable, match="Line 2"):
            use()


def test_an_anchor_of_another_log_in_the_file_is_not_believed(tmp_path: Path) -> None:
    places = AnchorDirectory(tmp_path)
    places.write(ONE)
    os.rename(tmp_path / "log-1.anchors", tmp_path / "log-2.anchors")

    with pytest.raises(AnchorsUnreadable):
        places.read("log-2")


@pytest.mark.parametrize("inside", ["state", "state/anchors", "state/event-sourcing.wal.d/x"])
def test_a_place_inside_the_state_directory_is_refused(tmp_path: Path, inside: str) -> None:
    with pytest.raises(SettingsError, match="anchor_directory"):
        Settings(state_directory=tmp_path / "state", anchor_directory=tmp_path / inside)


def test_a_link_into_the_state_directory_is_seen_through(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "elsewhere").symlink_to(tmp_path / "state")

    with pytest.raises(SettingsError, match="anchor_directory"):
        Settings(state_directory=tmp_path / "state", anchor_directory=tmp_path / "elsewhere")


def test_only_what_is_on_disk_is_anchored(tmp_path: Path) -> None:
    with EventSourcingEngine.open(tmp_path / "log.wal") as engine:
        engine.append("a.note", {}, wait=True)
        event = engine.append("a.note", {}, wait=False)

        anchor = durable_anchor(engine, seconds=30)

        assert anchor is not None
        assert (anchor.seq, anchor.hash) == (event.seq, event.hash)
        assert engine.durable_seq >= event.seq


def test_a_log_that_is_never_synced_has_nothing_to_anchor(tmp_path: Path) -> None:
    settings = dataclasses.replace(Settings.at(tmp_path / "log.wal"), durability="os")
    with EventSourcingEngine.open(settings) as engine:
        engine.append("a.note", {}, wait=True)

        assert durable_anchor(engine, seconds=0.1) is None


def test_verification_holds_the_log_against_its_anchors(tmp_path: Path) -> None:
    places = AnchorDirectory(tmp_path / "far")
    with EventSourcingEngine.open(tmp_path / "state" / "log.wal") as engine:
        engine.append("a.note", {}, wait=True)
        anchor = durable_anchor(engine)
        assert anchor is not None
        places.write(anchor)
        engine.append("a.note", {}, wait=True)
        anchors = places.read(engine.log_id)

        good = engine.verify_integrity(anchors=anchors)
        cut = engine.verify_integrity(anchors=[dataclasses.replace(anchor, seq=99)])
        forked = engine.verify_integrity(anchors=[dataclasses.replace(anchor, hash="0" * 64)])

    assert (good.status, good.anchored_to) == (Status.OK_ANCHORED, str(anchor))
    assert (cut.status, forked.status) == (Status.TRUNCATED, Status.FORKED)


def test_two_processes_write_whole_lines(tmp_path: Path) -> None:
    places = AnchorDirectory(tmp_path)
    places.write(ONE)

    def write_many(_: Forked) -> None:
        for seq in range(100, 160):
            try:
                places.write(Anchor("log-1", seq, "d" * 64, AT))
            except AnchorContradicted:
                pass  # the other one is ahead

    children = [Forked(write_many) for _ in range(2)]
    for child in children:
        ended_well, told = child.hear()
        assert ended_well, told
        os.waitpid(child.pid, 0)

    seqs = [anchor.seq for anchor in places.read("log-1")]
    assert seqs == sorted(set(seqs))
    assert seqs[-1] == 159


def test_the_newest_is_found_without_reading_all_of_them(tmp_path: Path) -> None:
    places = AnchorDirectory(tmp_path)
    assert places.last("log-1") is None

    for seq in range(1, 101):
        places.write(Anchor("log-1", seq, "e" * 64, AT))
    with (tmp_path / "log-1.anchors").open("ab") as file:
        file.write(b'{"format":"celery-anc')  # torn

    assert places.last("log-1") == Anchor("log-1", 100, "e" * 64, AT)
