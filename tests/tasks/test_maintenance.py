"""Maintenance by tasks: each round is done by one, answered by all, and leaves what it promises."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from celery_commander.engine import AnchorDirectory, Status, durable_anchor
from celery_commander.tasks import Commander
from celery_commander.tasks.maintenance import ASKED_AT, LEASE_PREFIX

HELD = {"skipped": "held"}
KINDS = (
    "check_health",
    "take_snapshot",
    "compact_log",
    "verify_log",
    "sweep",
    "write_anchor",
)

Make = Callable[..., Commander]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def made(**settings: Any) -> Commander:
        app = Celery("kept", broker="memory://", backend="cache+memory://", set_as_current=False)
        app.conf.task_default_queue = tmp_path.name
        return Commander(app, state_directory=tmp_path / "state", **settings)

    return made


def run(commander: Commander, kind: str, **headers: Any) -> Any:
    """Do what a worker does with the message of a round."""
    task = commander.app.tasks[f"celery_commander.{kind}"]
    return task.apply(headers=headers).get()


def fill(commander: Commander, events: int = 5) -> None:
    for number in range(events):
        commander.engine.append("a.note", {"number": number}, wait=True)


def lease_of(commander: Commander, kind: str) -> str:
    own = f"/{commander.namespace}" if kind in ("check_health", "sweep") else ""
    return f"{LEASE_PREFIX}{kind}{own}"


@pytest.mark.parametrize("kind", KINDS)
def test_a_round_that_another_worker_does_is_skipped(make: Make, kind: str) -> None:
    commander = make()
    lease = commander.recovery_holder.acquire(lease_of(commander, kind), floor=0)
    assert lease is not None

    assert run(commander, kind) == HELD

    commander.recovery_holder.release(lease)
    assert run(commander, kind) != HELD


@pytest.mark.parametrize("kind", ["check_health", "verify_log", "sweep"])
def test_a_round_that_was_done_since_it_was_asked_for_is_skipped(make: Make, kind: str) -> None:
    commander = make()
    before, ahead = datetime.now(UTC), datetime.now(UTC) + timedelta(hours=1)

    assert run(commander, kind, **{ASKED_AT: before.isoformat()}) != HELD
    assert run(commander, kind, **{ASKED_AT: before.isoformat()}) == HELD
    assert run(commander, kind, **{ASKED_AT: ahead.isoformat()}) != HELD
    assert run(commander, kind) != HELD  # sent by name from elsewhere


def test_a_round_that_failed_is_done_by_the_next_who_was_asked(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    commander = make()
    asked = {ASKED_AT: datetime.now(UTC).isoformat()}

    def fail() -> None:
        raise RuntimeError("no disk")

    with monkeypatch.context() as patched:
        patched.setattr(commander.health, "check", fail)
        with pytest.raises(RuntimeError, match="no disk"):
            run(commander, "check_health", **asked)

    assert run(commander, "check_health", **asked) != HELD


def test_a_clock_that_went_back_keeps_nobody_from_his_round(make: Make) -> None:
    commander = make()
    rounds = commander.store.rounds
    rounds.note("verify_log", datetime.now(UTC) + timedelta(hours=1))

    assert run(commander, "verify_log", **{ASKED_AT: datetime.now(UTC).isoformat()}) != HELD


def test_a_message_says_when_it_was_asked_for_and_goes_to_the_commanders_queue(
    make: Make, tmp_path: Path
) -> None:
    commander = make(queue=f"upkeep-{tmp_path.name}")
    start = datetime.now(UTC)
    commander.app.tasks["celery_commander.verify_log"].delay()

    with commander.app.connection_for_read() as connection:
        message = connection.SimpleQueue(f"upkeep-{tmp_path.name}").get(timeout=10)

    asked_at = datetime.fromisoformat(message.headers[ASKED_AT])
    assert start <= asked_at <= datetime.now(UTC)
    assert message.headers["task"] == "celery_commander.verify_log"


def test_health_is_checked(make: Make) -> None:
    commander = make()

    answer = run(commander, "check_health")

    assert answer["status"] == commander.health.report().status.value
    assert answer["reasons"] == len(commander.health.report().reasons)


def test_a_snapshot_is_taken_when_there_is_something_new(make: Make) -> None:
    commander = make()
    fill(commander)

    first = run(commander, "take_snapshot")
    again = run(commander, "take_snapshot")
    fill(commander)
    third = run(commander, "take_snapshot")

    assert again == {"skipped": "nothing new", "through": first["through"]}
    assert third["through"] > first["through"]
    assert [snapshot.id for snapshot in commander.engine.snapshots()] == [first["id"], third["id"]]


def test_a_log_is_compacted_at_half_of_the_size_that_degrades_health(make: Make) -> None:
    commander = make(log_degraded_bytes=20_000)
    fill(commander, 5)
    small = run(commander, "compact_log")
    fill(commander, 60)
    uncovered = run(commander, "compact_log")
    run(commander, "take_snapshot")
    before = commander.engine.live_bytes()
    done = run(commander, "compact_log")

    assert small["skipped"] == "small"
    assert uncovered["skipped"] == "no snapshot"
    assert done["removed_events"] >= 60
    assert commander.engine.live_bytes() <= before - done["reclaimed_bytes"] + 2_000
    assert commander.engine.verify_integrity().status is Status.OK_UNANCHORED


def test_verification_goes_on_where_it_ended_and_begins_anew_when_the_whole_is_due(
    make: Make,
) -> None:
    commander = make()
    fill(commander)
    first = run(commander, "verify_log")
    fill(commander)
    second = run(commander, "verify_log")
    last = commander.store.rounds.now() - timedelta(days=2)
    commander.store.rounds.note("verify_full", last)
    third = run(commander, "verify_log")

    assert [answer["from_seq"] for answer in (first, second, third)] == [0, first["events"], 0]
    assert {answer["status"] for answer in (first, second, third)} == {"OK_UNANCHORED"}


def test_what_does_not_hold_makes_health_unhealthy(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    commander = make()
    fill(commander, 20)
    wal = commander.engine.path
    raw = bytearray(wal.read_bytes())
    raw[len(raw) // 2] ^= 1
    wal.write_bytes(raw)

    answer = run(commander, "verify_log")

    assert answer["status"] == "CORRUPT"
    assert "The log does not hold (CORRUPT)" in caplog.text
    assert run(commander, "check_health")["status"] == "unhealthy"


def test_a_sweep_recovers_and_says_so(make: Make) -> None:
    answer = run(make(), "sweep")

    assert answer == {
        "scanned": 0,
        "recovered": 0,
        "aborted": 0,
        "skipped": 0,
        "refused": None,
        "letters_lapsed": 0,
    }


def test_anchors_are_written_outside_and_compared(make: Make, tmp_path: Path) -> None:
    commander = make(anchor_directory=tmp_path / "far")
    fill(commander)
    commander.engine.sync()

    written = run(commander, "write_anchor")
    again = run(commander, "write_anchor")
    verified = run(commander, "verify_log")

    (anchor,) = AnchorDirectory(tmp_path / "far").read(commander.engine.log_id)
    assert written == {"seq": anchor.seq}
    assert again == {"skipped": "anchored already", "seq": anchor.seq}
    assert (verified["status"], verified["anchored_to"]) == ("OK_ANCHORED", str(anchor))


def test_a_log_that_is_not_what_was_anchored_is_found_and_not_anchored(
    make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    commander = make(anchor_directory=tmp_path / "far")
    fill(commander)
    head = durable_anchor(commander.engine)
    assert head is not None
    AnchorDirectory(tmp_path / "far").write(dataclasses.replace(head, seq=head.seq + 100))

    refused = run(commander, "write_anchor")
    verified = run(commander, "verify_log")

    assert refused == {"refused": "the anchors know another log", "seq": head.seq}
    assert "verify it, and keep the anchors" in caplog.text
    assert verified["status"] == "TRUNCATED"


def test_without_a_place_there_are_no_anchors(make: Make) -> None:
    assert run(make(), "write_anchor") == {"skipped": "no anchor_directory"}


def test_health_hears_of_anchors_that_are_missing_late_or_unreadable(
    make: Make, tmp_path: Path
) -> None:
    commander = make(anchor_directory=tmp_path / "far", anchor_seconds=10)
    fill(commander)

    def said() -> str:
        return str(commander.health.contributed()["anchors"].get("degraded", "nothing"))

    never = said()
    run(commander, "write_anchor")
    fresh = said()
    (path,) = (tmp_path / "far").iterdir()
    head = durable_anchor(commander.engine)
    assert head is not None
    path.unlink()
    old = dataclasses.replace(head, at=head.at - timedelta(seconds=31))
    AnchorDirectory(tmp_path / "far").write(old)
    idle = said()
    fill(commander, 1)
    late = said()
    path.write_text("rubbish\n")

    assert (never, fresh, idle) == ("the log was never anchored", "nothing", "nothing")
    assert "the last anchor is 31 s old" in late
    assert "cannot be read" in said()
