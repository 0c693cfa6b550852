"""Write down the standard library's small values as JSON, each under a tag, and read them back.

One entry a type: its tag, a pack and an unpack that are each other's opposite. Types are compared exactly; a
subclass carries something that a tag would lose.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, tzinfo
from decimal import Decimal
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo


@dataclass(frozen=True, slots=True)
class Scalar:
    """How one type is written."""

    tag: str
    pack: Callable[[Any], Any]
    unpack: Callable[[Any], Any]


def pack_int(value: int) -> str:
    """Write an integer as decimal text, a huge one as hexadecimal: Python bounds decimal digits."""
    return str(value) if value.bit_length() <= 1024 else hex(value)


def unpack_int(text: str) -> int:
    """Read what `pack_int` wrote."""
    return int(text, 0)


def pack_bytes(value: bytes) -> str:
    """Write bytes as base64 (RFC 4648, section 4)."""
    return base64.b64encode(value).decode("ascii")


def unpack_bytes(text: str) -> bytes:
    """Read what `pack_bytes` wrote."""
    return base64.b64decode(text, validate=True)


def pack_moment(value: datetime | time) -> str | list[Any]:
    """Write a datetime or time: ISO 8601, and [text, zone or null, fold] where that says too little.

    Any other zone than a ZoneInfo is kept as the offset it has at that moment.
    """
    zone = _zone_key(value.tzinfo)
    if zone is None and value.fold == 0:
        return value.isoformat()
    local = value.replace(tzinfo=None) if zone is not None else value
    return [local.replace(fold=0).isoformat(), zone, value.fold]


def _zone_key(zone: tzinfo | None) -> str | None:
    return zone.key if type(zone) is ZoneInfo else None


def _unpack_moment(read: Callable[[str], Any]) -> Callable[[Any], Any]:
    def unpack(packed: str | list[Any]) -> Any:
        if isinstance(packed, str):
            return read(packed)
        text, zone, fold = packed
        value = read(text).replace(fold=fold)
        return value if zone is None else value.replace(tzinfo=ZoneInfo(zone))

    return unpack


def pack_timedelta(value: timedelta) -> list[int]:
    """Write a duration as its three exact parts."""
    return [value.days, value.seconds, value.microseconds]


def unpack_timedelta(parts: list[int]) -> timedelta:
    """Read what `pack_timedelta` wrote."""
    days, seconds, microseconds = parts
    return timedelta(days=days, seconds=seconds, microseconds=microseconds)


SCALARS: dict[type, Scalar] = {
    bytes: Scalar("bytes", pack_bytes, unpack_bytes),
    datetime: Scalar("datetime", pack_moment, _unpack_moment(datetime.fromisoformat)),
    date: Scalar("date", date.isoformat, date.fromisoformat),
    time: Scalar("time", pack_moment, _unpack_moment(time.fromisoformat)),
    timedelta: Scalar("timedelta", pack_timedelta, unpack_timedelta),
    Decimal: Scalar("decimal", str, Decimal),
    UUID: Scalar("uuid", str, UUID),
}
