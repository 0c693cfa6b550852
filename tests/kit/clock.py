"""A clock that moves when it is told to: the wall and the boot clock of one host."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from celery_commander.engine import BootClock

START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


class ManualClock:
    """Stand in for the two clocks of a host; both move together unless the wall is set.

    ``clock.wall`` goes where the engine asks for ``now``; ``clock.boot_clock()`` where it asks for a
    :class:`BootClock`. Every boot clock that was handed out keeps the boot it was made in, as the
    clock of a process does.
    """

    def __init__(self, start: datetime = START, *, boot_seconds: float = 1_000.0) -> None:
        self._wall = start
        self._boot_seconds = boot_seconds
        self._boot_number = 1

    def wall(self) -> datetime:
        """Return the moment on the wall, in UTC."""
        return self._wall

    def boot_seconds(self) -> float:
        """Return the seconds since the current boot."""
        return self._boot_seconds

    @property
    def boot_id(self) -> str:
        """Return the name of the current boot, shaped as the kernel's."""
        return f"00000000-0000-4000-8000-{self._boot_number:012d}"

    def boot_clock(self) -> BootClock:
        """Return the boot clock of a process that starts now."""
        return BootClock(boot_id=self.boot_id, seconds=self.boot_seconds)

    def advance(self, seconds: float) -> None:
        """Let time pass on both clocks."""
        if seconds < 0:
            raise ValueError("time does not run backwards; set_wall() moves the wall alone")
        self._wall += timedelta(seconds=seconds)
        self._boot_seconds += seconds

    def set_wall(self, moment: datetime) -> None:
        """Correct the wall clock, as NTP or an operator does; the boot clock does not notice."""
        self._wall = moment

    def reboot(self, *, down_seconds: float = 30.0) -> None:
        """Restart the host: a new boot id, and a boot clock that begins again."""
        self._wall += timedelta(seconds=down_seconds)
        self._boot_seconds = 5.0
        self._boot_number += 1
