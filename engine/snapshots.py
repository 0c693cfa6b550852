"""Take snapshots of the whole log's state, find them again, and believe only what the chain says of them.

A snapshot counts once three things are on disk, in this order: its file, the file's name, and the
chained `snapshot.created` with the file's SHA-256. A kill before the last leaves a file of which the
log knows nothing; it is never read, and the next who takes a snapshot removes it.

Which of the files count is found out from the log: the event stands behind the position that the file
names, usually at once, so only what was appended meanwhile is read for it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from .archive import alone, move
from .errors import LogMoved, LogUnavailable, SnapshotMismatch, UnknownSnapshot
from .events import Event, NewEvent, Position
from .fold import FOLD_VERSION
from .ids import new_event_id
from .integrity import IntegrityReport, Status
from .ledger_rows import Diverged
from .ledger_tallies import SNAPSHOT_CREATED
from .ledger_view import LedgerView, state_of
from .letters import keeps_events
from .refused import names_in
from .settings import Settings
from .snapshot_content import Incomplete, fill
from .snapshot_file import Head, SnapshotFile, SnapshotWriter
from .states import RunState
from .wal import FileLog, StoredLine

if TYPE_CHECKING:
    from .ledger import RunLedger

PARTIAL: Final = ".partial"
SUFFIX: Final = ".snapshot"

T = TypeVar("T")

_CONTENTS: Final = frozenset({SNAPSHOT_CREATED})
_LOOKS: Final = 50
_LOOK_SECONDS: Final = 0.01

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_FILE = re.compile(r"(\d{20})-([0-9A-Za-z_-]{1,64})\.snapshot")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One snapshot that counts: everything up to event `through` is in it."""

    id: str
    name: str
    position: Position
    hash: str
    sha256: str
    created_at: datetime
    through: int
    path: Path


class _Newest(NamedTuple):
    """Remember the newest snapshot, and what must not have changed since it was looked for."""

    file: SnapshotFile
    head: Head
    identity: tuple[int, ...]
    changed_at: int


class Snapshots:
    """Take and find the snapshots of one log; usable from every thread, and from children of a fork."""

    def __init__(self, log: FileLog, settings: Settings, now: Callable[[], datetime]) -> None:
        self._log = log
        self._layout = log.layout
        self._files = log.reader.files
        self._settings = settings
        self._now = now
        self._known: dict[str, Snapshot] = {}
        self._checked: dict[Path, tuple[int, ...]] = {}
        self._newest: _Newest | None = None

    def take(self, name: str, ledger: RunLedger) -> Snapshot:
        """Write a snapshot, and let the log say that it counts.

        Raises:
            ValueError: the name is not letters, digits, dots, dashes and underscores.
            LockTimeout: somebody else takes one, or compacts.
            LogUnavailable: it cannot be written.
        """
        if _NAME.fullmatch(name) is None:
            raise ValueError(f"a snapshot cannot be named {name!r}: it must match {_NAME.pattern}")
        self._files.make_directory(self._layout.snapshots)
        with alone(self._layout, self._files, self._settings.lock_seconds):
            self._remove_leftovers()
            self._log.seal()
            ledger.catch_up()
            try:
                path, data = self._write(name, ledger)
            except Diverged:
                ledger.rebuild()
                path, data = self._write(name, ledger)
            event = self._log.append([NewEvent(SNAPSHOT_CREATED, data)], wait=True)[0]
            self._log.sync()
        return self._remember(event, path)

    def all(self) -> list[Snapshot]:
        """Return the snapshots that count and whose files are there, oldest first; no file is hashed here."""
        first_seq = self._log.reader.numbers()[0]
        found = (self._find(path) for path in self._paths(first_seq))
        return [snapshot for snapshot in found if snapshot is not None]

    def find(self, name: str) -> Snapshot:
        """Return a snapshot by its id, or the newest of that name.

        Raises:
            UnknownSnapshot: none counts.
        """
        counted = self.all()
        for snapshot in reversed(counted):
            if name in (snapshot.name, snapshot.id):
                return snapshot
        known = ", ".join(dict.fromkeys(snapshot.name for snapshot in counted)) or "none"
        raise UnknownSnapshot(name, known)

    def file(self, snapshot: Snapshot) -> SnapshotFile:
        """Return the file of a snapshot after hashing all of it, or finding it untouched since.

        Raises:
            SnapshotMismatch: it is missing, or not what the log says.
        """
        file = SnapshotFile(self._files, snapshot.path)
        identity = file.identity()
        if self._checked.get(snapshot.path) != identity:
            file.check(snapshot.sha256)
            self._checked[snapshot.path] = identity
        return file

    def newest(self) -> tuple[SnapshotFile, Head]:
        """Return the newest snapshot that holds all that the log's files do not.

        Raises:
            SnapshotMismatch: there is none that can be believed.
        """
        newest = self._newest
        if newest is not None and self._still_serves(newest):
            return newest.file, newest.head
        return self._while_still(self._look_for_newest)

    def _while_still(self, look: Callable[[], T]) -> T:
        """Look again when the files changed under a look that failed: others take and retire snapshots meanwhile.

        Raises:
            SnapshotMismatch: nothing changed, so it is as it was found; or it changes all the time.
        """
        for _ in range(_LOOKS):
            before = self._changed_at(), self._log.reader.numbers()[0]
            try:
                return look()
            except SnapshotMismatch:
                if before == (self._changed_at(), self._log.reader.numbers()[0]):
                    raise
                self._files.nap(_LOOK_SECONDS)
        return look()

    def _look_for_newest(self) -> tuple[SnapshotFile, Head]:
        first_seq = self._log.reader.numbers()[0]
        changed_at = self._changed_at()
        refused: SnapshotMismatch | None = None
        for snapshot in reversed(self.all()):
            try:
                file = self.file(snapshot)
                head = file.head()
            except SnapshotMismatch as mismatch:
                refused = refused or mismatch
                continue
            if head is not None:
                identity = self._checked[snapshot.path]
                self._newest = _Newest(file, head, identity, changed_at)
                return file, head
        reason = f"no snapshot that counts holds the events before {first_seq}"
        raise refused or SnapshotMismatch(self._layout.snapshots, reason)

    def _still_serves(self, newest: _Newest) -> bool:
        """Tell whether nobody has touched the file or the directory, and the log begins no later than it ends."""
        return (
            newest.head.position.seq >= self._log.index.begins_at - 1
            and newest.changed_at == self._changed_at()
            and newest.identity == newest.file.identity()
        )

    def _changed_at(self) -> int:
        try:
            return self._files.stat(os.fspath(self._layout.snapshots)).st_mtime_ns
        except FileNotFoundError:
            return 0

    def judge(self, report: IntegrityReport) -> IntegrityReport:
        """Return the report of a good log with what is wrong with its snapshots; every file is hashed anew."""
        self._checked, self._newest = {}, None
        try:
            self._while_still(self._check)
        except SnapshotMismatch as mismatch:
            return replace(report, status=Status.SNAPSHOT_MISMATCH, reason=str(mismatch))
        except LogUnavailable as error:
            return replace(report, status=Status.UNREADABLE, reason=str(error))
        return report

    def _check(self) -> None:
        for path in self._paths():
            self._refuse_another_name(path)
        for snapshot in self.all():
            self.file(snapshot)
        if self._log.reader.numbers()[0] > 1:
            self.newest()

    def retire(self) -> None:
        """Put the files of snapshots into the archive that end before the log begins: they serve nothing any more."""
        serving = set(self._paths(self._log.reader.numbers()[0]))
        for path in self._paths():
            if path not in serving:
                self._files.make_directory(self._layout.archive)
                move(self._layout, self._files, path)

    def lines(self, run_id: str) -> list[StoredLine]:
        """Return the stored lines of a run that was unfinished when its events were compacted away.

        Raises:
            SnapshotMismatch: what would tell cannot be believed.
        """
        file, head = self.newest()
        return [line for line in file.lines(run_id) if line.seq <= head.position.seq]

    def fence(self, run_id: str) -> int:
        """Return the highest token of a run as its state has it; 0 when it is not known.

        Raises:
            SnapshotMismatch: as for lines.
        """
        known = self.state(run_id)
        return 0 if known is None else known[0].token

    def state(self, run_id: str) -> tuple[RunState, int] | None:
        """Return a run's state in the newest snapshot, and up to which event; None if it is not there.

        Raises:
            SnapshotMismatch: as for lines.
        """
        file, head = self.newest()
        row = file.run(run_id)
        return None if row is None else (state_of(row), head.position.seq)

    def _write(self, name: str, ledger: RunLedger) -> tuple[Path, dict[str, Any]]:
        with ledger.view() as view:
            return self._write_view(name, view)

    def _write_view(self, name: str, view: LedgerView) -> tuple[Path, dict[str, Any]]:
        now = self._now()
        id_ = str(new_event_id(now))
        through, (gaps, gap_at) = view.position.seq, view.gaps()
        head = Head(
            id=id_,
            name=name,
            log_id=self._log.log_id,
            position=view.position,
            hash=view.hash,
            created_at=now.isoformat(),
            fold_version=FOLD_VERSION,
            gaps=gaps,
            gap_at=gap_at,
        )
        path = self._layout.snapshots / f"{through:020d}-{id_}{SUFFIX}"
        partial = path.with_name(path.name + PARTIAL)
        opened = self._files.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            writer = SnapshotWriter(self._files, opened.fd, head)
            self._fill(writer, view)
            sha256 = writer.finish()
            self._files.sync(opened.fd)
            self._files.rename(partial, path)
        except OSError as error:
            raise LogUnavailable(path, f"it cannot be written: {error.strerror}") from error
        finally:
            opened.close()
            with suppress(OSError):
                self._files.remove(partial)
        return path, {
            "id": id_,
            "name": name,
            "through": through,
            "position": str(view.position),
            "hash": view.hash,
            "sha256": sha256,
            "runs": writer.counts["R"],
            "lines": writer.counts["L"],
            "file": path.name,
        }

    def _fill(self, writer: SnapshotWriter, view: LedgerView) -> None:
        now, days = self._now(), self._settings.dead_letter_days

        def keeps(state: RunState) -> bool:
            return not state.settled or keeps_events(state, now, days=days)

        try:
            fill(writer, view, self._log.index, keeps)
        except Incomplete as error:
            raise Diverged(self._settings.ledger_path, str(error)) from error

    def _paths(self, first_seq: int = 0) -> list[Path]:
        """Return the files of snapshots that reach the event before `first_seq`, oldest first."""
        names = names_in(self._layout.snapshots)
        found = [match for name in names if (match := _FILE.fullmatch(name))]
        return [self._layout.snapshots / m[0] for m in found if int(m[1]) >= first_seq - 1]

    def _find(self, path: Path) -> Snapshot | None:
        """Return the snapshot in a file if the log says that it counts."""
        known = self._known.get(path.name)
        if known is not None:
            return known
        event = self._event_of(path)
        return None if event is None else self._remember(event, path)

    def _event_of(self, path: Path) -> Event | None:
        try:
            head = SnapshotFile(self._files, path).head()
        except SnapshotMismatch:
            return None  # gone since it was listed
        if head is None or head.log_id != self._log.log_id:
            return None
        return next(
            (e for e in self._told(head.position) if e.payload.get("file") == path.name), None
        )

    def _told(self, position: Position) -> Iterator[Event]:
        """Yield what the log says of snapshots behind a position."""
        try:
            for event in self._log.reader.read(position, _CONTENTS):
                if event.type == SNAPSHOT_CREATED:
                    yield event
        except LogMoved:
            return  # it was taken of another past, or what said that it counts was compacted away

    def _told_names(self) -> set[object]:
        """Return the names of all files of which the log says anything; it is read whole."""
        events = self._log.reader.read(None, _CONTENTS)
        return {event.payload.get("file") for event in events}

    def _remember(self, event: Event, path: Path) -> Snapshot:
        data = event.payload
        snapshot = Snapshot(
            id=data["id"],
            name=data["name"],
            position=Position.parse(data["position"]),
            hash=data["hash"],
            sha256=data["sha256"],
            created_at=event.timestamp,
            through=data["through"],
            path=path,
        )
        self._known[path.name] = snapshot
        return snapshot

    def _refuse_another_name(self, path: Path) -> None:
        head = SnapshotFile(self._files, path).head()
        if head is None or not path.name.startswith(f"{head.position.seq:020d}-{head.id}."):
            raise SnapshotMismatch(path, "its first line does not fit its name")

    def _remove_leftovers(self) -> None:
        """Remove what a killed one left: files of which the log says nothing; the others are left to `check`.

        The log is asked by the file's name alone, since its first line may be what was harmed.
        """
        for name in names_in(self._layout.snapshots):
            if name.endswith(f"{SUFFIX}{PARTIAL}"):
                self._files.remove(self._layout.snapshots / name)
        self.retire()
        unknown = [path for path in self._paths() if self._find(path) is None]
        told = self._told_names() if unknown else set()
        for path in unknown:
            if path.name not in told:
                try:
                    self._refuse_another_name(path)
                except SnapshotMismatch:
                    continue
                self._files.remove(path)
