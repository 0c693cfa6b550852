"""Plain tasks of real workers are seen in the log; the log's troubles are never the tasks'."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from celery.signals import task_success

from celery_commander.engine import Event
from tests.celery.conftest import Deployment
from tests.celery.observed_app import SECRET, define_observed
from tests.kit import Worker, wait_until
from tests.kit.workers import python_environment

pytestmark = pytest.mark.celery

MODULE = "tests.celery.observed_app"

TELLS_MORE = "runtime" in task_success.providing_args
"""Whether this Celery tells its receivers how long a body ran, and which attempt met the hard limit."""

ENDS = ("task.succeeded", "task.failed", "task.revoked", "task.rejected", "task.unknown")


@pytest.fixture
def start(deploy: Callable[..., Deployment]) -> Callable[..., tuple[Deployment, Worker]]:
    def start(**options: Any) -> tuple[Deployment, Worker]:
        env, pool = options.pop("env", None), options.pop("pool", "prefork")
        deployment = deploy(observe_flush_seconds=0.05, **options)
        define_observed(deployment.app, deployment.witness)
        return deployment, deployment.worker(env=env, pool=pool, module=MODULE)

    return start


def story(deployment: Deployment, task_id: str, *, end: str | None = None) -> list[Event]:
    """Return a task's events once its end (or `end`) is among them."""
    engine = deployment.app.commander.engine

    def ended() -> bool:
        kinds = [event.type for event in engine.history(task_id)]
        return end in kinds if end else not {*ENDS}.isdisjoint(kinds)

    wait_until(ended, what=lambda: f"{engine.history(task_id)}\n{deployment.logs()}")
    deployment.app.commander.subscriber.flush()
    return sorted(engine.history(task_id), key=lambda event: event.payload["at"])


def kinds(events: list[Event]) -> list[str]:
    return [event.type.removeprefix("task.") for event in events]


@pytest.mark.parametrize("pool", ["prefork", "solo", "threads"])
def test_a_plain_task_is_seen_from_sending_to_its_end(
    start: Callable[..., tuple[Deployment, Worker]], pool: str
) -> None:
    deployment, _ = start(pool=pool)
    good, bad = deployment.send("says", SECRET), deployment.send("fails", SECRET)

    seen, failed = story(deployment, good), story(deployment, bad)

    assert kinds(seen) == ["sent", "received", "started", "succeeded"]
    assert kinds(failed) == ["sent", "received", "started", "failed"]
    assert {event.payload["task"] for event in seen} == {"says"}
    assert {event.payload["attempt"] for event in seen} == {1}
    assert seen[1].payload["queue"] == deployment.app.conf.task_default_queue
    assert seen[1].payload["worker"] == seen[2].payload["worker"]
    if TELLS_MORE:
        assert seen[3].payload["runtime_seconds"] > 0
    assert failed[3].payload["exception"] == "builtins.ValueError"
    assert SECRET.encode() not in Path(deployment.app.commander.engine.path).read_bytes()


def test_attempts_are_in_order_by_their_number_and_nothing_follows_an_end(
    start: Callable[..., tuple[Deployment, Worker]],
) -> None:
    """The next attempt's receipt may precede the retry before it; see celery/celery pull request 837."""
    deployment, _ = start()
    task_id = deployment.send("again", SECRET)

    seen = story(deployment, task_id)

    def of_attempt(number: int) -> set[str]:
        return {*kinds([event for event in seen if event.payload["attempt"] == number])}

    for number in (1, 2, 3):
        assert of_attempt(number) == {"sent", "received", "started", "retried"}
    assert of_attempt(4) == {"sent", "received", "started", "succeeded"}
    assert [e.payload["attempt"] for e in seen if e.type == "task.started"] == [1, 2, 3, 4]
    assert deployment.app.commander.engine.replay() == {}


def test_a_killed_child_is_told_by_the_main_process(
    start: Callable[..., tuple[Deployment, Worker]],
) -> None:
    deployment, worker = start()
    deployment.witness.hold("lingers")
    task_id = deployment.send("lingers", "ann")
    deployment.wait_mark("lingers", "ann")
    story(deployment, task_id, end="task.started")
    worker.kill_child(int(deployment.witness.lines()[0].split()[-1]))

    failed = story(deployment, task_id)[-1]

    assert failed.type == "task.failed"
    assert failed.payload["exception"] == "billiard.exceptions.WorkerLostError"
    assert "SIGKILL" in failed.payload["reason"]


def test_a_hard_limit_is_one_failure_although_celery_may_tell_two(
    start: Callable[..., tuple[Deployment, Worker]],
) -> None:
    deployment, _ = start()
    task_id = deployment.send("limited", "ann")
    story(deployment, task_id)
    after = [deployment.send("says", str(number)) for number in range(2)]
    for each in after:
        story(deployment, each)

    failures = [e for e in story(deployment, task_id) if e.type == "task.failed"]

    assert [e.payload["exception"] for e in failures] == ["billiard.exceptions.TimeLimitExceeded"]
    if TELLS_MORE:
        assert failures[0].payload["attempt"] == 1


@pytest.mark.slow
def test_no_child_inherits_a_lock_of_ours_that_is_taken(
    start: Callable[..., tuple[Deployment, Worker]],
) -> None:
    """A lock that a thread holds at the fork stays locked in the child; see celery/celery issue 9808."""
    deployment, _ = start(
        observe_queue_events=50, env={"TEST_TASKS_PER_CHILD": "1", "TEST_HAMMER": "1"}
    )
    sent = [deployment.send(name, str(n)) for n in range(15) for name in ("fails", "says")]

    for task_id in sent:
        deployment.wait_result(task_id)


@pytest.mark.crash
def test_while_the_log_is_away_tasks_run_on_and_the_gap_is_counted(
    start: Callable[..., tuple[Deployment, Worker]],
) -> None:
    """A handler that failed was only logged, and tasks vanished from the record; see celery/celery issue 1582."""
    deployment, worker = start(observe_queue_events=10)
    story(deployment, deployment.send("says", "first"))
    wal = deployment.directory / "state" / "event-sourcing.wal"
    away = wal.rename(wal.with_suffix(".away"))
    sent = [deployment.send("says", str(number)) for number in range(40)]
    for number in range(40):
        deployment.wait_mark("said", number)
    for task_id in sent:
        assert deployment.wait_result(task_id).successful()
    worker.wait_log("Observations of tasks are not written now; the tasks run on")
    facts = deployment.app.commander.subscriber.facts()
    assert facts["dropped"] == 30
    assert facts["queued"] == 10

    away.rename(wal)

    def counted() -> Counter[str]:
        found: Counter[str] = Counter()
        for event in deployment.app.commander.engine.read_from(None):
            if event.type == "subscriber.gap":
                found["gap"] += event.payload["count"]
                found["told"] += event.payload["until"] >= event.payload["since"]
            elif event.run_id in sent:
                found[event.type] += 1
        return found

    def whole() -> bool:
        found = counted()
        gaps, told = found.pop("gap", 0), found.pop("told", 0)
        return gaps + sum(found.values()) == 4 * len(sent) and told >= 2

    wait_until(whole, what=lambda: f"{counted()}\n{deployment.logs()}")
    assert "raised" not in worker.log()
    assert deployment.app.commander.subscriber.facts()["last_error"] is None


SENDS = """
import sys; from pathlib import Path
from tests.celery.durable_app import make_app
app = make_app(Path(sys.argv[1]))
print(app.tasks["plain"].delay(1).id)
"""


def send_elsewhere(directory: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", SENDS, str(directory)],
        env=python_environment(),
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_what_a_script_sent_is_in_the_log_when_it_has_ended(deployment: Deployment) -> None:
    engine = deployment.app.commander.engine  # makes the store, as a worker does

    task_id = send_elsewhere(deployment.directory)

    assert [event.type for event in engine.history(task_id)] == ["task.sent"]


def test_a_script_that_only_sends_makes_no_store(deployment: Deployment) -> None:
    send_elsewhere(deployment.directory)

    assert not (deployment.directory / "state").exists()
