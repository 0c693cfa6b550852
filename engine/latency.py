"""Remember how long the last waited appends of all processes of this host took.

A small file beside the log has 1,000 slots; whoever waited for event `seq` writes into slot `seq % 1000`, so no two
processes need to agree on anything. Each slot names its event and its moment: a slot that nobody has hit again for
long is passed over, otherwise a slow hour would be remembered until the same slots happen to be filled again.

It is written with pwrite(2), not through a mapping: a mapped file that somebody truncates, or that meets a full disk,
kills the process with SIGBUS, and a measurement must never do that. It costs about 3 µs an append. Nothing here is part
of the log: the file may be lost, is of one boot and one log, and whatever is not ours is replaced. So it does not go
through the log's seam for faults, and no error leaves `note`.
"""

from __future__ import annotations

import hashlib
import math
import os
import stat
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

SLOTS: Final = 1000
SHARE: Final = 0.95
ENOUGH: Final = 20
"""Below so many measures the largest one is left out: one hiccup is no percentile."""

_REACH_EVENTS: Final = 4 * SLOTS
_HEAD_BYTES: Final = 64
_SLOT = struct.Struct("<III")  # event (its low 32 bits), second of this boot, microseconds
_SLOT_BYTES: Final = _SLOT.size
_pack = _SLOT.pack
_BYTES: Final = _HEAD_BYTES + SLOTS * _SLOT_BYTES
_MASK: Final = 0xFFFF_FFFF
_FLAGS: Final = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


class LatencyRing:
    """Note durations from every process, and answer their 95th percentile.

    Usable from all threads and across forks: a descriptor is shared, and no write depends on its offset. `seconds`
    is a monotonic clock of this boot.
    """

    def __init__(
        self,
        path: Path,
        *,
        boot_id: str,
        log_id: str,
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        stamp = hashlib.sha256(f"{boot_id} {log_id}".encode()).hexdigest()[:56]
        self._head = b"cwL1" + stamp.encode("ascii") + b"\0\0\0\n"
        self._seconds = seconds
        self._opened: tuple[int, int, int] | None = None  # descriptor, device, inode
        self._is_broken = False

    def note(self, seq: int, seconds: float) -> None:
        """Note that event `seq` was waited for so long; never raises."""
        if self._is_broken and seq % SLOTS:
            return  # it could be neither opened nor made; tried again now and then
        try:
            opened = self._opened
            if opened is None or not _means(*opened):
                self._opened = opened = self._open()
            packed = _pack(seq & _MASK, int(self._seconds()) & _MASK, int(seconds * 1e6) or 1)
            os.pwrite(opened[0], packed, _HEAD_BYTES + seq % SLOTS * _SLOT_BYTES)
            self._is_broken = False
        except struct.error:
            pass  # more than an hour, or less than nothing
        except OSError:
            self._opened = None
            self._is_broken = True

    def durations(self, window_seconds: float = math.inf) -> list[float]:
        """Return the durations noted within the last `window_seconds`, in seconds, shortest first.

        A file that is missing, of another boot or not ours holds none.

        Raises:
            OSError: it is there and cannot be read.
        """
        try:
            fd = os.open(self._path, os.O_RDONLY | _FLAGS)
        except FileNotFoundError:
            return []
        try:
            data = os.read(fd, _BYTES) if _is_plain(fd) else b""
        finally:
            os.close(fd)
        if len(data) != _BYTES or not data.startswith(self._head):
            return []
        slots = [slot for slot in _SLOT.iter_unpack(data[_HEAD_BYTES:]) if slot[2]]
        if not slots:
            return []
        newest = max(slots, key=lambda slot: slot[1])[0]
        now = self._seconds()
        return sorted(
            micros / 1e6
            for seq, at, micros in slots
            if now - at <= window_seconds and _distance(newest, seq) < _REACH_EVENTS
        )

    def p95(self, window_seconds: float = math.inf) -> float | None:
        """Return the 95th percentile in seconds (nearest rank), or None when too little was measured."""
        return percentile(self.durations(window_seconds))

    def close(self) -> None:
        """Close this process's descriptor; the next note opens it again."""
        opened, self._opened = self._opened, None
        if opened is not None and _means(*opened):
            with suppress(OSError):
                os.close(opened[0])

    def _open(self) -> tuple[int, int, int]:
        with suppress(OSError):
            fd = os.open(self._path, os.O_RDWR | _FLAGS)
            if self._is_ours(fd):
                found = os.fstat(fd)
                return fd, found.st_dev, found.st_ino
            os.close(fd)
        return self._make()

    def _is_ours(self, fd: int) -> bool:
        size = os.fstat(fd).st_size if _is_plain(fd) else 0
        return size == _BYTES and os.pread(fd, len(self._head), 0) == self._head

    def _make(self) -> tuple[int, int, int]:
        """Make the file under another name and put it in place: nobody ever sees half of it."""
        name = f"{self._path}.{os.getpid()}-{os.urandom(4).hex()}"
        fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | _FLAGS, 0o600)
        try:
            os.pwrite(fd, self._head.ljust(_BYTES, b"\0"), 0)
            os.rename(name, self._path)
            found = os.fstat(fd)
        except BaseException:
            os.close(fd)
            with suppress(OSError):
                os.unlink(name)
            raise
        return fd, found.st_dev, found.st_ino


def percentile(durations: list[float]) -> float | None:
    """Return the 95th percentile of sorted durations by nearest rank; of fewer than 20 the second largest."""
    count = len(durations)
    rank = math.ceil(SHARE * count) if count >= ENOUGH else count - 1
    return durations[rank - 1] if rank >= 1 else None


def _distance(newest: int, seq: int) -> int:
    """Return how many events lie between two, whichever came first; their high bits are not known."""
    apart = (newest - seq) & _MASK
    return min(apart, _MASK + 1 - apart)


def _is_plain(fd: int) -> bool:
    return stat.S_ISREG(os.fstat(fd).st_mode)


def _means(fd: int, device: int, inode: int) -> bool:
    """Tell whether a number still means the file it was opened for, and the file still has its name."""
    try:
        found = os.fstat(fd)
    except OSError:
        return False
    return found.st_ino == inode and found.st_dev == device and found.st_nlink > 0
