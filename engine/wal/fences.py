"""Know each run's highest fence: those in the log's files, and those that a snapshot keeps of what is gone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

KEPT_MAX: Final = 8192
"""How many runs' kept fences one process remembers before it asks for them again."""


class Fences:
    """Hold the fences that were looked at; the kept ones are asked for when a run's is."""

    def __init__(self) -> None:
        self._seen: dict[bytes, int] = {}
        self._kept: dict[bytes, int] = {}

    @property
    def seen(self) -> Mapping[bytes, int]:
        """Return the highest fence of every run that has one in the log's files."""
        return self._seen

    def see(self, key: bytes, token: int) -> None:
        """Note a fence that stands in the log."""
        if token > self._seen.get(key, 0):
            self._seen[key] = token

    def ask_again(self) -> None:
        """Forget what is kept: the log begins elsewhere now."""
        self._kept = {}

    def highest(self, key: bytes, ask: Callable[[], int] | None) -> int:
        """Return a run's highest fence; `ask` tells the kept one, where there may be one.

        A file may have gone before it was looked at, with the newest fence of a run in it.
        """
        seen = self._seen.get(key, 0)
        if ask is None:
            return seen
        kept = self._kept.get(key)
        if kept is None:
            if len(self._kept) >= KEPT_MAX:
                self._kept.clear()
            kept = self._kept[key] = ask()
        return max(seen, kept)
