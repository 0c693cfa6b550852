"""Runs are found by what people know of them."""

from __future__ import annotations

import pytest

from celery_commander.engine import NewEvent, RunQuery, State


@pytest.fixture
def many(ledger, engine):
    """Give runs of two tasks, some of them started."""
    for number, run_id in enumerate(["a-1", "a-2", "a_%", "b-1", "a\U0010ffff", "é-1"]):
        data = {"task": f"task{number % 2}", "namespace": "n", "message": {}}
        events = [NewEvent("run.created", data, run_id)]
        if number < 2:
            events.append(NewEvent("run.started", {}, run_id, token=1, n=1))
        engine.append_many(events, wait=False)
    ledger.catch_up()
    return ledger


def found(ledger, **query):
    return sorted(run.run_id for run in ledger.find(RunQuery(**query)))


def test_without_a_wish_all_are_found(many):
    assert len(found(many)) == 6
    assert [run.run_id for run in many.find(RunQuery())] == [run.run_id for run in many.runs()]


def test_by_state_and_task(many):
    assert found(many, state=State.EXECUTING) == ["a-1", "a-2"]
    assert found(many, task="task1") == ["a-2", "b-1", "é-1"]
    assert found(many, task="task1", state=State.EXECUTING) == ["a-2"]
    assert found(many, task="task") == []


@pytest.mark.parametrize(
    "prefix, ids",
    [
        ("a-", ["a-1", "a-2"]),
        ("a", ["a-1", "a-2", "a_%", "a\U0010ffff"]),
        ("a_", ["a_%"]),  # a letter like another: no pattern
        ("%", []),
        ("é", ["é-1"]),
        ("a-1", ["a-1"]),
        ("a-11", []),
        ("' OR 1=1 --", []),
        ("a\0", []),
    ],
)
def test_by_the_beginning_of_an_id(many, prefix, ids):
    assert found(many, id_prefix=prefix) == ids


def test_counts_are_of_those_that_are_found(many):
    assert many.counts()[State.PENDING] == 4
    counts = many.counts(RunQuery(task="task1"))
    assert (counts[State.EXECUTING], counts[State.PENDING], counts[State.STUCK]) == (1, 2, 0)


def test_a_page_is_a_part_of_the_whole(many):
    whole = [run.run_id for run in many.find(RunQuery(id_prefix="a"))]
    parts = [many.find(RunQuery(id_prefix="a"), limit=2, offset=offset) for offset in (0, 2, 4)]
    assert [run.run_id for part in parts for run in part] == whole
