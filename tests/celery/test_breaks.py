"""A break is found under a working worker: nothing starts unrecorded, nothing is lost, a person lets it go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from celery_commander.engine import Event, Health, LogBroken, State, Status
from tests.celery.conftest import Deployment
from tests.celery.test_outages import wal_of
from tests.engine.logs import flip

pytestmark = [pytest.mark.celery, pytest.mark.crash]


def damage(path: Path, event: Event) -> int:
    """Change a byte of an event's payload; return where."""
    at = event.position.offset + 150
    flip(path, at)
    return at


@pytest.mark.parametrize("remedy", ["the right file", "a person's word"])
def test_bodies_wait_until_a_person_acts_and_plain_tasks_run_on(
    deployment: Deployment, remedy: str
) -> None:
    engine = deployment.app.commander.engine
    note = engine.append("note", {"text": "this will be changed"})
    gate = deployment.witness.hold("body")
    worker = deployment.worker(concurrency=1)
    running, waiting = deployment.send("flow_pause", "ann"), deployment.send("flow_safe", "bob")
    deployment.wait_mark("body", "ann")

    at = damage(wal_of(deployment), note)
    assert engine.verify_integrity().status is Status.CORRUPT
    gate.unlink()
    worker.wait_log(f"Run {running} stops here: The log is broken at event {note.seq}")
    worker.wait_log(f"Run {waiting} was not started and is handed back: The log is broken")
    assert deployment.witness.count("begin") == 0
    with pytest.raises(LogBroken):
        deployment.send("tiny", 1)
    plain = deployment.send("plain", 7)
    assert deployment.wait_result(plain).get() == 7
    report = deployment.app.commander.health.report()
    assert report.status is Health.UNHEALTHY
    assert any(f"broken at event {note.seq}" in reason for reason in report.reasons)
    assert deployment.app.commander.health.probe()

    if remedy == "the right file":
        flip(wal_of(deployment), at)
        assert engine.breaks.lift(engine.verify_integrity())
    else:
        engine.breaks.accept("ann")
    expected = Status.OK_UNANCHORED if remedy == "the right file" else Status.BREAK_ACCEPTED
    assert engine.verify_integrity().status is expected
    states = deployment.wait_ended(running, waiting)
    assert [state.state for state in states] == [State.COMMITTED] * 2
    assert deployment.witness.count("did", "one", "ann") == 1
    assert deployment.witness.count("did", "three", "bob") == 1
    assert engine.verify_integrity().status is expected


def test_a_run_that_may_lack_an_event_waits_for_a_person(deployment: Deployment) -> None:
    """That it was claimed is what was damaged, so by its history it never began."""
    engine = deployment.app.commander.engine
    gate = deployment.witness.hold("body")
    worker = deployment.worker(concurrency=1)
    run = deployment.send("flow_pause", "ann")
    deployment.wait_mark("body", "ann")
    started = [event for event in engine.history(run) if event.type == "run.started"][-1]
    engine.append("note", {})
    worker.kill_group()
    gate.unlink()
    damage(wal_of(deployment), started)
    assert engine.verify_integrity().status is Status.CORRUPT
    engine.breaks.accept("ann")
    engine.verify_integrity()

    deployment.worker("w2").wait_log("ready")
    other = deployment.send("flow_safe", "bob")
    (state,) = deployment.wait_ended(other)
    assert state.state is State.COMMITTED
    deployment.app.commander.bootstrapper.bootstrap()
    state = deployment.state(run)
    assert (state.state, state.paused_kind) == (State.PAUSED, "damage")
    assert deployment.witness.count("did", "one", "ann") == 0


def test_a_worker_does_not_start_on_a_broken_log(deployment: Deployment) -> None:
    engine = deployment.app.commander.engine
    note = engine.append("note", {"text": "this will be changed"})
    damage(wal_of(deployment), note)
    engine.verify_integrity()
    with pytest.raises(RuntimeError, match=rf"The log is broken at event {note.seq}"):
        deployment.worker()
