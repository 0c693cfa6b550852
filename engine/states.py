"""What is known of one run: the values that `fold` makes, the ledger keeps and everybody reads."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final


class State(StrEnum):
    """Where a run stands."""

    PENDING = "PENDING"
    EXECUTING = "EXECUTING"
    VERIFYING = "VERIFYING"
    PAUSED = "PAUSED"
    COMMITTED = "COMMITTED"
    ABORTED = "ABORTED"
    COMPENSATED = "COMPENSATED"
    STUCK = "STUCK"


FINISHED: Final = frozenset({State.COMMITTED, State.COMPENSATED})
"""States that nothing leaves."""

NEEDS_A_PERSON: Final = frozenset({"doubt", "version"})
"""Kinds of pause that no moment ends."""


@dataclass(frozen=True, slots=True)
class RunState:
    """What is known of one run after its last event.

    `open_steps` were started and have no recorded end: to anybody but the run's living owner they
    are in doubt. `owed` are the steps whose undo would have to run if the run were rolled back
    now, in step order: completed ones with an undo, failed ones whose exception left their effect
    unknown, and open ones with an undo. A committed run owes nothing.
    """

    run_id: str
    task: str
    namespace: str
    queue: str | None
    key: str | None
    created_at: datetime
    changed_at: datetime  # of the last valid event that is no fence
    last_seq: int  # of the last event that changed anything here
    state: State = State.PENDING
    token: int = 0  # the fence: the highest token that holds or held the run; 0 before any claim
    fenced: bool = False  # the last owner's event is the run.fenced of `token`: it may start now
    attempt: int = 0  # claims so far
    n: int = 0  # the run's own number of its last owner's event
    steps: int = 0  # the indexes 0..steps-1 of steps and inputs are taken
    delivered: bool = False
    degraded: bool = False
    cancel_requested: str | None = None  # the reason of the first request
    paused_kind: str | None = None
    due_at: datetime | None = None
    deaths: int = 0  # claims whose holder died since the last progress
    generation: int = 0  # of the rollback
    open_steps: tuple[int, ...] = ()
    owed: tuple[int, ...] = ()
    letter: int | None = None  # seq of the event that made its open dead letter; one at a time
    released: bool = False  # a person has let it go on, and nobody has done so yet
    checkpoint: str | None = None  # the id of that from which it goes on, not from its first line
    conflict: bool = False  # changed code sent it there: from its first line it cannot be replayed

    @property
    def settled(self) -> bool:
        """Tell whether recovery has nothing left to look at; a stuck run waits for a person."""
        waits = self.state is State.STUCK and not self.released
        return self.delivered and (self.state in FINISHED or waits)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A state that a body saved, as the log names it; the content lies elsewhere and may be lost.

    `step` is the index that the body had reached: a body that goes on from here makes that one next.
    """

    id: str
    step: int
    version: int  # the body's own word for what its state looks like
    sha256: str  # of the content's bytes, in hex
    bytes: int
    restorable: bool  # the body's first call was restored(), so it can begin with a state
    seq: int  # of its event
    patches: tuple[tuple[str, bool], ...] = ()
    """Which changes of its code the body had asked about by then, and what it was told."""


@dataclass(frozen=True, slots=True)
class Void:
    """An event that does not count, and why.

    `state` is what stands after it: the state before, except that a voided `step.started` leaves
    its step in doubt all the same, because whoever wrote it may have gone on to the effect.
    """

    reason: str
    state: RunState | None
