"""Go through all files of a log and say, of each that does not verify, what of it is lost.

Nothing is changed. What no note could make good is refused with the reason: a log that was cut or rewritten
behind what is known of it, files that do not belong together, a beginning that is missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from ..chain import HASH_BYTES, LINE_BYTES_MAX, Header, first_header, follows
from ..control import EMPTY, Head, Promise
from ..errors import LogError, StrPath
from ..files import Files, Opened
from .damage import Accepted, Damage, Lost, Notes
from .layout import Layout
from .repair import Break, Scan, scan
from .segments import LogFile, last_line, read_header, seals, segment_numbers, start_of
from .succession import digest_of
from .suffix import Suffix, count_lines, find_suffix, runs_named


class BreakRefused(LogError):
    """The break of the log {path} cannot be accepted: {reason}.
    Put the right files back, from a backup or the archive, and run `commander verify`.
    """

    def __init__(self, path: StrPath, reason: str) -> None:
        super().__init__(str(path), reason)
        self.path = str(path)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Surveyed:
    """Hold what is damaged and not accepted yet, and where the log ends.

    `active` is how far the active file is good; None where it is damaged itself, and only its name is given up.
    """

    damages: tuple[Damage, ...]
    end: Head
    active: Scan | None


@dataclass(frozen=True, slots=True)
class _Before:
    """Describe the file before: its header, and the SHA-256 that the next one must name (None: any)."""

    header: Header
    sha256: str | None


class _End(NamedTuple):
    """Say with which event a file ended, as others tell it; seq 0 and no hash: nobody does."""

    seq: int
    hash: bytes | None


class Survey:
    """Survey one log once, while nobody writes."""

    def __init__(
        self,
        layout: Layout,
        files: Files,
        log: LogFile,
        *,
        head: Head | None,
        promise: Promise | None,
    ) -> None:
        self._layout = layout
        self._files = files
        self._log = log
        self._log_id = log.header.log_id
        last = log.header.first_seq
        self._head = head if head is not None and head.file == last else None
        self._promised = promise.seq if promise is not None else 0
        sealed = [number for number in segment_numbers(layout) if number < last]
        self._numbers = [*sealed, last]
        self._accepted: Mapping[int, Accepted] = Notes(layout, files).accepted(self._numbers)
        self._found: list[Damage] = []
        self._at: Head | None = None
        self._before: _Before | None = None

    def run(self) -> Surveyed:
        """Read all files.

        Raises:
            BreakRefused: what is wrong cannot be accepted.
            FileNotFoundError, LogUnavailable: a file cannot be read; that is no break.
        """
        active: Scan | None = None
        for number in self._numbers:
            self._see_gap(number)
            if number == self._numbers[-1]:
                active = self._see(number, self._log.opened)
                continue
            opened = self._files.open_to_read(self._layout.segment(number))
            try:
                self._see(number, opened)
            finally:
                opened.close()
        assert self._at is not None
        return Surveyed(tuple(self._found), self._at, active)

    def _see_gap(self, number: int) -> None:
        """Note the files that are missing before a file."""
        at = self._at
        if at is None or at.seq + 1 == number:
            return
        if number <= at.seq:
            reason = f"the file of event {number} follows one that ends at event {at.seq}"
            raise BreakRefused(self._layout.segment(number), reason)
        base = self._base_of(number)
        if base is None:
            raise BreakRefused(self._layout.segment(number), "the files before it are missing")
        name = self._layout.segment(at.seq + 1).name
        lost = Lost(at.seq + 1, number - 1, 0, 0, base.decode("ascii"), -1)
        reason = f"events {at.seq + 1} to {number - 1} are missing with their file"
        self._note(Damage(at.seq + 1, name, reason, lost=lost))
        self._at = at._replace(seq=number - 1, hash=base)
        self._before = None

    def _see(self, number: int, opened: Opened) -> Scan | None:
        """Go through one file; what is returned of a file with damage is None."""
        digest = digest_of(self._files, opened.fd, self._files.size(opened.fd))
        known = self._accepted.get(number)
        if known is not None and known.damage.sha256 == digest:
            self._pass_by(number, opened, known.damage)
            return None
        header, is_fixed = self._header(number, opened)
        found, end = self._scan(opened, header), self._end_of(number)
        if self._is_whole(number, found, end):
            self._at, lost = found.head, None
            reason = "its header is not the one that it had"
        else:
            lost, self._at = self._lost(opened, found, end, digest)
            reason = found.broken.reason if found.broken is not None else "its end is missing"
        is_good = lost is None and not is_fixed
        self._before = _Before(header, digest if is_good else None)
        if is_good:
            return found
        self._note(
            Damage(
                file=number,
                name=Path(opened.path).name,
                reason=reason,
                bytes=self._files.size(opened.fd),
                sha256=digest,
                lost=lost,
                header=header.format().decode("ascii").rstrip("\n") if is_fixed else None,
                runs=runs_named(self._files, opened.fd, lost.offset, lost.stop) if lost else (),
            )
        )
        return None

    def _pass_by(self, number: int, opened: Opened, damage: Damage) -> None:
        """Go on behind a file whose damage was accepted, and which nobody has touched since."""
        header, end = (
            damage.true_header() or read_header(self._files, opened.fd),
            self._end_of(number),
        )
        if header is None or end.hash is None:
            raise BreakRefused(opened.path, "the file after it does not go on from it")
        self._at = Head(end.seq, end.hash, damage.bytes, self._stamp, end.seq, number)
        self._before = _Before(header, None)

    def _note(self, damage: Damage) -> None:
        known = self._accepted.get(damage.file)
        if known is None or known.damage != damage:
            self._found.append(damage)

    @property
    def _stamp(self) -> bytes:
        return self._at.timestamp if self._at is not None else EMPTY.timestamp

    def _header(self, number: int, opened: Opened) -> tuple[Header, bool]:
        """Return the header that a file should have, and whether it has another."""
        header, before, at = read_header(self._files, opened.fd), self._before, self._at
        if header is not None and header.log_id != self._log_id:
            raise BreakRefused(opened.path, f"it is of log {header.log_id}")
        right: Header | None = None
        if number == 1:
            right = first_header(self._log_id)
        elif before is not None and at is not None:
            named = header.previous_sha256 if header is not None else "0" * HASH_BYTES
            segment, base = before.header.segment + 1, at.hash.decode("ascii")
            right = Header(self._log_id, segment, number, base, before.sha256 or named)
        if header is not None and header.first_seq == number and right in (None, header):
            return header, False
        if right is None or not self._goes_on(opened, right):
            raise BreakRefused(opened.path, "nothing links it to the file before it")
        return right, True

    def _goes_on(self, opened: Opened, header: Header) -> bool:
        """Tell whether the first event behind a header of this length follows from what the header says."""
        start = start_of(header)
        data = self._files.read(opened.fd, LINE_BYTES_MAX + 1, start.size)
        return follows(start.hash, data.partition(b"\n")[0])

    def _base_of(self, number: int) -> bytes | None:
        """Return the hash from which a file claims to go on, if it has a header of its own."""
        if number == self._numbers[-1]:
            return self._log.header.base_hash.encode("ascii")
        opened = self._files.open_to_read(self._layout.segment(number))
        try:
            header = read_header(self._files, opened.fd)
        finally:
            opened.close()
        if header is None or (header.log_id, header.first_seq) != (self._log_id, number):
            return None
        return header.base_hash.encode("ascii")

    def _end_of(self, number: int) -> _End:
        if number != self._numbers[-1]:
            after = self._numbers[self._numbers.index(number) + 1]
            return _End(after - 1, self._base_of(after))
        return _End(0, None) if self._head is None else _End(self._head.seq, self._head.hash)

    def _scan(self, opened: Opened, header: Header) -> Scan:
        """Follow a file as far as it holds; what a write left that failed and could not be cut back never counts."""
        start, head = start_of(header)._replace(timestamp=self._stamp), self._head
        size = self._files.size(opened.fd)
        if opened is not self._log.opened or head is None:
            return scan(self._files, opened.fd, start, size)
        if size < head.size:
            reason = f"it was cut from {head.size} to {size} bytes"
            raise BreakRefused(self._layout.active, reason)
        found = scan(self._files, opened.fd, start, head.size if head.dirty else size)
        if head.dirty and found.broken is None and size > head.size:
            failed = Break(head.seq + 1, head.size, "a failed write that could not be cut back")
            return Scan(found.head, 0, failed)
        return found

    def _is_whole(self, number: int, found: Scan, end: _End) -> bool:
        """Tell whether a file holds all that it should; a torn end of the active one is no damage."""
        head, broken = found.head, found.broken
        if number == self._numbers[-1]:
            known = max(found.durable, self._promised, end.seq)
            if broken is not None:
                return broken.seq > known
            if head.seq < known:
                raise BreakRefused(
                    self._layout.active, f"it ends at event {head.seq}, there was event {known}"
                )
            if head.seq == end.seq and head.hash != end.hash:
                raise BreakRefused(self._layout.active, "it is another chain than was published")
            return True
        if broken is not None:
            return False
        # Whether the next file goes on from it is asked there.
        return head.seq >= end.seq or self._ends_sealed(number, head)

    def _ends_sealed(self, number: int, head: Head) -> bool:
        """Tell whether a file that ends early does so with its last line: then the files after it are missing."""
        opened = self._files.open_to_read(self._layout.segment(number))
        try:
            return seals(last_line(self._files, opened.fd, head.size))
        finally:
            opened.close()

    def _lost(self, opened: Opened, found: Scan, end: _End, digest: str) -> tuple[Lost, Head]:
        """Return what of a file cannot be believed, and where the file ends."""
        head, size = found.head, self._files.size(opened.fd)
        if end.hash is None and end.seq:
            raise BreakRefused(opened.path, "the file after it is damaged too, nothing links them")
        suffix = self._suffix(opened, head, end)
        stop, lines = (size, 0) if suffix is None else (suffix.start, suffix.lines)
        last_seq = end.seq
        if not last_seq:  # count what is there, unless somebody knows of more
            between = head.seq + count_lines(self._files, opened.fd, head.size, stop)
            least = suffix.least_seq - 1 if suffix is not None else 0
            last_seq = max(between + lines, least + lines, found.durable, self._promised)
        if last_seq - lines < head.seq:
            raise BreakRefused(opened.path, "it holds more events than there is room for")
        if suffix is not None:
            previous, at, last, stamp = (
                suffix.previous,
                suffix.previous_at,
                suffix.last,
                suffix.stamp,
            )
        else:
            # Where nobody says how it ended, the next file pins down what is there.
            last = previous = end.hash or sha256(digest.encode("ascii")).hexdigest().encode("ascii")
            at, stamp = -1, head.timestamp
        if self._head is not None and opened is self._log.opened:
            stamp = self._head.timestamp
        lost = Lost(head.seq + 1, last_seq - lines, head.size, stop, previous.decode("ascii"), at)
        return lost, Head(last_seq, last, size, max(stamp, head.timestamp), last_seq, head.file)

    def _suffix(self, opened: Opened, head: Head, end: _End) -> Suffix | None:
        """Return the lines at a file's end that link to what comes after it."""
        size, fd = self._files.size(opened.fd), opened.fd
        if opened is self._log.opened and self._head is not None and self._head.size != size:
            return None  # bytes stand behind the end that nobody has published; they would be read as events
        last = end.hash or last_line(self._files, fd, size)[:HASH_BYTES]
        at = -1
        if head.seq >= head.file:
            at = head.size - len(last_line(self._files, fd, head.size)) - 1
        return find_suffix(self._files, fd, head.size, size, good=(head.hash, at), last=last)
