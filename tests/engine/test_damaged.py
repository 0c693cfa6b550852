"""Of which runs it can be shown that nothing is lost, and what recovery does with all others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from celery_commander.engine import State
from celery_commander.engine.damaged import LostEvents, doubt_of
from celery_commander.engine.fold import state_after
from celery_commander.engine.history import RunHistory
from celery_commander.engine.plan import ParkDamaged, Policy, Skip, plan

from .story import Line, event, told
from .test_plan import DEAD, FORCED, PARKED, POLICY

UNDO = {"undo": "shop.refund"}
RUNS = ("run.created", "run.started@1", ("step.started@1", UNDO), "step.completed@1")


def lacking(lines: tuple[Line, ...], *gone: int) -> RunHistory:
    """Return the history of a run that lacks the events of these seqs, which is accepted."""
    events = [each for each in told(*lines) if each.seq not in gone]
    return RunHistory.of(events, [LostEvents(gone[0], gone[-1], len(lines) + 1)])


MAY_LACK = [
    pytest.param(RUNS, (4,), id="its last event"),
    pytest.param(RUNS, (3,), id="the start of a step"),
    pytest.param((*RUNS, "input.recorded@1"), (4,), id="one in its middle"),
    pytest.param(("run.created", "wal.note"), (2,), id="all but its registration"),
    pytest.param((*RUNS, ("run.paused@1", {"kind": "retry"})), (5,), id="a pause"),
    pytest.param(RUNS, (5, 6), id="events behind its last"),
]


@pytest.mark.parametrize("lines,gone", MAY_LACK)
@pytest.mark.parametrize("policy", [POLICY, FORCED], ids=["by the rules", "forced"])
def test_a_run_that_may_lack_an_event_waits_for_a_person(
    lines: tuple[Line, ...], gone: tuple[int, ...], policy: Policy
) -> None:
    read = lacking(lines, *gone)
    decision = plan(read, policy, DEAD)
    assert isinstance(decision, ParkDamaged)
    assert f"events {gone[0]} to {gone[-1]}" in decision.reason
    state = read.state
    assert state is not None
    parks = event(
        "run.paused", {"kind": "damage", "due": None}, seq=99, token=state.token + 1, n=state.n + 1
    )
    fence = event("run.fenced", {}, seq=98, token=state.token + 1)
    after = state_after(state_after(state, fence), parks)
    assert after is not None
    assert (after.state, after.paused_kind, after.letter) == (State.PAUSED, "damage", 99)
    assert plan(replace(read, state=after), policy, DEAD) == Skip("paused: damage")


def test_a_rollback_that_may_lack_an_undo_is_not_gone_on_with() -> None:
    read = lacking((*RUNS, "run.aborted@1"), 4)
    assert isinstance(plan(read, POLICY, DEAD), ParkDamaged)


@pytest.mark.parametrize(
    "lines,gone",
    [
        pytest.param(("wal.note", "run.created", "run.started@1"), (1,), id="begun behind it"),
        pytest.param(
            ("run.created", "wal.note", "run.started@1", "input.recorded@1"), (2,), id="dense"
        ),
        pytest.param(
            (*RUNS, "run.committed@1", "run.delivered@1", "wal.note"), (7,), id="over and told"
        ),
    ],
)
def test_of_a_run_that_is_shown_to_be_whole_nothing_is_asked(
    lines: tuple[Line, ...], gone: tuple[int, ...]
) -> None:
    assert lacking(lines, *gone).damage is None


def test_a_registration_that_is_lost_is_not_made_good_by_a_second_one() -> None:
    events = [*told(*RUNS)[1:], event("run.created", told(*RUNS)[0].payload, seq=9)]
    assert RunHistory.of(events, [LostEvents(1, 1, 8)]).damage is not None


def test_a_person_who_has_spoken_since_decides() -> None:
    lines = (*PARKED, "operator.retried")
    events = told(*lines)
    last = events[-1].seq
    assert doubt_of(events, [LostEvents(3, 3, last - 1)]) is None
    assert doubt_of(events, [LostEvents(3, 3, last + 1)]) is not None


def test_bytes_that_never_were_an_event_are_nobodys() -> None:
    assert doubt_of(told(*RUNS), []) is None
    assert doubt_of([], [LostEvents(1, 2, 3)]) is None
