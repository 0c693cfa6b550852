"""Know on what kind of file system a store lies, refuse those where its locks mean nothing, warn where it will be lost.

Locks of a network file system hold between the processes of one host, if at all; two hosts that write one log there
break its chain, and SQLite's files with it. A file system in memory locks well and forgets all at a restart: it may
be used, and is said to be not durable.

The kinds are those of Linux's mount table (proc(5), mountinfo). Where there is none, the kind is unknown and passes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from .errors import LogUnavailable
from .files import Files

_ESCAPED = re.compile(r"\\([0-7]{3})")

NETWORK = frozenset(
    (
        "9p", "afs", "beegfs", "ceph", "cifs", "coda", "fuse.ceph", "fuse.glusterfs",
        "fuse.s3fs", "fuse.sshfs", "gfs", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs",
        "nfs4", "ocfs2", "orangefs", "smb2", "smb3", "smbfs", "virtiofs", "vboxsf",
    )
)  # fmt: skip
"""Kinds that several hosts may mount at once."""

IN_MEMORY = frozenset({"tmpfs", "ramfs"})
"""Kinds that a restart empties."""

LAYERS = frozenset({"overlay", "aufs", "fuse-overlayfs"})
"""Kinds that are a container's own: they go with it."""

INSTALLED = ("site-packages", "dist-packages")

UNKNOWN = "unknown"


def refuse_network(path: Path, files: Files, allowed: str | None = None) -> str:
    """Return the kind of file system that `path` lies, or would lie, on.

    `allowed` is the one kind of network file system that somebody asked for by its name: its locks are then trusted,
    which is right only when a single host mounts it for writing.

    Raises:
        LogUnavailable: it is a network file system, and nobody asked for it.
    """
    kind = kind_of(path, files.mounts())
    if kind in NETWORK and kind != allowed:
        raise LogUnavailable(
            path,
            f"it lies on a network file system ({kind}), whose locks do not hold between hosts; put the state on a"
            f" local disk, or set network_filesystem={kind!r} if no other host ever writes there",
        )
    return kind


def refuse_unsafe(path: Path, files: Files) -> None:
    """Return when what lies at `path` outlives a restart and a new deployment.

    Raises:
        LogUnavailable: it does not.
    """
    reason = unsafe_place(path, files.mounts())
    if reason is not None:
        raise LogUnavailable(path, f"{reason}; the setting strict refuses that")


def unsafe_place(directory: Path, mounts: Iterable[str]) -> str | None:
    """Return why what lies in `directory` would be lost by the next deployment or restart, or None.

    Where the system does not tell its mounts, only the path is judged.
    """
    path = Path(os.path.realpath(directory))
    inside = next((name for name in INSTALLED if name in path.parts), None)
    if inside is not None:
        return f"{path} lies inside {inside}: the next installation may remove it"
    kind = kind_of(path, mounts)
    if kind in LAYERS:
        return (
            f"{path} lies on the container's own layer: it goes with the container; mount a volume"
        )
    if kind in IN_MEMORY:
        return f"{path} lies in memory ({kind}): it goes with the next restart of the host"
    return None


def kind_of(path: Path, mounts: Iterable[str]) -> str:
    """Return the kind of the file system under `path`; `mounts` are the lines of the mount table.

    The deepest mount point that holds the path counts, and of two at one place the later, which hides the other.
    """
    where, best, kind = os.path.realpath(path), "", UNKNOWN
    for line in mounts:
        left, separator, right = line.partition(" - ")
        fields = left.split(" ")
        if not separator or len(fields) < 5:
            continue
        point = _plain(fields[4])
        if _holds(point, where) and len(point) >= len(best):
            best, kind = point, right.split(" ")[0]
    return kind


def _holds(point: str, path: str) -> bool:
    return path == point or path.startswith(point.rstrip("/") + "/")


def _plain(text: str) -> str:
    """Read the characters that the table writes as octal numbers, a space among them."""
    return _ESCAPED.sub(lambda found: chr(int(found[1], 8)), text)
