"""Take over a batch of runs: leases, fences, decisions and messages, each kind in one go.

The order is what makes it safe, for one run as for a hundred: own the lease, fence every older token durably, read the
history up to the fence, decide from that, write the decision durably, give the lease back, publish.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from celery_commander.engine import (
    Abort,
    Compensate,
    Decision,
    Deliver,
    Facts,
    Fenced,
    NewEvent,
    Park,
    ParkDamaged,
    ParkVersion,
    Policy,
    Republish,
    Requeue,
    RunAborted,
    RunHistory,
    Skip,
    State,
    Wait,
    encode_exception,
    plan,
)

from .announcing import announce
from .checkpoints import named, valid_checkpoints
from .damaged import park_damaged
from .gate import fork_gate
from .losses import last_loss
from .message import of_history
from .ownership import Ownership
from .publishing import publish_again

if TYPE_CHECKING:
    from .install import Commander

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Found:
    """A run with which something is to be done, as it was found: its lease, its events, what they ask for."""

    history: RunHistory
    facts: Facts
    decision: Decision


@dataclass(frozen=True, slots=True)
class Taken:
    """A run that was taken over, and what was decided about it behind the fence."""

    ownership: Ownership
    decision: Decision
    facts: Facts


def take_over(
    commander: Commander, found: Mapping[str, Found], policy: Policy
) -> dict[str, Decision]:
    """Take over the runs in `found` and carry out what is decided; the answer has no run that somebody else took.

    Raises:
        LogError, StoreUnavailable: the batch stops; what is written is written, the rest is met at the next pass.
    """
    floors = {run_id: one.history.state.token for run_id, one in found.items() if one.history.state}
    leases = commander.recovery_holder.acquire_many(floors)
    try:
        owned = [
            Ownership(commander, lease, found[run_id].history) for run_id, lease in leases.items()
        ]
        fenced = _written(owned, lambda one: [one.fence()])
        taken = [_decide(one, found[one.run_id].facts, policy) for one in fenced]
        decided = _written(taken, lambda one: one.ownership.numbered(_events_of(one)))
    finally:
        commander.recovery_holder.release_many(leases.values())
    for one in decided:
        _announce(commander, one)
        _publish(commander, one)
    return {one.ownership.run_id: one.decision for one in decided}


def _decide(ownership: Ownership, facts: Facts, policy: Policy) -> Taken:
    again = Ownership(
        ownership.commander, ownership.lease, ownership.commander.history(ownership.run_id)
    )
    # Behind the fence there may be others than there were before it.
    valid = valid_checkpoints(ownership.commander, again.history)
    now = dataclasses.replace(facts, checkpoints=valid)
    return Taken(again, plan(again.history, policy, now), now)


def _written(batch: Sequence[Any], events_of: Callable[[Any], list[NewEvent]]) -> list[Any]:
    """Append what each of the batch has to say in one durable write; return those that were not fenced."""
    told = [(one, events_of(one)) for one in batch]
    try:
        _append(batch, [event for _, events in told for event in events])
    except Fenced:
        return [one for one, events in told if _append_one(one, events)]
    return list(batch)


def _append(batch: Sequence[Any], events: list[NewEvent]) -> None:
    if events:
        commander: Commander = getattr(batch[0], "ownership", batch[0]).commander
        announce(commander, commander.engine.append_many(events, wait=True))


def _append_one(one: Any, events: list[NewEvent]) -> bool:
    try:
        _append([one], events)
    except Fenced as error:
        logger.info("Run %s was taken by another meanwhile.", error.run_id)
        return False
    return True


def _events_of(taken: Taken) -> list[tuple[str, dict[str, Any]]]:
    """Return what is written down of a decision, before anybody is told of it."""
    match taken.decision:
        case Requeue(reason=reason, death=death, completes=steps, checkpoint=checkpoint):
            place = named(checkpoint, conflict=False) if checkpoint else None
            data = {"reason": reason, "death": death, "due": None, "checkpoint": place}
            return [*_completions(taken.ownership, steps), ("run.requeued", data)]
        case Republish():
            return [("run.requeued", {"reason": "lost message", "death": False, "due": None})]
        case Abort(reason=reason, in_doubt=in_doubt):
            return [("run.aborted", _abort_data(taken.ownership, reason, in_doubt))]
        case Park(step=step):
            why = f"step {step} is in doubt"
            parked = {"kind": "doubt", "due": None, "reason": why}
            return [("run.paused", parked | {"owner_dead": taken.facts.owner_dead})]
        case ParkVersion(reason=reason):
            return [("run.paused", {"kind": "version", "due": None, "reason": reason})]
        case ParkDamaged(reason=reason):
            return [park_damaged(taken.ownership.history, reason)]
        case Skip() | Wait() | Deliver() | Compensate():
            return []


def _completions(ownership: Ownership, steps: Sequence[int]) -> list[tuple[str, dict[str, Any]]]:
    """Return the ends of the steps of which a person said that they happened, under a claim of this process."""
    history, state = ownership.history, ownership.history.state
    if not steps or state is None:
        return []
    started = {
        "task": state.task,
        "attempt": state.attempt + 1,
        "holder": ownership.lease.holder,
        "liveness": ownership.commander.recovery_holder.liveness,
    }
    ends = [
        ("step.completed", {"step": step, "result": history.entries[step].value}) for step in steps
    ]
    return [("run.started", started), *ends] if state.state is State.PAUSED else ends


def _abort_data(ownership: Ownership, reason: str, in_doubt: tuple[int, ...]) -> dict[str, Any]:
    state = ownership.history.state
    asked = state.cancel_requested if state else None
    why = asked if reason == "cancelled" and asked else reason
    if reason == "poison":  # say what it died of; whoever asks for the result knows no log
        events = ownership.commander.engine.history(ownership.run_id)
        why = f"poison: {last_loss(events) or 'its processes died'}"
    exception = encode_exception(RunAborted(ownership.run_id, why))
    if ownership.history.outcome is not None:  # its undo begins again; what it came to stays
        exception = ownership.history.outcome[1]
    return {
        "exception": exception,
        "reason": reason,
        "in_doubt": list(in_doubt),
        "generation": state.generation + 1 if state else 1,
    }


def _announce(commander: Commander, taken: Taken) -> None:
    """Tell the bus what was decided and is durable; it takes the message and returns."""
    told = _told(taken.decision)
    if told is not None:
        key, data = told
        state = taken.ownership.history.state
        data |= {"task": state.task if state else None, "by": "recovery"}
        commander.bus.publish(key, data, run_id=taken.ownership.run_id)


def _told(decision: Decision) -> tuple[str, dict[str, Any]] | None:
    match decision:
        case Requeue(reason=reason, death=death):
            return "run.recovered", {"reason": reason, "death": death}
        case Republish():
            return "run.recovered", {"reason": "lost message", "death": False}
        case Deliver():
            return "run.recovered", {"reason": "outcome not told", "death": False}
        case Abort(reason=reason, in_doubt=in_doubt):
            return "run.aborted", {"reason": reason, "in_doubt": list(in_doubt)}
        case Park(step=step):
            return "run.parked", {"reason": "doubt", "step": step}
        case ParkVersion():
            return "run.parked", {"reason": "version", "step": None}
        case ParkDamaged():
            return "run.parked", {"reason": "damage", "step": None}
        case Skip() | Wait() | Compensate():
            return None


def _publish(commander: Commander, taken: Taken) -> None:
    """Publish what a written decision asks for; when the broker is away, a later pass finds the run again."""
    run_id = taken.ownership.run_id
    try:
        with fork_gate.passed():
            _send(commander, taken)
    except Exception as error:  # noqa: BLE001  # whatever the broker raises, the decision stands in the log
        logger.error("The message of run %s was not sent, a later pass will: %s", run_id, error)


def _send(commander: Commander, taken: Taken) -> None:
    match taken.decision:
        case Requeue() | Republish() | Deliver():
            publish_again(commander, of_history(taken.ownership.history))
        case Abort() | Compensate():
            commander.compensation.start(taken.ownership.run_id)
        case Skip() | Wait() | Park() | ParkVersion() | ParkDamaged():
            pass
