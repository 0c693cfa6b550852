"""What the tests of the ledger share: runs to write, and the comparison with the log."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from celery_commander.engine.engine import EventSourcingEngine
from celery_commander.engine.events import NewEvent
from celery_commander.engine.fold import RunState, fold_all, state_after
from celery_commander.engine.ledger import RunLedger
from tests.engine.story import Line, event, one

COMMITS: tuple[Line, ...] = (
    "run.created",
    "run.started@1",
    "step.started@1",
    "step.completed@1",
    "run.committed@1",
)
DELIVERS: tuple[Line, ...] = (*COMMITS, "run.delivered@1")


def lines_of(run_id: str, lines: tuple[Line, ...], first_seq: int = 1) -> list[NewEvent]:
    """Return what a run's owner would append, each line fitting the ones before."""
    state, news = None, []
    for seq, line in enumerate(lines, first_seq):
        new = one(state, line, run_id=run_id)
        state = state_after(
            state, event(new.type, new.data, seq=seq, run_id=run_id, token=new.token, n=new.n)
        )
        news.append(new)
    return news


def write(engine: EventSourcingEngine, run_id: str, lines: tuple[Line, ...] = COMMITS) -> None:
    engine.append_many(lines_of(run_id, lines, engine.head()[0] + 1), wait=False)


def rows(ledger: RunLedger) -> dict[str, RunState]:
    return {run.run_id: run for run in ledger.runs(limit=1_000_000)}


def holds(ledger: RunLedger, engine: EventSourcingEngine) -> bool:
    """Compare every row with the log folded from its first event."""
    return rows(ledger) == fold_all(engine.read_from(None))


def everything(engine: EventSourcingEngine) -> int:
    return engine.head()[0]


def change(path: Path, statement: str) -> None:
    """Change the database behind the ledger's back."""
    connection = sqlite3.connect(path)
    connection.execute(statement)
    connection.commit()
    connection.close()
