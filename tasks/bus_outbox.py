"""Keep what is to be told until the broker takes it: bounded, in order, and in nobody's way.

A thread delivers. It starts with the first message and ends when nothing is left, and it talks to the broker in bursts,
each with a connection of its own behind the fork gate: so no connection of ours, and no lock of a client library, is
ever copied into a child of the pool. What is undelivered when its process is killed is lost: the log has it, the bus
only tells of it.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from .gate import fork_gate

logger = logging.getLogger(__name__)

LINGER_SECONDS = 0.02
"""How long a burst waits for company: a connection for each message would cost more than the messages."""

BURST = 100
"""The most messages of one connection; forks of the pool wait as long as a burst takes."""

FIRST_PAUSE_SECONDS = 0.25
LONGEST_PAUSE_SECONDS = 15.0
HURRIED_PAUSE_SECONDS = 0.1

TRIES = 10
"""How often a broker that is there may refuse one message before it is dropped: it must not block all others."""

Send = Callable[[str, str], object]


@dataclass(slots=True)
class Letter:
    """One message under its routing key."""

    key: str
    body: str
    refused: int = 0


class Outbox:
    """Deliver letters in order through `open_post`, which gives a function that sends one."""

    def __init__(self, open_post: Callable[[], AbstractContextManager[Send]]) -> None:
        self._open_post = open_post
        self._letters: deque[Letter] = deque()
        self._in_flight: Letter | None = None
        self._changed = threading.Condition(threading.Lock())
        self._hurry = threading.Event()
        self._thread: threading.Thread | None = None
        self._abandoned = False
        self._dropped = 0
        self._last_error: str | None = None

    def put(self, key: str, body: str, *, limit: int) -> None:
        """Take one letter; beyond `limit` waiting ones the oldest is dropped and counted."""
        with self._changed:
            while len(self._letters) >= limit:
                self._letters.popleft()
                self._dropped += 1
            self._letters.append(Letter(key, body))
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="commander-bus", daemon=True)
                thread.start()
                self._thread = thread

    def note_dropped(self, why: str) -> None:
        """Count a message that could not even be packed."""
        with self._changed:
            self._dropped += 1
            self._last_error = why

    def facts(self) -> dict[str, int | str | None]:
        """Return how many letters wait, how many were dropped, and why the last attempt failed, if it did."""
        with self._changed:
            return {
                "undelivered": self._waiting(),
                "dropped": self._dropped,
                "last_error": self._last_error,
            }

    def flush(self, seconds: float) -> bool:
        """Wait, within a bound, until everything is delivered; return whether it is. Pauses end meanwhile."""
        self._hurry.set()
        try:
            with self._changed:
                return self._changed.wait_for(lambda: not self._waiting(), timeout=seconds)
        finally:
            self._hurry.clear()

    def abandon(self) -> None:
        """Give up what is left and let the thread end; nothing may be put any more."""
        self._abandoned = True
        self._hurry.set()

    def _waiting(self) -> int:
        return len(self._letters) + (self._in_flight is not None)

    def _run(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        pause_seconds = FIRST_PAUSE_SECONDS
        while not self._retire():
            self._hurry.wait(LINGER_SECONDS)
            try:
                with fork_gate.passed(), self._open_post() as send:
                    self._send_burst(send)
            except Exception as error:  # noqa: BLE001  # whatever the broker's client raises: try again later
                self._failed(error)
                self._pause(pause_seconds)
                pause_seconds = min(2 * pause_seconds, LONGEST_PAUSE_SECONDS)
            else:
                self._went_well()
                pause_seconds = FIRST_PAUSE_SECONDS

    def _retire(self) -> bool:
        """Return whether nothing is left to do; the next letter then starts another thread."""
        with self._changed:
            if self._abandoned or not self._waiting():
                self._thread = None
            return self._thread is None

    def _send_burst(self, send: Send) -> None:
        for _ in range(BURST):
            with self._changed:
                if not self._letters:
                    return
                letter = self._in_flight = self._letters.popleft()
            letter.refused += 1
            send(letter.key, letter.body)
            with self._changed:
                self._in_flight = None
                self._changed.notify_all()

    def _failed(self, error: Exception) -> None:
        why = f"{type(error).__name__}: {str(error)[:200]}"
        with self._changed:
            is_news, self._last_error = self._last_error != why, why
            letter, self._in_flight = self._in_flight, None
            if letter is not None and letter.refused < TRIES:
                self._letters.appendleft(letter)
            elif letter is not None:
                self._dropped += 1
            self._changed.notify_all()
        if is_news:
            logger.warning("The bus cannot deliver now and goes on trying: %s", why)

    def _went_well(self) -> None:
        with self._changed:
            self._last_error = None

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        if self._hurry.wait(seconds):
            time.sleep(max(0.0, min(HURRIED_PAUSE_SECONDS, until - time.monotonic())))
