"""Go through the files of a log once, comparing each with the one before it, and judge.

What comes first in the log is told first. A header is a claim outside the chain: where a file begins,
after which hash, after which bytes. It is held against the file that was just read.
"""

from __future__ import annotations

from dataclasses import dataclass

from .chain import HASH_BYTES, Header, first_header, follows, link, split_line
from .control import EMPTY, Head
from .files import Files
from .integrity import BrokenAt, IntegrityReport, Status, Verified
from .verify_accepted import AcceptedDamage, scan_around
from .verify_claims import Claims
from .verify_task import ActiveFile, Task
from .wal.lines import read_lines
from .wal.repair import Break, Scan
from .wal.segments import (
    LogFile,
    is_next,
    last_line,
    read_header,
    segment_numbers,
    start_of,
)
from .wal.succession import digest_of

_LOOKS_AT_A_LIVE_TAIL = 40
_LOOK_SECONDS = 0.005


@dataclass(frozen=True, slots=True)
class _File:
    """Describe a file that was read: what its header claims, its place, its hash (None: not what it had been)."""

    header: Header
    path: str
    sha256: str | None


class Verification:
    """Verify one log once."""

    def __init__(self, task: Task, files: Files, active: ActiveFile) -> None:
        self._task = task
        self._files = files
        self._active = active
        self._log_id = active.log.header.log_id
        self._claims = Claims(task.anchors)
        last = active.log.header.first_seq
        sealed = [number for number in segment_numbers(task.layout) if number < last]
        self._numbers = [*sealed, last]
        self._accepted = AcceptedDamage(task.layout, files, self._numbers)
        self._at: Head | None = None
        self._before: _File | None = None
        self._may_resume: bool | None = None

    def report(self) -> IntegrityReport:
        """Verify, and say what was found.

        Raises:
            FileNotFoundError: a sealed file was there and is gone; it was compacted, or somebody removed it.
        """
        answer = self._judge_names()
        numbers = self._numbers
        if answer is None and self._resumes():
            answer = self._resume() or self._judge_resumed()
            numbers = [number for number in numbers if self._at and number >= self._at.file]
        for number in numbers:
            if answer is None:
                answer = self._read(number)
        return (
            answer
            or self._judge_end()
            or self._judge_beginning()
            or self._judge_notes()
            or self._judge_what_holds()
        )

    def has_moved(self) -> bool:
        """Tell whether the log has other files by now than when this began."""
        layout, opened = self._task.layout, self._active.log.opened
        sealed = [number for number in segment_numbers(layout) if number < self._numbers[-1]]
        return sealed != self._numbers[:-1] or not self._files.is_same(layout.active, opened)

    def _judge_names(self) -> IntegrityReport | None:
        """Compare the identity of the active file, before anything is read."""
        if self._task.log_id not in (None, self._log_id):
            return self._answer(Status.FOREIGN, f"it is log {self._log_id}")
        for anchor in self._task.anchors:
            if anchor.log_id != self._log_id:
                reason = f"it is log {self._log_id}, the anchor is of log {anchor.log_id}"
                return self._answer(Status.FOREIGN, reason)
        return None

    def _read(self, number: int) -> IntegrityReport | None:
        """Verify one file, from its header or from where an earlier verification ended."""
        active = self._active.log
        if number == active.header.first_seq:
            return self._read_file(number, active.header, active)
        opened = self._files.open_to_read(self._task.layout.segment(number))
        try:
            log = LogFile(read_header(self._files, opened.fd) or _NO_HEADER, opened)
            return self._read_file(number, log.header, log)
        finally:
            opened.close()

    def _read_file(self, number: int, header: Header, log: LogFile) -> IntegrityReport | None:
        damage = self._accepted.of(number, log.opened)
        header = (damage.true_header() if damage is not None else None) or header
        lost = damage.lost if damage is not None else None
        resumed = self._at is not None and self._at.file == number
        if not resumed:
            answer = self._judge_header(number, header, log.opened.path)
            if answer is not None:
                return answer
            stamp = self._at.timestamp if self._at is not None else EMPTY.timestamp
            self._at = start_of(header)._replace(timestamp=stamp)
            self._claims.see_start(self._at)
        assert self._at is not None
        fd, is_active = log.opened.fd, log is self._active.log
        end, see = self._end(log), self._claims.see
        found = scan_around(self._files, fd, self._at, end, lost=lost, notice=see)
        first = self._at
        self._at = found.head
        if not resumed and not (lost is not None and lost.first_seq == 1):
            answer = self._judge_identity(log, first)
            if answer is not None:
                return answer
        if found.broken is not None:
            return self._judge_break(found, found.broken, log)
        if not is_active:
            digest = digest_of(self._files, fd, self._files.size(fd)) if damage is None else None
            self._before = _File(header, log.opened.path, digest)
        return None

    def _end(self, log: LogFile) -> int:
        size, head = self._files.size(log.opened.fd), self._active.head
        if log is not self._active.log or head is None:
            return size
        if head.file == log.header.first_seq:
            return min(head.size, size)
        return len(log.header.format()) if is_next(log.header, head) else size

    def _judge_header(self, number: int, header: Header, path: str) -> IntegrityReport | None:
        """Compare a header with the name of its file and with the file before it."""
        where = BrokenAt(number, path, 0)
        if header is _NO_HEADER:
            return self._answer(Status.CORRUPT, "it has no header of this format", where)
        if header.log_id != self._log_id:
            reason = f"{path} is of log {header.log_id}, the log is {self._log_id}"
            return self._answer(Status.FOREIGN, reason, where)
        if header.first_seq != number:
            reason = f"{path} claims to begin at event {header.first_seq}; its name says otherwise"
            return self._answer(Status.CORRUPT, reason, where)
        if self._at is None:
            if number == 1 and header != first_header(self._log_id):
                return self._answer(Status.CORRUPT, "the header of the first file is wrong", where)
            return None
        last = self._at.seq
        if number > last + 1:
            gone = self._accepted.gap(last + 1, number - 1)
            if gone is not None:
                hash_ = gone.hash.encode("ascii")
                self._at, self._before = self._at._replace(seq=number - 1, hash=hash_), None
                return self._judge_claims(header, gone.hash, where)
            reason = f"events {last + 1} to {number - 1} are missing: a file, or the end of one"
            return self._answer(Status.GAP, reason, where)
        if number <= last:
            reason = f"{path} begins at event {number}, the file before it ends at {last}"
            return self._answer(Status.CORRUPT, reason, where)
        return self._judge_claims(header, self._at.hash.decode("ascii"), where)

    def _judge_claims(self, header: Header, base: str, where: BrokenAt) -> IntegrityReport | None:
        before = self._before
        if header.base_hash != base:
            where = BrokenAt(where.seq, where.path, 0, base, header.base_hash)
            reason = "its header does not go on where the file before it ends"
            return self._answer(Status.CORRUPT, reason, where)
        if before is None:
            return None
        if header.segment != before.header.segment + 1:
            reason = f"its header says segment {header.segment}, the one before it {before.header.segment}"
            return self._answer(Status.CORRUPT, reason, where)
        if before.sha256 is not None and header.previous_sha256 != before.sha256:
            where = BrokenAt(where.seq, where.path, 0, before.sha256, header.previous_sha256)
            reason = f"its header names other bytes than {before.path} has"
            return self._answer(Status.CORRUPT, reason, where)
        return None

    def _judge_identity(self, log: LogFile, start: Head) -> IntegrityReport | None:
        """Compare the first header, which is only a claim, with event 1, which the chain covers."""
        if start.seq != 0 or self._at is None or self._at.seq == 0:
            return None
        first = next(read_lines(self._files, log.opened.fd, start.size, self._at.size))
        parts = split_line(first.data)
        named = f'"log_id":"{self._log_id}"'.encode()
        if parts is not None and parts.type == b"wal.created" and named in parts.payload:
            return None
        self._at = start
        return self._answer(Status.FOREIGN, "event 1 does not name the header's log")

    def _judge_break(self, found: Scan, broken: Break, log: LogFile) -> IntegrityReport:
        where = self._place(found, broken, log)
        is_sealed = log is not self._active.log
        known = max(found.durable, self._active.known_seq, self._claims.highest_anchor)
        if is_sealed:
            why = "its file was sealed"
            if self._accepted.was_changed(log.header.first_seq):
                why = "its file was changed since its damage was accepted"
            reason = f"event {broken.seq}: {broken.reason}; {why}"
            return self._answer(Status.CORRUPT, reason, where)
        if broken.seq <= known:
            reason = f"event {broken.seq}: {broken.reason}; event {known} had been written"
            return self._answer(Status.CORRUPT, reason, where)
        reason = f"{broken.reason}; nothing behind event {found.head.seq} was known to be durable"
        return self._answer(Status.TORN_TAIL, reason, where)

    def _judge_end(self) -> IntegrityReport | None:
        """Compare a chain that holds with what this boot has published."""
        head, last = self._active.head, self._at
        if head is None or last is None:
            return None
        if last.seq < head.seq:
            reason = f"{head.seq} events were published in this boot, {last.seq} are there"
            return self._answer(Status.TRUNCATED, reason)
        if (last.seq, last.hash) != (head.seq, head.hash):
            reason = "the chain holds, but it is not the one that this boot has published"
            return self._answer(Status.FORKED, reason)
        if self._has_stray_tail():
            where = BrokenAt(last.seq + 1, self._active.log.opened.path, last.size)
            reason = "bytes that nobody has published; the next append settles them"
            return self._answer(Status.TORN_TAIL, reason, where)
        return None

    def _judge_beginning(self) -> IntegrityReport | None:
        """Ask what authorises that the log does not begin at event 1."""
        first = self._numbers[0]
        if first == 1 or self._resumes():
            return None
        fault = self._claims.judge_beginning(first, self._header_of(first))
        return None if fault is None else self._answer(*fault)

    def _judge_notes(self) -> IntegrityReport | None:
        """See that what allowed to pass by some damage stands in the chain."""
        after_seq = self._task.after.seq if self._resumes() and self._task.after else 0
        forged = self._accepted.forged(self._claims.repaired, after_seq=after_seq)
        if forged is None:
            return None
        where = BrokenAt(forged.damage.first_seq, forged.damage.name, forged.damage.offset)
        reason = f"the note that accepts its damage, event {forged.note.seq}, is not in the chain"
        return self._answer(Status.CORRUPT, reason, where)

    def _judge_what_holds(self) -> IntegrityReport:
        """Compare a chain that holds with the anchors, and say which part of it is accepted as lost."""
        found = self._judge_anchors() or self._answer(Status.OK_UNANCHORED, _UNANCHORED)
        return self._accepted.told(found) if found.status.is_good else found

    def _judge_anchors(self) -> IntegrityReport | None:
        assert self._at is not None
        found = self._claims.judge_anchors(self._at.seq)
        if found is None:
            return None
        status, reason, anchored_to = found
        return self._answer(status, reason, anchored_to=anchored_to)

    def _resumes(self) -> bool:
        """Tell whether an earlier verification can be gone on from: the log begins where it did, its file is there.

        What authorises another beginning may stand before the place where that verification ended.
        """
        after, numbers = self._task.after, self._numbers
        if after is None or after.first_seq != numbers[0] or after.file not in numbers:
            return False
        if self._may_resume is None:
            self._may_resume = self._accepted.stands_before(after.file)
        return self._may_resume

    def _resume(self) -> IntegrityReport | None:
        """Begin where an earlier verification ended, if its last event is still there."""
        after = self._task.after
        assert after is not None
        layout, active = self._task.layout, self._active.log.opened
        is_active = after.file == self._numbers[-1]
        path = layout.active if is_active else layout.segment(after.file)
        # The active one is open already; by now its name may mean another.
        opened = active if is_active else self._files.open_to_read(path)
        try:
            header = read_header(self._files, opened.fd)
            size = self._files.size(opened.fd)
            line = last_line(self._files, opened.fd, min(after.offset, size))
        finally:
            if not is_active:
                opened.close()
        if header is None or header.first_seq != after.file:
            return self._answer(Status.CORRUPT, f"{path} has another header than it had")
        start = start_of(header)
        if (after.seq, after.offset) == (start.seq, start.size):
            line = start.hash + b"|"
        where = BrokenAt(after.seq, str(path), after.offset)
        if size < after.offset:
            reason = f"{path} had {after.offset} bytes when it was verified, it has {size}"
            return self._answer(Status.TRUNCATED, reason, where)
        if line[:HASH_BYTES] != after.hash.encode():
            reason = f"event {after.seq} is another than the one that was verified"
            return self._answer(Status.FORKED, reason, where)
        parts = split_line(line)
        stamp = parts.timestamp if parts is not None else EMPTY.timestamp
        self._at = Head(after.seq, after.hash.encode(), after.offset, stamp, 0, after.file)
        self._claims.see_start(self._at)
        return None

    def _judge_resumed(self) -> IntegrityReport | None:
        """See by their headers that no file before the place of resuming is missing."""
        segment: int | None = None
        for number in self._numbers:
            assert self._at is not None
            if number > self._at.file:
                break
            header = self._header_of(number)
            gap = self._accepted.is_gap_before(number)
            if segment is not None and header.segment != segment + 1 and not gap:
                where = BrokenAt(number, str(self._task.layout.segment(number)), 0)
                reason = f"segment {segment} is followed by segment {header.segment}"
                return self._answer(Status.GAP, reason, where)
            segment = header.segment
        return None

    def _header_of(self, number: int) -> Header:
        if number == self._numbers[-1]:
            return self._active.log.header
        opened = self._files.open_to_read(self._task.layout.segment(number))
        try:
            return read_header(self._files, opened.fd) or _NO_HEADER
        finally:
            opened.close()

    def _has_stray_tail(self) -> bool:
        """Tell whether bytes behind the published head stay there, other than an append's on its way."""
        for _ in range(_LOOKS_AT_A_LIVE_TAIL):
            size = self._files.size(self._active.log.opened.fd)
            head = self._task.published()[0]
            if head is None or head.size >= size or head.file != self._numbers[-1]:
                return False
            self._files.nap(_LOOK_SECONDS)
        return True

    def _place(self, found: Scan, broken: Break, log: LogFile) -> BrokenAt:
        fd, path = log.opened.fd, log.opened.path
        line = next(read_lines(self._files, fd, broken.offset, self._files.size(fd)), None)
        if line is None or split_line(line.data) is None or follows(found.head.hash, line.data):
            return BrokenAt(broken.seq, path, broken.offset)
        expected = link(found.head.hash, line.data[HASH_BYTES:]).decode()
        stored = line.data[:HASH_BYTES].decode()
        return BrokenAt(broken.seq, path, broken.offset, expected, stored)

    def _answer(
        self,
        status: Status,
        reason: str,
        where: BrokenAt | None = None,
        *,
        anchored_to: str | None = None,
    ) -> IntegrityReport:
        at, first = self._at or EMPTY, self._numbers[0]
        hash_ = at.hash.decode("ascii")
        is_good, lost = status.is_good, self._accepted.lost_events(at.seq)
        return IntegrityReport(
            status,
            max(0, at.seq - first + 1 - lost),
            hash_,
            where,
            reason,
            anchored_to=anchored_to,
            first_seq=first,
            verified=Verified(at.seq, hash_, at.file, at.size, first) if is_good else None,
            lost=lost,
        )


_NO_HEADER = first_header("")

_UNANCHORED = (
    "the chain is good, but no anchor outside this machine vouches for it: whoever can write the file "
    "could have rewritten all of it, and that nothing was cut off its end is not provable"
)
