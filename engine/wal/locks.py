"""Wait for a lock, for a bounded time.

flock has no timeout, and a blocking call cannot be given up without a signal, so a lock is asked
for again and again: at once a few times (a holder needs some ten microseconds), then in naps that
grow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ..errors import LockTimeout
from ..files import Files, Opened

T = TypeVar("T")

NAP_SECONDS_MIN = 20e-6
NAP_SECONDS_MAX = 0.4e-3


class Patience:
    """Count down one caller's wait for one lock."""

    __slots__ = ("_deadline", "_files", "_nap_seconds", "_seconds")

    def __init__(self, files: Files, seconds: float) -> None:
        self._files = files
        self._seconds = seconds
        self._deadline = 0.0
        self._nap_seconds = NAP_SECONDS_MIN

    def nap(self, lock: Opened, holder: Callable[[Opened], str]) -> None:
        """Sleep a little longer than last time.

        Raises:
            LockTimeout: the time is over; it names the holder.
        """
        now = self._files.seconds()
        if not self._deadline:
            self._deadline = (
                now + self._seconds
            )  # the clock is only read once there is something to wait for
        if now >= self._deadline:
            raise LockTimeout(lock.path, holder(lock), self._seconds)
        self._files.nap(self._nap_seconds)
        self._nap_seconds = min(self._nap_seconds * 1.5, NAP_SECONDS_MAX)
