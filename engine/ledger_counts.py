"""Count runs for those who ask often: by an index, and no further than anybody cares."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from sqlalchemy import Connection, Select, func, literal_column, select

from .ledger_rows import pack_moment
from .states import State
from .tables import runs

RUNS_AT_MOST: Final = 10_000


def count_state(connection: Connection, state: State, at_most: int) -> int:
    """Return how many runs are in a state, or `at_most`."""
    return _count(connection, select(runs.c.run_id).where(runs.c.state == state.value), at_most)


def count_unrecorded(connection: Connection, since: datetime, at_most: int) -> int:
    """Return how many runs ran unrecorded and changed since then, or `at_most`."""
    is_degraded = runs.c.degraded == literal_column("1")
    query = select(runs.c.run_id).where(is_degraded, runs.c.changed_at >= pack_moment(since))
    return _count(connection, query, at_most)


def _count(connection: Connection, query: Select[tuple[str]], at_most: int) -> int:
    rows = query.limit(at_most).subquery()
    return int(connection.execute(select(func.count()).select_from(rows)).scalar_one())
