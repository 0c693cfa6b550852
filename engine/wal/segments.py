"""Know of which files a log consists.

A log is a row of files: those in ``segments/`` are sealed and never written again, the active one takes
the events. Each starts with a header, and its number is the first seq in it. A header is a claim: what
it says about the file before it is compared with that file by whoever opens, reads or verifies.

While a file is being sealed it goes by two names, the active one and its own in ``segments/``. So that
directory may hold the active file too; everything here counts only those before it as sealed.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ..chain import HASH_BYTES, HEADER_BYTES_MAX, LINE_BYTES_MAX, Header
from ..control import EMPTY, Head
from ..errors import ForeignLog, LogUnavailable
from ..files import SECOND_NAME, Files, Opened
from ..refused import names_in
from .drafts import SEALED
from .layout import Layout

_NAME = re.compile(r"(\d{20})\.wal")
_SEALED_LINE = b"|" + SEALED.encode("ascii") + b"|"


class LogFile(NamedTuple):
    """Hold one open file of a log and what its header claims."""

    header: Header
    opened: Opened

    def close(self) -> None:
        """Close it."""
        self.opened.close()


@dataclass(frozen=True, slots=True)
class Segment:
    """Describe a sealed file, as its name, the next file's name and its size say; verify checks the bytes."""

    first_seq: int
    last_seq: int
    path: Path
    bytes: int


def sealed_segments(layout: Layout, files: Files) -> list[Segment]:
    """Return the sealed files that are still there, in order.

    Raises:
        FileNotFoundError: there is no log.
        LogUnavailable: its active file cannot be opened.
    """
    begins = active_first_seq(layout, files)
    numbers = [number for number in segment_numbers(layout) if number < begins]
    ends = [*numbers[1:], begins][: len(numbers)]
    paths = map(layout.segment, numbers)
    return [
        Segment(number, end - 1, path, files.stat(os.fspath(path)).st_size)
        for number, end, path in zip(numbers, ends, paths, strict=True)
    ]


def segment_numbers(layout: Layout) -> list[int]:
    """Return the first seq of every file in ``segments/``, in order; the last may be the active file's."""
    names = names_in(layout.segments)
    return sorted(int(found[1]) for name in names if (found := _NAME.fullmatch(name)))


def active_first_seq(layout: Layout, files: Files) -> int:
    """Return where the active file begins."""
    opened = files.open_to_read(layout.active)
    try:
        header = read_header(files, opened.fd)
    finally:
        opened.close()
    if header is None:
        raise LogUnavailable(layout.active, "it has no header")
    return header.first_seq


def read_header(files: Files, fd: int) -> Header | None:
    """Read the header line at the beginning of a file, or return None when there is none of ours."""
    line, newline, _ = files.read(fd, HEADER_BYTES_MAX, 0).partition(b"\n")
    return Header.parse(line) if newline else None


def our_file(files: Files, opened: Opened, log_id: str) -> LogFile:
    """Return an open file of a log with its header; it is closed when it is another log's.

    Raises:
        ForeignLog: it is, or it is none.
    """
    header = read_header(files, opened.fd)
    if header is None or header.log_id != log_id:
        opened.close()
        raise ForeignLog(opened.path, log_id, header.log_id if header else "no log")
    return LogFile(header, opened)


def refuse_second_name(layout: Layout, files: Files, log: LogFile) -> None:
    """Refuse an active file with a second name, unless the name is the one that sealing gives it.

    Raises:
        LogUnavailable: it has another one.
    """
    names = files.names(log.opened.fd)
    own = files.is_same(layout.segment(log.header.first_seq), log.opened)
    if names > 1 + own:
        raise LogUnavailable(layout.active, f"{layout.active.name} {SECOND_NAME}")


def start_of(header: Header) -> Head:
    """Return the head of a file in which nothing stands but its header, as far as the header tells it.

    A fence may be the last event before it, so whoever asks for fences must have looked that far.
    """
    base, before = header.base_hash.encode("ascii"), header.first_seq - 1
    return Head(before, base, len(header.format()), EMPTY.timestamp, before, header.first_seq)


def is_next(header: Header, head: Head) -> bool:
    """Tell whether a file claims to go on where a sealed one ended."""
    base = header.base_hash.encode("ascii")
    return head.sealed and (header.first_seq, base) == (head.seq + 1, head.hash)


def last_line(files: Files, fd: int, end: int) -> bytes:
    """Return the last line before an offset, without its LF; the header's, where no event stands."""
    start = max(0, end - LINE_BYTES_MAX - 1)
    tail = files.read(fd, end - start, start)[:-1]
    return tail[tail.rfind(b"\n") + 1 :]


def seals(line: bytes) -> bool:
    """Tell whether an event's line is the last one of its file."""
    return line.startswith(_SEALED_LINE, HASH_BYTES)


def last_line_before(layout: Layout, files: Files, first_seq: int) -> bytes | None:
    """Return the last line of the file before the one that begins at `first_seq`; None when it is not there."""
    number = max((each for each in segment_numbers(layout) if each < first_seq), default=None)
    if number is None:
        return None
    opened = files.open_to_read(layout.segment(number))
    try:
        return last_line(files, opened.fd, files.size(opened.fd))
    finally:
        opened.close()
