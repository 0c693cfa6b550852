"""A durable task that is called as a function: said once outside a run, part of the run inside one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from celery_commander.engine import State
from celery_commander.tasks import current_run, step
from tests.engine.forked import Forked
from tests.tasks.bench import Bench
from tests.tasks.letters_kit import types

LOGGER = "celery_commander.tasks.direct"


@pytest.fixture
def inner(bench: Bench) -> Any:
    """Give a durable task with a step and an input."""

    @step(name="charge")
    def charge(order: str) -> str:
        bench.calls.append(f"charged {order}")
        return f"{order} charged"

    def pay(order: str) -> list[str]:
        bench.calls.append("inner body")
        return [charge(order), current_run.uuid4().hex]

    return bench.task(pay)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.name == LOGGER]


def test_a_call_outside_a_run_is_a_plain_call_and_says_so_once(
    bench: Bench, inner: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert inner("7 euro")[0] == "7 euro charged"
    inner("7 euro")

    (said,) = warnings(caplog)
    for words in ("task pay", "nothing of this call is recorded", ".delay()", ".run()"):
        assert words in said
    assert not (tmp_path / "state").exists()


def test_each_task_and_each_process_says_so_for_itself(
    bench: Bench, inner: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def other() -> None:
        """Do nothing."""

    bench.task(other)()
    inner("7 euro")
    assert len(warnings(caplog)) == 2

    def call_again(_: Forked) -> int:
        inner("7 euro")
        inner("7 euro")
        return len(warnings(caplog))

    with Forked(call_again) as process:
        assert process.hear() == (True, 3)


@pytest.mark.parametrize("how", ["run", "apply", "always eager"])
def test_a_call_that_is_meant_says_nothing_and_records_nothing(
    bench: Bench, inner: Any, how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench.app.conf.task_always_eager = how == "always eager"
    match how:
        case "run":
            found = inner.run("7 euro")
        case "apply":
            found = inner.apply(("7 euro",)).get()
        case _:
            found = inner.delay("7 euro").get(disable_sync_subtasks=False)

    assert found[0] == "7 euro charged"
    assert warnings(caplog) == []
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("how", ["call", "apply", "always eager"])
def test_a_call_inside_a_run_is_part_of_it_and_replayed_with_it(
    bench: Bench, inner: Any, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    dies = [True]

    @step(name="ship", retry_in_doubt=True)
    def ship() -> str:
        if dies:
            os._exit(9)
        return "shipped"

    def fulfil(order: str) -> list[Any]:
        calls = {
            "call": lambda: inner(order),
            "apply": lambda: inner.apply((order,)).get(disable_sync_subtasks=False),
            "always eager": lambda: inner.delay(order).get(disable_sync_subtasks=False),
        }
        return [calls[how](), ship()]

    bench.task(fulfil)
    bench.run_id = bench.send("fulfil", "7 euro")
    bench.app.conf.task_always_eager = how == "always eager"
    bench.app.commander.close()
    with Forked(lambda _: bench.deliver(bench.run_id)) as process, pytest.raises(EOFError):
        process.hear()
    first = bench.history(bench.run_id).entries
    assert [first[n].name for n in range(len(first))] == ["charge", "uuid4", "ship"]
    dies.clear()
    bench.app.commander.bootstrapper.bootstrap()

    status, value = bench.deliver(bench.run_id)

    assert status == "SUCCESS"
    assert value[0][0] == "7 euro charged"
    assert value[1] == "shipped"
    assert bench.calls == ["inner body"]  # of this process: the step's call stands in the other one
    assert types(bench).count("run.created") == 1
    assert bench.state() is State.COMMITTED
    assert warnings(caplog) == []


def test_an_undo_that_is_durable_itself_is_called_by_its_link_and_nothing_is_said(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    def undo(told: Any) -> None:
        bench.calls.append(told["step"])

    act = step(name="act", compensate="undo")(lambda: None)

    def fail() -> None:
        act()
        raise LookupError("no")

    bench.task(undo)
    bench.run(fail)
    bench.app.tasks["celery_commander.compensate_step"].apply((bench.run_id, 0, 1)).get()

    assert bench.calls == [0]
    assert warnings(caplog) == []
