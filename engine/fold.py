"""What a run's events add up to: the one place that decides which of them count.

`fold(state, event)` takes the state so far and the next event of the same run and answers with the
state after it, or with `Void`: the event stays in the log as evidence and counts for nothing, today
and at every later reading. Nothing else in the house judges an event, so a live worker, a recoverer
and a rebuilt ledger can never disagree::

              run.started        run.verifying
    PENDING ─────────────► EXECUTING ─────────────► VERIFYING
       ▲                    │  │  ▲                    │
       ├─── run.requeued ───┤  │  └─ run.started ─┐    │  (from here too: all that EXECUTING may)
       │                    │  └── run.paused ─► PAUSED
       │                    └── run.committed, no step open ──► COMMITTED
       └── run.requeued, of PAUSED and VERIFYING too
    any unfinished one ── run.aborted ──► ABORTED ── run.compensated, nothing owed ──► COMPENSATED
                                           │   ▲
                                run.stuck  ▼   │  run.aborted of a newer generation
                                           STUCK

Nothing leaves COMMITTED or COMPENSATED; `delivered` is a column of its own. An owner's event must
hold the run by its token and fit its state. Outsiders' events (`run.created`, `run.cancelled`,
`run.degraded`) carry no token. Types that are not named here pass by: the state stands.

A run that gave up, was parked or got stuck has a dead letter, named after the seq of the event that
says so. A person's word (`operator.*`) must name the letter that is open: the first one counts, and
whoever comes second is void. It moves nothing by itself, except that a parked or stuck run is
`released`: recovery, or the command that wrote it, goes on from there.

Pure: no clock, no file, and it never raises for what a log may hold.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from .events import Event
from .fields import Refused, flag, is_number, mapping, moment, number, optional_text, text
from .operators import discarded, retried
from .restart import restarted, saved, taken_back
from .states import FINISHED, NEEDS_A_PERSON, RunState, State, Void

__all__ = [
    "DURABLE_TYPES",
    "FINISHED",
    "FOLD_VERSION",
    "RunState",
    "State",
    "Void",
    "fold",
    "fold_all",
    "state_after",
]

FOLD_VERSION: Final = 5
"""Grows with every change of what is decided below or in `letters`; a ledger of another version is rebuilt."""

_RUNNING = frozenset({State.EXECUTING, State.VERIFYING})
_UNFINISHED = _RUNNING | {State.PENDING, State.PAUSED}
_ROLLBACK = frozenset({State.ABORTED})
_ENDED = FINISHED | {State.ABORTED, State.STUCK}

_Changes = dict[str, Any]

_GOES_ON: Final[_Changes] = {
    "paused_kind": None,
    "due_at": None,
    "letter": None,
    "released": False,
}
"""What no longer holds of a run that leaves where it waited."""


def fold(state: RunState | None, event: Event) -> RunState | Void | None:
    """Return the state after `event`, or `Void` when it does not fit.

    `state` is None before `run.created`. An event of an unknown type, or of no run, returns `state`
    itself, so a caller may compare by identity. Both must be of one run.
    """
    rule = _RULES.get(event.type)
    if rule is None or event.run_id is None:
        return state
    assert state is None or state.run_id == event.run_id, "folded an event of another run"
    try:
        return rule(state, event)
    except Refused as refused:
        return Void(str(refused), _doubted(state, event))


def state_after(state: RunState | None, event: Event) -> RunState | None:
    """Return what stands after `event`, valid or void."""
    folded = fold(state, event)
    return folded.state if isinstance(folded, Void) else folded


def fold_all(
    events: Iterable[Event], known: Mapping[str, RunState] | None = None
) -> dict[str, RunState]:
    """Fold events of many runs, in the order of the log, upon the states that are `known` before."""
    states = dict(known or {})
    for event in events:
        if event.run_id is not None and event.type in _RULES:
            after = state_after(states.get(event.run_id), event)
            if after is not None:
                states[event.run_id] = after
    return states


def _doubted(state: RunState | None, event: Event) -> RunState | None:
    """Return what stands after a void event: a voided start leaves its step open.

    Unless the run is over, or the step has a recorded end: then the record is the answer.
    """
    step = event.payload.get("step")
    if event.type != "step.started" or state is None or state.state in FINISHED:
        return state
    if not is_number(step):
        return state
    if step < state.steps and step not in state.open_steps:
        return state
    owed = state.owed if event.payload.get("undo") is None else _with(state.owed, step)
    opened = _with(state.open_steps, step)
    return replace(state, last_seq=event.seq, open_steps=opened, owed=owed, raised=None)


# What outsiders may say


def _created(state: RunState | None, event: Event) -> RunState:
    if state is not None:
        raise Refused("the run exists already")
    return RunState(
        run_id=event.run_id or "",
        task=text(event.payload, "task"),
        namespace=text(event.payload, "namespace"),
        queue=optional_text(mapping(event.payload, "message"), "queue"),
        key=optional_text(event.payload, "key"),
        due_at=moment(event.payload, "due"),
        created_at=event.timestamp,
        changed_at=event.timestamp,
        last_seq=event.seq,
    )


def _cancelled(state: RunState | None, event: Event) -> RunState:
    """End a run that nobody has claimed; of any other only note that its end was asked for."""
    state = _existing(state)
    reason, sent = text(event.payload, "reason"), flag(event.payload, "sent")
    if state.state in FINISHED:
        raise Refused(f"too late: the run is {state.state}")
    unclaimed = state.state is State.PENDING and state.attempt == 0 and not state.open_steps
    told = (
        not sent and event.payload.get("awaited") is not True
    )  # its caller saw it fail, nobody else waits
    over: _Changes = {"state": State.COMPENSATED, "delivered": told} if unclaimed else {}
    first = reason if state.cancel_requested is None else state.cancel_requested
    return _moved(state, event, cancel_requested=first, **over)


def _degraded(state: RunState | None, event: Event) -> RunState:
    """End a run whose body ran unrecorded; even `run.created` may be missing."""
    task = text(event.payload, "task")
    if state is None:
        at, namespace = event.timestamp, optional_text(event.payload, "namespace") or ""
        state = RunState(event.run_id or "", task, namespace, None, None, at, at, event.seq)
    elif state.state not in (State.PENDING, State.PAUSED):
        raise Refused(f"the run is {state.state}")
    over: _Changes = {"state": State.COMMITTED, "delivered": True, "degraded": True}
    return _moved(state, event, **over, **_GOES_ON, open_steps=(), owed=())


def _said_by_a_person(
    changes_of: Callable[[RunState, Event], _Changes],
) -> Callable[[RunState | None, Event], RunState]:
    def rule(state: RunState | None, event: Event) -> RunState:
        state = _existing(state)
        return _moved(state, event, **changes_of(state, event))

    return rule


# What an owner's event changes, once its token and the state have been looked at


def _started(state: RunState, event: Event) -> _Changes:
    claim: _Changes = {"state": State.EXECUTING, "token": event.token, "attempt": state.attempt + 1}
    return {**claim, **_GOES_ON}


def _fenced(state: RunState, event: Event) -> _Changes:
    """Move the fence alone: who looks at a run must not thereby make it look alive."""
    return {"token": event.token, "fenced": True, "changed_at": state.changed_at}


def _verifying(_state: RunState, _event: Event) -> _Changes:
    return {"state": State.VERIFYING}


def _committed(state: RunState, _event: Event) -> _Changes:
    if state.open_steps:
        raise Refused(f"step {state.open_steps[0]} has no recorded end")
    return {"state": State.COMMITTED, "owed": ()}


def _aborted(state: RunState, event: Event) -> _Changes:
    generation = number(event.payload, "generation")
    if generation < state.generation + (state.state is State.STUCK):
        raise Refused(f"generation {generation} is not newer than {state.generation}")
    rollback: _Changes = {"state": State.ABORTED, "generation": generation}
    return {**rollback, **_GOES_ON, "letter": event.seq}


def _compensated(state: RunState, event: Event) -> _Changes:
    _check_generation(state, event)
    if state.owed:
        raise Refused(f"the undo of step {state.owed[-1]} is owed")
    return {"state": State.COMPENSATED}


def _stuck(state: RunState, event: Event) -> _Changes:
    _check_generation(state, event)
    return {"state": State.STUCK, "letter": event.seq}


def _delivered(state: RunState, event: Event) -> _Changes:
    outcome = text(event.payload, "outcome")
    if state.delivered:
        raise Refused("the run is delivered already")
    if outcome not in _ENDED or (outcome == "COMMITTED") != (state.state is State.COMMITTED):
        raise Refused(f"outcome {outcome!r}, but the run is {state.state}")
    return {"delivered": True}


def _requeued(state: RunState, event: Event) -> _Changes:
    deaths = state.deaths + flag(event.payload, "death")
    waiting: _Changes = {"state": State.PENDING, "deaths": deaths}
    due: _Changes = {"due_at": moment(event.payload, "due")}
    return {**_GOES_ON, **waiting, **due, **restarted(state, event)}


def _paused(state: RunState, event: Event) -> _Changes:
    kind, due_at = text(event.payload, "kind"), moment(event.payload, "due")
    waiting: _Changes = {"state": State.PAUSED, "paused_kind": kind, "due_at": due_at, "deaths": 0}
    letter = {"letter": event.seq if kind in NEEDS_A_PERSON else None}
    return {**_GOES_ON, **waiting, **letter, **taken_back(state, event)}


def _step_started(state: RunState, event: Event) -> _Changes:
    """Open the next index, or again one that is open: a step in doubt that may be repeated."""
    step, undo = number(event.payload, "step"), optional_text(event.payload, "undo")
    if step < state.steps and step not in state.open_steps:
        raise Refused(f"index {step} has a recorded end")
    if step > state.steps:
        raise Refused(f"index {step} leaves out {state.steps}")
    owed = state.owed if undo is None else _with(state.owed, step)
    opened = _with(state.open_steps, step)
    steps = max(state.steps, step + 1)
    return {"steps": steps, "open_steps": opened, "owed": owed, "raised": None}


def _step_completed(state: RunState, event: Event) -> _Changes:
    return {**_closed(state, event), "deaths": 0}


def _step_failed(state: RunState, event: Event) -> _Changes:
    """Close a step that raised; unless its effect is unknown, there is nothing to undo."""
    closed, owed = _closed(state, event), flag(event.payload, "owed")
    step = event.payload["step"]
    closed["raised"] = step if step + 1 == closed["steps"] else None
    return closed if owed else {**closed, "owed": _without(state.owed, step)}


def _try_failed(state: RunState, event: Event) -> _Changes:
    """Note that a step raised and is tried again: it stays open, and what one of its tries may have done is owed."""
    step, acted = number(event.payload, "step"), flag(event.payload, "acted")
    moment(event.payload, "due")
    number(event.payload, "tries")
    if step not in state.open_steps:
        raise Refused(f"step {step} is not open")
    return {} if acted else {"owed": _without(state.owed, step)}


def _closed(state: RunState, event: Event) -> _Changes:
    step = number(event.payload, "step")
    if step not in state.open_steps or step > state.steps:
        raise Refused(f"step {step} is not open")
    return {"steps": max(state.steps, step + 1), "open_steps": _without(state.open_steps, step)}


def _input_recorded(state: RunState, event: Event) -> _Changes:
    step = number(event.payload, "step")
    if step != state.steps or step in state.open_steps:
        raise Refused(f"index {step} is not the next one")
    raised = step if event.payload.get("raised") is True else None
    return {"steps": step + 1, "deaths": 0, "raised": raised}


def _undo_named(state: RunState, event: Event) -> _Changes:
    _check_generation(state, event)
    step = number(event.payload, "step")
    if step not in state.owed:
        raise Refused(f"no undo of step {step} is owed")
    return {}


def _undo_completed(state: RunState, event: Event) -> _Changes:
    return {**_undo_named(state, event), "owed": _without(state.owed, event.payload["step"])}


# Who may write it, and when


def _holds(state: RunState, token: int) -> bool:
    return token == state.token


def _newer(state: RunState, token: int) -> bool:
    return token > state.token


def _claims(state: RunState, token: int) -> bool:
    """A newer token; or the one that was fenced with just before, over somebody's expired lease."""
    return token > state.token or (state.fenced and token == state.token)


@dataclass(frozen=True, slots=True)
class _OwnerRule:
    sources: frozenset[State]
    change: Callable[[RunState, Event], _Changes]
    owns: Callable[[RunState, int], bool] = _holds

    def __call__(self, state: RunState | None, event: Event) -> RunState:
        state = _existing(state)
        token = event.token
        if not is_number(token) or token == 0 or not self.owns(state, token):
            raise Refused(f"token {token} does not hold the run, its fence is {state.token}")
        if state.state not in self.sources:
            raise Refused(f"the run is {state.state}")
        changes = {"fenced": False, "n": _own_number(state, event), **self.change(state, event)}
        return _moved(state, event, **changes)


_RULES: Final[dict[str, Callable[[RunState | None, Event], RunState]]] = {
    "run.created": _created,
    "run.cancelled": _cancelled,
    "run.degraded": _degraded,
    "operator.retried": _said_by_a_person(retried),
    "operator.discarded": _said_by_a_person(discarded),
    "run.fenced": _OwnerRule(frozenset(State), _fenced, _newer),
    "run.started": _OwnerRule(frozenset({State.PENDING, State.PAUSED}), _started, _claims),
    "run.verifying": _OwnerRule(frozenset({State.EXECUTING}), _verifying),
    "run.committed": _OwnerRule(_RUNNING, _committed),
    "run.aborted": _OwnerRule(_UNFINISHED | {State.STUCK}, _aborted),
    "run.compensated": _OwnerRule(_ROLLBACK, _compensated),
    "run.stuck": _OwnerRule(_ROLLBACK, _stuck),
    "run.delivered": _OwnerRule(_ENDED, _delivered),
    "run.requeued": _OwnerRule(_UNFINISHED, _requeued),
    "run.paused": _OwnerRule(_RUNNING | {State.PAUSED}, _paused),
    "step.started": _OwnerRule(_RUNNING, _step_started),
    "step.completed": _OwnerRule(_RUNNING, _step_completed),
    "step.failed": _OwnerRule(_RUNNING, _step_failed),
    "step.try_failed": _OwnerRule(_RUNNING, _try_failed),
    "input.recorded": _OwnerRule(_RUNNING, _input_recorded),
    "compensation.started": _OwnerRule(_ROLLBACK, _undo_named),
    "compensation.completed": _OwnerRule(_ROLLBACK, _undo_completed),
    "compensation.failed": _OwnerRule(_ROLLBACK, _undo_named),
    "checkpoint.saved": _OwnerRule(_RUNNING, saved),
}

DURABLE_TYPES: Final = frozenset(_RULES)
"""The types that are folded; all others pass by."""


def _existing(state: RunState | None) -> RunState:
    if state is None:
        raise Refused("the run was never created")
    return state


def _moved(state: RunState, event: Event, /, **changes: Any) -> RunState:
    return replace(state, **{"last_seq": event.seq, "changed_at": event.timestamp, **changes})


def _own_number(state: RunState, event: Event) -> int:
    """Return the run's last own number; it only grows, so no number is given twice."""
    return max(state.n, event.n) if is_number(event.n) else state.n


def _check_generation(state: RunState, event: Event) -> None:
    generation = number(event.payload, "generation")
    if generation != state.generation:
        raise Refused(f"generation {generation} is not the rollback's {state.generation}")


def _with(steps: tuple[int, ...], step: int) -> tuple[int, ...]:
    return steps if step in steps else tuple(sorted((*steps, step)))


def _without(steps: tuple[int, ...], step: int) -> tuple[int, ...]:
    return tuple(other for other in steps if other != step)
