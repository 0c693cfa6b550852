"""Hold what all processes of a log have agreed on: its head, and how far the disk has promised.

The file has two slots in sectors of their own, each with its own checksum. The append slot is
written under ``append.lock``: last seq, its hash, which file is the active one, its size, the last
timestamp, up to which seq one must have looked to know every fence. The sync slot is written under
``sync.lock``: the highest seq that is on disk, whether a sync ever failed, whether a break was found.

It is never synced and needs no sync: after a power cut it is of another boot, which makes it
void, and the head is derived from the log itself. While the boot lasts the page cache keeps it,
whoever is killed.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from .chain import GENESIS
from .files import Files

SLOT_BYTES = 512
CONTROL_BYTES = 2 * SLOT_BYTES

_HEAD = struct.Struct(">Q64sQ27sQQ??")
_PROMISE = struct.Struct(">QB")
_CRC = struct.Struct(">I")
_POISONED, _BROKEN = 1, 2
_TORN_READS_MAX = 50

T = TypeVar("T")


class Head(NamedTuple):
    """Say where the log ends.

    ``file`` is the first seq of the active file, ``size`` is that file's. No fence comes after seq ``fenced``.
    ``dirty``: bytes beyond the size failed and could not be cut; they must never count. ``sealed``: the file
    has got its last line, and the next one is to take its place before anything is appended.
    """

    seq: int
    hash: bytes
    size: int
    timestamp: bytes
    fenced: int
    file: int
    dirty: bool = False
    sealed: bool = False


class Promise(NamedTuple):
    """Say up to which seq the log is on disk, and what stops everybody.

    ``poisoned``: a failed sync ended all promises. ``broken``: what was on disk does not verify.
    """

    seq: int
    poisoned: bool = False
    broken: bool = False

    @classmethod
    def of(cls, seq: int, flags: int) -> Promise:
        """Read it from the numbers that `packed` makes; who knows no break takes one for a poisoning, and stops too."""
        return cls(seq, bool(flags & _POISONED), bool(flags & _BROKEN))

    def packed(self) -> bytes:
        """Return it as it stands in the slot."""
        return _PROMISE.pack(self.seq, _POISONED * self.poisoned | _BROKEN * self.broken)


EMPTY = Head(0, GENESIS, 0, b"0001-01-01T00:00:00.000000Z", 0, 1)
NOTHING = Promise(0)


class Control:
    """Read and publish the two slots of one control file, for one log in one boot."""

    def __init__(self, files: Files, fd: int, *, boot_id: str, log_id: str) -> None:
        self._files = files
        self._fd = fd
        boot = hashlib.sha256(boot_id.encode()).digest()[:16]
        log = hashlib.sha256(log_id.encode()).digest()[:16]
        self._heads = _Slot[Head](files, fd, 0, stamp=b"cwA2" + boot + log, form=_HEAD)
        self._promises = _Slot[Promise](
            files, fd, SLOT_BYTES, stamp=b"cwS1" + boot + log, form=_PROMISE
        )

    def read(self) -> tuple[Head | None, Promise | None]:
        """Return both slots; None for one that is missing, torn, or of another boot or log."""
        data = self._files.read(self._fd, CONTROL_BYTES, 0)
        return self._heads.unpack(data, Head), self._promises.unpack(data, Promise.of)

    def read_settled(self) -> tuple[Head | None, Promise | None]:
        """Return both slots without holding a lock: a slot caught while it is being written is read again."""
        head, promise = self.read()
        for _ in range(_TORN_READS_MAX):
            if head is not None and promise is not None:
                break
            head, promise = self.read()
        return head, promise

    def publish_head(self, head: Head) -> None:
        """Make `head` the end of the log for every process; only under ``append.lock``."""
        self._heads.write(head, _HEAD.pack(*head))

    def forget_head(self) -> None:
        """Let the files alone say where the log ends, until a head is published again; under ``append.lock``."""
        self._heads.clear()

    def publish_promise(self, promise: Promise) -> None:
        """Tell every process how far the log is on disk; only under ``sync.lock``."""
        self._promises.write(promise, promise.packed())


class _Slot(Generic[T]):
    """Read and write one slot; bytes that were seen last time are not taken apart again."""

    def __init__(
        self, files: Files, fd: int, offset: int, *, stamp: bytes, form: struct.Struct
    ) -> None:
        self._files = files
        self._fd = fd
        self._offset = offset
        self._stamp = stamp
        self._form = form
        self._stop = offset + len(stamp) + form.size + _CRC.size
        self._known: tuple[bytes, T | None] = (b"", None)

    def write(self, value: T, packed: bytes) -> None:
        body = self._stamp + packed
        data = body + _CRC.pack(zlib.crc32(body))
        self._files.write_at(self._fd, data, self._offset)
        self._known = (data, value)

    def clear(self) -> None:
        """Make the slot say nothing."""
        self._files.write_at(self._fd, bytes(self._stop - self._offset), self._offset)
        self._known = (b"", None)

    def unpack(self, data: bytes, make: Callable[..., T]) -> T | None:
        """Return the value of a slot, unless it is cut, torn, or of another boot or log."""
        data = data[self._offset : self._stop]
        seen, value = self._known
        if data != seen:
            body = data[: -_CRC.size]
            value = None
            if body.startswith(self._stamp) and data[-_CRC.size :] == _CRC.pack(zlib.crc32(body)):
                value = make(*self._form.unpack_from(body, len(self._stamp)))
            self._known = (data, value)
        return value
