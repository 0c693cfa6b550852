"""Tell which step or input it was that made a body ask for a retry."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, Final

from celery_commander.engine import RunState

_LINKS_MAX: Final = 100
"""How far a chain of exceptions is followed."""


class Raised:
    """Remember what the body's last step or input raised, and why the body asks for a retry."""

    def __init__(self) -> None:
        self._index = -1
        self._error: BaseException | None = None
        self._causes: tuple[BaseException | None, ...] = ()

    def note(self, index: int, error: BaseException) -> BaseException:
        """Remember what is about to be raised at an index, and return it."""
        self._index, self._error = index, error
        return error

    def note_retry(self, given: BaseException | None) -> None:
        """Remember what a retry was asked for with, and what is being handled meanwhile."""
        self._causes = (given, sys.exc_info()[1])

    def again(self, state: RunState | None) -> int | None:
        """Return the index that a retry takes back: the last of the run, if what was raised there is why it was asked.

        What a body has caught, and has gone on from, stays as it is recorded.
        """
        if state is None or state.open_steps or state.raised != self._index:
            return None
        is_cause = any(self._error is error for cause in self._causes for error in _chain(cause))
        return self._index if is_cause else None


def exception_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> BaseException | None:
    """Return the exception that was given to `Task.retry(args, kwargs, exc, ...)`."""
    given = kwargs.get("exc", args[2] if len(args) > 2 else None)
    return given if isinstance(given, BaseException) else None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception and those that it came from, also the ones that a traceback would not show."""
    left, seen = [error], 0
    while left and seen < _LINKS_MAX:
        error, seen = left.pop(), seen + 1
        if error is not None:
            yield error
            left += [error.__context__, error.__cause__]
