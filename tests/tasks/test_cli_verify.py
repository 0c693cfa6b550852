"""`verify` as the shell and as JSON see it: exit codes, the place, and no trace of having looked."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from celery import Celery

from celery_commander.engine import AnchorDirectory, EventSourcingEngine, durable_anchor
from tests.kit.workers import ROOT, python_environment
from tests.tasks.cli_kit import (
    answer,
    flip,
    forbid,
    invoke,
    make_app,
    make_log,
    middle_of_line,
    snapshot,
)


def test_a_good_log_is_ok_for_the_shell_and_unanchored_in_the_json(app: Celery, log: Path) -> None:
    said, document = invoke(app, "verify"), answer(app, "verify")

    assert said.exit_code == 0
    assert said.output.startswith("OK_UNANCHORED")
    assert said.output.count("vouches for it") == 1
    assert (document["status"], document["exit_code"]) == ("OK_UNANCHORED", 10)
    assert (document["events"], document["broken_at"]) == (14, None)


def test_an_unanchored_log_is_not_enough_where_an_anchor_is_asked_for(
    app: Celery, log: Path
) -> None:
    assert invoke(app, "verify", "--require-anchor").exit_code == 10


def test_anchors_vouch_for_a_log_or_tell_that_it_is_another(log: Path, tmp_path: Path) -> None:
    with EventSourcingEngine.open(log) as engine:
        anchor = durable_anchor(engine)
    assert anchor is not None
    good, ahead, other = (AnchorDirectory(tmp_path / name) for name in ("good", "ahead", "other"))
    good.write(anchor)
    ahead.write(dataclasses.replace(anchor, seq=anchor.seq + 1))
    other.write(dataclasses.replace(anchor, hash="0" * 64))

    def exit_code(places: AnchorDirectory) -> int:
        options = ("--require-anchor", "--anchors", str(places.path))
        return invoke(None, "verify", str(log), *options).exit_code

    assert [exit_code(places) for places in (good, ahead, other)] == [0, 31, 32]


def test_the_apps_own_anchors_are_used_without_being_named(tmp_path: Path) -> None:
    app = make_app(tmp_path / "state", anchor_directory=tmp_path / "far")
    make_log(app)
    anchor = durable_anchor(app.commander.engine)
    assert anchor is not None
    AnchorDirectory(tmp_path / "far").write(anchor)

    document = answer(app, "verify")

    assert (document["status"], document["anchored_to"]) == ("OK_ANCHORED", str(anchor))


def test_a_changed_byte_is_named_with_its_event(app: Celery, log: Path) -> None:
    app.commander.engine.close()
    flip(log, middle_of_line(log, 4))

    said, asked = invoke(None, "verify", str(log)), invoke(None, "verify", str(log), "--json")

    assert said.exit_code == asked.exit_code == 30
    assert "broken at event 4" in said.output
    assert json.loads(asked.stdout)["broken_at"]["seq"] == 4


def test_every_event_of_a_log_is_covered(app: Celery, log: Path) -> None:
    app.commander.engine.close()
    whole = log.read_bytes()
    for number in range(1, whole.count(b"\n")):
        flip(log, middle_of_line(log, number))
        document = json.loads(invoke(None, "verify", str(log), "--json").stdout)
        log.write_bytes(whole)
        if document["exit_code"] == 30:
            assert document["broken_at"]["seq"] == number
        else:  # the last lines of a bare copy: nothing that survives says they had been durable
            assert document["exit_code"] == 20


def test_verify_works_on_a_bare_copy_and_leaves_everything_as_it_was(
    log: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "elsewhere" / "copy.wal"
    copy.parent.mkdir()
    copy.write_bytes(log.read_bytes() + b"torn")
    before = snapshot(copy.parent)

    result = invoke(None, "verify", str(copy))

    assert result.exit_code == 20
    assert result.output.startswith("TORN_TAIL")
    assert snapshot(copy.parent) == before


def test_a_log_that_is_not_there_is_one_line_on_stderr(tmp_path: Path) -> None:
    result = invoke(None, "verify", str(tmp_path / "nothing.wal"))

    assert result.exit_code == 40
    assert result.stdout == ""
    assert "nothing.wal" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_log_that_cannot_be_read_is_a_report_where_json_is_asked_for(tmp_path: Path) -> None:
    result = invoke(None, "verify", str(tmp_path / "nothing.wal"), "--json")

    assert result.exit_code == 40
    assert json.loads(result.stdout)["status"] == "UNREADABLE"


def test_a_file_that_is_no_log_of_ours_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("dear diary\n", encoding="utf-8")

    result = invoke(None, "verify", str(path))

    assert result.exit_code == 34
    assert "notes.txt" in result.output
    assert path.read_text(encoding="utf-8") == "dear diary\n"


@pytest.mark.parametrize("content", ["", "dear diary\n"])
def test_reading_speaks_of_reading(tmp_path: Path, content: str) -> None:
    path = tmp_path / "notes.txt"
    path.write_text(content, encoding="utf-8")

    told = invoke(None, "verify", str(path)).stderr

    assert f"{path} is not a celery-wal log: " in told
    assert "written" not in told
    assert "cannot be read: " in invoke(None, "verify", str(tmp_path / "nothing")).stderr


def test_a_directory_is_taken_as_the_state_directory(log: Path) -> None:
    result = invoke(None, "verify", str(log.parent))

    assert result.exit_code == 0
    assert str(log) in result.output


def test_a_directory_without_a_log_is_told_which_file_is_missing(tmp_path: Path) -> None:
    result = invoke(None, "verify", str(tmp_path))

    assert result.exit_code == 40
    assert str(tmp_path / "event-sourcing.wal") in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_may_not_be_read_is_one_line_and_no_wrong_usage(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forbid(monkeypatch, "open", log)
    monkeypatch.setattr(os, "access", lambda *_, **__: False)

    result = invoke(None, "verify", str(log))

    assert result.exit_code == 40
    assert "Permission denied" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


# -- as the shell finds it ----------------------------------------------------------------------


def shell(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=python_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_script_verifies_a_bare_file_in_a_process_of_its_own(tmp_path: Path) -> None:
    with EventSourcingEngine.open(tmp_path / "bare.wal") as engine:
        engine.append("billing.note", {"any": "json"})

    good = shell("-m", "celery_commander.tasks.cli", "verify", str(tmp_path / "bare.wal"))
    gone = shell("-m", "celery_commander.tasks.cli", "verify", str(tmp_path / "gone.wal"))

    assert (good.returncode, gone.returncode) == (0, 40)
    assert good.stdout.startswith("OK_UNANCHORED")
    assert gone.stderr.startswith("Error: ")
    assert "Traceback" not in gone.stderr


CELERY_WITH_US = """
import sys
from celery.bin.celery import celery
from celery_commander.tasks.cli import commander
celery.add_command(commander)
celery(sys.argv[1:], prog_name="celery")
"""


def test_celery_runs_the_commands_for_the_app_that_it_loads(tmp_path: Path) -> None:
    environment = python_environment({"SHOP_DIR": str(tmp_path)})
    command = [sys.executable, "-c", CELERY_WITH_US, "-A", "examples.shop", "commander", "runs"]

    result = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False
    )

    assert result.returncode == 40, result.stderr
    assert str(tmp_path / "commander_state") in result.stderr
    assert "Traceback" not in result.stderr
