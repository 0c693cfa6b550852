"""What a step may call, and from where: what it calls is part of it, and no thread acts under another key."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from celery_commander.engine import State
from celery_commander.tasks import RunStopped, current_run, step

from .bench import Bench


class Away(Exception):
    pass


def body_of(act: Callable[[], Any]) -> Callable[[], Any]:
    def body() -> Any:
        return act()

    return body


def in_thread(function: Callable[[], Any]) -> Any:
    """Return what a function returns in a bare thread, as a client library's pool would call it."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


def in_thread_with_context(function: Callable[[], Any]) -> Any:
    """Return the same in a thread that was given the caller's context, as asyncio.to_thread does."""
    context = contextvars.copy_context()
    return in_thread(lambda: context.run(function))


def test_a_step_inside_a_step_is_part_of_it(bench: Bench) -> None:
    @step(name="inner", retries=3, retry_on=Away, timeout=60)
    def inner() -> str:
        bench.calls.append(current_run.idempotency_key)
        if len(bench.calls) == 1:
            raise Away
        return "paid"

    @step(name="outer", retries=1, retry_on=Away, backoff=0)
    def outer() -> str:
        return inner()

    assert bench.run(body_of(outer)) == ("SUCCESS", "paid")
    (entry,) = bench.history(bench.run_id).entries.values()
    assert (entry.name, entry.tries) == ("outer", 1)  # the tries are the outer one's
    assert bench.calls == [f"{bench.run_id}:0"] * 2


def test_what_a_step_asks_for_is_recorded_with_its_result_only(bench: Bench) -> None:
    @step
    def act() -> list[Any]:
        current_run.now()
        return [current_run.record(lambda: "asked"), current_run.tool(lambda: "called")]

    assert bench.run(body_of(act)) == ("SUCCESS", ["asked", "called"])
    assert len(bench.history(bench.run_id).entries) == 1


def test_a_bare_thread_of_a_step_gets_no_key_rather_than_one_of_its_own(bench: Bench) -> None:
    @step
    def act() -> str:
        return str(in_thread(lambda: current_run.idempotency_key))

    state, error = bench.run(body_of(act))
    assert (state, type(error)) == ("FAILURE", RunStopped)
    assert "thread" in str(error)


def test_a_thread_that_is_given_the_steps_context_acts_under_its_key(bench: Bench) -> None:
    @step
    def act() -> list[str]:
        key = in_thread_with_context(lambda: current_run.idempotency_key)
        return [key, current_run.idempotency_key]

    assert bench.run(body_of(act)) == ("SUCCESS", [f"{bench.run_id}:0"] * 2)


@pytest.mark.parametrize("call", [in_thread, in_thread_with_context])
@pytest.mark.parametrize("what", ["step", "record", "patched", "checkpoint"])
def test_no_thread_that_a_body_starts_records_anything(
    bench: Bench, call: Callable[..., Any], what: str
) -> None:
    @step
    def act() -> None:
        bench.calls.append("act")

    asked: dict[str, Callable[[], object]] = {
        "step": act,
        "record": lambda: current_run.record(bench.calls.append, "asked"),
        "patched": lambda: current_run.patched("a change"),
        "checkpoint": lambda: current_run.checkpoint(1),
    }
    state, error = bench.run(body_of(lambda: call(asked[what])))
    assert (state, type(error)) == ("FAILURE", RunStopped)
    assert bench.calls == []
    assert bench.history(bench.run_id).entries == {}


def test_another_task_of_a_pool_of_threads_calls_steps_plainly(bench: Bench) -> None:
    @step
    def act() -> str:
        return current_run.idempotency_key

    plain = bench.app.task(name="plain", shared=False)(body_of(act))
    keys: list[str] = []

    def body() -> None:
        other = threading.Thread(target=lambda: keys.append(plain.apply().get()))
        other.start()
        other.join()

    assert bench.run(body) == ("SUCCESS", None)
    (key,) = keys
    assert bench.run_id not in key
    assert bench.state() is State.COMMITTED
