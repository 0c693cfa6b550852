"""Say which runs somebody looks for: people ask by state, by task, and by the beginning of an id."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import ColumnElement, Select, func, select

from .states import State
from .tables import runs

_LAST_CHARACTER: Final = "\U0010ffff"  # sorts behind all others, in Python as in SQLite


@dataclass(frozen=True, slots=True)
class RunQuery:
    """Describe runs; None asks for any.

    States and ids are found by an index. A task is not: the runs of all tasks are looked through, about a second a
    million.
    """

    state: State | None = None
    task: str | None = None
    id_prefix: str | None = None

    def select_rows(self) -> Select[Any]:
        """Return the statement for these runs, newest first."""
        newest_first = (runs.c.created_at.desc(), runs.c.run_id.desc())
        return select(runs).where(*self._conditions()).order_by(*newest_first)

    def select_counts(self) -> Select[Any]:
        """Return the statement that counts these runs by state."""
        return select(runs.c.state, func.count()).where(*self._conditions()).group_by(runs.c.state)

    def _conditions(self) -> list[ColumnElement[bool]]:
        found: list[ColumnElement[bool]] = []
        if self.state is not None:
            found.append(runs.c.state == self.state.value)
        if self.task is not None:
            found.append(runs.c.task == self.task)
        if self.id_prefix is not None:
            found.append(runs.c.run_id.between(self.id_prefix, self.id_prefix + _LAST_CHARACTER))
        return found
