"""One delivery after another of one run, through Celery's own tracer, in this process."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from celery import chain, chord, group, signature
from kombu.utils import json as kombu_json

from celery_commander.engine import RecordedException, State
from celery_commander.tasks import RunStopped, current_run, step
from tests.tasks.bench import Bench


@pytest.mark.parametrize(
    "make",
    [
        lambda task: task.s(1),
        lambda task: task.s(1) | task.s(2),
        lambda task: group(task.s(1), group(task.s(2))),
        lambda task: chord([task.s(1), task.s(2)], task.s(3)),
        lambda task: chain(task.s(1), group(task.s(2), task.s(3)), task.s(4)),
    ],
    ids=["signature", "chain", "group", "chord", "chain of a group"],
)
def test_a_signature_that_a_body_returns_is_stored_as_celery_stores_it(
    bench: Bench, make: Callable[..., Any]
) -> None:
    task = bench.task(lambda_free, name="other")

    def body(self: Any) -> Any:
        kept = current_run.record(lambda: make(task))
        if self.request.retries == 0:
            raise self.retry(countdown=0)
        return kept

    assert bench.run(body, bind=True)[0] == "RETRY"
    state, value = bench.deliver(bench.run_id, retries=1)
    assert state == "SUCCESS"
    assert type(value) is type(make(task))
    as_sent = json.loads(kombu_json.dumps(make(task)))  # in a message a tuple is a list
    assert json.loads(kombu_json.dumps(value)) == as_sent
    assert signature(value, app=bench.app).delay().id


def lambda_free(number: int = 0) -> int:
    return number


def test_a_handle_on_a_result_is_stored_by_its_ids(bench: Bench) -> None:
    def body() -> Any:
        return bench.app.AsyncResult("an-id", parent=bench.app.AsyncResult("its-parent"))

    assert bench.run(body) == ("SUCCESS", (("an-id", (("its-parent", None), None)), None))


def test_a_second_delivery_executes_nothing_and_tells_nothing(bench: Bench) -> None:
    def body() -> int:
        bench.calls.append("body")
        return 7

    assert bench.run(body) == ("SUCCESS", 7)
    state, _ = bench.deliver(bench.run_id)

    assert state == "IGNORED"
    assert bench.calls == ["body"]
    refused = [
        e for e in bench.app.commander.engine.history(bench.run_id) if e.type == "task.rejected"
    ]
    assert [event.payload["reason"] for event in refused] == ["duplicate refused"]


def test_the_caller_of_a_step_sees_the_recorded_value(bench: Bench) -> None:
    given = {"when": datetime(2026, 1, 2, tzinfo=UTC), "pair": (1, 2), 3: {4}}

    @step
    def act() -> Any:
        return given

    def body() -> bool:
        seen = act()
        bench.calls.append(seen)
        return seen is given

    assert bench.run(body) == ("SUCCESS", False)
    assert bench.calls == [given]


def test_a_step_that_raised_raises_the_same_at_a_replay_and_is_not_called_again(
    bench: Bench,
) -> None:
    @step
    def act() -> None:
        bench.calls.append("act")
        raise LookupError("gone", 7)

    def body(self: Any) -> str:
        told = "no error"
        try:
            act()
        except LookupError as error:
            told = f"{error.args}"
        if self.request.retries == 0:
            raise self.retry(countdown=0)
        return told

    assert bench.run(body, bind=True)[0] == "RETRY"
    assert bench.deliver(bench.run_id, retries=1) == ("SUCCESS", "('gone', 7)")
    assert bench.calls == ["act"]


def test_a_retry_with_other_steps_than_recorded_is_stopped_before_any_effect(bench: Bench) -> None:
    @step
    def act(value: int) -> None:
        bench.calls.append(value)

    def body(self: Any) -> None:
        act(self.request.retries)
        if self.request.retries == 0:
            raise self.retry(countdown=0)

    assert bench.run(body, bind=True)[0] == "RETRY"
    assert bench.deliver(bench.run_id, retries=1)[0] == "IGNORED"
    assert bench.calls == [0]
    assert bench.state() is State.PAUSED


def test_a_body_that_left_out_a_recorded_step_does_not_commit(bench: Bench) -> None:
    @step
    def act() -> None:
        bench.calls.append("act")

    def body(self: Any) -> None:
        if self.request.retries == 0:
            act()
            raise self.retry(countdown=0)

    assert bench.run(body, bind=True)[0] == "RETRY"
    assert bench.deliver(bench.run_id, retries=1)[0] == "IGNORED"
    assert bench.state() is State.PAUSED


def test_a_body_that_swallows_everything_cannot_hide_that_it_was_stopped(bench: Bench) -> None:
    @step
    def act(value: int) -> None:
        bench.calls.append(value)

    def body(self: Any) -> str:
        try:
            act(self.request.retries)
        except BaseException:  # noqa: BLE001  # the point of the test
            return "fine"
        raise self.retry(countdown=0)

    assert bench.run(body, bind=True)[0] == "RETRY"
    assert bench.deliver(bench.run_id, retries=1)[0] == "IGNORED"
    assert bench.state() is State.PAUSED


def test_a_failed_body_is_aborted_and_celery_gets_the_original_exception(bench: Bench) -> None:
    def body() -> None:
        raise LookupError("gone")

    state, error = bench.run(body)

    assert (state, type(error), error.args) == ("FAILURE", LookupError, ("gone",))
    assert bench.history(bench.run_id).outcome is not None
    assert bench.state() is State.COMPENSATED


def test_a_result_that_the_backend_cannot_store_fails_before_it_is_a_fact(bench: Bench) -> None:
    def body() -> Any:
        return {(1, 2): "a dictionary that JSON has no keys for"}

    state, _ = bench.run(body)

    assert state == "FAILURE"
    assert "run.committed" not in [e.type for e in bench.app.commander.engine.history(bench.run_id)]


def test_a_step_argument_that_cannot_be_recorded_ends_the_run_before_the_step(bench: Bench) -> None:
    @step
    def act(value: Any) -> None:
        bench.calls.append(value)

    def body() -> None:
        try:
            act(object())
        except Exception:  # noqa: BLE001  # a body that hides it
            pass
        act(1)

    state, error = bench.run(body)

    assert state == "FAILURE"
    assert "act: " in str(error)
    assert bench.calls == []


def test_a_step_result_too_large_for_the_log_is_a_failure_of_that_step(bench: Bench) -> None:
    @step
    def act() -> str:
        bench.calls.append("act")
        return "x" * (1024 * 1024 + 1)

    def body() -> str:
        act()
        return "unreachable"

    state, error = bench.run(body)

    assert state == "FAILURE"
    assert "payload" in str(error)
    assert bench.history(bench.run_id).entries[0].status == "failed"


def test_a_step_in_a_thread_of_the_body_is_refused(bench: Bench) -> None:
    @step
    def act() -> None:
        bench.calls.append("act")

    def in_thread() -> None:
        try:
            act()
        except RunStopped as error:
            bench.calls.append(error)

    def body() -> None:
        thread = threading.Thread(target=in_thread)
        thread.start()
        thread.join()

    assert bench.run(body)[0] == "SUCCESS"
    (error,) = bench.calls
    assert isinstance(error, RunStopped)


def test_a_step_with_an_undo_inside_a_step_is_refused_before_its_effect(bench: Bench) -> None:
    @step(compensate="undo")
    def inner() -> None:
        bench.calls.append("inner")

    @step
    def outer() -> None:
        inner()

    state, error = bench.run(outer_body(outer))

    assert state == "FAILURE"
    assert "inner" in str(error)
    assert bench.calls == []


def outer_body(outer: Callable[[], None]) -> Callable[[], None]:
    def body() -> None:
        outer()

    return body


def test_current_run_tells_a_body_about_itself(bench: Bench) -> None:
    @step
    def act() -> str:
        return current_run.idempotency_key

    def body() -> list[Any]:
        return [
            current_run.id,
            current_run.attempt,
            current_run.token,
            current_run.replaying,
            act(),
        ]

    state, value = bench.run(body)

    assert state == "SUCCESS"
    assert value == [bench.run_id, 1, 1, False, f"{bench.run_id}:0"]


def test_a_key_is_asked_for_inside_a_step(bench: Bench) -> None:
    def body() -> str:
        return current_run.idempotency_key

    state, error = bench.run(body)

    assert state == "FAILURE"
    assert "inside" in str(error)


def test_a_retry_from_inside_a_step_is_refused_with_the_remedy(bench: Bench) -> None:
    def body(self: Any) -> None:
        @step
        def act() -> None:
            raise self.retry(countdown=0)

        act()

    state, error = bench.run(body, bind=True)

    assert state == "FAILURE"
    assert "in the task's body" in str(error)


def test_an_input_that_raised_raises_the_same_at_a_replay(bench: Bench) -> None:
    def fetch() -> int:
        bench.calls.append("fetch")
        raise LookupError("gone")

    @step
    def act(value: str) -> str:
        return value

    def body(self: Any) -> str:
        seen = "nothing was raised"
        try:
            current_run.record(fetch)
        except LookupError as error:
            seen = act(str(error))
        if self.request.retries == 0:
            raise self.retry(countdown=0)
        return seen

    assert bench.run(body, bind=True)[0] == "RETRY"
    assert bench.deliver(bench.run_id, retries=1) == ("SUCCESS", "gone")
    assert bench.calls == ["fetch"]


@pytest.mark.parametrize("error", [asyncio.CancelledError(), GeneratorExit()])
def test_a_body_left_by_any_other_exception_is_aborted_once(
    bench: Bench, error: BaseException
) -> None:
    def body() -> None:
        bench.calls.append("body")
        raise error

    state, told = bench.run(body)

    assert (state, bench.state()) == ("FAILURE", State.COMPENSATED)
    assert type(error).__name__ in str(told)
    assert bench.deliver(bench.run_id)[0] == "IGNORED"
    assert bench.calls == ["body"]


def test_an_exception_too_large_for_the_log_still_ends_the_run(bench: Bench) -> None:
    def body() -> None:
        raise LookupError("x" * (2 * 1024 * 1024))

    assert bench.run(body)[0] == "FAILURE"
    assert bench.state() is State.COMPENSATED


def test_the_caller_of_a_failed_step_sees_the_recorded_exception_at_once(bench: Bench) -> None:
    class Local(Exception):
        pass

    @step
    def act() -> None:
        raise Local("here")

    def body() -> str:
        try:
            act()
        except RecordedException as error:
            return str(error)
        return "no error"

    state, value = bench.run(body)

    assert state == "SUCCESS"
    assert value.endswith("Local: here")
