"""What a checkpoint, and a restart from one, do to a run's state and history."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from celery_commander.engine.fold import RunState, Void
from celery_commander.engine.history import RunHistory
from tests.engine.story import EXECUTING, REQUEUED, UNDO, Line, after, existing, told

TWO_STEPS: tuple[Line, ...] = (
    *EXECUTING,
    ("step.started@5", UNDO),
    "step.completed@5",
    "input.recorded@5",
)
SAVED = (*TWO_STEPS, "checkpoint.saved@5")
FROM_C4 = {"id": "c-5", "step": 2, "version": 1, "conflict": False}


def restart(**changed: Any) -> Line:
    return ("run.requeued@5", {"death": False, "checkpoint": {**FROM_C4, **changed}})


def history(*lines: Line) -> RunHistory:
    return RunHistory.of(told(*lines))


@pytest.mark.parametrize(
    "field, value",
    [
        *product(["step", "version", "bytes"], [None, -1, "1", True, 1.5, 2**53]),
        *product(["checkpoint", "sha256"], [None, 7]),
        *product(["restorable"], [None, 1, "true"]),
    ],
)
def test_a_checkpoint_with_a_field_that_is_none_is_void(field: str, value: Any) -> None:
    folded = after(existing(*TWO_STEPS), ("checkpoint.saved@5", {field: value}))

    assert isinstance(folded, Void)
    assert field in folded.reason


def test_a_checkpoint_over_an_open_step_is_void() -> None:
    folded = after(existing(*EXECUTING, "step.started@5"), "checkpoint.saved@5")

    assert isinstance(folded, Void)
    assert "step 0 has no recorded end" in folded.reason


def test_a_checkpoint_takes_no_index() -> None:
    state = existing(*SAVED)

    assert (state.steps, state.owed, state.open_steps) == (2, (0,), ())
    assert existing(*SAVED, "input.recorded@5").steps == 3


def test_a_checkpoint_may_be_told_late_by_a_replay() -> None:
    assert existing(*TWO_STEPS, ("checkpoint.saved@5", {"step": 1})).steps == 2


def test_a_checkpoint_bridges_a_hole_before_it() -> None:
    state = existing(*EXECUTING, ("checkpoint.saved@5", {"step": 7}), "input.recorded@5")

    assert state.steps == 8


def test_a_restart_forgets_nothing_that_happened() -> None:
    state = existing(*SAVED, "input.recorded@5", restart())

    assert (state.checkpoint, state.conflict) == ("c-5", False)
    assert (state.steps, state.owed, state.deaths) == (3, (0,), 0)


@pytest.mark.parametrize(
    "changed",
    [{"step": 3}, {"step": None}, {"id": None}, {"conflict": None}, {"conflict": 1}],
)
def test_a_restart_that_cannot_be_is_void(changed: dict[str, Any]) -> None:
    assert isinstance(after(existing(*SAVED), restart(**changed)), Void)


def test_a_restart_from_what_is_no_object_is_void() -> None:
    assert isinstance(after(existing(*SAVED), ("run.requeued@5", {"checkpoint": "c-5"})), Void)


def test_a_requeue_without_a_checkpoint_goes_on_from_where_the_last_attempt_began() -> None:
    again = (*SAVED, restart(conflict=True), "run.started@6", "run.requeued@6")

    state = existing(*again)

    assert (state.checkpoint, state.conflict, state.deaths) == ("c-5", True, 1)
    state = existing(*again, "run.started@7", ("run.requeued@7", {"checkpoint": None}))
    assert state.checkpoint == "c-5"


def test_a_conflict_is_never_forgotten() -> None:
    further = ("run.requeued@6", {"checkpoint": {**FROM_C4, "id": "c-9", "conflict": False}})

    state = existing(*SAVED, restart(conflict=True), "run.started@6", further)

    assert (state.checkpoint, state.conflict) == ("c-9", True)


def test_a_history_knows_its_checkpoints_and_the_one_it_goes_on_from() -> None:
    read = history(*SAVED, "checkpoint.saved@5", restart(), "run.started@6")

    assert [(one.id, one.step, one.seq) for one in read.checkpoints] == [
        ("c-5", 2, 6),
        ("c-6", 2, 7),
    ]
    assert read.base == read.checkpoints[0]
    assert history(*SAVED).base is None
    assert history(*TWO_STEPS, restart()).base is None  # its event is missing


def test_the_best_checkpoint_is_the_furthest_then_the_latest() -> None:
    read = history(
        *EXECUTING,
        "checkpoint.saved@5",
        "input.recorded@5",
        ("checkpoint.saved@5", {"checkpoint": "far"}),
        ("checkpoint.saved@5", {"checkpoint": "late"}),
        ("checkpoint.saved@5", {"checkpoint": "told late", "step": 0}),
        ("checkpoint.saved@5", {"checkpoint": "a mark", "restorable": False}),
    )

    assert [one.id for one in read.restarts()] == ["late", "far", "told late", "c-2"]


def test_a_checkpoint_of_another_version_is_not_offered() -> None:
    read = history(*SAVED, ("checkpoint.saved@5", {"version": 2, "step": 1}))

    assert [one.version for one in read.restarts()] == [2]
    assert [one.id for one in read.restarts(1)] == ["c-5"]
    assert read.restarts(3) == ()


@pytest.mark.parametrize(
    "settled_by, offered",
    [
        ({}, []),
        ({"in_doubt": "park"}, []),
        ({"resolve": True}, ["c-5"]),
        ({"retry_in_doubt": True}, ["c-5"]),
    ],
)
def test_a_step_in_doubt_must_be_one_that_a_replay_could_settle(
    settled_by: dict[str, Any], offered: list[str]
) -> None:
    read = history(*SAVED, ("step.started@5", settled_by))

    assert [one.id for one in read.restarts()] == offered


def test_a_state_from_behind_a_step_in_doubt_is_never_offered() -> None:
    read = history(*SAVED, ("step.started@5", {"resolve": True}))

    behind = tuple(replace(one, step=3) for one in read.checkpoints)

    assert replace(read, checkpoints=behind).restarts() == ()


def test_a_hole_before_a_checkpoint_is_bridged_and_one_behind_it_is_not() -> None:
    """Of every single event that may be missing, only those before the checkpoint may be passed over."""
    events = told(
        *SAVED, "run.verifying@5", "input.recorded@5", "checkpoint.saved@5", "input.recorded@5"
    )
    for missing in range(2, len(events) - 1):  # of the last one nobody could know
        read = RunHistory.of(events[:missing] + events[missing + 1 :])
        assert not read.complete
        for one in read.restarts():
            assert one.seq >= missing + 1, "a checkpoint before a hole is believed"
        if events[missing].type == "run.verifying":
            assert [one.seq for one in read.restarts()] == [9]


def test_a_hole_is_seen_at_a_checkpoint_that_comes_just_behind_it() -> None:
    read = history(*EXECUTING, ("checkpoint.saved@5", {"n": 9, "step": 4}))

    assert not read.complete
    assert [one.step for one in read.restarts()] == [4]


def test_a_restart_leaves_every_other_field_of_a_requeued_run() -> None:
    def plain(state: RunState) -> dict[str, Any]:
        fields = {name: getattr(state, name) for name in RunState.__slots__}
        return {name: fields[name] for name in fields if name not in ("checkpoint", "conflict")}

    with_one = existing(*SAVED, restart(conflict=True))
    without = existing(*SAVED, ("run.requeued@5", {"death": False}))

    assert plain(with_one) == plain(without)
    assert (without.checkpoint, without.conflict) == (None, False)
    assert existing(*REQUEUED).checkpoint is None
