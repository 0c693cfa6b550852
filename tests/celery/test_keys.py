"""Business keys over real brokers: many callers, one run; a caller that is killed loses nothing; beat's entries."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from celery_commander.engine import State
from tests.celery.conftest import Deployment
from tests.engine.forked import Forked, together
from tests.kit import CrashPoint, arm, wait_until

pytestmark = [pytest.mark.celery, pytest.mark.crash]


@pytest.mark.parametrize("broker", ["redis", "rabbitmq"])
def test_twenty_processes_that_ask_at_once_get_one_run_and_its_result(
    deploy: Callable[..., Deployment], broker: str, request: pytest.FixtureRequest
) -> None:
    deployment = deploy(request.getfixturevalue(f"{broker}_url"))
    deployment.app.commander.close()

    ids = together(20, lambda _: deployment.send("flow", "ann", key="order-17"))

    (run_id,) = set(ids)
    deployment.worker()
    deployment.worker("w2")
    assert deployment.wait_result(run_id).get(timeout=5)[0] == "one of ann"
    (state,) = deployment.wait_ended(run_id)
    assert (state.state, state.key) == (State.COMMITTED, "order-17")
    types = deployment.types(run_id)
    assert (types.count("task.sent"), types.count("run.started")) == (1, 1)
    assert "task.rejected" not in types  # no second message came
    assert deployment.did("ann") == [1, 1, 1]


def test_a_caller_that_is_killed_before_it_publishes_leaves_a_run_that_is_published_for_it(
    deploy: Callable[..., Deployment], redis_url: str
) -> None:
    deployment = deploy(redis_url, pending_after_seconds=1)
    deployment.app.commander.close()
    point = CrashPoint("run.created", deployment.directory)

    def dies(_: Forked) -> str:
        os.environ.update(point.environment())
        arm()
        return deployment.send("flow", "ann", key="order-17")

    with Forked(dies) as process, pytest.raises(EOFError):
        process.hear()
    run_id = deployment.send("flow", "ann", key="order-17")
    assert "task.sent" not in deployment.types(run_id)

    deployment.worker()

    (state,) = deployment.wait_ended(run_id)
    assert state.state is State.COMMITTED
    assert deployment.did("ann") == [1, 1, 1]
    assert deployment.send("flow", "ann", key="order-17") == run_id


def test_an_entry_of_beat_with_a_key_makes_one_run_however_often_it_is_due(
    deploy: Callable[..., Deployment], redis_url: str
) -> None:
    deployment = deploy(redis_url)
    app = deployment.app
    app.conf.beat_schedule = {
        "migrate": {
            "task": "flow",
            "schedule": 0.01,
            "args": ("ann",),
            "options": {"key": "migration-3"},
        }
    }
    beat = app.Beat(schedule=str(deployment.directory / "beat"), quiet=True)
    scheduler = beat.Service(app, scheduler_cls=beat.scheduler_cls).get_scheduler()
    entry = scheduler.schedule["migrate"]
    ids = {scheduler.apply_async(entry, advance=False).id for _ in range(3)}
    (run_id,) = ids
    deployment.worker()
    (state,) = deployment.wait_ended(run_id)
    assert state.state is State.COMMITTED
    assert scheduler.apply_async(entry, advance=False).id == run_id
    assert deployment.types(run_id).count("task.sent") == 1
    wait_until(lambda: deployment.did("ann") == [1, 1, 1], what="the steps")
