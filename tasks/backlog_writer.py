"""Write a process's observations to the log, in batches, from one thread that starts with the first of them."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from celery_commander.engine import CommanderError, InvalidEvent, NewEvent

from .backlog import Backlog
from .gate import fork_gate
from .observations import event_of, gap_event

logger = logging.getLogger(__name__)

Append = Callable[..., Any]

TRY_AGAIN_SECONDS = 0.1
TRY_AGAIN_SECONDS_MAX = 2.0


class BacklogWriter:
    """Empty a backlog into the log; an outage of the log is waited out, however long it takes.

    Nothing of this is ever called by a task's thread but `ensure_running`.
    """

    def __init__(
        self, backlog: Backlog, append: Append, *, batch_events: int, flush_seconds: float
    ) -> None:
        self.last_error: str | None = None
        self.is_running = False
        self._backlog = backlog
        self._append = append
        self._batch_events = batch_events
        self._flush_seconds = flush_seconds
        self._thread: dict[str, threading.Thread] = {}
        self._closing = threading.Event()
        self._deadline = 0.0
        self._refused = 0

    def ensure_running(self) -> None:
        """Start the thread if there is none; of several threads that ask at one instant one starts it.

        An exception may strike anywhere (a soft time limit): what did not start leaves no place taken.
        """
        if self._closing.is_set():
            self._closing = threading.Event()
        fresh = threading.Thread(target=self._run, name="commander-subscriber", daemon=True)
        try:
            if self._thread.setdefault("", fresh) is fresh:
                fresh.start()
        except BaseException as error:
            if self._thread.get("") is fresh and not fresh.is_alive():
                self._thread.pop("", None)
            if not isinstance(error, RuntimeError):
                raise  # RuntimeError: no thread can be had now; the next observation tries again

    def flush(self, seconds: float) -> int:
        """Write what is here and end the thread, within a bound; return how many observations are left over.

        What is left stays, and is written if this process observes something again.
        """
        if len(self._backlog) or self._backlog.drops.owed():
            self.ensure_running()
        thread = self._thread.get("")
        if thread is not None and thread is not threading.current_thread():
            self._deadline = time.monotonic() + seconds
            self._closing.set()
            self._backlog.wake()
            thread.join(seconds)
        return len(self._backlog)

    def _run(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        if self._thread.get("") is not threading.current_thread():
            return  # its start was cut short, and another one has its place
        self.is_running = True
        closing = self._closing
        try:
            while not closing.is_set():
                self._backlog.wait()
                closing.wait(
                    self._flush_seconds
                )  # company joins: a batch costs little more than one
                self._drain(closing)
        finally:
            self.is_running = False
            self._thread.pop("", None)

    def _drain(self, closing: threading.Event) -> None:
        pause_seconds = TRY_AGAIN_SECONDS
        while True:
            self._backlog.fill(self._batch_events)
            if not self._backlog.taken and self._backlog.drops.owed() is None:
                return
            if self._write(is_last=closing.is_set()):
                pause_seconds = TRY_AGAIN_SECONDS
                continue
            if closing.is_set():
                if time.monotonic() >= self._deadline:
                    return
                time.sleep(TRY_AGAIN_SECONDS)
            else:
                closing.wait(pause_seconds)
                pause_seconds = min(pause_seconds * 2, TRY_AGAIN_SECONDS_MAX)

    def _write(self, *, is_last: bool) -> bool:
        """Append what is held, a gap before it; tell whether the log took it.

        The last batch of a process is waited for: nobody would sync it any more.
        """
        taken = self._backlog.taken
        gap = self._backlog.drops.owed()
        news = [event_of(seen) for seen in taken]
        if gap is not None:
            news.insert(0, gap_event(*gap, self.last_error or "the queue was full"))
        try:
            self._append_all(news, wait=is_last)
        except Exception as error:  # noqa: BLE001  what is observed must not depend on what fails here; it is told and counted
            self._note_failure(error)
            return False
        taken.clear()
        if gap is not None:
            self._backlog.drops.settle(gap[0])
        self._note_success()
        return True

    def _append_all(self, news: Sequence[NewEvent], *, wait: bool) -> None:
        try:
            self._append(news, wait=wait)
        except InvalidEvent:  # one that the log cannot hold must not take the others with it
            for new in news:
                try:
                    self._append([new], wait=wait)
                except InvalidEvent as error:
                    self._backlog.drops.note()
                    self._say("An observation was dropped, the log cannot hold it: %s", error)

    def _note_failure(self, error: Exception) -> None:
        known, self.last_error = self.last_error, type(error).__name__
        if known != self.last_error:
            told = error if isinstance(error, CommanderError) else repr(error)
            self._say("Observations of tasks are not written now; the tasks run on: %s", told)

    def _note_success(self) -> None:
        if self.last_error is not None:
            self.last_error = None
            self._say(
                "Observations of tasks are written again; %s were dropped in this process so far.",
                self._backlog.drops.total(),
            )

    def _say(self, message: str, *arguments: object) -> None:
        """Log, but never while this process forks: the child would get a stream's lock in its locked state."""
        with fork_gate.passed():
            logger.warning(message, *arguments)
