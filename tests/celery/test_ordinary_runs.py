"""What a durable task does when nothing goes wrong: what any Celery task does, and a history besides."""

from __future__ import annotations

import pytest
from celery import chain

from celery_commander.engine import State, UnrecordableValue
from tests.celery.conftest import Deployment

pytestmark = pytest.mark.celery


def test_a_run_is_committed_and_its_result_is_stored(deployment: Deployment) -> None:
    deployment.worker()

    run_id = deployment.send("flow", "ann")

    assert deployment.wait_result(run_id).get(timeout=5) == [
        "one of ann",
        "two of ann",
        "three of ann",
    ]
    (state,) = deployment.wait_ended(run_id)
    assert (state.state, state.delivered, state.attempt) == (State.COMMITTED, True, 1)
    steps = ["step.started", "step.completed"] * 3
    recorded = [kind for kind in deployment.types(run_id) if not kind.startswith("task.")]
    assert recorded == ["run.created", "run.started", *steps, "run.committed", "run.delivered"]


def test_a_failed_body_is_undone_from_the_last_step_to_the_first(deployment: Deployment) -> None:
    deployment.worker()

    run_id = deployment.send("flow_refused", "ann")

    (state,) = deployment.wait_ended(run_id)
    assert state.state is State.COMPENSATED
    result = deployment.wait_result(run_id)
    assert result.state == "FAILURE"
    assert "three" in str(result.result)
    undone = [line.split()[1] for line in deployment.witness.lines() if line.startswith("undid")]
    assert undone == ["two", "one"]  # three said that it had not happened


def test_a_failing_undo_is_tried_again_and_its_step_is_not_skipped(deployment: Deployment) -> None:
    deployment.worker()
    (deployment.directory / "fail.two").write_text("2")

    run_id = deployment.send("flow_refused", "ann")

    (state,) = deployment.wait_ended(run_id)
    assert state.state is State.COMPENSATED
    undone = [line.split()[1] for line in deployment.witness.lines() if line.startswith("undid")]
    assert undone == ["two", "one"]
    assert deployment.witness.count("undoing", "two") == 3
    assert deployment.types(run_id).count("compensation.failed") == 2


def test_an_undo_that_fails_for_good_parks_the_run_for_a_person(deployment: Deployment) -> None:
    deployment.worker(env={"COMMANDER_UNDO_RETRIES": "1"})
    (deployment.directory / "fail.two").write_text("99")

    run_id = deployment.send("flow_refused", "ann")

    (state,) = deployment.wait_ended(run_id)
    assert state.state is State.STUCK
    assert state.owed == (0, 1)
    assert deployment.witness.count("undoing", "one") == 0


def test_a_retry_goes_on_with_the_same_run_and_repeats_no_step(deployment: Deployment) -> None:
    deployment.worker()

    run_id = deployment.send("flow_retry", "ann")

    (state,) = deployment.wait_ended(run_id)
    assert (state.state, state.attempt) == (State.COMMITTED, 3)
    assert deployment.witness.count("did", "one", "ann") == 1
    assert deployment.wait_result(run_id).get(timeout=5) == ["one of ann", "two of ann"]


def test_a_body_that_exits_is_aborted_and_its_process_lives_on(deployment: Deployment) -> None:
    worker = deployment.worker(concurrency=1)
    children = worker.pool()

    run_id = deployment.send("flow_exit", "ann")

    (state,) = deployment.wait_ended(run_id)
    assert state.state is State.COMPENSATED
    assert deployment.wait_result(run_id).state == "FAILURE"
    assert worker.pool() == children
    assert "sys.exit" in str(deployment.wait_result(run_id).result)


def test_a_chain_of_durable_and_plain_tasks_goes_on(deployment: Deployment) -> None:
    deployment.worker()
    tasks = deployment.app.tasks

    result = chain(tasks["tiny"].s(7), tasks["plain"].s(), tasks["tiny"].s()).apply_async()

    assert deployment.wait_result(result.id).get(timeout=5) == 7
    assert deployment.witness.count("plain", 7) == 1


def test_a_result_that_cannot_be_recorded_aborts_the_run_with_its_place(
    deployment: Deployment,
) -> None:
    deployment.worker()

    run_id = deployment.send("unrecordable", "ann")

    (state,) = deployment.wait_ended(run_id)
    assert state.state is State.COMPENSATED
    assert deployment.witness.count("undid", "one") == 1
    assert "result (object)" in str(deployment.wait_result(run_id).result)


def test_an_argument_that_cannot_travel_is_refused_at_once_and_nothing_is_sent(
    deployment: Deployment,
) -> None:
    with pytest.raises(UnrecordableValue, match="args"):
        deployment.app.tasks["flow"].delay(object())

    assert list(deployment.app.commander.engine.read_from(None))[1:] == []
    assert list((deployment.directory / "messages").iterdir()) == []


def test_recorded_inputs_are_what_the_body_saw(deployment: Deployment) -> None:
    deployment.worker()

    run_id = deployment.send("flow_inputs", "ann")

    seen = deployment.wait_result(run_id).get(timeout=5)
    assert deployment.witness.count("saw", "ann", "/".join(seen).replace(" ", "T")) == 1
    assert deployment.types(run_id).count("input.recorded") == 5


def test_a_body_that_goes_on_after_a_retry_does_nothing_more(deployment: Deployment) -> None:
    deployment.worker()

    run_id = deployment.send("flow_goes_on", "ann")

    (state,) = deployment.wait_ended(run_id)
    assert (state.state, state.attempt) == (State.COMMITTED, 2)
    assert deployment.witness.count("did", "one", "ann") == 1
    assert deployment.witness.count("did", "two", "ann") == 1


def test_a_message_sent_outside_a_step_is_named_in_the_workers_log(deployment: Deployment) -> None:
    worker = deployment.worker()

    run_id = deployment.send("flow_sends", "ann")

    deployment.wait_ended(run_id)
    worker.wait_log(f"Run {run_id} sent plain outside a step")
