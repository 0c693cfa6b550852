"""Choose what is shown of a run: facts to everybody, what went in and came out only to whom that is allowed.

What counts as a fact is listed, so a field that is new, or that a later version adds, is hidden until somebody has
thought about it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from celery_commander.engine import Entry, Event, RunHistory, RunState, State

FACTS: Final = (
    "task", "namespace", "attempt", "holder", "step", "kind", "name", "undo", "outcome", "reason",
    "death", "due", "sent", "generation", "in_doubt", "owed", "final", "resolve", "retry_in_doubt",
    "tries", "acted",
)  # fmt: skip
"""Fields of events that say what was done, with which part of the program; never with what."""

_TOLD_BY_ERRORS: Final = ("task.", "run.degraded")
"""Types whose `reason` may quote an exception."""

MOST_FACT_CHARACTERS: Final = 200
MOST_VALUE_CHARACTERS: Final = 4_000

_BADGES: Final[Mapping[State, str]] = {
    State.COMMITTED: "success",
    State.EXECUTING: "primary",
    State.VERIFYING: "primary",
    State.ABORTED: "warning",
    State.COMPENSATED: "warning",
    State.STUCK: "danger",
}


@dataclass(frozen=True, slots=True)
class EventRow:
    """One event as a row; `values` is None where they are hidden."""

    seq: int
    at: datetime
    type: str
    token: int | None
    facts: str
    void: str | None
    values: str | None

    @classmethod
    def of(cls, event: Event, void: str | None, *, values: bool) -> EventRow:
        """Return the row of an event, void for a reason or valid."""
        facts = _facts(event)
        rest = {key: value for key, value in event.payload.items() if key not in facts}
        return cls(
            event.seq,
            event.timestamp,
            event.type,
            event.token,
            " ".join(f"{key}={_brief(value)}" for key, value in facts.items()),
            void,
            _text(rest) if values and rest else None,
        )


@dataclass(frozen=True, slots=True)
class StepRow:
    """One step or recorded input as a row."""

    step: int
    kind: str
    name: str
    status: str
    in_doubt: bool
    attempt: int
    undo: str | None
    undone: str | None
    values: str | None

    @classmethod
    def of(cls, entry: Entry, undos: Mapping[int, str], *, values: bool) -> StepRow:
        """Return the row of a step; `undos` says what became of those that were asked for."""
        shown = {"args": entry.args, "kwargs": entry.kwargs, "value": entry.value, "key": entry.key}
        return cls(
            entry.step,
            entry.kind,
            entry.name,
            entry.status,
            entry.in_doubt,
            entry.attempt,
            entry.undo,
            undos.get(entry.step),
            _text(shown) if values else None,
        )


def undos_of(history: RunHistory, events: Iterable[Event]) -> dict[int, str]:
    """Return, by step, how far its undo has come: owed, started, completed or failed."""
    run, voided = history.state, {event.seq for event, _ in history.voided}
    rolled_back = run is not None and run.state in (State.ABORTED, State.STUCK)
    found = dict.fromkeys(run.owed if run is not None and rolled_back else (), "owed")
    for event in events:
        if event.type.startswith("compensation.") and event.seq not in voided:
            found[event.payload["step"]] = event.type.removeprefix("compensation.")
    return found


def last_holder(events: Sequence[Event]) -> str | None:
    """Return who claimed the run last, as the log says; that it still holds it is another question."""
    claims = (event for event in reversed(events) if event.type in ("run.started", "run.fenced"))
    holders = (event.payload.get("holder") for event in claims)
    return next((holder for holder in holders if isinstance(holder, str)), None)


def note(run: RunState) -> str:
    """Return what else is to be said of a run, in a few words."""
    rolled_back = run.state in (State.ABORTED, State.STUCK)
    notes: Sequence[str | None] = (
        f"paused: {run.paused_kind}" if run.paused_kind else None,
        f"due {utc(run.due_at)}" if run.due_at else None,
        f"cancel asked: {_brief(run.cancel_requested)}" if run.cancel_requested else None,
        "ran unrecorded" if run.degraded else None,
        f"open steps {_numbers(run.open_steps)}" if run.open_steps else None,
        f"owes undo of {_numbers(run.owed)}" if run.owed and rolled_back else None,
    )
    return "; ".join(each for each in notes if each)


def badge(state: State) -> str:
    """Return Bootstrap's colour for a state."""
    return _BADGES.get(state, "secondary")


def utc(moment: datetime) -> str:
    """Return a moment as the tables show it; their heads say that it is UTC."""
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def _facts(event: Event) -> dict[str, Any]:
    quotes = event.type.startswith(_TOLD_BY_ERRORS)
    return {
        key: event.payload[key]
        for key in FACTS
        if _is_plain(event.payload.get(key)) and not (quotes and key == "reason")
    }


def _is_plain(value: Any) -> bool:
    """Tell whether this says something in one line: not nothing, and no nested thing."""
    if isinstance(value, list):
        return bool(value) and all(isinstance(each, int | str) for each in value)
    return isinstance(value, int | float | str) and value is not False and value != ""


def _brief(value: Any) -> str:
    text = ",".join(str(each) for each in value) if isinstance(value, list) else str(value)
    return _cut(text, MOST_FACT_CHARACTERS)


def _text(values: Mapping[str, Any]) -> str:
    text = json.dumps(values, ensure_ascii=False, indent=1, default=str)
    return _cut(text, MOST_VALUE_CHARACTERS)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}… ({len(text):,} characters)"


def _numbers(steps: Sequence[int]) -> str:
    shown = ", ".join(str(step) for step in steps[:20])
    return f"{shown}, … ({len(steps):,})" if len(steps) > 20 else shown
