"""Name what is kept of the lines whose files were compacted away."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class StoredLine(NamedTuple):
    """Hold one event as it is stored, without its LF, with the hash (64 hex bytes) it was chained to."""

    seq: int
    previous: bytes
    line: bytes
    file: int
    offset: int


class Retained(Protocol):
    """Keep the lines of runs whose files were compacted away."""

    def lines(self, run_id: str) -> list[StoredLine]:
        """Return the lines of a run that are kept, in order; none for a run that is not known."""

    def fence(self, run_id: str) -> int:
        """Return the highest fencing token of a run, finished or not, in what is gone; 0 without one."""
