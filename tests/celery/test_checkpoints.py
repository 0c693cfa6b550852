"""Workers are killed behind a checkpoint: a run is replayed where it can be, else it begins there, else it waits."""

from __future__ import annotations

import sqlite3
from typing import Literal

import pytest

from celery_commander.engine import Event, State
from tests.celery.conftest import Deployment
from tests.kit import CrashPoint, wait_until

pytestmark = [pytest.mark.celery, pytest.mark.crash]

CHANGED = {"TEST_STEPS": "zero two three four"}


def killed_in_the_last_step(deployment: Deployment, env: dict[str, str] | None = None) -> str:
    """Return a run whose worker was killed inside step four, two steps behind its checkpoint."""
    gate = deployment.witness.hold("four")
    worker = deployment.worker("w1", concurrency=1, env=env)
    run_id = deployment.send("flow_saved", "ann")
    deployment.wait_mark("begin", "four", "ann")
    worker.kill_group()
    gate.unlink()
    return run_id


def begun(deployment: Deployment) -> dict[str, int]:
    names = ("zero", "one", "two", "three", "four")
    return {name: deployment.witness.count("begin", name, "ann") for name in names}


def of_type(deployment: Deployment, run_id: str, type: str) -> list[Event]:
    events = deployment.app.commander.engine.history(run_id)
    return [event for event in events if event.type == type]


def wait_parked(deployment: Deployment, run_id: str) -> str:
    """Return why the run waits for a person."""
    wait_until(
        lambda: deployment.state(run_id).state is State.PAUSED,
        what=lambda: f"the pause\n{deployment.logs()}",
    )
    assert deployment.state(run_id).paused_kind == "version"
    return str(of_type(deployment, run_id, "run.paused")[-1].payload["reason"])


def test_an_unchanged_body_is_replayed_from_its_first_line(deployment: Deployment) -> None:
    run_id = killed_in_the_last_step(deployment)

    deployment.worker("w2", concurrency=1)

    (state,) = deployment.wait_ended(run_id)
    assert (state.state, state.checkpoint) == (State.COMMITTED, None)
    assert begun(deployment) == {"zero": 0, "one": 1, "two": 1, "three": 1, "four": 2}
    assert deployment.witness.count("from", "ann", 0) == 2
    assert len(of_type(deployment, run_id, "checkpoint.saved")) == 1


def test_a_changed_body_goes_on_from_its_checkpoint_and_repeats_nothing(
    deployment: Deployment,
) -> None:
    """A changed program shifts what was recorded; see temporalio/sdk-python issue 1109."""
    run_id = killed_in_the_last_step(deployment)

    second = deployment.worker("w2", concurrency=1, env=CHANGED)

    (state,) = deployment.wait_ended(run_id)
    assert (state.state, state.attempt, state.conflict) == (State.COMMITTED, 3, True)
    assert begun(deployment) == {"zero": 0, "one": 1, "two": 1, "three": 1, "four": 2}
    assert [deployment.witness.count("from", "ann", n) for n in (0, 2)] == [2, 1]
    assert deployment.wait_result(run_id).get(timeout=5) == [
        f"{name} of ann" for name in ("one", "two", "three", "four")
    ]
    assert [event.payload["reason"] for event in of_type(deployment, run_id, "run.requeued")] == [
        "owner dead",
        "checkpoint",
    ]
    second.wait_log("goes on from checkpoint")


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_kill_between_the_content_and_its_event_costs_nothing(
    deployment: Deployment, when: Literal["before", "after"]
) -> None:
    point = CrashPoint("checkpoint.saved", deployment.directory, when=when)
    deployment.worker(concurrency=1, env=point.environment())
    run_id = deployment.send("flow_saved", "ann")

    (state,) = deployment.wait_ended(run_id)

    assert point.fired
    assert (state.state, state.attempt) == (State.COMMITTED, 2)
    assert begun(deployment) == {"zero": 0, "one": 1, "two": 1, "three": 1, "four": 1}
    assert len(of_type(deployment, run_id, "checkpoint.saved")) == 1


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_kill_around_the_decision_to_begin_at_a_checkpoint_loses_nothing(
    deployment: Deployment, when: Literal["before", "after"]
) -> None:
    run_id = killed_in_the_last_step(deployment)
    # The first is recovery's, of the killed worker; the second that of the body which differs.
    point = CrashPoint("run.requeued", deployment.directory, nth=2, when=when)
    deployment.worker("w2", concurrency=1, env=CHANGED | point.environment())

    (state,) = deployment.wait_ended(run_id)

    assert point.fired
    assert (state.state, state.conflict) == (State.COMMITTED, True)
    assert begun(deployment) == {"zero": 0, "one": 1, "two": 1, "three": 1, "four": 2}


def test_a_worker_that_is_killed_after_the_restart_begins_at_the_same_checkpoint(
    deployment: Deployment,
) -> None:
    run_id = killed_in_the_last_step(deployment)
    gate = deployment.witness.hold("four")
    second = deployment.worker("w2", concurrency=1, env=CHANGED)
    deployment.wait_mark("begin", "four", "ann", times=2)
    second.kill_group()
    gate.unlink()

    deployment.worker("w3", concurrency=1, env=CHANGED)

    (state,) = deployment.wait_ended(run_id)
    assert state.state is State.COMMITTED
    assert begun(deployment) == {"zero": 0, "one": 1, "two": 1, "three": 1, "four": 3}
    assert [deployment.witness.count("from", "ann", n) for n in (0, 2)] == [2, 2]
    (saved,) = of_type(deployment, run_id, "checkpoint.saved")
    assert state.checkpoint == saved.payload["checkpoint"]


@pytest.mark.parametrize(
    "damage, why",
    [
        ("DELETE FROM checkpoints", "its content is not in the store"),
        ("UPDATE checkpoints SET content = cast('[]' AS BLOB)", "not the one that was saved"),
    ],
    ids=["deleted", "edited"],
)
def test_a_checkpoint_whose_content_was_deleted_or_edited_parks_its_run(
    deployment: Deployment, damage: str, why: str
) -> None:
    run_id = killed_in_the_last_step(deployment)
    connection = sqlite3.connect(deployment.directory / "state" / "checkpoints.sqlite")
    connection.execute(damage)
    connection.commit()
    connection.close()

    worker = deployment.worker("w2", concurrency=1, env=CHANGED)

    reason = wait_parked(deployment, run_id)
    (saved,) = of_type(deployment, run_id, "checkpoint.saved")
    assert f"checkpoint {saved.payload['checkpoint']} is not believed" in reason
    assert why in reason
    worker.wait_log(f"checkpoint {saved.payload['checkpoint']} is not believed")
    assert begun(deployment) == {"zero": 0, "one": 1, "two": 1, "three": 1, "four": 1}
    assert deployment.witness.count("undoing") == 0


def test_a_body_that_cannot_begin_from_a_checkpoint_parks(deployment: Deployment) -> None:
    run_id = killed_in_the_last_step(deployment, {"TEST_NO_RESTORED": "1"})

    deployment.worker("w2", concurrency=1, env=CHANGED | {"TEST_NO_RESTORED": "1"})

    assert "the body does not begin with restored()" in wait_parked(deployment, run_id)
    assert deployment.witness.count("begin", "zero") == 0
    (saved,) = of_type(deployment, run_id, "checkpoint.saved")
    assert saved.payload["restorable"] is False


def test_a_restart_that_differs_again_parks_and_goes_round_no_more(deployment: Deployment) -> None:
    run_id = killed_in_the_last_step(deployment)

    deployment.worker("w2", concurrency=1, env={"TEST_STEPS": "zero two 3 four"})

    assert "No restart: it has no checkpoint to go on from" in wait_parked(deployment, run_id)
    types = deployment.types(run_id)
    assert (types.count("run.started"), types.count("run.requeued")) == (3, 2)
    assert begun(deployment) == {"zero": 0, "one": 1, "two": 1, "three": 1, "four": 1}
