"""Claim a run for one delivery of its message, or say why not.

Two facts decide: the run's state, read from the log, and its lease. The state is read before the lease is asked for,
so that a delivery which has no business here does not disturb the run, and once more after it was given.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from celery_commander.engine import Lease, RunHistory, RunState, State

from .damaged import park_damaged
from .delivery import FINISHED
from .errors import ForeignStore
from .execution import Execution
from .message import Message, created_data
from .ownership import Ownership

if TYPE_CHECKING:
    from .install import Commander

EARLY_SECONDS = 1.0
"""How much before its due moment a delivery may be: the clocks of a broker and a worker differ a little."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """The run is ours: execute its body."""

    execution: Execution


@dataclass(frozen=True, slots=True)
class Finished:
    """The run has its outcome and Celery was not told: tell it, execute nothing."""

    lease: Lease
    history: RunHistory


@dataclass(frozen=True, slots=True)
class Refused:
    """Nothing is to be done for this delivery."""

    reason: str


def claim(
    commander: Commander, run_id: str, message: Message, hostname: str | None
) -> Claimed | Finished | Refused:
    """Claim a run by compare-and-set; a run that nobody registered enters the log here.

    Raises:
        LogUnavailable, StoreUnavailable: nothing was claimed.
        ForeignStore: the message belongs to another store.

    """
    check_store(commander, run_id, message)
    history = commander.history(run_id)
    if history.state is None:
        commander.engine.append(
            "run.created", created_data(commander, message), run_id=run_id, wait=True
        )
        history = commander.history(run_id)
    state = history.state
    refused = refusal_of(state, datetime.now(UTC))
    if state is None or refused is not None:
        return _refuse(commander, run_id, refused or "its run is not in the log")
    lease = commander.holder.acquire(run_id, floor=state.token)
    if lease is None:
        return _refuse(commander, run_id, "its owner is alive")
    try:
        taken = _take(commander, lease, history, hostname)
    except BaseException:
        commander.holder.release(lease)
        raise
    if isinstance(taken, Refused):
        commander.holder.release(lease)
    return taken


def check_store(commander: Commander, run_id: str, message: Message) -> None:
    """Return when a message names no store or this one.

    Raises:
        ForeignStore: it was registered in another log; executing it here would split its history.

    """
    log_id = (message.headers.get("commander") or {}).get("log_id")
    if log_id is not None and log_id != commander.engine.log_id:
        here = commander.engine_settings.state_directory
        raise ForeignStore(run_id, f"{commander.engine.log_id} in {here}", log_id)


def refusal_of(state: RunState | None, now: datetime) -> str | None:
    """Return why a delivery may not claim a run in this state, or None when it may."""
    if state is None:
        return "its run is not in the log"
    match state.state:
        case State.PENDING:
            return f"cancelled ({state.cancel_requested})" if state.cancel_requested else None
        case State.PAUSED:
            if state.paused_kind != "retry" or state.due_at is None:
                return f"the run is paused ({state.paused_kind})"
            early = state.due_at - now > timedelta(seconds=EARLY_SECONDS)
            return "the run is not due yet" if early else None
        case State.COMMITTED | State.COMPENSATED | State.STUCK:
            return "its outcome was told already" if state.delivered else None
        case State.EXECUTING | State.VERIFYING | State.ABORTED:
            return f"the run is {state.state}; its owner or recovery decides"


def _take(
    commander: Commander, lease: Lease, history: RunHistory, hostname: str | None
) -> Claimed | Finished | Refused:
    """Write the claim down, then read what it made of the run.

    Between the first look and the lease somebody may have finished or cancelled the run; then the claim is void, by the
    same rule for every reader, and this delivery ends.
    """
    run_id = str(lease.run_id)
    if history.damage is not None and (
        history.state is None or history.state.state not in FINISHED
    ):
        Ownership(commander, lease, history).take_and_append(park_damaged(history, history.damage))
        return _refuse(commander, run_id, f"it waits for a person: {history.damage}")
    finished = history.state is not None and history.state.state in FINISHED
    ownership = Ownership(commander, lease, history)
    started = {
        "task": history.state.task if history.state else None,
        "attempt": history.state.attempt + 1 if history.state else 1,
        "holder": lease.holder,
        "worker": hostname,
        "liveness": commander.holder.liveness,
    }
    if finished or lease.took_over:
        ownership.take_and_append(*([] if finished else [("run.started", started)]))
    else:
        ownership.append("run.started", started, wait=True)
    taken = commander.history(run_id)
    state = taken.state
    if state is None or state.token != lease.token:
        return _refuse(commander, run_id, "somebody else settled the run meanwhile")
    if finished and not state.delivered and state.state is not State.ABORTED:
        return Finished(lease, taken)
    if not finished and state.state is State.EXECUTING:
        return Claimed(Execution(commander, lease, taken))
    return _refuse(commander, run_id, f"the run is {state.state} by now")


def _refuse(commander: Commander, run_id: str, reason: str) -> Refused:
    """Note a delivery that executes nothing; an observation, so nobody waits for it."""
    data: dict[str, Any] = {"reason": "duplicate refused", "why": reason}
    commander.engine.append("task.rejected", data, run_id=run_id, wait=False)
    return Refused(reason)
