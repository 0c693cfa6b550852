"""What the workers report, what is made of it, and who is told that it has changed."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from celery.worker import state as worker_state

from celery_commander.engine import (
    Database,
    Findings,
    Health,
    HealthReport,
    HealthStore,
    Metric,
    WorkerReport,
)
from celery_commander.tasks.recovery import FAILED, Detail
from celery_commander.tasks.reporting import Reporter
from celery_commander.tasks.worker_facts import judge_workers
from tests.kit import ManualClock
from tests.tasks.bench import Bench, passed

FINE = {"log_id": "log", "recovery": "complete", "quiet_seconds": 0.0, "queues": []}


def idle() -> None:
    """Do nothing."""


def judged(*facts: dict[str, Any], stale_seconds: float = 60.0) -> HealthReport:
    found = Findings()
    reports = [WorkerReport(f"w{n}@h", 1.0, {**FINE, **each}) for n, each in enumerate(facts, 1)]
    judge_workers(found, reports, log_id="log", stale_seconds=stale_seconds)
    return found.report()


def queue(name: str = "q", waiting: int | None = 0, *, consuming: bool = True) -> dict[str, Any]:
    return {"name": name, "waiting": waiting, "consuming": consuming}


class TestJudging:
    def test_no_worker_at_all_is_degraded(self) -> None:
        report = judged()

        assert report.status is Health.DEGRADED
        assert "no worker reports" in report.reasons[0]

    def test_a_worker_that_does_all_it_should_is_healthy(self) -> None:
        report = judged({"queues": [queue(waiting=5)]})

        assert (report.status, report.reasons) == (Health.HEALTHY, ())

    def test_a_worker_with_another_log_is_unhealthy(self) -> None:
        assert judged({}, {"log_id": "elsewhere"}).status is Health.UNHEALTHY
        assert judged({"other_logs": {"w9@h": "elsewhere"}}).status is Health.UNHEALTHY

    def test_a_worker_that_is_sent_messages_of_another_log_names_both(self) -> None:
        seen = {"theirs": {"count": 2, "run_id": "r", "task": "pay"}}

        report = judged({"where": "/ours", "foreign": seen})

        assert report.status is Health.UNHEALTHY
        for words in ("log in /ours", "messages of log theirs", "task pay", "one state directory"):
            assert words in report.reasons[0]

    @pytest.mark.parametrize(
        "recovery, expected",
        [
            ("pending", Health.DEGRADED),
            ("incomplete", Health.DEGRADED),
            ("refused", Health.UNHEALTHY),
            ("complete", Health.HEALTHY),
        ],
    )
    def test_recovery_that_is_not_complete_is_said(self, recovery: str, expected: Health) -> None:
        """A readiness that is green although failed runs were never handled; see dbos-transact-py#716."""
        assert judged({"recovery": recovery, "recovery_reason": "why"}).status is expected

    @pytest.mark.parametrize(
        "waiting, quiet_seconds, expected",
        [
            (3, 59.9, Health.HEALTHY),
            (3, 60.0, Health.DEGRADED),
            (0, 900.0, Health.HEALTHY),
            (None, 900.0, Health.HEALTHY),
        ],
    )
    def test_messages_that_nobody_takes_are_said(
        self, waiting: int | None, quiet_seconds: float, expected: Health
    ) -> None:
        """After a reconnect the worker lived and consumed nothing; see celery#8030."""
        facts = {"queues": [queue(waiting=waiting)], "quiet_seconds": quiet_seconds}

        assert judged(facts).status is expected

    def test_a_queue_that_was_left_on_purpose_is_anothers(self) -> None:
        left = {"queues": [queue(waiting=3, consuming=False)], "quiet_seconds": 99.0}

        assert judged(left).status is Health.DEGRADED
        assert judged(left, {"queues": [queue(waiting=3)]}).status is Health.HEALTHY

    def test_a_broker_that_cannot_be_asked_is_said(self) -> None:
        assert judged({"broker": "Connection refused"}).status is Health.DEGRADED

    def test_contributed_numbers_are_summed_and_texts_are_reasons(self) -> None:
        first = {"contributed": {"subscriber": {"dropped": 2, "degraded": None, "name": "x"}}}
        second = {"contributed": {"subscriber": {"dropped": 3, "degraded": "3 events dropped"}}}

        report = judged(first, second)

        assert report.metric("subscriber_dropped") == Metric.judged("subscriber_dropped", 5, "")
        assert report.reasons == ("worker w2@h: 3 events dropped",)
        assert report.status is Health.DEGRADED


class TestReports:
    def store(self, path: Path, clock: ManualClock) -> HealthStore:
        return HealthStore(Database(path / "health.sqlite"), clock.boot_clock())

    def test_a_worker_has_one_row_and_takes_it_along(
        self, tmp_path: Path, clock: ManualClock
    ) -> None:
        store = self.store(tmp_path, clock)
        store.put("w1", {"n": 1})
        store.put("w1", {"n": 2})
        store.put("w2", {"n": 3})
        clock.advance(5)

        found = store.reports(younger_than_seconds=60)
        assert found == [WorkerReport("w1", 5, {"n": 2}), WorkerReport("w2", 5, {"n": 3})]

        store.withdraw("w1")
        assert [report.source for report in store.reports(younger_than_seconds=60)] == ["w2"]

    def test_what_is_old_or_of_another_boot_is_nobodys(
        self, tmp_path: Path, clock: ManualClock
    ) -> None:
        store = self.store(tmp_path, clock)
        store.put("w1", {})
        clock.advance(61)
        assert store.reports(younger_than_seconds=60) == []

        clock.reboot()
        again = self.store(tmp_path, clock)
        assert again.reports(younger_than_seconds=1e9) == []

    def test_news_is_told_to_one_only(self, tmp_path: Path, clock: ManualClock) -> None:
        one, other = self.store(tmp_path, clock), self.store(tmp_path, clock)

        assert one.change("shop", "healthy") is None
        assert one.change("shop", "degraded") == "healthy"
        assert other.change("shop", "degraded") is None
        assert other.change("shop", "unhealthy") == "degraded"
        assert other.change("bank", "degraded") == "healthy"


class TestReporting:
    def test_a_worker_that_reported_makes_the_whole_healthy(
        self, bench: Bench, reporter: Reporter
    ) -> None:
        report = bench.app.commander.health.report()

        assert report.status is Health.HEALTHY, report.reasons
        assert report.metric("workers") == Metric.judged("workers", 1, "workers")

    def test_a_worker_that_stops_on_purpose_leaves_no_row(
        self, bench: Bench, reporter: Reporter
    ) -> None:
        reporter.withdraw()

        assert bench.app.commander.health.report().status is Health.DEGRADED

    def test_what_recovery_came_to_is_reported(self, reporter: Reporter) -> None:
        def said() -> tuple[str, str | None]:
            return reporter.facts()["recovery"], reporter.facts()["recovery_reason"]

        reporter.note_pass(passed("the log is poisoned"))
        assert said() == ("refused", "the log is poisoned")
        reporter.note_pass(passed(None, Detail("r1", "skip", f"{FAILED}: no module")))
        assert said() == (
            "incomplete",
            f"1 runs could not be handled, r1: {FAILED}: no module",
        )
        reporter.note_pass(None, RuntimeError("out of memory"))
        assert said() == ("incomplete", "out of memory")
        reporter.note_pass(passed(None, Detail("r1", "skip", "owner alive")))
        assert said() == ("complete", None)

    def test_messages_that_wait_make_a_free_worker_quiet(
        self, bench: Bench, reporter: Reporter, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now = [1_000.0]
        monkeypatch.setattr("celery_commander.tasks.reporting.time.monotonic", lambda: now[0])
        reporter = Reporter(bench.app.commander)
        reporter.write()
        bench.task(idle, name="waiting")
        bench.send("waiting")

        now[0] += 20
        reporter.look()
        reporter.write()
        assert reporter.facts()["quiet_seconds"] == 20
        assert [one["waiting"] for one in reporter.facts()["queues"]] == [1]

        reporter.note_received()
        reporter.look()
        assert reporter.facts()["quiet_seconds"] == 0
        now[0] += 20
        reporter.look()
        assert reporter.facts()["quiet_seconds"] == 20
        request = type("Request", (), {})()
        worker_state.active_requests.add(request)
        reporter.look()
        assert reporter.facts()["quiet_seconds"] == 0  # it has no free hand
        worker_state.active_requests.discard(request)

    def test_the_broker_is_not_asked_at_every_turn(
        self, bench: Bench, reporter: Reporter, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked: list[object] = []

        def counted(app: object, names: Any) -> dict[str, int]:
            asked.append(names)
            return dict.fromkeys(names, 0)

        monkeypatch.setattr("celery_commander.tasks.reporting.messages_in", counted)

        for _ in range(5):
            reporter.write()

        assert asked == []  # it was asked when the fixture wrote

    def test_contributors_are_asked_at_each_report_and_may_fail(
        self, bench: Bench, reporter: Reporter
    ) -> None:
        health = bench.app.commander.health
        health.contribute("subscriber", lambda: {"dropped": 4})
        health.contribute("bus", lambda: {"undelivered": 1 / 0})
        reporter.write()

        report = health.report()

        assert report.metric("subscriber_dropped") == Metric.judged("subscriber_dropped", 4, "")
        assert any("bus could not be asked" in reason for reason in report.reasons)
        assert report.status is Health.DEGRADED

    def test_a_database_that_cannot_be_written_stops_nobody(
        self, bench: Bench, reporter: Reporter, caplog: pytest.LogCaptureFixture
    ) -> None:
        bench.app.commander.close()
        path = bench.app.commander.engine_settings.health_path
        path.unlink()
        path.mkdir()

        reporter.write()

        assert "was not written" in caplog.text
        report = bench.app.commander.health.report()
        assert report.status is Health.UNHEALTHY
        assert any("the workers cannot be asked" in reason for reason in report.reasons)


class TestChecking:
    def test_a_change_is_told_once_in_the_log(self, bench: Bench, reporter: Reporter) -> None:
        health = bench.app.commander.health
        health.check()
        reporter.withdraw()
        health.check()
        health.check()
        reporter.write()
        health.check()

        events = [
            event.payload
            for event in bench.app.commander.engine.read_from(None)
            if event.type == "health.changed"
        ]
        assert [(event["from"], event["to"]) for event in events] == [
            ("healthy", "degraded"),
            ("degraded", "healthy"),
        ]
        assert any("no worker" in reason for reason in events[0]["reasons"])

    def test_a_store_that_cannot_be_opened_is_unhealthy_and_no_error(self, bench: Bench) -> None:
        wal = bench.app.commander.engine_settings.event_sourcing_wal
        wal.parent.mkdir(parents=True)
        wal.write_text("somebody's notes\n")
        health = bench.app.commander.health

        assert health.report().status is Health.UNHEALTHY
        assert health.check().status is Health.UNHEALTHY
        assert "not a celery-wal log" in str(health.problem())
        assert health.probe() != []

    def test_a_poisoned_log_is_told_to_those_who_listen(
        self, bench: Bench, reporter: Reporter, caplog: pytest.LogCaptureFixture
    ) -> None:
        (bench.app.commander.engine.directory / "POISONED").touch()

        with caplog.at_level(logging.WARNING):
            report = bench.app.commander.health.check()

        assert report.status is Health.UNHEALTHY
        assert "Health: unhealthy, was healthy" in caplog.text


class TestRecovery:
    def test_nothing_is_decided_from_a_broken_log(self, bench: Bench) -> None:
        commander = bench.app.commander
        bench.task(idle, name="body")
        bench.send("body")
        flip_last_byte(commander.engine.path)
        assert not commander.engine.verify_integrity().status.name.startswith("OK")

        result = commander.bootstrapper.bootstrap(force_abort=True)

        assert "the chain does not hold" in str(result.refused)
        assert (result.scanned, result.details) == (0, ())

    def test_a_refusal_is_in_the_log_once_if_it_takes_that(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        commander = bench.app.commander
        why = ["the chain does not hold"]
        monkeypatch.setattr(commander.health, "problem", lambda: why[0] if why else None)

        commander.bootstrapper.bootstrap(dry_run=True)
        assert types_of(commander) == ["wal.created"]
        for _ in range(3):
            commander.bootstrapper.bootstrap()
        commander.bootstrapper.bootstrap(dry_run=True)
        why.clear()
        assert commander.bootstrapper.bootstrap().refused is None

        swept = [e.payload for e in commander.engine.read_from(None) if e.type == "recovery.swept"]
        assert [payload["refused"] for payload in swept] == ["the chain does not hold"]

    def test_a_poisoned_log_is_refused_without_a_word_in_it(self, bench: Bench) -> None:
        commander = bench.app.commander
        head = commander.engine.head()
        (commander.engine.directory / "POISONED").touch()

        assert "poisoned" in str(commander.bootstrapper.bootstrap().refused)
        assert commander.engine.head() == head


def types_of(commander: Any) -> list[str]:
    return [event.type for event in commander.engine.read_from(None)]


def flip_last_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-10] ^= 1
    path.write_bytes(content)
