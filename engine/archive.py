"""Put sealed files that a snapshot replaces into the archive, and throw them away when they are old."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from .errors import LogUnavailable
from .files import Files
from .refused import names_in
from .wal.layout import Layout
from .wal.locks import Patience

LOCK_NAME: Final = "compaction.lock"
_CHUNK_BYTES: Final = 1024 * 1024


@contextmanager
def alone(layout: Layout, files: Files, lock_seconds: float) -> Iterator[None]:
    """Let one process at a time take a snapshot, compact or prune.

    A child that is forked meanwhile shares the lock; so it is given back, not only closed. Only a kill
    in that moment leaves it to the child, until that ends.

    Raises:
        LockTimeout: somebody else had it for too long.
    """
    lock = files.open(layout.directory / LOCK_NAME, os.O_RDWR | os.O_CREAT)
    try:
        patience = Patience(files, lock_seconds)
        while not files.try_lock(lock.fd):
            patience.nap(lock, files.lock_holder)
        try:
            yield
        finally:
            files.unlock(lock.fd)
    finally:
        lock.close()


def sha256_of(files: Files, path: Path) -> str:
    """Hash a file, in bounded memory."""
    opened = files.open_to_read(path)
    try:
        digest, offset = hashlib.sha256(), 0
        while part := files.read(opened.fd, _CHUNK_BYTES, offset):
            digest.update(part)
            offset += len(part)
    finally:
        opened.close()
    return digest.hexdigest()


def move(layout: Layout, files: Files, path: Path) -> None:
    """Move one file into the archive; when it returns, both directories are on disk.

    It has its new name on disk before the old one goes. A rename would promise less: between two directories
    one of them may reach the disk alone, should somebody sync it after a kill here, and the file with neither.

    Raises:
        LogUnavailable: another file of that name lies there already, or it cannot be moved.
    """
    target = layout.archive / path.name
    try:
        if not files.exists(target):
            files.link(path, target)
        elif os.path.samestat(files.stat(os.fspath(path)), files.stat(os.fspath(target))):
            files.sync_directory(target.parent)  # whoever began may have been killed before that
        else:
            raise LogUnavailable(layout.active, f"{target} is there already; move it away")
        files.remove(path)
        files.sync_directory(path.parent)
    except OSError as error:
        reason = f"{path.name} cannot be archived: {error.strerror}"
        raise LogUnavailable(layout.active, reason) from error


def prune(layout: Layout, files: Files, now: datetime, days: float) -> int:
    """Remove archived files that have lain here for `days`; return how many.

    A file's age here is counted from its last change of name, as the file system keeps it.

    Raises:
        LogUnavailable: one cannot be removed.
    """
    before = (now - timedelta(days=days)).timestamp()
    paths = [layout.archive / name for name in names_in(layout.archive)]
    old = [path for path in paths if files.stat(os.fspath(path)).st_ctime < before]
    try:
        for path in old:
            files.remove(path)
        if old:
            files.sync_directory(layout.archive)
    except OSError as error:
        reason = f"an old file in the archive cannot be removed: {error.strerror}"
        raise LogUnavailable(layout.active, reason) from error
    return len(old)
