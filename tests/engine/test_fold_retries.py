"""A retry that what was raised at the last index has brought about takes that index back, and no other does."""

from __future__ import annotations

from typing import Any

import pytest

from celery_commander.engine.fold import RunState, State, Void
from celery_commander.engine.history import RunHistory
from tests.engine.story import EXECUTING, UNDO, Line, after, existing, told

FAILED = (*EXECUTING, ("step.started@5", UNDO), ("step.failed@5", {"owed": True}))
REFUSED = (*EXECUTING, ("input.recorded@5", {"raised": True}))
SAVED = ("checkpoint.saved@5", {"step": 0})


def retry(again: Any, kind: str = "retry") -> Line:
    return ("run.paused@5", {"kind": kind, "again": again})


@pytest.mark.parametrize("lines", [FAILED, REFUSED, (*FAILED, "run.requeued@5", "run.started@6")])
def test_the_last_index_is_remembered_while_what_it_raised_is_the_last_that_is_known(
    lines: tuple[Line, ...],
) -> None:
    assert existing(*lines).raised == 0


@pytest.mark.parametrize(
    "line",
    [
        "step.started@5",
        "input.recorded@5",
        "checkpoint.saved@5",
        ("step.started@4", {"step": 1}),  # void, and whoever wrote it may have gone on
    ],
)
def test_whatever_follows_makes_it_a_record_for_good(line: Line) -> None:
    assert existing(*FAILED, line).raised is None
    assert existing(*EXECUTING, "step.started@5", "step.completed@5").raised is None
    assert existing(*EXECUTING, "input.recorded@5").raised is None


def test_a_checkpoint_before_it_that_is_told_late_changes_nothing() -> None:
    assert existing(*FAILED, SAVED).raised == 0


def test_a_retry_takes_the_index_back_and_what_may_have_been_done_stays_owed() -> None:
    run = existing(*FAILED, retry(0))
    assert (run.state, run.steps, run.owed, run.raised) == (State.PAUSED, 0, (0,), None)
    again = existing(*FAILED, retry(0), "run.started@6", ("step.started@6", UNDO))
    assert (again.steps, again.open_steps, again.owed) == (1, (0,), (0,))
    aborted = existing(*FAILED, retry(0), "run.fenced@6", "run.aborted@6")
    assert (aborted.state, aborted.owed) == (State.ABORTED, (0,))


@pytest.mark.parametrize(
    "lines, line",
    [
        (FAILED, retry(1)),
        (FAILED, retry(0, "timer")),
        (FAILED, retry("0")),
        (FAILED, retry(True)),
        ((*FAILED, "step.started@5"), retry(0)),
        ((*FAILED, "step.started@5", "step.completed@5"), retry(0)),
        ((*FAILED, ("step.started@4", {"step": 1})), retry(0)),
        ((*EXECUTING, "step.started@5", "step.completed@5"), retry(0)),
        ((*EXECUTING, "step.started@5"), retry(0)),
        ((*EXECUTING, *["step.started@5"] * 2, ("step.failed@5", {"step": 1})), retry(1)),
        ((*FAILED, retry(0)), retry(0)),
        (EXECUTING, retry(0)),
    ],
)
def test_nothing_else_is_taken_back(lines: tuple[Line, ...], line: Line) -> None:
    assert isinstance(after(existing(*lines), line), Void)


def test_a_retry_that_takes_nothing_back_leaves_the_record() -> None:
    run = existing(*FAILED, retry(None))
    assert (run.steps, run.raised) == (1, 0)


def test_a_step_that_is_taken_back_waits_for_its_next_try_and_an_input_is_gone() -> None:
    read = RunHistory.of(told(*FAILED, retry(0)))
    entry = read.entries[0]
    assert (entry.status, entry.tries, entry.acted, entry.undo) == (
        "started",
        0,
        True,
        "shop.refund",
    )
    assert entry.due is not None
    assert read.in_doubt == ()
    assert read.owed == (entry,)
    assert RunHistory.of(told(*REFUSED, retry(0))).entries == {}


def test_a_try_that_is_known_not_to_have_acted_owes_nothing_until_the_next_begins() -> None:
    waits = (*EXECUTING, ("step.started@5", UNDO), ("step.try_failed@5", {"acted": False}))
    assert existing(*waits).owed == ()
    assert existing(*waits, ("step.started@5", {"step": 0, **UNDO})).owed == (0,)
    acted = (*EXECUTING, ("step.started@5", UNDO), "step.try_failed@5")
    assert existing(*acted).owed == (0,)


def test_an_owner_may_say_a_retry_only_of_its_run() -> None:
    assert isinstance(
        after(existing(*FAILED), ("run.paused@6", {"kind": "retry", "again": 0})), Void
    )
    assert isinstance(after(existing(*FAILED), retry(0)), RunState)
