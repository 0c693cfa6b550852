"""`commander health`: for people, for scripts, for probes and for Prometheus."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest
from celery import Celery

from celery_commander.engine import Settings
from celery_commander.tasks.reporting import Reporter
from tests.tasks.bench import passed
from tests.tasks.cli_kit import flip, invoke, make_app, make_log, middle_of_line, snapshot


@pytest.fixture
def app(tmp_path: Path) -> Celery:
    """Give an app whose one worker has reported that all is well."""
    app = make_app(tmp_path / "state")
    reporter = Reporter(app.commander)
    reporter.note_pass(passed())
    reporter.write()
    return app


def poison(app: Celery) -> None:
    (app.commander.engine.directory / "POISONED").touch()


def test_a_healthy_deployment_exits_with_0_and_shows_its_numbers(app: Celery) -> None:
    result = invoke(app, "health")

    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("HEALTHY\n")
    assert "event_backlog" in result.stdout
    assert "newly made" in result.stdout


def test_a_degraded_one_exits_with_1_and_says_why(tmp_path: Path) -> None:
    app = make_app(tmp_path / "state")
    app.commander.engine.append("note", {})

    result = invoke(app, "health")

    assert result.exit_code == 1
    assert "DEGRADED\n" in result.stdout
    assert "no worker reports" in result.stdout


def test_an_unhealthy_one_exits_with_2_and_says_why(app: Celery) -> None:
    poison(app)

    result = invoke(app, "health")

    assert result.exit_code == 2
    assert "is poisoned" in result.stdout


def test_the_json_has_status_metrics_and_reasons(app: Celery) -> None:
    result = invoke(app, "health", "--json")

    told = json.loads(result.stdout)
    assert told["status"] == "healthy"
    assert told["metrics"]["live_log_size"]["unhealthy_at"] == 500_000_000
    assert isinstance(told["reasons"], list)


def test_where_there_is_no_log_it_exits_with_40_and_makes_none(tmp_path: Path) -> None:
    result = invoke(make_app(tmp_path / "state"), "health", "--json")

    assert result.exit_code == 40
    assert not (tmp_path / "state").exists()


def test_somebody_elses_log_is_not_written_beside(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.commander.close()
    before = snapshot(app.commander.engine_settings.state_directory)
    monkeypatch.setattr(os, "geteuid", lambda: 4711)

    result = invoke(app, "health")

    assert result.exit_code == 40
    assert "ask as that user" in result.stderr
    assert snapshot(app.commander.engine_settings.state_directory) == before


def test_the_numbers_can_be_scraped(app: Celery) -> None:
    result = invoke(app, "health", "--prometheus")

    assert result.exit_code == 0
    assert "commander_health 0.0\n" in result.stdout


class TestProbe:
    def test_passes_although_the_whole_is_unhealthy_for_other_reasons(self, tmp_path: Path) -> None:
        """A backlog must not restart healthy workers."""
        app = make_app(tmp_path / "state")
        app.commander.engine.append("note", {})
        app.commander._overrides["log_unhealthy_bytes"] = 1
        app.commander._overrides["log_degraded_bytes"] = 1
        app.commander._resolved = None
        app.commander.close()
        assert invoke(app, "health").exit_code == 2

        result = invoke(app, "health", "--probe")

        assert (result.exit_code, result.stderr) == (0, "")

    def test_fails_for_a_poisoned_log(self, app: Celery) -> None:
        poison(app)

        result = invoke(app, "health", "--probe")

        assert result.exit_code == 2
        assert "is poisoned" in result.stderr
        assert json.loads(invoke(app, "health", "--probe", "--json").stdout)["reasons"] != []

    @pytest.mark.parametrize("host, code", [(socket.gethostname(), 2), ("another-host", 0)])
    def test_fails_for_renewals_that_stalled_on_this_host(
        self, app: Celery, monkeypatch: pytest.MonkeyPatch, host: str, code: int
    ) -> None:
        commander = app.commander
        holder = commander.holder
        settings: Settings = commander.engine_settings
        lease = commander.leases.acquire(
            "r-1",
            holder.name,
            liveness=holder._liveness.ref,
            ttl_seconds=settings.lease_seconds / 5,
        )
        assert lease is not None
        monkeypatch.setattr(socket, "gethostname", lambda: host)

        result = invoke(app, "health", "--probe")

        assert result.exit_code == code
        assert ("does not renew" in result.stderr) == (code == 2)


def test_what_verify_found_in_the_apps_log_is_what_health_tells(app: Celery) -> None:
    log = make_log(app)
    flip(log, middle_of_line(log, 4))
    assert invoke(app, "verify", str(log)).exit_code == 30
    assert invoke(app, "health").exit_code == 0  # a log named by its path is only looked at

    assert invoke(app, "verify").exit_code == 30

    result = invoke(app, "health")
    assert result.exit_code == 2
    assert "verification said CORRUPT behind event 3" in result.stdout
    assert invoke(app, "recover").exit_code != 0
    flip(log, middle_of_line(log, 4))
    assert invoke(app, "verify").exit_code == 0
    assert invoke(app, "health").exit_code == 0
