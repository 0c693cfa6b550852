"""Read verified events, without locks and without write access.

A reader never goes beyond the published head, so it sees no bytes that a failed write may still
cut away. Where this boot has published none (a copy of a log, a log after a restart) the last
complete line is the end.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from ..chain import HASH_BYTES, LINE_BYTES_MAX, Header, follows, split_line
from ..control import Control, Head, Promise
from ..errors import ForeignLog, LogCorrupt, LogMoved, LogUnavailable
from ..events import Event, Position, decode_line
from ..files import Files, Opened
from .layout import Layout
from .lines import Line, read_lines
from .session import read_header


@dataclass(frozen=True, slots=True)
class View:
    """Hold what reading needs open: the log, and ``control`` where there is one."""

    log: Opened
    control_file: Opened | None
    control: Control | None

    def is_intact(self) -> bool:
        """Tell whether the numbers still mean the files they were opened for."""
        return self.log.is_intact() and (self.control_file is None or self.control_file.is_intact())

    def close(self) -> None:
        """Close what is still ours."""
        self.log.close()
        if self.control_file is not None:
            self.control_file.close()


class Reader:
    """Read one log on behalf of one process."""

    def __init__(self, layout: Layout, files: Files, header: Header, *, boot_id: str) -> None:
        self.files = files
        self.header = header
        self.path = os.fspath(layout.active)
        self._layout = layout
        self._boot_id = boot_id
        self._pid = os.getpid()
        self._view: View | None = None

    def forget(self) -> None:
        """Drop what is open; called in the child of a fork, and at closing."""
        view, self._view = self._view, None
        self._pid = os.getpid()
        if view is not None:
            view.close()

    def view(self) -> View:
        """Return a view that this process keeps open between calls."""
        if self._view is None or self._pid != os.getpid() or not self._view.is_intact():
            self.forget()
            self._view = self.open_view()
        return self._view

    def open_view(self) -> View:
        """Open the files anew; the caller closes them.

        Raises:
            ForeignLog: another log stands there by now.
            LogMoved: the log is gone.
        """
        try:
            log = self.files.open_to_read(self._layout.active)
        except FileNotFoundError as error:
            raise LogMoved(self.path, "it is gone") from error
        found = read_header(self.files, log.fd)
        if found is None or found.log_id != self.header.log_id:
            log.close()
            raise ForeignLog(self.path, self.header.log_id, found.log_id if found else "no log")
        try:
            opened = self.files.open_to_read(self._layout.control)
        except (FileNotFoundError, LogUnavailable):
            return View(log, None, None)
        control = Control(self.files, opened.fd, boot_id=self._boot_id, log_id=self.header.log_id)
        return View(log, opened, control)

    def published(self) -> tuple[Head | None, Promise | None]:
        """Return what ``control`` says now; None for what this boot has not published."""
        control = self.view().control
        return control.read_settled() if control is not None else (None, None)

    def read(self, position: Position | None) -> Iterator[Event]:
        """Yield every event after `position` (None: from the first), each checked against the chain.

        Raises:
            LogCorrupt: a line does not follow from the one before it.
            LogMoved: the position lies beyond the log's end.
        """
        view = self.open_view()
        try:
            head = view.control.read_settled()[0] if view.control is not None else None
            end = head.size if head is not None else self.files.size(view.log.fd)
            seq, hash_, offset = self._start(view, position, end)
            for line in read_lines(self.files, view.log.fd, offset, end):
                if not line.complete and line.fault is None and head is None:
                    return  # the last line is still being written, or torn
                seq += 1
                event = self.check(line, seq, hash_)
                yield event
                hash_ = line.data[:HASH_BYTES]
        finally:
            view.close()

    def batch(self, position: Position | None, count: int) -> list[Event]:
        """Return up to `count` events after `position`."""
        return list(islice(self.read(position), count))

    def check(self, line: Line, seq: int, previous: bytes) -> Event:
        """Return the event on a line, or say what is wrong with the line.

        Raises:
            LogCorrupt: the line is cut, out of the grammar, or does not follow from `previous`.
        """
        if not line.complete:
            raise self._corrupt(seq, line, line.fault or "the line has no end")
        parts = split_line(line.data)
        if parts is None:
            raise self._corrupt(seq, line, "the line does not stand in the grammar")
        if not follows(previous, line.data):
            raise self._corrupt(seq, line, "the hash does not follow from the line before")
        try:
            return decode_line(parts, Position(seq, self.header.first_seq, line.offset))
        except (ValueError, KeyError, RecursionError) as error:
            raise self._corrupt(seq, line, f"the payload cannot be read: {error}") from error

    def _start(self, view: View, position: Position | None, end: int) -> tuple[int, bytes, int]:
        """Return the seq and hash that come before the first line to read, and where it begins."""
        if position is None:
            base = self.header.base_hash.encode("ascii")
            return self.header.first_seq - 1, base, len(self.header.format())
        line = self.files.read(
            view.log.fd, min(LINE_BYTES_MAX + 1, max(0, end - position.offset)), position.offset
        )
        length = line.find(b"\n")
        if position.file != self.header.first_seq or split_line(line[:length]) is None:
            raise LogMoved(self.path, f"there is no event at position {position}")
        return position.seq, line[:HASH_BYTES], position.offset + length + 1

    def _corrupt(self, seq: int, line: Line, reason: str) -> LogCorrupt:
        return LogCorrupt(seq, self.path, line.offset, reason)
