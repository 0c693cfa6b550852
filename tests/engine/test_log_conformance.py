"""What every log owes its callers: the file log and the one in memory take the same examination."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from celery_commander.engine import EventSourcingEngine, Fenced, InvalidEvent, NewEvent, Position
from celery_commander.engine.chain import GENESIS
from tests.kit import ManualClock, MemoryLog

Opener = Callable[[Path, ManualClock], Any]


def open_file_log(directory: Path, clock: ManualClock) -> EventSourcingEngine:
    return EventSourcingEngine.open(directory / "events.wal", now=clock.wall)


def open_memory_log(directory: Path, clock: ManualClock) -> MemoryLog:
    return MemoryLog(now=clock.wall)


@pytest.fixture(params=[open_file_log, open_memory_log], ids=["file", "memory"])
def log(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Iterator[Any]:
    opened = request.param(tmp_path, clock)
    yield opened
    if hasattr(opened, "close"):
        opened.close()


def test_the_first_event_names_the_log(log: Any) -> None:
    first = next(iter(log.read_from(None)))
    assert (first.seq, first.type) == (1, "wal.created")
    assert first.payload == {"format": "celery-wal/1", "log_id": log.log_id}


def test_what_was_appended_is_read_back_in_order(log: Any, clock: ManualClock) -> None:
    one = log.append("step.started", {"step": 0, "name": "é|\n\u2028"}, run_id="r", token=1, n=1)
    clock.advance(1.5)
    two, three = log.append_many([NewEvent("x", {}), NewEvent("y", {"k": [1, None]}, run_id="r")])
    assert list(log.read_from(None))[1:] == [one, two, three]
    assert [event.seq for event in (one, two, three)] == [2, 3, 4]
    assert two.timestamp - one.timestamp == timedelta(seconds=1.5)
    assert (one.run_id, one.token, one.n) == ("r", 1, 1)
    assert (two.run_id, two.token, two.n) == (None, None, None)


def test_reading_goes_on_after_a_position_that_was_kept_as_text(log: Any) -> None:
    events = [log.append("x", {"i": index}) for index in range(4)]
    kept = Position.parse(str(events[1].position))
    assert list(log.read_from(kept)) == events[2:]
    assert list(log.read_from(events[-1].position)) == []


def test_a_history_holds_one_runs_events_only(log: Any) -> None:
    mine = [log.append("x", {"i": 0}, run_id="r-1")]
    log.append("x", {"i": 1}, run_id="r-11")
    log.append("x", {"run": "r-1"})
    mine.append(log.append("x", {"i": 2}, run_id="r-1"))
    assert log.history("r-1") == mine
    assert log.history("nobody") == []


def test_the_head_is_the_last_event(log: Any) -> None:
    last = log.append("x", {})
    assert log.head() == (last.seq, last.hash)
    assert last.hash != GENESIS.decode()


def test_what_was_waited_for_is_durable_and_a_sync_covers_the_rest(log: Any) -> None:
    waited = log.append("x", {})
    assert log.durable_seq >= waited.seq
    rode_along = log.append("x", {}, wait=False)
    log.sync()
    assert log.durable_seq >= rode_along.seq


def test_the_timestamps_never_go_back(log: Any, clock: ManualClock) -> None:
    before = log.append("x", {})
    clock.set_wall(clock.wall() - timedelta(hours=1))
    assert log.append("x", {}).timestamp >= before.timestamp


@pytest.mark.parametrize(
    "type_, data",
    [
        ("a|b", {}),
        ("", {}),
        ("x", {"bad": float("nan")}),
        ("x", {"bad": "\ud800"}),
        ("x", {1: "bad"}),
        ("x", {"bad": object()}),
        ("x", ["not an object"]),
        ("x", {"bad": "y" * (1024 * 1024 + 1)}),
    ],
    ids=["bar", "empty", "nan", "surrogate", "key", "object", "list", "size"],
)
def test_what_the_grammar_refuses_is_never_written(log: Any, type_: str, data: Any) -> None:
    log.append("x", {})
    before = log.head()
    with pytest.raises(InvalidEvent):
        log.append(type_, data)
    with pytest.raises(InvalidEvent):
        log.append_many([NewEvent("fine", {}), NewEvent(type_, data)])
    assert log.head() == before
    assert log.append("x", {}).seq == before[0] + 1


def test_a_stale_token_is_refused_before_anything_is_written(log: Any) -> None:
    log.append("run.started", {}, run_id="r", token=1, n=1)
    log.append("run.fenced", {"holder": "recovery-1"}, run_id="r", token=2)
    before = log.head()
    with pytest.raises(Fenced) as refused:
        log.append("step.started", {}, run_id="r", token=1, n=2)
    assert (refused.value.run_id, refused.value.token, refused.value.fence) == ("r", 1, 2)
    with pytest.raises(Fenced):
        log.append_many([NewEvent("x", {}), NewEvent("step.started", {}, "r", 1, 2)])
    assert log.head() == before


def test_a_fence_concerns_owners_of_its_run_only(log: Any) -> None:
    log.append("run.fenced", {"holder": "h"}, run_id="r", token=5)
    log.append("step.started", {}, run_id="r", token=5, n=1)
    log.append("step.started", {}, run_id="r", token=6, n=1)
    log.append("step.started", {}, run_id="other", token=1, n=1)
    log.append("run.cancelled", {}, run_id="r")


def test_a_fence_below_a_fence_is_refused(log: Any) -> None:
    log.append("run.fenced", {"holder": "h"}, run_id="r", token=5)
    with pytest.raises(Fenced):
        log.append("run.fenced", {"holder": "late"}, run_id="r", token=4)
