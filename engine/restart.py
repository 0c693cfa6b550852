"""What a saved checkpoint, a restart from one, and a retry change of where a run goes on."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from .events import Event
from .fields import Refused, flag, is_number, mapping, number, text
from .states import RunState


def saved(state: RunState, event: Event) -> dict[str, Any]:
    """Take the owner's word that every index before this one has its end; a replay may say it late."""
    step = number(event.payload, "step")
    for name, read in _CHECKPOINT_FIELDS.items():
        read(event.payload, name)
    if state.open_steps:
        raise Refused(f"step {state.open_steps[0]} has no recorded end")
    raised = state.raised if step <= (state.raised or 0) else None
    return {"steps": max(state.steps, step), "deaths": 0, "raised": raised}


_CHECKPOINT_FIELDS: Final[dict[str, Callable[[Mapping[str, Any], str], object]]] = {
    "checkpoint": text,
    "version": number,
    "sha256": text,
    "bytes": number,
    "restorable": flag,
}


def restarted(state: RunState, event: Event) -> dict[str, Any]:
    """Note the checkpoint from which the run goes on; where none is named it goes on as before.

    What was done before it stays done: nothing that is owed is forgotten, no index is given twice.
    """
    if event.payload.get("checkpoint") is None:
        return {}
    named = mapping(event.payload, "checkpoint")
    step, conflict = number(named, "step"), flag(named, "conflict")
    if step > state.steps:
        raise Refused(f"no checkpoint at index {step} was reached")
    return {"checkpoint": text(named, "id"), "conflict": state.conflict or conflict}


def taken_back(state: RunState, event: Event) -> dict[str, Any]:
    """Free the last index again for a retry that what was raised there has brought about; nothing else comes back.

    What a step may have done there stays owed.
    """
    again = event.payload.get("again")
    if again is None:
        return {}
    if event.payload.get("kind") != "retry" or not is_number(again):
        raise Refused("only a retry takes an index back")
    if again != state.raised or state.open_steps:
        raise Refused(f"index {again} is not the last, or raised nothing")
    return {"steps": again, "raised": None}
