"""Recovery's decision, row by row and in the order of the rows."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import assert_never

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_commander.engine.fold import State
from celery_commander.engine.history import RunHistory
from celery_commander.engine.plan import (
    Abort,
    Compensate,
    Decision,
    Deliver,
    Facts,
    Park,
    ParkDamaged,
    ParkVersion,
    Policy,
    Republish,
    Requeue,
    Skip,
    Wait,
    plan,
)
from tests.engine.story import START, Line, told

POLICY = Policy(pending_after_seconds=60, max_deaths=3, grace_seconds=60)
FORCED = replace(POLICY, force_abort=True)
LATER = START + timedelta(hours=5)

DEAD = Facts(LATER, "free", owner_dead=True, lease_expired_seconds=None)
LONG_EXPIRED = Facts(LATER, "free", lease_expired_seconds=60.0)
JUST_EXPIRED = Facts(LATER, "free", lease_expired_seconds=20.0)
RELEASED = Facts(LATER, "free")

UNDO = {"undo": "shop.refund"}
PENDING = ("run.created",)
EXECUTING = (*PENDING, "run.started@1")
VERIFYING = (*EXECUTING, "run.verifying@1")
IN_DOUBT = (*EXECUTING, ("step.started@1", UNDO))
REPEATABLE = (*EXECUTING, ("step.started@1", {"retry_in_doubt": True}))
RESOLVABLE = (*EXECUTING, ("step.started@1", {"resolve": True}))
ASKED_FIRST = (*EXECUTING, ("step.started@1", {"in_doubt": "park", "resolve": True}))
PARKING = (*EXECUTING, "input.recorded@1", ("step.started@1", {"in_doubt": "park"}))
OWING = (*IN_DOUBT, "step.completed@1", "run.aborted@1")
STUCK = (*OWING, "run.stuck@1")
COMMITTED = (*EXECUTING, "run.committed@1")
COMPENSATED = (*EXECUTING, "run.aborted@1", "run.compensated@1")
PAUSED = (*EXECUTING, "run.paused@1")
SHUTDOWN = (*EXECUTING, ("run.paused@1", {"kind": "shutdown", "due": None}))
DIED_TWICE = (*EXECUTING, "run.requeued@1", "run.started@2", "run.requeued@2")
ON_ITS_THIRD = (*DIED_TWICE, "run.started@3")
CANCELLED = (*EXECUTING, "run.cancelled")
INCOMPLETE = (*EXECUTING, ("input.recorded@1", {"n": 7}))

PARKED = (*PARKING, ("run.paused@1", {"kind": "doubt", "due": None}))
CONFLICT = (*EXECUTING, ("run.paused@1", {"kind": "version", "due": None}))
AGAIN = "operator.retried"
HAPPENED = (*PARKED, (AGAIN, {"answer": {"step": 1, "happened": True, "result": 7}}))
NOT_HAPPENED = (*PARKED, AGAIN)
END_IT = (AGAIN, {"answer": {"abort": True}})

STILL_RUNNING = "a step in doubt may still be running"


def history(*lines: Line) -> RunHistory:
    return RunHistory.of(told(*lines))


def at(seconds: float, facts: Facts = RELEASED) -> Facts:
    """Return the facts as they are so many seconds after the story began."""
    return replace(facts, now=START + timedelta(seconds=seconds))


def decide(lines: tuple[Line, ...], facts: Facts = DEAD, policy: Policy = POLICY) -> Decision:
    return plan(history(*lines), policy, facts)


# --- row by row -----------------------------------------------------------------------------------

ROWS = [
    # lease alive: nothing else is looked at
    (EXECUTING, Facts(LATER, "alive"), POLICY, Skip("owner alive")),
    (IN_DOUBT, Facts(LATER, "alive"), FORCED, Skip("owner alive")),
    ((), Facts(LATER, "alive"), POLICY, Skip("owner alive")),
    ((), DEAD, POLICY, Skip("never created")),
    # force_abort: whatever is not over
    (PENDING, DEAD, FORCED, Abort("forced")),
    (EXECUTING, DEAD, FORCED, Abort("forced")),
    (VERIFYING, DEAD, FORCED, Abort("forced")),
    (PAUSED, DEAD, FORCED, Abort("forced")),
    (REPEATABLE, DEAD, FORCED, Abort("forced", (0,))),
    (COMMITTED, DEAD, FORCED, Deliver()),
    (OWING, DEAD, FORCED, Compensate()),
    ((*STUCK, "run.delivered@1"), DEAD, FORCED, Skip("stuck: needs a person")),
    (PENDING, replace(DEAD, task_known=False), FORCED, Abort("forced")),
    # a task of other people
    (EXECUTING, replace(DEAD, task_known=False), POLICY, Skip("unknown task shop.fulfil")),
    (COMMITTED, replace(DEAD, task_known=False), POLICY, Skip("unknown task shop.fulfil")),
    # finished, not delivered
    (COMMITTED, DEAD, POLICY, Deliver()),
    (COMPENSATED, DEAD, POLICY, Deliver()),
    (STUCK, DEAD, POLICY, Deliver()),
    ((*COMMITTED, "run.delivered@1"), DEAD, POLICY, Skip("finished")),
    ((*COMPENSATED, "run.delivered@1"), DEAD, POLICY, Skip("finished")),
    ((*STUCK, "run.delivered@1"), DEAD, POLICY, Skip("stuck: needs a person")),
    # cancelled, and nobody left who would see to it
    (CANCELLED, DEAD, POLICY, Abort("cancelled")),
    ((*IN_DOUBT, "run.cancelled"), DEAD, POLICY, Abort("cancelled", (0,))),
    ((*PAUSED, "run.cancelled"), RELEASED, POLICY, Abort("cancelled")),
    ((*DIED_TWICE, "run.cancelled"), RELEASED, POLICY, Abort("cancelled")),
    ((*OWING, "run.cancelled"), DEAD, POLICY, Compensate()),
    # poison: claims that died, this one included
    (ON_ITS_THIRD, DEAD, POLICY, Abort("poison")),
    (ON_ITS_THIRD, LONG_EXPIRED, POLICY, Abort("poison")),
    (ON_ITS_THIRD, RELEASED, POLICY, Requeue("lease released", death=False)),
    (ON_ITS_THIRD, DEAD, replace(POLICY, max_deaths=4), Requeue("owner dead", death=True)),
    ((*ON_ITS_THIRD, "run.requeued@3"), RELEASED, POLICY, Abort("poison")),
    ((*ON_ITS_THIRD, "input.recorded@3"), DEAD, POLICY, Requeue("owner dead", death=True)),
    ((*ON_ITS_THIRD, "step.started@3"), DEAD, POLICY, Abort("poison", (0,))),
    # rolling back
    (OWING, at(64), POLICY, Wait("the rollback is under way", 1.0)),
    (OWING, at(65), POLICY, Compensate()),
    (OWING, at(10, DEAD), POLICY, Compensate()),
    ((*EXECUTING, "run.aborted@1"), RELEASED, POLICY, Compensate()),
    # pending
    (PENDING, at(60), POLICY, Wait("pending", 1.0)),
    (PENDING, at(61), POLICY, Republish()),
    (PENDING, at(62, replace(RELEASED, republished=1)), POLICY, Wait("pending", 59.0)),
    (PENDING, at(121, replace(RELEASED, republished=1)), POLICY, Republish()),
    (PENDING, at(61, replace(RELEASED, overtaken=False)), POLICY, Skip("pending: its queue is long")),
    (PENDING, at(2, DEAD), POLICY, Republish()),
    (DIED_TWICE, at(64), POLICY, Wait("pending", 1.0)),
    (DIED_TWICE, at(65), POLICY, Republish()),
    # paused on purpose, not due
    (PAUSED, at(10), POLICY, Wait("paused: timer", 3345.0)),
    ((*EXECUTING, ("run.paused@1", {"kind": "signal", "due": None})), DEAD, POLICY, Skip("paused: signal")),
    ((*EXECUTING, ("run.paused@1", {"kind": "children", "due": None})), DEAD, POLICY, Skip("paused: children")),
    ((*EXECUTING, ("run.paused@1", {"kind": "operator", "due": None})), DEAD, POLICY, Skip("paused: operator")),
    ((*EXECUTING, ("run.paused@1", {"kind": "doubt"})), DEAD, POLICY, Skip("paused: doubt")),
    ((*EXECUTING, ("run.paused@1", {"kind": "version"})), DEAD, POLICY, Skip("paused: version")),
    # paused and due, or interrupted by shutdown
    (PAUSED, at(3355), POLICY, Requeue("timer", death=False)),
    ((*EXECUTING, ("run.paused@1", {"kind": "retry"})), RELEASED, POLICY, Requeue("retry", death=False)),
    (SHUTDOWN, RELEASED, POLICY, Requeue("shutdown", death=False)),
    (SHUTDOWN, DEAD, POLICY, Requeue("shutdown", death=False)),
    ((*IN_DOUBT, ("run.paused@1", {"kind": "shutdown"})), RELEASED, POLICY, Abort("in doubt", (0,))),
    ((*INCOMPLETE, ("run.paused@1", {"kind": "shutdown", "n": 8})), RELEASED, POLICY, Abort("incomplete history")),
    # let go on by a person
    ((*CONFLICT, AGAIN), RELEASED, POLICY, Requeue("operator", death=False)),
    ((*CONFLICT, AGAIN, "run.requeued@1", "run.started@2", ("run.paused@2", {"kind": "version"})),
        RELEASED, POLICY, Skip("paused: version")),
    ((*CONFLICT, END_IT), RELEASED, POLICY, Abort("cancelled")),
    (HAPPENED, RELEASED, POLICY, Requeue("operator", death=False, completes=(1,))),
    (HAPPENED, JUST_EXPIRED, POLICY, Requeue("operator", death=False, completes=(1,))),
    ((*HAPPENED, "run.fenced@2", "run.started@2"), RELEASED, POLICY,
        Requeue("lease released", death=False, completes=(1,))),
    (NOT_HAPPENED, RELEASED, POLICY, Requeue("operator", death=False)),
    (NOT_HAPPENED, JUST_EXPIRED, POLICY, Wait(STILL_RUNNING, 40.0)),
    (NOT_HAPPENED, LONG_EXPIRED, POLICY, Requeue("operator", death=False)),
    ((*NOT_HAPPENED, "run.requeued@1", "run.started@2", ("step.started@2", {"step": 1, "in_doubt": "park"})),
        DEAD, POLICY, Park(1)),
    ((*PARKED, END_IT), RELEASED, POLICY, Abort("cancelled", (1,))),
    ((*PARKED, END_IT), JUST_EXPIRED, POLICY, Wait(STILL_RUNNING, 40.0)),
    ((*STUCK, AGAIN), RELEASED, POLICY, Abort("exception")),
    ((*STUCK, "run.delivered@1", AGAIN), RELEASED, POLICY, Abort("exception")),
    ((*STUCK, "operator.discarded", "run.delivered@1"), RELEASED, POLICY, Skip("stuck: needs a person")),
    # executing or verifying
    (EXECUTING, DEAD, POLICY, Requeue("owner dead", death=True)),
    (EXECUTING, JUST_EXPIRED, POLICY, Requeue("lease expired", death=True)),
    (EXECUTING, RELEASED, POLICY, Requeue("lease released", death=False)),
    (VERIFYING, DEAD, POLICY, Requeue("owner dead", death=True)),
    (INCOMPLETE, DEAD, POLICY, Abort("incomplete history")),
    # a step in doubt
    (IN_DOUBT, DEAD, POLICY, Abort("in doubt", (0,))),
    (IN_DOUBT, JUST_EXPIRED, POLICY, Wait(STILL_RUNNING, 40.0)),
    (IN_DOUBT, LONG_EXPIRED, POLICY, Abort("in doubt", (0,))),
    (IN_DOUBT, replace(JUST_EXPIRED, owner_dead=True), POLICY, Abort("in doubt", (0,))),
    (IN_DOUBT, RELEASED, POLICY, Abort("in doubt", (0,))),
    (IN_DOUBT, JUST_EXPIRED, FORCED, Wait(STILL_RUNNING, 40.0)),
    ((*IN_DOUBT, "run.cancelled"), JUST_EXPIRED, POLICY, Wait(STILL_RUNNING, 40.0)),
    ((*ON_ITS_THIRD, "step.started@3"), JUST_EXPIRED, POLICY, Wait(STILL_RUNNING, 40.0)),
    (REPEATABLE, DEAD, POLICY, Requeue("owner dead", death=True)),
    (REPEATABLE, JUST_EXPIRED, POLICY, Requeue("lease expired", death=True)),
    (RESOLVABLE, DEAD, POLICY, Requeue("owner dead", death=True)),
    (RESOLVABLE, JUST_EXPIRED, POLICY, Wait(STILL_RUNNING, 40.0)),
    (RESOLVABLE, LONG_EXPIRED, POLICY, Requeue("lease expired", death=True)),
    (PARKING, DEAD, POLICY, Park(1)),
    (PARKING, JUST_EXPIRED, POLICY, Park(1)),
    (ASKED_FIRST, DEAD, POLICY, Requeue("owner dead", death=True)),
    # several: the gravest answer is that of the run
    ((*REPEATABLE, ("step.started@1", {"in_doubt": "park"})), DEAD, POLICY, Park(1)),
    ((*PARKING, "step.started@1"), DEAD, POLICY, Abort("in doubt", (1, 2))),
    # a start that came too late is in doubt like any other
    ((*EXECUTING, "run.fenced@2", "step.started@1"), DEAD, POLICY, Abort("in doubt", (0,))),
]  # fmt: skip


@pytest.mark.parametrize("lines, facts, policy, decision", ROWS)
def test_what_is_found_decides(lines, facts, policy, decision):
    assert decide(lines, facts, policy) == decision


# --- what the rows have in common -----------------------------------------------------------------


def test_a_due_time_in_the_future_is_when_the_patience_begins():
    due_later = (("run.created", {"due": "2026-01-02T04:00:00+00:00"}),)

    assert decide(due_later, at(3400)) == Wait("pending", 15.0)
    assert decide(due_later, at(3415)) == Republish()


def test_a_fence_of_recovery_itself_does_not_begin_the_wait_anew():
    fenced = ("task.sent",) * 99

    assert decide((*PENDING, *fenced, "run.fenced@1"), at(101)) == Republish()
    assert decide((*OWING, *fenced, "run.fenced@2"), at(105)) == Compensate()


def test_patience_with_a_lost_message_doubles_without_end_or_overflow():
    waits = [decide(PENDING, at(1, replace(RELEASED, republished=n))) for n in (0, 1, 5, 10_000)]

    assert [wait.seconds for wait in waits if isinstance(wait, Wait)] == [
        60,
        120,
        60 * 2**5,
        60 * 2**16,
    ]


def test_a_message_that_kills_is_executed_max_deaths_times():
    lines: tuple[Line, ...] = PENDING
    executed = 0
    decision: Decision = Requeue("", death=True)
    while isinstance(decision, Requeue):
        executed += 1
        lines = (*lines, f"run.started@{executed}")
        decision = decide(lines)
        if isinstance(decision, Requeue):
            lines = (*lines, (f"run.requeued@{executed}", {"death": decision.death}))

    assert decision == Abort("poison")
    assert executed == POLICY.max_deaths


EVERYTHING = [lines for lines, *_ in ROWS]
FACTS = st.builds(
    Facts,
    now=st.integers(0, 10_000).map(lambda s: START + timedelta(seconds=s)),
    lease=st.just("free"),
    owner_dead=st.booleans(),
    lease_expired_seconds=st.none() | st.floats(0, 200),
    republished=st.integers(0, 3),
    overtaken=st.booleans(),
)


@given(
    lines=st.sampled_from(EVERYTHING),
    facts=FACTS,
    policy=st.sampled_from([POLICY, FORCED]),
)
def test_no_undo_is_started_while_its_step_may_still_run(lines, facts, policy):
    read = history(*lines)
    decision = plan(read, policy, facts)

    may_run = not facts.owner_dead and (facts.lease_expired_seconds or 60.0) < 60.0
    if read.in_doubt and may_run:
        assert not isinstance(decision, Abort)


@given(
    lines=st.sampled_from(EVERYTHING),
    facts=FACTS,
    policy=st.sampled_from([POLICY, FORCED]),
)
def test_what_is_decided_is_an_event_that_the_fold_takes(lines, facts, policy):
    read = history(*lines)
    decision = plan(read, policy, facts)
    token = (read.state.token if read.state else 0) + 1
    taken = (*lines, f"run.fenced@{token}")

    follows: list[Line]
    match decision:
        case Requeue(reason, death, completes, _):
            assert read.state is not None
            claims = completes and read.state.state is State.PAUSED
            follows = [f"run.started@{token}"] if claims else []
            follows += [(f"step.completed@{token}", {"step": step}) for step in completes]
            follows.append((f"run.requeued@{token}", {"reason": reason, "death": death}))
        case Republish():
            follows = [(f"run.requeued@{token}", {"reason": "lost message", "death": False})]
        case Abort(reason, _):
            follows = [(f"run.aborted@{token}", {"reason": reason})]
        case Park(_):
            follows = [(f"run.paused@{token}", {"kind": "doubt", "due": None})]
        case ParkVersion(_):
            follows = [(f"run.paused@{token}", {"kind": "version", "due": None})]
        case ParkDamaged(_):
            raise AssertionError("nothing of these stories is lost")
        case Deliver():
            follows = [f"run.delivered@{token}"]
        case Compensate():
            owed = history(*taken).owed
            follows = [f"compensation.completed@{token}" for _ in owed]
            follows.append(f"run.compensated@{token}")
        case Skip(_) | Wait(_, _):
            return
        case _:
            assert_never(decision)
    before, after = history(*taken), history(*taken, *follows)
    assert after.voided == before.voided


@given(
    lines=st.sampled_from(EVERYTHING),
    facts=FACTS,
    policy=st.sampled_from([POLICY, FORCED]),
)
def test_a_wait_is_always_for_some_time(lines, facts, policy):
    decision = decide(lines, facts, policy)

    if isinstance(decision, Wait):
        assert decision.seconds > 0
