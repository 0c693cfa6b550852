"""Read the log for Flower: beside its event loop, within bounds, and without a right to write more than it must.

Where the log belongs to Flower's user, the ledger that the workers keep is asked, and brought up to date first, as the
commands do. Where it does not, or where nothing may be written, a ledger is folded for this process alone in a
temporary folder: the same answers, nothing written beside the log, at the price of reading the log once whole. A
Flower that is killed leaves that folder behind.
"""

from __future__ import annotations

import logging
import os
import signal
import tempfile
import threading
from asyncio import get_running_loop
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from tornado.web import HTTPError

from celery_commander.engine import (
    Database,
    EventSourcingEngine,
    ForeignLog,
    LeaseManager,
    LogError,
    LogMoved,
    LogUnavailable,
    LogUnreadable,
    RunLedger,
    StoreBusy,
    StoreUnavailable,
)

if TYPE_CHECKING:
    from ..install import Commander

T = TypeVar("T")

logger = logging.getLogger(__name__)

THREADS: Final = 2
WAITING_AT_MOST: Final = 32
"""Questions that may wait for an answer; whoever comes then is told to come again."""

FOLDED_AT_MOST: Final = 20_000
"""Events that one page folds before it answers, about a second's; a page says when there are more."""


@dataclass(frozen=True, slots=True)
class Books:
    """What there is to read. `leases` is None where asking for them could write."""

    engine: EventSourcingEngine
    ledger: RunLedger
    leases: LeaseManager | None

    def catch_up(self) -> str | None:
        """Fold what is new, as far as the bound goes; return what is to be said about it, or None."""
        try:
            self.ledger.catch_up(FOLDED_AT_MOST)
            head = self.engine.head()[0]
        except LogError as error:
            return f"The log cannot be read on, so this is how far it could be read: {error}"
        through = self.ledger.folded_through
        unread = head - (through.seq if through else 0)
        # A few more are written while this is asked; they are no news.
        return f"{unread:,} events are not read yet: reload." if unread > FOLDED_AT_MOST else None


class Reader:
    """Answer questions in threads of its own, few at a time; one for a whole Flower."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, "commander-flower", _leave_signals_to_others)
        self._waiting = 0  # touched by the event loop's thread only
        self._lock = threading.Lock()
        self._books: tuple[Commander, Books] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    async def ask(self, question: Callable[[], T]) -> T:
        """Return the answer, or raise what the question raises.

        Raises:
            HTTPError: 503, too many are waiting.
        """
        if self._waiting >= WAITING_AT_MOST:
            raise HTTPError(503, "too many questions to the log are waiting: try again")
        self._waiting += 1
        try:
            return await get_running_loop().run_in_executor(self._threads, question)
        finally:
            self._waiting -= 1

    async def look(self, commander: Commander, question: Callable[[Books], T]) -> T:
        """Return the answer of a question that reads the log.

        Raises:
            HTTPError: as `ask` does.
            LogUnreadable: there is no log, or Flower's user may not read it.
            CommanderError: the log or a database beside it is not usable.
        """
        return await self.ask(lambda: self._look(commander, question))

    def _look(self, commander: Commander, question: Callable[[Books], T]) -> T:
        try:
            return question(self._opened(commander))
        except (ForeignLog, LogMoved):
            with self._lock:
                self._books = None  # another log stands there now: the next question opens it
            raise

    def _opened(self, commander: Commander) -> Books:
        # Asked each time: what is open can be read when it is gone, too.
        ours = may_write(commander)
        with self._lock:
            if self._books is None or self._books[0] is not commander:
                self._books = commander, self._open(commander, ours=ours)
            return self._books[1]

    def _open(self, commander: Commander, *, ours: bool) -> Books:
        if ours:
            try:
                return self._open_shared(commander)
            except StoreBusy:
                raise
            except (LogUnavailable, StoreUnavailable) as error:
                logger.info("Flower reads the log without its ledger: %s", error)
        return self._open_apart(commander)

    def _open_shared(self, commander: Commander) -> Books:
        """Open what the workers use, and see that it can be used."""
        books = Books(commander.engine, commander.ledger, commander.leases)
        try:
            books.ledger.catch_up(1)
        except LogUnavailable:
            raise
        except LogError:
            pass  # what was folded before the log broke may be shown
        return books

    def _open_apart(self, commander: Commander) -> Books:
        """Open the log for reading alone, with a ledger of this process."""
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="commander-flower-")
        settings = commander.engine_settings
        engine = EventSourcingEngine.open(settings, create=False)
        database = Database(Path(self._folder.name, "ledger"), busy_seconds=settings.lock_seconds)
        return Books(engine, RunLedger(database, engine), None)


def may_write(commander: Commander) -> bool:
    """Tell whether the log is this user's own.

    Raises:
        LogUnreadable: there is none, or this user may not look at it. Flower makes no log.
    """
    path = commander.engine_settings.event_sourcing_wal
    try:
        return path.stat().st_uid == os.geteuid()
    except FileNotFoundError as error:
        reason = (
            "it does not exist: no worker of this app has run here, or Flower looks elsewhere than"
            " the workers write (commander_state_directory)"
        )
        raise LogUnreadable(path, reason) from error
    except OSError as error:
        raise LogUnreadable(path, f"{error.strerror} for user {os.geteuid()}") from error


def _leave_signals_to_others() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
