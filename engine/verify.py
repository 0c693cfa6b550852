"""Check a log from its stored bytes, and say what was found in a way that can be acted on.

Every line is hashed as it stands; no JSON is read. The answer is never a bare yes: without an
anchor outside the writer's reach, a good chain still says nothing about events that were cut off
its end, nor about a log that was rewritten as a whole.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from .chain import GENESIS, HASH_BYTES, Header, follows, link, split_line
from .control import EMPTY, Head, Promise
from .errors import LogUnavailable, StrPath
from .files import Files, Opened
from .wal.lines import read_lines
from .wal.repair import Scan, scan, start_of
from .wal.session import read_header

Published = Callable[[], tuple[Head | None, Promise | None]]

_LOOKS_AT_A_LIVE_TAIL = 40
_LOOK_SECONDS = 0.005


class Status(Enum):
    """Name what verification found; the value is the exit code."""

    OK_ANCHORED = 0
    OK_UNANCHORED = 10
    TORN_TAIL = 20
    CORRUPT = 30
    TRUNCATED = 31
    FORKED = 32
    GAP = 33
    FOREIGN = 34
    BAD_SIGNATURE = 35
    UNAUTHORISED_COMPACTION = 36
    STALE_ANCHOR = 37
    SNAPSHOT_MISMATCH = 38
    UNREADABLE = 40


@dataclass(frozen=True, slots=True)
class BrokenAt:
    """Say where the log stops being good; expected and found are hashes, where there are two."""

    seq: int
    path: str
    offset: int
    expected: str | None = None
    found: str | None = None


@dataclass(frozen=True, slots=True)
class IntegrityReport:
    """Say what verification came to.

    ``events`` hold, ``head`` is the hash of the last of them, ``broken_at`` is what comes next.
    """

    status: Status
    events: int
    head: str
    broken_at: BrokenAt | None
    reason: str
    anchored_to: str | None = None

    @property
    def exit_code(self) -> int:
        """Return the status as a process would."""
        return self.status.value


def verify_log(
    path: StrPath,
    *,
    published: Published | None = None,
    log_id: str | None = None,
    files: Files | None = None,
) -> IntegrityReport:
    """Verify the log file at `path`, in bounded memory; never raises for what a file may hold.

    Args:
        path: the file, with or without the directory beside it.
        published: tells the head and the durable position that this boot has published; without it the
            file is judged alone.
        log_id: which log it must be; by default any.
        files: the operating system.
    """
    files = files or Files()
    try:
        log = files.open_to_read(Path(path))
    except (OSError, LogUnavailable) as error:
        return _unreadable(getattr(error, "reason", None) or str(error))
    try:
        return _Verification(files, log, published or _nothing, log_id).report()
    except OSError as error:
        return _unreadable(f"reading failed: {error.strerror}")
    finally:
        log.close()


class _Verification:
    """Verify one open file once."""

    def __init__(self, files: Files, log: Opened, published: Published, log_id: str | None) -> None:
        self._files = files
        self._log = log
        self._published = published
        self._log_id = log_id

    def report(self) -> IntegrityReport:
        header = read_header(self._files, self._log.fd)
        if header is None:
            return self._answer(Status.FOREIGN, None, "the file has no header of this format")
        if self._log_id not in (None, header.log_id):
            return self._answer(Status.FOREIGN, None, f"it is log {header.log_id}")
        head, promise = self._published()
        start = start_of(header)
        size = self._files.size(self._log.fd)
        end = min(head.size, size) if head is not None else size
        found = scan(self._files, self._log.fd, start, end)
        return (
            self._judge_identity(header, start, found)
            or self._judge_break(found, head, promise)
            or self._judge_end(found, head)
            or self._judge_beginning(header, found)
            or self._answer(Status.OK_UNANCHORED, found.head, _UNANCHORED)
        )

    def _judge_identity(self, header: Header, start: Head, found: Scan) -> IntegrityReport | None:
        """Compare the header, which is only a claim, with event 1, which the chain covers."""
        if header.first_seq != 1 or found.head.seq == 0:
            return None
        first = next(read_lines(self._files, self._log.fd, start.size, found.head.size))
        parts = split_line(first.data)
        named = f'"log_id":"{header.log_id}"'.encode()
        if parts is not None and parts.type == b"wal.created" and named in parts.payload:
            return None
        return self._answer(Status.FOREIGN, start, "event 1 does not name the header's log")

    def _judge_break(
        self, found: Scan, head: Head | None, promise: Promise | None
    ) -> IntegrityReport | None:
        broken = found.broken
        if broken is None:
            return None
        known = max(found.durable, promise.seq if promise else 0, head.seq if head else 0)
        where = self._place(found)
        if broken.seq <= known:
            reason = f"event {broken.seq}: {broken.reason}; event {known} had been written"
            return self._answer(Status.CORRUPT, found.head, reason, where)
        reason = f"{broken.reason}; nothing behind event {found.head.seq} was known to be durable"
        return self._answer(Status.TORN_TAIL, found.head, reason, where)

    def _judge_end(self, found: Scan, head: Head | None) -> IntegrityReport | None:
        """Compare a chain that holds with what this boot has published."""
        if head is None:
            return None
        last = found.head
        if last.seq < head.seq:
            reason = f"{head.seq} events were published in this boot, {last.seq} are there"
            return self._answer(Status.TRUNCATED, last, reason)
        if (last.seq, last.hash) != (head.seq, head.hash):
            reason = "the chain holds, but it is not the one that this boot has published"
            return self._answer(Status.FORKED, last, reason)
        if self._has_stray_tail():
            where = BrokenAt(last.seq + 1, self._log.path, last.size)
            reason = "bytes that nobody has published; the next append settles them"
            return self._answer(Status.TORN_TAIL, last, reason, where)
        return None

    def _judge_beginning(self, header: Header, found: Scan) -> IntegrityReport | None:
        if header.first_seq == 1:
            return None
        reason = f"the file begins at event {header.first_seq}; what came before is missing"
        return self._answer(Status.GAP, found.head, reason)

    def _has_stray_tail(self) -> bool:
        """Tell whether bytes behind the published head stay there, other than an append's on its way."""
        for _ in range(_LOOKS_AT_A_LIVE_TAIL):
            size = self._files.size(self._log.fd)
            head = self._published()[0]
            if head is None or head.size >= size:
                return False
            self._files.nap(_LOOK_SECONDS)
        return True

    def _place(self, found: Scan) -> BrokenAt:
        broken = found.broken
        assert broken is not None
        end = self._files.size(self._log.fd)
        line = next(read_lines(self._files, self._log.fd, broken.offset, end), None)
        if line is None or split_line(line.data) is None or follows(found.head.hash, line.data):
            return BrokenAt(broken.seq, self._log.path, broken.offset)
        expected = link(found.head.hash, line.data[HASH_BYTES:]).decode()
        stored = line.data[:HASH_BYTES].decode()
        return BrokenAt(broken.seq, self._log.path, broken.offset, expected, stored)

    def _answer(
        self, status: Status, head: Head | None, reason: str, where: BrokenAt | None = None
    ) -> IntegrityReport:
        last = head if head is not None else EMPTY
        return IntegrityReport(status, last.seq, last.hash.decode("ascii"), where, reason)


_UNANCHORED = (
    "the chain is good, but no anchor outside this machine vouches for it: whoever can write the file "
    "could have rewritten all of it, and that nothing was cut off its end is not provable"
)


def _unreadable(reason: str) -> IntegrityReport:
    return IntegrityReport(Status.UNREADABLE, 0, GENESIS.decode("ascii"), None, reason)


def _nothing() -> tuple[None, None]:
    return None, None
