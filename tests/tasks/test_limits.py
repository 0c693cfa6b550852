"""Celery's soft time limit at every place around an append: what is told is what the log says."""

from __future__ import annotations

from typing import Any

import pytest
from celery.exceptions import SoftTimeLimitExceeded

from celery_commander.engine import State
from celery_commander.tasks import current_run, step
from tests.tasks.bench import Bench


@pytest.mark.parametrize("event", ["step.started", "step.completed", "input.recorded"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_limit_that_strikes_around_an_append_never_tells_what_the_log_denies(
    bench: Bench, event: str, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt(bench, event, when, monkeypatch)

    @step(compensate="undo")
    def act(value: int) -> int:
        bench.calls.append(value)
        return value

    def body() -> str:
        try:
            act(1)
            current_run.now()
        except SoftTimeLimitExceeded:
            return "partial"
        return "whole"

    state, _ = bench.run(body)

    told_success = state == "SUCCESS"
    assert told_success is (bench.state() is State.COMMITTED)
    assert bench.history(bench.run_id).complete
    assert not bench.history(bench.run_id).voided


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_limit_that_strikes_around_the_commit_gives_one_verdict(
    bench: Bench, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt(bench, "run.committed", when, monkeypatch)

    def body() -> int:
        return 7

    state, _ = bench.run(body)

    assert state == ("SUCCESS" if when == "after" else "FAILURE")
    assert bench.state() is (State.COMMITTED if when == "after" else State.COMPENSATED)


def interrupt(bench: Bench, event: str, when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise the soft time limit once, right before or right after an append, as its signal handler does."""
    engine = bench.app.commander.engine
    append = type(engine).append
    struck: list[str] = []

    def interrupted(self: Any, event_type: str, *args: Any, **kwargs: Any) -> Any:
        due = event_type == event and not struck
        if due:
            struck.append(event)
        if due and when == "before":
            raise SoftTimeLimitExceeded
        written = append(self, event_type, *args, **kwargs)
        if due:
            raise SoftTimeLimitExceeded
        return written

    monkeypatch.setattr(type(engine), "append", interrupted)
