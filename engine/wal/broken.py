"""Read the mark of a log in which a verification has found a break: why nobody may append behind it.

The mark is a file beside the log, which outlives a restart, and a word in ``control``, which every append
reads anyhow.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from typing import Self

from ..errors import LogCorrupt, LogUnavailable, StrPath
from ..fields import Refused, number, text
from ..files import Files
from .layout import Layout

_BYTES_MAX = 8192
_REASON_MAX = 1000


class LogBroken(LogCorrupt, LogUnavailable):
    """The log is broken at event {seq}, {path} byte {offset}: {reason}.
    Nothing is appended until a person acts: put the right file back and run `commander verify`, or see
    `commander repair`.
    """

    def __init__(self, seq: int, path: StrPath, offset: int, reason: str) -> None:
        LogUnavailable.__init__(self, path, reason)
        self.args = (seq, self.path, offset, reason)
        self.seq = seq
        self.offset = offset


class LogTorn(LogUnavailable):
    """The log {path} ends in bytes that do not verify, event {seq}, byte {offset}: {reason}.
    A crash leaves such; by the setting `strict` nobody cuts them before a person has looked: `commander repair`.
    """

    def __init__(self, path: StrPath, seq: int, offset: int, reason: str) -> None:
        super().__init__(path, reason)
        self.args = (self.path, seq, offset, reason)
        self.seq = seq
        self.offset = offset


@dataclass(frozen=True, slots=True)
class Mark:
    """Say what was found: a status of verification, and where the log stops being good."""

    status: str
    seq: int
    path: str
    offset: int
    reason: str
    at: str

    @classmethod
    def parse(cls, data: bytes) -> Self | None:
        """Read a mark; None when it says nothing that can be read, which makes it no less a mark."""
        try:
            said = json.loads(data)
            texts = {name: text(said, name) for name in ("status", "path", "reason", "at")}
            return cls(**texts, seq=number(said, "seq"), offset=number(said, "offset"))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, Refused):
            return None

    def format(self) -> str:
        """Return the text of the mark's file."""
        return json.dumps(asdict(self) | {"reason": self.reason[:_REASON_MAX]}) + "\n"


def as_marked(files: Files, layout: Layout) -> LogBroken:
    """Return what to raise on a log that is marked."""
    found = mark_of(files, layout)
    if found is None:
        return LogBroken(
            0, layout.active, 0, "a verification found a break, verify it to see which"
        )
    return LogBroken(found.seq, found.path, found.offset, f"{found.status}, {found.reason}")


def mark_of(files: Files, layout: Layout) -> Mark | None:
    """Return what the mark says; None where it is not there, or cannot be read."""
    try:
        mark = files.open(layout.broken, os.O_RDONLY)
    except (OSError, LogUnavailable):
        return None
    try:
        return Mark.parse(files.read(mark.fd, _BYTES_MAX, 0))
    except LogUnavailable:
        return None
    finally:
        mark.close()
