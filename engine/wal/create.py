"""Bring a log into being, once, whoever asks first and whoever dies on the way."""

from __future__ import annotations

import os
from datetime import datetime
from uuid import uuid4

from ..chain import FORMAT, GENESIS, Header, first_header, link
from ..errors import LogMoved, LogUnavailable, LogUnreadable, NotALog
from ..events import NewEvent, encode_payload, format_timestamp
from ..files import Files, Opened
from ..ids import new_event_id
from .layout import Layout
from .locks import Patience
from .segments import LogFile, read_header, refuse_second_name, segment_numbers


def open_or_create(layout: Layout, files: Files, now: datetime, lock_seconds: float) -> Header:
    """Return the header of the log, after making the log if there is none; safe between processes.

    The new file is written and synced under another name and then renamed, all under ``append.lock``: at no instant is
    there a log without its first event.

    Raises:
        NotALog: another kind of file stands there.
        LogMoved: the log's directory knows a log, but its file is gone.
        LogUnavailable: something cannot be opened or made.
    """
    _refuse_linked_directory(layout)
    files.make_directory(layout.directory)
    lock = files.open(layout.append_lock, os.O_RDWR | os.O_CREAT)
    try:
        patience = Patience(files, lock_seconds)
        while not files.try_lock(lock.fd):
            patience.nap(lock, files.lock_holder)
        files.open(layout.sync_lock, os.O_RDWR | os.O_CREAT).close()
        if not files.exists(layout.active):
            _create(layout, files, now)
        else:
            files.remove(layout.newborn)
        header = _own_header(layout, files)
        files.open(layout.control, os.O_RDWR | os.O_CREAT).close()
        return header
    except OSError as error:
        raise LogUnavailable(layout.active, error.strerror or str(error)) from error
    finally:
        files.unlock(lock.fd)  # a child that was forked meanwhile has a copy of it
        lock.close()


def open_existing(layout: Layout, files: Files) -> Header:
    """Return the header of a log that must be there and is only read, by whoever may.

    Raises:
        NotALog: another kind of file stands there.
        LogUnreadable: it is missing or cannot be opened.
    """
    try:
        return _header_of(files, files.open_to_read(layout.active))
    except FileNotFoundError as error:
        raise LogUnreadable(layout.active, "there is no such file") from error
    except OSError as error:
        raise LogUnreadable(layout.active, error.strerror or str(error)) from error


def _own_header(layout: Layout, files: Files) -> Header:
    """Return the header of the active file, of which a killed sealing may have left a second name."""
    log = files.open(layout.active, os.O_RDONLY, names_max=2)
    header = read_header(files, log.fd)
    if header is not None:
        try:
            refuse_second_name(layout, files, LogFile(header, log))
        except LogUnavailable:
            log.close()
            raise
    return _header_of(files, log)


def _header_of(files: Files, log: Opened) -> Header:
    """Return the header of an open log, and close it."""
    try:
        header = read_header(files, log.fd)
        is_empty = files.size(log.fd) == 0
    finally:
        log.close()
    if header is None:
        raise NotALog(log.path, "it is empty" if is_empty else f"it has no {FORMAT} header")
    return header


def _create(layout: Layout, files: Files, now: datetime) -> None:
    knows_one = files.exists(layout.control) and files.stat(os.fspath(layout.control)).st_size
    if knows_one or segment_numbers(layout):
        raise LogMoved(layout.active, f"it is gone, but {layout.directory.name} knows it")
    files.sync_way(
        layout.directory
    )  # whoever made a directory may have been killed before it was on disk
    files.remove(layout.newborn)
    newborn = files.open(layout.newborn, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    try:
        files.write_at(newborn.fd, _first_bytes(str(uuid4()), now), 0)
        files.sync(newborn.fd)
    finally:
        newborn.close()
    files.rename(layout.newborn, layout.active)


def _first_bytes(log_id: str, now: datetime) -> bytes:
    created = NewEvent("wal.created", {"format": FORMAT, "log_id": log_id})
    payload, _ = encode_payload(created, durable=0, bytes_max=4096)
    stamp = format_timestamp(now)
    rest = b"|".join([b"", b"wal.created", new_event_id(now).encode("ascii"), stamp, payload])
    return first_header(log_id).format() + link(GENESIS, rest) + rest + b"\n"


def _refuse_linked_directory(layout: Layout) -> None:
    if layout.active.parent.is_symlink():
        raise LogUnavailable(layout.active, "its directory is a symbolic link; name the real one")
