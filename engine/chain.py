"""Link events by hashes, and say what a line of the log may look like.

Event n is one line, ``hash_n|type|id|timestamp|payload`` and LF, with ``hash_n =
SHA256(hash_{n-1} | type | id | timestamp | payload)`` and ``hash_0 = SHA256("")``. So the hashed
bytes are the previous hash and what follows this line's own, and the whole check is
``sha256(previous + line[64:]) == line[:64]``: no JSON, no canonical form.

That is only sound because the first four bars of a line have one reading. Without the grammar, an
event of type ``a|b`` and id ``c`` would hash like one of type ``a`` and id ``b|c``; so it is
checked before a byte is written.

Everything here is pure: bytes in, bytes or an answer out.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import NamedTuple

from .errors import InvalidEvent

FORMAT = "celery-wal/1"
GENESIS = hashlib.sha256(b"").hexdigest().encode("ascii")
HASH_BYTES = 64
TIMESTAMP_BYTES = 27
PAYLOAD_BYTES_MAX = 1024 * 1024
LINE_BYTES_MAX = HASH_BYTES + 128 + 64 + TIMESTAMP_BYTES + PAYLOAD_BYTES_MAX + 4
"""The longest line without its LF; a reader never has to hold more of one."""
HEADER_BYTES_MAX = 512

_LOOKALIKES_MAX = 8

_TYPE = re.compile(r"[A-Za-z][A-Za-z0-9_.:-]{0,127}")
_ID = re.compile(r"[0-9A-Za-z_-]{1,64}")
_FRONT = (
    rb"[0-9a-f]{64}\|([A-Za-z][A-Za-z0-9_.:-]{0,127})\|([0-9A-Za-z_-]{1,64})\|"
    rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z)\|"
)
_ENVELOPE = rb'\{"d":(?:0|[1-9]\d{0,18}),"data":\{[^\x00-\x1f]*,"v":1\}'
_LINE_FRONT = re.compile(_FRONT)
_LINE = re.compile(_FRONT + rb"(" + _ENVELOPE + rb")")
# For many lines at once: the hash is compared anyhow and control characters are looked for apart, so
# the two costly classes can be dots here. Three times as fast as the exact form.
_STAMPS_OF_LINES = re.compile(
    rb"^.{64}\|[A-Za-z][A-Za-z0-9_.:-]{0,127}\|[0-9A-Za-z_-]{1,64}\|"
    rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z)\|"
    rb'\{"d":(?:0|[1-9]\d{0,18}),"data":\{.*,"v":1\}$',
    re.MULTILINE,
)
_CONTROLS = bytes(range(0x20)).replace(b"\n", b"")
_FENCES = re.compile(rb"^[0-9a-f]{64}\|run\.fenced\|", re.MULTILINE)
_LOG_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_HASH = re.compile(r"[0-9a-f]{64}")


def link(previous: bytes, rest: bytes) -> bytes:
    """Return the hash of an event whose line goes on with `rest` (from its first bar, without the LF)."""
    return hashlib.sha256(previous + rest).hexdigest().encode("ascii")


def follows(previous: bytes, line: bytes) -> bool:
    """Tell whether `line` (without its LF) was chained to the event whose hash is `previous`."""
    return (
        hashlib.sha256(previous + line[HASH_BYTES:]).hexdigest().encode("ascii")
        == line[:HASH_BYTES]
    )


def check_type(type_: object) -> None:
    """Refuse a type that is not ``[A-Za-z][A-Za-z0-9_.:-]{0,127}``.

    Raises:
        InvalidEvent: it would be read differently from how it was written.
    """
    if not isinstance(type_, str) or _TYPE.fullmatch(type_) is None:
        raise InvalidEvent("type", f"{_shown(type_)} does not match {_TYPE.pattern}")


def check_id(id_: object) -> None:
    """Refuse an id that is not ``[0-9A-Za-z_-]{1,64}``.

    Raises:
        InvalidEvent: it would be read differently from how it was written.
    """
    if not isinstance(id_, str) or _ID.fullmatch(id_) is None:
        raise InvalidEvent("id", f"{_shown(id_)} does not match {_ID.pattern}")


@dataclass(frozen=True, slots=True)
class LineParts:
    """Name the parts of a line that stands in the grammar; nothing here says that its hash is right."""

    hash: bytes
    type: bytes
    id: bytes
    timestamp: bytes
    payload: bytes


def split_line(line: bytes) -> LineParts | None:
    """Split a line (without its LF) at its first four bars; None when it is not in the grammar."""
    match = _LINE.fullmatch(line)
    if match is None or not _is_utf8(line):
        return None
    type_, id_, timestamp, payload = match.groups()
    return LineParts(line[:HASH_BYTES], type_, id_, timestamp, payload)


def lines_within(data: bytes) -> list[int]:
    """Return every offset at which what looks like a line begins; the last few, if there are many."""
    return [match.start() for match in _LINE_FRONT.finditer(data)][-_LOOKALIKES_MAX:]


def first_stamp(data: bytes) -> bytes | None:
    """Return the timestamp of the line that begins here, or None when none does."""
    match = _LINE_FRONT.match(data)
    return match[3] if match is not None else None


class Reached(NamedTuple):
    """Say what a block of good lines ended with."""

    hash: bytes
    timestamp: bytes
    lines: int
    fences: int


def follow_block(previous: bytes, timestamp: bytes, block: bytes) -> Reached | None:
    """Check many whole lines at once; None when any of them is not as it should be.

    It answers what line by line would answer, at a fraction of the cost; where it says None, going
    line by line tells which one and why.
    """
    stamps = _STAMPS_OF_LINES.findall(block)
    lines = block.split(b"\n")
    if lines.pop() != b"" or len(stamps) != len(lines):
        return None
    if not _is_utf8(block) or len(block.translate(None, _CONTROLS)) != len(block):
        return None
    if stamps != sorted(stamps) or (stamps and stamps[0] < timestamp):
        return None
    sha256 = hashlib.sha256
    for line in lines:
        if sha256(previous + line[64:]).hexdigest().encode() != line[:64]:
            return None
        previous = line[:64]
    fences = len(_FENCES.findall(block)) if b"|run.fenced|" in block else 0
    return Reached(previous, stamps[-1] if stamps else timestamp, len(lines), fences)


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Header:
    """Say which log a file belongs to and where in it the file begins; a claim, outside the chain."""

    log_id: str
    segment: int
    first_seq: int
    base_hash: str
    previous_sha256: str

    def format(self) -> bytes:
        """Return the header line with its LF."""
        fields = (self.log_id, self.segment, self.first_seq, self.base_hash, self.previous_sha256)
        return ("|".join([f"#{FORMAT}", *map(str, fields)]) + "\n").encode("ascii")

    @classmethod
    def parse(cls, line: bytes) -> Header | None:
        """Read a header line (without its LF), or return None when it is not one of ours."""
        try:
            name, log_id, segment, first_seq, base_hash, previous = line.decode("ascii").split("|")
        except ValueError:
            return None
        numbers = (segment, first_seq)
        hashes = (base_hash, previous)
        if (
            name != f"#{FORMAT}"
            or _LOG_ID.fullmatch(log_id) is None
            or not all(re.fullmatch(r"[1-9][0-9]{0,18}", number) for number in numbers)
            or not all(_HASH.fullmatch(value) for value in hashes)
        ):
            return None
        return cls(log_id, int(segment), int(first_seq), base_hash, previous)


def first_header(log_id: str) -> Header:
    """Return the header of a new log's first file: it begins at event 1, after nothing."""
    return Header(log_id, 1, 1, GENESIS.decode("ascii"), "0" * HASH_BYTES)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
