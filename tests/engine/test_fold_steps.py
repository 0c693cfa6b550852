"""Steps and inputs, doubt, what is owed, and which claims died in vain."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from celery_commander.engine.fold import RunState, State, Void
from tests.engine.story import (
    ABORTED,
    COMMITTED,
    COMPENSATED,
    EXECUTING,
    OWING,
    PAUSED,
    PENDING,
    REQUEUED,
    SOON,
    STEP_OPEN,
    STUCK,
    UNDO,
    Line,
    after,
    existing,
)

# --- steps, inputs, doubt -------------------------------------------------------------------------


def voided(state: RunState, line: Line) -> Void:
    folded = after(state, line)
    assert isinstance(folded, Void)
    return folded


def test_steps_and_inputs_share_one_counter_without_holes():
    run = existing(*EXECUTING, "input.recorded@5", "step.started@5", "step.completed@5")

    assert run.steps == 2
    for type in ("input.recorded@5", "step.started@5"):
        assert isinstance(after(run, (type, {"step": 2})), RunState)
        assert isinstance(after(run, (type, {"step": 3})), Void)
        assert isinstance(after(run, (type, {"step": 1})), Void)


def test_an_open_step_may_be_started_again_and_an_ended_one_may_not():
    taken = existing(*STEP_OPEN, "run.requeued@5", "run.started@6")
    again = after(taken, ("step.started@6", {"step": 0}))
    assert isinstance(again, RunState), "it is not void"
    assert (again.open_steps, again.owed, again.steps) == ((0,), (0,), 1)

    ended = existing(*STEP_OPEN, "step.completed@5")
    assert after(ended, ("step.started@5", {"step": 0})) == Void(
        "index 0 has a recorded end", ended
    )


def test_a_step_ends_once():
    for end in ("step.completed@5", "step.failed@5"):
        run = existing(*STEP_OPEN, end)
        assert run.open_steps == ()
        assert isinstance(after(run, ("step.completed@5", {"step": 0})), Void)
        assert isinstance(after(run, ("step.failed@5", {"step": 0})), Void)


def test_an_open_step_keeps_the_run_from_committing():
    assert after(existing(*STEP_OPEN), "run.committed@5") == Void(
        "step 0 has no recorded end", existing(*STEP_OPEN)
    )


def test_a_soft_limit_may_leave_one_step_open_while_the_next_one_runs():
    run = existing(*STEP_OPEN, "step.started@5", ("step.completed@5", {"step": 1}))

    assert (run.open_steps, run.steps) == ((0,), 2)
    assert existing(*STEP_OPEN, "step.started@5", "step.completed@5").open_steps == (1,)


def test_a_voided_start_leaves_its_step_in_doubt_and_owed():
    run = existing(*EXECUTING, "run.fenced@6")
    folded = after(run, ("step.started@5", UNDO))

    assert isinstance(folded, Void)
    assert folded.state is not None
    assert (folded.state.open_steps, folded.state.owed) == ((0,), (0,))
    assert folded.state.last_seq == 50
    assert folded.state.changed_at == run.changed_at
    assert (folded.state.n, folded.state.steps) == (run.n, 0)


@pytest.mark.parametrize("lines", [PENDING, REQUEUED, PAUSED, ABORTED, STUCK])
def test_a_voided_start_is_in_doubt_in_every_state_that_is_not_over(lines):
    run = existing(*lines)

    folded = after(run, ("step.started@3", UNDO))

    assert isinstance(folded, Void)
    assert folded.state is not None
    assert run.steps in folded.state.open_steps
    assert run.steps in folded.state.owed


@pytest.mark.parametrize("lines", [COMMITTED, COMPENSATED])
def test_a_voided_start_changes_nothing_of_a_finished_run(lines):
    run = existing(*lines)

    assert voided(run, ("step.started@3", UNDO)).state is run


def test_a_voided_start_of_an_ended_step_changes_nothing():
    run = existing(*STEP_OPEN, "step.completed@5", "run.fenced@6")

    assert voided(run, ("step.started@5", {"step": 0, **UNDO})).state is run


def test_a_voided_start_of_an_open_step_makes_the_undo_owed_that_it_names():
    run = existing(*EXECUTING, "step.started@5", "run.fenced@6")
    assert (run.open_steps, run.owed) == ((0,), ())

    state = voided(run, ("step.started@5", {"step": 0, **UNDO})).state

    assert state is not None
    assert (state.open_steps, state.owed, state.last_seq) == ((0,), (0,), 50)


def test_a_voided_start_without_a_readable_index_changes_nothing():
    run = existing(*EXECUTING)

    for step in (None, True, -1, "0", 2**53):
        assert voided(run, ("step.started@4", {"step": step})).state is run


def test_a_step_in_doubt_by_a_voided_start_can_be_repeated_or_settled():
    doubted = (*EXECUTING, "run.fenced@6", ("step.started@5", UNDO), "run.requeued@6")
    taken = (*doubted, "run.started@7")

    settled = existing(*taken, ("step.completed@7", {"step": 0}))
    assert (settled.open_steps, settled.owed, settled.steps) == ((), (0,), 1)
    repeated = existing(*taken, ("step.started@7", {"step": 0}), "step.completed@7")
    assert (repeated.open_steps, repeated.owed, repeated.steps) == ((), (0,), 1)
    assert isinstance(after(existing(*taken), ("input.recorded@7", {"step": 0})), Void)


def test_a_step_in_doubt_behind_the_counter_cannot_be_settled_yet():
    run = existing(*EXECUTING, ("step.started@4", {"step": 3}))

    assert run.open_steps == (3,)
    assert isinstance(after(run, ("step.completed@5", {"step": 3})), Void)


# --- what is owed ---------------------------------------------------------------------------------


def test_only_steps_with_an_undo_are_owed():
    run = existing(*STEP_OPEN, "step.completed@5", "step.started@5", "step.completed@5")

    assert run.owed == (0,)


def test_a_failed_step_is_owed_unless_its_effect_is_excluded():
    assert existing(*STEP_OPEN, ("step.failed@5", {"owed": True})).owed == (0,)
    assert existing(*STEP_OPEN, ("step.failed@5", {"owed": False})).owed == ()


def test_a_step_in_doubt_with_an_undo_is_owed():
    assert existing(*STEP_OPEN, "run.fenced@6", "run.aborted@6").owed == (0,)


def test_a_committed_run_owes_nothing():
    assert existing(*STEP_OPEN, "step.completed@5", "run.committed@5").owed == ()


def test_undos_are_taken_off_one_by_one_and_then_the_run_is_compensated():
    three = [line for _ in range(3) for line in (("step.started@5", UNDO), "step.completed@5")]
    run = existing(*EXECUTING, *three, "run.aborted@5")
    assert run.owed == (0, 1, 2)
    assert isinstance(after(run, "run.compensated@5"), Void)

    undone = existing(
        *EXECUTING, *three, "run.aborted@5", *["compensation.completed@5"] * 3, "run.compensated@5"
    )
    assert (undone.state, undone.owed) == (State.COMPENSATED, ())


def test_an_undo_is_completed_once():
    run = existing(*OWING, "compensation.started@5", "compensation.completed@5")

    assert isinstance(after(run, ("compensation.completed@5", {"step": 0})), Void)


def test_a_failed_undo_stays_owed():
    assert existing(*OWING, "compensation.started@5", "compensation.failed@5").owed == (0,)


def test_a_newer_generation_voids_the_links_of_the_older_one():
    run = existing(*STUCK, "run.aborted@5")
    assert (run.state, run.generation, run.owed) == (State.ABORTED, 2, (0,))

    for type in (
        "compensation.started@5",
        "compensation.completed@5",
        "compensation.failed@5",
        "run.compensated@5",
        "run.stuck@5",
    ):
        folded = after(run, (type, {"generation": 1}))
        assert isinstance(folded, Void), type
        assert "generation 1" in folded.reason
    assert isinstance(after(run, "compensation.completed@5"), RunState)


def test_a_stuck_run_is_rolled_back_again_by_a_newer_generation_only():
    run = existing(*STUCK)

    assert isinstance(after(run, ("run.aborted@5", {"generation": 1})), Void)
    assert isinstance(after(run, ("run.aborted@5", {"generation": 3})), RunState)


def test_the_first_rollback_may_have_generation_zero():
    assert existing(*EXECUTING, ("run.aborted@5", {"generation": 0})).state is State.ABORTED


# --- deaths ---------------------------------------------------------------------------------------


def lives(count: int, *between: Line) -> RunState:
    lines: list[Line] = ["run.created"]
    for token in range(1, count + 1):
        lines.append(f"run.started@{token}")
        lines.extend(
            f"{line}@{token}" if isinstance(line, str) else (f"{line[0]}@{token}", line[1])
            for line in between
        )
        lines.append((f"run.requeued@{token}", {"death": True}))
    return existing(*lines)


def test_claims_that_died_without_progress_are_counted():
    assert lives(3).deaths == 3


@pytest.mark.parametrize(
    "progress",
    [
        ("input.recorded",),
        ("step.started", "step.completed"),
        ("checkpoint.saved",),
        ("run.paused",),
    ],
)
def test_progress_forgets_the_deaths_before_it(progress):
    assert lives(3, *progress).deaths == 1


def test_a_started_or_failed_step_is_no_progress():
    assert lives(2, ("step.started", {"step": 0})).deaths == 2
    failing = existing(
        *PENDING,
        "run.started@1",
        "run.requeued@1",
        "run.started@2",
        "step.started@2",
        "step.failed@2",
    )
    assert failing.deaths == 1


def test_a_requeue_that_is_no_death_is_not_counted():
    run = existing(*EXECUTING, ("run.requeued@5", {"death": False, "due": SOON}))

    assert (run.state, run.deaths) == (State.PENDING, 0)
    assert run.due_at == datetime(2026, 1, 2, 4, tzinfo=UTC)
