"""Runs are the same in every pool: a killed worker's are finished by another, and no step that returned runs again."""

from __future__ import annotations

import importlib.util

import pytest

from celery_commander.engine import State
from tests.celery.conftest import Deployment
from tests.kit import wait_until

pytestmark = [pytest.mark.celery, pytest.mark.crash]

NAMES = ("ann", "bob", "eve", "kim")


@pytest.mark.parametrize(
    "pool",
    [
        "solo",
        "threads",
        pytest.param(
            "gevent",
            marks=pytest.mark.skipif(
                importlib.util.find_spec("gevent") is None, reason="gevent is not installed"
            ),
        ),
    ],
)
def test_a_worker_that_is_killed_with_runs_in_hand_loses_none(
    deployment: Deployment, pool: str
) -> None:
    at_once = 1 if pool == "solo" else len(NAMES)
    gate = deployment.witness.hold("two")
    first = deployment.worker("w1", concurrency=at_once, pool=pool)
    runs = [deployment.send("flow_safe", name) for name in NAMES]

    def stopped() -> int:
        return sum(deployment.witness.count("begin", "two", name) for name in NAMES)

    wait_until(lambda: stopped() == at_once, what="the second step of all that fit")
    first.kill_group()
    gate.unlink()
    deployment.worker("w2", concurrency=at_once, pool=pool)

    states = deployment.wait_ended(*runs)
    assert [state.state for state in states] == [State.COMMITTED] * len(NAMES)
    for name in NAMES:
        assert deployment.witness.count("begin", "one", name) == 1  # it had returned, or came later
        assert deployment.did(name) == [1, 1, 1]
    assert sum(state.attempt for state in states) == len(NAMES) + at_once
    for run_id in runs:
        assert deployment.wait_result(run_id).state == "SUCCESS"
