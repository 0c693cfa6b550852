"""Recovery's decision where checkpoints are, over every small combination of what may have happened."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from celery_commander.engine.history import RunHistory
from celery_commander.engine.plan import Abort, Park, ParkVersion, Requeue, Wait, plan
from tests.engine.story import Line, told
from tests.engine.test_plan import DEAD, LATER, POLICY

HOLE: Line = ("run.verifying@5", {"n": 77})
HOLE_BEHIND: Line = ("input.recorded@6", {"n": 99})
A: Line = ("checkpoint.saved@5", {"checkpoint": "a"})
B: Line = ("checkpoint.saved@5", {"checkpoint": "b"})
MARK: Line = ("checkpoint.saved@5", {"checkpoint": "b", "restorable": False})
V2: Line = ("checkpoint.saved@5", {"checkpoint": "b", "version": 2})
DOUBTS: dict[str, Line] = {
    "abort": "step.started@6",
    "park": ("step.started@6", {"in_doubt": "park"}),
    "ask": ("step.started@6", {"resolve": True}),
    "repeat": ("step.started@6", {"retry_in_doubt": True}),
}


def story(
    *, hole: bool, second: Line | None, base: str | None, conflict: bool, behind: bool, doubt: str
) -> tuple[Line, ...]:
    """Return a run with checkpoint a at 1 and perhaps b at 2, which may have gone on from one of them."""
    lines: list[Line] = ["run.created", "run.started@5", *([HOLE] if hole else [])]
    lines += ["input.recorded@5", A, "input.recorded@5"]
    lines += [] if second is None else [second]
    place = base and {"id": base, "step": 1 if base == "a" else 2, "conflict": conflict}
    lines += [("run.requeued@5", {"checkpoint": place, "death": False}), "run.started@6"]
    lines += [HOLE_BEHIND] if behind else []
    return (*lines, DOUBTS[doubt]) if doubt != "none" else tuple(lines)


STORIES = [
    (
        story(hole=hole, second=second, base=base, conflict=conflict, behind=behind, doubt=doubt),
        doubt,
    )
    for hole, second, base, conflict, behind, doubt in product(
        (False, True),
        (None, B, MARK, V2),
        (None, "a", "b"),
        (False, True),
        (False, True),
        ("none", *DOUBTS),
    )
    if not (conflict and base is None)
]
VALID = [frozenset(ids) for ids in ("", "a", "b", "ab")]


@pytest.mark.parametrize("valid", VALID, ids=lambda ids: f"valid: {''.join(sorted(ids)) or 'none'}")
def test_nothing_is_resumed_that_cannot_be_and_changed_code_rolls_nothing_back(
    valid: frozenset[str],
) -> None:
    kinds = set()
    for lines, doubt in STORIES:
        read = RunHistory.of(told(*lines))
        state = read.state
        assert state is not None
        decision = plan(read, POLICY, replace(DEAD, checkpoints=valid))
        kinds.add(type(decision))
        told_of = (lines, sorted(valid), decision)
        base_holds = read.base is not None and read.base.id in valid
        match decision:
            case Requeue(checkpoint=None):
                assert doubt not in ("abort", "park"), told_of
                assert read.complete if state.checkpoint is None else base_holds, told_of
            case Requeue(checkpoint=one):
                assert one is not None, told_of
                assert one.id in valid, told_of
                assert one.restorable, told_of
                assert doubt in ("none", "ask", "repeat"), told_of
                assert one.seq >= read.broken_seq, told_of
                assert not (read.complete and state.checkpoint is None), told_of
            case ParkVersion():
                assert state.conflict, told_of
                assert not base_holds or read.broken_seq > _seq(read), told_of
                assert doubt != "abort", told_of
            case Abort(reason=reason):
                assert reason in ("in doubt", "incomplete history"), told_of
                assert reason == "in doubt" or not state.conflict, told_of
                assert doubt == "abort" or reason == "incomplete history", told_of
            case Park():
                assert doubt == "park", told_of
            case _:
                raise AssertionError(told_of)
    assert {Requeue, Abort, Park} <= kinds
    assert ParkVersion in kinds


def _seq(read: RunHistory) -> int:
    return read.base.seq if read.base else 0


ROWS = [
    # (hole, second, base, conflict, behind), what may be believed, the decision
    ((False, B, None, False, False), "ab", Requeue("owner dead", True)),
    ((True, B, None, False, False), "ab", ("b", 2)),
    ((True, B, None, False, False), "a", ("a", 1)),
    ((True, B, None, False, False), "", Abort("incomplete history")),
    ((True, MARK, None, False, False), "ab", ("a", 1)),
    ((True, V2, None, False, False), "ab", ("b", 2)),
    ((True, V2, None, False, False), "a", Abort("incomplete history")),
    ((True, B, "b", False, False), "ab", Requeue("owner dead", True)),
    ((True, B, "b", False, False), "a", ("a", 1)),
    ((True, B, "b", False, False), "", Abort("incomplete history")),
    ((True, B, "b", False, True), "ab", Abort("incomplete history")),
    ((False, B, "b", True, False), "ab", Requeue("owner dead", True)),
    ((False, B, "b", True, False), "a", ("a", 1)),
    ((False, B, "b", True, False), "", ParkVersion),
    ((False, None, "b", True, False), "", ParkVersion),  # not even its event is there
    ((False, B, "b", True, True), "ab", ParkVersion),
]


@pytest.mark.parametrize("happened, valid, wanted", ROWS)
def test_the_order_is_replay_then_the_newest_valid_checkpoint_then_the_end(
    happened: tuple[bool, Line | None, str | None, bool, bool], valid: str, wanted: object
) -> None:
    hole, second, base, conflict, behind = happened
    lines = story(
        hole=hole, second=second, base=base, conflict=conflict, behind=behind, doubt="none"
    )

    decision = plan(
        RunHistory.of(told(*lines)), POLICY, replace(DEAD, checkpoints=frozenset(valid))
    )

    if isinstance(wanted, tuple):
        assert isinstance(decision, Requeue)
        assert decision.checkpoint is not None
        assert (decision.checkpoint.id, decision.checkpoint.step) == wanted
    elif isinstance(wanted, type):
        assert type(decision) is wanted
    else:
        assert decision == wanted


@pytest.mark.parametrize(
    "base, valid, wanted",
    [
        (None, "", Abort("in doubt", (2,))),
        ("b", "ab", Abort("in doubt", (2,))),
        ("b", "", Abort("in doubt", (2,))),
    ],
)
def test_a_step_in_doubt_is_no_matter_of_the_code(
    base: str | None, valid: str, wanted: Abort
) -> None:
    lines = story(hole=False, second=B, base=base, conflict=True, behind=False, doubt="abort")

    read = RunHistory.of(told(*lines))

    assert plan(read, POLICY, replace(DEAD, checkpoints=frozenset(valid))) == wanted


def test_a_step_behind_the_checkpoint_may_be_asked_once_its_holder_is_gone() -> None:
    lines = story(hole=False, second=B, base="b", conflict=True, behind=False, doubt="ask")
    read, valid = RunHistory.of(told(*lines)), frozenset("b")

    lost = replace(DEAD, owner_dead=False, lease_expired_seconds=20.0, checkpoints=valid)

    assert plan(read, POLICY, replace(DEAD, checkpoints=valid)) == Requeue("owner dead", True)
    assert isinstance(plan(read, POLICY, lost), Wait)


@pytest.mark.parametrize(
    "hole, base, needed", [(False, None, False), (True, None, True), (False, "b", True)]
)
def test_a_store_that_cannot_say_is_waited_for_where_it_is_needed(
    hole: bool, base: str | None, needed: bool
) -> None:
    lines = story(hole=hole, second=B, base=base, conflict=False, behind=False, doubt="none")
    read, away = RunHistory.of(told(*lines)), replace(DEAD, checkpoints=None)

    assert isinstance(plan(read, POLICY, away), Wait if needed else Requeue)
    assert isinstance(plan(read, replace(POLICY, force_abort=True), away), Abort)


def test_a_run_that_waits_for_a_person_stays_whatever_its_checkpoints_are() -> None:
    lines = (*story(hole=False, second=B, base=None, conflict=False, behind=False, doubt="none"),)
    parked = (*lines, ("run.paused@6", {"kind": "version", "due": None}))

    decision = plan(
        RunHistory.of(told(*parked)), POLICY, replace(DEAD, now=LATER, checkpoints=frozenset("ab"))
    )

    assert getattr(decision, "reason", None) == "paused: version"
