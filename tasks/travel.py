"""Refuse arguments that would arrive as something else than was sent.

Celery's messages are JSON with kombu's additions. What JSON has no word for is refused by the encoder; what it changes
in silence is refused here, by its place: a key that is no text arrives as text, a lone surrogate does not arrive at
all, and a mapping in the shape of kombu's own markings arrives as what it seems to mark. A tuple arrives as a list, as
in every Celery message: that is documented, not refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from celery_commander.engine import UnrecordableValue

DEPTH_MAX = 100
"""How deep arguments may be nested; the log's envelope and Celery's message stand around them."""

_MARKINGS = ({"__type__", "__value__"}, {"bytes", "__bytes__"})

_REMEDIES = {
    set: "a set has no order and no form in a message; send sorted(it) or a list",
    frozenset: "a set has no order and no form in a message; send sorted(it) or a list",
    timedelta: "a duration has no form in a message; send its total_seconds()",
}


def check_travels(value: Any, path: str) -> None:
    """Return if `value` arrives as it is sent, tuples as lists.

    Raises:
        UnrecordableValue: it does not; the place is named as ``args[0]['order']``.

    """
    waiting: list[tuple[Any, str, int]] = [(value, path, 0)]
    while waiting:
        each, place, depth = waiting.pop()
        reason = _why_not(each, depth)
        if reason is not None:
            raise UnrecordableValue(place, type(each).__name__, reason)
        waiting.extend((part, place + key, depth + 1) for key, part in _parts(each))


def _why_not(value: Any, depth: int) -> str | None:
    """Return what would become of one value, not looking into it; None when it arrives."""
    match value:
        case str():
            return (
                None if _is_text(value) else "it holds a lone surrogate, which UTF-8 cannot carry"
            )
        case float() if not math.isfinite(value):
            return f"{value} is not JSON"
        case dict():
            return _why_not_mapping(value) or _too_deep(depth)
        case list() | tuple():
            return _too_deep(depth)
        case _:
            return next((why for kind, why in _REMEDIES.items() if isinstance(value, kind)), None)


def _why_not_mapping(value: dict[Any, Any]) -> str | None:
    for key in value:
        if not isinstance(key, str):
            return f"its key {key!r} would arrive as text; use text keys, or a list of pairs"
        if not _is_text(key):
            return "a key holds a lone surrogate, which UTF-8 cannot carry"
    if set(value) in _MARKINGS:
        return (
            "it has the shape that messages mark other types with and would arrive as one of them"
        )
    return None


def _too_deep(depth: int) -> str | None:
    return f"it is nested more than {DEPTH_MAX} levels deep" if depth >= DEPTH_MAX else None


def _is_text(value: str) -> bool:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        yield from ((f"[{key!r}]", part) for key, part in value.items())
    elif isinstance(value, list | tuple):
        yield from ((f"[{index}]", part) for index, part in enumerate(value))
