"""Make the file and ``control`` agree again before anything is written.

``control`` of this boot is the truth about what was published: a shorter file was cut from
outside, and a longer one holds what a killed writer could not publish any more. Such bytes are
rolled forward if they verify, and set aside if not. Without a ``control`` of this boot the whole
file is read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..chain import LINE_BYTES_MAX
from ..control import NOTHING, Head, Promise
from ..errors import LogCorrupt, LogMoved, LogPoisoned
from ..events import NewEvent
from ..ids import new_event_id
from .drafts import REPAIRED, Draft, Written, draft
from .poison import poison
from .repair import Break, Scan, facts_of, finish, scan, set_aside, start_of, unfinished
from .session import Handles, Session

_NOTE_BYTES_MAX = 4096

Write = Callable[[Handles, Head, Sequence[Draft]], Written]


class Settler:
    """Derive the head that the next event is chained to; always called under ``append.lock``."""

    def __init__(self, session: Session, write: Write) -> None:
        self._session = session
        self._files = session.files
        self._write = write
        self.promise = NOTHING
        self._has_opened = False

    def settle(self, handles: Handles) -> Head:
        """Return the head, after repairing what the last writer may have left.

        Raises:
            LogCorrupt: bytes that were durable do not verify; nothing is changed.
            LogMoved: the file is shorter than what was published.
            LogPoisoned: a sync failed, in whatever process.
        """
        head = self._agreed(handles)
        if not self._has_opened:
            head = self._open(handles, head)
            self._has_opened = True
        return head

    def _agreed(self, handles: Handles) -> Head:
        head, promise = handles.control.read()
        if promise is not None:
            self.promise = promise
            if promise.poisoned:
                raise LogPoisoned(self._session.path, "a sync failed, see POISONED beside it")
        if head is None:
            return self._derive(handles, promise)
        size = self._files.size(handles.log.fd)
        if size == head.size and not head.dirty:
            return head
        if size < head.size:
            raise LogMoved(self._session.path, f"it was cut from {head.size} to {size} bytes")
        return self._settle_tail(handles, head, size)

    def _open(self, handles: Handles, head: Head) -> Head:
        """Compare the last line, and note repairs that were killed before their event."""
        self._refuse_another_tail(handles, head)
        for name in unfinished(self._session.layout):
            head = self._note(handles, head, name, "a repair was interrupted")
        return head

    def _refuse_another_tail(self, handles: Handles, head: Head) -> None:
        # An old copy that was put back may have the right size; its last hash is another.
        start = max(0, head.size - LINE_BYTES_MAX - 1)
        tail = self._files.read(handles.log.fd, head.size - start, start)
        line = tail[tail.rfind(b"\n", 0, -1) + 1 :]
        if head.seq >= self._session.header.first_seq and not line.startswith(head.hash):
            raise LogMoved(self._session.path, "its last event is not the one that was published")

    def _derive(self, handles: Handles, promise: Promise | None) -> Head:
        found = scan(self._files, handles.log.fd, start_of(self._session.header))
        known = max(found.durable, promise.seq if promise else 0)
        self._refuse_corrupt(found, known)
        if found.head.seq < known:
            raise LogMoved(self._session.path, f"it ends at {found.head.seq}, {known} was durable")
        self._sync(handles)
        if promise is None:
            self.promise = Promise(found.head.seq)
            handles.control.publish_promise(self.promise)
        return self._finish(handles, found)

    def _settle_tail(self, handles: Handles, head: Head, size: int) -> Head:
        if head.dirty:
            broken = Break(head.seq + 1, head.size, "a failed write that could not be cut back")
            clean = head._replace(dirty=False)
            return self._finish(handles, Scan(clean, 0, broken if size > head.size else None))
        found = scan(self._files, handles.log.fd, head)
        self._refuse_corrupt(found, max(found.durable, self.promise.seq))
        return self._finish(handles, found)

    def _refuse_corrupt(self, found: Scan, known: int) -> None:
        broken = found.broken
        if broken is not None and broken.seq <= known:
            reason = f"{broken.reason}, although event {known} was durable"
            raise LogCorrupt(broken.seq, self._session.path, broken.offset, reason)

    def _finish(self, handles: Handles, found: Scan) -> Head:
        if found.broken is None:
            handles.control.publish_head(found.head)
            return found.head
        name = set_aside(self._files, self._session.layout, handles.log.fd, found.broken)
        self._files.truncate(handles.log.fd, found.head.size)
        handles.control.publish_head(found.head)
        return self._note(handles, found.head, name, found.broken.reason)

    def _note(self, handles: Handles, head: Head, name: str, reason: str) -> Head:
        """Append ``wal.repaired`` durably; only then is the repair finished."""
        layout = self._session.layout
        new = NewEvent(REPAIRED, {**facts_of(self._files, layout, name), "reason": reason})
        id_ = new_event_id(self._session.now())
        note = draft(new, id_, durable=self.promise.seq, bytes_max=_NOTE_BYTES_MAX)
        written = self._write(handles, head, [note])
        self._sync(handles)
        finish(self._files, layout, name)
        return written.after

    def _sync(self, handles: Handles) -> None:
        try:
            self._files.sync(handles.log.fd)
        except OSError as error:
            raise poison(self._session, handles, self.promise.seq, error) from error
