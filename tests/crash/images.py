"""Say what a power cut may leave of a simulated disk, and lay it down for another host to boot with.

An image is one legal choice from that:

- each name stands at any moment since its directory was synced, apart from all others; only a rename never loses the
  file: the old name goes not before the new one has come
- each file has any of its sizes since its last sync, and each sector of 512 bytes any of its contents, apart from all
  others; a sector that was never on disk may be zeros, noise, or what another file had left there before

That is harsher than ext4, xfs or btrfs are known to be: what survives here, survives there. Databases of SQLite, the
ring of latencies and the note of the last verification do not go through ``Files``; they are copied or left out.
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .disk import DIRECTORY, Disk, Inode, Version, is_outside

SECTOR_BYTES = 512


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
        other = _before(chance.choice(list(disk.inodes.values())), _first(versions, at))
        start = SECTOR_BYTES * chance.randrange(len(other) // SECTOR_BYTES + 1)
        return other[start : start + SECTOR_BYTES].ljust(SECTOR_BYTES, b"\0")
    return bytes(SECTOR_BYTES)


def _first(versions: list[Version], at: int) -> int:
    """Return the moment at which a file came to have this sector."""
    return next(version.at for version in versions if len(version.data) > at)


def _before(inode: Inode, moment: int) -> bytes:
    """Return what a file held before a moment: what is left in a sector was there when the sector was given away."""
    held = [version.data for version in inode.versions if version.at < moment]
    return held[-1] if held else b""


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


def drawn(chance: random.Random, disk: Disk) -> Image:
    """Draw an image: an orderly one in half of the cases, a torn one in the others."""
    orderly = list(choices(disk, chance, 0))
    choice = chance.choice([Choice(tear=chance), chance.choice(orderly)])
    return image_of(disk, choice)
