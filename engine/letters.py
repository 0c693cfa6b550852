"""What gave up, was parked, got stuck or was recovered, told by the log's own events.

The letters are a projection of the log: each is named after the seq of the event that made it, and
resolved by a later event of its run. So they cannot say what has not happened, and a ledger that is
built anew has the same ones. A run has one open letter at most, the one that says where it stands::

    run.aborted by the body       aborted                 born resolved: its caller was told
    run.aborted otherwise         aborted, or poison      resolved by a person, or superseded by stuck
    run.paused  of kind doubt     in_doubt                resolved by a person, or by an abort
    run.paused  of kind version   version_conflict        the same
    run.paused  of kind damage    damaged                 the same
    run.stuck                     stuck                   the same
    run.requeued after a death    recovered               born resolved

A body that raises has ended as bodies do: its caller gets the exception and its undos follow, so
nothing is left to be done and nothing is open, although a person may still have it run anew. The
same holds for a run that somebody revoked. What a limit or recovery decided, and what left a step in
doubt, is open until a person has seen it.

A rollback that a person lets go on after it was stuck has an `aborted` letter again: one that ends
well leaves the run where its first abort would have. Built anew from a log that was compacted, a
ledger has the open letters, and of the resolved ones those whose runs' events are still there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from sqlalchemy import Connection, Row, bindparam, delete, insert, update

from .events import Event
from .fold import fold
from .ledger_rows import pack_moment, unpack_moment
from .states import RunState, State, Void
from .tables import dead_letters


class Category(StrEnum):
    """Why there is a dead letter."""

    ABORTED = "aborted"
    POISON = "poison"
    IN_DOUBT = "in_doubt"
    VERSION_CONFLICT = "version_conflict"
    DAMAGED = "damaged"
    STUCK = "stuck"
    RECOVERED = "recovered"


PARKED: Final = frozenset({Category.IN_DOUBT, Category.VERSION_CONFLICT, Category.DAMAGED})
"""Categories of runs that wait: retried or aborted, they are not over."""

FOR_A_PERSON: Final = PARKED | {Category.STUCK}
"""Categories that nothing but a person ends; they never expire."""

TOLD: Final = "told"
"""The resolution of a letter that is born resolved: whoever waits for the run hears how it ended."""

LIMITS: Final = ("time limit", "SoftTimeLimitExceeded")
"""How a run says that a limit ended it: as what cancelled it, or by its exception."""

_PARKED: Final = {
    "doubt": Category.IN_DOUBT,
    "version": Category.VERSION_CONFLICT,
    "damage": Category.DAMAGED,
}
LETTER_TYPES: Final = frozenset({"run.aborted", "run.paused", "run.stuck", "run.requeued"})
"""Events that may make a letter; `category_of` tells whether one does."""

_RESOLUTIONS: Final[Mapping[str, str]] = {
    "operator.retried": "retried",
    "operator.discarded": "discarded",
    "run.aborted": "aborted",
    "run.stuck": "stuck",
    "run.requeued": "resumed",
    "run.started": "resumed",
    "run.degraded": "ran unrecorded",
}


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One letter; open while `resolved_at` is None."""

    id: str  # the seq of the event that made it, as text
    run_id: str
    namespace: str
    task: str
    category: Category
    reason: str
    created_at: datetime
    seq: int
    resolved_at: datetime | None = None
    resolution: str | None = (
        None  # retried, discarded, told, aborted, stuck, resumed, ran unrecorded
    )
    resolved_by: str | None = None  # the person; None: the run's own events ended it
    retried_as: str | None = None  # the run that goes in the place of an aborted one

    @property
    def is_open(self) -> bool:
        """Tell whether anything is still to be done about it."""
        return self.resolved_at is None

    @property
    def may_be_retried(self) -> bool:
        """Tell whether a person may still let its run go on, or have another go in its place."""
        return self.is_open or self.resolution == TOLD


def category_of(event: Event) -> Category | None:
    """Return of which category the letter is that this event makes, if it counts; None: it makes none."""
    data = event.payload
    match event.type:
        case "run.aborted":
            return Category.POISON if data.get("reason") == "poison" else Category.ABORTED
        case "run.paused":
            kind = data.get("kind")
            return _PARKED.get(kind) if isinstance(kind, str) else None
        case "run.stuck":
            return Category.STUCK
        case "run.requeued":
            return Category.RECOVERED if data.get("death") is True else None
    return None


def letters_of(before: RunState | None, events: Sequence[Event]) -> dict[int, DeadLetter]:
    """Return, by seq, the letters that one run's events make, as they stand after the last of them.

    Of a letter that was made before them, only its end is known here: see `resolved_before`.
    """
    found: dict[int, DeadLetter] = {}
    for event, state, after in _valid(before, events):
        if state.letter != after.letter and state.letter in found:
            found[state.letter] = _resolved(found[state.letter], event)
        if after.letter == event.seq or category_of(event) is Category.RECOVERED:
            found[event.seq] = _made(event, after)
    return found


def resolved_before(before: RunState | None, events: Sequence[Event]) -> Event | None:
    """Return the event that ends the letter which was open before these events, if one does."""
    if before is None or before.letter is None:
        return None
    changes = _valid(before, events)
    return next((event for event, _, after in changes if after.letter != before.letter), None)


def project(
    connection: Connection,
    events: Sequence[Event],
    before: Mapping[str, RunState],
    after: Mapping[str, RunState],
) -> None:
    """Write down what a batch of the log's events says of letters, in the ledger's transaction."""
    touched: dict[str, list[Event]] = {}
    for event in events:
        if event.run_id in after:
            touched.setdefault(str(event.run_id), []).append(event)
    new: list[dict[str, Any]] = []
    ended: list[dict[str, Any]] = []
    for run_id, its_events in touched.items():
        state = before.get(run_id)
        has_letter = state is not None and state.letter is not None
        if has_letter or any(event.type in LETTER_TYPES for event in its_events):
            new += map(_pack, letters_of(state, its_events).values())
            end = resolved_before(state, its_events)
            if end is not None and state is not None:
                ended.append({"the_letter": state.letter, **_end(end)})
    if new:
        connection.execute(insert(dead_letters), new)
    if ended:
        connection.execute(_RESOLVE, ended)


def project_anew(connection: Connection, events: Sequence[Event]) -> None:
    """Write the letters of one run by today's rules, from all its events, over what an older version wrote."""
    made = letters_of(None, events)
    if made:
        connection.execute(delete(dead_letters).where(dead_letters.c.seq.in_(made)))
        connection.execute(insert(dead_letters), [_pack(letter) for letter in made.values()])


def keeps_events(state: RunState, now: datetime, *, days: int = 30) -> bool:
    """Tell whether a run's events must stay readable for its open letter's sake.

    Its letter is read from them when the ledger is built anew, and a retry needs its message.
    """
    if state.letter is None:
        return False
    lapses = state.state in (State.ABORTED, State.COMPENSATED)
    return not lapses or now - state.changed_at < timedelta(days=days)


def _valid(
    state: RunState | None, events: Sequence[Event]
) -> list[tuple[Event, RunState, RunState]]:
    """Return the events that count, each with the states before and after it; not the first of a run."""
    found = []
    for event in events:
        folded = fold(state, event)
        counts = not isinstance(folded, Void)
        after = folded.state if isinstance(folded, Void) else folded
        if counts and state is not None and after is not None and after is not state:
            found.append((event, state, after))
        state = after
    return found


def _made(event: Event, state: RunState) -> DeadLetter:
    category = category_of(event)
    assert category is not None, "an event made a letter of no category"
    letter = DeadLetter(
        id=str(event.seq),
        run_id=state.run_id,
        namespace=state.namespace,
        task=state.task,
        category=category,
        reason=_reason(event),
        created_at=event.timestamp,
        seq=event.seq,
    )
    if category is Category.RECOVERED:
        return _resolved(letter, event)
    if category is Category.ABORTED and is_told(event, state):
        return replace(letter, resolved_at=event.timestamp, resolution=TOLD)
    return letter


def is_told(event: Event, state: RunState) -> bool:
    """Tell whether an abort is one that its caller expects: the body's own exception, or somebody's word."""
    data = event.payload
    if data.get("in_doubt"):
        return data.get("reason") == "cancelled" and state.cancel_requested == "operator"
    if data.get("reason") == "cancelled":
        return state.cancel_requested not in (None, *LIMITS)
    return data.get("reason") == "exception" and _reason(event) not in LIMITS


def _reason(event: Event) -> str:
    """Return why in a few words: no message of an exception, which may hold what is nobody's business."""
    data = event.payload
    kind = exception_kind(data.get("exception"))
    if event.type == "run.stuck":
        undo, name = data.get("undo"), data.get("name")
        which = f"the undo {undo}" if isinstance(undo, str) else "the undo"
        step = f"step {data.get('step')}" + (f" ({name})" if isinstance(name, str) else "")
        return f"{which} of {step} failed for good" + (f": {kind}" if kind else "")
    reason = str(data.get("reason") or data.get("kind"))
    return kind or reason if reason == "exception" else reason


def exception_kind(recorded: object) -> str | None:
    """Return the name of a recorded exception's class, without its module; None where there is none."""
    if not isinstance(recorded, Mapping) or not isinstance(recorded.get("type"), str):
        return None
    return str(recorded["type"]).rpartition(":")[2]


def _resolved(letter: DeadLetter, event: Event) -> DeadLetter:
    end = _end(event)
    return replace(letter, **{**end, "resolved_at": event.timestamp})


def _end(event: Event) -> dict[str, Any]:
    by, retried_as = event.payload.get("by"), event.payload.get("retry_as")
    told = event.type.startswith("operator.")
    return {
        "resolved_at": pack_moment(event.timestamp),
        "resolution": _RESOLUTIONS.get(event.type, "resumed"),
        "resolved_by": str(by) if told else None,
        "retried_as": retried_as if told and isinstance(retried_as, str) else None,
    }


_RESOLVE: Final = (
    update(dead_letters)
    .where(dead_letters.c.seq == bindparam("the_letter"))
    .values(
        {
            name: bindparam(name)
            for name in ("resolved_at", "resolution", "resolved_by", "retried_as")
        }
    )
)


def _pack(letter: DeadLetter) -> dict[str, Any]:
    row = {column.name: getattr(letter, column.name) for column in dead_letters.c}
    row["category"] = letter.category.value
    row["created_at"] = pack_moment(letter.created_at)
    row["resolved_at"] = None if letter.resolved_at is None else pack_moment(letter.resolved_at)
    return row


def unpack_letter(row: Row[Any]) -> DeadLetter:
    """Return the letter of a row."""
    found: dict[str, Any] = dict(row._mapping)
    found["id"] = str(found["seq"])
    found["category"] = Category(found["category"])
    found["created_at"] = unpack_moment(found["created_at"])
    if found["resolved_at"] is not None:
        found["resolved_at"] = unpack_moment(found["resolved_at"])
    return DeadLetter(**found)
