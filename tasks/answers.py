"""Name the two answers of `resolve=` that are not a result."""

from __future__ import annotations

from typing import Final


class Answer:
    """One fixed answer; compared by identity, shown by its name."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


NotDone: Final = Answer("NotDone")
"""The effect did not happen: the step runs again."""

Unknown: Final = Answer("Unknown")
"""Nobody can tell: the step stays in doubt, and the run is aborted and undone, or parked."""
