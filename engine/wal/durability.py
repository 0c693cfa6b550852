"""Make written events durable, once for everybody who waits.

As PostgreSQL's XLogFlush does it: whoever gets ``sync.lock`` syncs everything that any process
has written so far, and publishes how far that was; the others find their event covered and go on.

Those who go on write their next event soon, and a leader that syncs at once would leave them all to
the next sync. So while it has company, a leader waits for as many events as came last time, for at
most half as long as a sync takes (PostgreSQL's commit_delay, measured instead of set). Who writes
alone never waits. It pays where a sync is slow; a fast one is not waited with.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from ..control import NOTHING, Head, Promise
from ..errors import LogError, LogMoved, LogPoisoned
from ..events import COUNT_MAX
from ..files import Opened, all_intact
from .claim import Claim, outlast
from .locks import NAP_SECONDS_MIN, Patience
from .poison import poison
from .session import Handles, Session
from .shield import shielded, start_deaf

T = TypeVar("T")

_COMPANY_SYNCS = 8
"""For how many syncs a leader believes that it is not alone, after others last wrote or made it wait."""
_GATHER_SHARE = 0.5
_GATHER_SECONDS_MAX = 2e-3
_GATHER_SYNC_SECONDS_MIN = 0.3e-3
"""A nap takes 0.1 ms: before a sync that takes not much longer it would only delay it."""


class Durability:
    """Wait for the disk on behalf of all threads of one process."""

    def __init__(self, session: Session, *, lock_seconds: float) -> None:
        self._session = session
        self._files = session.files
        self._lock_seconds = lock_seconds
        self.promise = NOTHING
        self._sync_seconds = 0.0
        self._usual_seconds = 0.0
        self.forget()

    def forget(self) -> None:
        """Remake what a fork may have copied in the middle of its use."""
        self._claim = Claim()
        self._held: Opened | None = None
        self._company = 0
        self._crowd = 0

    def stop(self) -> None:
        """Let nobody of this process sync any more, after whoever does so now."""
        outlast(self._claim, Patience(self._files, self._lock_seconds), self._session.path)

    def expect_company(self) -> None:
        """Hear that others write too, so that waiting for them may pay."""
        self._company = _COMPANY_SYNCS

    def wait(self, seq: int, handles: Handles | None = None) -> None:
        """Return once event `seq` is on disk; `handles` are those it was just written through.

        Raises:
            LockTimeout: somebody else was syncing for too long; the event may yet become durable.
            LogPoisoned: a sync failed; nobody may say that the event is durable.
        """
        handles = handles or self._session.open_handles()
        if self._leads(handles, seq):
            return
        self.expect_company()
        began = self._files.seconds()
        patience = Patience(self._files, self._lock_seconds, usual_seconds=self._usual_seconds)
        while True:
            patience.nap(handles.sync_lock, self._files.lock_holder)
            handles = self._session.current() or self._session.open_handles()
            if self._covers(handles.control.read()[1], seq):
                break  # found without a lock, as almost everybody does whom another one served
            if self._leads(handles, seq):
                break
        spent = self._files.seconds() - began
        self._usual_seconds += (spent - self._usual_seconds) / 4

    def _covers(self, promise: Promise | None, seq: int) -> bool:
        if promise is None:
            return False
        self.promise = promise
        if promise.seq >= seq:
            return True
        if promise.poisoned:
            raise LogPoisoned(self._session.path, "a sync failed, see POISONED beside it")
        return False

    def hold(self, work: Callable[[], T]) -> T:
        """Sync all that is written, then run `work` before anybody can sync again.

        Raises:
            LockTimeout: somebody else was syncing for too long.
            LogPoisoned: a sync failed.
        """
        patience = Patience(self._files, self._lock_seconds)
        while True:
            handles = self._session.handles()
            results = shielded(partial(self._locked, handles, partial(self._hold, handles, work)))
            if results:
                return results[0]
            patience.nap(handles.sync_lock, self._files.lock_holder)

    def _hold(self, handles: Handles, work: Callable[[], T]) -> T:
        self._sync_all(handles, COUNT_MAX)
        return work()

    def _leads(self, handles: Handles, seq: int) -> bool:
        """Sync for everybody if nobody does so now; tell whether `seq` is covered."""
        results = shielded(partial(self._locked, handles, partial(self._sync_all, handles, seq)))
        return bool(results and results[0])

    def _locked(self, handles: Handles, work: Callable[[], T]) -> tuple[T] | tuple[()]:
        """Run `work` under ``sync.lock`` if that is free now.

        One thread of a process at a time: threads share the descriptor, so the lock does not divide
        them. An exception may strike anywhere, so giving back is tried twice.
        """
        try:
            try:
                if not self._claim.take():
                    return ()
                if not all_intact((handles.log, handles.sync_lock)):
                    if self._session.current() is handles:
                        self._session.drop()  # a promise for another file would be a lie
                    return ()
                self._held = handles.sync_lock
                if not self._files.try_lock(handles.sync_lock.fd):
                    self._held = None
                    return ()
                return (work(),)
            finally:
                self._give_back()
        finally:
            self._give_back()

    def _give_back(self) -> None:
        if self._claim.is_mine():
            if self._held is not None:
                self._files.unlock(self._held.fd)
                self._held = None
            self._claim.give_back()

    def _sync_all(self, handles: Handles, seq: int) -> bool:
        head, promise = handles.control.read_settled()
        if self._covers(promise, seq):
            return True
        if head is not None and head.file != handles.file:
            if self._session.current() is handles:
                self._session.drop()  # it was sealed since; what comes after it is in another file
            return False
        if self._company and head is not None:
            head = self._gathered(handles, head, promise.seq if promise else 0)
        target = head.seq if head is not None else seq
        began = self._files.seconds()
        try:
            self._files.sync_meanwhile(handles.log.fd)
        except OSError as error:
            known = promise.seq if promise else 0
            raise poison(self._session, handles, known, error) from error
        self._sync_seconds = self._files.seconds() - began
        promise = handles.control.read()[1]
        if promise is not None and promise.poisoned:  # by an append, which syncs without this lock
            return self._covers(promise, seq)
        self.promise = (promise or NOTHING)._replace(seq=max(target, promise.seq if promise else 0))
        handles.control.publish_promise(self.promise)
        return target >= seq

    def _gathered(self, handles: Handles, head: Head, durable: int) -> Head:
        """Return the head once as many events wait as last time, or after half a sync's time."""
        self._company -= 1
        if self._sync_seconds < _GATHER_SYNC_SECONDS_MIN:
            return head
        seconds = min(self._sync_seconds * _GATHER_SHARE, _GATHER_SECONDS_MAX)
        deadline = self._files.seconds() + seconds
        while head.seq - durable < self._crowd and self._files.seconds() < deadline:
            self._files.nap(NAP_SECONDS_MIN)
            fresh = handles.control.read_settled()[0]
            if fresh is not None and fresh.file == handles.file:
                head = fresh  # in another file it would not be what is synced here
        self._crowd = max(head.seq - durable, self._crowd - 1 - self._crowd // 8)
        return head


class Flusher:
    """Sync what nobody waits for, within a bounded time, from a thread that is started on first use."""

    def __init__(self, durability: Durability, *, flush_seconds: float) -> None:
        self._durability = durability
        self._flush_seconds = flush_seconds
        self.forget()

    def forget(self) -> None:
        """Forget the parent's thread; a child of a fork starts its own."""
        self._written = 0
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
        self._closing = threading.Event()

    def note(self, seq: int) -> None:
        """Have `seq` synced within flush_seconds."""
        self._written = max(self._written, seq)
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(
                target=self._run, args=(self._wake, self._closing), name="wal-flusher", daemon=True
            )
            start_deaf(self._thread)
        if not self._wake.is_set():
            self._wake.set()

    def close(self) -> None:
        """End the thread; what it had not synced yet is the closer's to sync."""
        self._closing.set()
        self._wake.set()
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        self.forget()

    def _run(self, wake: threading.Event, closing: threading.Event) -> None:
        while True:
            wake.wait()
            if closing.wait(self._flush_seconds):
                return
            wake.clear()
            if closing.is_set():  # set just before the clear, which would have swallowed the call
                return
            written = self._written
            if written <= self._durability.promise.seq:
                continue
            try:
                self._durability.wait(written)
            except (LogMoved, LogPoisoned):
                return  # whoever waits or writes next is told
            except LogError:
                wake.set()  # a lock that was busy, or no descriptor left: try again
