"""Logs whose runs stand everywhere, for what must survive snapshots and compaction."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from celery_commander.engine import Database, EventSourcingEngine, RunLedger, RunState
from celery_commander.engine.files import Files
from celery_commander.engine.settings import Settings
from tests.engine.ledgers import DELIVERS, write
from tests.engine.story import Line

STORIES: dict[str, tuple[Line, ...]] = {
    'a "quoted" \\ id': ("run.created", "run.started@1", "step.started@1"),
    "b-committed": ("run.created", "run.started@1", "run.committed@1"),
    "c-delivered": DELIVERS,
    "d-pending": ("run.created",),
    "e-paused": ("run.created", "run.started@1", "run.paused@1"),
    "f-aborted": ("run.created", "run.started@1", "step.started@1", "run.aborted@1"),
    "g-stuck": ("run.created", "run.started@1", "run.aborted@1", "run.stuck@1", "run.delivered@1"),
    "h-über": ("run.created", "run.started@1", "run.verifying@1"),
    "i-over": (*DELIVERS,),
}
LIVE = [run_id for run_id in STORIES if run_id not in ("c-delivered", "i-over")]


def settings_in(directory: Path) -> Settings:
    return Settings(state_directory=directory)


@contextmanager
def opened(directory: Path, files: Files | None = None) -> Iterator[EventSourcingEngine]:
    with EventSourcingEngine.open(settings_in(directory), files=files) as engine:
        yield engine


@contextmanager
def ledger_of(engine: EventSourcingEngine, path: Path) -> Iterator[RunLedger]:
    database = Database(path)
    try:
        yield RunLedger(database, engine)
    finally:
        database.close()


def tell(engine: EventSourcingEngine, *, prefix: str = "") -> None:
    for run_id, lines in STORIES.items():
        write(engine, f"{prefix}{run_id}", lines)
    engine.append("subscriber.gap", {"count": 3, "since": "then"})


def hash_of(states: dict[str, RunState]) -> str:
    rows = {run_id: asdict(state) for run_id, state in states.items()}
    return hashlib.sha256(json.dumps(rows, default=str, sort_keys=True).encode()).hexdigest()


def stored(engine: EventSourcingEngine, run_ids: list[str]) -> dict[str, list[bytes]]:
    """Return the lines of runs byte for byte."""
    entries = engine._log.index.entries
    return {run_id: [stored.line for stored, _ in entries(run_id)] for run_id in run_ids}
