"""Measure time in a way that nobody can set, and tell one boot of the host from another.

Leases of one host are compared on this clock. A wall clock would hand a run to two owners when it is
corrected; a monotonic clock that stops while the host sleeps would keep a dead owner's lease for hours.
Across boots its numbers mean nothing, so every number is kept together with the boot it belongs to.

Containers of one host share the boot and this clock. A Linux *time namespace* shifts the clock: processes
that share a store must not be in different ones.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from .refused import refused

_LINUX_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class BootClock:
    """Tell the seconds since this boot, sleep included, and which boot it is.

    Both can be given, for tests and for hosts that tell them elsewhere; by default the system is asked.

    Raises:
        OSError: the system does not tell its boots apart.
    """

    def __init__(
        self, *, boot_id: str | None = None, seconds: Callable[[], float] | None = None
    ) -> None:
        self.boot_id = read_boot_id() if boot_id is None else boot_id
        self._seconds = seconds or _host_seconds

    def now(self) -> float:
        """Return the seconds since this boot."""
        return self._seconds()


def read_boot_id() -> str:
    """Return the kernel's name for the current boot; a new one after every restart."""
    if sys.platform == "darwin":
        command = ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"]
        return subprocess.check_output(command, text=True).strip().lower()
    try:
        return _LINUX_BOOT_ID.read_text(encoding="ascii").strip()
    except OSError as error:
        raise refused(_LINUX_BOOT_ID, error) from error


def _host_seconds() -> float:
    # macOS has no CLOCK_BOOTTIME; its CLOCK_MONOTONIC counts sleep already.
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
