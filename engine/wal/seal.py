"""Seal the active file once it is large or old, or when asked, while everybody goes on appending.

The long work is done without a lock: hashing the file up to the head, which never changes again.
Then ``sync.lock`` is taken and what was written is synced, while others append; only for the last
line, whose sync is short, and the switch of the files is ``append.lock`` held as well. So the order is
``seal.lock``, ``sync.lock``, ``append.lock``; nobody takes them the other way round. As the promise is
published before the switch, who waits for an event of the sealed file is served by it.
"""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import timedelta
from functools import partial
from hashlib import sha256

from ..chain import first_stamp
from ..control import Head, Promise
from ..errors import LogError, LogUnavailable
from ..events import NewEvent, format_timestamp, read_timestamp
from ..files import Opened
from ..ids import new_event_id
from .append import Appender
from .drafts import SEALED, Draft, draft
from .durability import Durability
from .locks import Patience
from .poison import poison
from .session import Handles, Session
from .succession import Digest, feed, put_in_place, tidy, write_next

_NEVER = b"9999-12-31T23:59:59.999999Z"
_NOTE_BYTES_MAX = 4096
_REST_SECONDS = 1.0
_FRONT_BYTES = 512


class Sealer:
    """Seal for all threads of one process."""

    def __init__(
        self,
        session: Session,
        appender: Appender,
        durability: Durability,
        *,
        segment_bytes: int,
        segment_seconds: float,
        lock_seconds: float,
    ) -> None:
        self._session = session
        self._files = session.files
        self._appender = appender
        self._durability = durability
        self._segment_bytes = segment_bytes
        self._segment_seconds = segment_seconds
        self._lock_seconds = lock_seconds
        self._due_file, self._due_at = 0, _NEVER
        self._rests_until = 0.0
        self._held: Opened | None = None

    def forget(self) -> None:
        """Let go of the parent's lock, in the child of a fork."""
        held, self._held = self._held, None
        if held is not None:
            held.close()

    def is_due(self, head: Head) -> bool:
        """Tell whether the file that ends at `head` is large or old enough."""
        if head.file != self._due_file:
            self._look_at(head.file)
        return head.size >= self._segment_bytes or head.timestamp >= self._due_at

    def seal_when_due(self) -> None:
        """Seal unless somebody else does so now; what goes wrong is tried again by later appends.

        It is called after an append that succeeded and must not make it fail. An error that concerns
        appending too is told to the next one who appends.
        """
        if self._files.seconds() < self._rests_until:
            return
        try:
            self._exclusively(is_patient=False)
        except LogError:
            self._rests_until = self._files.seconds() + _REST_SECONDS

    def seal(self) -> bool:
        """Seal now; False when the file holds nothing but what a fresh one starts with.

        Raises:
            LockTimeout: somebody held a lock too long.
            LogCorrupt, LogMoved, LogPoisoned, LogUnavailable: the log cannot take events now, or there is
                no room for another file; then it goes on in the old one.
        """
        return self._exclusively(is_patient=True)

    def _look_at(self, file: int) -> None:
        """Find out from the first event of a file when it will be old."""
        handles = self._session.current()
        if handles is None or handles.file != file:
            return
        front = self._files.read(handles.log.fd, _FRONT_BYTES, len(handles.header.format()))
        stamp = first_stamp(front)
        if stamp is None:
            return
        try:
            due_at = read_timestamp(stamp) + timedelta(seconds=self._segment_seconds)
            self._due_at = format_timestamp(due_at)
        except OverflowError:
            self._due_at = _NEVER
        self._due_file = file

    def _exclusively(self, *, is_patient: bool) -> bool:
        """Seal under ``seal.lock``: others need not hash the same file for nothing."""
        try:
            lock = self._files.open(self._session.layout.seal_lock, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            reason = f"{error.filename} cannot be made: {error.strerror}"
            raise LogUnavailable(self._session.path, reason) from error
        self._held = lock
        try:
            if not self._take(lock, is_patient):
                return False
            try:
                return self._seal(is_due=is_patient)
            finally:
                self._files.unlock(lock.fd)  # a child that was forked meanwhile has a copy of it
        finally:
            self._held = None
            lock.close()

    def _take(self, lock: Opened, is_patient: bool) -> bool:
        patience = Patience(self._files, self._lock_seconds)
        while not self._files.try_lock(lock.fd):
            if not is_patient:
                return False
            patience.nap(lock, self._files.lock_holder)
        return True

    def _seal(self, *, is_due: bool) -> bool:
        head = self._appender.settle()
        handles = self._session.handles()
        if handles.file != head.file or not _is_worth_it(head):
            return False
        if not is_due and not self.is_due(head):
            return False
        digest = sha256()
        feed(digest, self._files, handles.log.fd, end=head.size)
        switch = partial(self._switch, head, digest)
        return self._durability.hold(partial(self._appender.under_lock, switch))

    def _switch(self, hashed: Head, digest: Digest, handles: Handles) -> bool:
        """Write the last line and put the next file into place; under all three locks."""
        head = self._appender.head(handles)
        if head.file != hashed.file:
            return False
        session = self._session
        note = self._note(handles, head)
        written, line = self._appender.chain(head, [note])
        feed(digest, self._files, handles.log.fd, start=hashed.size, end=head.size)
        digest.update(line)
        sealed = written.after._replace(sealed=True)
        try:
            header = write_next(session, handles, sealed, digest=digest.hexdigest())
            self._appender.put(handles, head, line)
        except LogError:
            with suppress(OSError):  # whoever opens or seals next tidies too
                tidy(session, handles)
            raise
        handles.control.publish_head(sealed)
        try:
            self._files.sync(handles.log.fd)
        except OSError as error:
            raise poison(session, handles, self._durability.promise.seq, error) from error
        handles.control.publish_promise(Promise(sealed.seq))
        put_in_place(session, handles, sealed, header)
        return True

    def _note(self, handles: Handles, head: Head) -> Draft:
        data = {
            "first_seq": handles.file,
            "last_seq": head.seq + 1,
            "segment": handles.header.segment,
        }
        id_ = new_event_id(self._session.now())
        durable = self._durability.promise.seq
        return draft(NewEvent(SEALED, data), id_, durable=durable, bytes_max=_NOTE_BYTES_MAX)


def _is_worth_it(head: Head) -> bool:
    """Tell whether a file holds any event besides what a fresh one starts with."""
    return head.seq > max(head.file - 1, 1)
