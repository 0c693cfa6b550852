"""A log that cannot be written: no body starts unrecorded, nothing is lost, and everybody hears of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from celery_commander.engine import LogUnavailable, State
from tests.celery.conftest import Deployment

pytestmark = [pytest.mark.celery, pytest.mark.crash]


def wal_of(deployment: Deployment) -> Path:
    return deployment.directory / "state" / "event-sourcing.wal"


def test_without_a_log_bodies_do_not_start_and_go_on_once_it_is_back(
    deployment: Deployment,
) -> None:
    """A failing signal handler is only logged, so tasks ran untracked; see celery/celery issue 1582."""
    gate = deployment.witness.hold("body")
    worker = deployment.worker(concurrency=1)
    running, waiting = deployment.send("flow_pause", "ann"), deployment.send("flow_safe", "bob")
    deployment.wait_mark("body", "ann")

    away = wal_of(deployment).rename(wal_of(deployment).with_suffix(".away"))
    gate.unlink()
    worker.wait_log(f"Run {running} stops here")
    worker.wait_log(f"Run {waiting} was not started and is handed back")
    assert deployment.witness.count("begin") == 0
    with pytest.raises(LogUnavailable):
        deployment.send("tiny", 1)
    away.rename(wal_of(deployment))

    states = deployment.wait_ended(running, waiting)
    assert [state.state for state in states] == [State.COMMITTED] * 2
    assert deployment.witness.count("did", "one", "ann") == 1
    assert deployment.witness.count("did", "three", "bob") == 1


def test_a_deployment_that_chose_so_runs_unrecorded_and_says_so(
    deploy: Callable[..., Deployment],
) -> None:
    deployment = deploy(on_log_unavailable="degrade")
    gate = deployment.witness.hold("body")
    worker = deployment.worker(concurrency=1)
    deployment.send("flow_pause", "ann")
    waiting = deployment.send("flow_safe", "bob")
    deployment.wait_mark("body", "ann")

    away = wal_of(deployment).rename(wal_of(deployment).with_suffix(".away"))
    gate.unlink()
    worker.wait_log(f"Run {waiting} runs unrecorded")
    deployment.wait_mark("did", "three", "bob")
    away.rename(wal_of(deployment))
    other = deployment.send("tiny", 1)

    deployment.wait_ended(other)
    (state,) = deployment.wait_ended(waiting)
    assert (state.state, state.degraded) == (State.COMMITTED, True)
    assert deployment.witness.count("did", "one", "bob") == 1


def test_a_worker_does_not_start_on_a_store_that_is_not_its_own(deployment: Deployment) -> None:
    wal_of(deployment).parent.mkdir()
    wal_of(deployment).write_text("these are somebody's notes\n")

    with pytest.raises(RuntimeError, match=r"event-sourcing\.wal"):
        deployment.worker()

    assert wal_of(deployment).read_text() == "these are somebody's notes\n"


def test_a_state_directory_that_cannot_be_is_named_and_nothing_is_sent(
    deploy: Callable[..., Deployment],
) -> None:
    deployment = deploy(state_directory=Path("/proc/version/below"))

    with pytest.raises(LogUnavailable, match="/proc/version/below"):
        deployment.send("tiny", 1)

    assert list((deployment.directory / "messages").iterdir()) == []


def test_a_worker_does_not_start_with_a_setting_that_cannot_work(deployment: Deployment) -> None:
    with pytest.raises(RuntimeError, match=r"COMMANDER_LEESE_SECONDS.*COMMANDER_LEASE_SECONDS"):
        deployment.worker(env={"COMMANDER_LEESE_SECONDS": "3"})


def test_a_message_of_another_store_is_handed_back_and_not_run(
    deploy: Callable[..., Deployment], redis_url: str
) -> None:
    ours, theirs = deploy(redis_url), deploy(redis_url)
    worker = ours.worker()

    foreign = theirs.send("flow_safe", "ann")
    worker.wait_log(f"Run {foreign} was not started and is handed back")
    worker.stop_warm()
    theirs.worker("w2")

    (state,) = theirs.wait_ended(foreign)
    assert state.state is State.COMMITTED
    assert ours.witness.count("begin") == 0
