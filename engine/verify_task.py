"""Say what is to be verified, and what this boot knows of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from .anchors import Anchor
from .control import Head, Promise
from .integrity import Verified
from .wal.layout import Layout
from .wal.segments import LogFile, is_next


class Task(NamedTuple):
    """Say what is to be verified, and what is known of it."""

    layout: Layout
    published: Callable[[], tuple[Head | None, Promise | None]]
    log_id: str | None
    after: Verified | None
    anchors: tuple[Anchor, ...]


@dataclass(frozen=True, slots=True)
class ActiveFile:
    """Hold the open active file, and what this boot had published when it was opened."""

    log: LogFile
    head: Head | None
    promise: Promise | None

    def is_of_one_moment(self) -> bool:
        """Tell whether the file is the one that was published; false for an instant while it is sealed."""
        head, header = self.head, self.log.header
        return head is None or head.file == header.first_seq or is_next(header, head)

    @property
    def known_seq(self) -> int:
        """Return up to which event this boot knows of the log."""
        promised = self.promise.seq if self.promise else 0
        return max(promised, self.head.seq if self.head else 0)
