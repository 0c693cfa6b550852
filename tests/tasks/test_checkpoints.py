"""A body that saves its own state: where it may, what is written, and what is kept."""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable
from typing import Any

import pytest
from celery.exceptions import SoftTimeLimitExceeded

from celery_commander.engine import (
    CheckpointTooLarge,
    UnrecordableValue,
)
from celery_commander.tasks import RunStopped, current_run, step
from celery_commander.tasks.execution import current_execution
from tests.tasks.bench import Bench
from tests.tasks.flow import Flow, at, saves


@step
def noop() -> None:
    pass


# --- outside a run, and at the wrong place --------------------------------------------------------


def test_outside_a_run_nothing_is_saved_and_the_default_is_given() -> None:
    default = {"n": 0}

    assert current_run.restored(default) is default
    current_run.checkpoint(object())


@pytest.mark.parametrize("what", ["checkpoint", "restored"])
def test_a_step_may_not_save_or_begin(bench: Bench, what: str) -> None:
    @step
    def inside() -> None:
        with pytest.raises(RunStopped, match=rf"{what}\(\) was called inside a step"):
            getattr(current_run, what)(1)
        bench.calls.append(what)

    def body() -> None:
        inside()

    assert bench.run(body)[0] == "SUCCESS"
    assert bench.calls == [what]


@pytest.mark.parametrize("what", ["checkpoint", "restored"])
def test_another_thread_may_not_save_or_begin(bench: Bench, what: str) -> None:
    def other() -> None:
        try:
            getattr(current_run, what)(1)
        except RunStopped as error:
            bench.calls.append(str(error))

    def body() -> None:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()

    bench.run(body)
    (told,) = bench.calls
    assert what in told
    assert "thread" in told


@pytest.mark.parametrize("first", ["now", "noop", "checkpoint", "restored"])
def test_restored_is_the_first_call_or_none(bench: Bench, first: str) -> None:
    calls: dict[str, Callable[[], Any]] = {
        "now": current_run.now,
        "noop": noop,
        "checkpoint": lambda: current_run.checkpoint(1),
        "restored": lambda: current_run.restored(1),
    }

    def body() -> str:
        calls[first]()
        with pytest.raises(RunStopped, match="must be the body's first call"):
            current_run.restored(None)
        return "refused"

    assert bench.run(body) == ("SUCCESS", "refused")


@pytest.mark.parametrize("version", [-1, True, "1", 1.0, None, 2**53])
def test_a_version_is_a_whole_number(bench: Bench, version: Any) -> None:
    def body() -> str:
        for call in (current_run.restored, current_run.checkpoint):
            with pytest.raises(ValueError, match="version is a whole number, 0 or more"):
                call(None, version)
        return "refused"

    assert bench.run(body) == ("SUCCESS", "refused")


# --- saving ---------------------------------------------------------------------------------------


def test_a_checkpoint_names_its_content_and_the_place(flow: Flow) -> None:
    flow.start()

    (saved,) = flow.events("checkpoint.saved")
    content = sqlite3.connect(flow.database)
    (stored,) = content.execute("SELECT content FROM checkpoints").fetchone()
    content.close()
    assert stored == b'{"done":["A","B"]}'
    assert saved.payload["bytes"] == len(stored)
    assert (saved.payload["step"], saved.payload["version"]) == (2, 1)
    assert saved.payload["restorable"] is True


def test_a_body_that_does_not_begin_with_restored_only_makes_marks(flow: Flow) -> None:
    flow.begins = lambda default: default
    flow.start()

    assert [e.payload["restorable"] for e in flow.events("checkpoint.saved")] == [False]


def test_a_replay_saves_nothing_again(flow: Flow) -> None:
    flow.save = saves(*range(3))
    flow.start()
    flow.deliver()
    assert len(flow.events("checkpoint.saved")) == 3

    flow.save = saves(*range(4))
    flow.deliver()
    assert len(flow.events("checkpoint.saved")) == 4
    flow.ends = True
    assert flow.deliver() == "SUCCESS"
    assert flow.got == [None] * 4
    assert flow.calls == at("a0 b1 c2")


def test_a_checkpoint_may_come_to_a_body_or_leave_it_without_a_conflict(flow: Flow) -> None:
    flow.save = lambda state: None
    flow.start()
    flow.save = lambda state: current_run.checkpoint(state)
    flow.deliver()
    assert [e.payload["step"] for e in flow.events("checkpoint.saved")] == [2]
    flow.save, flow.ends = lambda state: None, True

    assert flow.deliver() == "SUCCESS"


def test_a_state_that_cannot_be_recorded_ends_the_run_by_its_path(flow: Flow) -> None:
    flow.state = {"a": [object()]}
    flow.bench.task(flow.body(), bind=True)
    flow.bench.run_id = flow.bench.send("flow")

    state, error = flow.bench.deliver(flow.bench.run_id)

    assert state == "FAILURE"
    assert isinstance(error, UnrecordableValue)
    assert "checkpoint['a'][0]" in str(error)


def test_a_state_that_is_too_large_is_an_error_that_a_body_may_catch(flow: Flow) -> None:
    def save(state: Any) -> None:
        with pytest.raises(CheckpointTooLarge, match="raise checkpoint_bytes"):
            current_run.checkpoint("x" * 5_000_000)

    flow.save, flow.ends = save, True

    assert flow.start() == "SUCCESS"
    assert flow.events("checkpoint.saved") == []


def test_a_store_that_is_away_costs_the_checkpoint_and_not_the_run(
    flow: Flow, caplog: pytest.LogCaptureFixture
) -> None:
    flow.database.parent.mkdir(parents=True)
    flow.database.mkdir()  # no database can be there
    flow.ends = True

    assert flow.start() == "SUCCESS"
    assert flow.events("checkpoint.saved") == []
    assert "goes on without a checkpoint at 2" in caplog.text


def test_nothing_is_saved_behind_a_step_in_doubt(bench: Bench) -> None:
    @step
    def cut_short() -> None:
        raise SoftTimeLimitExceeded

    def body() -> None:
        try:
            cut_short()
        except SoftTimeLimitExceeded:
            current_run.checkpoint({"done": "perhaps"})

    assert bench.run(body)[0] == "FAILURE"
    types = [event.type for event in bench.app.commander.engine.history(bench.run_id)]
    assert "checkpoint.saved" not in types
    assert bench.history(bench.run_id).outcome is not None


# --- progress, and what is kept -------------------------------------------------------------------


def test_a_body_that_dies_behind_the_same_checkpoint_again_and_again_is_poison(
    flow: Flow,
) -> None:
    flow.ends = True
    flow.bench.task(flow.body(), bind=True)
    run_id = flow.bench.run_id = flow.bench.send("flow")

    def dies(state: Any) -> None:
        current_run.checkpoint(state)
        executions.append(current_execution.get())
        raise KeyboardInterrupt  # as if its process were being ended

    flow.save = dies
    deaths: list[int] = []
    executions: list[Any] = []
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            flow.deliver()
        executions[-1].append(
            "run.requeued", {"reason": "owner dead", "death": True, "due": None}, wait=True
        )
        executions[-1].release()
        state = flow.bench.history(run_id).state
        assert state is not None
        deaths.append(state.deaths)

    assert deaths == [1, 2, 3]
    assert len(flow.events("checkpoint.saved")) == 1


def test_recovery_drops_what_finished_runs_had_saved(flow: Flow) -> None:
    flow.start()
    commander = flow.bench.app.commander
    commander.bootstrapper.bootstrap()
    assert commander.checkpoints.run_ids() == [flow.bench.run_id]
    flow.ends = True
    flow.deliver()

    commander.bootstrapper.bootstrap()

    assert commander.checkpoints.run_ids() == []


def test_only_the_newest_of_many_checkpoints_are_kept_and_the_one_that_is_gone_on_from(
    flow: Flow, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    flow.start()
    flow.before = ("z",)
    flow.deliver()

    def begins(default: Any) -> Any:
        state = current_run.restored(default)
        for i in range(8):
            current_run.checkpoint({"i": i})
        return state

    flow.begins = begins
    flow.deliver()
    connection = sqlite3.connect(flow.database)
    kept = [bytes(row[0]) for row in connection.execute("SELECT content FROM checkpoints")]
    connection.close()

    assert sorted(kept) == [b'{"done":["A","B"]}', b'{"i":5}', b'{"i":6}', b'{"i":7}']
    flow.ends = True
    assert flow.deliver() == "SUCCESS"
    assert len(flow.events("checkpoint.saved")) == 9
