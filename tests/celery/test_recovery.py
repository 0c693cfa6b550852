"""Recovery that is disturbed: killed itself, asked twice, lied to by a broker, or faced with a task that kills."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from celery_commander.engine import State
from celery_commander.tasks.message import of_created
from celery_commander.tasks.publishing import publish_again
from tests.celery.conftest import Deployment
from tests.kit import CrashPoint, wait_until

pytestmark = [pytest.mark.celery, pytest.mark.crash]

RECOVERING = ["run.fenced", "run.requeued"]
UNDOING = [
    "run.fenced",
    "run.aborted",
    "compensation.started",
    "compensation.completed",
    "run.compensated",
]


@pytest.mark.parametrize(
    "task, event",
    [*(("flow_safe", event) for event in RECOVERING), *(("flow", event) for event in UNDOING)],
)
def test_a_recovery_that_is_killed_itself_is_finished_by_the_next(
    deployment: Deployment, task: str, event: str
) -> None:
    gate = deployment.witness.hold("two")
    first = deployment.worker("w1", concurrency=1)
    run_id = deployment.send(task, "ann")
    deployment.wait_mark("begin", "two", "ann")
    first.kill_group()
    gate.unlink()

    point = CrashPoint(event, deployment.directory, victim="group")
    second = deployment.worker("w2", concurrency=1, env=point.environment(), ready_seconds=0)
    wait_until(lambda: point.fired and not second.running, what="the second worker to be killed")
    deployment.worker("w3", concurrency=1)

    (state,) = deployment.wait_ended(run_id)
    assert state.state is (State.COMMITTED if task == "flow_safe" else State.COMPENSATED)
    assert deployment.witness.count("did", "one", "ann") == 1
    undone = [line.split()[1] for line in deployment.witness.lines() if line.startswith("undid")]
    assert list(dict.fromkeys(undone)) == ([] if task == "flow_safe" else ["two", "one"])
    assert deployment.types(run_id).count("compensation.completed") == len(set(undone))


def test_a_lost_message_is_published_again(deployment: Deployment) -> None:
    run_id = deployment.send("flow_safe", "ann")
    for message in (deployment.directory / "messages").glob("*.msg"):
        message.unlink()

    deployment.worker()

    (state,) = deployment.wait_ended(run_id)
    assert state.state is State.COMMITTED
    assert deployment.types(run_id).count("run.requeued") == 1


def test_a_run_of_a_task_that_no_worker_knows_is_kept_and_named(deployment: Deployment) -> None:
    @deployment.app.task(name="elsewhere", durable=True, shared=False)
    def elsewhere() -> None: ...

    run_id = deployment.send("elsewhere")
    worker = deployment.worker()
    worker.wait_log("unregistered task of type 'elsewhere'")
    known = deployment.send("tiny", 1)
    deployment.wait_ended(known)

    del deployment.app.tasks["elsewhere"]
    details = deployment.app.commander.bootstrapper.bootstrap(
        force_abort=True, dry_run=True
    ).details

    assert {(d.run_id, d.action) for d in details} == {(run_id, "abort")}
    details = deployment.app.commander.bootstrapper.bootstrap(dry_run=True).details
    assert [(d.action, d.reason) for d in details] == [("skip", "unknown task elsewhere")]


@pytest.mark.parametrize("broker", ["redis", "rabbitmq"])
def test_a_run_that_only_a_worker_registered_is_found_again_on_its_queue(
    deploy: Callable[..., Deployment], broker: str, request: pytest.FixtureRequest
) -> None:
    deployment = deploy(request.getfixturevalue(f"{broker}_url"), register_on_publish="never")
    gate = deployment.witness.hold("two")
    first = deployment.worker("w1", concurrency=1)
    run_id = deployment.send("flow_safe", "ann")
    deployment.wait_mark("begin", "two", "ann")

    first.kill_group()
    gate.unlink()
    deployment.worker("w2", concurrency=1)

    (state,) = deployment.wait_ended(run_id)
    assert state.state is State.COMMITTED
    assert deployment.did("ann") == [1, 1, 1]


def test_a_duplicate_in_a_pool_of_threads_does_not_end_its_owners_lease(
    deployment: Deployment,
) -> None:
    gate = deployment.witness.hold("two")
    worker = deployment.worker(pool="threads")
    run_id = deployment.send("flow", "ann")
    deployment.wait_mark("begin", "two", "ann")

    created = deployment.history(run_id).created
    publish_again(deployment.app.commander, of_created(created))
    worker.wait_log(f"Run {run_id}: this delivery is ignored")
    deployment.app.commander.bootstrapper.bootstrap()
    gate.unlink()

    (state,) = deployment.wait_ended(run_id)
    assert (state.state, state.attempt) == (State.COMMITTED, 1)
    assert deployment.did("ann") == [1, 1, 1]
    assert deployment.witness.count("undid") == 0


def test_an_undo_that_kills_its_process_every_time_ends_with_a_person(
    deployment: Deployment,
) -> None:
    deployment.worker(concurrency=1, env={"COMMANDER_UNDO_RETRIES": "0", "TEST_UNDO_DIES": "1"})

    run_id = deployment.send("flow_refused", "ann")

    (state,) = deployment.wait_ended(run_id)
    assert state.state is State.STUCK
    assert deployment.witness.count("undoing", "two") == 3
    assert deployment.witness.count("undoing", "one") == 0


def test_messages_that_wait_behind_a_long_task_are_not_published_over_and_over(
    deploy: Callable[..., Deployment], redis_url: str
) -> None:
    deployment = deploy(redis_url, pending_after_seconds=1)
    gate = deployment.witness.hold("body")
    worker = deployment.worker("w1", concurrency=1)
    deployment.send("flow_pause", "first")
    deployment.wait_mark("body", "first")
    waiting = [deployment.send("tiny", number) for number in range(3)]

    passes = deployment.app.commander.bootstrapper
    deadline = datetime.now(UTC) + timedelta(seconds=6)
    wait_until(
        lambda: bool(passes.bootstrap()) and datetime.now(UTC) > deadline, what="six seconds"
    )
    gate.unlink()

    deployment.wait_ended(*waiting)
    assert worker.running
    assert sum(deployment.types(run).count("run.requeued") for run in waiting) == 0
