"""Tell what happened to a run in a few words, and get the events of it.

    told("run.created", "run.started@1", ("step.started@1", {"undo": "refund"}), "step.completed@1")

``@1`` is the token. Data that is not given is what fits best where the story stands: the open step, the next index,
the generation of the rollback, the run's next own number.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from celery_commander.engine.events import Event, NewEvent, Position
from celery_commander.engine.fold import RunState, Void, fold, state_after

START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
SOON = "2026-01-02T04:00:00+00:00"
MESSAGE = {"headers": {"id": "r-1"}, "body": [[], {}, {}], "queue": "orders"}
ENDS = ("step.completed", "step.failed")

Line = str | tuple[str, Mapping[str, Any]]

# Where a run may stand; its owner has token 5.
UNDO = {"undo": "shop.refund"}
PENDING = ("run.created",)
EXECUTING = (*PENDING, "run.started@5")
STEP_OPEN = (*EXECUTING, ("step.started@5", UNDO))
VERIFYING = (*EXECUTING, "run.verifying@5")
PAUSED = (*EXECUTING, "run.paused@5")
REQUEUED = (*EXECUTING, "run.requeued@5")
ABORTED = (*EXECUTING, "run.aborted@5")
OWING = (*STEP_OPEN, "step.completed@5", "run.aborted@5")
STUCK = (*OWING, "run.stuck@5")
COMPENSATED = (*ABORTED, "run.compensated@5")
COMMITTED = (*EXECUTING, "run.committed@5")
IN_DOUBT = (*STEP_OPEN, ("run.paused@5", {"kind": "doubt", "due": None}))
CONFLICT = (*EXECUTING, ("run.paused@5", {"kind": "version", "due": None}))


def event(
    type: str,
    data: Mapping[str, Any],
    *,
    seq: int = 1,
    run_id: str | None = "r-1",
    token: int | None = None,
    n: int | None = None,
    at: datetime | None = None,
) -> Event:
    """Return an event as the log would give it back."""
    at = START + timedelta(seconds=seq) if at is None else at
    position = Position(seq, 1, seq * 100)
    return Event(position, seq, f"e-{seq}", type, at, run_id, dict(data), "0" * 64, n, token)


def told(*lines: Line, run_id: str = "r-1") -> list[Event]:
    """Return the events of one run; event number i happens i seconds after START."""
    state: RunState | None = None
    events: list[Event] = []
    for seq, line in enumerate(lines, start=1):
        new = one(state, line, run_id=run_id)
        events.append(event(new.type, new.data, seq=seq, run_id=run_id, token=new.token, n=new.n))
        state = state_after(state, events[-1])
    return events


def one(state: RunState | None, line: Line, *, run_id: str = "r-1") -> NewEvent:
    """Return the event of one line, for a run that stands at `state`."""
    text, given = (line, {}) if isinstance(line, str) else line
    type, _, token = text.partition("@")
    own = dict(given)
    n = own.pop("n", (state.n if state else 0) + 1)
    held = token != "" and type != "run.fenced"
    data = {**fitting(state, type), **own}
    return NewEvent(type, data, run_id, int(token) if token else None, n if held else None)


def fitting(state: RunState | None, type: str) -> dict[str, Any]:
    """Return data that fits the state as well as any can."""
    next_step = state.steps if state else 0
    open_step = state.open_steps[0] if state and state.open_steps else next_step
    owed_step = state.owed[-1] if state and state.owed else 0
    generation = state.generation if state else 0
    undo = {"step": owed_step, "generation": generation}
    letter = {"entry": str(state.letter if state else None), "by": "ann@shop"}
    doubt = state is not None and state.paused_kind == "doubt"
    answer = {"step": open_step, "happened": False} if doubt else None
    raised = state.raised if state and not state.open_steps else None
    pause = {"kind": "timer"} if raised is None else {"kind": "retry", "again": raised}
    fixed: dict[str, dict[str, Any]] = {
        "run.created": {
            "task": "shop.fulfil",
            "namespace": "shop",
            "message": MESSAGE,
            "due": None,
        },
        "run.started": {"task": "shop.fulfil", "attempt": 1, "holder": "worker-1"},
        "run.committed": {"result": 42},
        "run.aborted": {"exception": "boom", "reason": "exception", "generation": generation + 1},
        "run.compensated": {"generation": generation},
        "run.stuck": undo,
        "run.delivered": {"outcome": str(state.state) if state else "COMMITTED"},
        "run.requeued": {"reason": "owner dead", "death": True, "due": None},
        "run.paused": {**pause, "due": SOON, "reason": None},
        "run.fenced": {"holder": "recovery-1"},
        "run.cancelled": {"reason": "not wanted", "sent": True},
        "run.degraded": {"task": "shop.fulfil", "reason": "no log"},
        "step.started": {"step": next_step, "kind": "step", "name": "charge", "attempt": 1},
        "step.completed": {"step": open_step, "result": 7},
        "step.failed": {"step": open_step, "exception": "declined", "owed": False},
        "step.try_failed": {
            "step": open_step,
            "exception": "declined",
            "tries": 1,
            "acted": True,
            "due": SOON,
        },
        "checkpoint.saved": {
            "checkpoint": f"c-{state.n + 1 if state else 1}",
            "step": next_step,
            "version": 1,
            "sha256": "5" * 64,
            "bytes": 2,
            "restorable": True,
        },
        "input.recorded": {"step": next_step, "kind": "now", "name": "now", "value": 1},
        "operator.retried": {**letter, "answer": answer},
        "operator.discarded": {**letter, "reason": "settled by hand"},
        "compensation.started": {**undo, "attempt": 1},
        "compensation.completed": undo,
        "compensation.failed": {**undo, "exception": "bank away", "final": False},
    }
    return fixed.get(type, {})


def state_of(*lines: Line) -> RunState | None:
    """Return where a run stands after its story."""
    state = None
    for each in told(*lines):
        state = state_after(state, each)
    return state


def existing(*lines: Line) -> RunState:
    """Return the same, of a run that was made."""
    state = state_of(*lines)
    assert state is not None
    return state


def next_event(state: RunState | None, line: Line, seq: int = 50) -> Event:
    """Return the event of one line, for a run that stands at `state`."""
    new = one(state, line)
    return event(new.type, new.data, seq=seq, token=new.token, n=new.n)


def after(state: RunState | None, line: Line) -> RunState | Void | None:
    """Return what the fold says of one more line."""
    return fold(state, next_event(state, line))
