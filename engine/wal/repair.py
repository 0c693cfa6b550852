"""Find out where a log really ends, and set aside what a crash left behind it.

Torn is not corrupt. Beyond what was known to be durable a crash may leave anything: half a line,
zeros, a later line without an earlier one. Such bytes are kept in quarantine and cut. A bad byte
at or before the durable position is somebody's doing or a broken disk: nothing is cut, and
appends stop.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..chain import HASH_BYTES, follow_block, follows, lines_within, split_line
from ..control import Head
from ..files import Files
from ..refused import names_in
from .layout import Layout
from .lines import Line, read_lines

FENCE = b"|run.fenced|"
UNFINISHED = ".unfinished"

Notice = Callable[[Head, bytes], None]

_DURABLE = re.compile(rb'Z\|\{"d":(\d{1,19}),')
_COPY_BYTES = 1024 * 1024
_BLOCK_BYTES = 4 * 1024 * 1024  # several of the longest lines


@dataclass(frozen=True, slots=True)
class Break:
    """Say where good lines stop although bytes go on."""

    seq: int
    offset: int
    reason: str


@dataclass(frozen=True, slots=True)
class Scan:
    """Hold what reading from a known head to the end of the file came to."""

    head: Head
    durable: int
    broken: Break | None


def scan(
    files: Files, fd: int, head: Head, end: int | None = None, *, notice: Notice | None = None
) -> Scan:
    """Follow the chain from `head` as far as it holds; then look at what survived behind a break.

    ``durable`` is the highest ``d`` of the lines behind the break that verify: such a line follows from
    the hash that the line before it carries, be that one good or not. The ``d`` of a line before the
    break is lower than the line's own seq, so it cannot tell anything about the break. `notice` is shown
    every good line, usually many at once, with the head before them.
    """
    end = files.size(fd) if end is None else end
    head = _follow_blocks(files, fd, head, end, notice=notice)
    for line in read_lines(files, fd, head.size, end):
        reason = _why_bad(head, line)
        if reason is not None:
            durable = durable_behind(files, fd, head.size, end)
            return Scan(head, durable, Break(head.seq + 1, head.size, reason))
        if notice is not None:
            notice(head, line.data + b"\n")
        head = _after(head, line)
    return Scan(head, 0, None)


def _follow_blocks(files: Files, fd: int, head: Head, end: int, *, notice: Notice | None) -> Head:
    """Go on from `head` by whole blocks of good lines, and stop before the first that has a bad one."""
    while head.size < end:
        data = files.read(fd, min(_BLOCK_BYTES, end - head.size), head.size)
        block = data[: data.rfind(b"\n") + 1]
        reached = follow_block(head.hash, head.timestamp, block) if block else None
        if reached is None:
            break
        if notice is not None:
            notice(head, block)
        seq = head.seq + reached.lines
        head = Head(
            seq,
            reached.hash,
            head.size + len(block),
            reached.timestamp,
            seq if reached.fences else head.fenced,
            head.file,
        )
    return head


def _why_bad(head: Head, line: Line) -> str | None:
    """Return why a line cannot be the one after `head`, or None when it can."""
    if not line.complete:
        return line.fault or "the line has no end"
    parts = split_line(line.data)
    if parts is None:
        return "the line does not stand in the grammar"
    if not follows(head.hash, line.data):
        return "the hash does not follow from the line before"
    if parts.timestamp < head.timestamp:
        return "the timestamp runs backwards"
    return None


def _after(head: Head, line: Line) -> Head:
    """Return the head behind a line that is good."""
    data = line.data
    parts = split_line(data)
    assert parts is not None
    seq = head.seq + 1
    fenced = seq if data.startswith(FENCE, HASH_BYTES) else head.fenced
    return Head(seq, parts.hash, line.end, parts.timestamp, fenced, head.file)


def durable_of(line: bytes) -> int:
    """Return the ``d`` of the last payload on a line; 0 when it has none."""
    found = _DURABLE.findall(line)
    return int(found[-1]) if found else 0


def set_aside(files: Files, layout: Layout, fd: int, broken: Break) -> str:
    """Copy everything from the break on into a file of its own, durably, and return its name.

    The name follows from the bytes, so a repair that is itself killed and repeated leaves one file. It
    stays marked as unfinished until the log says what was done.
    """
    files.make_directory(layout.quarantine)
    name = f"{broken.seq:020d}-{broken.offset}-{_digest(files, fd, broken.offset)[0][:16]}"
    kept = files.open(
        layout.quarantine / f"{name}{UNFINISHED}", os.O_RDWR | os.O_CREAT | os.O_TRUNC
    )
    try:
        for offset, part in _parts(files, fd, broken.offset):
            files.write_at(kept.fd, part, offset - broken.offset)
        files.sync(kept.fd)
    finally:
        kept.close()
    files.sync_directory(layout.quarantine)
    return name


def unfinished(files: Files, layout: Layout) -> list[str]:
    """Return the names of what was set aside by repairs that have not been noted in the log.

    A mark beside the kept file itself is what a power cut left of taking it off: that one was noted.
    """
    names = []
    for path in sorted(_unfinished_paths(layout)):
        name = path.name.removesuffix(UNFINISHED)
        if files.exists(layout.quarantine / name):
            files.remove(path)
        else:
            names.append(name)
    return names


def facts_of(files: Files, layout: Layout, name: str) -> dict[str, object]:
    """Return what the log should say about a kept file."""
    seq, offset, _ = name.split("-")
    kept = files.open(layout.quarantine / f"{name}{UNFINISHED}", os.O_RDONLY)
    try:
        sha256, size = _digest(files, kept.fd, 0)
    finally:
        kept.close()
    return {
        "bytes": size,
        "offset": int(offset),
        "quarantine": name,
        "seq": int(seq),
        "sha256": sha256,
    }


def finish(files: Files, layout: Layout, name: str) -> None:
    """Take the mark of an unfinished repair off a kept file."""
    files.rename(layout.quarantine / f"{name}{UNFINISHED}", layout.quarantine / name)


def durable_behind(files: Files, fd: int, offset: int, end: int) -> int:
    """Return the highest ``d`` of the lines from a break on that follow from the line before them.

    Where zeros swallowed an LF, a line may begin in the middle of what looks like one.
    """
    durable, before = 0, [b""]
    for line in read_lines(files, fd, offset, end):
        starts = lines_within(line.data)
        if line.complete and any(
            follows(hash_, line.data[at:]) for hash_ in before for at in starts
        ):
            durable = max(durable, durable_of(line.data))
        before = [line.data[at : at + HASH_BYTES] for at in starts]
    return durable


def _unfinished_paths(layout: Layout) -> list[Path]:
    names = names_in(layout.quarantine)
    return [layout.quarantine / name for name in names if name.endswith(UNFINISHED)]


def _digest(files: Files, fd: int, offset: int) -> tuple[str, int]:
    digest, size = hashlib.sha256(), 0
    for _, part in _parts(files, fd, offset):
        digest.update(part)
        size += len(part)
    return digest.hexdigest(), size


def _parts(files: Files, fd: int, offset: int) -> Iterator[tuple[int, bytes]]:
    while part := files.read(fd, _COPY_BYTES, offset):
        yield offset, part
        offset += len(part)
