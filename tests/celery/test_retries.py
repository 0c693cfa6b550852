"""Retries of a run, and a step's wait for its next try, in real workers that are killed and stopped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from celery_commander.engine import State
from tests.celery.conftest import Deployment
from tests.kit import CrashPoint, wait_until

pytestmark = [pytest.mark.celery, pytest.mark.crash]

KILLS: list[tuple[str, str, int, Any]] = [
    ("redis", "step.failed", 1, "after"),
    ("redis", "run.paused", 1, "before"),
    ("rabbitmq", "run.paused", 1, "after"),
    ("redis", "step.failed", 2, "after"),
    ("rabbitmq", "run.paused", 2, "before"),
    ("redis", "run.paused", 2, "after"),
]


@pytest.mark.parametrize("broker, event, nth, when", KILLS)
def test_a_retry_tries_the_failed_step_again_and_a_kill_around_it_repeats_nothing(
    deploy: Callable[..., Deployment],
    broker: str,
    event: str,
    nth: int,
    when: Any,
    request: pytest.FixtureRequest,
) -> None:
    deployment = deploy(request.getfixturevalue(f"{broker}_url"))
    point = CrashPoint(event, deployment.directory, nth=nth, when=when)
    worker = deployment.worker(concurrency=1, env=point.environment())

    run_id = deployment.send("flow_flaky", "ann")

    (state,) = deployment.wait_ended(run_id)
    assert point.fired
    assert worker.running
    assert state.state is State.COMMITTED
    assert deployment.witness.count("begin", "two", "ann") == 3
    assert deployment.witness.count("begin", "two", "ann", f"{run_id}:1") == 3
    assert (deployment.did("ann")[0], deployment.did("ann")[2]) == (1, 1)
    assert deployment.wait_result(run_id).get(timeout=5) == ["one of ann", "two", "three of ann"]


def test_a_warm_stop_does_not_wait_for_a_step_that_waits_for_its_next_try(
    deploy: Callable[..., Deployment], redis_url: str
) -> None:
    deployment = deploy(redis_url)
    first = deployment.worker("w1", concurrency=1)
    run_id = deployment.send("flow_patient", "ann")
    wait_until(lambda: "step.try_failed" in deployment.types(run_id), what="the first try")

    first.stop_warm()

    assert not first.running
    assert deployment.types(run_id)[-1] == "run.requeued"
    state = deployment.state(run_id)
    assert (state.state, state.deaths) == (State.PENDING, 0)
    second = deployment.worker("w2", concurrency=1)
    wait_until(lambda: deployment.state(run_id).attempt == 2, what="a second attempt")
    second.stop_warm()
    assert deployment.witness.count("begin", "one", "ann") == 1  # its next try is not due yet
