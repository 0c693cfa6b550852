"""A rehearsal changes nothing outside: not by what the body sends, and not by how it ends."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from celery import Celery, chord, group
from celery.exceptions import Ignore

from celery_commander.engine import State, register_type, values
from celery_commander.tasks import Verdict, current_run, step
from celery_commander.tasks.replaying import Replayed, rehearse
from tests.tasks.bench import Bench

Body = Callable[[Any], Any]


class Rehearsing:
    """One step and then what a test puts behind it, by the code that ran and by the code that is rehearsed."""

    def __init__(self, bench: Bench) -> None:
        self.bench, self.app = bench, bench.app
        self.behind: Body = lambda _: 1
        self.calls: list[Any] = []

        @step(name="act")
        def act(value: Any) -> Any:
            self.calls.append(value)
            return value

        @bench.app.task(name="plain", shared=False)
        def plain() -> None:
            self.calls.append("plain")

        self.act = act

        def body(task: Any) -> Any:
            act(1)
            return self.behind(task)

        bench.task(body, bind=True, max_retries=None)

    def ran(self, behind: Body) -> Any:
        self.behind = behind
        self.bench.run_id = self.bench.send("body")
        return self.bench.deliver(self.bench.run_id)

    def rehearsed(self, behind: Body) -> Replayed:
        """Return what came of it; nothing may have come of it outside."""
        self.behind, calls, events = behind, list(self.calls), self.events()
        found = rehearse(self.app.commander, self.bench.history(self.bench.run_id))
        assert (self.calls, self.events()) == (calls, events)
        return found

    def events(self) -> list[int]:
        return [event.seq for event in self.app.commander.engine.read_from(None)]


@pytest.fixture
def rehearsing(bench: Bench) -> Rehearsing:
    found = Rehearsing(bench)
    assert found.ran(lambda _: 1) == ("SUCCESS", 1)
    return found


def sends(rehearsing: Rehearsing) -> dict[str, Body]:
    app = rehearsing.app
    plain, control = app.tasks["plain"], app.control

    def group_of_two(_: Any) -> int:
        sent = group(plain.s(), plain.s()).apply_async()
        sent.save()
        return len(sent.results) - 1

    def chord_of_two(_: Any) -> int:
        chord([plain.s(), plain.s()], plain.s()).apply_async()
        return 1

    def update(task: Any) -> int:
        task.update_state(state="PROGRESS", meta={"done": 1})
        return 1

    def publish(_: Any) -> int:
        app.commander.bus.publish("order.paid", {"order": 7})
        return 1

    def revoke(_: Any) -> int:
        control.revoke("another")
        return 1

    def waits(_: Any) -> Any:
        return plain.delay().get(disable_sync_subtasks=False)

    return {
        "delay": lambda _: bool(plain.delay()) + 0,
        "group": group_of_two,
        "chord": chord_of_two,
        "update_state": update,
        "bus": publish,
        "revoke": revoke,
        "waits": waits,
    }


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("what", ["delay", "group", "chord", "update_state", "bus"])
def test_nothing_that_a_body_sends_leaves_it(
    rehearsing: Rehearsing, what: str, eager: bool
) -> None:
    rehearsing.app.conf.task_always_eager = eager
    waiting = rehearsing.app.commander.bus.facts()["undelivered"]
    assert rehearsing.rehearsed(sends(rehearsing)[what]).verdict is Verdict.SAME
    assert rehearsing.app.conf.task_always_eager is eager
    rehearsing.app.conf.task_always_eager = False  # or Celery warns of reading results
    result = rehearsing.app.AsyncResult(rehearsing.bench.run_id)
    assert (result.state, result.result) == ("SUCCESS", 1)
    assert rehearsing.app.commander.bus.facts()["undelivered"] == waiting
    assert type(rehearsing.app) is Celery


@pytest.mark.parametrize("what, told", [("revoke", "asks the broker"), ("waits", "waits for")])
def test_where_nobody_can_say_how_it_goes_on_that_is_said(
    rehearsing: Rehearsing, what: str, told: str
) -> None:
    found = rehearsing.rehearsed(sends(rehearsing)[what])
    assert (found.verdict, found.steps) == (Verdict.NOT_REPLAYABLE, 1)
    assert told in found.end


def exits(_: Any) -> None:
    sys.exit(0)


def ignores(_: Any) -> None:
    raise Ignore


def retries(task: Any) -> None:
    raise task.retry(countdown=0)


@pytest.mark.parametrize(
    "behind, found",
    [
        (exits, "BodyExited"),
        (ignores, "another result"),
        (retries, "the body asked for retry"),
        (lambda _: object(), "UnrecordableValue"),
        (lambda _: 2, "another result"),
    ],
)
def test_a_committed_run_must_end_as_it_did_whatever_the_body_does_instead(
    rehearsing: Rehearsing, behind: Body, found: str
) -> None:
    told = rehearsing.rehearsed(behind)
    assert (told.verdict, told.recorded) == (Verdict.DIVERGED, "the recorded result")
    assert found in str(told.found)


def test_a_body_that_hides_why_it_was_stopped_is_not_believed(rehearsing: Rehearsing) -> None:
    def hides(_: Any) -> int:
        try:
            rehearsing.act(2)
        except BaseException:  # noqa: BLE001  # what is tried
            pass
        raise Ignore

    told = rehearsing.rehearsed(hides)
    assert (told.verdict, told.recorded) == (Verdict.DIVERGED, "the run's end")


def test_what_no_log_can_hold_is_a_divergence_where_something_is_recorded(bench: Bench) -> None:
    given: list[Any] = [1]

    @step
    def act(value: Any) -> None: ...

    def body() -> None:
        act(given[0])

    assert bench.run(body)[0] == "SUCCESS"
    given[0] = object()
    told = rehearse(bench.app.commander, bench.history(bench.run_id))
    assert (told.verdict, told.index) == (Verdict.DIVERGED, 0)
    assert "object" in str(told.found)
    bench.run_id = bench.send("body")
    assert bench.deliver(bench.run_id)[0] == "FAILURE"
    assert (
        rehearse(bench.app.commander, bench.history(bench.run_id)).end
        == "it raises UnrecordableValue"
    )


# --- values that cannot be rebuilt here -----------------------------------------------------------


@dataclass
class Parcel:
    number: int


@pytest.fixture
def unregistered() -> Iterator[Callable[[], None]]:
    register_type(Parcel, "test_stillness.Parcel")
    known = values._BY_NAME["test_stillness.Parcel"]

    def forget() -> None:
        values._BY_NAME.pop("test_stillness.Parcel", None)

    yield forget
    values._BY_NAME["test_stillness.Parcel"] = known


@pytest.mark.parametrize("hides", [False, True])
def test_a_value_that_cannot_be_rebuilt_here_parks_the_run_and_aborts_nothing(
    bench: Bench, unregistered: Callable[[], None], hides: bool
) -> None:
    undone: list[Any] = []

    @bench.app.task(name="undo", shared=False)
    def undo(told: Any) -> None:
        undone.append(told)

    @step(compensate=undo)
    def act() -> Parcel:
        return Parcel(7)

    def body(task: Any) -> int:
        try:
            act()
        except Exception:
            if not hides:
                raise
        if task.request.retries == 0:
            raise task.retry(countdown=0)
        return 1

    assert bench.run(body, bind=True, max_retries=None)[0] == "RETRY"
    unregistered()
    told = rehearse(bench.app.commander, bench.history(bench.run_id))
    assert told.verdict is Verdict.NOT_REPLAYABLE
    assert "test_stillness.Parcel" in told.end
    assert bench.deliver(bench.run_id, retries=1)[0] == "IGNORED"
    assert (bench.state(), undone) == (State.PAUSED, [])
    state = bench.history(bench.run_id).state
    assert state is not None
    assert state.paused_kind == "version"


def test_an_input_that_cannot_be_rebuilt_here_parks_the_run(
    bench: Bench, unregistered: Callable[[], None]
) -> None:
    def body(task: Any) -> int:
        current_run.record(Parcel, 7)
        if task.request.retries == 0:
            raise task.retry(countdown=0)
        return 1

    assert bench.run(body, bind=True, max_retries=None)[0] == "RETRY"
    unregistered()
    assert bench.deliver(bench.run_id, retries=1)[0] == "IGNORED"
    assert bench.state() is State.PAUSED
