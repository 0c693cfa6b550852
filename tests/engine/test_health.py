"""Health answers at once, from what is known anyhow; what cannot be asked is unhealthy, with the reason."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_commander.engine import (
    Database,
    EventSourcingEngine,
    Findings,
    Health,
    Metric,
    NewEvent,
    RunLedger,
    Settings,
    worst,
)
from celery_commander.engine.files import Files
from celery_commander.engine.health import measure_letters
from celery_commander.engine.letters import Category
from celery_commander.engine.wal import FileLog
from tests.kit import ManualClock

from .healths import DEGRADED, HEALTHY, UNHEALTHY, Open, status_of
from .ledgers import write
from .logs import BOOT, active

STUCK = ("run.created", "run.started@1", "run.aborted@1", "run.stuck@1")


def ledger_of(engine: EventSourcingEngine) -> RunLedger:
    ledger = RunLedger(Database(engine.settings.ledger_path), engine)
    ledger.catch_up()
    return ledger


@given(
    st.one_of(st.none(), st.floats(0, 1e12)), st.floats(0, 1e12), st.floats(0, 1e12), st.booleans()
)
def test_reaching_a_limit_is_crossing_it_in_either_direction(
    value: float | None, one: float, other: float, rising: bool
) -> None:
    low, high = sorted((one, other))
    degraded_at, unhealthy_at = (low, high) if rising else (high, low)

    metric = Metric.judged(
        "m",
        value,
        "things",
        degraded_at=degraded_at,
        unhealthy_at=unhealthy_at,
        little_is_bad=not rising,
    )

    if value is None:
        expected = HEALTHY
    elif rising:
        expected = UNHEALTHY if value >= high else DEGRADED if value >= low else HEALTHY
    else:
        expected = UNHEALTHY if value <= low else DEGRADED if value <= high else HEALTHY
    assert metric.status is expected
    assert (metric.reason is None) == (expected is HEALTHY)


@given(st.lists(st.sampled_from(Health)))
def test_the_whole_is_as_its_worst_part(states: list[Health]) -> None:
    order = [HEALTHY, DEGRADED, UNHEALTHY]

    assert order.index(worst(states)) == max((order.index(state) for state in states), default=0)


def test_a_fresh_log_is_healthy_and_says_that_it_is_new(opened: Open) -> None:
    report = opened().health()

    assert report.status is HEALTHY
    assert len(report.reasons) == 1
    assert "newly made" in report.reasons[0]
    names = {metric.name for metric in report.metrics}
    assert names >= {"log_write_latency_p95", "live_log_size", "event_backlog", "chain_breaks"}


def test_a_log_is_new_for_an_hour(opened: Open, clock: ManualClock) -> None:
    engine = opened()
    clock.advance(3600)

    assert engine.health().reasons == ()


@pytest.mark.parametrize(
    "seconds, expected",
    [(0.049, HEALTHY), (0.05, DEGRADED), (0.199, DEGRADED), (0.2, UNHEALTHY)],
)
def test_the_write_latency_has_two_limits(opened: Open, seconds: float, expected: Health) -> None:
    engine = opened()
    for seq in range(100):
        engine.latency.note(seq, seconds)

    report = engine.health()

    assert status_of(report, "log_write_latency_p95") == (seconds, expected)
    assert report.status is expected


@pytest.mark.parametrize(
    "degraded, unhealthy, expected",
    [(1, 2, HEALTHY), (0, 1, DEGRADED), (-1, 0, UNHEALTHY)],
)
def test_the_live_log_counts_with_its_segments(
    opened: Open, degraded: int, unhealthy: int, expected: Health
) -> None:
    engine = opened()
    segments = engine.directory / "segments"
    segments.mkdir()
    (segments / "1.wal").write_bytes(b"x" * 1000)
    size = engine.path.stat().st_size + 1000

    report = opened(
        log_degraded_bytes=size + degraded, log_unhealthy_bytes=size + unhealthy
    ).health()

    assert status_of(report, "live_log_size") == (size, expected)


@pytest.mark.parametrize(
    "degraded, unhealthy, expected", [(5, 6, HEALTHY), (4, 5, DEGRADED), (3, 4, UNHEALTHY)]
)
def test_the_backlog_is_the_events_of_unfinished_runs(
    opened: Open, degraded: int, unhealthy: int, expected: Health
) -> None:
    engine = opened(backlog_degraded_events=degraded, backlog_unhealthy_events=unhealthy)
    write(engine, "open", ("run.created", "run.started@1"))
    write(engine, "waiting", ("run.created", "run.started@1"))
    write(engine, "over", (*STUCK, "run.delivered@1"))
    ledger_of(engine)

    assert status_of(engine.health(), "event_backlog") == (4, expected)


def test_without_a_ledger_every_event_is_backlog(opened: Open) -> None:
    engine = opened(backlog_degraded_events=3)
    engine.append_many([NewEvent("note", {})])
    assert engine.health().status is HEALTHY

    engine.append_many([NewEvent("note", {})])

    assert status_of(engine.health(), "event_backlog") == (3, DEGRADED)
    assert not engine.settings.ledger_path.exists()


@pytest.mark.parametrize("degraded_at, expected", [(2**60, DEGRADED), (0, HEALTHY)])
def test_free_disk_is_bad_when_there_is_little(
    opened: Open, degraded_at: int, expected: Health
) -> None:
    engine = opened(disk_degraded_bytes=degraded_at, disk_unhealthy_bytes=0)

    assert status_of(engine.health(), "free_disk")[1] is expected


def test_a_disk_that_is_as_good_as_full_is_unhealthy(opened: Open) -> None:
    limits = {"disk_degraded_bytes": 2**60, "disk_unhealthy_bytes": 2**59}

    report = opened(**limits).health()

    assert report.status is UNHEALTHY
    assert any("free_disk is" in reason for reason in report.reasons)


class TestTheLedger:
    def test_a_run_that_needs_a_person_degrades(self, opened: Open) -> None:
        engine = opened()
        write(engine, "stuck", STUCK)
        ledger_of(engine)

        assert status_of(engine.health(), "stuck_runs") == (1, DEGRADED)

    def test_dropped_observations_are_counted_for_ever_and_a_fault_for_a_while(
        self, opened: Open, clock: ManualClock
    ) -> None:
        engine = opened(unrecorded_seconds=600)
        engine.append("subscriber.gap", {"count": 5, "since": "then"})
        ledger_of(engine).catch_up()

        report = engine.health()
        assert status_of(report, "dropped_observations") == (5, HEALTHY)
        assert report.status is DEGRADED
        assert any("observations were dropped" in reason for reason in report.reasons)

        clock.advance(601)
        assert status_of(engine.health(), "dropped_observations") == (5, HEALTHY)
        assert engine.health().status is HEALTHY

    def test_a_run_that_went_by_unrecorded_is_unhealthy_for_a_while(
        self, opened: Open, clock: ManualClock
    ) -> None:
        engine = opened(unrecorded_seconds=600)
        write(engine, "r", ("run.created", ("run.degraded", {"task": "t", "reason": "no log"})))
        ledger_of(engine)
        assert status_of(engine.health(), "unrecorded_runs") == (1, UNHEALTHY)

        clock.advance(601)

        assert status_of(engine.health(), "unrecorded_runs") == (0, HEALTHY)

    def test_a_ledger_that_cannot_be_asked_is_unhealthy(self, opened: Open) -> None:
        engine = opened()
        engine.settings.ledger_path.write_bytes(b"no database" * 1000)

        report = engine.health()

        assert report.status is UNHEALTHY
        assert any("the ledger cannot be asked" in reason for reason in report.reasons)
        assert report.metric("live_log_size") is not None  # the other questions were asked

    @pytest.mark.parametrize(
        "counts, expected",
        [
            ({}, HEALTHY),
            ({"poison": 9}, HEALTHY),
            ({"poison": 10}, DEGRADED),
            ({"in_doubt": 1}, DEGRADED),
            ({"version_conflict": 1}, DEGRADED),
            ({"stuck": 1}, DEGRADED),
        ],
    )
    def test_dead_letters_count_and_one_for_a_person_is_enough(
        self, counts: dict[str, int], expected: Health
    ) -> None:
        found = Findings()

        measure_letters(found, {Category(name): n for name, n in counts.items()}, degraded_at=10)

        assert found.status is expected
        assert status_of(found.report(), "dead_letters")[0] == sum(counts.values())

    def test_the_letters_of_the_ledger_are_counted(self, opened: Open) -> None:
        engine = opened()
        write(engine, "stuck", STUCK)
        ledger_of(engine)

        assert status_of(engine.health(), "dead_letters_for_a_person") == (1, DEGRADED)


class CountingFiles(Files):
    """Count what is read of any file."""

    def __init__(self) -> None:
        self.bytes_read = 0

    def read(self, fd: int, size: int, offset: int) -> bytes:
        data = super().read(fd, size, offset)
        self.bytes_read += len(data)
        return data


def test_asking_reads_no_more_of_a_long_log_than_of_a_short_one(
    tmp_path: Path, clock: ManualClock
) -> None:
    files, settings = CountingFiles(), Settings.at(active(tmp_path))
    log = FileLog(settings, files, now=clock.wall, boot_id=BOOT)
    with EventSourcingEngine(log, settings, clock.wall) as engine:
        log.settle()
        ledger = ledger_of(engine)
        engine.health()

        def cost() -> int:
            before = files.bytes_read
            assert engine.health().status is HEALTHY
            return files.bytes_read - before

        short = cost()
        for _ in range(20):
            engine.append_many([NewEvent("note", {"text": "x" * 500})] * 200, wait=False)
        ledger.catch_up()

        assert cost() == short
        assert short < 10_000


def test_the_ledger_is_asked_by_its_indexes(opened: Open) -> None:
    """A full scan of the runs would make asking slow exactly when there is much to ask about."""
    engine = opened()
    write(engine, "r")
    ledger_of(engine)
    plans = []
    with sqlite3.connect(engine.settings.ledger_path) as connection:
        for where in ("state = 'STUCK'", "degraded = 1 AND changed_at >= 5", "settled = 0"):
            rows = connection.execute(f"EXPLAIN QUERY PLAN SELECT count(*) FROM runs WHERE {where}")
            plans += [row[3] for row in rows]
    connection.close()

    assert len(plans) == 3
    assert all("INDEX runs_" in plan for plan in plans), plans
