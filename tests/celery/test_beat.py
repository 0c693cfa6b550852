"""A real beat sends the maintenance, real workers do it, and once however often it is fired."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from celery_commander.engine import AnchorDirectory
from tests.celery.conftest import Deployment
from tests.kit import PATIENCE_SECONDS, Worker, kill, wait_until
from tests.kit.workers import python_environment

pytestmark = pytest.mark.celery

HELD = {"skipped": "held"}


@contextmanager
def celery_beat(deployment: Deployment, *, name: str = "beat") -> Iterator[Any]:
    """Run `celery beat` of the app that has a schedule of its own; give what reads its log."""
    environment = {
        "TEST_DIRECTORY": str(deployment.directory),
        "TEST_BROKER": deployment.broker or "",
    }
    environment |= {f"COMMANDER_{key.upper()}": str(v) for key, v in deployment.settings.items()}
    log = deployment.directory / f"{name}.log"
    command = [
        *(sys.executable, "-m", "celery", "-A", "tests.celery.beat_app", "beat"),
        *("--schedule", str(deployment.directory / name), "--pidfile", ""),
        *("--loglevel", "DEBUG", "--max-interval", "1"),
    ]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=deployment.directory,
            env=python_environment(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield log.read_text
    finally:
        kill(process.pid)
        process.wait(timeout=10)


@pytest.mark.slow
def test_plain_celery_beat_keeps_a_store_in_order(
    deploy: Callable[..., Deployment], redis_url: str
) -> None:
    far = deploy().directory / "far"
    deployment = deploy(
        redis_url,
        anchor_directory=far,
        health_check_seconds=1,
        snapshot_seconds=1,
        compaction_seconds=1,
        verify_seconds=1,
        anchor_seconds=1,
    )
    worker = deployment.worker()
    engine = deployment.app.commander.engine
    deployment.send("tiny", 1)

    with celery_beat(deployment) as log:
        for kind in ("check_health", "take_snapshot", "compact_log", "verify_log", "write_anchor"):
            await_done(worker, kind, lambda: f"{log()[-2000:]}\n{deployment.logs()}")
        deployment.wait_mark("plain", "mine")
        deployment.wait_mark("plain", "instead")

    assert "Task celery_commander.sweep[" not in worker.log()  # the app's entry of that name won
    assert engine.snapshots()
    anchors = AnchorDirectory(far).read(engine.log_id)
    assert engine.verify_integrity(anchors=anchors).anchored_to == str(anchors[-1])


def await_done(worker: Worker, kind: str, told: Callable[[], str]) -> None:
    def done() -> bool:
        lines = [line for line in worker.log().splitlines() if "succeeded" in line]
        return any(f"Task celery_commander.{kind}[" in line for line in lines)

    wait_until(done, what=lambda: f"{kind}\n{told()}")


def test_what_is_fired_twice_at_one_instant_is_done_once(
    deploy: Callable[..., Deployment], redis_url: str
) -> None:
    """Several beats fired everything twice; see celery/celery issue 2856."""
    deployment = deploy(redis_url, log_degraded_bytes=4_000)
    engine = deployment.app.commander.engine
    for number in range(50):
        engine.append("a.note", {"number": number}, wait=True)

    answers = {kind: fire_twice(deployment, kind) for kind in ("take_snapshot", "check_health")}
    workers = [deployment.worker(name, concurrency=1) for name in ("w1", "w2")]
    told = {
        kind: [result.get(timeout=PATIENCE_SECONDS) for result in both]
        for kind, both in answers.items()
    }
    told["compact_log"] = [
        result.get(timeout=PATIENCE_SECONDS) for result in fire_twice(deployment, "compact_log")
    ]

    # An idle worker may begin before the second is even sent; then that one finds nothing left to do.
    assert [sum("skipped" in each for each in both) for both in told.values()] == [1, 1, 1], told
    assert HELD in told["take_snapshot"]
    assert HELD in told["check_health"]
    assert len(engine.snapshots()) == 1
    assert [event.type for event in engine.read_from(None)].count("wal.compacted") == 1
    assert all(worker.running for worker in workers)


def fire_twice(deployment: Deployment, kind: str) -> list[Any]:
    task = deployment.app.tasks[f"celery_commander.{kind}"]
    return [task.delay(), task.delay()]


def test_the_beat_inside_a_worker_writes_to_the_log_and_to_nothing_else(
    deploy: Callable[..., Deployment], redis_url: str
) -> None:
    """See celery/celery#3029: the child of `worker -B` closes every descriptor, and the numbers are used again."""
    deployment = deploy(redis_url, health_check_seconds=1, sweep_seconds=1)
    schedule = deployment.directory / "schedule"
    environment = {"COMMANDER_HEALTH_CHECK_SECONDS": "1"}
    options = ["-B", "--schedule", str(schedule)]
    worker = deployment.worker(env=environment, options=options, module="tests.celery.beat_app")

    def sent_by_beat() -> int:
        events = deployment.app.commander.engine.read_from(None)
        return sum(event.type == "task.sent" for event in events)

    wait_until(lambda: sent_by_beat() >= 2, what="two tasks that the inner beat has sent")
    run_id = deployment.send("flow_safe", "ann")
    deployment.wait_ended(run_id)
    assert worker.running
    assert deployment.app.commander.engine.verify_integrity().status.is_good
    for path in deployment.directory.glob("schedule*"):
        assert b"|task.sent|" not in path.read_bytes(), path
