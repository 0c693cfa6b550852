"""Find out how much of a damaged file's end can be believed: what links, line by line, to what comes after it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import NamedTuple

from ..chain import HASH_BYTES, first_stamp, follows, lines_within, split_line
from ..files import Files
from .damage import RUNS_MAX
from .lines import Line, read_lines
from .repair import durable_of

_RUN = b',"run":'
_TOKEN = b',"token":'


class Suffix(NamedTuple):
    """Hold where good lines begin again, which hash the first follows from and where that stands, how they end.

    ``least_seq`` is what the first of them must at least be: it says itself how far the disk had promised.
    """

    start: int
    previous: bytes
    previous_at: int
    last: bytes
    stamp: bytes
    least_seq: int
    lines: int = 1


class _Before(NamedTuple):
    hash: bytes
    at: int


def find_suffix(
    files: Files, fd: int, start: int, end: int, *, good: tuple[bytes, int], last: bytes
) -> Suffix | None:
    """Return the lines at the end of a stretch that link to the hash `last`, or None when none do.

    A line follows from the hash that stands in front of another one, be that one good or not; or from `good`, the
    hash of the last line before the stretch and where it stands, if something was put in between.
    """
    found: Suffix | None = None
    anchor = _Before(*good)
    before = [anchor]
    for line in read_lines(files, fd, start, end):
        if found is not None and _goes_on(found, line):
            found = _grown(found, line.data)
            continue
        starts = lines_within(line.data)
        found = _begins(line, starts, before)
        before = [anchor]
        before += [_Before(line.data[at : at + HASH_BYTES], line.offset + at) for at in starts]
    return found if found is not None and found.last == last else None


def _goes_on(found: Suffix, line: Line) -> bool:
    return line.complete and split_line(line.data) is not None and follows(found.last, line.data)


def _grown(found: Suffix, line: bytes) -> Suffix:
    stamp = first_stamp(line) or found.stamp
    return found._replace(last=line[:HASH_BYTES], stamp=stamp, lines=found.lines + 1)


def _begins(line: Line, starts: list[int], before: list[_Before]) -> Suffix | None:
    """Return a suffix that begins with a line, or in the middle of what looks like one."""
    if not line.complete:
        return None
    for at in starts:
        data = line.data[at:]
        parts = split_line(data)
        for each in before if parts is not None else ():
            if parts is not None and follows(each.hash, data):
                own = parts.hash, parts.timestamp, durable_of(data) + 1
                return Suffix(line.offset + at, each.hash, each.at, *own)
    return None


def count_lines(files: Files, fd: int, start: int, end: int) -> int:
    """Return how many lines stand between two offsets, whatever they hold."""
    return sum(1 for line in read_lines(files, fd, start, end) if line.end > line.offset)


def runs_named(files: Files, fd: int, start: int, end: int) -> tuple[str, ...]:
    """Return the runs that lines name which cannot be believed; a hint for a person, and no more."""
    found: dict[str, None] = {}
    for run in _runs(files, fd, start, end):
        found[run] = None
        if len(found) >= RUNS_MAX:
            break
    return tuple(found)


def _runs(files: Files, fd: int, start: int, end: int) -> Iterator[str]:
    for line in read_lines(files, fd, start, end):
        at = line.data.rfind(_RUN)
        text = line.data[at + len(_RUN) : line.data.rfind(_TOKEN)] if at >= 0 else b""
        try:
            run = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(run, str):
            yield run[:100]
