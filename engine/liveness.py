"""Tell at once, and without guessing, that a process of this host is gone.

A process takes a lock on a file of its own before its first lease, and the lease names the file. The
kernel lets go of the lock when the process ends, however it ends, so whoever can take the lock shared
*knows* that its owner is dead. No process id and no host name is looked at: they are given out again.

What the lock must never say wrongly is "free". flock(2) belongs to the open file, and a mapping keeps a
file open as well as a descriptor does (Linux drops the lock with the last reference to the open file).
So the lock is held by a mapping alone, one that no fork inherits (madvise(2), MADV_DONTFORK): nobody can
close it by number, no descriptor stands in the way of a daemon library, and a forked child of a dead
owner holds nothing. The file's name is never used twice and its inode is recorded; whatever is missing,
replaced or of another boot says nothing at all. A lock that is held changes nothing: its process may be
stopped.

Only Linux can do this. Elsewhere no file is kept, every answer is "unknown", and the lease's end decides.
Works on local file systems only.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import sys
import threading
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from .errors import StoreUnavailable, StrPath

_SUFFIX = ".alive"
_ATTEMPTS = 100
_PROTECTION_NONE = 0  # the mapping is there to be there; nobody reads it
_MAP_FAILED = ctypes.c_void_p(-1).value
_LOOK = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MAKE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Liveness(StrEnum):
    """What a liveness lock says about the process that took it."""

    FREE = "free"
    """It is dead, proven."""
    HELD = "held"
    """It is there, running or stopped."""
    UNKNOWN = "unknown"
    """Nothing can be said; only the lease's end decides."""


@dataclass(frozen=True, slots=True)
class LivenessRef:
    """Name one liveness lock so exactly that no other file can stand in for it."""

    name: str
    device: int
    inode: int
    boot_id: str


class LivenessLock:
    """Hold this process's lock until it ends. One a process; a forked child takes its own."""

    def __init__(self, directory: Path, boot_id: str) -> None:
        self._directory = directory
        self._boot_id = boot_id
        self._mutex = threading.Lock()
        self._pid = os.getpid()
        self._mapping, self._ref = _take_new(directory, boot_id)

    @classmethod
    def take(cls, directory: StrPath, *, boot_id: str) -> LivenessLock:
        """Take a new lock in `directory`, which is created when missing.

        Raises:
            StoreUnavailable: the directory cannot be written.
        """
        return cls(Path(directory).absolute(), boot_id)

    @property
    def ref(self) -> LivenessRef:
        """Return what a lease records; after `check` it may be another one."""
        return self._ref

    def check(self) -> LivenessRef:
        """Return the lock's name if its file is still in its place; else take a new lock and return that.

        Ask at each renewal and write the answer into the renewed leases: a file that was unlinked, or made
        again by somebody, says nothing about us any more. A forked child gets a lock of its own here.

        Raises:
            StoreUnavailable: the lock was lost and a new one cannot be taken.
        """
        if os.getpid() != self._pid:
            self._mutex = threading.Lock()  # a thread of the parent may have held the old one
        with self._mutex:
            if os.getpid() != self._pid or not self._in_place():
                # The old mapping stays: its file may come back, and must not say "free" about us then.
                self._mapping, self._ref = _take_new(self._directory, self._boot_id)
                self._pid = os.getpid()
            return self._ref

    def release(self) -> None:
        """Let go of the lock and remove its file. Release the leases that name it first."""
        with self._mutex:
            if os.getpid() == self._pid and self._mapping:
                if self._in_place():
                    os.unlink(self._directory / self._ref.name)
                _unmap(self._mapping)
                self._mapping = 0

    def _in_place(self) -> bool:
        path = self._directory / self._ref.name
        return self._mapping != 0 and _identity_of(path) == (self._ref.device, self._ref.inode)


def probe(directory: StrPath, ref: LivenessRef, boot_id: str) -> Liveness:
    """Ask what the lock `ref` says, now, in the boot `boot_id`. Creates nothing and never blocks."""
    if ref.boot_id != boot_id:
        return Liveness.UNKNOWN
    try:
        descriptor = os.open(Path(directory) / ref.name, _LOOK)
    except OSError:
        return Liveness.UNKNOWN
    try:
        found = os.fstat(descriptor)
        if (found.st_dev, found.st_ino) != (ref.device, ref.inode):
            return Liveness.UNKNOWN
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return Liveness.FREE
    except BlockingIOError:
        return Liveness.HELD
    except OSError:
        return Liveness.UNKNOWN
    finally:
        os.close(descriptor)


def sweep(directory: StrPath, referenced: frozenset[str]) -> int:
    """Remove the files of dead processes that no lease names (`referenced`); return how many."""
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return 0
    stale = (name for name in names if name.endswith(_SUFFIX) and name not in referenced)
    return sum(_remove_if_free(Path(directory) / name) for name in stale)


def _remove_if_free(path: Path) -> bool:
    try:
        descriptor = os.open(path, _LOOK)
    except OSError:
        return False
    try:
        # Exclusive: a process that is just taking this lock notices that it lost, and takes another.
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(path)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def _take_new(directory: Path, boot_id: str) -> tuple[int, LivenessRef]:
    """Return the address of the mapping that holds a new lock, and the lock's name."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for _ in range(_ATTEMPTS):
            name = f"{os.getpid()}-{os.urandom(8).hex()}{_SUFFIX}"
            taken = _try_to_take(directory / name, boot_id)
            if taken is not None:
                return taken
    except OSError as error:
        raise StoreUnavailable(directory, error.strerror or str(error)) from error
    raise StoreUnavailable(directory, "no liveness lock could be kept; something removes new files")


def _try_to_take(path: Path, boot_id: str) -> tuple[int, LivenessRef] | None:
    descriptor = os.open(path, _MAKE, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        found = os.fstat(descriptor)
        if _identity_of(path) != (found.st_dev, found.st_ino):
            return None  # a sweep removed the file before it was locked
        mapping = _map(descriptor)
        if not mapping:
            os.unlink(path)  # from here on it must not say "free" about a living process
        return mapping, LivenessRef(path.name, found.st_dev, found.st_ino, boot_id)
    except BlockingIOError:
        return None  # a sweep or a probe looked at the file before it was locked
    finally:
        os.close(descriptor)


def _map(descriptor: int) -> int:
    """Map one page of the file into this process and into none of its children; 0 where that is impossible.

    By ctypes, because an `mmap.mmap` keeps a descriptor besides, and a child would inherit that.
    """
    if sys.platform != "linux":
        return 0
    libc = _libc()
    address = libc.mmap(None, mmap.PAGESIZE, _PROTECTION_NONE, mmap.MAP_SHARED, descriptor, 0)
    if address in (None, _MAP_FAILED):
        raise OSError(errno.ENOMEM, "the liveness file could not be mapped")
    if libc.madvise(address, mmap.PAGESIZE, mmap.MADV_DONTFORK) != 0:
        libc.munmap(address, mmap.PAGESIZE)
        return 0
    return int(address)


def _unmap(address: int) -> None:
    if address:
        _libc().munmap(address, mmap.PAGESIZE)


def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    libc.mmap.restype = pointer
    libc.mmap.argtypes = [pointer, size, number, number, number, ctypes.c_long]
    libc.madvise.argtypes = [pointer, size, number]
    libc.munmap.argtypes = [pointer, size]
    return libc


def _identity_of(path: Path) -> tuple[int, int] | None:
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
