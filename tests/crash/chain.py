"""Read a log with nothing of the engine's: the chain is checked by a hash and a comparison, as anybody could."""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Link:
    """Hold one event as it stands in the file."""

    seq: int
    line: bytes

    @property
    def hash(self) -> str:
        return self.line[:64].decode("ascii")

    @property
    def parts(self) -> list[bytes]:
        return self.line.split(b"|", 4)

    @property
    def type(self) -> str:
        return self.parts[1].decode("ascii")

    @property
    def timestamp(self) -> bytes:
        return self.parts[3]

    @property
    def payload(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.parts[4])
        return found


class Chain:
    """Follow a log from its first event through the archive, the sealed files and the active one.

    ``rest`` is what stands behind the last good line of the last file; ``moved`` says how many events are in
    the archive alone.
    """

    def __init__(self, active: Path) -> None:
        self.links: list[Link] = []
        self.rest = b""
        self.archived = 0
        self.files: list[int] = []
        paths = _paths(active)
        previous, number = sha256(b"").hexdigest().encode(), 1
        while number in paths:
            previous = self._follow(paths[number], number, previous)
            self.files.append(number)
            if self.rest:
                return
            if "archive" in paths[number].parts:
                self.archived = len(self.links)
            number, last = len(self.links) + 1, number
            if number == last:
                return

    def _follow(self, path: Path, number: int, previous: bytes) -> bytes:
        header, _, data = path.read_bytes().partition(b"\n")
        claim = header.split(b"|")
        assert claim[0] == b"#celery-wal/1", (path, header)
        assert claim[3:5] == [b"%d" % number, previous], (path, header)
        while data:
            line, newline, behind = data.partition(b"\n")
            if not newline or sha256(previous + line[64:]).hexdigest().encode() != line[:64]:
                break
            self.links.append(Link(len(self.links) + 1, line))
            previous, data = line[:64], behind
        self.rest = data
        return previous


def _paths(active: Path) -> dict[int, Path]:
    """Return the log's files by their numbers; a file in two places is taken from the livelier one."""
    directory = Path(f"{active}.d")
    found = {
        int(path.stem): path
        for folder in ("archive", "segments")
        for path in (directory / folder).glob("*.wal")
    }
    if active.exists():
        claim = active.read_bytes().partition(b"\n")[0].split(b"|")
        if len(claim) > 3:
            found[int(claim[3])] = active
    return found
