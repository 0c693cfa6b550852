"""A run's state as a row of the ledger, there and back."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, Final

from sqlalchemy import Connection, Row, bindparam, insert, select, update

from .errors import StoreUnavailable
from .states import RunState, State
from .tables import runs

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_IDS_A_QUERY: Final = 500  # an SQLite of long ago binds 999 values at most
_CONVERTED: Final = frozenset(
    {"created_at", "changed_at", "due_at", "state", "open_steps", "owed", "settled"}
)
_PLAIN: Final = tuple(column.name for column in runs.c if column.name not in _CONVERTED)

_UPDATE: Final = (
    update(runs)
    .where(runs.c.run_id == bindparam("the_run"), runs.c.last_seq == bindparam("previous"))
    .values({c.name: bindparam(c.name) for c in runs.c if c.name != "run_id"})
)


class Diverged(StoreUnavailable):
    """The ledger {path} does not belong to this log: {reason}. It is made anew from the log."""


def pack(state: RunState) -> dict[str, Any]:
    """Return the row of a state."""
    row = {name: getattr(state, name) for name in _PLAIN}
    row["created_at"] = _pack_moment(state.created_at)
    row["changed_at"] = _pack_moment(state.changed_at)
    row["due_at"] = None if state.due_at is None else _pack_moment(state.due_at)
    row["state"] = state.state.value
    row["open_steps"] = _pack_steps(state.open_steps)
    row["owed"] = _pack_steps(state.owed)
    row["settled"] = state.settled
    return row


def unpack(row: Row[Any]) -> RunState:
    """Return the state of a row.

    Raises:
        ValueError, TypeError: nobody of ours wrote this row.
    """
    found: dict[str, Any] = dict(row._mapping)
    del found["settled"]
    found["created_at"] = unpack_moment(found["created_at"])
    found["changed_at"] = unpack_moment(found["changed_at"])
    found["due_at"] = None if found["due_at"] is None else unpack_moment(found["due_at"])
    found["state"] = State(found["state"])
    found["open_steps"] = _unpack_steps(found["open_steps"])
    found["owed"] = _unpack_steps(found["owed"])
    return RunState(**found)


def load(connection: Connection, run_ids: Collection[str]) -> dict[str, RunState]:
    """Return the states of those runs that have a row."""
    found: dict[str, RunState] = {}
    ids = iter(run_ids)
    while some := list(islice(ids, _IDS_A_QUERY)):
        for row in connection.execute(select(runs).where(runs.c.run_id.in_(some))):
            state = unpack(row)
            found[state.run_id] = state
    return found


def save(
    connection: Connection, known: Mapping[str, RunState], states: Mapping[str, RunState]
) -> bool:
    """Write what differs from `known`, each row over the very one that was read.

    Return False when a row was not as it was read; then nothing of this transaction may stay.
    """
    new = [pack(state) for run_id, state in states.items() if run_id not in known]
    if new:
        connection.execute(insert(runs), new)
    changes = list(_changes(known, states))
    if not changes:
        return True
    return connection.execute(_UPDATE, changes).rowcount == len(changes)


def _changes(
    known: Mapping[str, RunState], states: Mapping[str, RunState]
) -> Iterator[dict[str, Any]]:
    for run_id, before in known.items():
        after = states[run_id]
        if after is not before:
            row = pack(after)
            del row["run_id"]
            yield {**row, "the_run": run_id, "previous": before.last_seq}


def _pack_moment(moment: datetime) -> int:
    return (moment - _EPOCH) // _MICROSECOND


def unpack_moment(microseconds: int) -> datetime:
    """Return a moment as the rows keep it: microseconds since 1970, in UTC."""
    return _EPOCH + timedelta(microseconds=microseconds)


def _pack_steps(steps: tuple[int, ...]) -> str:
    return json.dumps(steps, separators=(",", ":")) if steps else "[]"


def _unpack_steps(text: str) -> tuple[int, ...]:
    return () if text == "[]" else tuple(json.loads(text))
