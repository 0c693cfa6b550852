"""Act on what a verification found: stop everybody at a break, let them go on when it is gone.

A verification reads without a lock while others append, seal and compact. It looks again by itself when the
files changed under it, and still: a wrong mark stops everybody. So before one is made the same break must be
found twice more or the files must stand still: under the log's locks only what surrounds the break is read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Final

from .anchors import Anchor
from .damaged import LostEvents
from .errors import LogUnreadable
from .integrity import BrokenAt, IntegrityReport, Status, Verified
from .verified import is_sound
from .verify import verify_log
from .wal import FileLog
from .wal.accept import Acceptance
from .wal.broken import Mark
from .wal.damage import Accepted, Damage
from .wal.segments import read_header
from .wal.survey import BreakRefused

_BREAKS = frozenset(
    (
        Status.CORRUPT,
        Status.TRUNCATED,
        Status.FORKED,
        Status.GAP,
        Status.FOREIGN,
        Status.UNAUTHORISED_COMPACTION,
    )
)


_REFUSED: Final = {
    Status.TRUNCATED: "events at its end are gone that are known to have been there: that is a rollback",
    Status.FORKED: "it is not the log that is known: that is a rollback, or a forgery",
    Status.FOREIGN: "a file of it belongs to another log",
    Status.UNAUTHORISED_COMPACTION: "its beginning is missing, and what allows that names other files",
}


def is_break(report: IntegrityReport) -> bool:
    """Tell whether a report says that the log is not what was written.

    A wrong snapshot is none, the chain holds; nor is what cannot be read, nor another log in this one's place,
    into which nobody of this one writes.
    """
    if report.status is Status.FOREIGN:
        return report.broken_at is not None
    return report.status in _BREAKS


class Breaks:
    """Mark the breaks of one log."""

    def __init__(self, log: FileLog, now: Callable[[], datetime]) -> None:
        self._log = log
        self._now = now

    def verify(
        self, *, after: Verified | None = None, anchors: Sequence[Anchor] = ()
    ) -> IntegrityReport:
        """Read the log and say whether it holds; nothing is marked, and snapshots are not looked at."""
        return verify_log(
            self._log.layout.active,
            published=self._log.reader.published,
            log_id=self._log.log_id,
            after=after,
            anchors=anchors,
            files=self._log.reader.files,
        )

    def mark(self, report: IntegrityReport, anchors: Sequence[Anchor] = ()) -> bool:
        """Let nobody append any more if the report tells of a break that is found again; tell whether it is so.

        Raises:
            LogError, OSError: nothing could be made sure of, or the mark did not reach the disk.
        """
        if not is_break(report):
            return False
        if self._is_marked():
            return True
        before = self._log.reader.numbers()
        look = partial(self._is_found_again, report, anchors)
        if (
            report.broken_at is None
        ):  # seen only by who reads all of it, which takes too long for the locks
            if not look():
                return False
            look = partial(self._stands_still, before)
        return self._log.marker.mark(self._mark_of(report), look)

    def lift(self, report: IntegrityReport) -> bool:
        """Take the mark away if the whole log was just found good; tell whether there was one.

        Raises:
            LogError, OSError: the log's locks are held, or the disk refuses; the mark stays.
        """
        if not is_sound(report.status.name):
            return False
        return self._log.marker.lift(partial(self._stands_still, self._log.reader.numbers()))

    def survey(self, anchors: Sequence[Anchor] = ()) -> tuple[Damage, ...]:
        """Return what is damaged and nobody has accepted; all files are read while everybody waits.

        Raises:
            BreakRefused: no person's word makes it good.
            LogError, OSError: it cannot be looked at now.
        """
        self._refuse(anchors)
        return self._log.acceptor.survey()

    def accept(self, by: str, anchors: Sequence[Anchor] = ()) -> Acceptance:
        """Let the log go on behind what is damaged; `by`, 1 to 200 characters, answers for it.

        Nothing is cut or rewritten. Where nothing was left to accept, the mark of a break stays: verify, and lift it.

        Raises:
            ValueError: `by` is empty or too long.
            BreakRefused: no person's word makes it good; nothing is changed.
            LogPoisoned: a sync failed too, and is repaired first.
            LogError, OSError: the log stays as it was, or marked; it may be asked again.
        """
        self._refuse(anchors)
        return self._log.accept(by)

    def _refuse(self, anchors: Sequence[Anchor]) -> None:
        """Refuse what is no damage of one place, and what a note at the end of the log could not make good."""
        report = self.verify(anchors=anchors)
        reason = _REFUSED.get(report.status)
        if report.status is Status.UNREADABLE:
            raise LogUnreadable(self._log.layout.active, report.reason)
        if reason is not None or (report.status is Status.GAP and report.broken_at is None):
            why = reason or "the beginning of the log is missing, and with it what runs begin with"
            raise BreakRefused(self._log.layout.active, f"{why} ({report.reason})")

    def accepted(self) -> dict[int, Accepted]:
        """Return what was accepted as damaged, by the first event of the file, in the order in which it was."""
        return self._log.reader.accepted()

    def lost(self) -> tuple[LostEvents, ...]:
        """Return which events are lost with what was accepted; of what was compacted away nothing is known here."""
        return tuple(
            LostEvents(damage.lost.first_seq, damage.lost.last_seq, note.seq)
            for note, damage in self.accepted().values()
            if damage.lost is not None and damage.lost.events
        )

    def _is_marked(self) -> bool:
        promise = self._log.reader.published()[1]
        is_there: bool = self._log.reader.files.exists(self._log.layout.broken)
        return is_there and (promise is None or promise.broken)

    def _stands_still(self, numbers: list[int]) -> bool:
        return self._log.reader.numbers() == numbers

    def _is_found_again(self, report: IntegrityReport, anchors: Sequence[Anchor]) -> bool:
        where = report.broken_at
        after = None if where is None else self._before(where)
        again = self.verify(after=after, anchors=anchors)
        return (again.status, _place(again.broken_at)) == (report.status, _place(where))

    def _before(self, where: BrokenAt) -> Verified | None:
        """Return the beginning of the file before the broken one, or None where all must be read."""
        numbers = self._log.reader.numbers()
        path = Path(where.path)
        broken = numbers[-1] if path == self._log.layout.active else int(path.stem)
        before = max((number for number in numbers if number < broken), default=None)
        if before is None:
            return None
        files = self._log.reader.files
        opened = files.open_to_read(self._log.layout.segment(before))
        try:
            header = read_header(files, opened.fd)
        finally:
            opened.close()
        if header is None or header.first_seq != before:
            return None
        offset = len(header.format())
        return Verified(before - 1, header.base_hash, before, offset, numbers[0])

    def _mark_of(self, report: IntegrityReport) -> Mark:
        where, last = report.broken_at, report.first_seq - 1 + report.events
        return Mark(
            status=report.status.name,
            seq=where.seq if where is not None else last + 1,
            path=where.path if where is not None else str(self._log.layout.active),
            offset=where.offset if where is not None else 0,
            reason=report.reason,
            at=self._now().isoformat(timespec="seconds"),
        )


def _place(where: BrokenAt | None) -> tuple[int, str, int] | None:
    return None if where is None else (where.seq, where.path, where.offset)
