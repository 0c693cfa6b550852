"""Keep a fork of the worker's main process away from a recovery that talks to the broker.

The pool forks a new child in the main thread whenever it lost one, and recovery runs in a thread beside it. A lock that
this thread holds at that instant (of an import, of a client library) would be copied locked into the child, for ever.
Our own locks mind forks; others' are kept out of the instant: the fork waits for the broker call that is under way.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class ForkGate:
    """Let either forks happen or one broker call of recovery, never both."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        os.register_at_fork(
            before=self._close, after_in_parent=self._open, after_in_child=self._remake
        )

    @contextmanager
    def passed(self) -> Iterator[None]:
        """Hold forks back for a block; keep it short."""
        with self._lock:
            yield

    def _close(self) -> None:
        self._lock.acquire()

    def _open(self) -> None:
        self._lock.release()

    def _remake(self) -> None:
        self._lock = threading.RLock()


fork_gate = ForkGate()
