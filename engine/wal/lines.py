"""Cut a file into lines, in bounded memory whatever stands in it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ..chain import LINE_BYTES_MAX
from ..files import Files

CHUNK_BYTES = 256 * 1024


class Line(NamedTuple):
    """Hold one line without its LF; ``end`` is the offset behind the LF. An overlong one is only its beginning."""

    offset: int
    data: bytes
    end: int
    complete: bool
    fault: str | None = None


def read_lines(files: Files, fd: int, start: int, end: int) -> Iterator[Line]:
    """Yield the lines between two offsets; what follows the last LF comes as one incomplete line.

    A line longer than the format allows is yielded as incomplete, with its beginning only, and skipped to its LF: ten
    gigabytes without an LF need no more memory than the longest good line.
    """
    offset, rest = start, b""
    while (at := offset + len(rest)) < end:
        chunk = files.read(fd, min(CHUNK_BYTES, end - at), at)
        if not chunk:
            break
        *lines, rest = (rest + chunk).split(b"\n")
        for data in lines:
            stop = offset + len(data) + 1
            yield _whole(offset, data, stop)
            offset = stop
        if len(rest) > LINE_BYTES_MAX:
            stop = _skip(files, fd, offset + len(rest), end)
            yield Line(
                offset, rest[:LINE_BYTES_MAX], stop, False, "the line is longer than any event"
            )
            offset, rest = stop, b""
    if rest:
        yield Line(offset, rest, offset + len(rest), False)


def _whole(offset: int, data: bytes, stop: int) -> Line:
    if len(data) > LINE_BYTES_MAX:
        return Line(offset, data[:LINE_BYTES_MAX], stop, False, "the line is longer than any event")
    return Line(offset, data, stop, True)


def _skip(files: Files, fd: int, offset: int, end: int) -> int:
    """Return the offset behind the next LF, or the end."""
    while offset < end:
        chunk = files.read(fd, min(CHUNK_BYTES, end - offset), offset)
        if not chunk:
            break
        found = chunk.find(b"\n")
        if found >= 0:
            return offset + found + 1
        offset += len(chunk)
    return min(offset, end)
