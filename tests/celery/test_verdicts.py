"""Ends that somebody decides: limits, revocation, changed code, a person. Each run gets one verdict."""

from __future__ import annotations

import pytest

from celery_commander.engine import State
from tests.celery.conftest import Deployment
from tests.kit import wait_until

pytestmark = [pytest.mark.celery, pytest.mark.crash]


def undone(deployment: Deployment) -> list[list[str]]:
    return [line.split()[1:] for line in deployment.witness.lines() if line.startswith("undid")]


@pytest.mark.parametrize("limit", ["soft_time_limit", "time_limit"])
def test_a_limit_that_falls_into_a_step_leaves_it_in_doubt_and_undoes_the_run(
    deployment: Deployment, limit: str
) -> None:
    deployment.witness.hold("two")
    worker = deployment.worker(concurrency=1)

    run_id = deployment.send("flow", "ann", **{limit: 1})

    (state,) = deployment.wait_ended(run_id)
    assert state.state is State.COMPENSATED
    assert undone(deployment) == [["two", "ann", "in_doubt=True"], ["one", "ann", "in_doubt=False"]]
    assert deployment.wait_result(run_id).state == "FAILURE"
    assert deployment.types(run_id).count("run.aborted") == 1
    assert (limit == "soft_time_limit") is (state.cancel_requested is None)
    assert worker.running


def test_a_hard_limit_gives_the_key_back_to_a_run_that_names_the_dead_one(
    deployment: Deployment,
) -> None:
    """See steinitzu/celery-singleton#40: after a hard limit the lock stayed, and nothing could be sent."""
    gate = deployment.witness.hold("two")
    deployment.worker(concurrency=1)
    first = deployment.send("flow", "ann", key="order-17", time_limit=1)
    assert deployment.send("flow", "ann", key="order-17") == first
    (state,) = deployment.wait_ended(first)
    assert state.state is State.COMPENSATED
    gate.unlink()

    second = deployment.send("flow", "ann", key="order-17")

    assert second != first
    (state,) = deployment.wait_ended(second)
    assert (state.state, state.key) == (State.COMMITTED, "order-17")
    assert deployment.app.commander.history(second).created["previous"] == first
    assert deployment.send("flow", "ann", key="order-17") == second
    assert deployment.witness.count("begin", "one") == 2


def test_a_revoked_run_is_undone_and_told_once(deployment: Deployment) -> None:
    deployment.witness.hold("two")
    deployment.worker(concurrency=1)
    run_id = deployment.send("flow", "ann")
    deployment.wait_mark("begin", "two", "ann")

    deployment.app.control.revoke(run_id, terminate=True, signal="SIGKILL")

    (state,) = deployment.wait_ended(run_id)
    assert (state.state, state.cancel_requested) == (State.COMPENSATED, "terminated")
    assert [line[0] for line in undone(deployment)] == ["two", "one"]
    assert deployment.app.AsyncResult(run_id).state == "REVOKED"


def test_changed_code_parks_the_run_before_any_effect(deployment: Deployment) -> None:
    """See temporalio/sdk-python issue 1109: a changed program shifted what was recorded."""
    gate = deployment.witness.hold("two")
    first = deployment.worker("w1", concurrency=1)
    run_id = deployment.send("flow_changed", "ann")
    deployment.wait_mark("begin", "two", "ann")
    first.kill_group()
    gate.unlink()

    second = deployment.worker("w2", env={"TEST_STEPS": "zero one two three"})
    wait_until(lambda: deployment.state(run_id).state is State.PAUSED, what="the pause")

    assert deployment.state(run_id).paused_kind == "version"
    second.wait_log("recorded step define_tasks.<locals>.act_again, found .* with other arguments")
    assert deployment.witness.count("begin", "zero") == 0
    assert undone(deployment) == []


def test_a_step_that_asks_for_a_person_parks_its_run(deployment: Deployment) -> None:
    deployment.witness.hold("one")
    worker = deployment.worker(concurrency=1)
    run_id = deployment.send("flow_parked", "ann")
    deployment.wait_mark("begin", "one", "ann")

    worker.kill_child()
    wait_until(lambda: deployment.state(run_id).state is State.PAUSED, what="the pause")

    assert deployment.state(run_id).paused_kind == "doubt"
    assert undone(deployment) == []


def test_a_forced_abort_undoes_what_nobody_owns(deployment: Deployment) -> None:
    deployment.witness.hold("two")
    worker = deployment.worker("w1", concurrency=1)
    run_id = deployment.send("flow_safe", "ann")
    started = deployment.send("flow", "bob")
    deployment.wait_mark("begin", "two", "ann")
    worker.kill_group()

    result = deployment.app.commander.bootstrapper.bootstrap(force_abort=True)
    deployment.worker("w2")

    assert (result.scanned, result.aborted, result.recovered) == (2, 2, 0)
    states = deployment.wait_ended(run_id, started)
    assert [state.state for state in states] == [State.COMPENSATED] * 2
    assert "forced" in str(deployment.wait_result(run_id).result)
    assert deployment.witness.count("begin", "one", "bob") == 0
