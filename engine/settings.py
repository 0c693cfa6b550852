"""Hold what the engine can be told, checked once, when it is told.

A :class:`Settings` is a value: every part of the engine is given the one it was opened with, nothing looks anything up
later. Where the values come from (an app's configuration, the environment) is not this room's business.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import SettingsError, StrPath

DURABILITIES = ("fsync", "group", "os")

_POSITIVE = ("flush_seconds", "lock_seconds", "lease_seconds", "sweep_seconds", "segment_seconds")
_SMALLEST = {"max_deaths": 1, "max_payload_bytes": 1024, "segment_bytes": 4096}
_PATHS = ("state_directory", "event_sourcing_wal")


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

    def __post_init__(self) -> None:
        self._set("state_directory", _absolute("state_directory", self.state_directory))
        wal: Path | None = self.event_sourcing_wal
        if wal is None:
            wal = self.state_directory / "event-sourcing.wal"
        self._set("event_sourcing_wal", _absolute("event_sourcing_wal", wal))
        if self.durability not in DURABILITIES:
            reason = f"it must be one of {', '.join(DURABILITIES)}"
            hint = suggest(str(self.durability).lower(), DURABILITIES)
            raise SettingsError("durability", self.durability, reason, hint)
        for key in _POSITIVE:
            self._check_seconds(key, above_zero=True)
        self._check_seconds("pending_after_seconds", above_zero=False)
        for key, smallest in _SMALLEST.items():
            self._check_count(key, smallest)

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
    def liveness_directory(self) -> Path:
        """Return the directory in which living processes hold their liveness locks."""
        return self.state_directory / "liveness"

    def _set(self, key: str, value: object) -> None:
        object.__setattr__(self, key, value)  # frozen for everybody but its own constructor

    def _check_seconds(self, key: str, *, above_zero: bool) -> None:
        value = getattr(self, key)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not math.isfinite(value):
            raise SettingsError(key, value, "it must be a number of seconds")
        if value < 0:
            raise SettingsError(key, value, "it must not be negative")
        if above_zero and value == 0:
            raise SettingsError(key, value, "it must be above zero")

    def _check_count(self, key: str, smallest: int) -> None:
        value = getattr(self, key)
        if isinstance(value, bool) or not isinstance(value, int):
            raise SettingsError(key, value, "it must be a whole number")
        if value < smallest:
            raise SettingsError(key, value, f"it must be at least {smallest}")


def suggest(key: str, known: Iterable[str]) -> str | None:
    """Return the known name that `key` was probably meant to be, or None."""
    close = difflib.get_close_matches(key, list(known), n=1, cutoff=0.6)
    return close[0] if close else None


def _absolute(key: str, value: object) -> Path:
    try:
        path = Path(value)  # type: ignore[arg-type]  # what cannot be a path raises TypeError, answered below
    except TypeError as error:
        raise SettingsError(key, value, "it must be a path") from error
    if path == Path() or "\0" in str(path):
        raise SettingsError(key, value, "it must name a file or directory")
    try:
        return path.expanduser().absolute()
    except (OSError, RuntimeError) as error:
        raise SettingsError(key, value, f"it cannot be made absolute ({error})") from error


def _read_number(key: str, value: object, default: object) -> object:
    """Read text as the kind of number that the default is; leave everything else to the checks."""
    if key in _PATHS or not isinstance(value, str) or not isinstance(default, int | float):
        return value
    try:
        return type(default)(value)
    except ValueError as error:
        raise SettingsError(key, value, "it must be a number") from error
