"""Settings are checked once, when they are made, and say what is wrong with them."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest

from celery_commander.engine import Settings, SettingsError, suggest


def test_the_defaults_are_those_that_are_documented(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    found = dataclasses.asdict(Settings())

    assert found == {
        "state_directory": tmp_path / ".commander_state",
        "event_sourcing_wal": tmp_path / ".commander_state" / "event-sourcing.wal",
        "anchor_directory": None,
        "durability": "fsync",
        "flush_seconds": 0.2,
        "lock_seconds": 10,
        "lease_seconds": 30,
        "pending_after_seconds": 60,
        "sweep_seconds": 10,
        "max_deaths": 3,
        "max_payload_bytes": 1024 * 1024,
        "segment_bytes": 64 * 1024 * 1024,
        "segment_seconds": 24 * 3600,
        "strict": False,
        "network_filesystem": None,
        "checkpoint_bytes": 4 * 1024 * 1024,
        "checkpoints_kept": 3,
        "latency_degraded_seconds": 0.05,
        "latency_unhealthy_seconds": 0.2,
        "latency_window_seconds": 3600,
        "log_degraded_bytes": 100_000_000,
        "log_unhealthy_bytes": 500_000_000,
        "backlog_degraded_events": 1_000,
        "backlog_unhealthy_events": 10_000,
        "verify_stale_seconds": 48 * 3600,
        "disk_degraded_bytes": 1024**3,
        "disk_unhealthy_bytes": 64 * 1024**2,
        "dead_letters_degraded": 1_000,
        "unrecorded_seconds": 3600,
        "archive_days": 30,
        "dead_letter_days": 30,
    }


def test_paths_stay_where_they_were_when_a_daemon_changes_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = Settings(state_directory=Path("state"))
    monkeypatch.chdir("/")

    assert settings.state_directory == tmp_path / "state"
    assert os.path.isabs(settings.event_sourcing_wal)


def test_everything_lies_in_the_state_directory_but_what_belongs_to_the_log() -> None:
    settings = Settings(state_directory=Path("/state"), event_sourcing_wal=Path("/disk/a.wal"))

    assert settings.wal_directory == Path("/disk/a.wal.d")
    assert settings.ledger_path == Path("/state/ledger.sqlite")
    assert settings.leases_path == Path("/state/leases.sqlite")
    assert settings.liveness_directory == Path("/state/liveness")


def test_the_settings_of_a_bare_log_lie_beside_it() -> None:
    settings = Settings.at("/disk/a.wal")

    assert settings == Settings(
        state_directory=Path("/disk"), event_sourcing_wal=Path("/disk/a.wal")
    )


def test_settings_do_not_change_and_can_be_copied() -> None:
    settings = Settings(lease_seconds=5)

    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.lease_seconds = 6  # type: ignore[misc]
    assert dataclasses.replace(settings, max_deaths=1).lease_seconds == 5
    assert settings == Settings(lease_seconds=5)


@pytest.mark.parametrize(
    "key, value, reason",
    [
        ("state_directory", "", "must name"),
        ("state_directory", 5, "must be a path"),
        ("state_directory", "a\0b", "must name"),
        ("event_sourcing_wal", "", "must name"),
        ("durability", "fsyn", "one of fsync, group, os; did you mean 'fsync'"),
        ("durability", None, "one of"),
        ("flush_seconds", 0, "above zero"),
        ("lock_seconds", -1, "not be negative"),
        ("lease_seconds", float("nan"), "number of seconds"),
        ("lease_seconds", float("inf"), "number of seconds"),
        ("lease_seconds", True, "number of seconds"),
        ("sweep_seconds", "10", "number of seconds"),
        ("segment_seconds", 0, "above zero"),
        ("latency_degraded_seconds", 0.3, "not be above latency_unhealthy_seconds"),
        ("log_degraded_bytes", 500_000_001, "not be above log_unhealthy_bytes"),
        ("backlog_degraded_events", 10_001, "not be above backlog_unhealthy_events"),
        ("disk_unhealthy_bytes", 1024**3 + 1, "not be above disk_degraded_bytes"),
        ("verify_stale_seconds", 0, "above zero"),
        ("dead_letters_degraded", 0, "at least 1"),
        ("pending_after_seconds", -0.1, "not be negative"),
        ("max_deaths", 0, "at least 1"),
        ("max_deaths", 1.5, "whole number"),
        ("max_deaths", True, "whole number"),
        ("max_payload_bytes", 1023, "at least 1024"),
        ("segment_bytes", 1, "at least 4096"),
        ("checkpoint_bytes", 1, "at least 1024"),
        ("checkpoints_kept", 0, "at least 1"),
    ],
)
def test_a_value_that_cannot_work_is_refused_by_its_name(key: str, value: Any, reason: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Settings(**{key: value})

    assert (caught.value.key, caught.value.value) == (key, value)
    assert reason in str(caught.value)


def test_zero_pending_seconds_ask_at_once() -> None:
    assert Settings(pending_after_seconds=0).pending_after_seconds == 0


def test_plain_values_are_read_as_an_environment_gives_them() -> None:
    settings = Settings.of(
        {"state_directory": "/state", "lease_seconds": "2.5", "max_deaths": "4", "durability": "os"}
    )

    assert settings == Settings(
        state_directory=Path("/state"), lease_seconds=2.5, max_deaths=4, durability="os"
    )


@pytest.mark.parametrize(
    "values, told",
    [
        ({"lease_second": 5}, "no such setting; did you mean 'lease_seconds'?"),
        ({"colour": 5}, "there is no such setting."),
        ({"lease_seconds": "soon"}, "must be a number"),
        ({"max_deaths": "1.5"}, "must be a whole number"),
    ],
)
def test_plain_values_that_cannot_be_read_are_named(values: dict[str, object], told: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Settings.of(values)

    assert told in str(caught.value)


def test_a_suggestion_is_made_only_when_it_is_close() -> None:
    known = ["lease_seconds", "lock_seconds"]

    assert suggest("lease_secs", known) == "lease_seconds"
    assert suggest("bananas", known) is None
