"""A business key stands for one run: whoever asks again while that one is live or committed gets it."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from celery import Celery, chain
from celery.app.task import Task
from kombu.exceptions import OperationalError

from celery_commander.engine import DeadLetterRefused, State
from celery_commander.tasks import Commander, KeyRefused, step
from tests.engine.forked import Forked

from .bench import Bench, make_bench
from .letters_kit import let_die


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return make_bench(tmp_path)


def created(app: Celery) -> list[str | None]:
    return [e.run_id for e in app.commander.engine.read_from(None) if e.type == "run.created"]


def sent(app: Celery) -> list[str | None]:
    return [e.run_id for e in app.commander.engine.read_from(None) if e.type == "task.sent"]


def echo(order: Any = None) -> Any:
    return order


def fulfil(bench: Bench, body: Any = echo) -> Task:
    return bench.task(body, name="fulfil")


def test_the_same_key_is_the_same_run_while_it_is_live_and_once_it_has_committed(
    bench: Bench,
) -> None:
    task = fulfil(bench)
    first = task.apply_async((1,), key="order-17")
    assert task.apply_async((1,), key="order-17").id == first.id
    assert bench.deliver(first.id) == ("SUCCESS", 1)
    assert task.apply_async((1,), key="order-17").id == first.id
    assert created(bench.app) == sent(bench.app) == [first.id]
    state = bench.history(first.id).state
    assert state is not None
    assert (state.key, state.state) == ("order-17", State.COMMITTED)


def test_keys_are_of_a_task_and_a_namespace_and_of_no_other_kind_than_text(
    bench: Bench, tmp_path: Path
) -> None:
    task = fulfil(bench)
    other = bench.task(echo, name="other")
    number = task.apply_async((1,), key=17)
    assert task.apply_async((1,), key="17").id == number.id
    identity = UUID("0191f7a2-6c1e-7d43-9b1a-3f0e8c5d7a21")
    ids = {
        number.id,
        other.apply_async(key="17").id,
        task.apply_async((1,), key="18").id,
        task.apply_async((1,), key=identity).id,
        task.delay(1).id,
    }
    assert len(ids) == 5
    app = Celery("another", broker="memory://", backend="cache+memory://")
    app.conf.task_default_queue = tmp_path.name
    Commander(app, state_directory=tmp_path / "state")
    elsewhere = app.task(name="fulfil", durable=True, shared=False)(echo)
    assert elsewhere.apply_async((1,), key="17").id not in ids


@pytest.mark.parametrize("key", ["", "x" * 201, b"bytes", True, 1.5, ("a",), "\ud800"])
def test_what_cannot_be_a_key_is_refused_and_nothing_is_sent(bench: Bench, key: object) -> None:
    with pytest.raises(KeyRefused, match="fulfil"):
        fulfil(bench).apply_async((1,), key=key)
    assert created(bench.app) == []


def test_a_plain_task_and_a_task_whose_id_is_given_take_no_key(bench: Bench) -> None:
    plain = bench.app.task(name="plain", shared=False)(echo)
    with pytest.raises(KeyRefused, match="durable"):
        plain.apply_async(key="k")
    task = fulfil(bench)
    with pytest.raises(KeyRefused, match="task id"):
        task.apply_async((1,), key="k", task_id="mine")
    with pytest.raises(KeyRefused, match="chain"):
        chain(task.s(1).set(key="k"), task.s())()
    assert created(bench.app) == []


def test_signatures_names_and_beat_entries_take_keys(bench: Bench) -> None:
    task = fulfil(bench)
    ids = {
        task.apply_async((1,), key="k").id,
        task.s(1).set(key="k").apply_async().id,
        task.s(1).apply_async(key="k").id,
        bench.app.send_task("fulfil", (1,), key="k").id,
        task.signature((1,), options={"key": "k"}).delay().id,
    }
    assert len(ids) == 1
    assert len(sent(bench.app)) == 1


def test_after_an_abort_a_new_run_is_made_that_names_the_old_one(bench: Bench) -> None:
    outcomes: list[Any] = [ValueError("first"), ValueError("second"), 3]

    def body(order: int) -> Any:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    task = fulfil(bench, body)
    ids = []
    for _ in range(3):
        result = task.apply_async((1,), key="k")
        ids.append(result.id)
        bench.deliver(result.id)
        bench.app.commander.bootstrapper.bootstrap()
    assert len(set(ids)) == 3
    assert [bench.history(each).created.get("previous") for each in ids] == [None, ids[0], ids[1]]
    assert task.apply_async((1,), key="k").id == ids[2]


def test_a_rollback_that_is_not_over_keeps_the_key(bench: Bench) -> None:
    @step(compensate="undo.gone")
    def act() -> None: ...

    def body(order: int) -> None:
        act()
        raise ValueError

    task = fulfil(bench, body)
    first = task.apply_async((1,), key="k")
    bench.deliver(first.id)
    state = bench.history(first.id).state
    assert state is not None
    assert (state.state, state.owed) == (State.ABORTED, (0,))
    assert task.apply_async((1,), key="k").id == first.id


def test_many_that_ask_at_once_make_one_run_and_send_one_message(bench: Bench) -> None:
    task = fulfil(bench)
    bench.app.commander.engine  # noqa: B018  # opened before they race
    barrier = threading.Barrier(8)

    def ask(_: int) -> str:
        barrier.wait(30)
        return str(task.apply_async((1,), key="k").id)

    with ThreadPoolExecutor(8) as pool:
        ids = set(pool.map(ask, range(8)))
    assert len(ids) == 1
    assert len(sent(bench.app)) == 1


def test_many_processes_that_ask_at_once_send_one_message(bench: Bench) -> None:
    task = fulfil(bench)
    bench.app.commander.close()

    def ask(child: Forked) -> str:
        child.say("ready")
        child.hear()
        return str(task.apply_async((1,), key="k").id)

    children = [Forked(ask) for _ in range(20)]
    try:
        for child in children:
            assert child.hear() == "ready"
        for child in children:
            child.say("go")
        ids = {child.result() for child in children}
    finally:
        for child in children:
            child.end()
    assert len(ids) == 1
    assert len(sent(bench.app)) == 1


def test_a_run_whose_message_could_not_be_sent_gives_its_key_back(tmp_path: Path) -> None:
    app = Celery("down", broker="redis://127.0.0.1:1", backend="cache+memory://")
    app.conf.update(task_publish_retry=False, broker_connection_retry=False)
    Commander(app, state_directory=tmp_path / "state")
    task = app.task(name="fulfil", durable=True, shared=False)(echo)
    for _ in range(2):
        with pytest.raises(OperationalError):
            task.apply_async(key="k")
    first, second = created(app)
    assert first != second
    state = app.commander.history(first).state
    assert state is not None
    assert state.cancel_requested == "not sent: OperationalError"


def test_a_result_that_the_backend_has_let_go_of_is_stored_again(bench: Bench) -> None:
    task = fulfil(bench)
    first = task.apply_async(({"a": 1},), key="k")
    bench.deliver(first.id)
    first.forget()
    again = task.apply_async(({"a": 1},), key="k")
    assert again.get(timeout=5) == {"a": 1}


@pytest.fixture
def aborted(bench: Bench) -> tuple[Task, str]:
    """A keyed run that recovery aborted, with an open letter."""
    dies = [True]

    def act() -> int:
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        return 1

    task = fulfil(bench, body_of(step(name="act")(act)))
    run_id = str(task.apply_async((1,), key="k").id)
    let_die(bench, run_id)
    dies.clear()
    bench.app.commander.bootstrapper.bootstrap()
    bench.deliver(run_id)
    return task, run_id


def body_of(act: Any) -> Any:
    def body(order: int) -> Any:
        return act()

    return body


def test_what_a_person_runs_anew_is_the_next_run_of_its_key(
    bench: Bench, aborted: tuple[Task, str]
) -> None:
    task, first = aborted
    letters = bench.app.commander.dead_letters
    (letter,) = letters.list()
    acted = letters.retry(letter.id)
    assert acted.run_id != first
    assert bench.history(acted.run_id).created["previous"] == first
    assert task.apply_async((1,), key="k").id == acted.run_id
    assert bench.deliver(acted.run_id) == ("SUCCESS", 1)
    assert len(created(bench.app)) == 2


def test_a_person_runs_nothing_anew_whose_key_has_gone_on(
    bench: Bench, aborted: tuple[Task, str]
) -> None:
    task, first = aborted
    second = task.apply_async((1,), key="k").id
    assert second != first
    letters = bench.app.commander.dead_letters
    (letter,) = letters.list()
    with pytest.raises(DeadLetterRefused, match=second):
        letters.retry(letter.id)
    assert len(created(bench.app)) == 2
