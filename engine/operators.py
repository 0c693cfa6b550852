"""What a person's word on a run changes: the rules of `fold` for `operator.*`.

A word names the dead letter that it answers by the seq of the event that made it, and counts only
while that very letter is open. So of two people who speak at once the log's order lets one win, and a
word that comes late cannot meet another doubt than the one its speaker looked at.
"""

from collections.abc import Mapping
from typing import Any

from .events import Event
from .fields import Refused, flag, mapping, number, text
from .states import RunState, State


def retried(state: RunState, event: Event) -> dict[str, Any]:
    """Let a parked or stuck run go on; an aborted one stays what it is, another goes in its place."""
    _check_letter(state, event)
    asked = state.cancel_requested
    if event.payload.get("answer") is None:
        _check_nothing_is_asked(state)
    elif _aborts(state, mapping(event.payload, "answer")):
        asked = asked or "operator"
    waits = state.state in (State.PAUSED, State.STUCK)
    return {"letter": None, "released": waits, "cancel_requested": asked}


def discarded(state: RunState, event: Event) -> dict[str, Any]:
    """Close a letter of which nothing more is expected. A parked run is not over, so it stays."""
    _check_letter(state, event)
    text(event.payload, "reason")
    if state.state is State.PAUSED:
        raise Refused("a parked run is not over")
    return {"letter": None}


def _check_letter(state: RunState, event: Event) -> None:
    entry, _ = text(event.payload, "entry"), text(event.payload, "by")
    if state.letter is None or entry != str(state.letter):
        raise Refused(f"dead letter {entry} of this run is not open")


def _check_nothing_is_asked(state: RunState) -> None:
    if state.paused_kind == "doubt" and state.open_steps:
        raise Refused(f"it does not say what became of step {state.open_steps[0]}")


def _aborts(state: RunState, answer: Mapping[str, Any]) -> bool:
    """Check what a person says of a parked run; return whether it is that the run be aborted."""
    if state.state is not State.PAUSED:
        raise Refused(f"nothing is asked of a run that is {state.state}")
    if answer.get("abort") is True:
        return True
    step, _ = number(answer, "step"), flag(answer, "happened")
    if step not in state.open_steps:
        raise Refused(f"step {step} is not in doubt")
    return False
