"""How a report is shown: as JSON, with and without names, and as gauges."""

from __future__ import annotations

import json

from prometheus_client import CollectorRegistry

from celery_commander.engine import (
    HealthReport,
)
from celery_commander.tasks import document
from celery_commander.tasks.metrics import exposition, register
from celery_commander.tasks.reporting import Reporter
from tests.tasks.bench import Bench


class TestDocument:
    def report(self, bench: Bench) -> HealthReport:
        report: HealthReport = bench.app.commander.health.report()
        return report

    def test_it_is_json_and_tells_everything(self, bench: Bench) -> None:
        told = json.loads(json.dumps(document(self.report(bench), anonymous=False)))

        assert told["status"] == "degraded"
        assert told["metrics"]["event_backlog"] == {
            "value": 0,
            "unit": "events",
            "degraded_at": 1000,
            "unhealthy_at": 10000,
            "status": "healthy",
        }
        assert any("no worker" in reason for reason in told["reasons"])

    def test_the_anonymous_one_has_numbers_only(self, bench: Bench, reporter: Reporter) -> None:
        reporter._source = "worker@shop"
        reporter._broker = "redis at secret-host refused"
        reporter.write()

        told = document(self.report(bench), anonymous=True)

        assert told.keys() == {"status", "metrics"}
        text = json.dumps(told)
        engine = bench.app.commander.engine
        for secret in ("secret-host", str(engine.path), engine.log_id, "worker@"):
            assert secret not in text


class TestPrometheus:
    def test_each_number_is_a_gauge_with_its_unit(self, bench: Bench, reporter: Reporter) -> None:
        text = exposition(bench.app.commander)

        lines = text.splitlines()
        assert "commander_health 0.0" in lines
        assert "commander_workers 1.0" in lines
        assert any(line.startswith("commander_live_log_size_bytes ") for line in lines)
        assert "# TYPE commander_verification_age_seconds gauge" in lines
        assert "latency" not in text  # nothing was measured yet: no number rather than a wrong one

    def test_registering_opens_nothing_and_a_scrape_asks_anew(self, bench: Bench) -> None:
        registry = CollectorRegistry()
        collector = register(bench.app.commander, registry)
        assert not bench.app.commander.engine_settings.event_sourcing_wal.exists()

        assert registry.get_sample_value("commander_health") == 1
        (bench.app.commander.engine.directory / "POISONED").touch()
        assert registry.get_sample_value("commander_health") == 2
        registry.unregister(collector)
