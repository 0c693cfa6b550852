"""IF-05: the log folded from its first event is what the ledger holds, at any time."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from celery_commander.engine.database import Database
from celery_commander.engine.engine import EventSourcingEngine
from celery_commander.engine.errors import Fenced, InvalidEvent
from celery_commander.engine.events import NewEvent
from celery_commander.engine.fold import DURABLE_TYPES, RunState, state_after
from celery_commander.engine.ledger import RunLedger
from tests.engine.ledgers import holds, rows
from tests.engine.story import event, one

TYPES = [*sorted(DURABLE_TYPES), "task.succeeded", "signal.received"]
CLAIMS = ("run.started", "run.fenced")
OUTSIDERS = (
    "run.created",
    "run.cancelled",
    "run.degraded",
    "operator.retried",
    "operator.discarded",
)
MOVE = st.tuples(
    st.integers(0, 2),  # which run
    st.integers(0, 99),  # below 70: what fits, chosen by the next
    st.integers(0, 10_000),
    st.sampled_from(["held", "held", "held", "older", "newer", "none"]),
    st.sampled_from([None, None, None, "step", "generation", "message", "due"]),  # spoiled field
)


def chosen(
    state: RunState | None, run_id: str, move: tuple[int, int, int, str, str | None]
) -> NewEvent:
    """Turn a move into an event that mostly fits the run where it stands, and sometimes does not."""
    _, fits, choice, held, spoiled = move
    fitting = [new for new in (aligned(state, run_id, type) for type in TYPES) if valid(state, new)]
    if fits < 70 and fitting:
        return fitting[choice % len(fitting)]
    new = aligned(state, run_id, TYPES[choice % len(TYPES)])
    fence = state.token if state else 0
    token = {"held": new.token, "older": max(0, fence - 1), "newer": fence + 1, "none": None}[held]
    data = dict(new.data) if spoiled is None else {**new.data, spoiled: [choice]}
    undone = {"undo": "u"} if choice % 2 and new.type == "step.started" else {}
    return NewEvent(new.type, {**data, **undone}, run_id, token, new.n)


def aligned(state: RunState | None, run_id: str, type: str) -> NewEvent:
    token = (state.token if state else 0) + (type in CLAIMS)
    outsider = type in OUTSIDERS or not token
    given = {"undo": "u"} if type == "step.started" and state and state.steps % 2 else {}
    return one(state, (type if outsider else f"{type}@{token}", given), run_id=run_id)


def valid(state: RunState | None, new: NewEvent) -> bool:
    made = event(new.type, new.data, seq=10**6, run_id=new.run_id, token=new.token, n=new.n)
    after = state_after(state, made)
    return after is not None and after.last_seq == 10**6


def make_move(
    engine: EventSourcingEngine,
    states: dict[str, RunState],
    move: tuple[int, int, int, str, str | None],
) -> None:
    """Append what a move comes to, and fold it upon what is known; nothing happens where the log keeps it out."""
    run_id = f"r-{move[0]}"
    new = chosen(states.get(run_id), run_id, move)
    with suppress(Fenced, InvalidEvent):
        after = state_after(states.get(run_id), engine.append_many([new], wait=False)[0])
        if after is not None:
            states[run_id] = after


@settings(max_examples=60, deadline=None)
@given(
    moves=st.lists(MOVE, min_size=1, max_size=60),
    cuts=st.lists(st.integers(1, 20), min_size=1, max_size=5),
)
def test_the_ledger_is_the_fold_of_all_events(moves, cuts):
    with TemporaryDirectory() as folder:
        check_fold_is_ledger(Path(folder), moves, cuts)


def check_fold_is_ledger(
    folder: Path, moves: list[tuple[int, int, int, str, str | None]], cuts: list[int]
) -> None:
    database = Database(folder / "ledger.sqlite")
    with EventSourcingEngine.open(folder / "wal") as engine:
        ledger = RunLedger(database, engine)
        states: dict[str, RunState] = {}
        for number, move in enumerate(moves):
            make_move(engine, states, move)
            if number % cuts[number % len(cuts)] == 0:
                ledger.catch_up(limit=1 + number % 7)
        ledger.catch_up()

        assert rows(ledger) == states
        assert holds(ledger, engine)
        assert engine.replay() == states
    database.close()
