"""Put the parts of a log in a file together for one process and its forks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import islice

from ..chain import PAYLOAD_BYTES_MAX
from ..control import Head
from ..errors import LogError, LogMoved, LogPoisoned, LogUnavailable
from ..events import Event, FreshEvent, NewEvent, Position, read_timestamp
from ..files import Files
from ..forks import at_fork
from ..ids import new_event_ids
from ..latency import LatencyRing
from ..places import refuse_network, refuse_unsafe
from ..settings import Settings
from .accept import Acceptance, Acceptor
from .append import Appender
from .broken import as_marked
from .create import open_existing, open_or_create
from .drafts import Draft, Written, draft
from .durability import Durability, Flusher
from .index import Index
from .kept import Retained
from .layout import Layout
from .marker import Marker
from .mend import Mended, Mender
from .reader import Reader
from .seal import Sealer
from .session import Session
from .standstill import Standstill


class FileLog:
    """Append to and read from one log; usable from every thread, and from children of a fork."""

    def __init__(
        self,
        settings: Settings,
        files: Files,
        *,
        now: Callable[[], datetime],
        boot_id: str,
        create: bool = True,
    ) -> None:
        self.layout = Layout.of(settings.event_sourcing_wal)
        self._now = now
        if create:
            for place in (settings.event_sourcing_wal.parent, settings.state_directory):
                refuse_network(place, files, settings.network_filesystem)
                if settings.strict:
                    refuse_unsafe(place, files)
            header = open_or_create(self.layout, files, now(), settings.lock_seconds)
        else:
            header = open_existing(self.layout, files)
        self.log_id = header.log_id
        self._bytes_max = min(settings.max_payload_bytes, PAYLOAD_BYTES_MAX)
        self._durability_asked = settings.durability
        self._is_strict = settings.strict
        self._session = Session(self.layout, files, log_id=header.log_id, boot_id=boot_id, now=now)
        self.reader = Reader(self.layout, files, log_id=header.log_id, boot_id=boot_id)
        self.index = Index(self.layout, self.reader, lock_seconds=settings.lock_seconds)
        self._appender = Appender(
            self._session, self.index, lock_seconds=settings.lock_seconds, strict=settings.strict
        )
        self._durability = Durability(self._session, lock_seconds=settings.lock_seconds)
        self._flusher = Flusher(self._durability, flush_seconds=settings.flush_seconds)
        self._sealer = Sealer(
            self._session,
            self._appender,
            self._durability,
            segment_bytes=settings.segment_bytes,
            segment_seconds=settings.segment_seconds,
            lock_seconds=settings.lock_seconds,
        )
        still = Standstill(
            self.layout,
            files,
            log_id=header.log_id,
            boot_id=boot_id,
            now=now,
            lock_seconds=settings.lock_seconds,
        )
        self._mender = Mender(still)
        self.marker = Marker(still)
        self.acceptor = Acceptor(still, now)
        self._files = files
        self.latency = LatencyRing(self.layout.latency, boot_id=boot_id, log_id=header.log_id)
        self._written = 0
        self._closed = False
        at_fork(child=self.forget)

    def forget(self) -> None:
        """Start afresh in the child of a fork: nothing that the parent holds is used or given back."""
        for part in (self._session, self.reader, self.index, self._appender, self._durability):
            part.forget()
        self._sealer.forget()
        self._flusher.forget()
        self._written = 0

    def settle(self) -> Head:
        """Repair what a crash left; the first append would do the same."""
        self._notice_fork()
        return self._appender.settle()

    def append(self, news: Sequence[NewEvent], *, wait: bool) -> list[Event]:
        """Append all events in one write, and wait for the disk if asked."""
        self._notice_fork()
        began = self._files.seconds()
        drafts = self._drafts(news)
        written = self._appender.append(drafts)
        if written.before.seq > self._written:
            self._durability.expect_company()
        self._written = max(self._written, written.after.seq)
        if wait and self._durability_asked == "fsync":
            self._durability.wait(written.after.seq, self._session.current())
        elif self._durability_asked != "os":
            self._flusher.note(written.after.seq)
        if wait:
            self.latency.note(written.after.seq, self._files.seconds() - began)
        if self._sealer.is_due(written.after):
            self._sealer.seal_when_due()
        return self._events(drafts, written)

    def sync(self) -> None:
        """Wait until everything that this process wrote is on disk."""
        self._notice_fork()
        if self._written > self._durability.promise.seq:
            self._durability.wait(self._written)

    def read(self, position: Position | None, *, sync: bool) -> Iterator[Event]:
        """Yield the events after `position` that no power cut takes back: `sync` has the disk asked for all, if it can.

        With durability "os" they are all that are written.
        """
        if self._durability_asked == "os":
            return self.reader.read(position)
        if sync:
            with suppress(LogError):
                self._sync_all()
        return self.reader.durable(position)

    def batch(self, position: Position | None, count: int, *, sync: bool) -> list[Event]:
        """Return up to `count` of them."""
        return list(islice(self.read(position, sync=sync), count))

    def _sync_all(self) -> None:
        """Wait until everything that anybody wrote by now is on disk."""
        self._notice_fork()
        head, promise = self.reader.published()
        if head is not None and (promise is None or promise.seq < head.seq):
            self._durability.wait(head.seq)

    def seal(self) -> bool:
        """Seal the active file now; False when there is nothing in it to seal.

        Raises:
            LogCorrupt, LogUnavailable: as for append; also when there is no room for another file.
        """
        self._notice_fork()
        return self._sealer.seal()

    def mend(self, by: str) -> Mended | None:
        """Let a poisoned log go on, in files of which no sync has failed; None when it is not poisoned.

        What a crash left behind the last event is cut too, where nobody does so by himself.

        Raises:
            LockTimeout, LogCorrupt, LogMoved, LogPoisoned: nothing was changed.
        """
        self._notice_fork()
        mended = self._mender.mend(by, self._appender.chain)
        if mended is None and self._is_strict:
            self._appender.repair(by)
        return mended

    def accept(self, by: str) -> Acceptance:
        """Let a broken log go on behind what is damaged, which a person accepts as lost.

        Raises:
            BreakRefused, LockTimeout, LogPoisoned, LogUnavailable: nothing was changed, or the log stays marked.
        """
        self._notice_fork()
        return self.acceptor.accept(by, self._appender.chain)

    def retain(self, source: Retained) -> None:
        """Have the events of runs that were compacted away asked for here."""
        self.index.retain(source)

    def check(self) -> None:
        """Raise what the next append would meet in the way of it, without a lock and without writing.

        Raises:
            ForeignLog, LogMoved, LogPoisoned, LogBroken, LogUnavailable: see there.
        """
        self._notice_fork()
        handles = self._session.handles()
        head, promise = handles.control.read_settled()
        poisoned = promise is not None and promise.poisoned
        if poisoned or self._files.exists(self.layout.poisoned):
            raise LogPoisoned(self.layout.active, "a sync failed, see POISONED beside it")
        broken = promise is not None and promise.broken
        if broken or self._files.exists(self.layout.broken):
            raise as_marked(self._files, self.layout)
        if head is None or head.file != handles.file:
            return  # it is being sealed right now; the next append sees to it
        size = self._files.size(handles.log.fd)
        if size < head.size:
            reason = f"{head.size} bytes were published in this boot, {size} are there"
            raise LogMoved(self.layout.active, reason)

    def live_bytes(self) -> int:
        """Return the bytes of the active file and of the sealed segments beside it."""
        total = self.layout.active.stat().st_size
        try:
            with os.scandir(self.layout.segments) as entries:
                total += sum(entry.stat().st_size for entry in entries)
        except FileNotFoundError:
            pass  # nothing was sealed yet
        return total

    def head(self) -> Head | None:
        """Return the published head, or None when this boot has none."""
        return self.reader.published()[0]

    @property
    def durable_seq(self) -> int:
        """Return the highest seq that is known to be on disk; 0 when this boot knows nothing."""
        promise = self.reader.published()[1]
        return promise.seq if promise else 0

    def close(self) -> None:
        """Sync what is written, end the flusher, close every descriptor. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        try:
            self._flusher.close()
            if self._written > self._durability.promise.seq and self._durability_asked != "os":
                self._durability.wait(self._written)
        finally:
            self._durability.stop()  # before the appender: who seals has this one and wants that one
            self._appender.stop()  # no descriptor is closed under a thread that writes through it
            self._session.forget()
            self.reader.forget()
            self.index.close()
            self.latency.close()

    def _notice_fork(self) -> None:
        """Catch a fork that ran no Python hooks."""
        if self._closed:
            raise LogUnavailable(self.layout.active, "this engine was closed")
        if self._session.is_of_another_process():
            self.forget()

    def _drafts(self, news: Sequence[NewEvent]) -> list[Draft]:
        durable = max(self._appender.promise.seq, self._durability.promise.seq)
        ids = new_event_ids(self._now(), len(news))
        return [
            draft(new, id_, durable=durable, bytes_max=self._bytes_max)
            for new, id_ in zip(news, ids, strict=True)
        ]

    def _events(self, drafts: Sequence[Draft], written: Written) -> list[Event]:
        moment = read_timestamp(written.after.timestamp)
        file, seq, events = written.after.file, written.before.seq, []
        for each, hash_, offset in zip(drafts, written.hashes, written.offsets, strict=True):
            seq += 1
            new, event = each.new, FreshEvent()
            event.position = Position(seq, file, offset)
            event.seq = seq
            event.id = each.id
            event.type = new.type
            event.timestamp = moment
            event.run_id = new.run_id
            event.payload = each.data
            event.hash = hash_.decode("ascii")
            event.n = new.n
            event.token = new.token
            events.append(event.frozen())
        return events
