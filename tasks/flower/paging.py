"""Cut long lists into pages; whatever number is asked for, an existing page is shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

_MOST_DIGITS = 9


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a list, numbered from 1; an empty list has one page, which is empty."""

    number: int
    size: int
    total: int

    @classmethod
    def of(cls, asked: str, *, size: int, total: int) -> Page:
        """Return the page that a query asks for, or the nearest one that exists."""
        wanted = int(asked) if asked.isdecimal() and len(asked) <= _MOST_DIGITS else 1
        last = max(1, -(-total // size))
        return cls(min(max(wanted, 1), last), size, total)

    @property
    def last(self) -> int:
        """Return the number of the last page."""
        return max(1, -(-self.total // self.size))

    @property
    def offset(self) -> int:
        """Return how many entries are before this page."""
        return (self.number - 1) * self.size

    @property
    def shown(self) -> str:
        """Return which entries these are, for people: `51-100 of 1,234`."""
        if not self.total:
            return "none"
        until = min(self.offset + self.size, self.total)
        return f"{self.offset + 1:,}-{until:,} of {self.total:,}"

    def cut(self, entries: Sequence[T]) -> Sequence[T]:
        """Return the page's part of a list that is there whole."""
        return entries[self.offset : self.offset + self.size]
