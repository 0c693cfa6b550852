"""Remember what a log once was, where the log's writer cannot rewrite it."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from .errors import CommanderError, StrPath
from .files import sync_directory

if TYPE_CHECKING:
    from .engine import EventSourcingEngine

FORMAT: Final = "celery-anchor 1"
_LINE_BYTES_MAX: Final = 4096


_POLL_SECONDS: Final = 0.05


class AnchorError(CommanderError):
    """The anchors of the log could not be used."""


class AnchorContradicted(AnchorError):
    """{path} already knows {anchored}, the log now offers {offered}.
    The log was cut, restored from a backup or rewritten: verify it, and keep the anchors as they are.
    """

    def __init__(self, path: StrPath, anchored: str, offered: str) -> None:
        super().__init__(os.fspath(path), anchored, offered)
        self.path = os.fspath(path)
        self.anchored = anchored
        self.offered = offered


class AnchorsUnreadable(AnchorError):
    """Line {line} of {path} is no anchor of this log: {reason}.
    Nothing is changed; find out who wrote there.
    """

    def __init__(self, path: StrPath, line: int, reason: str) -> None:
        super().__init__(os.fspath(path), line, reason)
        self.path = os.fspath(path)
        self.line = line
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Anchor:
    """Say that a log had an event of this hash (64 hex digits) at this seq, at a moment in UTC."""

    log_id: str
    seq: int
    hash: str
    at: datetime

    def __str__(self) -> str:
        return f"event {self.seq} ({self.hash}) at {self.at.isoformat()}"


class AnchorDirectory:
    """Keep a log's anchors in one file that only grows, in a directory outside the log's own.

    It is worth as much as the place: on another disk, under another user or on a write-once mount, whoever rewrites the
    log cannot also rewrite what it was. A directory beside the log, writable by the same user, proves nothing.

    The file has one JSON line an anchor and is never thinned: 180 bytes each, and none while the log stands still.
    """

    def __init__(self, path: StrPath) -> None:
        self.path = Path(path)

    def write(self, anchor: Anchor) -> bool:
        """Append an anchor and sync it; False when the last one says the same.

        Anchor durable events only: after a power cut an anchor of a lost event would read as a cut log.

        Raises:
            AnchorContradicted: what is anchored already knows more events, or another one at this seq.
            AnchorsUnreadable: the file holds something else than anchors of this log.
            OSError: the directory cannot be written.
        """
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._locked(anchor.log_id) as fd:
            text, whole = _whole_lines(fd)
            *_, last = [None, *_parse(text, self._file(anchor.log_id), anchor.log_id)]
            if last is not None:
                if (last.seq, last.hash) == (anchor.seq, anchor.hash):
                    return False
                if last.seq >= anchor.seq:
                    raise AnchorContradicted(self._file(anchor.log_id), str(last), str(anchor))
            os.ftruncate(fd, whole)  # what a crash left of a line that nobody was told of
            _write_all(fd, _format(anchor))
            os.fsync(fd)
        sync_directory(self.path)
        return True

    def read(self, log_id: str) -> list[Anchor]:
        """Return the anchors of a log, oldest first; none when nothing was ever anchored.

        Raises:
            AnchorsUnreadable: the file holds something else than anchors of this log.
            OSError: it is there and cannot be read.
        """
        try:
            fd = os.open(self._file(log_id), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return []
        try:
            return list(_parse(_whole_lines(fd)[0], self._file(log_id), log_id))
        finally:
            os.close(fd)

    def last(self, log_id: str) -> Anchor | None:
        """Return the newest anchor of a log, from the end of its file; None when there is none.

        Raises:
            AnchorsUnreadable: the end of the file is no anchor of this log.
            OSError: it is there and cannot be read.
        """
        try:
            with self._file(log_id).open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - 2 * _LINE_BYTES_MAX))
                tail = file.read()
        except FileNotFoundError:
            return None
        lines = tail[: tail.rfind(b"\n") + 1].splitlines(keepends=True)[-1:]
        return next(_parse(b"".join(lines), self._file(log_id), log_id), None)

    def _file(self, log_id: str) -> Path:
        return self.path / f"{log_id}.anchors"

    @contextmanager
    def _locked(self, log_id: str) -> Iterator[int]:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(self._file(log_id), flags, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield fd
        finally:
            os.close(fd)


def durable_anchor(engine: EventSourcingEngine, *, seconds: float = 2.0) -> Anchor | None:
    """Return the log's last event as an anchor, once it is on disk; None when it was not within the bound.

    A log that is never synced (durability `os`) has nothing durable.
    """
    seq, hash = engine.head()
    deadline = time.monotonic() + seconds
    while engine.durable_seq < seq:
        if time.monotonic() >= deadline:
            return None
        time.sleep(_POLL_SECONDS)
    return Anchor(engine.log_id, seq, hash, engine.now())


def _format(anchor: Anchor) -> bytes:
    told = {
        "format": FORMAT,
        "log_id": anchor.log_id,
        "seq": anchor.seq,
        "hash": anchor.hash,
        "at": anchor.at.astimezone(UTC).isoformat(),
    }
    return json.dumps(told, separators=(",", ":")).encode() + b"\n"


def _parse(text: bytes, path: Path, log_id: str) -> Iterator[Anchor]:
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            told = json.loads(line[:_LINE_BYTES_MAX])
            at = datetime.fromisoformat(told["at"])
            anchor = Anchor(told["log_id"], int(told["seq"]), str(told["hash"]), at)
        except (ValueError, TypeError, KeyError) as error:
            raise AnchorsUnreadable(path, number, f"{type(error).__name__}: {error}") from error
        if told.get("format") != FORMAT or anchor.log_id != log_id or at.tzinfo is None:
            raise AnchorsUnreadable(path, number, "it is no anchor of this log")
        yield anchor


def _whole_lines(fd: int) -> tuple[bytes, int]:
    """Return the text up to its last line's end, and how long that is; a torn line was never acknowledged."""
    with os.fdopen(os.dup(fd), "rb") as file:
        file.seek(0)
        text = file.read()
    whole = text.rfind(b"\n") + 1
    return text[:whole], whole


def _write_all(fd: int, line: bytes) -> None:
    while line:
        line = line[os.write(fd, line) :]
