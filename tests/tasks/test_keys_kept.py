"""What a business key stands for: one call, for as long as the store knows its run, whatever becomes of its sender."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from kombu.exceptions import OperationalError

from celery_commander.engine import State
from celery_commander.tasks import Commander, KeyConflict, KeyRefused
from celery_commander.tasks.keys import find
from tests.engine.forked import together

from .bench import Bench
from .test_keys import created, echo, fulfil, sent


def test_a_key_with_other_arguments_is_refused_and_names_the_run(bench: Bench) -> None:
    task = fulfil(bench)
    first = task.apply_async((1,), key="k")
    for args, kwargs in (((2,), {}), ((), {}), ((), {"order": 1})):
        with pytest.raises(KeyConflict, match=first.id) as refused:
            task.signature(args, kwargs, options={"key": "k"}).apply_async()
        assert refused.value.run_id == first.id
        assert refused.value.recorded != refused.value.found
    bench.deliver(first.id)
    with pytest.raises(KeyConflict):
        bench.app.send_task("fulfil", args=(2,), key="k")
    assert created(bench.app) == sent(bench.app) == [first.id]


@pytest.mark.parametrize(
    "args, kwargs",
    [(((1, 2),), {}), (([1, 2],), {}), ((b"bytes",), {}), ((), {"order": {"b": 1, "a": None}})],
)
def test_the_same_arguments_are_the_same_in_every_form_that_travels_alike(
    bench: Bench, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    task = fulfil(bench)
    first = task.apply_async(args, kwargs, key="k").id
    again = {key: dict(reversed(value.items())) for key, value in kwargs.items()}
    assert task.apply_async(list(args), again, key="k").id == first
    assert bench.app.send_task("fulfil", args, kwargs, key="k").id == first
    assert bench.app.send_task("fulfil", args=args, kwargs=kwargs, key="k").id == first


def test_once_a_run_is_undone_its_key_takes_other_arguments(bench: Bench) -> None:
    def body(order: int) -> int:
        if order == 1:
            raise ValueError
        return order

    task = fulfil(bench, body)
    first = task.apply_async((1,), key="k").id
    bench.deliver(first)
    second = task.apply_async((2,), key="k").id
    assert second != first
    assert bench.deliver(second) == ("SUCCESS", 2)


def test_of_many_that_mean_different_calls_by_one_key_one_wins_and_the_others_are_told(
    bench: Bench,
) -> None:
    task = fulfil(bench)
    bench.app.commander.close()

    def ask(number: int) -> str:
        try:
            return f"sent {task.apply_async((number,), key='k').id}"
        except KeyConflict as refused:
            return f"refused {refused.run_id}"

    answers = together(6, ask)
    (run_id,) = sent(bench.app)
    assert sorted(answers) == [*[f"refused {run_id}"] * 5, f"sent {run_id}"]


def test_a_process_that_registers_nothing_takes_no_key(tmp_path: Path) -> None:
    app = Celery("never", broker="memory://", backend="cache+memory://")
    app.conf.task_default_queue = tmp_path.name
    Commander(app, state_directory=tmp_path / "state", register_on_publish="never")
    task = app.task(name="fulfil", durable=True, shared=False)(echo)
    with pytest.raises(KeyRefused, match="register_on_publish"):
        task.apply_async((1,), key="k")
    assert task.apply_async((1,)).id


def test_who_was_given_a_run_that_then_could_not_be_sent_is_told(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = fulfil(bench)
    others: list[Any] = []

    def broker_is_away(*_: Any, **__: Any) -> None:
        """Stand for the broker: meanwhile another caller asks for the key."""
        if not others:
            others.append(task.apply_async((1,), key="k"))
        raise OperationalError

    app = bench.app
    with monkeypatch.context() as patch:
        patch.setattr("kombu.messaging.Producer.publish", broker_is_away)
        with pytest.raises(OperationalError):
            task.apply_async((1,), key="k")
    (other,) = others
    (run_id,) = created(app)
    assert other.id == run_id
    app.commander.bootstrapper.bootstrap()
    state, error = bench.deliver(other.id)
    assert (state, "not sent" in str(error)) == ("FAILURE", True)
    assert task.apply_async((1,), key="k").id != run_id


@pytest.mark.parametrize("ledger", ["kept", "lost"])
def test_a_committed_run_that_was_compacted_away_still_has_its_key(
    bench: Bench, ledger: str, caplog: pytest.LogCaptureFixture
) -> None:
    task = fulfil(bench)
    commander = bench.app.commander
    first = task.apply_async((1,), key="k")
    bench.deliver(first.id)
    commander.ledger.catch_up()
    commander.engine.snapshot("nightly")
    assert commander.engine.compact("nightly").removed_events > 0
    directory = Path(commander.engine_settings.state_directory)
    if ledger == "lost":
        commander.close()
        for path in directory.glob("ledger.sqlite*"):
            path.unlink()
    history = commander.history(first.id)
    assert history.created == {}
    assert history.state is not None
    assert (history.state.state, history.state.key) == (State.COMMITTED, "k")
    assert task.apply_async((1,), key="k").id == first.id
    assert task.apply_async((2,), key="k").id == first.id  # nobody knows its arguments any more
    assert task.apply_async((1,), key="k").get(timeout=5) == 1
    first.forget()
    assert task.apply_async((1,), key="k").id == first.id
    assert "waits in vain" in caplog.text


def test_a_new_log_knows_no_run_of_an_old_one_and_gets_none_of_its_results(tmp_path: Path) -> None:
    ids = set()
    for life in ("first", "second"):
        app = Celery("shop", broker="memory://", backend="cache+memory://")
        app.conf.task_default_queue = tmp_path.name
        Commander(app, state_directory=tmp_path / life)
        task = app.task(name="fulfil", durable=True, shared=False)(echo)
        result = task.apply_async((1,), key="k")
        assert result.state == "PENDING"
        ids.add(result.id)
        app.backend.store_result(result.id, life, "SUCCESS")
    assert len(ids) == 2


def test_the_run_that_has_a_key_is_found_behind_any_number_of_those_that_had_it(
    bench: Bench,
) -> None:
    def body(order: int) -> None:
        raise ValueError

    task = fulfil(bench, body)
    ids: list[str] = []
    for number in range(18):
        assert find(bench.app.commander, "fulfil", "k").number == number
        ids.append(task.apply_async((1,), key="k").id)
        assert task.apply_async((1,), key="k").id == ids[-1]
        bench.deliver(ids[-1])
    assert created(bench.app) == ids
    assert [bench.history(each).created["previous"] for each in ids] == [None, *ids[:-1]]
