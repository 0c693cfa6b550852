"""`snapshot` and `compact`: what an operator sees, their exit codes, and late duplicates of what was compacted away."""

from __future__ import annotations

from pathlib import Path

from celery import Celery

from celery_commander.tasks.claims import Refused, claim
from celery_commander.tasks.message import Message
from tests.tasks.cli_kit import DONE, HALF, answer, flip, invoke, life, make_app


def test_a_snapshot_is_taken_and_the_log_compacted_behind_it(app: Celery, log: Path) -> None:
    taken = answer(app, "snapshot", "nightly")
    assert (taken["name"], taken["through"]) == ("nightly", 15)
    done = answer(app, "compact", "nightly")
    assert done["removed_events"] == 15
    assert len(list(Path(done["archived_to"]).glob("*.wal"))) == 1
    assert invoke(app, "verify").exit_code == 0
    assert [run["run_id"] for run in answer(app, "runs")["runs"]].count(DONE) == 1
    assert answer(app, "show", HALF)["events"][0]["seq"] == 8


def test_both_are_called_manual_unless_they_are_named(app: Celery, log: Path) -> None:
    said = invoke(app, "snapshot")
    assert said.exit_code == 0
    assert said.output.startswith("snapshot manual through event 15")
    assert "moved to" in invoke(app, "compact").output
    assert invoke(app, "compact").output.startswith("nothing to do")


def test_a_snapshot_that_is_not_there_is_named(app: Celery, log: Path) -> None:
    said = invoke(app, "compact", "weekly")
    assert said.exit_code == 1
    assert "'weekly'" in said.stderr
    assert invoke(app, "snapshot", "../up").exit_code == 1


def test_an_edited_snapshot_is_38_for_compact_and_for_verify(app: Celery, log: Path) -> None:
    path = Path(answer(app, "snapshot")["path"])
    flip(path, path.stat().st_size // 2)
    said = invoke(app, "compact")
    assert said.exit_code == 38
    assert path.name in said.stderr
    assert invoke(app, "verify").exit_code == 38


def test_a_log_that_does_not_verify_is_not_compacted(app: Celery, log: Path) -> None:
    answer(app, "snapshot")
    (sealed,) = Path(f"{log}.d/segments").iterdir()
    flip(sealed, sealed.stat().st_size // 2)
    assert invoke(app, "compact").exit_code == 30
    assert sealed.exists()


def test_an_ended_run_is_told_to_be_archived(app: Celery, log: Path) -> None:
    answer(app, "snapshot")
    answer(app, "compact")
    app.commander.engine.close()
    again = make_app(log.parent)
    said = invoke(again, "show", DONE)
    assert said.exit_code == 1
    assert "COMMITTED" in said.stderr
    again.commander.engine.close()
    again.close()


def test_a_late_duplicate_of_a_compacted_run_executes_nothing(app: Celery, log: Path) -> None:
    """Its events are gone, and a run without events would otherwise look new."""
    answer(app, "snapshot")
    answer(app, "compact")
    app.commander.engine.close()
    again = make_app(log.parent)
    made = life(DONE)[0].data["message"]
    message = Message(**made)
    refused = claim(again.commander, DONE, message, "w@host")
    assert isinstance(refused, Refused)
    assert "told already" in refused.reason
    again.commander.engine.close()
    again.close()
