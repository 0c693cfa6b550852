"""Stand a disk below the log that forgets, at a power cut, whatever no sync has promised.

The files are real ones in a directory (best on a tmpfs): that is the page cache, which a killed process leaves behind
whole. Beside them :class:`Disk` keeps what a power cut could leave. Of every file: its content as it was last synced
and after each later write. Of every name: what it meant when its directory was last synced, and after each later
change. A sync of a file says nothing about its name, a sync of a directory nothing about what lies in its files.

An image is one legal choice from that:

- each name stands at any moment since its directory was synced, apart from all others; only a rename never loses the
  file: the old name goes not before the new one has come
- each file has any of its sizes since its last sync, and each sector of 512 bytes any of its contents, apart from all
  others; a sector that was never on disk may be zeros, noise, or what another file left there

That is harsher than ext4, xfs or btrfs are known to be: what survives here, survives there. Databases of SQLite, the
ring of latencies and the note of the last verification do not go through ``Files``; they are copied or left out.
"""

from __future__ import annotations

import errno
import hashlib
import os
import random
import shutil
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from celery_commander.engine import LogUnavailable
from celery_commander.engine.files import Files, Opened

SECTOR_BYTES = 512
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


@dataclass(slots=True)
class Image:
    """Hold what a power cut leaves: directories, and names with the files that they mean."""

    directories: list[Path]
    names: dict[Path, int]
    contents: dict[int, bytes]

    def digest(self) -> bytes:
        """Return what tells it from other images; what stands in ``control`` is of another boot and tells nothing."""
        digest = hashlib.sha256(repr(sorted(self.directories)).encode())
        for path in sorted(self.names):
            inode = self.names[path]
            data = b"" if path.name == "control" else self.contents[inode]
            digest.update(f"{path} {inode} {len(data)} ".encode())
            digest.update(data)
        return digest.digest()


class Disk:
    """Know what is on disk of a directory, and what is still on its way there."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.at = 0
        self.lies = False
        self.before: Callable[[str, Path], None] | None = None
        self.inodes: dict[int, Inode] = {}
        self.names: dict[Path, list[Entry]] = {}
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
        for opened in self._opened.values():
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
        return opened

    def open_to_read(self, path: Path) -> Opened:
        opened = super().open_to_read(path)
        self._opened[opened.fd] = opened
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
            super()._mkdir(path)  # says why it cannot be made
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


@dataclass(slots=True)
class Choice:
    """Choose one image: how far each name and each file has come, and what a torn sector holds.

    `names` and `data` are the last operation that counts for either; `without` one that is lost, `only` the one that
    alone is not. With `tear`, every name, size and sector is chosen apart. With `hollow`, files have their last size
    and their last synced content.
    """

    names: float = float("inf")
    data: float = float("inf")
    without: int | None = None
    only: int | None = None
    hollow: bool = False
    tear: random.Random | None = None

    def pick(self, moments: list[int], last: float) -> int:
        """Return which of the moments of one history the image shows."""
        if self.tear is not None:
            return self.tear.choice((0, len(moments) - 1, self.tear.randrange(len(moments))))
        if self.without is not None and self.without in moments[1:]:
            return moments.index(self.without) - 1
        if self.only is not None:
            return moments.index(self.only) if self.only in moments[1:] else 0
        return max(0, bisect_right(moments, last) - 1)


def image_of(disk: Disk, choice: Choice) -> Image:
    """Build the image that a choice comes to."""
    chosen = {
        path: choice.pick([entry.at for entry in history], choice.names)
        for path, history in disk.names.items()
    }
    while sum(_keep_renamed(disk, chosen, path) for path in chosen):
        pass
    image = Image([], {}, {})
    for path in sorted(chosen):
        inode = disk.names[path][chosen[path]].inode
        if inode is None or (path.parent != disk.root and path.parent not in image.directories):
            continue
        if inode == DIRECTORY:
            image.directories.append(path)
        else:
            image.names[path] = inode
            if inode not in image.contents:
                image.contents[inode] = _content(disk, disk.inodes[inode], choice)
    return image


def _keep_renamed(disk: Disk, chosen: dict[Path, int], path: Path) -> bool:
    """Take back the loss of a name whose file has not got its other name yet; tell whether it was."""
    history = disk.names[path]
    for index in range(1, chosen[path] + 1):
        other = history[index].replaced_by
        if other is not None and disk.names[other][chosen[other]].at < history[index].at:
            chosen[path] = index - 1
            return True
    return False


def _content(disk: Disk, inode: Inode, choice: Choice) -> bytes:
    versions = inode.versions
    moments = [version.at for version in versions]
    if choice.tear is None and not choice.hollow:
        return versions[choice.pick(moments, choice.data)].data
    if len(versions) == 1:
        return versions[0].data
    if choice.hollow:
        size = len(versions[-1].data)
        return versions[0].data[:size].ljust(size, b"\0")
    size = len(versions[choice.pick(moments, choice.data)].data)
    sectors = range(0, size, SECTOR_BYTES)
    return b"".join(_sector(disk, versions, choice, at) for at in sectors)[:size]


def _sector(disk: Disk, versions: list[Version], choice: Choice, at: int) -> bytes:
    chance = choice.tear
    assert chance is not None
    index = choice.pick([version.at for version in versions], choice.data)
    data = versions[index].data[at : at + SECTOR_BYTES]
    if data or len(versions[0].data) > at:
        return data.ljust(SECTOR_BYTES, b"\0")
    kind = chance.randrange(4)
    if kind == 0:
        return chance.randbytes(SECTOR_BYTES)
    if kind == 1:
        other = chance.choice(list(disk.inodes.values())).data
        start = SECTOR_BYTES * chance.randrange(len(other) // SECTOR_BYTES + 1)
        return other[start : start + SECTOR_BYTES].ljust(SECTOR_BYTES, b"\0")
    return bytes(SECTOR_BYTES)


def choices(disk: Disk, chance: random.Random, torn: int) -> Iterator[Choice]:
    """Yield every orderly way to lose what is pending, and some torn ones."""
    pending = disk.pending()
    yield Choice()
    yield Choice(names=-1, data=-1)
    for at in pending:
        yield Choice(names=at - 1, data=at - 1)
        yield Choice(without=at)
        yield Choice(only=at)
    yield Choice(names=-1)
    yield Choice(data=-1)
    yield Choice(hollow=True)
    yield Choice(hollow=True, names=-1)
    if pending:
        for _ in range(torn):
            yield Choice(tear=random.Random(chance.getrandbits(64)))


def images(disk: Disk, chance: random.Random, torn: int = 8) -> Iterator[Image]:
    """Yield different legal images of a power cut that comes now."""
    seen = set()
    for choice in choices(disk, chance, torn):
        image = image_of(disk, choice)
        digest = image.digest()
        if digest not in seen:
            seen.add(digest)
            yield image


def put(disk: Disk, image: Image, root: Path, *, outside: bool = True) -> None:
    """Lay an image down in a directory of its own; with what does not go through the seam, or without."""
    root.mkdir()

    def there(path: Path) -> Path:
        return root / path.relative_to(disk.root)

    for directory in image.directories:
        there(directory).mkdir(mode=0o700)
    first: dict[int, Path] = {}
    for path, inode in image.names.items():
        target = there(path)
        if inode in first:
            os.link(first[inode], target)
            continue
        first[inode] = target
        fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        os.write(fd, image.contents[inode])
        os.close(fd)
    if outside:
        for path in disk.root.rglob("*"):
            if is_outside(path) and there(path.parent).is_dir():
                shutil.copy2(path, there(path))
