"""Turn what is to be recorded into a payload, and a line of the log into an event.

The payload is the envelope ``{"d":…,"data":{…},"n":…,"run":…,"token":…,"v":1}`` with its keys
sorted; everything that a reader acts on stands inside it, hence inside the hash. A line is hashed
as it is stored: nothing is ever serialised a second time in order to be checked.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any, cast

from .chain import LineParts
from .errors import InvalidEvent

DEPTH_MAX = 128
RUN_ID_CHARACTERS_MAX = 255
COUNT_MAX = 2**63 - 1


def _encoder() -> Callable[[Any], str]:
    """Return JSONEncoder's own encode, but with the C encoder made here once and not at every call."""
    plain = json.JSONEncoder(
        ensure_ascii=False,
        allow_nan=False,
        sort_keys=True,
        separators=(",", ":"),
        check_circular=False,  # a circle is stopped by its depth
    )
    make = getattr(json.encoder, "c_make_encoder", None)
    if make is None:
        return plain.encode
    text_of = json.encoder.encode_basestring
    pieces_of = make(None, plain.default, text_of, None, ":", ",", True, False, False)
    return lambda value: "".join(pieces_of(value, 0))


_encode_json = _encoder()
_encode_text = json.encoder.encode_basestring
_decode_json = json.JSONDecoder().raw_decode


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """Name a place in the log: the event it was taken from, and where its line begins.

    Opaque to callers: keep it, hand it back, store its text. ``file`` is the first seq of the file it lies in.
    """

    seq: int
    file: int
    offset: int

    def __str__(self) -> str:
        return f"{self.seq}:{self.file}:{self.offset}"

    @classmethod
    def parse(cls, text: str) -> Position:
        """Read a position back from its text.

        Raises:
            ValueError: it is not the text of a position.
        """
        seq, file, offset = text.split(":")
        if not (seq.isdecimal() and file.isdecimal() and offset.isdecimal()):
            raise ValueError(f"{text!r} is not a position")
        return cls(int(seq), int(file), int(offset))


@dataclass(frozen=True, slots=True)
class Event:
    """Hold one recorded event; ``payload`` is the event's own content (the envelope's ``data``)."""

    position: Position
    seq: int
    id: str
    type: str
    timestamp: datetime
    run_id: str | None
    payload: dict[str, Any]
    hash: str
    n: int | None
    token: int | None


class FreshEvent:
    """Be an event that has just been written; :meth:`frozen` makes it one.

    A frozen dataclass guards each of ten assignments, which takes 1 µs; these are plain ones.
    """

    __slots__ = tuple(field.name for field in fields(Event))

    position: Position
    seq: int
    id: str
    type: str
    timestamp: datetime
    run_id: str | None
    payload: dict[str, Any]
    hash: str
    n: int | None
    token: int | None

    def frozen(self) -> Event:
        """Return this object, an event from now on; the slots of both classes are the same."""
        self.__class__ = Event  # type: ignore[assignment]  # as said
        return cast("Event", self)


@dataclass(frozen=True, slots=True)
class NewEvent:
    """Describe an event that is to be appended; without an id it is given a fresh one."""

    type: str
    data: Mapping[str, Any]
    run_id: str | None = None
    token: int | None = None
    n: int | None = None
    id: str | None = None


def encode_payload(new: NewEvent, *, durable: int, bytes_max: int) -> tuple[bytes, dict[str, Any]]:
    """Return the payload's bytes, and the data as every later reader will see it.

    `durable` is the highest seq that the writer knows to be on disk: it becomes ``d``.

    Raises:
        InvalidEvent: the data is not plain JSON with string keys, or is too deep or too large.
    """
    text, seen = encode_data(new.data)
    envelope = (
        f'{{"d":{durable},"data":{text},"n":{_count("n", new.n)},"run":{_run(new.run_id)},'
        f'"token":{_count("token", new.token)},"v":1}}'
    )
    try:
        payload = envelope.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidEvent("payload", f"it holds a lone surrogate ({error.reason})") from error
    if len(payload) > bytes_max:
        raise InvalidEvent("payload", f"it has {len(payload)} bytes, {bytes_max} are allowed")
    return payload, seen


def encode_data(data: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the one JSON text of `data`, and what that text reads as.

    Reading it back is the check: keys that are no strings come back as other keys.
    """
    if not isinstance(data, dict):
        if not isinstance(data, Mapping):
            raise InvalidEvent("payload", f"it must be an object, not {type(data).__name__}")
        data = dict(data)
    try:
        text = _encode_json(data)
        seen: dict[str, Any] = _decode_json(text)[0]
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidEvent("payload", f"it is not plain JSON: {error}") from error
    if text.count("{") + text.count("[") > DEPTH_MAX or seen != data:
        _check_tree(data)
    return text, seen


def decode_line(parts: LineParts, position: Position) -> Event:
    """Turn the parts of a verified line into an event.

    Raises:
        ValueError: the payload is not the envelope. A writer of ours never makes such a line.
    """
    envelope = json.loads(parts.payload)
    data = envelope["data"] if isinstance(envelope, dict) and envelope.get("v") == 1 else None
    if not isinstance(data, dict):
        raise ValueError("its payload is not the envelope of version 1")
    return Event(
        position,
        position.seq,
        parts.id.decode("ascii"),
        parts.type.decode("ascii"),
        read_timestamp(parts.timestamp),
        envelope["run"],
        data,
        parts.hash.decode("ascii"),
        envelope["n"],
        envelope["token"],
    )


def outline(parts: LineParts, position: Position) -> Event:
    """Return a verified line's event without its content, for whoever only counts it or looks at its type."""
    return Event(
        position,
        position.seq,
        parts.id.decode("ascii"),
        parts.type.decode("ascii"),
        read_timestamp(parts.timestamp),
        None,
        {},
        parts.hash.decode("ascii"),
        None,
        None,
    )


def format_timestamp(moment: datetime) -> bytes:
    """Return the 27 bytes ``YYYY-MM-DDTHH:MM:SS.ffffffZ`` of an aware moment."""
    utc = moment if moment.tzinfo is UTC else moment.astimezone(UTC)
    return utc.isoformat("T", "microseconds")[:26].encode("ascii") + b"Z"


def read_timestamp(stamp: bytes) -> datetime:
    """Return the aware moment of a timestamp in the log's form."""
    return datetime.fromisoformat(stamp.decode("ascii"))


def run_key(run_id: str) -> bytes:
    """Return a run id as it stands in a payload; by it lines are found without reading their JSON."""
    return _run(run_id).encode("utf-8", "surrogatepass")


def _run(run_id: object) -> str:
    if run_id is None:
        return "null"
    if not isinstance(run_id, str) or not 1 <= len(run_id) <= RUN_ID_CHARACTERS_MAX:
        raise InvalidEvent("run id", f"it must be text of 1 to {RUN_ID_CHARACTERS_MAX} characters")
    return _encode_text(run_id)


def _count(what: str, value: object) -> str:
    if value is None:
        return "null"
    if type(value) is int and 0 <= value <= COUNT_MAX:
        return str(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= COUNT_MAX:
        raise InvalidEvent(what, f"{value!r} is not a whole number from 0 to {COUNT_MAX}")
    return str(int(value))


def _check_tree(data: Any) -> None:
    """Walk the data and name the first thing that JSON would have changed in silence."""
    level: list[tuple[str, Any]] = [("data", data)]
    for _ in range(DEPTH_MAX):
        level = [child for path, value in level for child in _children(path, value)]
        if not level:
            return
    raise InvalidEvent("payload", f"it is more than {DEPTH_MAX} levels deep")


def _children(path: str, value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, list | tuple):
        return [(f"{path}[{index}]", item) for index, item in enumerate(value)]
    if not isinstance(value, dict):
        return []
    for key in value:
        if not isinstance(key, str):
            raise InvalidEvent("payload", f"the key {key!r} in {path} is not text")
    return [(f"{path}[{key!r}]", item) for key, item in value.items()]
