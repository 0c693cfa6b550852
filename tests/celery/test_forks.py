"""A worker's main process forks at any time, also while its threads are inside our locks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from celery_commander.engine import State
from tests.celery.conftest import Deployment

pytestmark = [pytest.mark.celery, pytest.mark.slow]

TASKS = 200


def test_no_child_hangs_in_a_lock_that_its_parent_held_when_it_forked(
    deploy: Callable[..., Deployment], redis_url: str
) -> None:
    """See celery/celery issues 9808 and 496, and getsentry/sentry-python issue 6149.

    Each task has a process of its own, forked while a thread of the main process writes the log, folds the ledger,
    asks for leases and logs, half of the time.
    """
    deployment = deploy(redis_url)
    worker = deployment.worker(
        env={"TEST_HAMMER": "1"}, options=["--max-tasks-per-child", "1"], concurrency=4
    )

    runs = [deployment.send("tiny", number) for number in range(TASKS)]

    states = deployment.wait_ended(*runs, seconds=240)
    assert [(state.state, state.attempt) for state in states] == [(State.COMMITTED, 1)] * TASKS
    assert [deployment.witness.count("tiny", number) for number in range(TASKS)] == [1] * TASKS
    assert worker.running
    kinds = [event.type for event in deployment.app.commander.engine.read_from(None)]
    assert kinds.count("noise.made") > TASKS
    # No thread of ours existed when the pool was first forked.
    assert deployment.witness.lines()[0] == "forked"
