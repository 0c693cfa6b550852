"""Many processes fold at once, and any of them may be killed at any moment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from celery_commander.engine.database import Database
from celery_commander.engine.engine import EventSourcingEngine
from celery_commander.engine.fold import fold_all
from celery_commander.engine.ledger import RunLedger
from tests.engine.ledgers import DELIVERS, change, everything, holds, rows, write
from tests.kit import wait_until

CHILD = dedent(
    """
    import sys
    from celery_commander.engine import ledger as room
    from celery_commander.engine.database import Database
    from celery_commander.engine.engine import EventSourcingEngine

    log, path, batch = sys.argv[1:4]
    room.BATCH_EVENTS = int(batch)
    with EventSourcingEngine.open(log, create=False) as engine:
        ledger = room.RunLedger(Database(path), engine)
        print("ready", flush=True)
        sys.stdin.readline()
        print(ledger.catch_up(), flush=True)
    """
)


def start(engine: EventSourcingEngine, path: Path, batch: int) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(engine.path), str(path), str(batch)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    return child


def say_go(child: subprocess.Popen[str]) -> None:
    assert child.stdin is not None
    child.stdin.write("go\n")
    child.stdin.flush()


def fill(engine: EventSourcingEngine, runs: int) -> None:
    for number in range(runs):
        write(engine, f"r-{number:05}", DELIVERS)


def test_many_processes_that_catch_up_at_once_fold_each_event_once(engine, path, ledger):
    fill(engine, 300)
    children = [start(engine, path, batch=50) for _ in range(4)]

    for child in children:
        say_go(child)
    folded = [int(child.communicate(timeout=60)[0]) for child in children]

    assert sum(folded) == everything(engine)
    assert holds(ledger, engine)
    assert ledger.catch_up() == 0


def test_processes_that_find_the_same_wrong_ledger_end_with_the_right_one(engine, path, ledger):
    fill(engine, 100)
    ledger.catch_up()
    change(path, "UPDATE folded SET fold_version = 0")
    children = [start(engine, path, batch=50) for _ in range(3)]

    for child in children:
        say_go(child)
    for child in children:
        child.communicate(timeout=60)

    assert holds(ledger, engine)
    assert ledger.catch_up() == 0


def test_processes_that_find_the_same_garbage_end_with_the_right_ledger(engine, path):
    fill(engine, 100)
    path.write_bytes(os.urandom(20_000))
    children = [start(engine, path, batch=50) for _ in range(3)]

    for child in children:
        say_go(child)
    for child in children:
        child.communicate(timeout=60)
        assert child.returncode == 0

    ledger = RunLedger(Database(path), engine)
    ledger.catch_up()
    assert holds(ledger, engine)


@pytest.mark.crash
def test_a_kill_at_any_moment_leaves_whole_batches_and_the_next_goes_on(engine, path, ledger):
    fill(engine, 600)
    child = start(engine, path, batch=5)
    say_go(child)
    wait_until(lambda: (through := ledger.folded_through) is not None and through.seq >= 100)
    child.send_signal(signal.SIGKILL)
    child.communicate(timeout=60)

    goes_on_from_whole_batches(engine, ledger, batch=5)


DIES_BEFORE_THE_COMMIT = dedent(
    """
    import os, signal, sys
    from celery_commander.engine import ledger as room
    from celery_commander.engine.database import Database
    from celery_commander.engine.engine import EventSourcingEngine

    log, path, deadly, what = sys.argv[1:5]
    room.BATCH_EVENTS = 20
    save, saved = room.save, []

    def save_and_die(*args):
        saved.append(save(*args))
        if len(saved) == int(deadly):
            os.kill(os.getpid(), signal.SIGKILL)
        return saved[-1]

    room.save = save_and_die
    with EventSourcingEngine.open(log, create=False) as engine:
        getattr(room.RunLedger(Database(path), engine), what)()
    """
)


def die_in_batch(engine: EventSourcingEngine, path: Path, number: int, what: str) -> None:
    arguments = [str(engine.path), str(path), str(number), what]
    done = subprocess.run(
        [sys.executable, "-c", DIES_BEFORE_THE_COMMIT, *arguments], timeout=60, check=False
    )
    assert done.returncode == -signal.SIGKILL


@pytest.mark.crash
@pytest.mark.parametrize("number", [1, 2, 5])
def test_a_kill_between_writing_and_commit_leaves_that_batch_unfolded(engine, path, ledger, number):
    fill(engine, 30)
    die_in_batch(engine, path, number, "catch_up")

    through = ledger.folded_through
    assert (through.seq if through else 0) == (number - 1) * 20
    goes_on_from_whole_batches(engine, ledger, batch=20)


@pytest.mark.crash
def test_a_rebuild_that_is_killed_at_once_has_changed_nothing(engine, path, ledger):
    fill(engine, 30)
    ledger.catch_up()
    die_in_batch(engine, path, 1, "rebuild")

    assert ledger.catch_up() == 0
    assert holds(ledger, engine)


@pytest.mark.crash
def test_a_rebuild_that_is_killed_later_is_gone_on_with(engine, path, ledger):
    fill(engine, 30)
    ledger.catch_up()
    die_in_batch(engine, path, 3, "rebuild")

    goes_on_from_whole_batches(engine, ledger, batch=20)


def goes_on_from_whole_batches(
    engine: EventSourcingEngine, ledger: RunLedger, *, batch: int
) -> None:
    through = ledger.folded_through
    folded = through.seq if through else 0
    assert folded % batch == 0 or folded == everything(engine)
    assert rows(ledger) == fold_all(e for e in engine.read_from(None) if e.seq <= folded)
    assert ledger.catch_up() == everything(engine) - folded
    assert holds(ledger, engine)
