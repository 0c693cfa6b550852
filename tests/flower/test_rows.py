"""What is shown of a run, and what only to those who may see it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from celery_commander.engine import Event, Position, RunHistory, State, encode, encode_exception
from celery_commander.tasks.flower.paging import Page
from celery_commander.tasks.flower.rows import EventRow, StepRow, badge, last_holder, note, undos_of

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
SECRET = "hunter2"


def event(seq: int, type: str, data: dict[str, Any], token: int | None = None) -> Event:
    position = Position(seq, 1, seq)
    return Event(position, seq, str(seq), type, AT, "r", data, "", seq if token else None, token)


def story(*, aborted: bool = True) -> list[Event]:
    message = {"body": [[SECRET], {}, {}], "queue": "q"}
    created = {"task": "t", "namespace": "n", "message": message, "due": None, "key": SECRET}
    step = {
        "step": 0, "name": "charge", "kind": "step", "digest": SECRET, "key": SECRET, "undo": "refund",
        "args": encode([SECRET]), "kwargs": encode({}), "attempt": 1, "a field of tomorrow": SECRET,
    }  # fmt: skip
    failed = {"step": 1, "exception": encode_exception(ValueError(SECRET)), "owed": True}
    aborted_by = {"exception": failed["exception"], "reason": "exception", "generation": 1}
    events = [
        event(1, "run.created", created),
        event(2, "run.started", {"task": "t", "attempt": 1, "holder": "worker-1"}, 1),
        event(3, "step.started", step, 1),
        event(4, "step.completed", {"step": 0, "result": SECRET}, 1),
        event(5, "step.started", {**step, "step": 1}, 1),
        event(6, "step.failed", failed, 1),
    ]
    return [*events, event(7, "run.aborted", aborted_by, 1)] if aborted else events


def test_nothing_that_went_in_or_came_out_is_a_fact() -> None:
    events = story()
    history = RunHistory.of(events)
    shown: list[EventRow | StepRow] = [
        *(EventRow.of(each, None, values=False) for each in events),
        *(StepRow.of(each, {}, values=False) for each in history.entries.values()),
    ]
    assert SECRET not in repr(shown)
    assert all(row.values is None for row in shown)


def test_values_are_shown_to_whom_they_may_be_shown() -> None:
    events = story()
    assert SECRET in str(EventRow.of(events[3], None, values=True).values)
    entry = RunHistory.of(events).entries[1]
    assert SECRET in str(StepRow.of(entry, {}, values=True).values)


@pytest.mark.parametrize("type", ["task.failed", "task.retried", "run.degraded"])
def test_a_reason_that_may_quote_an_exception_is_no_fact(type: str) -> None:
    told = event(1, type, {"task": "t", "reason": SECRET})
    assert EventRow.of(told, None, values=False).facts == "task=t"
    assert SECRET in str(EventRow.of(told, None, values=True).values)


def test_facts_are_told_briefly_and_a_zero_is_one() -> None:
    data = {"step": 0, "reason": "x" * 10_000, "in_doubt": [1, 2], "due": None, "death": False}
    facts = EventRow.of(event(1, "run.requeued", data, 1), "void", values=False).facts
    assert facts.startswith("step=0 reason=xxx")
    assert facts.endswith("(10,000 characters) in_doubt=1,2")
    assert len(facts) < 300


def test_a_large_value_is_cut_where_it_is_shown() -> None:
    told = event(1, "step.completed", {"step": 0, "result": "x" * 100_000}, 1)
    assert len(str(EventRow.of(told, None, values=True).values)) < 4_100


def test_an_undo_is_owed_until_it_ran() -> None:
    events = story()
    assert undos_of(RunHistory.of(events), events) == {0: "owed", 1: "owed"}
    events.append(event(8, "compensation.started", {"step": 1, "generation": 1, "attempt": 1}, 1))
    assert undos_of(RunHistory.of(events), events) == {0: "owed", 1: "started"}
    events.append(event(9, "compensation.completed", {"step": 1, "generation": 1}, 1))
    events.append(event(10, "compensation.started", {"step": 0, "generation": 9}, 1))  # void
    assert undos_of(RunHistory.of(events), events) == {0: "owed", 1: "completed"}


def test_nothing_is_owed_while_a_run_may_still_succeed() -> None:
    events = story(aborted=False)
    assert undos_of(RunHistory.of(events), events) == {}


def test_the_last_to_claim_a_run_is_named_as_the_log_names_it() -> None:
    fence = event(8, "run.fenced", {"holder": "recovery-2"}, 2)
    assert last_holder([*story(), fence]) == "recovery-2"
    assert last_holder([*story(), event(8, "run.fenced", {"holder": 7}, 2)]) == "worker-1"
    assert last_holder(story()[:1]) is None


def test_a_note_says_what_a_run_waits_for_and_owes() -> None:
    state = RunHistory.of(story()).state
    assert state is not None
    assert note(state) == "owes undo of 0, 1"
    paused = event(7, "run.paused", {"kind": "timer", "due": "2026-01-02T03:04:06+00:00"}, 1)
    waiting = RunHistory.of([*story(aborted=False)[:2], paused]).state
    assert waiting is not None
    assert note(waiting).startswith("paused: timer; due 2026-01-02 03:04:06")


def test_every_state_has_a_colour() -> None:
    assert {badge(state) for state in State} <= {
        "success", "primary", "warning", "danger", "secondary",
    }  # fmt: skip


@pytest.mark.parametrize(
    "asked, total, shown",
    [
        ("1", 0, "none"),
        ("1", 3, "1-3 of 3"),
        ("2", 25, "11-20 of 25"),
        ("3", 25, "21-25 of 25"),
        ("4", 25, "21-25 of 25"),
        ("0", 25, "1-10 of 25"),
        ("", 25, "1-10 of 25"),
        ("-2", 25, "1-10 of 25"),
        ("9" * 5_000, 25, "1-10 of 25"),
        ("200", 12_345, "1,991-2,000 of 12,345"),
    ],
)
def test_a_page_is_one_that_exists(asked: str, total: int, shown: str) -> None:
    page = Page.of(asked, size=10, total=total)
    assert page.shown == shown
    assert len(page.cut(range(total))) == min(10, total - page.offset)
