"""Verification names what it found, where, and never says more than it knows."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from celery_commander.engine import (
    EventSourcingEngine,
    LogError,
    LogUnavailable,
    LogUnreadable,
    NotALog,
    Status,
)
from celery_commander.engine.chain import GENESIS, link
from celery_commander.engine.verify import verify_log

from .logs import add, cut, flip, lines_of, made_log, open_log


def test_a_good_log_is_unanchored_and_says_what_that_means(tmp_path: Path) -> None:
    path = made_log(tmp_path)
    report = verify_log(path)
    assert (report.status, report.exit_code, report.events) == (Status.OK_UNANCHORED, 10, 6)
    assert report.head == lines_of(path)[-1][:64].decode()
    assert report.anchored_to is None
    assert "not provable" in report.reason


def test_every_flipped_byte_of_a_small_log_is_found_at_its_event(tmp_path: Path) -> None:
    path = made_log(tmp_path, 3)
    lines = lines_of(path)
    with open_log(tmp_path) as log:
        offset = len(lines[0])
        for seq, line in enumerate(lines[1:], start=1):
            for at in range(len(line)):
                flip(path, offset + at, 1 << (at % 8))
                report = log.verify_integrity()
                assert report.status is Status.CORRUPT, (seq, at)
                assert report.broken_at is not None
                assert (report.broken_at.seq, report.broken_at.offset) == (seq, offset)
                flip(path, offset + at, 1 << (at % 8))
            offset += len(line)
        assert log.verify_integrity().status is Status.OK_UNANCHORED


def test_a_changed_payload_shows_the_expected_and_the_found_hash(tmp_path: Path) -> None:
    path = made_log(tmp_path)
    path.write_bytes(path.read_bytes().replace(b'{"i":2}', b'{"i":9}'))
    where = verify_log(path).broken_at
    assert where is not None
    assert where.found == lines_of(path)[4][:64].decode()
    assert where.expected not in (None, where.found)


@pytest.mark.parametrize("attack", ["delete", "swap", "insert", "duplicate"])
def test_rearranged_lines_are_corruption_with_the_place(tmp_path: Path, attack: str) -> None:
    path = made_log(tmp_path)
    lines = lines_of(path)
    if attack == "delete":
        del lines[3]
    elif attack == "swap":
        lines[3], lines[4] = lines[4], lines[3]
    elif attack == "insert":
        rest = b'|x|i|2026-01-02T03:04:05.000006Z|{"d":0,"data":{},"n":null,"run":null,"token":null,"v":1}'
        lines.insert(3, link(lines[2][:64], rest) + rest + b"\n")
    else:
        lines.insert(3, lines[2])
    path.write_bytes(b"".join(lines))
    with open_log(tmp_path) as log:
        report = log.verify_integrity()
    assert report.status is Status.CORRUPT
    assert report.broken_at is not None
    assert report.broken_at.seq in (3, 4)


def test_a_tail_dropped_at_a_line_is_told_only_by_who_knew_more(tmp_path: Path) -> None:
    """See the review of selfpatch/ros2_medkit#487: no chain shows that its newest entries were cut."""
    path = made_log(tmp_path)
    cut(path, path.stat().st_size - len(lines_of(path)[-1]))
    assert verify_log(path).status is Status.OK_UNANCHORED
    with open_log(tmp_path) as log:
        report = log.verify_integrity()
    assert (report.status, report.events) == (Status.TRUNCATED, 5)


def test_a_torn_tail_is_torn_and_the_good_events_are_counted(tmp_path: Path) -> None:
    path = made_log(tmp_path)
    with open_log(tmp_path) as log:
        add(path, b"half a line")
        report = log.verify_integrity()
    assert (report.status, report.exit_code, report.events) == (Status.TORN_TAIL, 20, 6)


def test_a_log_with_anothers_identity_is_foreign(tmp_path: Path) -> None:
    one, two = made_log(tmp_path / "one"), made_log(tmp_path / "two")
    with open_log(tmp_path / "one") as log:
        assert verify_log(two, log_id=log.log_id).status is Status.FOREIGN
    lines = lines_of(one)
    one.write_bytes(lines_of(two)[0] + b"".join(lines[1:]))  # the header is only a claim
    assert verify_log(one).status is Status.FOREIGN
    one.write_bytes(b"something else\n")
    assert verify_log(one).status is Status.FOREIGN


def test_a_log_that_begins_later_has_a_gap(tmp_path: Path) -> None:
    path = made_log(tmp_path)
    lines = lines_of(path)
    header = lines[0].decode().split("|")
    header[3], header[4] = "3", lines[2][:64].decode()
    path.write_bytes("|".join(header).encode() + b"".join(lines[3:]))
    assert verify_log(path).status is Status.GAP


def test_what_cannot_be_read_is_unreadable(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for path in (tmp_path / "missing", tmp_path, tmp_path / "pipe", tmp_path / "link"):
        report = verify_log(path)
        assert (report.status, report.exit_code) == (Status.UNREADABLE, 40)
        assert report.head == GENESIS.decode()


@pytest.mark.parametrize("kind", ["0444", "0664", "0666", "hard link", "symbolic link", "foreign"])
def test_whoever_can_read_a_log_can_verify_it_and_nothing_is_left_there(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "copy" / "event-sourcing.wal"
    path.parent.mkdir()
    made = made_log(tmp_path)
    if kind == "hard link":
        path.hardlink_to(made)
    elif kind == "symbolic link":
        path.symlink_to(made)
    else:
        path.write_bytes(made.read_bytes())
    if kind.isdigit():
        path.chmod(int(kind, 8))
    elif kind == "foreign":
        monkeypatch.setattr(os, "geteuid", lambda: 4242)  # the same as if another user owned it

    assert verify_log(path).status is Status.OK_UNANCHORED
    with EventSourcingEngine.open(path, create=False) as engine:
        assert engine.verify_integrity().status is Status.OK_UNANCHORED
        assert len(list(engine.read_from(None))) == 6
        assert engine.history("no-run") == []
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("kind", ["0664", "hard link", "symbolic link", "foreign"])
def test_what_may_be_read_so_may_still_not_be_written_so(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = made_log(tmp_path)
    if kind == "hard link":
        (tmp_path / "second").hardlink_to(path)
    elif kind == "symbolic link":
        path.rename(tmp_path / "aside")
        path.symlink_to(tmp_path / "aside")
    elif kind == "foreign":
        monkeypatch.setattr(os, "geteuid", lambda: 4242)
    else:
        path.chmod(0o664)

    with EventSourcingEngine.open(path, create=False) as engine, pytest.raises(LogUnavailable):
        engine.append("x", {})
    with pytest.raises(LogUnavailable):
        EventSourcingEngine.open(path)


@pytest.mark.parametrize(
    "content,error,said",
    [
        pytest.param(None, LogUnreadable, "cannot be read: there is no such file", id="missing"),
        pytest.param(b"", NotALog, "is not a celery-wal log: it is empty", id="empty"),
        pytest.param(b"my notes\n", NotALog, "it has no celery-wal/1 header", id="foreign"),
    ],
)
def test_reading_what_is_no_log_speaks_of_reading(
    tmp_path: Path, content: bytes | None, error: type[LogError], said: str
) -> None:
    path = tmp_path / "some.wal"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(error, match=said) as raised:
        EventSourcingEngine.open(path, create=False)
    assert "written" not in str(raised.value)


def test_a_huge_line_is_refused_in_bounded_memory(tmp_path: Path) -> None:
    path = made_log(tmp_path)
    with path.open("ab") as file:
        file.write(b"0" * 64 + b"|x|i|")
        file.truncate(path.stat().st_size + 512 * 1024**2)  # a hole: no disk is used
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    report = verify_log(path)
    assert report.status is Status.TORN_TAIL
    assert report.events == 6
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 48 * 1024  # KiB
