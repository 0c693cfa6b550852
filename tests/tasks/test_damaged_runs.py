"""A run of which events may be lost is neither replayed nor undone by guess."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from celery.app.trace import build_tracer

from celery_commander.engine import Category, Event, State
from celery_commander.tasks import DeadLetters, step
from celery_commander.tasks.dead_letters import Said
from celery_commander.tasks.message import of_created

from .bench import Bench, make_bench
from .cli_kit import flip


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return make_bench(tmp_path)


class Shop:
    """A body of two steps that stops behind the first, and an undo that notes what it was told."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.did: list[Any] = []
        self.stops = True

        @bench.app.task(name="refund", shared=False)
        def refund(undo: Any) -> None:
            self.did.append(("undo", undo["step"]))

        @step(compensate=refund)
        def charge() -> str:
            self.did.append("charge")
            return "charged"

        @step
        def ship() -> str:
            self.did.append("ship")
            return "shipped"

        def buy(task: Any) -> str:
            charge()
            if self.stops:
                raise task.retry(countdown=0)
            return ship()

        bench.run(buy, bind=True, max_retries=None)

    def events(self) -> list[Event]:
        found: list[Event] = self.bench.app.commander.engine.history(self.bench.run_id)
        return found

    def lose(self, type: str) -> None:
        """Damage the last line of a type, have it found, and accept it."""
        engine = self.bench.app.commander.engine
        event = [each for each in self.events() if each.type == type][-1]
        engine.append("note", {})
        engine.append("note", {})
        flip(engine.path, event.position.offset + 150)
        assert engine.verify_integrity().exit_code == 30
        engine.breaks.accept("ann")
        assert engine.verify_integrity().exit_code == 15


@pytest.fixture
def shop(bench: Bench) -> Shop:
    return Shop(bench)


LOST = ["step.completed", "step.started", "run.paused", "run.started", "run.created"]


@pytest.mark.parametrize("type", LOST)
@pytest.mark.parametrize("who", ["a delivery", "recovery"])
def test_it_is_parked_by_whoever_meets_it(shop: Shop, type: str, who: str) -> None:
    message = shop.bench.history(shop.bench.run_id).created
    shop.lose(type)
    shop.did.clear()
    shop.stops = False
    if who == "recovery":
        shop.bench.app.commander.bootstrapper.bootstrap()
    else:
        _deliver(shop.bench, message)
    assert shop.did == []
    if (type, who) == ("run.paused", "a delivery"):  # so it seems to run, and is left to recovery
        shop.bench.app.commander.bootstrapper.bootstrap()
    state = shop.bench.history(shop.bench.run_id).state
    if type == "run.created" and who == "recovery":
        assert state is None  # nothing says what it is; its message may still come
        return
    assert state is not None
    if type != "run.created":
        assert (state.state, state.paused_kind) == (State.PAUSED, "damage")
    (letter,) = DeadLetters(shop.bench.app.commander).list()
    assert letter.category is Category.DAMAGED
    _deliver(shop.bench, message)
    shop.bench.app.commander.bootstrapper.bootstrap()
    assert shop.did == []


def _deliver(bench: Bench, created: Any) -> None:
    """Trace the message as it was sent, whatever the log still says of it."""
    message = of_created(created)
    args, kwargs, embed = message.body
    task = bench.app.tasks[message.task]
    request = {**message.headers, **embed, "delivery_info": {}, "hostname": "here"}
    tracer = build_tracer(task.name, task, app=bench.app)
    tracer(bench.run_id, args, kwargs, request | {"args": args, "kwargs": kwargs})


@pytest.mark.parametrize("abort", [False, True])
def test_a_person_decides_what_becomes_of_it(shop: Shop, abort: bool) -> None:
    shop.lose("run.paused")
    commander = shop.bench.app.commander
    commander.bootstrapper.bootstrap()
    letters = DeadLetters(commander)
    (letter,) = letters.list()
    shop.did.clear()
    letters.retry(letter.id, Said(abort=True) if abort else None, by="ann")
    state = shop.bench.history(shop.bench.run_id).state
    assert state is not None
    assert state.state is (State.ABORTED if abort else State.PENDING)
    assert shop.bench.history(shop.bench.run_id).damage is None


def test_runs_that_are_shown_to_be_whole_go_on(shop: Shop) -> None:
    shop.bench.app.commander.engine.append("note", {})
    others = shop.bench.app.commander.engine.append("note", {}, run_id="another")
    shop.stops = False
    shop.bench.deliver(shop.bench.run_id)
    engine = shop.bench.app.commander.engine
    flip(engine.path, others.position.offset + 150)
    assert engine.verify_integrity().exit_code == 30
    engine.breaks.accept("ann")
    assert shop.bench.history(shop.bench.run_id).damage is None
    assert shop.did == ["charge", "ship"]


def test_recovery_decides_again_once_the_break_is_accepted(bench: Bench, shop: Shop) -> None:
    engine = bench.app.commander.engine
    event = engine.append("note", {})
    engine.append("note", {})
    flip(engine.path, event.position.offset + 150)
    engine.verify_integrity()
    refused = bench.app.commander.bootstrapper.bootstrap().refused
    assert refused is not None
    assert "broken" in refused
    engine.breaks.accept("ann")
    engine.verify_integrity()
    assert bench.app.commander.bootstrapper.bootstrap().refused is None


def test_an_undo_is_not_called_from_a_history_that_may_lack_an_event(bench: Bench) -> None:
    undone: list[Any] = []

    @bench.app.task(name="refund", shared=False)
    def refund(undo: Any) -> None:
        undone.append(undo)

    @step(compensate=refund)
    def charge() -> str:
        return "charged"

    def buy() -> None:
        charge()
        raise LookupError("no goods")

    bench.run(buy)
    assert bench.state() is State.ABORTED
    engine = bench.app.commander.engine
    aborted = [each for each in engine.history(bench.run_id) if each.type == "run.aborted"][-1]
    at = [each for each in engine.history(bench.run_id) if each.type == "step.completed"][-1]
    engine.append("note", {})
    flip(engine.path, at.position.offset + 150)
    engine.verify_integrity()
    engine.breaks.accept("ann")
    generation = aborted.payload["generation"]
    bench.app.tasks["celery_commander.compensate_step"].apply(args=(bench.run_id, 0, generation))
    assert undone == []
    assert bench.state() is State.STUCK
