"""Pack what the bus carries, and match routing keys with patterns."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from .errors import InvalidRoutingKey, UnreadableMessage

LONGEST_KEY = 255
"""Characters; what AMQP allows."""

_WORD = r"[A-Za-z0-9_-]+"
_KEY = re.compile(rf"{_WORD}(\.{_WORD})*")
_PATTERN = re.compile(rf"({_WORD}|[*#])(\.({_WORD}|[*#]))*")


@dataclass(frozen=True, slots=True)
class BusMessage:
    """One thing that happened, as subscribers are told; what exactly stands in the log under `run_id`.

    It never holds arguments, results or exception texts: whoever may read the broker may not read the runs.
    """

    type: str
    """The routing key: `run.recovered`, `run.aborted`, `run.parked`, `run.compensated`, `run.stuck` and others."""
    run_id: str | None
    at: datetime
    namespace: str
    log_id: str | None
    """Which store told it; None from a process that had opened none."""
    data: Mapping[str, Any]

    def pack(self) -> str:
        """Return the message as JSON.

        Raises:
            TypeError, ValueError: `data` holds something else than plain JSON values.
        """
        told = {
            "type": self.type,
            "run_id": self.run_id,
            "at": self.at.isoformat(),
            "namespace": self.namespace,
            "log_id": self.log_id,
            "data": dict(self.data),
        }
        return json.dumps(told, separators=(",", ":"), allow_nan=False)

    @classmethod
    def unpack(cls, told: object) -> BusMessage:
        """Return the message that `pack` made, given as text, bytes or a mapping.

        Raises:
            UnreadableMessage: it is none of ours, or misses a part.
        """
        try:
            fields: Any = json.loads(told) if isinstance(told, str | bytes) else told
            return cls(
                type=check_key(fields["type"]),
                run_id=fields["run_id"],
                at=datetime.fromisoformat(fields["at"]),
                namespace=fields["namespace"],
                log_id=fields["log_id"],
                data=dict(fields["data"]),
            )
        except (KeyError, TypeError, ValueError, InvalidRoutingKey) as error:
            raise UnreadableMessage(f"{type(error).__name__}: {error}") from error


def check_key(key: object) -> str:
    """Return the routing key if it is one: words with dots between.

    Raises:
        InvalidRoutingKey: it is not.
    """
    if isinstance(key, str) and len(key) <= LONGEST_KEY and _KEY.fullmatch(key):
        return key
    raise InvalidRoutingKey(key, "use words of letters, digits, _ and - with dots between")


def check_pattern(pattern: object) -> str:
    """Return the pattern if it is one: words with dots between, `*` for one word, `#` for any number of words.

    Raises:
        InvalidRoutingKey: it is not.
    """
    if isinstance(pattern, str) and len(pattern) <= LONGEST_KEY and _PATTERN.fullmatch(pattern):
        return pattern
    raise InvalidRoutingKey(pattern, "use words with dots between, * for one word, # for any")


def matches(pattern: str, key: str) -> bool:
    """Return whether a topic exchange hands on `key` to a binding with `pattern` (AMQP 0-9-1, section 3.1.3.3)."""
    return _match(pattern.split("."), key.split("."))


def _match(pattern: Sequence[str], words: Sequence[str]) -> bool:
    if not pattern:
        return not words
    if pattern[0] == "#":
        return any(_match(pattern[1:], words[start:]) for start in range(len(words) + 1))
    return bool(words) and pattern[0] in ("*", words[0]) and _match(pattern[1:], words[1:])
