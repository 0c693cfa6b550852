"""Let a new active file take the place of one that was sealed, so that a kill anywhere can be made good.

At no instant is there a log without an active file. The steps, each durable before the next:

1. the next file is written and synced under another name; it holds nothing but its header
2. the active file gets its own name in ``segments/`` beside the one it has
3. its last line, ``wal.sealed``, is written and synced
4. the next file is renamed over the active name, which takes that name from the old one
5. ``control`` is told

Killed before 3 nothing has happened, and what lies about is tidied away. Killed after it the file ends
with ``wal.sealed``: whoever comes next does 1, 2 and 4 again. Killed before 5 he finds a file that
begins where the one in ``control`` was sealed, and only tells.
"""

from __future__ import annotations

import os
from hashlib import sha256
from typing import Protocol

from ..chain import Header
from ..control import Head
from ..errors import LogMoved, LogUnavailable
from ..files import Files
from .segments import segment_numbers, start_of
from .session import Handles, Session

_READ_BYTES = 1024 * 1024


class Digest(Protocol):
    """Be what hashlib makes."""

    def update(self, data: bytes, /) -> None:
        """Hash more bytes."""

    def hexdigest(self) -> str:
        """Return the hash so far."""


def write_next(
    session: Session, handles: Handles, sealed: Head, *, digest: str | None = None
) -> Header:
    """Do steps 1 and 2 for a file that ends, or is about to end, at `sealed`; its SHA-256 if known.

    Raises:
        LogUnavailable: there is no room, or another file has the name.
    """
    files, layout = session.files, session.layout
    header = Header(
        session.log_id,
        handles.header.segment + 1,
        sealed.seq + 1,
        sealed.hash.decode("ascii"),
        digest or digest_of(files, handles.log.fd, sealed.size),
    )
    try:
        files.make_directory(layout.segments)
        newborn = files.open(layout.newborn, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        try:
            files.write_at(newborn.fd, header.format(), 0)
            files.sync(newborn.fd)
        finally:
            newborn.close()
        _name_sealed(session, handles)
    except OSError as error:
        reason = f"the file after it cannot be made: {error.strerror}"
        raise LogUnavailable(session.path, reason) from error
    return header


def put_in_place(session: Session, handles: Handles, sealed: Head, header: Header) -> None:
    """Do steps 4 and 5; the handles are of the old file afterwards."""
    files, layout = session.files, session.layout
    if not files.is_same(layout.active, handles.log):
        raise LogMoved(session.path, "another file stands in its place")
    try:
        files.rename(layout.newborn, layout.active)
    except OSError as error:
        reason = f"the file after it cannot take its place: {error.strerror}"
        raise LogUnavailable(session.path, reason) from error
    handles.control.publish_head(first_head(header, sealed))


def first_head(header: Header, sealed: Head) -> Head:
    """Return the head of a file without events, knowing what the file before it ended with."""
    return start_of(header)._replace(timestamp=sealed.timestamp, fenced=sealed.fenced)


def drop_copy(session: Session, handles: Handles) -> None:
    """Remove a copy of the active file that has its name in ``segments/``, or refuse another file there.

    A backup taken during a seal may hold the one file with two names as two files.

    Raises:
        LogMoved: the sealed files know more than the active one: that one is an old copy, put back.
    """
    files, layout = session.files, session.layout
    later = max(segment_numbers(layout), default=0)
    own = layout.segment(handles.file)
    if later < handles.file or (later == handles.file and files.is_same(own, handles.log)):
        return
    reason = f"{layout.segment(later).name} was sealed after it began"
    if later > handles.file:
        raise LogMoved(session.path, reason)
    copy = files.open_to_read(own)
    try:
        size = files.size(copy.fd)
        is_copy = size <= files.size(handles.log.fd) and digest_of(
            files, copy.fd, size
        ) == digest_of(files, handles.log.fd, size)
    finally:
        copy.close()
    if not is_copy:
        raise LogMoved(session.path, reason)
    files.remove(own)


def tidy(session: Session, handles: Handles) -> None:
    """Undo what a sealing that was killed before its third step left about."""
    files, layout = session.files, session.layout
    own = layout.segment(handles.file)
    if files.is_same(own, handles.log):
        files.remove(own)
        files.sync_directory(layout.segments)
    if files.exists(layout.newborn):
        files.remove(layout.newborn)


def digest_of(files: Files, fd: int, size: int) -> str:
    """Return the SHA-256 of the first `size` bytes of a file."""
    digest = sha256()
    feed(digest, files, fd, end=size)
    return digest.hexdigest()


def feed(digest: Digest, files: Files, fd: int, *, start: int = 0, end: int) -> None:
    """Hash the bytes of a file between two offsets."""
    while start < end:
        part = files.read(fd, min(_READ_BYTES, end - start), start)
        if not part:
            break
        digest.update(part)
        start += len(part)


def _name_sealed(session: Session, handles: Handles) -> None:
    files, layout = session.files, session.layout
    own = layout.segment(handles.file)
    drop_copy(session, handles)
    if files.is_same(own, handles.log):
        files.sync_directory(layout.segments)  # whoever gave it the name may have been killed since
        return
    files.link(layout.active, own)
    if not files.is_same(own, handles.log):
        files.remove(own)
        raise LogMoved(session.path, "another file stands in its place")
