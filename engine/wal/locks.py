"""Wait for a lock, for a bounded time.

flock has no timeout, and a blocking call cannot be given up without a signal, so a lock is asked
for again and again: at once a few times where its holders need some ten microseconds, then in naps
that grow. Who knows how long such a wait usually takes sleeps through most of it first: each waking
costs as much as an append.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ..errors import LockTimeout
from ..files import Files, Opened

T = TypeVar("T")

NAP_SECONDS_MIN = 20e-6
NAP_SECONDS_MAX = 0.4e-3
FIRST_NAP_SECONDS_MAX = 10e-3

_USUAL_SHARE = 0.75
_NAP_SHARE = 0.125


class Patience:
    """Count down one caller's wait for one lock.

    `yields` are tries that come before the first nap; `usual_seconds` is how long such a wait usually takes.
    """

    __slots__ = ("_deadline", "_files", "_first_seconds", "_nap_seconds", "_seconds", "_yields")

    def __init__(
        self,
        files: Files,
        seconds: float,
        *,
        yields: int = 0,
        usual_seconds: float = 0.0,
    ) -> None:
        self._files = files
        self._seconds = seconds
        self._deadline = 0.0
        self._yields = yields
        self._first_seconds = min(usual_seconds * _USUAL_SHARE, FIRST_NAP_SECONDS_MAX, seconds)
        self._nap_seconds = min(max(usual_seconds * _NAP_SHARE, NAP_SECONDS_MIN), NAP_SECONDS_MAX)

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
        if self._yields:
            self._yields -= 1
            self._files.give_way()
            return
        if self._first_seconds > self._nap_seconds:
            self._files.nap(self._first_seconds)
            self._first_seconds = 0.0
            return
        self._files.nap(self._nap_seconds)
        self._nap_seconds = min(self._nap_seconds * 1.5, NAP_SECONDS_MAX)
