"""How a run is made, claimed, fenced, paused, cancelled and delivered."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from celery_commander.engine.fold import RunState, State, Void, fold
from tests.engine.story import (
    ABORTED,
    COMMITTED,
    COMPENSATED,
    EXECUTING,
    MESSAGE,
    OWING,
    PAUSED,
    PENDING,
    REQUEUED,
    SOON,
    STEP_OPEN,
    STUCK,
    UNDO,
    VERIFYING,
    after,
    event,
    existing,
)

# --- being made, claimed, fenced ------------------------------------------------------------------


def test_a_new_run_is_as_its_message_says():
    data = {"task": "t", "namespace": "ns", "message": MESSAGE, "due": SOON, "key": "o-1"}

    run = fold(None, event("run.created", data, seq=9))

    assert run == RunState(
        run_id="r-1",
        task="t",
        namespace="ns",
        queue="orders",
        key="o-1",
        created_at=event("x", {}, seq=9).timestamp,
        changed_at=event("x", {}, seq=9).timestamp,
        last_seq=9,
        due_at=datetime(2026, 1, 2, 4, tzinfo=UTC),
    )


def test_a_second_creation_is_void():
    assert after(existing(*PENDING), "run.created") == Void(
        "the run exists already", existing(*PENDING)
    )


@pytest.mark.parametrize(
    "broken",
    [
        {"task": None},
        {"namespace": 7},
        {"message": "text"},
        {"message": {"queue": 3}},
        {"due": "tomorrow"},
        {"due": "2026-01-02T04:00:00"},
        {"due": "0001-01-01T00:00:00+14:00"},
        {"due": 5},
        {"key": 5},
    ],
)
def test_a_creation_with_broken_data_is_void(broken):
    assert isinstance(after(None, ("run.created", broken)), Void)


def test_a_claim_counts_an_attempt_and_ends_the_wait():
    run = existing(*PAUSED, "run.started@9")

    assert (run.state, run.token, run.attempt) == (State.EXECUTING, 9, 2)
    assert (run.paused_kind, run.due_at) == (None, None)


def test_a_claimer_may_fence_and_start_with_one_token():
    assert existing(*REQUEUED, "run.fenced@6").fenced
    run = existing(*REQUEUED, "run.fenced@6", "run.started@6")

    assert (run.state, run.token, run.fenced) == (State.EXECUTING, 6, False)


def test_a_request_between_fence_and_start_does_not_part_them():
    run = existing(*REQUEUED, "run.fenced@6", "run.cancelled", "run.started@6")

    assert run.state is State.EXECUTING


def test_a_fence_is_used_up_by_the_first_event_of_its_owner():
    run = existing(*EXECUTING, "run.fenced@6", "run.requeued@6")

    assert isinstance(after(run, "run.started@6"), Void)
    assert isinstance(after(run, "run.started@7"), RunState)


def test_a_fence_shuts_out_the_owner_before_it():
    run = existing(*STEP_OPEN, "run.fenced@6")

    assert run.state is State.EXECUTING
    assert isinstance(after(run, "step.completed@5"), Void)
    assert isinstance(after(run, "step.completed@6"), RunState)


def test_a_fence_must_be_newer():
    assert isinstance(after(existing(*EXECUTING), "run.fenced@5"), Void)
    assert isinstance(after(existing(*EXECUTING), "run.fenced@4"), Void)


@pytest.mark.parametrize("token", [True, "5", 5.0, 2**53, 2**70, -1])
def test_a_token_that_is_no_number_is_void(token):
    assert isinstance(fold(existing(*PENDING), event("run.started", {}, token=token)), Void)


def test_the_own_number_is_the_last_valid_one_and_never_falls():
    assert existing(*STEP_OPEN).n == 2
    assert existing(*STEP_OPEN, ("step.completed@5", {"n": 7})).n == 7
    assert existing(*STEP_OPEN, ("step.completed@5", {"n": 7}), ("run.paused@5", {"n": 3})).n == 7
    assert existing(*STEP_OPEN, ("step.completed@4", {"n": 7})).n == 2
    assert existing(*STEP_OPEN, "run.fenced@6").n == 2


# --- pausing, cancelling, delivering, degrading ---------------------------------------------------


def test_a_pause_says_why_and_until_when():
    run = existing(*PAUSED)

    assert (run.paused_kind, run.due_at) == ("timer", datetime(2026, 1, 2, 4, tzinfo=UTC))


def test_a_paused_run_may_be_paused_for_another_reason():
    run = existing(*PAUSED, ("run.paused@5", {"kind": "doubt", "due": None}))

    assert (run.paused_kind, run.due_at) == ("doubt", None)


@pytest.mark.parametrize(
    "end", ["run.aborted@5", "run.requeued@5", "run.started@6", "run.degraded"]
)
def test_what_follows_a_pause_ends_it(end):
    run = existing(*PAUSED, end)

    assert (run.paused_kind, run.due_at) == (None, None)


def test_a_run_that_nobody_claimed_is_over_when_cancelled():
    sent = existing(*PENDING, "run.cancelled")
    assert (sent.state, sent.delivered, sent.cancel_requested) == (
        State.COMPENSATED,
        False,
        "not wanted",
    )
    never_sent = existing(*PENDING, ("run.cancelled", {"sent": False}))
    assert (never_sent.state, never_sent.delivered) == (State.COMPENSATED, True)


def test_a_claim_that_comes_after_the_cancellation_is_void():
    assert isinstance(after(existing(*PENDING, "run.cancelled"), "run.started@1"), Void)


@pytest.mark.parametrize("lines", [REQUEUED, EXECUTING, VERIFYING, PAUSED, OWING, STUCK])
def test_a_cancellation_of_a_claimed_run_is_only_a_request(lines):
    before = existing(*lines)
    run = existing(*lines, "run.cancelled", ("run.cancelled", {"reason": "again"}))

    assert run.state is before.state
    assert run.cancel_requested == "not wanted"


def test_a_cancellation_does_not_hide_a_step_in_doubt():
    run = existing(*PENDING, ("step.started@1", UNDO), "run.cancelled")

    assert (run.state, run.cancel_requested, run.owed) == (State.PENDING, "not wanted", (0,))


@pytest.mark.parametrize("lines", [COMMITTED, ABORTED, STUCK, COMPENSATED])
def test_delivery_is_told_once(lines):
    run = existing(*lines, "run.delivered@5")

    assert run.delivered
    assert run.state is existing(*lines).state
    assert isinstance(after(run, "run.delivered@5"), Void)


@pytest.mark.parametrize(
    "lines, outcome",
    [
        (COMMITTED, "ABORTED"),
        (ABORTED, "COMMITTED"),
        *((lines, other) for lines in (COMMITTED, ABORTED) for other in ("PENDING", "?")),
    ],
)
def test_a_delivery_of_another_outcome_is_void(lines, outcome):
    assert isinstance(after(existing(*lines), ("run.delivered@5", {"outcome": outcome})), Void)


def test_a_failure_told_while_rolling_back_stays_told():
    run = existing(*ABORTED, "run.delivered@5", "run.compensated@5")

    assert (run.state, run.delivered) == (State.COMPENSATED, True)


@pytest.mark.parametrize("lines", [PENDING, REQUEUED, PAUSED])
def test_a_fenced_run_is_claimed_with_its_fence_or_a_newer_token(lines):
    run = existing(*lines, "run.fenced@7")

    assert isinstance(after(run, "run.started@6"), Void)
    assert isinstance(after(run, "run.started@7"), RunState)
    assert isinstance(after(run, "run.started@8"), RunState)


def test_delivery_by_another_takes_a_fence_first():
    assert isinstance(after(existing(*COMMITTED), "run.delivered@6"), Void)
    assert existing(*COMMITTED, "run.fenced@6", "run.delivered@6").delivered


def test_an_unrecorded_execution_ends_the_run():
    run = existing(*PENDING, "run.degraded")
    assert (run.state, run.delivered, run.degraded) == (State.COMMITTED, True, True)
    assert run.settled

    unmade = existing("run.degraded")
    assert (unmade.task, unmade.state, unmade.degraded) == ("shop.fulfil", State.COMMITTED, True)
    assert isinstance(after(unmade, "run.created"), Void)


@pytest.mark.parametrize(
    "lines, settled",
    [
        (PENDING, False),
        (EXECUTING, False),
        (PAUSED, False),
        (COMMITTED, False),
        ((*COMMITTED, "run.delivered@5"), True),
        ((*ABORTED, "run.delivered@5"), False),
        (STUCK, False),
        ((*STUCK, "run.delivered@5"), True),
        ((*COMPENSATED, "run.delivered@5"), True),
    ],
)
def test_a_settled_run_needs_nobody(lines, settled):
    assert existing(*lines).settled is settled
