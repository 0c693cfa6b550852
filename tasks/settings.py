"""Hold what an app can be told, from three sources, checked once.

The order is Commander(...) over the environment over the app's configuration. Engine settings keep the engine's names:
`commander_lease_seconds` on the app, `COMMANDER_LEASE_SECONDS` in the environment, `lease_seconds=` as an argument.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from celery_commander.engine import (
    ORDERED,
    Settings,
    SettingsError,
    check_seconds,
    check_whole_number,
    number_of,
    suggest,
)

from .interest import Observe

PREFIX = "commander_"
ENVIRONMENT_PREFIX = "COMMANDER_"
TEST_PREFIX = "COMMANDER_TEST_"

ON_LOG_UNAVAILABLE = ("refuse", "degrade")
REGISTER_ON_PUBLISH = ("auto", "always", "never")
IN_DOUBT = ("abort", "park")

_POSITIVE = (
    "watch_seconds",
    "undo_backoff_seconds",
    "report_stale_seconds",
    "queue_check_seconds",
    "consume_stale_seconds",
    "bus_flush_seconds",
    "verify_full_seconds",
    "observe_flush_seconds",
    "observe_exit_seconds",
    "foreign_seconds",
)
_INTERVALS = (
    "health_check_seconds",
    "snapshot_seconds",
    "compaction_seconds",
    "verify_seconds",
    "beat_sweep_seconds",
    "anchor_seconds",
)
_COUNTS: Mapping[str, tuple[int, int | None]] = {
    "undo_retries": (0, None),
    "bus_outbox_messages": (1, None),
    "flower_rows": (1, 1000),
    "foreign_messages": (1, None),
    "observe_queue_events": (1, None),
    "observe_batch_events": (1, None),
}
_SWITCHES = ("force_abort", "bus", "schedule", "silence_replay")
_NAMES = ("namespace", "queue")
LONGEST_NAME = 200
"""A queue's name has at most 255 bytes on RabbitMQ, and ours stand in the names of more than queues."""
_TRUE = frozenset(("1", "true", "yes", "on"))
_FALSE = frozenset(("0", "false", "no", "off", ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSettings:
    """Describe how an app's durable tasks behave; seconds may be fractions.

    Raises:
        SettingsError: a value cannot work; it names the key and what it may be.

    """

    namespace: str | None = None
    """Whose runs these are; recovery touches its own only. Default: the app's main name."""
    on_log_unavailable: str = "refuse"
    """`refuse` hands a message back unrun while the log cannot be written; `degrade` runs it unrecorded."""
    register_on_publish: str = "auto"
    """Where a run enters the log: `auto` and `always` when it is published, `never` when a worker receives it."""
    in_doubt: str = "abort"
    """What becomes of a run with a step in doubt that says nothing itself: `abort` undoes it, `park` asks a person."""
    force_abort: bool = False
    """Recovery aborts and undoes everything that it finds, replays nothing; meant for test systems."""
    silence_replay: bool = False
    """Keep what a body logs while it is replayed out of the handlers that Celery sets up; its first run logged it."""
    watch_seconds: float = 0.5
    """The time between two looks for owners that died."""
    undo_retries: int = 5
    """How often a failing undo is tried again, with growing pauses, before its run is stuck."""
    undo_backoff_seconds: float = 1.0
    """The first pause between two tries of an undo; it doubles each time, up to a minute."""
    report_stale_seconds: float = 60.0
    """The age from which on a worker's report no longer counts: it went away."""
    queue_check_seconds: float = 15.0
    """The time between two looks of a worker at how many messages wait for it."""
    consume_stale_seconds: float = 60.0
    """How long a free worker may receive nothing from a queue that holds messages before health says so."""
    foreign_seconds: float = 30.0
    """The longest time that a worker holds a message of another store before it hands it back; the first time 1 s."""
    foreign_messages: int = 1000
    """How many such messages a worker holds beside its own; more of them slow its own work down."""
    flower_rows: int = 50
    """How many runs, steps or events one page of Flower shows; 1 to 1000."""
    observe: str | Sequence[str] = "all"
    """Which plain tasks are recorded: `all`, `failures`, `none`, or name patterns (a list, or text with commas)."""
    observe_queue_events: int = 10_000
    """How many observations one process holds for the log; beyond it they are dropped and counted."""
    observe_batch_events: int = 500
    """How many observations are written at once."""
    observe_flush_seconds: float = 0.2
    """How long the first observation waits for company before it is written; a killed process loses that much."""
    observe_exit_seconds: float = 2.0
    """How long a process that ends may wait for its last observations to be written."""
    queue: str | None = None
    """The queue in which rollbacks are settled; undos go to their own tasks' queues. Default: the app's own."""
    bus: bool = True
    """Tell on the topic exchange `commander` of the app's broker what becomes of runs; False publishes nothing."""
    bus_outbox_messages: int = 1000
    """The most messages of one process that wait for the broker; beyond it the oldest are dropped."""
    bus_flush_seconds: float = 2.0
    """How long a process that ends waits for its last messages to be delivered."""
    schedule: bool = True
    """Have `celery beat` send the maintenance tasks; False sends none, whatever the intervals say."""
    health_check_seconds: float | None = 15.0
    """Beat: the time between two checks of the health; 0 or None sends none, here and below."""
    snapshot_seconds: float | None = 3600.0
    """Beat: the time between two snapshots of the log's state."""
    compaction_seconds: float | None = 3600.0
    """Beat: the time between two looks whether the log is to be compacted: at half of `log_degraded_bytes`."""
    verify_seconds: float | None = 300.0
    """Beat: the time between two verifications of what the log has gained since the last one."""
    verify_full_seconds: float = 24 * 3600.0
    """The age of the last verification of the whole log at which the next one reads all of it again."""
    beat_sweep_seconds: float | None = 60.0
    """Beat: the time between two sweeps of recovery, beside those that every worker makes by itself."""
    anchor_seconds: float | None = 300.0
    """Beat: the time between two anchors of the log, if there is an `anchor_directory`."""

    def __post_init__(self) -> None:
        _one_of("on_log_unavailable", self.on_log_unavailable, ON_LOG_UNAVAILABLE)
        _one_of("register_on_publish", self.register_on_publish, REGISTER_ON_PUBLISH)
        _one_of("in_doubt", self.in_doubt, IN_DOUBT)
        Observe.of(self.observe)
        for key in _POSITIVE:
            check_seconds(key, getattr(self, key))
            if getattr(self, key) == 0:
                raise SettingsError(key, 0, "it must be above zero")
        for key, (smallest, largest) in _COUNTS.items():
            check_whole_number(key, getattr(self, key), smallest, largest)
        for key in _INTERVALS:
            _check_interval(key, getattr(self, key))
        for key in _SWITCHES:
            if not isinstance(getattr(self, key), bool):
                raise SettingsError(key, getattr(self, key), "it must be True or False")
        for key in _NAMES:
            _check_name(key, getattr(self, key))


@dataclass(frozen=True, slots=True)
class Resolved:
    """Hold both rooms' settings as one app uses them."""

    engine: Settings
    tasks: TaskSettings


def resolve(
    overrides: Mapping[str, Any], environment: Mapping[str, str], configured: Mapping[str, Any]
) -> Resolved:
    """Return the settings that hold when the three sources are laid over each other.

    `overrides` has bare names, `environment` names that begin with COMMANDER_, `configured` ones with commander_; what
    does not begin so is not ours and is passed over.

    Raises:
        SettingsError: an unknown key (with a suggestion) or a value that cannot work; where it was given is said.

    """
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for key, value in configured.items():
        if key.startswith(PREFIX):
            name = _known(key, key.removeprefix(PREFIX), value)
            values[name], sources[name] = value, f"{key} on the app's configuration"
    for key, value in environment.items():
        if key.startswith(ENVIRONMENT_PREFIX) and not key.startswith(TEST_PREFIX):
            name = _known(key, key.removeprefix(ENVIRONMENT_PREFIX).lower(), value)
            values[name], sources[name] = value, f"{key} in the environment"
    for key, value in check_names(overrides).items():
        values[key], sources[key] = value, f"{key}= of Commander"
    try:
        return _made(values)
    except SettingsError as error:
        raise _sourced(error, sources.get(error.key, "")) from error


def check_overrides(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of Commander as they are, once each can work by itself.

    Limits that must stand in an order are compared when the other sources have been read as well.

    Raises:
        SettingsError: an unknown name (with a suggestion), or a value that cannot work with any other.

    """
    values = check_names(overrides)
    pairs = (*ORDERED, *(pair[::-1] for pair in ORDERED))
    stand_ins = {other: key for key, other in pairs if key in values and other not in values}
    checked = values | {other: values[key] for other, key in stand_ins.items()}
    elsewhere = values.get("anchor_directory")
    is_place = isinstance(elsewhere, str | Path) and bool(str(elsewhere).strip())
    if is_place and "state_directory" not in values:  # nothing is known of it yet
        stand_ins["state_directory"] = "anchor_directory"
        checked["state_directory"] = Path(str(elsewhere)) / "elsewhere"
    try:
        _made(checked)
    except SettingsError as error:
        key = stand_ins.get(error.key, error.key)
        found = SettingsError(key, values.get(key), error.reason, error.suggestion)
        raise _sourced(found, f"{key}= of Commander") from error
    return values


def check_names(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the overrides as they are; an unknown name is refused with a suggestion."""
    return {_known(key, key, value): value for key, value in overrides.items()}


def _made(values: Mapping[str, Any]) -> Resolved:
    ours = {key: _typed(key, values[key]) for key in values if key in TASK_KEYS}
    theirs = {key: value for key, value in values.items() if key not in TASK_KEYS}
    return Resolved(Settings.of(theirs), TaskSettings(**ours))


def _sourced(error: SettingsError, source: str) -> SettingsError:
    """Return the error with where the value was given, and what to do about it."""
    default = _DEFAULTS.get(error.key)
    remedy = f"{error.reason}; change it there, or leave it out for the default ({default})"
    if default is None:
        remedy = f"{error.reason}; change it there, or leave it out"
    found = SettingsError(error.key, error.value, remedy, error.suggestion)
    found.source, found.origin = source, f" ({source})" if source else ""
    return found


def _keys(settings: Any) -> frozenset[str]:
    return frozenset(field.name for field in dataclasses.fields(settings))


TASK_KEYS = _keys(TaskSettings)
ALL_KEYS = TASK_KEYS | _keys(Settings)
_NUMBERS: Mapping[str, type] = dict.fromkeys((*_POSITIVE, *_INTERVALS), float) | dict.fromkeys(
    _COUNTS, int
)
_DEFAULTS = {
    field.name: field.default
    for field in (*dataclasses.fields(TaskSettings), *dataclasses.fields(Settings))
}


def _known(shown: str, key: str, value: object) -> str:
    if key in ALL_KEYS:
        return key
    close = suggest(key, ALL_KEYS)
    raise SettingsError(
        shown, value, "there is no such setting", close and shown[: -len(key)] + _like(shown, close)
    )


def _like(shown: str, name: str) -> str:
    return name.upper() if shown.isupper() else name


def _typed(key: str, value: Any) -> Any:
    """Read text from the environment as what the setting is; everything else is left to the checks."""
    if not isinstance(value, str):
        return value
    if key in _SWITCHES:
        if value.lower() in _TRUE | _FALSE:
            return value.lower() in _TRUE
        raise SettingsError(key, value, "it must be 1 or 0")
    return number_of(key, value, _NUMBERS[key]) if key in _NUMBERS else value


def _one_of(key: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        hint = suggest(value, allowed) if isinstance(value, str) else None
        raise SettingsError(key, value, f"it must be one of {', '.join(allowed)}", hint)


def _check_interval(key: str, value: object) -> None:
    if value is None:
        return
    try:
        check_seconds(key, value)
    except SettingsError as error:
        raise SettingsError(key, value, f"{error.reason}, or 0 or None for never") from error


def _check_name(key: str, value: object) -> None:
    if value is None:
        return
    if not isinstance(value, str):
        raise SettingsError(key, value, "it must be a text")
    if not value.strip() or not value.isprintable() or len(value.encode()) > LONGEST_NAME:
        reason = f"it must be a name of printable characters, at most {LONGEST_NAME} bytes"
        raise SettingsError(key, value, reason)
