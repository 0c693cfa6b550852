"""Health as real workers make it: what is not consumed, not recovered or not renewed is said."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from typing import Any

import pytest

from celery_commander.engine import Health, HealthReport, State
from tests.celery.conftest import Deployment
from tests.celery.test_outages import wal_of
from tests.kit import Line, wait_until

pytestmark = [pytest.mark.celery, pytest.mark.crash]

# On a loaded machine a disk may well be slow; that is not what these tests are about.
CALM = {"latency_degraded_seconds": 500, "latency_unhealthy_seconds": 500}
QUICK = {**CALM, "queue_check_seconds": 0.5, "consume_stale_seconds": 1.5}


def report_of(deployment: Deployment) -> HealthReport:
    report: HealthReport = deployment.app.commander.health.report()
    return report


def wait_health(
    deployment: Deployment, status: Health, reason: str = "", *, seconds: float = 30.0
) -> HealthReport:
    """Return the report once it has a status and, if asked for, a reason."""

    def found() -> HealthReport | None:
        report = report_of(deployment)
        said = not reason or any(re.search(reason, text) for text in report.reasons)
        return report if report.status is status and said else None

    return wait_until(
        found,
        seconds=seconds,
        what=lambda: f"{status} {reason}: {report_of(deployment)}\n{deployment.logs()}",
    )


def changes(deployment: Deployment) -> list[tuple[str, str]]:
    events = deployment.app.commander.engine.read_from(None)
    return [(e.payload["from"], e.payload["to"]) for e in events if e.type == "health.changed"]


def test_a_worker_that_takes_nothing_is_degraded_and_healthy_once_it_does(
    deploy: Callable[..., Deployment], redis_url: str
) -> None:
    """After a broker reconnect the worker lived, consumed nothing, and its probes were green; see celery#8030."""
    deployment = deploy(redis_url, **QUICK)
    deployment.worker(concurrency=1)
    deployment.wait_ended(deployment.send("tiny", 1))
    wait_health(deployment, Health.HEALTHY)
    queue = deployment.app.conf.task_default_queue

    assert told(deployment.app.control.cancel_consumer(queue, reply=True, timeout=10, limit=1))
    waiting = deployment.send("tiny", 2)
    wait_health(deployment, Health.DEGRADED, f"queue {queue} holds 1 messages")

    assert told(deployment.app.control.add_consumer(queue, reply=True, timeout=10, limit=1))
    deployment.wait_ended(waiting)
    wait_health(deployment, Health.HEALTHY)
    wait_until(
        lambda: changes(deployment)[-2:] == [("healthy", "degraded"), ("degraded", "healthy")],
        what=lambda: f"both changes: {changes(deployment)}",
    )


def told(replies: list[dict[str, Any]]) -> bool:
    return any("ok" in reply for each in replies for reply in each.values())


def test_leases_of_running_work_are_renewed_while_the_broker_is_away(
    deploy: Callable[..., Deployment], redis_url: str
) -> None:
    with Line(redis_url) as line:
        deployment = deploy(line.url, **QUICK, lease_seconds=1.5)
        gate = deployment.witness.hold("one")
        deployment.worker(concurrency=1)
        run_id = deployment.send("flow", "ann")
        deployment.wait_mark("begin", "one", "ann")
        leases = deployment.app.commander.leases

        line.cut()
        wait_health(deployment, Health.DEGRADED, "cannot ask the broker")
        first = leases.get(run_id)
        assert first is not None

        def renewed() -> bool:
            row = leases.get(run_id)
            assert row is not None
            assert row.token == first.token
            return bool(row.expires_at >= first.expires_at + 3)  # two whole lives of a lease

        wait_until(renewed, what="the lease to be renewed without a broker")
        upkeep = leases.upkeep()
        assert (upkeep.held, upkeep.zombies) == (1, 0)
        gate.unlink()
        deployment.wait_mark("did", "three", "ann")
        line.mend()

        (state,) = deployment.wait_ended(run_id)
        assert (state.state, state.attempt) == (State.COMMITTED, 1)
        wait_health(deployment, Health.HEALTHY)


def test_a_log_lost_at_the_start_is_not_passed_over(deploy: Callable[..., Deployment]) -> None:
    """A lock that failed in an init signal was swallowed, and everything ran unprotected; see redbeat#240."""
    deployment = deploy(**CALM)
    gate = deployment.witness.hold("body")
    worker = deployment.worker("w1", concurrency=1)
    left = deployment.send("flow_pause", "ann")
    deployment.wait_mark("body", "ann")
    worker.kill_group()
    gate.unlink()

    late = deployment.worker("w2", concurrency=1, module="tests.celery.breaking_app")
    late.wait_log("Recovery stops here")
    report = report_of(deployment)
    assert report.status is Health.UNHEALTHY
    wait_health(deployment, Health.UNHEALTHY, "w2.*recovers nothing")
    assert deployment.app.commander.health.probe() != []
    wal = wal_of(deployment)
    wal.with_suffix(".away").rename(wal)

    (state,) = deployment.wait_ended(left)
    assert state.state is State.COMMITTED
    wait_health(deployment, Health.HEALTHY)


def test_a_worker_does_not_start_on_a_log_that_takes_nothing(deployment: Deployment) -> None:
    deployment.app.commander.engine.append("note", {})
    (deployment.app.commander.engine.directory / "POISONED").touch(0o600)

    with pytest.raises(RuntimeError, match="poisoned"):
        deployment.worker()


def test_a_process_that_stopped_renewing_is_said(deploy: Callable[..., Deployment]) -> None:
    """Only the renewal of a living process can stall: a dead one's lease is free at once."""
    deployment = deploy(**CALM, lease_seconds=4)
    deployment.witness.hold("body")
    worker = deployment.worker(concurrency=1)
    run_id = deployment.send("flow_pause", "ann")
    deployment.wait_mark("body", "ann")
    row = deployment.app.commander.leases.get(run_id)
    named = re.search(r"-(\d+)@", row.holder)
    assert named is not None
    pid = int(named[1])
    assert pid in worker.pool()

    os.kill(pid, signal.SIGSTOP)
    try:
        wait_until(
            deployment.app.commander.health.probe, what="the stalled renewal to fail the probe"
        )
    finally:
        os.kill(pid, signal.SIGCONT)


def test_workers_that_share_a_broker_but_not_a_store_say_so(
    deploy: Callable[..., Deployment], redis_url: str
) -> None:
    ours, theirs = deploy(redis_url, **QUICK), deploy(redis_url, **QUICK)
    ours.worker("ours")
    wait_health(ours, Health.HEALTHY)

    stranger = theirs.worker("theirs")

    for deployment, other in ((ours, theirs), (theirs, ours)):
        log_id = other.app.commander.engine.log_id
        wait_health(deployment, Health.UNHEALTHY, f"works with log {log_id}")
    assert stranger.running
