"""Say what of a log is damaged, as a person accepts it and as the log then tells it.

An accepted damage stands in a chained ``wal.repaired``, which is always the first event of its file: so who
meets bytes that do not verify looks at the first line of each later file, and reads nothing else.

Of a damaged file two parts can be believed: the lines before the first bad byte, and the lines at its end as
far as they link to what comes after the file. What lies between is lost, also where some of it verifies in
itself: whoever could change one line could have chained others to it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Self

from ..chain import HASH_BYTES, HEADER_BYTES_MAX, LINE_BYTES_MAX, Header, follows, split_line
from ..fields import Refused, number, optional_text, text
from ..files import Files, Opened
from .drafts import REPAIRED
from .layout import Layout
from .segments import read_header

RUNS_MAX = 20

_REPAIRED_LINE = b"|" + REPAIRED.encode("ascii") + b"|"
_FRONT_BYTES = HEADER_BYTES_MAX + HASH_BYTES + len(_REPAIRED_LINE)


class Lost(NamedTuple):
    """Say which events and bytes of a file are lost.

    The line at `stop` follows from `hash`, which stands at `hash_at` (-1: nowhere in the file). Where nothing
    behind can be believed `stop` is the end, and the next file follows from `hash`.
    """

    first_seq: int
    last_seq: int
    offset: int
    stop: int
    hash: str
    hash_at: int

    @property
    def events(self) -> int:
        """Return how many events are lost; none where bytes stand that never were an event."""
        return max(0, self.last_seq - self.first_seq + 1)


@dataclass(frozen=True, slots=True)
class Damage:
    """Say what is wrong with one file, which `file`, the first seq in it, names.

    `sha256` is that of its bytes as they are, None where the file is missing. `header` is the first line that it
    should have, where it has another. `runs` are named by the lost lines as they stand; that proves nothing.
    """

    file: int
    name: str
    reason: str
    bytes: int = 0
    sha256: str | None = None
    lost: Lost | None = None
    header: str | None = None
    runs: tuple[str, ...] = ()

    @property
    def is_missing(self) -> bool:
        """Tell whether the file is gone."""
        return self.sha256 is None

    @property
    def first_seq(self) -> int:
        """Return the first lost event; the file's first, where none is."""
        return self.lost.first_seq if self.lost is not None else self.file

    @property
    def offset(self) -> int:
        """Return where in the file it begins."""
        return self.lost.offset if self.lost is not None else 0

    def format(self) -> dict[str, Any]:
        """Return it as the log tells it."""
        lost = None if self.lost is None else self.lost._asdict()
        return asdict(self) | {"lost": lost, "runs": list(self.runs)}

    @classmethod
    def parse(cls, said: Mapping[str, Any]) -> Self:
        """Read what the log tells.

        Raises:
            Refused, TypeError, KeyError: it is not told so.
        """
        lost = said["lost"]
        return cls(
            file=number(said, "file"),
            name=text(said, "name"),
            reason=text(said, "reason"),
            bytes=number(said, "bytes"),
            sha256=optional_text(said, "sha256"),
            lost=None if lost is None else _lost(lost),
            header=optional_text(said, "header"),
            runs=tuple(map(str, said["runs"])),
        )

    def true_header(self) -> Header | None:
        """Return the header that the file should have, where it has another."""
        return None if self.header is None else Header.parse(self.header.encode("ascii", "replace"))


def _lost(said: Mapping[str, Any]) -> Lost:
    at = said["hash_at"]
    if type(at) is not int:
        raise Refused("'hash_at' is not a number")
    return Lost(
        first_seq=number(said, "first_seq"),
        last_seq=number(said, "last_seq"),
        offset=number(said, "offset"),
        stop=number(said, "stop"),
        hash=text(said, "hash"),
        hash_at=at,
    )


@dataclass(frozen=True, slots=True)
class Note:
    """Hold what one ``wal.repaired`` says of accepted damage; `hash` tells whether it stands in the chain."""

    seq: int
    hash: bytes
    by: str
    at: str
    damages: tuple[Damage, ...]

    @classmethod
    def parse(cls, seq: int, line: bytes) -> Self | None:
        """Read it from its line; None when it speaks of something else."""
        parts = split_line(line)
        if parts is None:
            return None
        try:
            data = json.loads(parts.payload)["data"]
            damages = tuple(map(Damage.parse, data["breaks"]))
            return cls(seq, parts.hash, text(data, "by"), parts.timestamp.decode("ascii"), damages)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, Refused):
            return None


class Accepted(NamedTuple):
    """Hold an accepted damage and the note that says so."""

    note: Note
    damage: Damage


def is_lost(accepted: Mapping[int, Accepted], file: int, offset: int) -> bool:
    """Tell whether what stood at a place of a file is accepted as lost."""
    found = accepted.get(file)
    lost = None if found is None else found.damage.lost
    if lost is not None and lost.offset <= offset < lost.stop:
        return True
    return any(
        each.damage.is_missing and each.damage.file <= file <= each.damage.lost.last_seq
        for each in accepted.values()
        if each.damage.lost is not None
    )


def right_header(accepted: Mapping[int, Accepted], file: int) -> Header | None:
    """Return the header that a file should have, where it is accepted that it has another."""
    found = accepted.get(file)
    return None if found is None else found.damage.true_header()


class Notes:
    """Look up in a log's files what of it was accepted as damaged."""

    def __init__(self, layout: Layout, files: Files) -> None:
        self._layout = layout
        self._files = files
        self._known: dict[int, Note | None] = {}

    def accepted(self, numbers: Sequence[int]) -> dict[int, Accepted]:
        """Return, by file, what is told in the files of these numbers; of two that speak of one file the later.

        Raises:
            FileNotFoundError: one of them is gone.
            LogUnavailable: one cannot be read.
        """
        found: dict[int, Accepted] = {}
        for each in numbers:
            note = self._note_in(each, is_last=each == numbers[-1])
            for damage in note.damages if note is not None else ():
                found[damage.file] = Accepted(note, damage)  # type: ignore[arg-type]  # it is there
        return found

    def _note_in(self, number: int, *, is_last: bool) -> Note | None:
        if number in self._known:
            return self._known[number]
        opened = self._open(number, is_last=is_last)
        try:
            front = self._files.read(opened.fd, _FRONT_BYTES, 0)
            at = front.find(b"\n") + 1
            if len(front) < at + HASH_BYTES + len(_REPAIRED_LINE):
                return None  # no event yet, so it is looked at again
            note = None
            if front.startswith(_REPAIRED_LINE, at + HASH_BYTES):
                header = read_header(self._files, opened.fd)
                line, end, _ = self._files.read(opened.fd, LINE_BYTES_MAX + 1, at).partition(b"\n")
                base = b"" if header is None else header.base_hash.encode("ascii")
                if end and follows(base, line):
                    note = Note.parse(number, line)
        finally:
            opened.close()
        self._known[number] = note
        return note

    def _open(self, number: int, *, is_last: bool) -> Opened:
        """Open a file by its number; the active one may be sealed between two looks."""
        if is_last:
            opened = self._files.open_to_read(self._layout.active)
            header = read_header(self._files, opened.fd)
            if header is not None and header.first_seq == number:
                return opened
            opened.close()
        return self._files.open_to_read(self._layout.segment(number))
