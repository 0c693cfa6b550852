"""Let a log go on in a fresh file, whose first event says why, while everybody is kept out.

The file that it goes on from either gets a copy in its place, of what verifies in it, or keeps every byte
and only gives up its place. Killed before the fresh file has the active name the log is as it was. Killed
after it, what stopped the log still stops it, and whoever repairs next finds a fresh active file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ..chain import Header
from ..control import Control, Head
from ..events import NewEvent
from .drafts import REPAIRED, SEALED
from .repair import Scan, facts_of, finish, set_aside
from .segments import LogFile, last_line, seals
from .standstill import Chain, Standstill
from .succession import digest_of, first_head

_COPY_BYTES = 1024 * 1024


class Renewed(NamedTuple):
    """Say where the log ends now, and what was cut off and kept on the way."""

    after: Head
    quarantine: str | None
    quarantined_bytes: int


class Renewer:
    """Begin the fresh file of one log."""

    def __init__(self, still: Standstill, chain: Chain, control: Control) -> None:
        self._still = still
        self._chain = chain
        self._control = control

    def by_copy(self, log: LogFile, found: Scan, told: Mapping[str, Any]) -> Renewed:
        """Put a sealed copy of what verifies in the active file in its place, and go on behind it.

        What does not verify is set aside first; `told` is said of it in ``wal.repaired``.
        """
        files, layout = self._still.files, self._still.layout
        name: str | None = None
        facts: dict[str, Any] = {"bytes": 0, "quarantine": None, "seq": found.head.seq + 1}
        if found.broken is not None:
            name = set_aside(files, layout, log.opened.fd, found.broken)
            facts = facts_of(files, layout, name)
        sealed, digest = self._write_copy(log, found.head)
        after = self._write_next(log, sealed, digest, {**facts, **told})
        files.make_directory(layout.segments)
        files.rename(layout.mended, layout.segment(log.header.first_seq))
        self._switch(after)
        if name is not None:
            finish(files, layout, name)
        return Renewed(after, name, int(facts["bytes"]))

    def behind(self, log: LogFile, end: Head, told: Mapping[str, Any]) -> Renewed:
        """Leave the active file as it is, under its own name, and go on behind `end`, whatever stands in it.

        Raises:
            OSError, LogUnavailable: another file has that name, or the disk refuses.
        """
        files, layout = self._still.files, self._still.layout
        files.sync(log.opened.fd)  # its bytes are told of now
        size = files.size(log.opened.fd)
        facts = {"bytes": 0, "quarantine": None, "seq": end.seq + 1}
        digest = digest_of(files, log.opened.fd, size)
        after = self._write_next(log, end, digest, {**facts, **told})
        files.make_directory(layout.segments)
        own = layout.segment(log.header.first_seq)
        if files.is_same(own, log.opened):
            files.sync_directory(layout.segments)  # who gave it the name may have been killed since
        else:
            files.link(layout.active, own)
        self._switch(after)
        return Renewed(after, None, 0)

    def _write_next(self, log: LogFile, end: Head, digest: str, told: Mapping[str, Any]) -> Head:
        header = Header(
            self._still.log_id,
            log.header.segment + 1,
            end.seq + 1,
            end.hash.decode("ascii"),
            digest,
        )
        note = NewEvent(REPAIRED, dict(told))
        return self._still.write_next(header, first_head(header, end), note, self._chain)

    def _switch(self, after: Head) -> None:
        """Give the fresh file its place; in between the files alone say where the log ends."""
        self._control.forget_head()
        self._still.files.rename(self._still.layout.newborn, self._still.layout.active)
        self._control.publish_head(after)

    def _write_copy(self, log: LogFile, head: Head) -> tuple[Head, str]:
        """Write and sync a copy of what is good, and end it; return where it ends, and its SHA-256."""
        files, fd = self._still.files, log.opened.fd
        after, line = head, b""
        if not seals(last_line(files, fd, head.size)):
            facts = {
                "first_seq": log.header.first_seq,
                "last_seq": head.seq + 1,
                "segment": log.header.segment,
            }
            after, line = self._still.chained(NewEvent(SEALED, facts), head, self._chain)
        with self._still.fresh(self._still.layout.mended) as copy:
            for offset in range(0, head.size, _COPY_BYTES):
                part = files.read(fd, min(_COPY_BYTES, head.size - offset), offset)
                files.write_at(copy.fd, part, offset)
            files.write_at(copy.fd, line, head.size)
            files.sync(copy.fd)
            return after, digest_of(files, copy.fd, after.size)
