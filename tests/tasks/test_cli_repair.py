"""`repair`: what stops a log of which a sync has failed, and how it goes on."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
from celery import Celery

from celery_commander.engine import (
    Anchor,
    AnchorDirectory,
    EventSourcingEngine,
    Health,
    LogBroken,
    LogPoisoned,
)
from celery_commander.engine.files import Files
from celery_commander.engine.places import unsafe_place
from tests.tasks.cli_kit import (
    DONE,
    OPEN,
    answer,
    flip,
    invoke,
    make_app,
    make_log,
    middle_of_line,
)


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


@pytest.fixture
def damaged(app: Celery, log: Path) -> Path:
    """Leave a log in which the start of a step of the finished run is not what was written."""
    app.commander.engine.append("note", {})
    flip(log, middle_of_line(log, 4) - 60)
    return log


def test_a_break_is_shown_with_what_may_be_touched(app: Celery, damaged: Path) -> None:
    before = damaged.read_bytes()
    said = invoke(app, "repair")
    assert said.exit_code == 1
    assert "CORRUPT, it is broken" in said.stdout
    assert "events 4 to 4, event-sourcing.wal byte " in said.stdout
    assert DONE in said.stdout
    assert "commander repair --accept --by NAME" in said.stdout
    assert damaged.read_bytes() == before
    told = invoke(app, "repair", "--json")
    assert told.exit_code == 1
    (found,) = json.loads(told.stdout)["breaks"]
    assert (found["lost"]["first_seq"], found["runs"]) == (4, [DONE])
    with pytest.raises(LogBroken):
        app.commander.engine.append("note", {})


def test_an_accepted_break_is_said_by_everybody(app: Celery, damaged: Path) -> None:
    invoke(app, "verify")
    before = damaged.read_bytes()
    said = invoke(app, "repair", "--accept", "--by", "Ada, ticket 7")
    assert said.exit_code == 15, said.output
    assert "takes events; BREAK_ACCEPTED" in said.stdout
    assert "accepted by Ada, ticket 7" in said.stdout
    app.commander.engine.append("note", {})
    kept = [each.read_bytes() for each in Path(f"{damaged}.d/segments").iterdir()]
    assert kept == [before]

    told = invoke(app, "verify", "--json")
    assert told.exit_code == 15
    (where,) = json.loads(told.stdout)["accepted"]
    assert (where["by"], where["first_seq"], where["last_seq"]) == ("Ada, ticket 7", 4, 4)
    assert invoke(None, "verify", str(damaged)).exit_code == 15
    assert "1 acknowledged break" in invoke(app, "verify").stdout

    report = app.commander.engine.health()
    assert report.status is Health.DEGRADED
    assert any("accepted by Ada, ticket 7" in reason for reason in report.reasons)
    assert app.commander.health.problem() is None
    assert app.commander.ledger.get(OPEN) == app.commander.engine.replay()[OPEN]


def test_once_the_right_file_is_back_the_log_goes_on(app: Celery, damaged: Path) -> None:
    assert invoke(app, "verify").exit_code == 30
    with pytest.raises(LogBroken):
        app.commander.engine.append("note", {})
    assert app.commander.engine.health().status is Health.UNHEALTHY
    flip(damaged, middle_of_line(damaged, 4) - 60)
    assert invoke(app, "repair").exit_code == 0
    app.commander.engine.append("note", {})

    flip(damaged, middle_of_line(damaged, 4) - 60)
    assert invoke(app, "verify").exit_code == 30
    flip(damaged, middle_of_line(damaged, 4) - 60)
    assert invoke(app, "verify").exit_code == 0
    app.commander.engine.append("note", {})


def test_somebody_elses_copy_that_is_verified_stops_nobody(app: Celery, damaged: Path) -> None:
    assert invoke(app, "verify", str(damaged)).exit_code == 30
    assert not Path(f"{damaged}.d/BROKEN").exists()
    app.commander.engine.append("note", {})


def test_a_rollback_is_not_accepted(tmp_path: Path) -> None:
    anchors = tmp_path / "anchors"
    app = make_app(tmp_path / "state", anchor_directory=anchors)
    log = make_log(app)
    engine = app.commander.engine
    seq, hash_ = engine.head()
    AnchorDirectory(anchors).write(Anchor(engine.log_id, seq + 5, hash_, engine.now()))
    before = log.read_bytes()
    said = invoke(app, "repair", "--accept")
    assert said.exit_code == 31
    assert "that is a rollback" in said.stdout
    assert log.read_bytes() == before
    with pytest.raises(LogBroken):
        engine.append("note", {})
    app.commander.close()


def test_a_strict_log_is_cut_by_the_command(tmp_path: Path) -> None:
    make_log(make_app(tmp_path / "plain"))
    state = tmp_path / "plain"
    if unsafe_place(state, Files().mounts()) is not None:
        pytest.skip("a strict log does not lie here")
    app = make_app(state, strict=True)
    log = Path(app.commander.engine_settings.event_sourcing_wal)
    with log.open("ab") as file:
        file.write(b"half a line")
    said = invoke(app, "repair")
    assert said.exit_code == 1
    assert "by the setting strict nobody cuts them" in said.stdout
    assert invoke(app, "repair", "--accept", "--by", "Ada").exit_code == 0
    app.commander.engine.append("note", {})
    app.commander.close()
