"""Offer the log to everybody: append, read, follow, look up a run, verify, replay."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Self

from .anchors import Anchor
from .archive import alone, prune
from .boot import read_boot_id
from .breaks import Breaks
from .compaction import CompactionReport, compact
from .database import Database
from .errors import LogCorrupt, LogError, LogUnavailable
from .events import Event, NewEvent, Position
from .files import Files
from .health import EventSourcingHealth
from .health_report import HealthReport
from .integrity import IntegrityReport, Verified
from .latency import LatencyRing
from .ledger import RunLedger
from .run_events import events_of, replayed
from .settings import Settings
from .snapshot_file import Head, SnapshotFile
from .snapshots import Snapshot, Snapshots
from .states import RunState
from .streaming import stream
from .verified import Verification, last_verification, note_verification
from .wal import FileLog
from .wal.mend import Mended


class EventSourcingEngine:
    """Record events durably, and read them back verified.

    One engine may be used by all threads, and by children of a fork: each process opens files of its
    own on first use. Close it, or use it as a context manager.
    """

    def __init__(
        self, log: FileLog, settings: Settings, now: Callable[[], datetime], *, writes: bool = True
    ) -> None:
        self._log = log
        self._writes = writes
        self.settings = settings
        self.now = now
        self._health: EventSourcingHealth | None = None
        self.breaks = Breaks(log, now)
        self._snapshots = Snapshots(log, settings, now)
        log.retain(self._snapshots)

    @classmethod
    def open(
        cls,
        settings: Settings | str | Path,
        *,
        now: Callable[[], datetime] | None = None,
        create: bool = True,
        boot_id: str | None = None,
        files: Files | None = None,
    ) -> Self:
        """Open the log, and make it first if there is none.

        A torn tail is repaired here. A log that cannot take events (corrupt, moved, poisoned) opens all
        the same, so that it can be read and verified; the reason is raised by the first append.

        Args:
            settings: the settings, or the path of the active file.
            now: the wall clock for timestamps; default UTC of the system.
            create: False opens for reading what is there, and touches nothing until something is appended.
            boot_id: which boot this is; default the kernel's answer.
            files: the operating system; another one stands in its place where faults are tried.

        Raises:
            ForeignLog: the file is no log of ours.
            LogUnavailable: it cannot be opened or made.
        """
        settings = settings if isinstance(settings, Settings) else Settings.at(settings)
        boot = read_boot_id() if boot_id is None else boot_id
        now = now or (lambda: datetime.now(UTC))
        log = FileLog(settings, files or Files(), now=now, boot_id=boot, create=create)
        if create:
            try:
                log.settle()
            except (LogCorrupt, LogUnavailable):
                pass  # said again, by the same check, to the first who appends
        return cls(log, settings, now, writes=create)

    @property
    def log_id(self) -> str:
        """Return the log's identity, made with it."""
        return self._log.log_id

    @property
    def path(self) -> Path:
        """Return the absolute path of the active file."""
        return self._log.layout.active

    @property
    def directory(self) -> Path:
        """Return the log's own directory beside the active file."""
        return self._log.layout.directory

    @property
    def latency(self) -> LatencyRing:
        """Return how long the last waited appends of all processes of the host took."""
        return self._log.latency

    def append(
        self,
        type: str,
        data: Mapping[str, Any],
        *,
        run_id: str | None = None,
        token: int | None = None,
        n: int | None = None,
        wait: bool = True,
    ) -> Event:
        """Append one event.

        Args:
            type: what happened, as ``billing.note``.
            data: a JSON object with string keys, at most max_payload_bytes with its envelope.
            run_id: the run it belongs to.
            token: the fencing token of an owner; an outsider has none.
            n: the run's own dense number of the event.
            wait: True returns once it is on disk. False returns once it is written: it survives this process, and a
                power cut from flush_seconds later on.

        Raises:
            Fenced: a newer token owns the run; nothing was written.
            InvalidEvent: the grammar does not allow it; nothing was written.
            LogUnavailable: and its subclasses: the log cannot take events now.
            LogCorrupt: durable bytes do not verify; nothing is appended behind them.
        """
        return self._log.append([NewEvent(type, data, run_id, token, n)], wait=wait)[0]

    def append_many(self, news: Sequence[NewEvent], *, wait: bool = True) -> list[Event]:
        """Append events in one write and one sync: all of them, or on any error none.

        Only a process killed in the middle of a large write may leave the first of them.

        Raises:
            Fenced, InvalidEvent, LogUnavailable, LogCorrupt: as for append.
        """
        return self._log.append(news, wait=wait) if news else []

    def sync(self) -> None:
        """Wait until everything that this process has written is on disk."""
        self._log.sync()

    def read_from(self, position: Position | str | None) -> Iterator[Event]:
        """Yield every event after `position`, verified, up to those written by now; what is not on disk yet is synced.

        None: all that are there. A snapshot's name or id: what came after it. Who reads only, or cannot sync, is shown
        those that are on disk. With durability "os" whatever is written is shown.

        Raises:
            UnknownSnapshot: no snapshot of that name or id counts.
            LogCompacted: what came after the position is not there any more.
            LogCorrupt: a line does not follow from the one before it.
            LogMoved: there is no event at the position.
        """
        return self._log.read(self._position_of(position), sync=self._writes)

    def outlines_from(self, position: Position | None, contents: frozenset[str]) -> Iterator[Event]:
        """Yield the same for who can take back what a power cut takes back: all that is written, at once.

        Of types that `contents` does not name only the outline comes: no run, an empty payload.
        """
        return self._log.reader.read(position, contents)

    def stream_from(
        self, position: Position | str | None, follow: bool = False
    ) -> AsyncIterator[Event]:
        """Yield the same as read_from without blocking the loop; `follow` goes on waiting for more.

        Who follows syncs nothing, and gets an event once it is on disk (with durability "os": once it is written).
        Reading is done in the loop's default executor, a batch at a time.
        """
        place = partial(self._position_of, position)
        return stream(
            place, partial(self._log.batch, sync=self._writes and not follow), follow=follow
        )

    def _position_of(self, place: Position | str | None) -> Position | None:
        return self._snapshots.find(place).position if isinstance(place, str) else place

    def history(self, run_id: str, *, known_seq: int = 0) -> list[Event]:
        """Return a run's events in order, each hashed again, with all that any process wrote before.

        Those of an unfinished run are complete for ever: what was compacted away is kept in a snapshot. Of a
        plain task, which is observed and no run, there are those that the log's files still hold.

        `known_seq` is an event of the run that is known to be there, as a ledger knows the last one. Where the
        index has not heard of it, the index is made anew.

        Raises:
            HistoryArchived: the run had ended, and its first events were compacted away.
            LogCorrupt: one of them does not verify.
            SnapshotMismatch: the snapshot that keeps the first of them cannot be believed.
        """
        return events_of(self._log.index, self._snapshots, run_id, known_seq)

    def settled_state(self, run_id: str) -> tuple[RunState, int] | None:
        """Return where a run stood when its events were compacted away, and up to which event that was.

        None for a run of which nothing was compacted away.

        Raises:
            SnapshotMismatch: the snapshot that would tell cannot be believed.
        """
        return self._snapshots.state(run_id) if self.first_seq > 1 else None

    def verify_integrity(
        self, *, after: Verified | None = None, anchors: Sequence[Anchor] = ()
    ) -> IntegrityReport:
        """Read the log and say whether it holds, and if not, where it breaks.

        The snapshots beside a good log are hashed too: one that is not what the log says is told then. Health reports
        the last answer, and where it is a break that is found again, nobody appends any more until a person acts; an
        engine that was opened only for reading writes down none and stops nobody.

        Args:
            after: go on from where an earlier verification ended; default from the beginning.
            anchors: what the log is known to have been.
        """
        report = self.breaks.verify(after=after, anchors=anchors)
        if report.status.is_good:
            report = self._snapshots.judge(report)
        if self._writes:
            self.note_verified(report, whole=after is None)
            with suppress(LogError, OSError):  # the next verification tries again
                self.breaks.mark(report, anchors)
        return report

    def last_verification(self) -> Verification | None:
        """Return what the last one came to, in any process, or None; raises OSError and ValueError if it is unreadable.

        Its `verified` is where the next one may go on; a broken log has none, so the next reads it whole.
        """
        last = last_verification(self.directory)
        return last if last is not None and last.log_id == self.log_id else None

    def note_verified(self, report: IntegrityReport, *, whole: bool = True) -> None:
        """Write down what a verification came to, for health; of a part, or of the `whole` log."""
        found = Verification.of(report, log_id=self.log_id, at=self.now())
        note_verification(self.directory, found, whole=whole)

    def settle(self) -> None:
        """Repair what a crash left, as the first append would, and raise what that would meet.

        Raises:
            LogUnavailable, LogCorrupt, ForeignLog: the log takes no events.
        """
        self._log.settle()

    def repair(self, by: str) -> Mended | None:
        """Let a log go on of which a sync has failed; None when none has. With `strict`, cut what a crash left.

        What can be read and verifies is copied to a file of which no sync has failed; what does not is kept in
        quarantine. The log says so, and who answers for it: `by`, 1 to 200 characters.

        Raises:
            ValueError: `by` is empty or too long.
            LockTimeout: somebody holds the log's locks.
            LogCorrupt, LogMoved: what was on disk does not verify, or is missing; LogPoisoned: the disk still refuses.
        """
        return self._log.mend(by)

    def check(self) -> None:
        """Raise what the next append would meet in the way of it; nothing is written, nothing waited for.

        Raises:
            ForeignLog, LogUnavailable: and its subclasses: moved, poisoned, cut, not to be opened.
        """
        self._log.check()

    def live_bytes(self) -> int:
        """Return the size of the active file and of the sealed segments that are still beside it."""
        return self._log.live_bytes()

    def health(self) -> HealthReport:
        """Say how the store is, in constant time; nothing is verified for it and it never raises.

        Leases, dead letters and workers are known to a Commander only: `app.commander.health.report()`.
        """
        if self._health is None:
            self._health = EventSourcingHealth(self)
        return self._health.report()

    @property
    def published_seq(self) -> int:
        """Return the last event's seq as this boot has published it; 0 when it has not yet."""
        return head.seq if (head := self._log.head()) is not None else 0

    def snapshot(self, name: str) -> Snapshot:
        """Take a snapshot of every run's state, with the events of all that are unfinished.

        The active file is sealed first, so that all that the snapshot holds can be compacted. Memory is
        bounded, and appending goes on.

        Raises:
            ValueError: the name is not 1 to 64 letters, digits, dots, dashes and underscores.
            LockTimeout: somebody else takes one, or compacts.
            LogUnavailable, StoreUnavailable: the log or the ledger cannot be used now.
        """
        database = Database(self.settings.ledger_path, busy_seconds=self.settings.lock_seconds)
        try:  # a database of its own: threads of this process need not wait for the writing
            return self._snapshots.take(name, RunLedger(database, self))
        finally:
            database.close()

    def snapshots(self) -> list[Snapshot]:
        """Return the snapshots that count, oldest first."""
        return self._snapshots.all()

    def compact(self, name: str) -> CompactionReport:
        """Move the sealed files that the newest snapshot of a name replaces into the archive.

        Raises:
            UnknownSnapshot: none of that name or id counts.
            SnapshotMismatch: it is not what the log says of it; nothing was moved.
            CompactionRefused: the log does not verify.
            LockTimeout: somebody else takes a snapshot, or compacts.
            LogUnavailable: the log cannot take events now, or a file cannot be moved.
        """
        verify = self.breaks.verify
        return compact(self._log, self._snapshots, self.settings, name=name, verify=verify)

    def archive_prune(self, days: float | None = None) -> int:
        """Remove files that have been in the archive for `days` (archive_days); return how many."""
        bound = self.settings.archive_days if days is None else days
        layout, files = self._log.layout, self._log.reader.files
        with alone(layout, files, self.settings.lock_seconds):
            return prune(layout, files, self.now(), bound)

    def snapshot_to_begin_with(self) -> tuple[SnapshotFile, Head] | None:
        """Return the checked snapshot that folding begins with; None where the log begins with event 1.

        Raises:
            SnapshotMismatch: none can be believed.
        """
        return self._snapshots.newest() if self.first_seq > 1 else None

    @property
    def first_seq(self) -> int:
        """Return the seq of the first event that is still in the log's files: 1 unless it was compacted."""
        return self._log.reader.numbers()[0]

    def seal(self) -> bool:
        """Seal the active file and go on in a fresh one; False when there is nothing in it to seal.

        It happens by itself at segment_bytes and segment_seconds, whoever appends then.

        Raises:
            LogUnavailable: and its subclasses: the log cannot take events now, or there is no room.
            LogCorrupt: durable bytes do not verify.
        """
        return self._log.seal()

    def replay(self) -> dict[str, RunState]:
        """Fold the whole log into the state of every run; a compacted one from its newest snapshot on.

        Raises:
            SnapshotMismatch: none can be believed.
        """
        return replayed(self.snapshot_to_begin_with(), self._log.reader.read)

    @property
    def durable_seq(self) -> int:
        """Return the highest seq that is known to be on disk."""
        return self._log.durable_seq

    def head(self) -> tuple[int, str]:
        """Return the seq and the hash of the last published event."""
        return self._log.reader.end()

    def close(self) -> None:
        """Sync what is written and close every file. Safe to call twice."""
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
