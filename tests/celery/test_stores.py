"""Two stores behind one broker: said by everybody who can know, and no storm of messages that go to and fro."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable

import pytest

from celery_commander.engine import Health, State
from tests.celery.conftest import Deployment
from tests.celery.test_health import CALM, wait_health
from tests.kit import wait_until

pytestmark = [pytest.mark.celery]


def wrong(deployment: Deployment) -> list[str]:
    """Return what the doctor calls wrong."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.celery.command", "doctor", "--json"],
        env=os.environ | deployment.environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    told = [each["text"] for each in json.loads(done.stdout) if each["verdict"] == "wrong"]
    assert done.returncode == bool(told), done.stderr
    return told


def pauses(deployment: Deployment, run_id: str) -> list[str]:
    log = "".join(path.read_text() for path in deployment.directory.glob("*.log"))
    return re.findall(rf"Run {run_id} was not started and is handed back in (\S+) s", log)


def test_a_publisher_with_another_store_is_named_and_its_messages_slow_down(
    deploy: Callable[..., Deployment], redis_url: str
) -> None:
    ours, theirs = (deploy(redis_url, **CALM, foreign_seconds=4) for _ in range(2))
    ours.worker("ours", concurrency=1)
    foreign = [theirs.send("flow_safe", who) for who in ("ann", "bob", "eve")]
    log_ids = [each.app.commander.engine.log_id for each in (ours, theirs)]

    report = wait_health(ours, Health.UNHEALTHY, f"is sent messages of log {log_ids[1]}")
    (reason,) = [each for each in report.reasons if "is sent messages" in each]
    for words in (log_ids[0], str(ours.directory / "state"), "one state directory"):
        assert words in reason
    assert reason in wrong(ours)
    (told,) = [each for each in wrong(theirs) if "works with log" in each]
    for words in (*log_ids, str(ours.directory / "state"), str(theirs.directory / "state")):
        assert words in told

    def slower() -> bool:
        return all(pauses(ours, run_id)[:3] == ["1", "2", "4"] for run_id in foreign)

    wait_until(slower, seconds=30, what=lambda: f"growing pauses\n{ours.logs()}")
    # The worker's only process is not taken by what is held back:
    (state,) = ours.wait_ended(ours.send("tiny", 1), seconds=3)
    assert state.state is State.COMMITTED

    theirs.worker("theirs")
    states = theirs.wait_ended(*foreign, seconds=60)
    assert [state.state for state in states] == [State.COMMITTED] * 3
    assert [state.attempt for state in states] == [1] * 3
    assert ours.witness.count("begin") == 0


def test_two_workers_of_one_name_and_two_stores_notice_each_other(
    deploy: Callable[..., Deployment], redis_url: str
) -> None:
    """Started without -n in two working directories, both are celery@host."""
    ours, theirs = deploy(redis_url, **CALM), deploy(redis_url, **CALM)
    ours.worker("same", concurrency=1)
    theirs.worker("same", concurrency=1)

    for deployment, other in ((ours, theirs), (theirs, ours)):
        log_id = other.app.commander.engine.log_id
        wait_health(deployment, Health.UNHEALTHY, f"works with log {log_id} in {other.directory}")
