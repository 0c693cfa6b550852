"""The engine as its users see it: positions, streams, histories, settings of durability."""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest

from celery_commander.engine import (
    Event,
    EventSourcingEngine,
    Fenced,
    InvalidEvent,
    LogCorrupt,
    LogMoved,
    LogUnavailable,
    NewEvent,
    Position,
    Settings,
    Status,
)
from celery_commander.engine.wal import index as index_module
from tests.kit import wait_until

from .forked import Forked
from .logs import active, flip, lines_of, made_log, open_log


def test_an_event_has_what_a_later_reader_sees(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        event = log.append("note", {"pair": (1, 2), "deep": {"b": 1, "a": [None, True]}})
        assert event.payload == {"pair": [1, 2], "deep": {"a": [None, True], "b": 1}}
        assert list(log.read_from(None))[-1] == event
        assert event.timestamp.tzinfo == UTC


def test_the_same_path_is_the_same_log_to_every_opener(tmp_path: Path) -> None:
    with open_log(tmp_path) as one, open_log(tmp_path) as two:
        assert one.log_id == two.log_id
        assert one.path.is_absolute()
        one.append("note", {"from": 1})
        two.append("note", {"from": 2})
        assert [event.payload for event in one.read_from(None)][1:] == [{"from": 1}, {"from": 2}]


def test_a_batch_is_one_timestamp_and_all_or_nothing(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        events = log.append_many([NewEvent("note", {"i": i}) for i in range(100)])
        assert len({event.timestamp for event in events}) == 1
        assert [event.seq for event in events] == list(range(2, 102))
        assert log.append_many([]) == []
        with pytest.raises(InvalidEvent):
            log.append_many([NewEvent("fine", {}), NewEvent("b|ad", {})])
        assert log.head()[0] == 101


def test_reading_what_is_there_makes_nothing(tmp_path: Path) -> None:
    path = made_log(tmp_path)
    with EventSourcingEngine.open(path, create=False) as log:
        assert len(list(log.read_from(None))) == 6
        assert log.verify_integrity().status is Status.OK_UNANCHORED
    with pytest.raises(LogUnavailable):
        EventSourcingEngine.open(tmp_path / "other.wal", create=False)
    assert not (tmp_path / "other.wal.d").exists()


def test_a_copy_of_the_bare_file_can_be_read(tmp_path: Path) -> None:
    path = made_log(tmp_path)
    bare = tmp_path / "bare.wal"
    bare.write_bytes(path.read_bytes() + b"half a li")
    bare.chmod(0o600)
    with EventSourcingEngine.open(bare, create=False) as log:
        assert len(list(log.read_from(None))) == 6
        assert len(log.history("r-0")) == 3
    assert not Path(f"{bare}.d").exists()


def test_a_position_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        event = log.append("note", {})
        where = event.position
        for bad in (
            Position(where.seq, where.file, where.offset + 1),
            Position(9, 1, 10_000),
            Position(where.seq, 7, where.offset),
        ):
            with pytest.raises(LogMoved):
                list(log.read_from(bad))


@pytest.mark.parametrize("text", ["", "1:2", "1:2:x", "1:2:-3", "a:1:2"])
def test_text_that_is_no_position_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        Position.parse(text)


def test_reading_stops_with_the_place_of_a_bad_line(tmp_path: Path) -> None:
    path = made_log(tmp_path)
    flip(path, len(b"".join(lines_of(path)[:4])) + 120)
    with open_log(tmp_path) as log:
        reading = log.read_from(None)
        assert [next(reading).seq for _ in range(3)] == [1, 2, 3]
        with pytest.raises(LogCorrupt) as raised:
            next(reading)
        assert raised.value.seq == 4


def append_in_child(log: EventSourcingEngine, index: int, child: Forked) -> int:
    return log.append("note", {"i": index}, run_id="r").seq


def test_a_history_sees_what_any_process_wrote_before_the_call(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        for index in range(5):
            wrote = Forked(partial(append_in_child, log, index))
            assert wrote.hear() == (True, index + 2)
            assert [event.payload["i"] for event in log.history("r")] == list(range(index + 1))


def test_a_run_id_is_found_whatever_stands_in_payloads(tmp_path: Path) -> None:
    odd = 'a"b\\,"run":"x",é😀'
    with open_log(tmp_path) as log:
        log.append("note", {"run": "r", "text": ',"run":"r","token":1'}, run_id=odd)
        log.append("note", {"z": {"run": odd, "token": 3}})
        log.append("note", {}, run_id="r", token=3, n=1)
        assert [event.seq for event in log.history(odd)] == [2]
        assert [event.seq for event in log.history("r")] == [4]
        assert log.history("x") == []


@pytest.fixture
def small_tail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "TAIL_EVENTS_MAX", 10)
    monkeypatch.setattr(index_module, "CHUNK_BYTES", 4096)


def filled(directory: Path, count: int = 100) -> None:
    with open_log(directory) as log:
        for index in range(count):
            log.append("note", {"i": index}, run_id=f"r-{index % 7}", wait=False)
        log.append("run.fenced", {"holder": "h"}, run_id="r-1", token=9)
        log.history("r-0")


@pytest.mark.usefixtures("small_tail")
def test_the_index_outlives_the_process_and_reads_only_what_is_new(tmp_path: Path) -> None:
    filled(tmp_path)
    with open_log(tmp_path) as log:
        log.append("note", {"i": "new"}, run_id="r-0")
        reads: list[int] = []
        real = log._log.reader.files.read

        def counting(fd: int, size: int, offset: int) -> bytes:
            data = real(fd, size, offset)
            reads.append(len(data))
            return data

        log._log.reader.files.read = counting  # type: ignore[method-assign]  # only counts, then reads
        events = log.history("r-0")
        assert [event.payload["i"] for event in events][-1] == "new"
        assert len(events) == 16
        assert sum(reads) < active(tmp_path).stat().st_size / 2
        with pytest.raises(Fenced):
            log.append("note", {}, run_id="r-1", token=8)


@pytest.mark.usefixtures("small_tail")
@pytest.mark.parametrize("harm", ["garbage", "another log's", "wrong places", "too far"])
def test_a_harmed_index_is_thrown_away_and_not_believed(tmp_path: Path, harm: str) -> None:
    filled(tmp_path)
    path = Path(f"{active(tmp_path)}.d/index.sqlite")
    assert path.exists()
    if harm == "garbage":
        path.write_bytes(b"x" * 8192)
    else:
        change = {
            "another log's": "update mark set log = 'other'",
            "wrong places": "update hits set start = start + 3",
            "too far": "update mark set start = start + 10000000, last = last + 10000000",
        }[harm]
        connection = sqlite3.connect(path)
        connection.execute(change)
        connection.commit()
        connection.close()
    with open_log(tmp_path) as log:
        assert len(log.history("r-0")) == 15
        with pytest.raises(Fenced):
            log.append("note", {}, run_id="r-1", token=8)
        log.append("note", {}, run_id="r-1", token=9)


@pytest.mark.usefixtures("small_tail")
def test_an_index_harmed_under_a_running_process_costs_a_reading_and_no_event(
    tmp_path: Path,
) -> None:
    filled(tmp_path)
    path = Path(f"{active(tmp_path)}.d/index.sqlite")
    with open_log(tmp_path) as log, open_log(tmp_path) as other:
        for each in (log, other):
            assert len(each.history("r-0")) == 15
        connection = sqlite3.connect(path)
        connection.execute("update mark set log = 'other'")
        connection.execute("delete from hits")
        connection.commit()
        connection.close()
        for _ in range(100):
            log.append("note", {"text": "x" * 100}, run_id="r-2", wait=False)
        for each in (log, other):
            assert len(each.history("r-0")) == 15
            assert len(each.history("r-2")) == 114


def test_unwaited_events_are_synced_within_flush_seconds(tmp_path: Path) -> None:
    settings = Settings(state_directory=tmp_path / "state", flush_seconds=0.05)
    with EventSourcingEngine.open(settings) as log:
        event = log.append("note", {}, wait=False)
        assert log.durable_seq < event.seq
        wait_until(lambda: log.durable_seq >= event.seq, seconds=5)
        again = log.append("note", {}, wait=False)
        wait_until(lambda: log.durable_seq >= again.seq, seconds=5)


def is_durable(log: EventSourcingEngine, event: Event) -> bool:
    return log.durable_seq >= event.seq


def test_durability_os_never_syncs_and_group_syncs_soon(tmp_path: Path) -> None:
    for durability in ("os", "group"):
        settings = Settings(
            state_directory=tmp_path / durability, durability=durability, flush_seconds=0.05
        )
        with EventSourcingEngine.open(settings) as log:
            event = log.append("note", {})
            assert log.durable_seq < event.seq
            if durability == "group":
                wait_until(partial(is_durable, log, event), seconds=5)


def test_the_envelope_says_how_far_the_disk_had_promised(tmp_path: Path) -> None:
    made_log(tmp_path, 3)
    assert [line.split(b"|", 4)[4].split(b",")[0] for line in lines_of(active(tmp_path))[1:]] == [
        b'{"d":0',
        b'{"d":1',
        b'{"d":2',
        b'{"d":3',
    ]


def test_a_closed_engine_refuses_to_append(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.close()
    log.close()
    with pytest.raises(LogUnavailable, match="closed"):
        log.append("note", {})


def test_a_clock_that_went_back_does_not_take_the_log_along(tmp_path: Path) -> None:
    times = iter([datetime(2026, 1, 2, tzinfo=UTC)] * 3 + [datetime(2020, 1, 1, tzinfo=UTC)] * 9)
    with EventSourcingEngine.open(active(tmp_path), now=lambda: next(times)) as log:
        first, second = log.append("note", {}), log.append("note", {})
        assert second.timestamp >= first.timestamp
        assert log.verify_integrity().status is Status.OK_UNANCHORED


@pytest.mark.parametrize(
    "new",
    [
        NewEvent("x", {}, token=1),
        NewEvent("run.fenced", {}, "r"),
        NewEvent("x", {}, ""),
        NewEvent("x", {}, "r" * 256),
        NewEvent("x", {}, "\ud800"),
        NewEvent("x", {}, "r", -1),
        NewEvent("x", {}, "r", True),
        NewEvent("x", {}, "r", 1, 2**63),
        NewEvent("x", {}, id="a b"),
        NewEvent("x", {}, "r", 1.5),  # type: ignore[arg-type]
    ],
)
def test_an_envelope_that_would_not_read_back_is_refused(tmp_path: Path, new: NewEvent) -> None:
    with open_log(tmp_path) as log:
        with pytest.raises(InvalidEvent):
            log.append_many([new])
        assert log.head()[0] == 1


def test_depth_is_bounded_on_the_way_in(tmp_path: Path) -> None:
    def nested(levels: int) -> dict[str, object]:
        data: dict[str, object] = {}
        for _ in range(levels - 1):
            data = {"a": data}
        return data

    with open_log(tmp_path) as log:
        log.append("note", nested(128))
        for levels in (129, 10_000):
            with pytest.raises(InvalidEvent):
                log.append("note", nested(levels))


def test_of_types_that_are_not_asked_for_only_an_outline_comes(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        wanted = log.append("a.wanted", {"i": 1}, run_id="r")
        other = log.append("a.other", {"secret": 2}, run_id="r")

        first, second, third = log.outlines_from(None, frozenset({"a.wanted"}))

        assert first.payload == {}
        assert second == wanted
        assert (third.position, third.hash, third.type) == (
            other.position,
            other.hash,
            other.type,
        )
        assert (third.run_id, third.payload) == (None, {})
