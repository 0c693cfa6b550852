"""Three sources of settings, one order, and answers for what cannot work."""

from __future__ import annotations

from pathlib import Path

import pytest
from celery import Celery

from celery_commander.engine import SettingsError
from celery_commander.tasks import Commander
from celery_commander.tasks.settings import resolve


def test_an_argument_wins_over_the_environment_which_wins_over_the_app() -> None:
    app = {"commander_lease_seconds": 1, "commander_sweep_seconds": 1, "commander_max_deaths": 7}
    environment = {"COMMANDER_LEASE_SECONDS": "2", "COMMANDER_SWEEP_SECONDS": "2"}

    resolved = resolve({"lease_seconds": 3}, environment, app)

    engine = resolved.engine
    assert (engine.lease_seconds, engine.sweep_seconds, engine.max_deaths) == (3, 2.0, 7)


def test_text_from_the_environment_is_read_as_what_the_setting_is() -> None:
    environment = {
        "COMMANDER_FORCE_ABORT": "1",
        "COMMANDER_UNDO_RETRIES": "4",
        "COMMANDER_STATE_DIRECTORY": "/x",
    }

    resolved = resolve({}, environment, {})

    assert resolved.tasks.force_abort is True
    assert resolved.tasks.undo_retries == 4
    assert resolved.engine.state_directory == Path("/x")


@pytest.mark.parametrize(
    "overrides, environment, configured, shown",
    [
        ({"leese_seconds": 1}, {}, {}, "leese_seconds.*lease_seconds"),
        (
            {},
            {"COMMANDER_LEESE_SECONDS": "1"},
            {},
            "COMMANDER_LEESE_SECONDS.*COMMANDER_LEASE_SECONDS",
        ),
        (
            {},
            {},
            {"commander_leese_seconds": 1},
            "commander_leese_seconds.*commander_lease_seconds",
        ),
        (
            {},
            {},
            {"commander_on_log_unavailable": "refuses"},
            "on_log_unavailable.*refuse, degrade.*'refuse'",
        ),
        ({"undo_retries": -1}, {}, {}, "undo_retries.*at least 0"),
        ({"observe": "failure"}, {}, {}, "observe.*all, failures, none.*'failures'"),
        ({"observe": []}, {}, {}, "observe.*name patterns"),
        ({"observe": ["", 3]}, {}, {}, "observe.*name patterns"),
        ({"observe": True}, {}, {}, "observe.*name patterns"),
        ({"observe_queue_events": 0}, {}, {}, "observe_queue_events.*at least 1"),
        ({}, {"COMMANDER_OBSERVE_BATCH_EVENTS": "many"}, {}, "observe_batch_events.*number"),
        ({"observe_flush_seconds": 0}, {}, {}, "observe_flush_seconds.*above zero"),
        ({"observe_exit_seconds": -1}, {}, {}, "observe_exit_seconds.*negative"),
        ({"watch_seconds": 0}, {}, {}, "watch_seconds.*above zero"),
        ({}, {"COMMANDER_FORCE_ABORT": "maybe"}, {}, "force_abort.*1 or 0"),
        ({}, {"COMMANDER_UNDO_RETRIES": "x"}, {}, "undo_retries.*number"),
        ({"namespace": 3}, {}, {}, "namespace.*text"),
        ({"lease_seconds": "soon"}, {}, {}, "lease_seconds.*number"),
    ],
)
def test_what_cannot_work_is_named_with_what_may_be_meant(
    overrides: dict[str, object],
    environment: dict[str, str],
    configured: dict[str, object],
    shown: str,
) -> None:
    with pytest.raises(SettingsError, match=shown):
        resolve(overrides, environment, configured)


def test_strangers_in_the_environment_and_on_the_app_are_not_ours() -> None:
    resolve({}, {"COMMANDER_TEST_REDIS_URL": "x", "COMMAND": "y"}, {"broker_url": "z"})


def test_settings_of_an_app_are_found_with_and_without_a_namespace(tmp_path: Path) -> None:
    plain, spaced = Celery("plain"), Celery("spaced")
    plain.conf.commander_state_directory = str(tmp_path / "plain")
    spaced.config_from_object(
        {"CELERY_COMMANDER_STATE_DIRECTORY": str(tmp_path / "spaced")}, namespace="CELERY"
    )

    found = [Commander(app).engine_settings.state_directory for app in (plain, spaced)]

    assert found == [tmp_path / "plain", tmp_path / "spaced"]


def test_an_app_has_one_commander() -> None:
    app = Celery("twice")
    Commander(app)

    with pytest.raises(SettingsError, match="once"):
        Commander(app)


def test_an_unknown_argument_is_refused_where_the_line_stands() -> None:
    with pytest.raises(SettingsError, match="state_directory"):
        Commander(Celery("typo"), state_directry="x")


@pytest.mark.parametrize("rows", [0, 1001, True, 2.5, "many"])
def test_a_page_of_flower_has_a_sensible_number_of_rows(rows: object) -> None:
    with pytest.raises(SettingsError, match="flower_rows"):
        resolve({"flower_rows": rows}, {}, {})
    assert resolve({}, {"COMMANDER_FLOWER_ROWS": "7"}, {}).tasks.flower_rows == 7
