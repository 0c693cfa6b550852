from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from celery import Celery
from celery.exceptions import SoftTimeLimitExceeded

from celery_commander.engine import DeadLetter
from celery_commander.tasks import DeadLetters, install
from celery_commander.tasks.reporting import Reporter
from tests.tasks.bench import Bench, make_bench, passed
from tests.tasks.cli_kit import make_app, make_log
from tests.tasks.flow import Flow
from tests.tasks.letters_kit import World, ended, let_die, state_of


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return make_bench(tmp_path)


@pytest.fixture
def flow(bench: Bench, tmp_path: Path) -> Flow:
    return Flow(bench, tmp_path)


@pytest.fixture(autouse=True)
def _stores_are_closed() -> Iterator[None]:
    """Close what the apps of a test opened in this process: their descriptors add up."""
    yield
    for commander in list(install._commanders):
        commander.close()


@pytest.fixture
def reporter(bench: Bench) -> Reporter:
    """Give a reporter that has written once, its recovery complete."""
    bench.app.commander.ledger.catch_up()
    reporter = Reporter(bench.app.commander)
    reporter.note_pass(passed())
    reporter.write()
    return reporter


# What the command line looks at


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Celery]:
    app = make_app(tmp_path / "state")
    yield app
    app.commander.engine.close()
    app.close()


@pytest.fixture
def log(app: Celery) -> Path:
    return make_log(app)


# Dead letters, each the newest of its store


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "witness")


@pytest.fixture
def letters(bench: Bench) -> DeadLetters:
    found: DeadLetters = bench.app.commander.dead_letters
    return found


@pytest.fixture
def parked(bench: Bench, world: World, letters: DeadLetters) -> DeadLetter:
    """Give the letter of a run that was parked with its step in doubt."""
    bench.task(world.body())
    bench.run_id = bench.send("pay", "7 euro")
    let_die(bench, bench.run_id)
    world.dies = False
    bench.app.commander.bootstrapper.bootstrap()
    (letter,) = letters.list()
    return letter


@pytest.fixture
def conflict(bench: Bench, world: World, letters: DeadLetters) -> DeadLetter:
    """Give the letter of a run whose code has changed below it."""
    bench.task(world.body())
    world.steps = ["check", "charge"]
    bench.run_id = bench.send("pay", "7 euro")
    let_die(bench, bench.run_id)
    world.dies, world.steps = False, ["look up", "charge"]
    commander = bench.app.commander
    state = state_of(bench)
    fence = {"token": state.token, "n": state.n + 1, "run_id": bench.run_id}
    commander.engine.append("step.completed", {"step": 1, "result": "charged"}, **fence)
    commander.bootstrapper.bootstrap()
    assert bench.deliver(bench.run_id)[0] == "IGNORED"
    (letter,) = letters.list()
    return letter


@pytest.fixture
def stuck(bench: Bench, letters: DeadLetters) -> DeadLetter:
    """Give the letter of a run whose undo failed for good."""
    return ended(bench, letters, ("run.stuck", {"step": 0, "exception": "bank away"}))


@pytest.fixture
def aborted(bench: Bench, letters: DeadLetters) -> DeadLetter:
    """Give the open letter of a run that a limit ended and that owes nothing."""

    def fail(what: str) -> str:
        bench.calls.append(what)
        raise SoftTimeLimitExceeded("secret")

    bench.run(fail, "7 euro")
    (letter,) = letters.list()
    return letter
