"""What a beat sends of ours: each kind by its own setting, each message for one interval, the app's own word first."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, bootsteps
from celery.worker import WorkController

from celery_commander.beat import schedule_entries
from celery_commander.engine import Settings, SettingsError
from celery_commander.tasks import Commander, TaskSettings

ALL = {
    "celery_commander.check_health": 15,
    "celery_commander.take_snapshot": 3600,
    "celery_commander.compact_log": 3600,
    "celery_commander.verify_log": 300,
    "celery_commander.sweep": 60,
}
OFF = {
    "health_check_seconds": "check_health",
    "snapshot_seconds": "take_snapshot",
    "compaction_seconds": "compact_log",
    "verify_seconds": "verify_log",
    "beat_sweep_seconds": "sweep",
}


def make_app(tmp_path: Path, **settings: Any) -> Celery:
    app = Celery("scheduled", broker="memory://", set_as_current=False)
    Commander(app, state_directory=tmp_path / "state", **settings)
    return app


def test_every_kind_of_maintenance_is_sent_at_its_interval() -> None:
    entries = schedule_entries(TaskSettings())

    assert {name: entry["schedule"] for name, entry in entries.items()} == {
        name: timedelta(seconds=seconds) for name, seconds in ALL.items()
    }
    assert all(entry["task"] == name for name, entry in entries.items())


def test_a_message_expires_when_the_next_one_comes() -> None:
    for entry in schedule_entries(TaskSettings(snapshot_seconds=90)).values():
        assert entry["options"]["expires"] == entry["schedule"].total_seconds()


@pytest.mark.parametrize("never", [0, None])
@pytest.mark.parametrize("key, name", OFF.items())
def test_each_kind_can_be_switched_off(key: str, name: str, never: object) -> None:
    settings = TaskSettings(**{key: never})  # type: ignore[arg-type]

    assert schedule_entries(settings).keys() == ALL.keys() - {f"celery_commander.{name}"}


def test_one_switch_turns_all_of_them_off(tmp_path: Path) -> None:
    engine = Settings(state_directory=tmp_path / "s", anchor_directory=tmp_path / "a")

    assert schedule_entries(TaskSettings(schedule=False), engine) == {}


def test_anchors_are_written_only_where_there_is_a_place_for_them(tmp_path: Path) -> None:
    engine = Settings(state_directory=tmp_path / "s", anchor_directory=tmp_path / "a")

    with_place = schedule_entries(TaskSettings(anchor_seconds=7), engine)

    assert with_place["celery_commander.write_anchor"]["schedule"] == timedelta(seconds=7)
    assert "celery_commander.write_anchor" not in schedule_entries(TaskSettings())


def test_the_messages_go_to_the_commanders_own_queue(tmp_path: Path) -> None:
    commander = make_app(tmp_path, queue="upkeep").commander

    entries = schedule_entries(commander)

    assert {entry["options"]["queue"] for entry in entries.values()} == {"upkeep"}
    assert all("queue" not in e["options"] for e in schedule_entries(TaskSettings()).values())


def test_a_beat_keeps_the_apps_own_entries_which_win(tmp_path: Path) -> None:
    app = make_app(tmp_path)
    mine = {"task": "mine", "schedule": 5.0}
    app.conf.beat_schedule = {"mine": mine, "celery_commander.sweep": mine}

    app.Beat(app=app, quiet=True).init_loader()

    schedule = app.conf.beat_schedule
    assert schedule.keys() == {"mine", *ALL}
    assert schedule["celery_commander.sweep"] == schedule["mine"] == mine


def test_a_schedule_that_is_set_after_the_installation_is_completed_too(tmp_path: Path) -> None:
    app = make_app(tmp_path)
    assert app.conf.beat_schedule == {}  # nothing before a beat starts
    app.finalize()
    app.conf.beat_schedule = {"late": {"task": "mine", "schedule": 5.0}}

    app.Beat(app=app, quiet=True).init_loader()

    assert app.conf.beat_schedule.keys() == {"late", *ALL}


def test_an_apps_own_kind_of_beat_is_kept(tmp_path: Path) -> None:
    class Own(Celery):
        @property
        def Beat(self) -> Any:  # noqa: N802  # Celery's name
            return self.__dict__.get("Beat", Marked)

        @Beat.setter
        def Beat(self, value: Any) -> None:  # noqa: N802  # Celery's name
            self.__dict__["Beat"] = value

    class Marked:
        started = False

        def init_loader(self) -> None:
            self.started = True

    app = Own("own", broker="memory://", set_as_current=False)
    Commander(app, state_directory=tmp_path / "state")
    beat = app.Beat()
    beat.app = app

    beat.init_loader()

    assert beat.started
    assert app.conf.beat_schedule.keys() == set(ALL)


@pytest.mark.parametrize("beat, expected", [(True, set(ALL)), (False, set())])
def test_a_worker_completes_the_schedule_only_when_it_runs_a_beat(
    tmp_path: Path, beat: bool, expected: set[str]
) -> None:
    app = make_app(tmp_path)
    worker = app.Worker.__new__(app.Worker)
    worker.app = app
    steps: list[Any] = [step for step in app.steps["worker"] if step.__name__ == "ScheduleStep"]

    (step,) = steps
    assert issubclass(step, bootsteps.Step)
    assert isinstance(worker, WorkController)
    step(worker, beat=beat)

    assert set(app.conf.beat_schedule) == expected


@pytest.mark.parametrize("value", [-1, "soon", True])
def test_an_interval_that_cannot_be_is_refused(tmp_path: Path, value: object) -> None:
    with pytest.raises(SettingsError, match="verify_seconds"):
        schedule_entries(make_app(tmp_path, verify_seconds=value).commander)
