"""Hold what the engine can be told, checked once, when it is told.

A :class:`Settings` is a value: every part of the engine is given the one it was opened with, nothing looks anything up
later. Where the values come from (an app's configuration, the environment) is not this room's business.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import SettingsError, StrPath
from .places import NETWORK

DURABILITIES = ("fsync", "group", "os")

LONGEST_SECONDS = 100 * 365 * 24 * 60 * 60.0
"""A century: beyond it the clocks and waits of the platform give up, at the first use."""
LONGEST_DAYS = 100 * 365
LARGEST = 2**62
"""The largest count or size: what it bounds must fit into a database and a queue."""

_POSITIVE = ("flush_seconds", "lock_seconds", "lease_seconds", "sweep_seconds", "segment_seconds")
_SMALLEST = {
    "archive_days": 1,
    "dead_letter_days": 1,
    "max_deaths": 1,
    "checkpoint_bytes": 1024,
    "checkpoints_kept": 1,
    "max_payload_bytes": 1024,
    "segment_bytes": 4096,
}
_HEALTH_POSITIVE = (
    "latency_degraded_seconds",
    "latency_unhealthy_seconds",
    "latency_window_seconds",
    "verify_stale_seconds",
    "unrecorded_seconds",
)
_HEALTH_SMALLEST = {
    "log_degraded_bytes": 1,
    "log_unhealthy_bytes": 1,
    "backlog_degraded_events": 1,
    "backlog_unhealthy_events": 1,
    "disk_degraded_bytes": 0,
    "disk_unhealthy_bytes": 0,
    "dead_letters_degraded": 1,
}
ORDERED = (  # the first of two limits is met first
    ("latency_degraded_seconds", "latency_unhealthy_seconds"),
    ("log_degraded_bytes", "log_unhealthy_bytes"),
    ("backlog_degraded_events", "backlog_unhealthy_events"),
    ("disk_unhealthy_bytes", "disk_degraded_bytes"),
)
_LARGEST = {"archive_days": LONGEST_DAYS, "dead_letter_days": LONGEST_DAYS}
_SWITCHED = dict.fromkeys(("1", "true", "yes", "on"), True) | dict.fromkeys(
    ("0", "false", "no", "off", ""), False
)
_PATHS = ("state_directory", "event_sourcing_wal", "anchor_directory")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Describe one store and its bounds; seconds may be fractions, bytes are whole numbers.

    Paths are made absolute here, at construction, because a daemon changes its working directory later.

    Raises:
        SettingsError: a value cannot work; it names the key and the reason.
    """

    state_directory: Path = Path(".commander_state")
    """Where everything lies that has no path of its own."""
    event_sourcing_wal: Path = None  # type: ignore[assignment]  # filled in below
    """The active file of the log; by default ``event-sourcing.wal`` in the state directory."""
    anchor_directory: Path | None = None
    """Where anchors of the log are kept; outside the state directory, or they would prove nothing. None: no anchors."""
    durability: str = "fsync"
    """``fsync``: acknowledged is on disk · ``group``: within flush_seconds · ``os``: survives a process kill only."""
    flush_seconds: float = 0.2
    """The longest time that a written but not waited-for event stays unsynced."""
    lock_seconds: float = 10.0
    """The longest wait for a lock of the log or of a database before it is an error."""
    lease_seconds: float = 30.0
    """How long a lease lives unless it is renewed, which happens at every third of it."""
    pending_after_seconds: float = 60.0
    """How long a run may lie untouched before recovery asks whether its message was lost; 0 asks at once."""
    sweep_seconds: float = 10.0
    """The time between two sweeps of recovery."""
    max_deaths: int = 3
    """Deaths of a run's owners without progress between them after which the run counts as poison."""
    max_payload_bytes: int = 1024 * 1024
    """The largest payload that stands in the log itself."""
    segment_bytes: int = 64 * 1024 * 1024
    """The size at which the active file is sealed."""
    segment_seconds: float = 24 * 60 * 60.0
    """The age at which the active file is sealed."""
    archive_days: int = 30
    """How long sealed files stay in the archive after a snapshot has replaced them."""
    strict: bool = False
    """Repair nothing unasked: a torn tail waits for ``commander repair``; a place that a restart empties is refused."""
    network_filesystem: str | None = None
    """The kind of network file system (``nfs4``) that is allowed to hold the store; by default none is."""
    dead_letter_days: int = 30
    """How long resolved and aborted dead letters are kept; those that need a person never lapse."""
    checkpoint_bytes: int = 4 * 1024 * 1024
    """The largest state that a run may save as a checkpoint, encoded."""
    checkpoints_kept: int = 3
    """How many older checkpoints of a run keep their contents beside the newest."""
    latency_degraded_seconds: float = 0.05
    """Health: the 95th percentile of waited appends from which on the log counts as slow."""
    latency_unhealthy_seconds: float = 0.2
    """Health: the same, from which on it is too slow to work with."""
    latency_window_seconds: float = 3600.0
    """Health: how long a measured append says something about now."""
    log_degraded_bytes: int = 100_000_000
    """Health: the size of the live log (active file and segments) from which on it should have been compacted."""
    log_unhealthy_bytes: int = 500_000_000
    """Health: the same, from which on something keeps it from being compacted."""
    backlog_degraded_events: int = 1_000
    """Health: events of unfinished runs that no snapshot covers."""
    backlog_unhealthy_events: int = 10_000
    """Health: the same, from which on a restart takes too long."""
    verify_stale_seconds: float = 2 * 24 * 60 * 60.0
    """Health: the age from which on the last verification of the chain says too little."""
    disk_degraded_bytes: int = 1024 * 1024 * 1024
    """Health: free space of the log's file system below which it warns."""
    disk_unhealthy_bytes: int = 64 * 1024 * 1024
    """Health: the same, below which the log counts as not writable."""
    dead_letters_degraded: int = 1_000
    """Health: open dead letters of every kind; one that needs a person degrades by itself."""
    unrecorded_seconds: float = 3600.0
    """Health: how long a run that went by unrecorded keeps it unhealthy, a dropped observation degraded."""

    def __post_init__(self) -> None:
        self._set("state_directory", _absolute("state_directory", self.state_directory))
        wal: Path | None = self.event_sourcing_wal
        if wal is None:
            wal = self.state_directory / "event-sourcing.wal"
        self._set("event_sourcing_wal", _absolute("event_sourcing_wal", wal))
        self._check_anchor_directory()
        if self.durability not in DURABILITIES:
            reason = f"it must be one of {', '.join(DURABILITIES)}"
            hint = suggest(str(self.durability).lower(), DURABILITIES)
            raise SettingsError("durability", self.durability, reason, hint)
        self._check_network()
        if not isinstance(self.strict, bool):
            raise SettingsError("strict", self.strict, "it must be True or False")
        for key in (*_POSITIVE, *_HEALTH_POSITIVE):
            self._check_seconds(key, above_zero=True)
        self._check_seconds("pending_after_seconds", above_zero=False)
        for key, smallest in (_SMALLEST | _HEALTH_SMALLEST).items():
            self._check_count(key, smallest)
        for low, high in ORDERED:
            if getattr(self, low) > getattr(self, high):
                reason = f"it must not be above {high} ({getattr(self, high)})"
                raise SettingsError(low, getattr(self, low), reason)

    @classmethod
    def at(cls, path: StrPath) -> Settings:
        """Return the settings of the log whose active file is `path`, everything else beside it."""
        wal = _absolute("event_sourcing_wal", path)
        return cls(state_directory=wal.parent, event_sourcing_wal=wal)

    @classmethod
    def of(cls, values: Mapping[str, object]) -> Settings:
        """Return settings from plain values; numbers may be text, as an environment gives them.

        Raises:
            SettingsError: an unknown key (with a suggestion), or a value that cannot be read or cannot work.
        """
        known = {field.name: field.default for field in dataclasses.fields(cls)}
        read: dict[str, Any] = {}
        for key, value in values.items():
            if key not in known:
                raise SettingsError(key, value, "there is no such setting", suggest(key, known))
            read[key] = _read_number(key, value, known[key])
        return cls(**read)

    @property
    def wal_directory(self) -> Path:
        """Return the directory that belongs to the log: locks, control, index, segments."""
        return Path(f"{self.event_sourcing_wal}.d")

    @property
    def ledger_path(self) -> Path:
        """Return the database that holds the folded run states."""
        return self.state_directory / "ledger.sqlite"

    @property
    def leases_path(self) -> Path:
        """Return the database that holds the leases; apart, so that a long catch-up never blocks a claim."""
        return self.state_directory / "leases.sqlite"

    @property
    def checkpoints_path(self) -> Path:
        """Return the database that holds the contents of checkpoints."""
        return self.state_directory / "checkpoints.sqlite"

    @property
    def health_path(self) -> Path:
        """Return the database in which workers report; nothing is lost with it."""
        return self.state_directory / "health.sqlite"

    @property
    def liveness_directory(self) -> Path:
        """Return the directory in which living processes hold their liveness locks."""
        return self.state_directory / "liveness"

    def _set(self, key: str, value: object) -> None:
        object.__setattr__(self, key, value)  # frozen for everybody but its own constructor

    def _check_network(self) -> None:
        kind: object = self.network_filesystem
        if kind is not None and not (isinstance(kind, str) and kind in NETWORK):
            reason = "it must be a kind of network file system as the mount table names it"
            hint = suggest(str(self.network_filesystem).lower(), NETWORK)
            raise SettingsError("network_filesystem", self.network_filesystem, reason, hint)

    def _check_anchor_directory(self) -> None:
        if self.anchor_directory is None:
            return
        place = _absolute("anchor_directory", self.anchor_directory)
        self._set("anchor_directory", place)
        for inside in (self.state_directory, self.wal_directory):
            if Path(os.path.realpath(place)).is_relative_to(os.path.realpath(inside)):
                reason = (
                    f"it lies in {inside}, beside the log: who rewrites the one rewrites the other"
                )
                raise SettingsError("anchor_directory", str(place), reason)

    def _check_seconds(self, key: str, *, above_zero: bool) -> None:
        value = getattr(self, key)
        check_seconds(key, value)
        if above_zero and value == 0:
            raise SettingsError(key, value, "it must be above zero")

    def _check_count(self, key: str, smallest: int) -> None:
        check_whole_number(key, getattr(self, key), smallest, _LARGEST.get(key, LARGEST))


def check_seconds(key: str, value: object) -> None:
    """Refuse what is no number of seconds, zero or more, that a clock can wait for.

    Raises:
        SettingsError: it is none.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or value != value or value in (math.inf, -math.inf):  # NaN
        raise SettingsError(key, value, "it must be a number of seconds")
    assert isinstance(value, int | float)
    if value < 0:
        raise SettingsError(key, value, "it must not be negative")
    if value > LONGEST_SECONDS:
        raise SettingsError(key, value, f"it must be at most {LONGEST_SECONDS:.0f}, a century")


def check_whole_number(
    key: str, value: object, smallest: int, largest: int | None = LARGEST
) -> None:
    """Refuse what is no whole number within its bounds.

    Raises:
        SettingsError: it is none.
    """
    largest = LARGEST if largest is None else largest
    if isinstance(value, bool) or not isinstance(value, int):
        raise SettingsError(key, value, "it must be a whole number")
    if value < smallest:
        raise SettingsError(key, value, f"it must be at least {smallest}")
    if value > largest:
        raise SettingsError(key, value, f"it must be at most {largest}")


def suggest(key: str, known: Iterable[str]) -> str | None:
    """Return the known name that `key` was probably meant to be, or None."""
    close = difflib.get_close_matches(key, list(known), n=1, cutoff=0.6)
    return close[0] if close else None


def _absolute(key: str, value: object) -> Path:
    try:
        path = Path(value)  # type: ignore[arg-type]  # what cannot be a path raises TypeError, answered below
    except TypeError as error:
        raise SettingsError(key, value, "it must be a path") from error
    if not str(path).strip() or path == Path() or "\0" in str(path):
        raise SettingsError(key, value, "it must name a file or directory")
    try:
        return path.expanduser().absolute()
    except (OSError, RuntimeError) as error:
        raise SettingsError(key, value, f"it cannot be made absolute ({error})") from error


def _read_number(key: str, value: object, default: object) -> object:
    """Read text as the kind of number that the default is, or as a switch; leave everything else to the checks."""
    if isinstance(default, bool):
        return _SWITCHED.get(value.lower(), value) if isinstance(value, str) else value
    if key in _PATHS or not isinstance(value, str) or not isinstance(default, int | float):
        return value
    return number_of(key, value, type(default))


def number_of(key: str, value: str, kind: type) -> object:
    """Read text, as an environment gives it, as a number.

    Raises:
        SettingsError: it is none.
    """
    what = "a whole number" if kind is int else "a number"
    try:
        if not value.isascii() or "_" in value:  # Python's own liberties
            raise ValueError(value)
        return kind(value)
    except ValueError as error:
        raise SettingsError(key, value, f"it must be {what}") from error
