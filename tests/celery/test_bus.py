"""The bus beside real workers: they tell and hear it, and a broker that goes away holds no recovery up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from celery_commander.engine import State
from celery_commander.tasks import BusMessage
from tests.celery.conftest import Deployment
from tests.kit import ServiceMissing, kill, wait_until
from tests.kit.outage import StoppableService, stoppable_service

pytestmark = [pytest.mark.celery, pytest.mark.crash]

BUS = {"TEST_BUS": "1"}


@pytest.fixture(params=["filesystem", "redis"])
def broker(request: pytest.FixtureRequest) -> str | None:
    return request.getfixturevalue("redis_url") if request.param == "redis" else None


def test_a_worker_hears_what_becomes_of_runs_and_outlives_a_callback_that_fails(
    deploy: Callable[..., Deployment], broker: str | None
) -> None:
    deployment = deploy(broker)
    gate = deployment.witness.hold("two")
    worker = deployment.worker(env=BUS)
    aborted = deployment.send("flow", "ann")
    deployment.wait_mark("begin", "two", "ann")
    (pid,) = [pid for pid in worker.pool() if works(deployment, pid)]
    worker.kill_child(pid)
    gate.unlink()

    deployment.wait_mark("bus", "run.aborted", aborted)
    deployment.wait_mark("bus", "run.compensated", aborted)
    failed = deployment.send("flow_refused", "bob")
    deployment.wait_mark("bus", "run.aborted", failed)

    deployment.wait_ended(aborted, failed)
    assert worker.running
    told = [line for line in deployment.witness.lines() if line.startswith("bus run.aborted")]
    assert [line.split()[2] for line in told] == [aborted, failed]
    assert told[0].endswith("['by', 'in_doubt', 'reason', 'task']")


def works(deployment: Deployment, pid: int) -> bool:
    started = [event for run in runs(deployment) for event in run if event.type == "run.started"]
    return any(f"-{pid}@" in event.payload["holder"] for event in started)


def runs(deployment: Deployment) -> list[list[Any]]:
    commander = deployment.app.commander
    commander.ledger.catch_up()
    return [commander.engine.history(state.run_id) for state in commander.ledger.runs()]


@pytest.fixture(params=["redis", pytest.param("rabbitmq", marks=pytest.mark.slow)])
def stoppable(request: pytest.FixtureRequest) -> Iterator[StoppableService]:
    try:
        with stoppable_service(request.param) as broker:
            yield broker
    except ServiceMissing as missing:
        pytest.skip(str(missing))


def test_without_a_broker_recovery_decides_and_the_bus_tells_of_it_later(
    deploy: Callable[..., Deployment], stoppable: StoppableService
) -> None:
    deployment = deploy(stoppable.url)
    bus = deployment.app.commander.bus
    bus.listen("run.*", print, queue="audit", seconds=0.1)  # makes the queue, which stays
    gate = deployment.witness.hold("two")
    worker = deployment.worker()
    aborted, recovered = deployment.send("flow", "ann"), deployment.send("flow_safe", "bob")
    for who in ("ann", "bob"):
        deployment.wait_mark("begin", "two", who)

    stoppable.stop()
    for pid in worker.pool():
        kill(pid)
    wait_until(
        lambda: (
            "run.aborted" in deployment.types(aborted)
            and "run.requeued" in deployment.types(recovered)
        ),
        what=lambda: f"the decisions\n{deployment.logs()}",
    )
    gate.unlink()
    stoppable.start()

    heard: dict[tuple[str, str | None], BusMessage] = {}
    wanted = {("run.aborted", aborted), ("run.recovered", recovered), ("run.compensated", aborted)}
    bus.listen(
        "run.*",
        lambda message: heard.setdefault((message.type, message.run_id), message),
        queue="audit",
        until=lambda: wanted <= heard.keys(),
    )
    assert wanted <= heard.keys(), deployment.logs()
    assert heard["run.recovered", recovered].data["death"] is True
    assert heard["run.aborted", aborted].log_id == deployment.app.commander.engine.log_id
    states = deployment.wait_ended(aborted, recovered)
    assert [state.state for state in states] == [State.COMPENSATED, State.COMMITTED]
