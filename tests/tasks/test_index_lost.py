"""An index that lost rows lets no run begin anew, and nothing recorded be taken for missing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from celery import Celery

import celery_commander.engine.wal.index as index_module
from celery_commander.engine import State
from celery_commander.tasks.claims import Refused, claim
from celery_commander.tasks.message import Message
from tests.engine.ledgers import change
from tests.tasks.cli_kit import DONE, HALF, life, make_app


@pytest.fixture
def again(
    app: Celery, log: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Celery]:
    """Give the app of another process, after what the index's database says of a run was harmed with its count."""
    run_id, lost = request.param
    monkeypatch.setattr(index_module, "TAIL_EVENTS_MAX", 2)
    app.commander.engine.history(run_id)
    app.commander.ledger.catch_up()
    app.commander.close()
    index = log.parent / f"{log.name}.d/index.sqlite"
    key = "x'" + f'"{run_id}"'.encode().hex() + "'"
    change(index, f"delete from hits where run = {key} and seq >= {lost}")
    count = f"(select count(*) from hits where run = {key})"
    change(index, f"update runs set events = {count} where run = {key}")
    again = make_app(log.parent)
    yield again
    again.commander.close()
    again.close()


@pytest.mark.parametrize("again", [(DONE, 0)], indirect=True)
def test_a_late_duplicate_of_a_run_that_the_index_forgot_executes_nothing(again: Celery) -> None:
    message = Message(**life(DONE)[0].data["message"])
    refused = claim(again.commander, DONE, message, "w@host")
    assert isinstance(refused, Refused)
    assert "told already" in refused.reason


@pytest.mark.parametrize("again", [(HALF, 11)], indirect=True)
def test_a_step_whose_end_the_index_forgot_is_not_taken_for_one_in_doubt(again: Celery) -> None:
    assert again.commander.history(HALF).in_doubt
    again.commander.bootstrapper.bootstrap()
    history = again.commander.history(HALF)
    assert history.state is not None
    assert (history.state.state, history.in_doubt) == (State.PENDING, ())
