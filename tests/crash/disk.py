"""Stand a disk below the log that forgets, at a power cut, whatever no sync has promised.

The files are real ones in a directory (best on a tmpfs): that is the page cache, which a killed process leaves behind
whole. Beside them :class:`Disk` keeps what a power cut could leave. Of every file: its content as it was last synced
and after each later write. Of every name: what it meant when its directory was last synced, and after each later
change. A sync of a file says nothing about its name, a sync of a directory nothing about what lies in its files.

What images a cut may leave is said in images.py.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from celery_commander.engine import LogUnavailable
from celery_commander.engine.files import Files, Opened

DIRECTORY = -1
VERSIONS_MAX = 64

_OUTSIDE = (".sqlite", ".sqlite-wal", ".sqlite-shm", ".sqlite.lock", "latency", "verified.json")


class Killed(BaseException):
    """The process has been killed; it never runs again."""


class Entry(NamedTuple):
    """Say what a name meant from an operation on: an inode, DIRECTORY, or None for nothing."""

    at: int
    inode: int | None
    replaced_by: Path | None = None


class Version(NamedTuple):
    """Hold a file's content from an operation on."""

    at: int
    data: bytes


@dataclass(slots=True)
class Inode:
    """Hold a file's content as it was last synced, and after each later write."""

    versions: list[Version]
    is_lost: bool = False  # a sync failed: no later one makes good what it should have written

    @property
    def data(self) -> bytes:
        return self.versions[-1].data

    def change(self, at: int, data: bytes) -> None:
        self.versions.append(Version(at, data))
        if len(self.versions) > VERSIONS_MAX:
            del self.versions[1 + at % (VERSIONS_MAX // 2)]


@dataclass(slots=True)
class Fault:
    """Let the n-th of some calls go wrong: kill before it, answer with an error, or take only some bytes."""

    nth: int
    calls: frozenset[str] | None = None  # None: every call that changes the disk
    error: int | None = None  # None: the process is killed
    taken: int | None = None  # of a write: how many bytes are taken first

    def strikes(self, call: str) -> bool:
        if self.nth <= 0 or (self.calls is not None and call not in self.calls):
            return False
        self.nth -= 1
        return self.nth == 0


class Disk:
    """Know what is on disk of a directory, and what is still on its way there."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.at = 0
        self.lies = False
        self.before: Callable[[str, Path], None] | None = None
        self.inodes: dict[int, Inode] = {}
        self.names: dict[Path, list[Entry]] = {}
        self.opened_by: dict[int, SimulatedFiles] = {}
        self._ids: dict[int, int] = {}
        root.mkdir(exist_ok=True)
        for path in sorted(root.rglob("*")):
            if not is_outside(path):
                self._adopt(path)

    def _adopt(self, path: Path) -> None:
        if path.is_dir():
            self.names[path] = [Entry(0, DIRECTORY)]
            return
        number = os.lstat(path).st_ino
        if number not in self._ids:
            self._new_inode(number, path.read_bytes())
        self.names[path] = [Entry(0, self._ids[number])]

    def _new_inode(self, number: int, data: bytes = b"") -> int:
        self._ids[number] = id_ = len(self.inodes)
        self.inodes[id_] = Inode([Version(0, data)])
        return id_

    def inode(self, number: int) -> Inode:
        return self.inodes[self._ids[number]]

    def id_of(self, path: Path) -> int | None:
        history = self.names.get(path)
        return history[-1].inode if history else None

    def operation(self, call: str, path: Path) -> None:
        """Count an operation that is about to be made, after showing the disk as it is before it."""
        if self.before is not None:
            self.before(call, path)
        self.at += 1

    def created(self, path: Path, number: int) -> None:
        self.name(path, self._new_inode(number))

    def name(self, path: Path, inode: int | None, replaced_by: Path | None = None) -> None:
        history = self.names.setdefault(path, [Entry(0, None)])
        history.append(Entry(self.at, inode, replaced_by))

    def sync(self, number: int) -> None:
        inode = self.inode(number)
        if not self.lies and not inode.is_lost:
            inode.versions = inode.versions[-1:]

    def sync_directory(self, path: Path) -> None:
        if not self.lies:
            for name, history in self.names.items():
                if name.parent == path:
                    del history[:-1]

    def pending(self) -> list[int]:
        """Return the operations that a power cut could undo; those of ``control`` are void after it anyhow."""
        control = {self.id_of(path) for path in self.names if path.name == "control"}
        found = {entry.at for history in self.names.values() for entry in history[1:]}
        for id_, inode in self.inodes.items():
            if id_ not in control:
                found.update(version.at for version in inode.versions[1:])
        return sorted(found)


def is_outside(path: Path) -> bool:
    """Tell whether a file does not go through the log's seam."""
    return path.name.endswith(_OUTSIDE) or path.name.startswith(("verified.json", "latency"))


class SimulatedFiles(Files):
    """Make one process's calls on a disk; several may share it."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.fault: Fault | None = None
        self.is_dead = False
        self.struck = 0
        self._opened: dict[int, Opened] = {}

    def die(self) -> None:
        """End this process: every descriptor is closed, and every lock given back with it."""
        self.is_dead = True
        for fd, opened in self._opened.items():
            if self.disk.opened_by.get(fd) is self:  # the number may be another's by now
                opened.close()
        self._opened = {}

    def _do(self, call: str, path: Path | str) -> Fault | None:
        """Make way for an operation: count it, or let the fault strike that was planned for it."""
        if self.is_dead:
            raise Killed
        fault = self.fault
        if fault is not None and fault.strikes(call):
            self.fault = None
            self.struck += 1
            if fault.taken is not None and call == "append":
                return fault
            self._strike(fault)
        self.disk.operation(call, Path(path))
        return None

    def _strike(self, fault: Fault) -> None:
        if fault.error is not None:
            raise OSError(fault.error, os.strerror(fault.error))
        self.is_dead = True
        raise Killed

    def open(self, path: Path, flags: int, *, names_max: int = 1) -> Opened:
        is_new = bool(flags & os.O_CREAT) and not os.path.lexists(path)
        try:
            if is_new:
                self._do("create", path)
            elif flags & os.O_TRUNC:
                self._do("truncate", path)
        except OSError as error:
            reason = f"{path.name} cannot be opened: {error.strerror}"
            raise LogUnavailable(path, reason) from error
        opened = super().open(path, flags, names_max=names_max)
        if is_new:
            self.disk.created(path, opened.inode)
        elif flags & os.O_TRUNC:
            inode = self.disk.inode(opened.inode)
            inode.change(self.disk.at, b"")
            inode.is_lost = False  # all that it will hold is written anew
        self._opened[opened.fd] = opened
        self.disk.opened_by[opened.fd] = self
        return opened

    def open_to_read(self, path: Path) -> Opened:
        opened = super().open_to_read(path)
        self._opened[opened.fd] = opened
        self.disk.opened_by[opened.fd] = self
        return opened

    def append(self, fd: int, data: bytes) -> int:
        opened = self._opened[fd]
        fault = self._do("append", opened.path)
        if fault is not None:
            self.disk.operation("append", Path(opened.path))
            data = data[: fault.taken]
        taken = super().append(fd, data) if data else 0
        inode = self.disk.inode(opened.inode)
        inode.change(self.disk.at, inode.data + data[:taken])
        if fault is not None and (fault.error is None or not taken):
            self._strike(fault)
        if fault is not None:
            self.fault = Fault(1, frozenset(("append",)), fault.error)  # what is left is refused
        return taken

    def write_at(self, fd: int, data: bytes, offset: int) -> None:
        opened = self._opened[fd]
        self._do("write_at", opened.path)
        super().write_at(fd, data, offset)
        inode = self.disk.inode(opened.inode)
        old = inode.data.ljust(offset, b"\0")
        inode.change(self.disk.at, old[:offset] + data + old[offset + len(data) :])

    def truncate(self, fd: int, size: int) -> None:
        opened = self._opened[fd]
        self._do("truncate", opened.path)
        super().truncate(fd, size)
        inode = self.disk.inode(opened.inode)
        inode.change(self.disk.at, inode.data[:size].ljust(size, b"\0"))

    def sync(self, fd: int) -> None:
        opened = self._opened[fd]
        try:
            self._do("sync", opened.path)
        except OSError:
            self.disk.inode(opened.inode).is_lost = True
            raise
        self.disk.sync(opened.inode)

    def sync_directory(self, path: Path) -> None:
        self._do("sync_directory", path)
        self.disk.sync_directory(path)

    def _mkdir(self, path: Path) -> None:
        if os.path.lexists(path) or not path.parent.exists():
            super()._mkdir(path)  # there already, or says why it cannot be made
            return
        self._do("mkdir", path)
        super()._mkdir(path)
        self.disk.name(path, DIRECTORY)

    def _rename(self, source: Path, target: Path) -> None:
        self._do("rename", target)
        super()._rename(source, target)
        self.disk.name(target, self.disk.id_of(source))
        self.disk.name(source, None, replaced_by=target)

    def _link(self, source: Path, target: Path) -> None:
        self._do("link", target)
        super()._link(source, target)
        self.disk.name(target, self.disk.id_of(source))

    def remove(self, path: Path) -> None:
        if os.path.lexists(path):
            self._do("remove", path)
            super().remove(path)
            self.disk.name(path, None)

    def try_lock(self, fd: int) -> bool:
        if self.is_dead:
            raise Killed
        return super().try_lock(fd)


ENOSPC, EIO = errno.ENOSPC, errno.EIO
