"""Read one field of an event's data, or say why it cannot be read.

What stands in a log was written by many versions and may have been written by hand: a reader checks
each field before it believes it. Extra fields are nobody's business here.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, TypeGuard

MAX_NUMBER: Final = 2**53
"""Bound of tokens, steps and generations: exact in every JSON reader and in SQL."""


class Refused(Exception):
    """Why an event is void; its text is the reason."""


def is_number(value: object) -> TypeGuard[int]:
    """Tell whether `value` is a whole number from 0 that every reader can hold; true is none."""
    return type(value) is int and 0 <= value < MAX_NUMBER


def number(data: Mapping[str, Any], name: str) -> int:
    """Return a whole number from 0."""
    value = data.get(name)
    if not is_number(value):
        raise Refused(f"{name!r} is not a number from 0")
    return value


def flag(data: Mapping[str, Any], name: str) -> bool:
    """Return true or false."""
    value = data.get(name)
    if type(value) is not bool:
        raise Refused(f"{name!r} is not true or false")
    return value


def text(data: Mapping[str, Any], name: str) -> str:
    """Return a text."""
    value = data.get(name)
    if type(value) is not str:
        raise Refused(f"{name!r} is not text")
    return value


def optional_text(data: Mapping[str, Any], name: str) -> str | None:
    """Return a text, or None where the field is null or absent."""
    return None if data.get(name) is None else text(data, name)


def mapping(data: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return an object."""
    value = data.get(name)
    if not isinstance(value, Mapping):
        raise Refused(f"{name!r} is not an object")
    return value


def moment(data: Mapping[str, Any], name: str) -> datetime | None:
    """Return an ISO 8601 moment in UTC, or None; without an offset it says nothing."""
    written = optional_text(data, name)
    if written is None:
        return None
    try:
        at = datetime.fromisoformat(written)
        if at.tzinfo is None:
            raise Refused(f"{name!r} has no UTC offset")
        return at.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise Refused(f"{name!r} is not a moment") from error
