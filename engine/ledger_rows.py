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
    {"created_at", "changed_at", "due_at", "state", "open_steps", "owed", "settled", "uncovered"}
)
_BESIDE: Final = frozenset({"settled", "uncovered"})  # no fields of a state
_PLAIN: Final = tuple(column.name for column in runs.c if column.name not in _CONVERTED)

_UPDATE: Final = (
    update(runs)
    .where(runs.c.run_id == bindparam("the_run"), runs.c.last_seq == bindparam("previous"))
    .values(
        {
            **{c.name: bindparam(c.name) for c in runs.c if c.name not in ("run_id", "uncovered")},
            "uncovered": runs.c.uncovered + bindparam("fresh"),
        }
    )
)


class Diverged(StoreUnavailable):
    """The ledger {path} does not belong to this log: {reason}. It is made anew from the log."""


def pack(state: RunState) -> dict[str, Any]:
    """Return the row of a state."""
    row = {name: getattr(state, name) for name in _PLAIN}
    row["created_at"] = pack_moment(state.created_at)
    row["changed_at"] = pack_moment(state.changed_at)
    row["due_at"] = None if state.due_at is None else pack_moment(state.due_at)
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
    return unpack_values(dict(row._mapping))


def unpack_values(values: Mapping[str, Any]) -> RunState:
    """Return the state of a row that is given as values by column; raises as `unpack` does."""
    found = {name: value for name, value in values.items() if name not in _BESIDE}
    found["created_at"] = unpack_moment(found["created_at"])
    found["changed_at"] = unpack_moment(found["changed_at"])
    found["due_at"] = None if found["due_at"] is None else unpack_moment(found["due_at"])
    found["state"] = State(found["state"])
    found["open_steps"] = _unpack_steps(found["open_steps"])
    found["owed"] = _unpack_steps(found["owed"])
    return RunState(**found)


def load(
    connection: Connection, run_ids: Collection[str]
) -> tuple[dict[str, RunState], dict[str, int]]:
    """Return the states of those runs that have a row, and how many events of each are uncovered."""
    found: dict[str, RunState] = {}
    uncovered: dict[str, int] = {}
    ids = iter(run_ids)
    while some := list(islice(ids, _IDS_A_QUERY)):
        for row in connection.execute(select(runs).where(runs.c.run_id.in_(some))):
            state = unpack(row)
            found[state.run_id] = state
            uncovered[state.run_id] = row.uncovered
    return found, uncovered


def save(
    connection: Connection,
    known: Mapping[str, RunState],
    states: Mapping[str, RunState],
    fresh: Mapping[str, int],
) -> bool:
    """Write what differs from `known`, each row over the very one that was read.

    `fresh` says how many events each run has got. Return False when a row was not as it was read; then
    nothing of this transaction may stay.
    """
    new = [
        {**pack(state), "uncovered": fresh[run_id]}
        for run_id, state in states.items()
        if run_id not in known
    ]
    if new:
        connection.execute(insert(runs), new)
    changes = list(_changes(known, states, fresh))
    if not changes:
        return True
    return connection.execute(_UPDATE, changes).rowcount == len(changes)


def _changes(
    known: Mapping[str, RunState], states: Mapping[str, RunState], fresh: Mapping[str, int]
) -> Iterator[dict[str, Any]]:
    for run_id, before in known.items():
        after = states[run_id]
        if after is not before:
            row = pack(after)
            del row["run_id"]
            yield {
                **row,
                "the_run": run_id,
                "previous": before.last_seq,
                "fresh": fresh.get(run_id, 0),
            }


def pack_moment(moment: datetime) -> int:
    """Return a moment as the rows keep it: the opposite of unpack_moment."""
    return (moment - _EPOCH) // _MICROSECOND


def unpack_moment(microseconds: int) -> datetime:
    """Return a moment as the rows keep it: microseconds since 1970, in UTC."""
    return _EPOCH + timedelta(microseconds=microseconds)


def _pack_steps(steps: tuple[int, ...]) -> str:
    return json.dumps(steps, separators=(",", ":")) if steps else "[]"


def _unpack_steps(text: str) -> tuple[int, ...]:
    return () if text == "[]" else tuple(json.loads(text))
