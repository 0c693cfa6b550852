"""Write events at the end of the log, one writer at a time among all processes.

Everything that can be made before the lock is made before it. Under the lock: read the head from
``control``, compare the file's size with it, chain the lines, one ``write``, publish the new
head. Whatever interrupts that (a kill, an exception at any bytecode) leaves a file whose size is
not the head's, and the next writer of any process settles it first: see settle.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from hashlib import sha256
from typing import TypeVar

from ..control import Head, Promise
from ..errors import Fenced, LogUnavailable
from ..events import format_timestamp
from ..files import Opened
from .claim import Claim, outlast
from .drafts import FENCED, Draft, Written
from .index import Index
from .locks import Patience
from .poison import poison
from .session import Handles, Session
from .settle import Sealed, Settler
from .shield import shielded

T = TypeVar("T")

_LOOKS_OUTSIDE_THE_LOCK = 2
_YIELDS = 4


class Appender:
    """Append drafts for all threads of one process."""

    def __init__(
        self, session: Session, index: Index, *, lock_seconds: float, strict: bool = False
    ) -> None:
        self._session = session
        self._files = session.files
        self._index = index
        self._now = session.now
        self._lock_seconds = lock_seconds
        self._settler = Settler(session, self._write, strict=strict)
        self.forget()

    def forget(self) -> None:
        """Remake what a fork may have copied in the middle of its use."""
        self._claim = Claim()
        self._held: Opened | None = None

    @property
    def promise(self) -> Promise:
        """Return how far the log was on disk when this process last looked under the lock."""
        return self._settler.promise

    def append(self, drafts: Sequence[Draft]) -> Written:
        """Write all drafts in one go; after this they survive the process, not yet a power cut.

        Raises:
            Fenced: a newer token owns the run of an owner's event; nothing was written.
            LockTimeout: another process held the lock too long.
            LogCorrupt, LogMoved, LogPoisoned, LogUnavailable: the log cannot take events now.
        """
        is_owners = any(each.new.token is not None for each in drafts)
        for _ in range(_LOOKS_OUTSIDE_THE_LOCK):
            if is_owners:
                self._refuse_fenced(drafts)  # what must be read for it is read without the lock
            written = self.under_lock(partial(self._append, drafts, is_owners))
            if written is not None:
                return written
            self._index.catch_up()  # new fences: most of the reading is done without the lock
        return self.under_lock(partial(self._append_looking, drafts))

    def stop(self) -> None:
        """Let nobody of this process append any more, after whoever does so now."""
        outlast(self._claim, Patience(self._files, self._lock_seconds), self._session.path)

    def settle(self) -> Head:
        """Make the file and ``control`` agree, as the first append would; return the head."""
        return self.under_lock(self._settler.settle)

    def repair(self, by: str) -> Head:
        """Settle, and cut what is torn at a person's word where nobody does so by himself; return the head."""
        return self.under_lock(lambda handles: self._settler.by_hand(handles, by))

    def head(self, handles: Handles) -> Head:
        """Return the settled head; only under the lock, for work that is done there."""
        return self._settler.settle(handles)

    def under_lock(self, work: Callable[[Handles], T]) -> T:
        """Run `work` while no other thread or process writes; the lock is given back whatever happens."""
        if self._claim.is_mine():
            raise LogUnavailable(self._session.path, "a handler interrupted an append and appends")
        handles = self._session.handles()
        patience: Patience | None = None
        while not (results := shielded(partial(self._try, handles, work, patience is not None))):
            patience = patience or Patience(self._files, self._lock_seconds, yields=_YIELDS)
            patience.nap(handles.append_lock, self._files.lock_holder)
            handles = self._session.current() or self._session.handles()
        return results[0]

    def _try(
        self, handles: Handles, work: Callable[[Handles], T], has_waited: bool
    ) -> tuple[T] | tuple[()]:
        """Run `work` if the lock is free now; after a wait the handles are looked at again.

        An exception may strike at any point of this, so giving back is done twice, and the first time
        is allowed to be cut short anywhere.
        """
        try:
            try:
                if not self._claim.take():
                    return ()
                if has_waited and not handles.append_lock.is_intact():
                    self._session.drop()
                    return ()
                self._held = handles.append_lock
                if not self._files.try_lock(handles.append_lock.fd):
                    self._held = None
                    return ()
                if has_waited and self._session.handles() is not handles:
                    return ()
                return self._do(handles, work)
            finally:
                self._give_back()
        finally:
            self._give_back()

    def _do(self, handles: Handles, work: Callable[[Handles], T]) -> tuple[T] | tuple[()]:
        """Run `work`, or follow the log into its next file first.

        Apart from `_try`: the bytecode that enters a `try` inside another one is covered by neither.
        """
        try:
            return (work(handles),)
        except Sealed:
            self._session.follow(handles)
            return ()

    def _give_back(self) -> None:
        if self._claim.is_mine():
            if self._held is not None:
                self._files.unlock(self._held.fd)
                self._held = None
            self._claim.give_back()

    def _append(self, drafts: Sequence[Draft], is_owners: bool, handles: Handles) -> Written | None:
        head = self._settler.settle(handles)
        if is_owners:
            if head.fenced > self._index.seen_seq:
                return None
            self._refuse_fenced(drafts)
        return self._write(handles, head, drafts)

    def _append_looking(self, drafts: Sequence[Draft], handles: Handles) -> Written:
        head = self._settler.settle(handles)
        self._index.catch_up(head)
        self._refuse_fenced(drafts)
        return self._write(handles, head, drafts)

    def _refuse_fenced(self, drafts: Sequence[Draft]) -> None:
        for each in drafts:
            run_id, token = each.new.run_id, each.new.token
            if token is not None and run_id is not None:
                fence = self._index.fence(run_id)
                if fence > token:
                    raise Fenced(run_id, token, fence)

    def _write(self, handles: Handles, head: Head, drafts: Sequence[Draft]) -> Written:
        """Chain the drafts to `head`, write them, publish the new head."""
        written, data = self.chain(head, drafts)
        self.put(handles, head, data)
        handles.control.publish_head(written.after)
        return written

    def chain(self, head: Head, drafts: Sequence[Draft]) -> tuple[Written, bytes]:
        """Return what writing the drafts behind `head` will come to, and their lines."""
        stamp = max(format_timestamp(self._now()), head.timestamp)
        seq, hash_, offset, fenced = head.seq, head.hash, head.size, head.fenced
        hashes, offsets, lines = [], [], []
        for each in drafts:
            seq += 1
            rest = each.front + stamp + each.back
            hash_ = sha256(hash_ + rest).hexdigest().encode("ascii")
            line = b"%b%b\n" % (hash_, rest)
            hashes.append(hash_)
            offsets.append(offset)
            lines.append(line)
            offset += len(line)
            if each.new.type == FENCED:
                fenced = seq
        after = Head(seq, hash_, offset, stamp, fenced, head.file)
        return Written(head, after, hashes, offsets), b"".join(lines)

    def put(self, handles: Handles, head: Head, data: bytes) -> None:
        """Write lines behind `head`, all of them or none; the new head is the caller's to publish.

        Raises:
            LogUnavailable: the disk did not take them.
        """
        try:
            taken = self._files.append(handles.log.fd, data)
            while taken < len(data):
                taken += self._files.append(handles.log.fd, data[taken:])
        except OSError as error:
            self._cut_back(handles, head)
            raise LogUnavailable(self._session.path, f"a write failed: {error.strerror}") from error

    def _cut_back(self, handles: Handles, head: Head) -> None:
        """Leave no part of a failed write behind; if that fails too, leave a mark that it must never count.

        It is synced, or a power cut could bring back events of which the caller is told that they were not written.
        """
        try:
            self._files.truncate(handles.log.fd, head.size)
        except OSError:
            handles.control.publish_head(head._replace(dirty=True))
            return
        try:
            self._files.sync(handles.log.fd)
        except OSError as error:
            raise poison(self._session, handles, self.promise.seq, error) from error
