"""Remember what the log is owed until it can be told: runs that went by unrecorded, runs that were never sent."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from celery_commander.engine import CommanderError

if TYPE_CHECKING:
    from .install import Commander

logger = logging.getLogger(__name__)

TRY_AGAIN_SECONDS = 0.25


class Owed:
    """Write events at the first chance, from a thread that lives as long as something is owed.

    A process that dies before loses its notes: such a run looks lost, and is run again.
    """

    def __init__(self, commander: Commander) -> None:
        self._commander = commander
        self._owed: deque[tuple[str, str, dict[str, Any]]] = deque()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def note(self, run_id: str, event_type: str, data: dict[str, Any]) -> None:
        """Note one event of a run; nothing is waited for."""
        with self._lock:
            self._owed.append((run_id, event_type, data))
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._write_all, name="commander-owed", daemon=True
                )
                self._thread.start()

    def _write_all(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        while True:
            with self._lock:
                if not self._owed:
                    self._thread = None
                    return
                run_id, event_type, data = self._owed[0]
            try:
                # Written is enough: who waits and is refused would write it again.
                self._commander.engine.append(event_type, data, run_id=run_id, wait=False)
            except CommanderError:
                time.sleep(TRY_AGAIN_SECONDS)
                continue
            logger.warning("The log was away; it says of run %s by now: %s.", run_id, event_type)
            with self._lock:
                self._owed.popleft()
