"""`runs`, `show` and `recover`: what an operator sees, one line of error, no side effects of looking."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from celery import Celery

from celery_commander.engine import encode
from celery_commander.tasks import Commander
from tests.tasks.cli_kit import (
    DONE,
    HALF,
    OPEN,
    answer,
    flip,
    forbid,
    invoke,
    make_app,
    middle_of_line,
    snapshot,
)


@pytest.mark.parametrize("command", ["verify", "runs", "show x", "recover"])
def test_a_command_that_needs_an_app_says_how_to_give_it_one(command: str) -> None:
    result = invoke(None, *command.split())

    assert result.exit_code == 2
    assert f"celery -A APP commander {command.split()[0]}" in result.stderr


@pytest.mark.parametrize("command", ["verify", "runs", "show x", "recover"])
def test_looking_for_a_log_that_is_not_there_creates_none(command: str, tmp_path: Path) -> None:
    result = invoke(make_app(tmp_path / "state"), *command.split())

    assert result.exit_code == 40
    assert str(tmp_path / "state") in result.stderr
    assert "COMMANDER_STATE_DIRECTORY" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_app_without_a_commander_is_told_the_line_that_it_lacks() -> None:
    result = invoke(Celery("bare"), "runs")

    assert result.exit_code == 2
    assert "Commander(app)" in result.stderr


def test_a_wrong_setting_is_one_line_that_names_it(tmp_path: Path) -> None:
    app = Celery("wrong")
    app.conf.commander_leese_seconds = 3
    Commander(app, state_directory=tmp_path)

    result = invoke(app, "runs")

    assert result.exit_code == 1
    assert "commander_leese_seconds" in result.stderr
    assert "commander_lease_seconds" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("command", ["verify", "runs", "show x", "recover"])
def test_a_directory_that_may_not_be_looked_into_is_one_line(
    app: Celery, log: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    forbid(monkeypatch, "stat", log.parent)

    result = invoke(app, *command.split())

    assert result.exit_code == 40
    assert f"{log} cannot be read by user" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


@pytest.fixture
def as_another_user(app: Celery, log: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Celery]:
    """Give the app as root has it who looks at the state of the user that runs the workers."""
    app.commander.engine.close()
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    before = snapshot(log.parent)
    yield make_app(log.parent)
    assert snapshot(log.parent) == before


def test_another_user_sees_the_same_runs(as_another_user: Celery) -> None:
    document = answer(as_another_user, "runs")
    assert {run["run_id"]: run["state"] for run in document["runs"]} == {
        DONE: "COMMITTED",
        HALF: "EXECUTING",
        OPEN: "EXECUTING",
    }
    assert (document["counts"]["COMMITTED"], document["counts"]["STUCK"]) == (1, 0)
    assert len(answer(as_another_user, "runs", "--limit", "1")["runs"]) == 1
    chosen = answer(as_another_user, "runs", "--state", "COMMITTED")["runs"]
    assert [run["run_id"] for run in chosen] == [DONE]


def test_another_user_sees_a_run_and_may_verify(as_another_user: Celery) -> None:
    assert answer(as_another_user, "show", OPEN)["run"]["open_steps"] == [0]
    assert invoke(as_another_user, "verify").exit_code == 0


@pytest.mark.parametrize("options", [[], ["--dry-run"]])
def test_another_user_does_not_recover(as_another_user: Celery, options: list[str]) -> None:
    result = invoke(as_another_user, "recover", *options)

    assert result.exit_code == 40
    assert "recover as that user" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_what_a_writer_refuses_is_listed_all_the_same(app: Celery, log: Path) -> None:
    app.commander.engine.close()
    log.chmod(0o664)

    assert len(answer(make_app(log.parent), "runs")["runs"]) == 3


# -- runs --------------------------------------------------------------------------------


def test_runs_are_listed_and_counted(app: Celery, log: Path) -> None:
    said, document = invoke(app, "runs").output, answer(app, "runs")

    assert DONE in said
    assert "changed (UTC)" in said.splitlines()[0]
    assert "delivered" in said.splitlines()[0]
    assert "open steps 0" in next(line for line in said.splitlines() if OPEN in line)
    assert {run["run_id"]: run["state"] for run in document["runs"]} == {
        DONE: "COMMITTED",
        HALF: "EXECUTING",
        OPEN: "EXECUTING",
    }
    assert (document["counts"]["COMMITTED"], document["counts"]["EXECUTING"]) == (1, 2)


def test_runs_are_chosen_by_state(app: Celery, log: Path) -> None:
    assert [run["run_id"] for run in answer(app, "runs", "--state", "committed")["runs"]] == [DONE]
    assert answer(app, "runs", "--state", "STUCK")["runs"] == []
    both = answer(app, "runs", "--state", "EXECUTING", "--state", "COMMITTED")
    assert {run["run_id"] for run in both["runs"]} == {DONE, HALF, OPEN}


def test_no_more_runs_are_listed_than_asked_for_but_all_are_counted(app: Celery, log: Path) -> None:
    document = answer(app, "runs", "--limit", "1")

    assert len(document["runs"]) == 1
    assert sum(document["counts"].values()) == 3


def test_an_unknown_state_is_answered_with_those_that_there_are(app: Celery, log: Path) -> None:
    result = invoke(app, "runs", "--state", "LOST")

    assert result.exit_code == 2
    assert "compensated" in result.stderr.lower()


# -- show --------------------------------------------------------------------------------


def test_a_run_is_told_with_its_steps_and_events(app: Celery, log: Path) -> None:
    said, document = invoke(app, "show", OPEN).output, answer(app, "show", OPEN)

    assert "EXECUTING, not delivered" in said
    assert "at (UTC)" in said
    assert "charge" in said
    assert [event["type"] for event in document["events"]] == [
        "run.created",
        "run.started",
        "step.started",
    ]
    assert document["steps"][0]["name"] == "charge"
    assert document["run"]["open_steps"] == [0]


def test_arguments_and_results_are_shown_only_when_asked_for(app: Celery, log: Path) -> None:
    for options in ([], ["--json"]):
        assert "top secret" not in invoke(app, "show", DONE, *options).output
        assert "4200" not in invoke(app, "show", DONE, *options).output
        assert "top secret" in invoke(app, "show", DONE, "--values", *options).output


def test_an_event_that_does_not_count_is_shown_with_the_reason(app: Celery, log: Path) -> None:
    late = {"step": 0, "result": encode("late")}
    app.commander.engine.append("step.completed", late, run_id=DONE)

    assert "VOID" in invoke(app, "show", DONE).output
    assert len(answer(app, "show", DONE)["voided"]) == 1


def test_a_run_that_nobody_knows_is_one_line_on_stderr(app: Celery, log: Path) -> None:
    result = invoke(app, "show", "run-lost")

    assert result.exit_code == 1
    assert f"no run run-lost in {log}" in result.stderr
    assert "commander runs" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


# -- recover --------------------------------------------------------------------------------


def test_a_dry_run_decides_nothing(app: Celery, log: Path) -> None:
    before = log.read_bytes()

    document = answer(app, "recover", "--dry-run", "--force-abort")

    assert (document["dry_run"], document["aborted"]) == (True, 1)
    assert log.read_bytes() == before


def test_a_forced_abort_is_written_and_its_undo_published(app: Celery, log: Path) -> None:
    said = invoke(app, "recover", "--force-abort")

    assert said.exit_code == 0
    assert f"{HALF}  abort" in said.output
    assert "1 left alone: a step in doubt may still be running" in said.output
    types = [event.type for event in app.commander.engine.history(HALF)]
    assert types[-2:] == ["run.fenced", "run.aborted"]
    with app.connection_for_read() as connection:
        queue = connection.SimpleQueue("celery")
        link = queue.get(timeout=2)
        assert link.headers["task"] == "celery_commander.compensate_step"
        queue.close()


def test_nothing_is_decided_from_a_log_that_does_not_verify(app: Celery, log: Path) -> None:
    app.commander.engine.close()
    flip(log, middle_of_line(log, 4))
    before = log.read_bytes()

    result = invoke(make_app(log.parent), "recover")

    assert result.exit_code in (1, 30)
    assert len(result.stderr.strip().splitlines()) == 1
    assert "4" in result.stderr
    assert log.read_bytes() == before
