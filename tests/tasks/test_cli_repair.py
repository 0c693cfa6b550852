"""`repair`: what stops a log of which a sync has failed, and how it goes on."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from celery import Celery

from celery_commander.engine import EventSourcingEngine, LogPoisoned
from celery_commander.engine.files import Files
from tests.tasks.cli_kit import answer, flip, invoke, middle_of_line


class RefusingDisk(Files):
    """A disk whose syncs fail."""

    def sync(self, fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.fixture
def poisoned(app: Celery, log: Path) -> Path:
    with pytest.raises(LogPoisoned), EventSourcingEngine.open(log, files=RefusingDisk()) as engine:
        engine.append("note", {"of": "another process"})
    return log


def test_without_accept_it_is_only_said_what_is_wrong(app: Celery, poisoned: Path) -> None:
    before = poisoned.read_bytes()
    said = invoke(app, "repair")
    assert said.exit_code == 1
    assert "commander repair --accept --by NAME" in said.stdout
    assert poisoned.read_bytes() == before
    assert Path(f"{poisoned}.d/POISONED").exists()
    with pytest.raises(LogPoisoned):
        app.commander.engine.append("note", {})


def test_with_accept_the_log_goes_on_and_says_who_answers(app: Celery, poisoned: Path) -> None:
    done = answer(app, "repair", "--accept", "--by", "Ada, ticket 7")
    assert (done["needed"], done["verified"]) == (None, "OK_UNANCHORED")
    assert done["repaired"]["quarantine"] is None
    app.commander.engine.append("note", {})
    notes = [e for e in app.commander.engine.read_from(None) if e.type == "wal.repaired"]
    assert [note.payload["by"] for note in notes] == ["Ada, ticket 7"]
    assert invoke(app, "verify").exit_code == 0


def test_who_names_nobody_is_named_by_user_and_host(app: Celery, poisoned: Path) -> None:
    assert invoke(app, "repair", "--accept").stdout.startswith(f"{poisoned} takes events")
    notes = [e for e in app.commander.engine.read_from(None) if e.type == "wal.repaired"]
    assert "@" in notes[0].payload["by"]


def test_a_log_that_is_well_is_left_alone(app: Celery, log: Path) -> None:
    before = log.read_bytes()
    assert answer(app, "repair", "--accept")["repaired"] is None
    assert log.read_bytes() == before


def test_events_that_were_on_disk_are_not_given_up(app: Celery, poisoned: Path) -> None:
    flip(poisoned, middle_of_line(poisoned, 3))
    said = invoke(app, "repair", "--accept")
    assert said.exit_code == 30
    assert "event 3" in said.stderr
    assert Path(f"{poisoned}.d/POISONED").exists()


def test_a_name_that_is_too_long_is_refused(app: Celery, poisoned: Path) -> None:
    said = invoke(app, "repair", "--accept", "--by", "x" * 201)
    assert said.exit_code == 1
    assert "who answers" in said.stderr
