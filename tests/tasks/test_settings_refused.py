"""Every setting refuses what cannot work, wherever it was given, before anything uses it; made from the fields."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from celery_commander.engine import Settings, SettingsError
from celery_commander.tasks import Commander, TaskSettings
from celery_commander.tasks.settings import resolve

FIELDS = {f.name: f.default for s in (Settings, TaskSettings) for f in dataclasses.fields(s)}
PATHS = ("state_directory", "event_sourcing_wal", "anchor_directory")
WORDS = (
    "durability",
    "on_log_unavailable",
    "register_on_publish",
    "in_doubt",
    "network_filesystem",
)
OPTIONAL = ("event_sourcing_wal", "anchor_directory", "network_filesystem", "namespace", "queue")

STRANGE: list[Any] = [[], {}, object(), b"10", 1j, (1,), {1}, int, "\udc80\0"]
NOT_NUMBERS = [
    *STRANGE,
    True,
    False,
    math.nan,
    math.inf,
    -math.inf,
    -1,
    -0.5,
    "soon",
    "",
    " ",
    "1_0",
    "٣",
]
TEXT_OF_NUMBERS = ["soon", "", "nan", "inf", "-inf", "-1", "True", "1e400", "1_0", "٣", "9" * 5000]


def kind_of(name: str) -> str:
    default = FIELDS[name]
    if name in PATHS:
        return "path"
    if name in WORDS:
        return "word"
    if name in ("namespace", "queue", "observe"):
        return name
    return type(default).__name__


def wrong_values(name: str) -> list[Any]:
    match kind_of(name):
        case "bool":
            return [*STRANGE, None, 0, 1, 2, -1, 1.0, math.nan, "maybe", "2"]
        case "int":
            return [*NOT_NUMBERS, None, 1.5, 2**62 + 1, 2**63, 10**400]
        case "float":
            return [*NOT_NUMBERS, 1e18, 1e300, 10**400]
        case "path":
            return [1, 1.5, True, math.nan, b"/x", [], {}, object(), "", " ", ".", "a\0b"]
        case "word":
            return [*STRANGE, 1, True, math.nan, "", " ", "never ever"]
        case "observe":
            return [None, 1, True, math.nan, object(), {}, [], [""], [1], "", " ", ",", "failure"]
        case _:
            return [*STRANGE, 1, True, 1.5, math.nan, "", " ", "a\nb", "x" * 201]


def wrong_texts(name: str) -> list[str]:
    match kind_of(name):
        case "bool":
            return ["maybe", "2", "-1", "None", "nan"]
        case "int":
            return [*TEXT_OF_NUMBERS, "1.5", "1e3"]
        case "float":
            return [*TEXT_OF_NUMBERS, "1e18"]
        case "path":
            return ["", " ", "."]
        case "observe":
            return ["", ",", "failure"]
        case "word":
            return ["", " ", "never ever", "1"]
        case _:
            return ["", " ", "a\nb", "x" * 201]


def cases() -> Iterator[tuple[str, Any]]:
    for name in FIELDS:
        for value in wrong_values(name):
            yield name, value
        if name not in OPTIONAL and kind_of(name) != "float":
            yield name, None


def refused(name: str, *sources: dict[str, Any]) -> SettingsError:
    with pytest.raises(SettingsError) as caught:
        resolve(*sources)
    assert caught.value.key == name
    assert f"Setting {name} = " in str(caught.value)
    assert "leave it out" in str(caught.value)
    assert len(str(caught.value)) < 600
    return caught.value


@pytest.mark.parametrize("name", FIELDS)
def test_an_argument_that_cannot_work_is_refused_where_the_line_stands(name: str) -> None:
    for n, value in enumerate([v for k, v in cases() if k == name]):
        app = Celery(f"refusing-{name}-{n}", set_as_current=False)
        with pytest.raises(SettingsError) as caught:
            Commander(app, **{name: value})
        assert (caught.value.key, caught.value.source) == (name, f"{name}= of Commander")
        assert not hasattr(app, "commander")


@pytest.mark.parametrize("name", FIELDS)
def test_a_value_of_the_app_that_cannot_work_is_named_with_where_it_was_given(name: str) -> None:
    for value in [v for k, v in cases() if k == name]:
        error = refused(name, {}, {}, {f"commander_{name}": value})
        assert error.source == f"commander_{name} on the app's configuration"


@pytest.mark.parametrize("name", FIELDS)
def test_text_of_the_environment_that_cannot_work_is_named_with_its_variable(name: str) -> None:
    for text in wrong_texts(name):
        error = refused(name, {}, {f"COMMANDER_{name.upper()}": text}, {})
        assert f"(COMMANDER_{name.upper()} in the environment)" in str(error)


@pytest.mark.parametrize("name", [name for name in FIELDS if kind_of(name) in ("int", "float")])
def test_zero_is_refused_or_has_a_meaning(name: str) -> None:
    has_meaning = name in ("pending_after_seconds", "undo_retries") or name in (
        "disk_degraded_bytes",
        "disk_unhealthy_bytes",
        *(k for k, f in TaskSettings.__annotations__.items() if f == "float | None"),
    )
    partner = {"disk_unhealthy_bytes": 0} if name == "disk_degraded_bytes" else {}
    if has_meaning:
        resolve({name: 0, **partner}, {}, {})
        resolve({}, {f"COMMANDER_{key.upper()}": "0" for key in (name, *partner)}, {})
    else:
        refused(name, {name: 0}, {}, {})
        refused(name, {}, {f"COMMANDER_{name.upper()}": "0"}, {})


@pytest.mark.parametrize("name", FIELDS)
def test_every_default_may_be_given_from_every_source(name: str, tmp_path: Path) -> None:
    value = FIELDS[name]
    plain = resolve({}, {}, {})
    assert resolve({name: value}, {}, {}) == plain
    assert resolve({}, {}, {f"commander_{name}": value}) == plain
    if value is not None:
        text = "1" if value is True else "0" if value is False else str(value)
        assert resolve({}, {f"COMMANDER_{name.upper()}": text}, {}) == plain


def test_limits_in_an_order_are_compared_once_all_sources_are_read(tmp_path: Path) -> None:
    app = Celery("ordered", set_as_current=False)
    app.conf.commander_log_unhealthy_bytes = 900_000_000
    assert Commander(app, log_degraded_bytes=800_000_000).engine_settings.log_degraded_bytes

    other = Celery("disordered", set_as_current=False)
    commander = Commander(other, log_degraded_bytes=800_000_000)
    with pytest.raises(SettingsError, match=r"log_degraded_bytes= of Commander.*log_unhealthy_by"):
        _ = commander.engine_settings


def test_anchors_may_lie_where_only_the_default_state_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    app = Celery("anchored", set_as_current=False)
    app.conf.commander_state_directory = "/var/lib/shop"
    place = tmp_path / ".commander_state" / "anchors"

    assert Commander(app, anchor_directory=place).engine_settings.anchor_directory == place
    with pytest.raises(SettingsError, match="beside the log"):
        Commander(
            Celery("beside", set_as_current=False),
            state_directory=tmp_path,
            anchor_directory=tmp_path / "anchors",
        )


def test_an_argument_of_another_source_is_no_reason_to_read_the_configuration() -> None:
    app = Celery("lazy", set_as_current=False)
    Commander(app, lease_seconds=3)

    assert not app.configured
