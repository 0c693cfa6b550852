"""What recovery does with one run: a decision, made from what was read, carried out elsewhere.

A run of which events may be lost with accepted damage is neither repeated nor undone by guess: a person looks at it.
What cannot be shown safe to repeat is not repeated: a run is replayed when its history is complete
and each step in doubt may be asked about or repeated; where its history has a hole before its newest
valid checkpoint, it goes on from that one; otherwise it is rolled back, the step in doubt included.
A run that changed code has sent to a checkpoint is never rolled back for want of one. The rows are
looked at in one order and the first that fits decides. Asked twice with the same facts, the answer
is the same, so two recoverers cannot disagree.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal, assert_never

from .history import Entry, RunHistory
from .states import NEEDS_A_PERSON, Checkpoint, RunState, State

_MAX_BACKOFF_POWER: Final = 16  # 60 s doubled 16 times is weeks; more only overflows


_STORE_SECONDS: Final = 10.0  # until a store that is away is asked again


@dataclass(frozen=True, slots=True)
class Policy:
    """How patient recovery is."""

    pending_after_seconds: float = 60.0  # until a message that nobody took counts as lost
    max_deaths: int = 3  # claims that may die without progress
    grace_seconds: float = 60.0  # twice the TTL: how long a lost holder may still be inside a step
    force_abort: bool = False


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known besides the run's own events.

    `lease` is that of the run as it was found, not recovery's own. `lease_expired_seconds` is None
    when no clock can say: nobody holds it (released, never taken), or its boot is over.
    """

    now: datetime
    lease: Literal["alive", "free"]
    owner_dead: bool = False  # proven: its liveness lock of this boot is free
    lease_expired_seconds: float | None = None
    republished: int = 0  # times its message was published again since the last claim
    task_known: bool = True
    checkpoints: frozenset[str] | None = (
        frozenset()
    )  # there and unchanged; None: nobody can say now
    overtaken: bool = True  # its queue is empty, or a later message of that queue has started


@dataclass(frozen=True, slots=True)
class Skip:
    """Leave the run alone; nothing is owed now, or somebody else is at it."""

    reason: str


@dataclass(frozen=True, slots=True)
class Wait:
    """Look again in `seconds`: what is to be done is not safe or not due yet."""

    reason: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Deliver:
    """Publish the message again, so that a worker tells Celery the recorded outcome."""


@dataclass(frozen=True, slots=True)
class Requeue:
    """Append `run.requeued`, release the lease, publish the message: whoever takes it replays.

    Before that the steps in `completes` get the results that a person gave for them.
    With a checkpoint it goes on from there; without one, from where it began the last time.
    """

    reason: str
    death: bool
    completes: tuple[int, ...] = ()
    checkpoint: Checkpoint | None = None


@dataclass(frozen=True, slots=True)
class Republish:
    """Publish the message of a PENDING run again: the broker lost it."""


@dataclass(frozen=True, slots=True)
class Abort:
    """Append `run.aborted` and start the undo chain; `in_doubt` are the indexes it must name."""

    reason: str
    in_doubt: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Compensate:
    """Publish the undo chain for what is still owed, or finish a rollback that owes nothing."""


@dataclass(frozen=True, slots=True)
class Park:
    """Append `run.paused` of kind "doubt", with a dead letter: a person must look at `step`."""

    step: int


@dataclass(frozen=True, slots=True)
class ParkVersion:
    """Append `run.paused` of kind "version", with a dead letter: the code and its records differ."""

    reason: str


@dataclass(frozen=True, slots=True)
class ParkDamaged:
    """Append `run.paused` of kind "damage", or `run.stuck` to a rollback: events of the run may be lost."""

    reason: str


Decision = (
    Skip
    | Wait
    | Deliver
    | Requeue
    | Republish
    | Abort
    | Compensate
    | Park
    | ParkVersion
    | ParkDamaged
)


def plan(history: RunHistory, policy: Policy, facts: Facts) -> Decision:
    """Decide about one run from its history, read up to recovery's own fence.

    With `facts.lease` "alive" nothing of the history is looked at, so this may also be asked before
    the lease is taken.
    """
    state = history.state
    if facts.lease == "alive":
        return Skip("owner alive")
    if state is None:
        return Skip("never created")
    if history.damage is not None and (_unfinished(state) or state.state is State.ABORTED):
        waits = state.state is State.PAUSED and state.paused_kind in NEEDS_A_PERSON
        return Skip(f"paused: {state.paused_kind}") if waits else ParkDamaged(history.damage)
    if policy.force_abort and _unfinished(state):
        return _abort("forced", history, policy, facts)
    if not facts.task_known:
        return Skip(f"unknown task {state.task}")
    match state.state:
        case State.COMMITTED | State.COMPENSATED | State.STUCK:
            return _finished(history, state, policy, facts)
        case State.ABORTED:
            return _rolling_back(state, policy, facts)
        case State.PENDING | State.EXECUTING | State.VERIFYING | State.PAUSED:
            return _going_on(history, state, policy, facts)
        case _:
            assert_never(state.state)


def _unfinished(state: RunState) -> bool:
    return state.state in (State.PENDING, State.EXECUTING, State.VERIFYING, State.PAUSED)


def _finished(history: RunHistory, state: RunState, policy: Policy, facts: Facts) -> Decision:
    if state.state is State.STUCK and state.released:
        # It came to nothing else than before.
        return _abort(history.abort_reason or "operator", history, policy, facts)
    if not state.delivered:
        return Deliver()
    return Skip("stuck: needs a person" if state.state is State.STUCK else "finished")


def _rolling_back(state: RunState, policy: Policy, facts: Facts) -> Decision:
    """Go on with an undo that stands still; one whose link is proven dead stands still at once."""
    left = policy.pending_after_seconds - _seconds_since(state.changed_at, facts)
    if left > 0 and not facts.owner_dead:
        return Wait("the rollback is under way", left)
    return Compensate()


def _going_on(history: RunHistory, state: RunState, policy: Policy, facts: Facts) -> Decision:
    if state.cancel_requested is not None:
        return _abort("cancelled", history, policy, facts)
    if state.deaths + _died_now(state, facts) >= policy.max_deaths:
        return _abort("poison", history, policy, facts)
    if state.state is State.PENDING:
        return _pending(state, policy, facts)
    if state.state is State.PAUSED:
        return _paused(history, state, policy, facts)
    return _resume(_cause(facts), history, policy, facts)


def _pending(state: RunState, policy: Policy, facts: Facts) -> Decision:
    """Tell a lost message from a slow one: by a dead taker, or by twice the patience each time."""
    if facts.owner_dead:
        return Republish()  # whoever took it died before it began: with an early ack, it is gone
    since = max(state.changed_at, state.due_at or state.changed_at)
    patience = policy.pending_after_seconds * 2 ** min(facts.republished, _MAX_BACKOFF_POWER)
    left = patience - _seconds_since(since, facts)
    if left > 0:
        return Wait("pending", left)
    return Republish() if facts.overtaken else Skip("pending: its queue is long")


def _paused(history: RunHistory, state: RunState, policy: Policy, facts: Facts) -> Decision:
    kind = state.paused_kind or "unknown"
    if state.released:
        return _resume("operator", history, policy, facts)
    if kind == "shutdown":
        return _resume("shutdown", history, policy, facts)
    if kind in NEEDS_A_PERSON or state.due_at is None:
        return Skip(f"paused: {kind}")
    left = -_seconds_since(state.due_at, facts)
    if left > 0:
        return Wait(f"paused: {kind}", left)
    return _resume(kind, history, policy, facts)


def _resume(cause: str, history: RunHistory, policy: Policy, facts: Facts) -> Decision:
    """Replay where that is safe; the gravest answer of the steps in doubt is that of the run."""
    assert history.state is not None
    if facts.checkpoints is None and not _is_replayable(history, facts):
        return Wait("its checkpoints cannot be read now", _STORE_SECONDS)
    begin = _begin(history, facts)
    if begin == "nowhere" and not history.state.conflict:
        return _abort("incomplete history", history, policy, facts)
    answers = [(_answer(entry), entry) for entry in history.in_doubt]
    if any(answer == "abort" for answer, _ in answers):
        return _abort("in doubt", history, policy, facts)
    for answer, entry in answers:
        if answer == "park":
            return Park(entry.step)
    if begin == "nowhere":
        return ParkVersion(f"changed code cannot go on: {_base_fault(history, facts)}")
    asked = any(answer == "ask" for answer, _ in answers)
    left = _grace_left(policy, facts)
    if asked and left > 0:  # "it did not happen" is no answer while it may still happen
        return Wait("a step in doubt may still be running", left)
    death = bool(_died_now(history.state, facts))
    completes = tuple(entry.step for answer, entry in answers if answer == "complete")
    return Requeue(cause, death, completes, None if begin == "as before" else begin)


def _begin(history: RunHistory, facts: Facts) -> Literal["as before", "nowhere"] | Checkpoint:
    """Return where the next attempt can begin: where the last one did, or at a checkpoint."""
    if _is_replayable(history, facts):
        return "as before"
    valid = (one for one in history.restarts() if one.id in (facts.checkpoints or ()))
    return next(valid, "nowhere")


def _is_replayable(history: RunHistory, facts: Facts) -> bool:
    """Tell whether everything that the next attempt will be asked for is there and can be believed."""
    assert history.state is not None
    if history.state.checkpoint is None:
        return history.complete
    return _base_fault(history, facts) is None


def _base_fault(history: RunHistory, facts: Facts) -> str | None:
    base = history.base
    if base is None:
        return "the log does not hold the checkpoint from which the run goes on"
    if base.id not in (facts.checkpoints or ()):
        return f"the content of checkpoint {base.id} is lost or was changed"
    if not history.is_complete_since(base):
        return f"events after checkpoint {base.id} are missing"
    return None


def _answer(entry: Entry) -> Literal["complete", "ask", "repeat", "park", "abort"]:
    if entry.told is not None:  # "not happened" was asked already, and is no other answer
        return "complete" if entry.told == "happened" else "ask"
    if entry.resolve:
        return "ask"
    if entry.retry_in_doubt:
        return "repeat"
    return "park" if entry.on_doubt == "park" else "abort"


def _abort(reason: str, history: RunHistory, policy: Policy, facts: Facts) -> Decision:
    """Roll back; but an undo must not overtake the effect of a holder that may still be alive."""
    left = _grace_left(policy, facts)
    if history.in_doubt and left > 0:
        return Wait("a step in doubt may still be running", left)
    return Abort(reason, tuple(entry.step for entry in history.in_doubt))


def _grace_left(policy: Policy, facts: Facts) -> float:
    if facts.owner_dead or facts.lease_expired_seconds is None:
        return 0.0
    return max(0.0, policy.grace_seconds - facts.lease_expired_seconds)


def _died_now(state: RunState, facts: Facts) -> int:
    """Count the claim that is found without a holder: the log has no event of its death yet."""
    lost = facts.owner_dead or facts.lease_expired_seconds is not None
    return int(lost and state.state in (State.EXECUTING, State.VERIFYING))


def _cause(facts: Facts) -> str:
    if facts.owner_dead:
        return "owner dead"
    return "lease released" if facts.lease_expired_seconds is None else "lease expired"


def _seconds_since(moment: datetime, facts: Facts) -> float:
    return (facts.now - moment) / timedelta(seconds=1)
