"""What the ledger counts beside the runs: events that no snapshot covers, and observations that were dropped.

Both are kept while folding, so that asking costs one row however many runs there are. Only a
snapshot makes the ledger count anew, by reading once more what came after it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Connection, bindparam, func, literal_column, select, update

from .errors import LogMoved
from .events import Event, Position
from .fields import is_number
from .fold import DURABLE_TYPES
from .ledger_rows import pack_moment
from .states import RunState
from .tables import folded, runs

SNAPSHOT_CREATED: Final = "snapshot.created"
GAP: Final = "subscriber.gap"
COUNTED_TYPES: Final = DURABLE_TYPES | {GAP, SNAPSHOT_CREATED}
"""The types of which the ledger needs the content."""

_UNSETTLED: Final = runs.c.settled == literal_column("0")
_COUNT: Final = (
    update(runs)
    .where(runs.c.run_id == bindparam("the_run"))
    .values(uncovered=bindparam("the_count"))
)

Read = Callable[[Position | None], Iterator[Event]]


@dataclass(frozen=True, slots=True)
class Gaps:
    """How many observed events were dropped, as far as the log tells, and when it last told so."""

    events: int
    last_at: datetime | None


def grown_by(
    known: Mapping[str, RunState],
    states: Mapping[str, RunState],
    uncovered: Mapping[str, int],
    fresh: Mapping[str, int],
) -> int:
    """Return by how much a batch makes the backlog grow; below zero when runs were settled."""
    grown = 0
    for run_id, after in states.items():
        before, had = known.get(run_id), uncovered.get(run_id, 0)
        if after is before:
            continue
        grown += 0 if after.settled else had + fresh.get(run_id, 0)
        grown -= had if before is not None and not before.settled else 0
    return grown


def tallies(events: Sequence[Event], grown: int, *, is_first: bool) -> dict[str, Any]:
    """Return the columns of `folded` that a batch changes."""
    told = [event for event in events if event.type == GAP]
    dropped = sum(_count_of(event.payload) for event in told)
    if is_first:
        values: dict[str, Any] = {"backlog": grown, "gaps": dropped}
    else:
        values = {"backlog": folded.c.backlog + grown, "gaps": folded.c.gaps + dropped}
    return {**values, "gap_at": pack_moment(told[-1].timestamp)} if told else values


def cover(connection: Connection, events: Sequence[Event], read: Read) -> int | None:
    """Count the backlog anew when a snapshot is among the events; None when there is none.

    What came after the newest one is read again. Events that count for nothing are counted with it.
    """
    covered = next((_position(e) for e in reversed(events) if e.type == SNAPSHOT_CREATED), None)
    if covered is None:
        return None
    connection.execute(update(runs).where(_UNSETTLED, runs.c.uncovered != 0).values(uncovered=0))
    counts = Counter(_after(read, covered, events[-1].seq))
    if counts:
        rows = [{"the_run": run_id, "the_count": count} for run_id, count in counts.items()]
        connection.execute(_COUNT, rows)
    total = select(func.coalesce(func.sum(runs.c.uncovered), 0)).where(_UNSETTLED)
    return int(connection.execute(total).scalar_one())


def _after(read: Read, covered: Position, last_seq: int) -> Iterator[str]:
    try:
        for event in read(covered):
            if event.seq > last_seq:
                return
            if event.run_id is not None and event.type in DURABLE_TYPES:
                yield event.run_id
    except LogMoved:
        return  # compacted since, so a newer snapshot covers it; that one comes later in the log


def _position(event: Event) -> Position | None:
    try:
        return Position.parse(event.payload["position"])
    except (KeyError, ValueError, TypeError, AttributeError):
        return None


def _count_of(data: Mapping[str, Any]) -> int:
    count = data.get("count")
    return count if is_number(count) and isinstance(count, int) else 1
