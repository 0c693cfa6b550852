"""One run's events, read for whoever goes on with it."""

from __future__ import annotations

import pytest

from celery_commander.engine.fold import State
from celery_commander.engine.history import Entry, RunHistory
from tests.engine.story import MESSAGE, Line, event, told

UNDO = {"undo": "shop.refund"}
EXECUTING = ("run.created", "run.started@5")


def history(*lines: Line) -> RunHistory:
    return RunHistory.of(told(*lines))


def test_of_no_events_nothing_is_known():
    empty = RunHistory.of([])

    assert empty.state is None
    assert not empty.complete
    assert (empty.message, empty.entries, empty.outcome) == ({}, {}, None)
    assert (empty.in_doubt, empty.owed, empty.voided) == ((), (), ())
    assert (empty.next_n, empty.next_step) == (1, 0)


def test_the_message_is_as_it_was_published():
    read = history("run.created")

    assert read.message == MESSAGE
    assert read.created["task"] == "shop.fulfil"
    assert read.complete


def test_a_step_keeps_what_it_was_called_with_and_what_came_of_it():
    given = {
        "kind": "tool",
        "name": "charge",
        "digest": "d",
        "key": "k",
        "args": [1],
        "kwargs": {"to": 2},
        "undo": "shop.refund",
        "resolve": True,
        "retry_in_doubt": True,
        "in_doubt": "park",
        "attempt": 2,
    }
    read = history(
        *EXECUTING, ("step.started@5", given), ("step.completed@5", {"result": {"$": 1}})
    )

    assert read.entries[0] == Entry(
        step=0,
        kind="tool",
        name="charge",
        status="completed",
        started_seq=3,
        digest="d",
        key="k",
        value={"$": 1},
        args=[1],
        kwargs={"to": 2},
        undo="shop.refund",
        resolve=True,
        retry_in_doubt=True,
        on_doubt="park",
        attempt=2,
    )
    assert read.entries[0].ended


def test_a_step_that_says_little_takes_the_careful_defaults():
    entry = history(*EXECUTING, "step.started@5").entries[0]

    assert (entry.undo, entry.resolve, entry.retry_in_doubt) == (None, False, False)
    assert (entry.on_doubt, entry.attempt) == ("abort", 1)


def test_an_input_keeps_its_value():
    read = history(*EXECUTING, ("input.recorded@5", {"kind": "llm", "name": "ask", "value": "hi"}))

    entry = read.entries[0]
    assert (entry.kind, entry.name, entry.status, entry.value) == ("llm", "ask", "recorded", "hi")
    assert entry.ended
    assert not entry.in_doubt


def test_a_failed_step_keeps_its_exception_and_whether_its_effect_is_unknown():
    excluded = history(*EXECUTING, ("step.started@5", UNDO), "step.failed@5")
    assert (excluded.entries[0].status, excluded.entries[0].value) == ("failed", "declined")
    assert not excluded.entries[0].in_doubt
    assert excluded.owed == ()

    unknown = history(*EXECUTING, ("step.started@5", UNDO), ("step.failed@5", {"owed": True}))
    assert unknown.entries[0].in_doubt
    assert unknown.in_doubt == ()  # its end is recorded: a replay raises it again
    assert [entry.step for entry in unknown.owed] == [0]


def test_a_step_without_an_end_is_in_doubt():
    read = history(*EXECUTING, ("step.started@5", UNDO), "run.fenced@6")

    assert read.in_doubt == (read.entries[0],)
    assert read.entries[0].in_doubt
    assert not read.entries[0].ended
    assert read.owed == (read.entries[0],)


def test_a_voided_start_is_an_entry_in_doubt_and_evidence():
    read = history(*EXECUTING, "run.fenced@6", ("step.started@5", {"name": "late", **UNDO}))

    assert [entry.name for entry in read.in_doubt] == ["late"]
    assert [entry.name for entry in read.owed] == ["late"]
    assert [(voided.seq, "does not hold" in reason) for voided, reason in read.voided] == [
        (4, True)
    ]
    assert read.complete


def test_a_voided_start_of_an_ended_step_does_not_touch_its_record():
    read = history(
        *EXECUTING,
        "step.started@5",
        "step.completed@5",
        "run.fenced@6",
        ("step.started@5", {"step": 0, "name": "late"}),
    )

    assert (read.entries[0].name, read.entries[0].value) == ("charge", 7)
    assert read.in_doubt == ()


def test_a_repeated_step_is_as_it_was_started_last():
    read = history(
        *EXECUTING,
        ("step.started@5", {"name": "first", "attempt": 1}),
        "run.requeued@5",
        "run.started@6",
        ("step.started@6", {"name": "second", "attempt": 2, "step": 0}),
    )

    entry = read.entries[0]
    assert (entry.name, entry.attempt, entry.started_seq) == ("second", 2, 6)


def test_what_is_owed_is_undone_newest_first():
    steps: list[Line] = []
    for _ in range(3):
        steps += [("step.started@5", UNDO), "step.completed@5"]
    read = history(*EXECUTING, *steps, "run.aborted@5")
    assert [entry.step for entry in read.owed] == [2, 1, 0]

    one_undone = history(*EXECUTING, *steps, "run.aborted@5", "compensation.completed@5")
    assert [entry.step for entry in one_undone.owed] == [1, 0]


def test_attempts_of_an_undo_are_counted_in_its_generation():
    owing = (*EXECUTING, ("step.started@5", UNDO), "step.completed@5", "run.aborted@5")
    tried = (*owing, "compensation.started@5", "compensation.failed@5", "compensation.started@5")

    assert history(*tried).undo_attempts == {0: 2}
    assert history(*tried, ("compensation.started@5", {"generation": 9})).undo_attempts == {0: 2}
    assert history(*tried, "run.stuck@5", "run.aborted@5").undo_attempts == {}


def test_the_outcome_is_the_result_or_the_first_exception():
    assert history(*EXECUTING).outcome is None
    assert history(*EXECUTING, "run.committed@5").outcome == ("result", 42)
    aborted = history(
        *EXECUTING,
        ("run.aborted@5", {"exception": "first"}),
        "run.stuck@5",
        ("run.aborted@5", {"exception": "second"}),
    )
    assert aborted.state is not None
    assert aborted.state.generation == 2
    assert aborted.outcome == ("exception", "first")


def test_a_void_end_is_no_outcome():
    assert history(*EXECUTING, "run.committed@4").outcome is None
    assert history(*EXECUTING, "run.aborted@4").outcome is None


def test_the_next_number_and_the_next_index_follow_what_is_recorded():
    read = history(*EXECUTING, "input.recorded@5", "step.started@5")
    assert (read.next_n, read.next_step) == (4, 1)

    closed = history(*EXECUTING, "input.recorded@5", "step.started@5", "step.completed@5")
    assert (closed.next_n, closed.next_step) == (5, 2)


def test_the_next_index_is_the_first_open_one():
    left_open = history(
        *EXECUTING, "step.started@5", "step.started@5", ("step.completed@5", {"step": 1})
    )

    assert left_open.next_step == 0


def test_a_history_is_complete_when_its_own_numbers_are_dense():
    whole = (*EXECUTING, "step.started@5", "run.cancelled", "run.fenced@6", "run.requeued@6")
    assert history(*whole).complete
    assert history(*whole, "run.started@5").complete  # void events do not count


@pytest.mark.parametrize("number", [4, 2, 1, 0, None])
def test_a_hole_or_a_double_among_the_own_numbers_is_incomplete(number):
    broken = history(*EXECUTING, "step.started@5", ("step.completed@5", {"n": number}))

    assert broken.complete is False
    assert broken.entries[0].status == "completed"


def test_a_history_that_lost_an_event_is_incomplete():
    events = told(
        *EXECUTING, "input.recorded@5", "step.started@5", "step.completed@5", "run.paused@5"
    )

    assert RunHistory.of(events).complete
    for lost in range(len(events) - 1):
        assert not RunHistory.of(events[:lost] + events[lost + 1 :]).complete, lost


def test_publishing_again_is_counted_until_somebody_takes_it():
    lost = ("run.created", "run.fenced@1", "run.requeued@1", "run.fenced@2", "run.requeued@2")

    assert history(*lost).republished == 2
    assert history(*lost, "run.started@3").republished == 0
    assert history(*EXECUTING, "run.requeued@5").republished == 0  # that was no lost message


def test_observed_events_change_nothing():
    read = history(*EXECUTING, "task.started", "subscriber.gap")

    assert read == history(*EXECUTING)


def test_fields_of_the_wrong_kind_are_as_if_absent():
    odd: dict[str, object] = {
        "name": 3,
        "kind": None,
        "digest": [],
        "key": 1,
        "in_doubt": {},
        "attempt": "x",
    }
    read = history(*EXECUTING, ("step.started@5", {**odd, "resolve": 1, "retry_in_doubt": "yes"}))

    entry = read.entries[0]
    assert (entry.name, entry.kind, entry.digest, entry.key) == ("", "step", None, None)
    assert (entry.on_doubt, entry.attempt) == ("abort", 1)
    assert (entry.resolve, entry.retry_in_doubt) == (False, False)


def test_events_of_two_runs_are_a_bug_of_the_caller():
    mixed = [*told("run.created"), event("run.cancelled", {}, run_id="r-2")]

    with pytest.raises(AssertionError):
        RunHistory.of(mixed)


def test_the_state_is_that_of_the_fold():
    read = history(*EXECUTING, "run.paused@5")

    assert read.state is not None
    assert (read.state.state, read.state.paused_kind) == (State.PAUSED, "timer")


def test_work_under_a_token_that_nobody_announced_is_incomplete():
    stranger = history(*EXECUTING, "step.started@7")
    assert not stranger.complete
    assert [entry.step for entry in stranger.in_doubt] == [0]

    assert history(*EXECUTING, "step.started@4").complete  # a stale owner is no riddle
    assert history(
        *EXECUTING, "run.started@7"
    ).complete  # a claim too much, and nothing done with it
