"""What is left when processes are killed: every run ends right, and nothing that returned is done twice."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Literal

import pytest

from celery_commander.engine import State
from tests.celery.conftest import STEPS, Deployment
from tests.kit import CrashPoint, wait_until

pytestmark = [pytest.mark.celery, pytest.mark.crash]


def test_a_killed_child_is_noticed_and_its_run_resumes_at_the_step_in_hand(
    deployment: Deployment,
) -> None:
    """An out-of-memory kill takes one pool process; see celery/celery issue 2011."""
    gate = deployment.witness.hold("two")
    worker = deployment.worker(concurrency=1)
    run_id = deployment.send("flow_safe", "ann")
    deployment.wait_mark("begin", "two", "ann")

    worker.kill_child()
    gate.unlink()

    (state,) = deployment.wait_ended(run_id)
    assert (state.state, state.attempt) == (State.COMMITTED, 2)
    assert deployment.did("ann") == [1, 1, 1]
    assert deployment.witness.count("begin", "one", "ann") == 1
    assert deployment.wait_result(run_id).state == "SUCCESS"


def test_tries_of_a_step_go_on_in_another_process_where_the_killed_one_had_come_to(
    deployment: Deployment,
) -> None:
    """The first try takes too long, the second is refused; the child is killed between the second and the third."""
    gate = deployment.witness.hold("one")
    point = CrashPoint("step.try_failed", nth=2, directory=deployment.directory)
    worker = deployment.worker(concurrency=1, env=point.environment())
    run_id = deployment.send("flow_in_time", "ann")
    wait_until(lambda: "step.try_failed" in deployment.types(run_id), what="the first try's end")
    gate.unlink()

    (state,) = deployment.wait_ended(run_id)
    assert (state.state, state.attempt) == (State.COMMITTED, 2)
    assert point.fired
    assert worker.running
    entry = deployment.history(run_id).entries[0]
    assert (entry.tries, entry.attempt) == (2, 3)
    assert deployment.witness.count("begin", "one", "ann") == 3
    assert deployment.did("ann")[0] == 1
    assert deployment.wait_result(run_id).state == "SUCCESS"


@pytest.mark.parametrize("task", ["flow", "flow_late"])
def test_a_step_in_doubt_is_not_repeated_but_undone_with_all_before_it(
    deploy: Callable[..., Deployment], task: str
) -> None:
    """Whether the message was acknowledged early or late decides nothing; see celery/celery issue 1628."""
    deployment = deploy(pending_after_seconds=120)  # nothing here waits for a lost message
    deployment.witness.hold("two")
    worker = deployment.worker(concurrency=1)
    run_id = deployment.send(task, "ann")
    deployment.wait_mark("begin", "two", "ann")

    worker.kill_child()

    (state,) = deployment.wait_ended(run_id)
    assert state.state is State.COMPENSATED
    assert deployment.witness.count("begin", "two", "ann") == 1
    undone = [line.split()[1:] for line in deployment.witness.lines() if line.startswith("undid")]
    assert undone == [["two", "ann", "in_doubt=True"], ["one", "ann", "in_doubt=False"]]
    assert deployment.wait_result(run_id).state == "FAILURE"
    # One each: recovery, two links, the settling, the delivery. A recoverer that looks again leaves no trace.
    assert deployment.types(run_id).count("run.fenced") == 5


@pytest.mark.parametrize(
    "answer, ends, begun",
    [("not done", "COMMITTED", 2), ("it is done", "COMMITTED", 1), ("unknown", "COMPENSATED", 1)],
)
def test_a_step_in_doubt_is_settled_by_its_resolve(
    deployment: Deployment, answer: str, ends: str, begun: int
) -> None:
    gate = deployment.witness.hold("two")
    worker = deployment.worker(concurrency=1)
    run_id = deployment.send("flow_asked", "ann")
    deployment.wait_mark("begin", "two", "ann")
    (deployment.directory / "answer").write_text(answer)

    worker.kill_child()
    gate.unlink()

    (state,) = deployment.wait_ended(run_id)
    assert state.state == ends
    assert deployment.witness.count("begin", "two", "ann") == begun
    assert deployment.witness.count("asked", f"{run_id}:1") == 1
    if answer == "it is done":
        assert deployment.wait_result(run_id).get(timeout=5)[1] == "it is done"


def test_runs_of_a_worker_that_is_gone_are_taken_over_by_one_of_another_name(
    deployment: Deployment,
) -> None:
    """The whole worker is killed and rows would say "running" for weeks; see apache/airflow issue 22350."""
    gate = deployment.witness.hold("two")
    first = deployment.worker("w1", concurrency=4)
    names = [f"order-{i}" for i in range(4)]
    runs = [deployment.send("flow_safe", name) for name in names]
    deployment.wait_mark("begin", "two", times=4)

    first.kill_group()
    gate.unlink()
    deployment.worker("other", concurrency=4)

    states = deployment.wait_ended(*runs)
    assert [state.state for state in states] == [State.COMMITTED] * 4
    assert [deployment.did(name) for name in names] == [[1, 1, 1]] * 4
    assert [deployment.types(run).count("run.requeued") for run in runs] == [1] * 4


def test_prefetched_messages_of_a_killed_worker_are_not_lost(deployment: Deployment) -> None:
    gate = deployment.witness.hold("one")
    first = deployment.worker(concurrency=1, env={"TEST_PREFETCH": "8"})
    names = [f"order-{i}" for i in range(6)]
    runs = [deployment.send("flow_safe", name) for name in names]
    deployment.wait_mark("begin", "one")
    messages = deployment.directory / "messages"
    wait_until(lambda: len(list(messages.glob("*.msg"))) < 5, what="the worker to hold one more")

    first.kill_group()
    gate.unlink()
    deployment.worker("w2")

    assert {state.state for state in deployment.wait_ended(*runs)} == {State.COMMITTED}
    assert [deployment.did(name) for name in names] == [[1, 1, 1]] * 6


def test_a_worker_killed_between_two_steps_goes_on_with_the_next(deployment: Deployment) -> None:
    """See dbos-inc/dbos-transact-py issue 805: a run stood still between two finished steps."""
    point = CrashPoint("step.completed", deployment.directory, nth=2)
    worker = deployment.worker(concurrency=1, env=point.environment())
    run_id = deployment.send("flow", "ann")
    deployment.wait_mark("did", "two", "ann")
    wait_until(lambda: deployment.state(run_id).attempt == 2, what="a second attempt")

    (state,) = deployment.wait_ended(run_id)
    assert state.state is State.COMMITTED
    assert deployment.did("ann") == [1, 1, 1]
    assert worker.running


def test_a_run_of_a_living_worker_is_left_alone(deployment: Deployment) -> None:
    """See dbos-inc/dbos-transact-java issue 491: start-up recovery ran what was running already."""
    gate = deployment.witness.hold("two")
    deployment.worker("w1", concurrency=1)
    run_id = deployment.send("flow_safe", "ann")
    deployment.wait_mark("begin", "two", "ann")

    deployment.worker("w2", concurrency=1)
    result = deployment.app.commander.bootstrapper.bootstrap()
    forced = deployment.app.commander.bootstrapper.bootstrap(force_abort=True)
    gate.unlink()

    assert [(d.action, d.reason) for d in result.details] == [("skip", "owner alive")]
    assert forced.aborted == 0
    (state,) = deployment.wait_ended(run_id)
    assert (state.state, state.attempt) == (State.COMMITTED, 1)
    assert deployment.did("ann") == [1, 1, 1]


@pytest.mark.parametrize("event, when", [("run.committed", "after"), ("run.delivered", "before")])
def test_an_outcome_that_celery_was_not_told_is_told_by_another_worker(
    deployment: Deployment, event: str, when: Literal["before", "after"]
) -> None:
    point = CrashPoint(event, deployment.directory, when=when)
    deployment.worker(concurrency=1, env=point.environment())
    tasks = deployment.app.tasks
    chained = tasks["flow"].s("ann") | tasks["plain"].s()

    result = chained.apply_async()

    assert deployment.wait_result(result.id).get(timeout=5) == [f"{name} of ann" for name in STEPS]
    assert deployment.did("ann") == [1, 1, 1]
    deployment.wait_ended(result.parent.id)
    assert deployment.wait_result(result.parent.id).state == "SUCCESS"
    assert deployment.witness.count("body", "ann") == 1


def test_a_killed_undo_is_repeated_under_the_same_key_and_the_others_follow(
    deployment: Deployment,
) -> None:
    gate = deployment.witness.hold("undo.two")
    worker = deployment.worker(concurrency=1)
    run_id = deployment.send("flow_refused", "ann")
    deployment.wait_mark("undoing", "two", "ann")

    worker.kill_child()
    gate.unlink()

    (state,) = deployment.wait_ended(run_id)
    assert state.state is State.COMPENSATED
    keys = {
        line.split()[3] for line in deployment.witness.lines() if line.startswith("undoing two")
    }
    assert keys == {f"{run_id}:1:undo"}
    undone = [line.split()[1] for line in deployment.witness.lines() if line.startswith("undid")]
    assert undone == ["two", "one"]


def test_a_task_that_kills_its_process_is_poison_after_three_deaths(deployment: Deployment) -> None:
    worker = deployment.worker(concurrency=1)

    run_id = deployment.send("flow_poison", "ann")

    (state,) = deployment.wait_ended(run_id)
    assert state.state is State.COMPENSATED
    assert deployment.witness.count("body", "ann") == 3
    assert "poison" in str(deployment.wait_result(run_id).result)
    assert worker.running


def test_a_crash_in_a_c_extension_is_named_in_the_one_end_that_its_run_has(
    deploy: Callable[..., Deployment], redis_url: str
) -> None:
    """See celery/celery issue 2510: nothing runs in a process that a C extension crashed."""
    deployment = deploy(redis_url)
    worker = deployment.worker(concurrency=1)

    run_id = deployment.send("flow_segfault", "ann")

    (state,) = deployment.wait_ended(run_id)
    assert state.state is State.COMPENSATED
    types = deployment.types(run_id)
    assert [types.count(end) for end in ("run.committed", "run.aborted")] == [0, 1]
    assert types.count("task.failed") == deployment.witness.count("body", "ann") == 3
    assert "worker lost, signal 11 (SIGSEGV)" in str(deployment.wait_result(run_id).result)
    assert worker.running


def test_a_warm_stop_under_load_runs_each_message_once(
    deploy: Callable[..., Deployment], redis_url: str
) -> None:
    """See celery/celery issue 4426."""
    deployment = deploy(redis_url)
    first, _ = deployment.worker("w1"), deployment.worker("w2")
    runs = [deployment.send("tiny", number) for number in range(300)]
    deployment.wait_mark("tiny", times=60)

    first.stop_warm()

    states = deployment.wait_ended(*runs)
    assert {state.state for state in states} == {State.COMMITTED}
    assert [deployment.witness.count("tiny", number) for number in range(300)] == [1] * 300


def test_a_stopped_owner_that_was_taken_over_writes_nothing_more(
    deploy: Callable[..., Deployment],
) -> None:
    """See sibson/redbeat issue 127: a paused holder went on with what had passed to another."""
    deployment = deploy(lease_seconds=1.5)
    gate = deployment.witness.hold("two")
    first = deployment.worker("w1", concurrency=1)
    run_id = deployment.send("flow_safe", "ann")
    deployment.wait_mark("begin", "two", "ann")
    (child,) = first.pool()
    os.kill(child, signal.SIGSTOP)
    try:
        gate.unlink()
        deployment.worker("w2", concurrency=1)
        (state,) = deployment.wait_ended(run_id)
    finally:
        os.kill(child, signal.SIGCONT)

    first.wait_log("stops here")
    assert state.state is State.COMMITTED
    assert deployment.state(run_id) == state
    assert first.running
    assert deployment.witness.count("did", "three", "ann") == 1


@pytest.mark.parametrize("broker", ["redis", "rabbitmq"])
def test_on_a_real_broker_a_killed_worker_loses_nothing_and_repeats_nothing(
    deploy: Callable[..., Deployment], broker: str, request: pytest.FixtureRequest
) -> None:
    deployment = deploy(request.getfixturevalue(f"{broker}_url"))
    gate = deployment.witness.hold("two")
    first = deployment.worker("w1", concurrency=2)
    names = [f"order-{i}" for i in range(8)]
    safe = [deployment.send("flow_safe", name) for name in names[:4]]
    strict = [deployment.send("flow", name) for name in names[4:]]
    deployment.wait_mark("begin", "two", times=2)

    first.kill_group()
    gate.unlink()
    deployment.worker("w2")

    states = deployment.wait_ended(*safe, *strict)
    assert {state.state for state in states[:4]} == {State.COMMITTED}
    assert [deployment.did(name)[0] for name in names] == [1] * 8
    assert all(deployment.witness.count("did", "two", name) <= 1 for name in names)
