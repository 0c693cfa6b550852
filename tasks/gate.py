"""Keep a fork of the worker's main process away from a thread that talks to the broker.

The pool forks a new child in the main thread whenever it lost one, and recovery and the bus run in threads beside it. A
lock that such a thread holds at that instant (of an import, of a client library) would be copied locked into the child,
for ever. Our own locks mind forks; others' are kept out of the instant: the fork waits for the broker calls that are
under way. The threads do not wait for each other: a bus without its broker holds no recovery up.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class ForkGate:
    """Let either forks happen or broker calls, never both; calls of several threads may overlap."""

    def __init__(self) -> None:
        self._remake()
        os.register_at_fork(
            before=self._close, after_in_parent=self._open, after_in_child=self._remake
        )

    @contextmanager
    def passed(self) -> Iterator[None]:
        """Hold forks back for a block; keep it short. A block inside a block is fine."""
        me = threading.get_ident()
        with self._changed:
            self._changed.wait_for(lambda: not self._forks or me in self._inside)
            self._inside[me] = self._inside.get(me, 0) + 1
        try:
            yield
        finally:
            with self._changed:
                self._inside[me] -= 1
                if not self._inside[me]:
                    del self._inside[me]
                self._changed.notify_all()

    def _close(self) -> None:
        me = threading.get_ident()
        with self._changed:
            self._forks += 1
            self._changed.wait_for(lambda: not self._inside.keys() - {me})

    def _open(self) -> None:
        with self._changed:
            self._forks -= 1
            self._changed.notify_all()

    def _remake(self) -> None:
        self._changed = threading.Condition()
        self._inside: dict[int, int] = {}
        self._forks = 0


fork_gate = ForkGate()
