"""Fixtures of the engine's tests."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from celery_commander.engine.database import Database
from celery_commander.engine.engine import EventSourcingEngine
from celery_commander.engine.ledger import RunLedger
from celery_commander.engine.settings import Settings
from tests.engine.ledgers import DELIVERS, write
from tests.engine.logs import BOOT, active
from tests.engine.story import Line
from tests.kit import ManualClock


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[EventSourcingEngine]:
    with EventSourcingEngine.open(tmp_path / "log" / "event-sourcing.wal") as engine:
        yield engine


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sqlite"


@pytest.fixture
def ledger(engine: EventSourcingEngine, path: Path) -> Iterator[RunLedger]:
    database = Database(path)
    yield RunLedger(database, engine)
    database.close()


@pytest.fixture
def filled(ledger: RunLedger, engine: EventSourcingEngine) -> RunLedger:
    write(engine, "a-committed")
    write(engine, "b-delivered", DELIVERS)
    write(engine, "c-pending", ("run.created",))
    write(engine, "d-executing", ("run.created", "run.started@1"))
    write(engine, "e-paused", ("run.created", "run.started@1", "run.paused@1"))
    write(engine, "f-aborted", ("run.created", "run.started@1", "run.aborted@1"))
    stuck: tuple[Line, ...] = ("run.created", "run.started@1", "run.aborted@1", "run.stuck@1")
    write(engine, "g-stuck", stuck)
    write(engine, "h-stuck-delivered", (*stuck, "run.delivered@1"))
    write(engine, "i-verifying", ("run.created", "run.started@1", "run.verifying@1"))
    write(engine, "j-elsewhere", (("run.created", {"namespace": "other"}),))
    ledger.catch_up()
    return ledger


@pytest.fixture
def opened(tmp_path: Path, clock: ManualClock) -> Iterator[Callable[..., EventSourcingEngine]]:
    """Open the same log with other settings; all are closed at the end."""
    with ExitStack() as stack:

        def open_with(**settings: Any) -> EventSourcingEngine:
            told = dataclasses.replace(Settings.at(active(tmp_path)), **settings)
            return stack.enter_context(EventSourcingEngine.open(told, now=clock.wall, boot_id=BOOT))

        yield open_with
