"""Reclaim the space of what a snapshot holds: sealed files go to the archive, no event is ever rewritten.

The order makes every interruption harmless. The log and the snapshot are verified; then a durable
`wal.compacted` says which files may be missing from now on; only then are they moved, the oldest
first, each rename on disk before the next. So at any instant the log begins where a snapshot ends,
or earlier, and what is missing is authorised. Whoever calls next moves what is left.

Appending goes on meanwhile: only files are touched that nobody writes to any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from .archive import alone, move, sha256_of
from .errors import CompactionRefused
from .events import NewEvent
from .integrity import IntegrityReport
from .settings import Settings
from .snapshots import Snapshot, Snapshots
from .wal import FileLog
from .wal.segments import Segment, sealed_segments

WAL_COMPACTED: Final = "wal.compacted"
SEGMENTS_AN_EVENT: Final = 1000
"""How many files one event names; more of them take several events, each below the payload's bound."""


@dataclass(frozen=True, slots=True)
class CompactionReport:
    """What a compaction moved; nothing, when no sealed file lies wholly within the snapshot."""

    removed_events: int
    reclaimed_bytes: int
    archived_to: Path


def compact(
    log: FileLog,
    snapshots: Snapshots,
    settings: Settings,
    *,
    name: str,
    verify: Callable[[], IntegrityReport],
) -> CompactionReport:
    """Move the sealed files that a snapshot replaces into the archive.

    Raises:
        UnknownSnapshot: none of that name or id counts.
        SnapshotMismatch: its file is not what the log says; nothing was moved.
        CompactionRefused: the log does not verify, before or after.
        LockTimeout: somebody else takes a snapshot, or compacts.
        LogUnavailable: the log cannot take events, or a file cannot be moved.
    """
    layout, files = log.layout, log.reader.files
    with alone(layout, files, settings.lock_seconds):
        log.settle()  # what a killed writer left behind the last event is no reason to refuse
        snapshot = snapshots.find(name)
        _refuse(log, verify())
        snapshots.file(snapshot)
        covered = [s for s in sealed_segments(layout, files) if s.last_seq <= snapshot.through]
        if covered:
            files.make_directory(layout.archive)
        for some in _batches(covered):
            log.append([NewEvent(WAL_COMPACTED, _claim(log, snapshot, some))], wait=True)
            log.sync()  # whatever durability says: the claim is on disk before a file goes
            for segment in some:
                move(layout, files, segment.path)
        snapshots.retire()
        if covered:
            _refuse(log, verify())
    removed = sum(segment.last_seq - segment.first_seq + 1 for segment in covered)
    return CompactionReport(removed, sum(s.bytes for s in covered), layout.archive)


def _claim(log: FileLog, snapshot: Snapshot, segments: Sequence[Segment]) -> dict[str, Any]:
    return {
        "snapshot_id": snapshot.id,
        "snapshot_sha256": snapshot.sha256,
        "through": segments[-1].last_seq,
        "removed": [_removed(log, segment) for segment in segments],
        "archived_to": log.layout.archive.name,
    }


def _removed(log: FileLog, segment: Segment) -> dict[str, Any]:
    """Say what is removed; where that is not what the next file names, because damage was accepted, both."""
    sha256 = sha256_of(log.reader.files, segment.path)
    told: dict[str, Any] = {
        "first_seq": segment.first_seq,
        "last_seq": segment.last_seq,
        "sha256": sha256,
        "name": segment.path.name,
    }
    after = log.reader.file(segment.last_seq + 1)
    if after is not None and after.header.previous_sha256 != sha256:
        told["named"] = after.header.previous_sha256
    return told


def _refuse(log: FileLog, report: IntegrityReport) -> None:
    if not report.status.is_good:
        status = report.status
        raise CompactionRefused(log.layout.active, report.reason, status.name, status.value)


def _batches(segments: Sequence[Segment]) -> Iterator[Sequence[Segment]]:
    for at in range(0, len(segments), SEGMENTS_AN_EVENT):
        yield segments[at : at + SEGMENTS_AN_EVENT]
