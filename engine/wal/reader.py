"""Read verified events, without locks and without write access.

A reader never goes beyond the published head, so it sees no bytes that a failed write may still
cut away. Where this boot has published none (a copy of a log, a log after a restart) the last
complete line is the end.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import NamedTuple

from ..chain import HASH_BYTES, LINE_BYTES_MAX, follows, split_line
from ..control import Control, Head, Promise
from ..errors import ForeignLog, LogCompacted, LogCorrupt, LogMoved, LogUnavailable
from ..events import COUNT_MAX, Event, Position, decode_line, outline
from ..files import Files, Opened
from .damage import Accepted, Lost, Notes, right_header
from .layout import Layout
from .lines import Line, read_lines
from .repair import durable_behind
from .segments import LogFile, our_file, read_header, segment_numbers

_OPEN_FILES_MAX = 8
_LOOKS = 50


@dataclass(frozen=True, slots=True)
class View:
    """Hold ``control`` open, where there is one."""

    control_file: Opened | None
    control: Control | None

    def is_intact(self) -> bool:
        """Tell whether the number still means the file that it was opened for."""
        return self.control_file is None or self.control_file.is_intact()

    def close(self) -> None:
        """Close what is still ours."""
        if self.control_file is not None:
            self.control_file.close()


class Start(NamedTuple):
    """Say where to begin: in which file, the seq and the hash that come before, the offset."""

    log: LogFile
    seq: int
    hash: bytes
    offset: int


class Reader:
    """Read one log on behalf of one process."""

    def __init__(self, layout: Layout, files: Files, *, log_id: str, boot_id: str) -> None:
        self.files = files
        self.log_id = log_id
        self.path = os.fspath(layout.active)
        self._layout = layout
        self._boot_id = boot_id
        self._pid = os.getpid()
        self._view: View | None = None
        self._notes = Notes(layout, files)
        self._accepted: dict[int, Accepted] = {}
        self._open_files: dict[int, LogFile] = {}

    def forget(self) -> None:
        """Drop what is open; called in the child of a fork, and at closing."""
        view, self._view = self._view, None
        opened, self._open_files = self._open_files, {}
        self._pid = os.getpid()
        if view is not None:
            view.close()
        for each in opened.values():
            each.close()

    def published(self) -> tuple[Head | None, Promise | None]:
        """Return what ``control`` says now; None for what this boot has not published."""
        view = self._view
        if view is None or self._pid != os.getpid() or not view.is_intact():
            if self._pid != os.getpid():
                self.forget()
            elif view is not None:
                view.close()
            self._view = view = self._open_view()
        control = view.control
        return control.read_settled() if control is not None else (None, None)

    def numbers(self) -> list[int]:
        """Return where each file of the log begins, in order, the active one last.

        Raises:
            ForeignLog: another log stands there by now.
            LogMoved: the log is gone.
        """
        log = self._open_active()
        log.close()
        last = log.header.first_seq
        return [*(each for each in segment_numbers(self._layout) if each < last), last]

    def file(self, number: int) -> LogFile | None:
        """Return a file of the log, which this process keeps open between calls; None when it is not there."""
        if self._pid != os.getpid():
            self.forget()
        found = self._open_files.pop(number, None)
        if found is not None and not found.opened.is_intact():
            found.close()
            found = None
        found = found or self._open_file(number)
        if found is not None:
            self._open_files[number] = found  # the one used last stands last
            if len(self._open_files) > _OPEN_FILES_MAX:
                self._open_files.pop(next(iter(self._open_files))).close()
        return found

    def read(
        self, position: Position | None, contents: frozenset[str] | None = None
    ) -> Iterator[Event]:
        """Yield every event after `position` (None: from the first), each checked against the chain.

        Of types that `contents` does not name (None: names all) the content is not taken apart: they come without a
        run and with an empty payload.

        Raises:
            LogCompacted: what comes after the position was compacted away.
            LogCorrupt: a line does not follow from the one before it.
            LogMoved: the position lies beyond the log's end.
        """
        head = self.published()[0]
        last = head.file if head is not None else self.numbers()[-1]
        yield from self._follow(self._start(position, head), last, head, contents)

    def _follow(
        self, start: Start, last: int, head: Head | None, contents: frozenset[str] | None = None
    ) -> Iterator[Event]:
        """Yield the events from a start to the end of the last file, or to the published end."""
        log, seq, hash_, offset = start
        try:
            while True:
                is_last = log.header.first_seq >= last
                end = self._end(log, head)
                lost: Lost | None = None
                for line in read_lines(self.files, log.opened.fd, offset, end):
                    if not line.complete and line.fault is None and head is None and is_last:
                        return  # the last line is still being written, or torn
                    seq += 1
                    try:
                        event = self.check(line, seq, hash_, log, contents=contents)
                    except LogCorrupt:
                        if head is None and is_last and self._is_torn(log, line, seq, end):
                            return
                        lost = self.lost_in(log.header.first_seq, line.offset)
                        if lost is None:
                            raise
                        break
                    yield event
                    hash_ = line.data[:HASH_BYTES]
                if lost is not None:
                    seq, hash_, offset = lost.last_seq, lost.hash.encode("ascii"), lost.stop
                    continue
                if is_last:
                    return
                log.close()
                seq, hash_ = self._past_missing(seq, hash_, log)
                log = self._open_next(seq, hash_, log)
                offset = len(log.header.format())
        finally:
            log.close()

    def accepted(self) -> dict[int, Accepted]:
        """Return, by file, what a person accepted as damaged, in the files from the first one that is there on.

        While the log is moved away that is what was known last: who has it open still reads.
        """
        for _ in range(_LOOKS):
            try:
                self._accepted = self._notes.accepted(self.numbers())
            except FileNotFoundError:  # compacted between two looks
                continue
            except (LogMoved, ForeignLog):
                pass
            return self._accepted
        raise LogUnavailable(self.path, "its files change all the time")

    def lost_in(self, number: int, offset: int | None = None) -> Lost | None:
        """Return what of a file is accepted as lost, if its place `offset` is; anywhere in it by default."""
        found = self.accepted().get(number)
        lost = None if found is None else found.damage.lost
        if lost is None or (offset is not None and not lost.offset <= offset < lost.stop):
            return None
        return lost

    def _past_missing(self, seq: int, hash_: bytes, log: LogFile) -> tuple[int, bytes]:
        """Return the event and the hash behind which the next file begins, if it is not this one's last."""
        while seq + 1 not in self.numbers():
            accepted = self.accepted()
            cut, gone = accepted.get(log.header.first_seq), accepted.get(seq + 1)
            lost = gone.damage.lost if gone is not None else cut.damage.lost if cut else None
            if lost is None or lost.last_seq <= seq:
                break
            seq, hash_ = lost.last_seq, lost.hash.encode("ascii")
        return seq, hash_

    def _is_torn(self, log: LogFile, line: Line, seq: int, end: int) -> bool:
        """Tell whether a bad line is what a power cut left, which nobody has put in order yet."""
        return durable_behind(self.files, log.opened.fd, line.offset, end) < seq

    def batch(self, position: Position | None, count: int) -> list[Event]:
        """Return up to `count` events after `position`."""
        return list(islice(self.read(position), count))

    def durable(self, position: Position | None) -> Iterator[Event]:
        """Yield the events after `position` that this boot knows to be on disk; all, where it knows nothing."""
        promise = self.published()[1]
        last = COUNT_MAX if promise is None else promise.seq
        return takewhile(lambda event: event.seq <= last, self.read(position))

    def end(self) -> tuple[int, str]:
        """Return the seq and the hash of the last event that is there."""
        head = self.published()[0]
        if head is not None:
            return head.seq, head.hash.decode("ascii")
        number = self.numbers()[-1]
        start = self._start_of_file(number)
        seq, hash_ = start.seq, start.hash.decode("ascii")
        for event in self._follow(start, number, None):
            seq, hash_ = event.seq, event.hash
        return seq, hash_

    def check(
        self,
        line: Line,
        seq: int,
        previous: bytes,
        log: LogFile,
        *,
        contents: frozenset[str] | None = None,
    ) -> Event:
        """Return the event on a line, or say what is wrong with the line.

        Raises:
            LogCorrupt: the line is cut, out of the grammar, or does not follow from `previous`.
        """
        if not line.complete:
            raise self._corrupt(seq, line, log, line.fault or "the line has no end")
        parts = split_line(line.data)
        if parts is None:
            raise self._corrupt(seq, line, log, "the line does not stand in the grammar")
        if not follows(previous, line.data):
            raise self._corrupt(seq, line, log, "the hash does not follow from the line before")
        position = Position(seq, log.header.first_seq, line.offset)
        try:
            if contents is not None and parts.type.decode("ascii") not in contents:
                return outline(parts, position)
            return decode_line(parts, position)
        except (ValueError, KeyError, RecursionError) as error:
            raise self._corrupt(seq, line, log, f"the payload cannot be read: {error}") from error

    def _start(self, position: Position | None, head: Head | None) -> Start:
        if position is None:
            return self._start_of_log()
        log = self._open_file(position.file)
        if log is None:
            start = self._start_of_log()
            if position.seq == start.seq and position.file <= start.seq:
                return start  # all that comes after it is there
            start.log.close()
            if position.file <= start.seq:
                raise LogCompacted(position, start.seq + 1)
            raise LogMoved(self.path, f"there is no event at position {position}")
        room = max(0, self._end(log, head) - position.offset)
        line = self.files.read(log.opened.fd, min(LINE_BYTES_MAX + 1, room), position.offset)
        length = line.find(b"\n")
        if split_line(line[:length]) is None:
            log.close()
            raise LogMoved(self.path, f"there is no event at position {position}")
        return Start(log, position.seq, line[:HASH_BYTES], position.offset + length + 1)

    def _start_of_log(self) -> Start:
        """Return where the log begins; its first files may be compacted away between two looks."""
        number = self.numbers()[0]
        while (log := self._open_file(number)) is None:
            before, number = number, self.numbers()[0]
            if number <= before:
                raise LogMoved(self.path, f"its file {before} is gone")
        return self._start_in(log)

    def _start_of_file(self, number: int) -> Start:
        log = self._open_file(number)
        if log is None:
            raise LogMoved(self.path, f"its file {number} is gone")
        return self._start_in(log)

    def _start_in(self, log: LogFile) -> Start:
        log = self._as_accepted(log)
        number = log.header.first_seq
        base = log.header.base_hash.encode("ascii")
        return Start(log, number - 1, base, len(log.header.format()))

    def _end(self, log: LogFile, head: Head | None) -> int:
        """Return how far a file may be read: a sealed one whole, the active one as far as was published."""
        if head is not None and head.file == log.header.first_seq:
            return head.size
        return self.files.size(log.opened.fd)

    def _open_next(self, seq: int, hash_: bytes, before: LogFile) -> LogFile:
        """Open the file that goes on after an event."""
        if seq < before.header.first_seq:  # or the file after it would be the file itself, for ever
            raise LogCorrupt(seq + 1, before.opened.path, 0, "a sealed file holds no event")
        log = self._open_file(seq + 1)
        if log is None:
            first = self.numbers()[0]
            if first > seq + 1:  # compacted while the file before it was read
                raise LogCompacted(Position(seq, before.header.first_seq, 0), first)
            path = self._layout.segment(seq + 1)
            raise LogCorrupt(seq + 1, path, 0, "the file that begins with it is missing")
        if log.header.base_hash.encode("ascii") != hash_:
            log = self._as_accepted(log)
        if log.header.base_hash.encode("ascii") != hash_:
            log.close()
            reason = "its header does not go on where the file before it ends"
            raise LogCorrupt(seq + 1, log.opened.path, 0, reason)
        return log

    def _open_file(self, number: int) -> LogFile | None:
        """Open the file that begins at a seq; it is the active one, or it has the number for a name.

        It may be sealed between the two looks. Then it stands among the sealed ones: it gets that name first.
        """
        log = self._open_active()
        if log.header.first_seq == number:
            return log
        log.close()
        path = self._layout.segment(number)
        try:
            opened = self.files.open_to_read(path)
        except FileNotFoundError:
            return None
        header = read_header(self.files, opened.fd)
        if header is None or (header.log_id, header.first_seq) != (self.log_id, number):
            header = right_header(self.accepted(), number)
        if header is None or (header.log_id, header.first_seq) != (self.log_id, number):
            opened.close()
            raise LogCorrupt(number, path, 0, "its header is not the one of this file")
        return LogFile(header, opened)

    def _as_accepted(self, log: LogFile) -> LogFile:
        """Return a file with the header that it should have, if that it has another was accepted."""
        header = right_header(self.accepted(), log.header.first_seq)
        return log if header is None else LogFile(header, log.opened)

    def _open_active(self) -> LogFile:
        try:
            opened = self.files.open_to_read(self._layout.active)
        except FileNotFoundError as error:
            raise LogMoved(self.path, "it is gone") from error
        return our_file(self.files, opened, self.log_id)

    def _open_view(self) -> View:
        try:
            opened = self.files.open_to_read(self._layout.control)
        except (FileNotFoundError, LogUnavailable):
            return View(None, None)
        control = Control(self.files, opened.fd, boot_id=self._boot_id, log_id=self.log_id)
        return View(opened, control)

    def _corrupt(self, seq: int, line: Line, log: LogFile, reason: str) -> LogCorrupt:
        return LogCorrupt(seq, log.opened.path, line.offset, reason)
