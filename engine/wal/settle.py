"""Make the file and ``control`` agree again before anything is written.

``control`` of this boot is the truth about what was published: a shorter file was cut from
outside, and a longer one holds what a killed writer could not publish any more. Such bytes are
rolled forward if they verify, and set aside if not. Without a ``control`` of this boot the active
file is read; what its header claims is compared with the last line of the file before it, and the
files before it were on disk before it got its place.

A file whose last line is ``wal.sealed`` takes no more events. Who finds one in the active place puts
the next file there first, whether this boot or an earlier one was interrupted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..chain import split_line
from ..control import NOTHING, Head, Promise
from ..errors import LogCorrupt, LogMoved, LogPoisoned, LogUnavailable
from ..events import NewEvent
from ..ids import new_event_id
from .broken import LogTorn, as_marked
from .damage import Notes
from .drafts import REPAIRED, Draft, Written, draft
from .poison import poison
from .repair import Break, Scan, durable_of, facts_of, finish, scan, set_aside, unfinished
from .segments import (
    is_next,
    last_line,
    last_line_before,
    seals,
    segment_numbers,
    start_of,
)
from .session import Handles, Session
from .succession import drop_copy, first_head, put_in_place, tidy, write_next

_NOTE_BYTES_MAX = 4096

Write = Callable[[Handles, Head, Sequence[Draft]], Written]


class Sealed(Exception):
    """The handles are of a file that was sealed; take fresh ones. Never leaves the appending."""


class Settler:
    """Derive the head that the next event is chained to; always called under ``append.lock``."""

    def __init__(self, session: Session, write: Write, *, strict: bool) -> None:
        self._session = session
        self._strict = strict
        self._by: str | None = None
        self._files = session.files
        self._layout = session.layout
        self._write = write
        self.promise = NOTHING
        self._opened: int | None = None

    def settle(self, handles: Handles) -> Head:
        """Return the head, after repairing what the last writer may have left.

        Raises:
            LogCorrupt: bytes that were durable do not verify; nothing is changed.
            LogBroken: a verification found that, in whatever process.
            LogMoved: the file is shorter than what was published.
            LogTorn: a crash left bytes behind the last event, and they are not cut unasked.
            LogPoisoned: a sync failed, in whatever process.
            Sealed: the active file is another one by now.
        """
        try:
            head = self._agreed(handles)
            if self._opened != handles.file:
                head = self._open(handles, head)
                self._opened = handles.file
        except OSError as error:
            reason = f"what a crash left cannot be put in order: {error.strerror}"
            raise LogUnavailable(self._session.path, reason) from error
        return head

    def by_hand(self, handles: Handles, by: str) -> Head:
        """Return the head as `settle` does; what is torn is cut at a person's word, where nobody does so by himself."""
        self._by = by
        try:
            return self.settle(handles)
        finally:
            self._by = None

    def _agreed(self, handles: Handles) -> Head:
        head, promise = handles.control.read()
        if promise is not None:
            self.promise = promise
            if promise.poisoned:
                raise LogPoisoned(self._session.path, "a sync failed, see POISONED beside it")
            if promise.broken:
                raise as_marked(self._files, self._layout)
        if head is None:
            return self._refuse_sealed(handles, self._derive(handles, promise))
        if head.file != handles.file:
            head = self._enter(handles, head)
        size = self._files.size(handles.log.fd)
        if size == head.size and not head.dirty:
            return self._refuse_sealed(handles, head) if head.sealed else head
        if size < head.size:
            raise LogMoved(self._session.path, f"it was cut from {head.size} to {size} bytes")
        return self._refuse_sealed(handles, self._settle_tail(handles, head, size))

    def _enter(self, handles: Handles, head: Head) -> Head:
        """Publish the file that a killed sealing put into place; whoever comes with the old one is too late."""
        if not is_next(handles.header, head):
            raise Sealed
        self._files.sync_directory(self._layout.active.parent)
        self._files.sync_directory(self._layout.directory)
        head = first_head(handles.header, head)
        handles.control.publish_head(head)
        return head

    def _refuse_sealed(self, handles: Handles, head: Head) -> Head:
        """Finish a sealing that was interrupted after the file's last line.

        Whether the killed one had synced that line is not known, so it is synced again.
        """
        if not head.sealed:
            return head
        self._sync(handles)
        put_in_place(self._session, handles, head, write_next(self._session, handles, head))
        raise Sealed

    def _open(self, handles: Handles, head: Head) -> Head:
        """Compare the last line, and note repairs that were killed before their event."""
        self._refuse_another_tail(handles, head)
        tidy(self._session, handles)
        for name in unfinished(self._files, self._layout):
            head = self._note(handles, head, name, "a repair was interrupted")
        return head

    def _refuse_another_tail(self, handles: Handles, head: Head) -> None:
        # An old copy that was put back may have the right size; its last hash is another.
        line = last_line(self._files, handles.log.fd, head.size)
        if head.seq >= handles.file and not line.startswith(head.hash):
            raise LogMoved(self._session.path, "its last event is not the one that was published")

    def _derive(self, handles: Handles, promise: Promise | None) -> Head:
        if self._files.exists(self._layout.broken):  # it may be newer than these handles
            raise as_marked(self._files, self._layout)
        found = scan(self._files, handles.log.fd, self._start(handles))
        known = max(found.durable, promise.seq if promise else 0)
        self._refuse_corrupt(found, known)
        if found.head.seq < known:
            raise LogMoved(self._session.path, f"it ends at {found.head.seq}, {known} was durable")
        told = durable_of(last_line(self._files, handles.log.fd, found.head.size))
        self.promise = Promise(max(known, told, handles.file - 1))  # should the sync fail
        self._sync(handles)
        self._files.sync_directory(
            self._layout.active.parent
        )  # its maker may have been killed before that
        if promise is None:
            self.promise = Promise(found.head.seq)
            handles.control.publish_promise(self.promise)
        return self._finish(handles, found)

    def _start(self, handles: Handles) -> Head:
        """Return where the active file begins, after comparing its claim with the file before it.

        Where that one is not there (it was compacted, or somebody removed it: verify tells which) the claim
        has to do.

        Raises:
            LogCorrupt: the file before it ends with another event.
            LogMoved: a later file was sealed.
        """
        drop_copy(self._session, handles)
        start = start_of(handles.header)
        line = last_line_before(self._layout, self._files, handles.file)
        if line is None:
            return start
        parts = split_line(line)
        if parts is None or parts.hash != start.hash:
            if self._is_end_lost(start):
                return start
            reason = "its header does not go on where the file before it ends"
            raise LogCorrupt(handles.file, self._session.path, 0, reason)
        return start._replace(timestamp=parts.timestamp)

    def _is_end_lost(self, start: Head) -> bool:
        """Tell whether that the end before `start` is lost was accepted, in the very file that begins here."""
        numbers = [*segment_numbers(self._layout), start.file]
        accepted = Notes(self._layout, self._files).accepted(sorted({*numbers}))
        lost = (each.damage.lost for each in accepted.values())
        hash_ = start.hash.decode("ascii")
        return any(each and (each.last_seq, each.hash) == (start.seq, hash_) for each in lost)

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
        head = found.head
        if head.seq >= handles.file:
            line = last_line(self._files, handles.log.fd, head.size)
            head = head._replace(sealed=seals(line))
        if found.broken is None:
            handles.control.publish_head(head)
            return head
        if self._strict and self._by is None:
            broken = found.broken
            raise LogTorn(self._session.path, broken.seq, broken.offset, broken.reason)
        name = set_aside(self._files, self._layout, handles.log.fd, found.broken)
        self._files.truncate(handles.log.fd, head.size)
        handles.control.publish_head(head)
        if head.sealed:
            return head  # it is noted in the next file, by who opens that
        return self._note(handles, head, name, found.broken.reason)

    def _note(self, handles: Handles, head: Head, name: str, reason: str) -> Head:
        """Append ``wal.repaired`` durably; only then is the repair finished."""
        layout = self._layout
        facts = {**facts_of(self._files, layout, name), "reason": reason}
        new = NewEvent(REPAIRED, facts | ({"by": self._by} if self._by is not None else {}))
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
