"""Hold what was observed until the writer takes it: bounded, without a lock that a task could meet.

A task's thread only ever calls `put`. SimpleQueue's put is one step of C code: a signal handler's exception cannot
strike inside it, and no Python lock is taken that a fork could copy in its locked state.
"""

from __future__ import annotations

import itertools
import threading
import time
from queue import Empty, SimpleQueue

from .observations import Observation


class Drops:
    """Count what was dropped, exactly, without a lock in the thread that drops."""

    def __init__(self) -> None:
        self._counter = itertools.count()
        self._reads = 0
        self._lock = threading.Lock()  # between readers; a thread that drops never takes it
        self._since: float | None = None
        self._until = 0.0
        self._reported = 0

    def note(self) -> None:
        """Count one; called by whichever thread found the queue full."""
        now = time.time()
        if self._since is None:
            self._since = now
        self._until = now
        next(self._counter)

    def total(self) -> int:
        """Return how many were dropped in this process."""
        with self._lock:
            total = next(self._counter) - self._reads
            self._reads += 1
        return total

    def owed(self) -> tuple[int, float, float] | None:
        """Return (count, since, until) of what no event in the log tells yet, or None."""
        if self._since is None:
            return None
        count = self.total() - self._reported
        return (count, self._since, self._until) if count else None

    def settle(self, count: int) -> None:
        """Hear that an event tells of `count` drops now."""
        self._reported += count
        self._since = None if self.total() == self._reported else self._until


class Backlog:
    """Queue observations of one process up to a bound, which threads that put at one instant may exceed by one each."""

    def __init__(self, limit_events: int) -> None:
        self.limit_events = limit_events
        self.drops = Drops()
        self.taken: list[Observation] = []
        """What the writer holds and has not written; they count against the bound."""
        self._queue: SimpleQueue[Observation | None] = SimpleQueue()
        self._qsize = self._queue.qsize
        self._put = self._queue.put

    def __len__(self) -> int:
        return self._qsize() + len(self.taken)

    def put(self, seen: Observation) -> None:
        """Take one in, or drop and count it; never waits."""
        if self._qsize() + len(self.taken) >= self.limit_events:
            self.drops.note()
        else:
            self._put(seen)

    def wake(self) -> None:
        """Have the writer's wait end."""
        self._put(None)

    def wait(self) -> None:
        """Wait until there is something, or somebody called wake."""
        if not self.taken and (first := self._queue.get()) is not None:
            self.taken.append(first)

    def fill(self, events: int) -> None:
        """Have the writer hold up to `events` of what is here; the oldest first."""
        try:
            while len(self.taken) < events:
                seen = self._queue.get_nowait()
                if seen is not None:
                    self.taken.append(seen)
        except Empty:
            pass

    @property
    def oldest_at(self) -> float | None:
        """Return when the oldest that the writer holds was seen; None when it holds nothing."""
        taken = self.taken
        return taken[0].at if taken else None
