"""Write and read the file of a snapshot: every run's state, and what is still needed of the log.

It is text, one thing a line, so that it can be read with `less` years later::

    #celery-snapshot/1 {json}                            which log, up to which event
    T <table> {json}                                     a row of what else is folded (dead letters)
    R <run id as JSON> {json}                            the state of every run, by run id
    L <run id> <seq> <file> <offset> <previous> <line>   the events of unfinished runs, by run id
    E {json}                                             counts, and where the parts begin

An event stands here byte by byte as it was stored, with the hash it was chained to; so it is checked
as it would be in the log. The file as a whole is believed only when its SHA-256 is the one that the
chained `snapshot.created` names. R and L lines are sorted by the run id's bytes: one run is found by
halving, and neither writing nor reading holds more than one run in memory.

Weakness: every run that ever was keeps its line, about 400 bytes; nothing leaves out old ones yet.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from .chain import HASH_BYTES, LINE_BYTES_MAX
from .errors import LogUnreadable, SnapshotMismatch
from .events import Position, run_key
from .files import Files, Opened
from .wal import StoredLine

T = TypeVar("T")

FORMAT: Final = "celery-snapshot/1"

_FRONT: Final = f"#{FORMAT} ".encode("ascii")
_END_BYTES_MAX: Final = 1024
_CHUNK_BYTES: Final = 1024 * 1024
_LINE_BYTES_MAX: Final = LINE_BYTES_MAX + 4096  # an event, and what is said of it here
_PROBE_BYTES: Final = 8192
_UNREADABLE: Final = (ValueError, KeyError, IndexError, TypeError)


@dataclass(frozen=True, slots=True)
class Head:
    """What a snapshot says of itself in its first line; a claim, until the whole file is hashed."""

    id: str
    name: str
    log_id: str
    position: Position
    hash: str  # of the event at the position
    created_at: str
    fold_version: int
    gaps: int = 0  # observed events that were dropped, as far as the log tells
    gap_at: int | None = None  # when it last told of some, as the ledger keeps moments

    def line(self) -> bytes:
        """Return the first line with its LF."""
        said = {name: getattr(self, name) for name in self.__slots__}
        return _FRONT + _dump({**said, "position": str(self.position)}) + b"\n"

    @classmethod
    def parse(cls, line: bytes) -> Head | None:
        """Read a first line without its LF; None when it is none of ours."""
        if not line.startswith(_FRONT):
            return None
        try:
            said = json.loads(line[len(_FRONT) :])
            return cls(**{**said, "position": Position.parse(said["position"])})
        except (ValueError, TypeError, KeyError, AttributeError):
            return None


class SnapshotWriter:
    """Write the parts in the order of the format; the caller syncs and names the file."""

    def __init__(self, files: Files, fd: int, head: Head) -> None:
        self._files = files
        self._fd = fd
        self._digest = hashlib.sha256()
        self._written = 0
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._begins: dict[str, int] = {}
        self.counts = {"T": 0, "R": 0, "L": 0}
        self._put(head.line())

    def row(self, table: str, row: Mapping[str, Any]) -> None:
        """Add a row of another table than `runs`."""
        self._line("T", b"%b %b" % (table.encode("ascii"), _dump(row)))

    def run(self, run_id: str, row: Mapping[str, Any]) -> None:
        """Add the row of a run."""
        self._line("R", b"%b %b" % (run_key(run_id), _dump(row)))

    def event(self, run_id: str, stored: StoredLine) -> None:
        """Add an event of an unfinished run."""
        place = b"%d %d %d" % (stored.seq, stored.file, stored.offset)
        self._line("L", b"%b %b %b %b" % (run_key(run_id), place, stored.previous, stored.line))

    def finish(self) -> str:
        """Write the last line and return the SHA-256 of all, in hex."""
        end = self._written + self._waiting_bytes
        begins = {part: self._begins.get(part, end) for part in "RL"}
        self._put(b"E " + _dump({**self.counts, "begins": begins}) + b"\n")
        self._flush()
        return self._digest.hexdigest()

    def _line(self, part: str, content: bytes) -> None:
        self._begins.setdefault(part, self._written + self._waiting_bytes)
        if part == "L":  # where no run stands there is no R line either
            self._begins.setdefault("R", self._begins[part])
        self.counts[part] += 1
        self._put(b"%b %b\n" % (part.encode("ascii"), content))

    def _put(self, line: bytes) -> None:
        self._waiting.append(line)
        self._waiting_bytes += len(line)
        if self._waiting_bytes >= _CHUNK_BYTES:
            self._flush()

    def _flush(self) -> None:
        data = b"".join(self._waiting)
        self._files.write_at(self._fd, data, self._written)
        self._digest.update(data)
        self._written += len(data)
        self._waiting, self._waiting_bytes = [], 0


class SnapshotFile:
    """Read one snapshot file; nothing of it is to be believed before `check` was asked."""

    def __init__(self, files: Files, path: Path) -> None:
        self._files = files
        self.path = path

    def head(self) -> Head | None:
        """Return what it says of itself; None when it is no snapshot."""
        return self._opened(lambda fd: Head.parse(self._line(fd, 0)))

    def identity(self) -> tuple[int, ...]:
        """Return what changes when somebody writes to it."""
        try:
            found = self._files.stat(os.fspath(self.path))
        except (FileNotFoundError, NotADirectoryError) as error:
            raise SnapshotMismatch(self.path, "it is missing") from error
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns

    def sha256(self) -> str:
        """Hash the whole file."""

        def hashed(fd: int) -> str:
            digest, offset = hashlib.sha256(), 0
            while part := self._files.read(fd, _CHUNK_BYTES, offset):
                digest.update(part)
                offset += len(part)
            return digest.hexdigest()

        return self._opened(hashed)

    def check(self, sha256: str) -> None:
        """Return when it is byte for byte what the log says.

        Raises:
            SnapshotMismatch: it is missing, or another one.
        """
        found = self.sha256()
        if found != sha256:
            raise SnapshotMismatch(self.path, f"its SHA-256 is {found}, the log says {sha256}")

    def runs(self) -> Iterator[dict[str, Any]]:
        """Yield the row of every run, by run id."""
        return self._read(json.loads(rest) for _, rest in self._parts("R"))

    def rows(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the rows of other tables with the table's name."""
        parts = (rest.partition(b" ") for rest in self._lines(b"T "))
        return self._read((table.decode("ascii"), json.loads(row)) for table, _, row in parts)

    def events(self) -> Iterator[tuple[str, StoredLine]]:
        """Yield the stored lines of all unfinished runs, by run id, and in order for each."""
        return self._read((run_id, _stored(rest)) for run_id, rest in self._parts("L"))

    def run(self, run_id: str) -> dict[str, Any] | None:
        """Return the row of one run, or None."""

        def row(fd: int) -> dict[str, Any] | None:
            found = self._find(fd, "R", run_id)
            return json.loads(found[0]) if found else None

        return self._opened(row)

    def lines(self, run_id: str) -> list[StoredLine]:
        """Return the kept lines of one run; none when it had ended, or is not known."""
        return self._opened(lambda fd: [_stored(rest) for rest in self._find(fd, "L", run_id)])

    def _opened(self, work: Callable[[int], T]) -> T:
        try:
            opened: Opened = self._files.open_to_read(self.path)
        except FileNotFoundError as error:
            raise SnapshotMismatch(self.path, "it is missing") from error
        except LogUnreadable as error:
            if isinstance(error.__cause__, OSError):
                raise  # no descriptor left, a bad sector: that says nothing against the snapshot
            raise SnapshotMismatch(self.path, error.reason) from error
        try:
            return work(opened.fd)
        except _UNREADABLE as error:
            raise self._mismatch(error) from error
        finally:
            opened.close()

    def _read(self, parts: Iterator[T]) -> Iterator[T]:
        """Yield what is read part by part, whatever a part turns out to be."""
        try:
            yield from parts
        except _UNREADABLE as error:
            raise self._mismatch(error) from error

    def _mismatch(self, error: Exception) -> SnapshotMismatch:
        return SnapshotMismatch(self.path, f"it cannot be read: {error}")

    def _line(self, fd: int, offset: int) -> bytes:
        """Return the line that begins at an offset, without its LF; most are short."""
        size = _PROBE_BYTES
        while True:
            line, newline, _ = self._files.read(fd, size, offset).partition(b"\n")
            if newline or len(line) < size or size > _LINE_BYTES_MAX:
                return line
            size *= 16

    def _begins(self, fd: int) -> dict[str, int]:
        size = self._files.size(fd)
        start = max(0, size - _END_BYTES_MAX)
        tail = self._files.read(fd, size - start, start)[:-1]
        line = tail[tail.rfind(b"\n") + 1 :]
        begins = json.loads(line.removeprefix(b"E "))["begins"]
        return {"R": begins["R"], "L": begins["L"], "E": start + tail.rfind(b"\n") + 1}

    def _find(self, fd: int, part: str, run_id: str) -> list[bytes]:
        """Return what follows the run id on every line of one run, by halving a sorted part."""
        begins = self._begins(fd)
        low, high = begins[part], begins["L" if part == "R" else "E"]
        wanted = run_id.encode("utf-8")
        while low < high:  # lines before low are of smaller ids, lines from high on are not
            start = self._line_start(fd, (low + high) // 2, low)
            if self._id_at(fd, start) < wanted:
                low = start + len(self._line(fd, start)) + 1
            else:
                high = start
        return self._gather(fd, part, low, wanted)

    def _line_start(self, fd: int, offset: int, low: int) -> int:
        """Return where the line begins that an offset lies in."""
        at = offset
        while at > low:
            start = max(low, at - _PROBE_BYTES)
            found = self._files.read(fd, at - start, start).rfind(b"\n")
            if found >= 0:
                return start + found + 1
            at = start
        return low

    def _id_at(self, fd: int, offset: int) -> bytes:
        return _split(self._files.read(fd, _PROBE_BYTES, offset)[2:])[0].encode("utf-8")

    def _gather(self, fd: int, part: str, offset: int, wanted: bytes) -> list[bytes]:
        found: list[bytes] = []
        front = part.encode("ascii") + b" "
        while True:
            line = self._line(fd, offset)
            if not line.startswith(front):
                return found
            run_id, rest = _split(line[2:])
            if run_id.encode("utf-8") != wanted:
                return found
            found.append(rest)
            offset += len(line) + 1

    def _parts(self, part: str) -> Iterator[tuple[str, bytes]]:
        return (_split(line) for line in self._lines(part.encode("ascii") + b" "))

    def _lines(self, front: bytes) -> Iterator[bytes]:
        """Yield what follows `front` on the lines that begin with it, in bounded memory."""
        try:
            opened = self._files.open_to_read(self.path)
        except FileNotFoundError as error:
            raise SnapshotMismatch(self.path, "it is missing") from error
        try:
            offset, rest = 0, b""
            while chunk := self._files.read(opened.fd, _CHUNK_BYTES, offset):
                offset += len(chunk)
                *lines, rest = (rest + chunk).split(b"\n")
                yield from (line[len(front) :] for line in lines if line.startswith(front))
        finally:
            opened.close()


def _dump(said: Mapping[str, Any]) -> bytes:
    return json.dumps(said, ensure_ascii=False, separators=(",", ":")).encode("utf-8")


def _split(line: bytes) -> tuple[str, bytes]:
    """Return the run id that a line begins with, and what follows it and a space."""
    at = 1
    while (at := line.index(b'"', at)) and _escapes(line, at) % 2:
        at += 1
    return json.loads(line[: at + 1]), line[at + 2 :]


def _escapes(line: bytes, at: int) -> int:
    """Return how many backslashes stand before an offset."""
    return len(line[:at]) - len(line[:at].rstrip(b"\\"))


def _stored(rest: bytes) -> StoredLine:
    seq, file, offset, previous, line = rest.split(b" ", 4)
    if len(previous) != HASH_BYTES:
        raise ValueError("a line of a run has no hash before it")
    return StoredLine(int(seq), previous, line, int(file), int(offset))
