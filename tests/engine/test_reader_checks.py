"""What a reader refuses, fault by fault: a changed content, a file that is another, a file that is gone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from celery_commander.engine import EventSourcingEngine, LogCorrupt, LogMoved, LogUnavailable
from celery_commander.engine.files import Files
from celery_commander.engine.wal.layout import Layout
from celery_commander.engine.wal.segments import active_first_seq

from .logs import active, lines_of, made_log, open_log, segmented


def swapped(path: Path, old: bytes, new: bytes) -> None:
    data = path.read_bytes()
    assert data.count(old) >= 1
    assert len(old) == len(new)
    path.write_bytes(data.replace(old, new, 1))


def first_segment(path: Path) -> Path:
    return min(Path(f"{path}.d").glob("segments/*.wal"))


READ: list[Callable[[EventSourcingEngine], object]] = [
    lambda log: list(log.read_from(None)),
    lambda log: list(log.outlines_from(None, frozenset())),
    lambda log: log.history("r-0"),
]


@pytest.mark.parametrize("read", READ, ids=["read", "outlines", "history"])
def test_a_content_that_was_changed_into_another_good_one_is_never_told(
    tmp_path: Path, read: Callable[[EventSourcingEngine], object]
) -> None:
    """See TokenDanceLab/AgentHub#1541: a chain over ids alone let the contents be edited."""
    path = made_log(tmp_path)
    swapped(path, b'"data":{"i":2}', b'"data":{"i":9}')
    with (
        EventSourcingEngine.open(active(tmp_path), create=False) as log,
        pytest.raises(LogCorrupt, match="does not follow"),
    ):
        read(log)


FIELDS = {
    "type": (b"|note|", b"|mote|"),
    "order of keys": (b'{"d":3,"data":{"i":2}', b'{"data":{"i":2},"d":3'),
    "number for text": (b'"token":null', b'"token":0000'),
    "run": (b'"run":"r-0"', b'"run":"r-1"'),
    "version": (b'"v":1}', b'"v":2}'),
    "white space": (b'"n":null,', b'"n": null'),
}


@pytest.mark.parametrize("field", FIELDS)
def test_every_field_of_an_event_is_covered_by_its_hash(tmp_path: Path, field: str) -> None:
    """See TokenDanceLab/AgentHub#1541."""
    path = made_log(tmp_path)
    line = lines_of(path)[4]
    old, new = FIELDS[field]
    assert old in line, line
    data = path.read_bytes()
    path.write_bytes(data.replace(line, line.replace(old, new, 1)))
    with open_log(tmp_path, boot_id="another") as log:
        report = log.verify_integrity()
    assert report.exit_code == 30
    assert report.broken_at is not None
    assert report.broken_at.seq == 4


def test_a_sealed_file_of_another_log_is_not_read(tmp_path: Path) -> None:
    path = segmented(tmp_path)
    with open_log(tmp_path) as log:
        log_id = log.log_id.encode()
    swapped(first_segment(path), b"|" + log_id, b"|" + log_id[:-1] + b"x")
    with (
        EventSourcingEngine.open(path, create=False) as log,
        pytest.raises(LogCorrupt, match="header"),
    ):
        list(log.read_from(None))


def test_an_empty_file_that_goes_on_behind_something_else_is_not_read(tmp_path: Path) -> None:
    path = made_log(tmp_path)
    with open_log(tmp_path) as log:
        log.seal()
    base = path.read_bytes().split(b"|")[4]
    swapped(path, base, base[::-1])
    with (
        EventSourcingEngine.open(path, create=False) as log,
        pytest.raises(LogCorrupt, match="go on"),
    ):
        list(log.read_from(None))


def test_a_sealed_file_that_is_listed_and_not_there_is_said_to_be_gone(tmp_path: Path) -> None:
    path = segmented(tmp_path)
    segment = first_segment(path)
    segment.unlink()
    segment.symlink_to(tmp_path / "nowhere")
    with EventSourcingEngine.open(path, create=False) as log:
        with pytest.raises(LogMoved, match="is gone"):
            list(log.read_from(None))
        with pytest.raises(LogMoved, match="is gone"):
            log._log.reader._start_of_file(999)


def test_an_active_file_without_a_header_is_no_place_to_count_from(tmp_path: Path) -> None:
    path = made_log(tmp_path)
    path.write_bytes(b"something else\n")
    with pytest.raises(LogUnavailable, match="no header"):
        active_first_seq(Layout.of(path), Files())
