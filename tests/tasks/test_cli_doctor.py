"""The doctor says what is missing, and makes nothing."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from celery import Celery

from celery_commander.tasks import Commander
from tests.tasks.cli_kit import invoke, make_app, make_log


@pytest.fixture
def app(tmp_path: Path) -> Celery:
    return make_app(tmp_path / "state")


def findings(app: Celery, verdict: str) -> list[str]:
    told = json.loads(invoke(app, "doctor", "--json").stdout)
    return [f"{each['subject']}: {each['text']}" for each in told if each["verdict"] == verdict]


def report(app: Celery, *queues: str) -> None:
    """Report as a worker does that consumes these queues and has recovered."""
    facts = {
        "log_id": app.commander.engine.log_id,
        "recovery": "complete",
        "queues": [{"name": name, "waiting": 0, "consuming": True} for name in queues],
    }
    app.commander.store.reports.put("w1@here", facts)


def test_before_the_first_start_it_makes_nothing_and_says_so(app: Celery, tmp_path: Path) -> None:
    warned = findings(app, "warning")

    assert any("does not exist" in each for each in warned)
    assert "log: there is no log yet" in warned
    assert list(tmp_path.iterdir()) == []


def test_a_deployment_in_order_has_nothing_wrong(app: Celery) -> None:
    make_log(app)
    app.commander.bootstrapper.bootstrap(force_abort=True)
    report(app, "celery")

    result = invoke(app, "doctor")

    assert result.exit_code == 0, result.output
    assert "0 wrong" in result.output
    assert "celery is consumed by w1@here" in result.output
    assert "durable: cli.pay" in result.output


def test_a_queue_of_ours_that_nobody_consumes_is_wrong(app: Celery) -> None:
    make_log(app)
    report(app, "another")

    assert invoke(app, "doctor").exit_code == 1
    assert any("celery is consumed by no worker" in each for each in findings(app, "wrong"))


def test_runs_that_wait_where_no_worker_looks_are_named(app: Celery) -> None:
    app.conf.task_default_queue = "own"
    make_log(app)  # its runs wait in "celery"
    report(app, "own")

    assert "queues: runs wait in celery, which no worker consumes" in findings(app, "wrong")


def test_runs_of_a_task_that_the_app_does_not_know_are_named(app: Celery) -> None:
    make_log(app)
    report(app, "celery")
    del app.tasks["cli.pay"]

    assert any("unfinished runs of cli.pay" in each for each in findings(app, "wrong"))


def test_a_setting_that_cannot_work_is_the_only_finding(tmp_path: Path) -> None:
    app = Celery("cli", broker="memory://")
    app.conf.commander_lease_seconds = -1
    Commander(app, state_directory=tmp_path / "state")

    (only,) = findings(app, "wrong")

    assert only.startswith("settings: ")
    assert "lease_seconds" in only
    assert invoke(app, "doctor").exit_code == 1


def test_a_broker_that_does_not_answer_is_wrong(tmp_path: Path) -> None:
    app = make_app(tmp_path / "state")
    app.conf.broker_url = "amqp://127.0.0.1:1//"

    assert any("the broker cannot be asked" in each for each in findings(app, "wrong"))


def test_no_result_backend_no_schedule_and_an_open_directory_are_warnings(tmp_path: Path) -> None:
    app = Celery("cli", broker="memory://")
    Commander(app, state_directory=tmp_path / "state", schedule=False, durability="os")
    app.conf.task_always_eager = True
    app.commander.engine.append("note", {})
    os.chmod(tmp_path / "state", 0o750)

    warned = " / ".join(findings(app, "warning"))

    for words in ("cannot wait", "schedule is off", "chmod 0700", "durability is os", "eager"):
        assert words in warned


def test_a_beat_that_does_not_run_is_noticed(app: Celery) -> None:
    make_log(app)
    assert any("is `celery beat` running?" in each for each in findings(app, "warning"))

    rounds = app.commander.store.rounds
    rounds.note("check_health/cli", rounds.now())

    assert any(each.startswith("beat: it runs") for each in findings(app, "good"))
