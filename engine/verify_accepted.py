"""Let verification pass by what a person accepted as damaged: exactly that, and nothing beside it.

What is accepted is told by notes in the log. They are looked for before the chain is followed, since they stand
behind the damage, and are believed only once the chain has come by each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from .control import Head
from .files import Files, Opened
from .integrity import AcceptedBreak, IntegrityReport, Status
from .wal.damage import Accepted, Damage, Lost, Notes
from .wal.layout import Layout
from .wal.repair import Notice, Scan, scan
from .wal.succession import digest_of


class AcceptedDamage:
    """Hold what is accepted of one log, while its files are verified once."""

    def __init__(self, layout: Layout, files: Files, numbers: Sequence[int]) -> None:
        self._layout = layout
        self._files = files
        self._numbers = numbers
        self._all = Notes(layout, files).accepted(numbers)
        self._passed: list[Accepted] = []
        self._undone: set[int] = set()

    def of(self, number: int, opened: Opened) -> Damage | None:
        """Return the accepted damage of a file, if its bytes are still those that were accepted."""
        found = self._all.get(number)
        if found is None or number == self._numbers[-1]:
            return None
        size = self._files.size(opened.fd)
        if found.damage.sha256 != digest_of(self._files, opened.fd, size):
            self._undone.add(number)
            return None
        self._passed.append(found)
        return found.damage

    def gap(self, first_seq: int, last_seq: int) -> Lost | None:
        """Return what is said of events that are missing with their files, if that was accepted."""
        found = self._all.get(first_seq)
        lost = found.damage.lost if found is not None and found.damage.is_missing else None
        if found is None or lost is None or lost.last_seq != last_seq:
            return None
        self._passed.append(found)
        return lost

    def was_changed(self, number: int) -> bool:
        """Tell whether the damage of a file was accepted, and it has other bytes by now."""
        return number in self._undone

    def stands_before(self, file: int) -> bool:
        """Tell whether all that was accepted of files before `file` is as it was; their bytes are hashed."""
        for number, found in self._all.items():
            if number >= file or number < self._numbers[0]:
                continue
            is_there = number in self._numbers
            if found.damage.is_missing:
                if is_there:
                    return False
                continue
            if not is_there:
                return False
            opened = self._files.open_to_read(self._layout.segment(number))
            try:
                if self.of(number, opened) is None:
                    return False
            finally:
                opened.close()
        return True

    def is_gap_before(self, number: int) -> bool:
        """Tell whether the files before one are missing, and that was accepted."""
        lost = (each.damage.lost for each in self._all.values() if each.damage.is_missing)
        return any(each is not None and each.last_seq == number - 1 for each in lost)

    def forged(self, seen: set[bytes], *, after_seq: int) -> Accepted | None:
        """Return what was passed by because of a note that the chain, followed behind an event, does not hold."""
        for each in self._passed:
            if each.note.seq > after_seq and each.note.hash not in seen:
                return each
        return None

    def lost_events(self, through: int) -> int:
        """Return how many events up to one are accepted as lost."""
        lost = (each.damage.lost for each in self._live())
        return sum(each.events for each in lost if each is not None and each.last_seq <= through)

    def told(self, report: IntegrityReport) -> IntegrityReport:
        """Return the report of a chain that holds otherwise, with the damage that was accepted."""
        breaks = tuple(map(self._break_of, self._live()))
        if not breaks:
            return report
        many = f"{len(breaks)} acknowledged break{'s' if len(breaks) > 1 else ''}"
        where = "; ".join(each.told for each in breaks)
        reason = f"{many}: {where}. Of the rest: {report.reason}"
        return replace(report, status=Status.BREAK_ACCEPTED, reason=reason, accepted=breaks)

    def _live(self) -> list[Accepted]:
        """Return what is accepted of files that are not compacted away and were not put right."""
        first = self._numbers[0]
        found = [each for number, each in sorted(self._all.items()) if number not in self._undone]
        return [
            each
            for each in found
            if each.damage.file >= first
            and (each.damage.file in self._numbers) is not each.damage.is_missing
        ]

    def _break_of(self, accepted: Accepted) -> AcceptedBreak:
        note, damage = accepted
        lost = damage.lost
        return AcceptedBreak(
            first_seq=damage.first_seq,
            last_seq=lost.last_seq if lost is not None else damage.file - 1,
            path=str(Path(self._layout.segment(damage.file))),
            offset=damage.offset,
            sha256=damage.sha256,
            reason=damage.reason,
            by=note.by,
            at=note.at,
            noted_at=note.seq,
        )


def scan_around(
    files: Files,
    fd: int,
    at: Head,
    end: int,
    *,
    lost: Lost | None,
    notice: Notice | Callable[..., None],
) -> Scan:
    """Follow a file as `scan` does, past the part of it that is accepted as lost."""
    if lost is None or at.size > lost.offset:
        return scan(files, fd, at, end, notice=notice)
    found = scan(files, fd, at, lost.offset, notice=notice)
    if found.broken is not None:
        return found
    behind = found.head._replace(seq=lost.last_seq, hash=lost.hash.encode("ascii"), size=lost.stop)
    return scan(files, fd, behind, end, notice=notice)
