"""A result counts once the task's own check has agreed; a check is replayed as a body is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from celery_commander.engine import State
from celery_commander.tasks import Verdict, VerificationFailed, current_run, step
from celery_commander.tasks.replaying import rehearse
from tests.engine.forked import Forked
from tests.kit import CrashPoint, arm

from .bench import Bench


class Books:
    """A body and its check, and what they did, in a file that outlives their process."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "books"
        self.agrees: Any = True

        @step
        def pay() -> int:
            self.note("pay")
            return 7

        @step
        def look_up(cents: int) -> int:
            self.note("look up")
            return cents

        self.pay, self.look_up = pay, look_up

    def note(self, word: str) -> None:
        with self.path.open("a") as file:
            file.write(f"{word}\n")

    @property
    def lines(self) -> list[str]:
        return self.path.read_text().splitlines() if self.path.exists() else []

    def body(self) -> int:
        return self.pay()

    def check(self, result: int) -> Any:
        current_run.now()
        assert self.look_up(result) == result
        if isinstance(self.agrees, Exception):
            raise self.agrees
        return self.agrees

    def define(self, bench: Bench) -> None:
        def pay_out() -> int:
            return self.body()

        bench.app.tasks.pop("pay_out", None)
        bench.task(pay_out, verify=lambda result: self.check(result))


@pytest.fixture
def books(bench: Bench, tmp_path: Path) -> Books:
    books = Books(tmp_path)
    books.define(bench)
    bench.run_id = bench.send("pay_out")
    return books


def types(bench: Bench) -> list[str]:
    return [event.type for event in bench.app.commander.engine.history(bench.run_id)]


def test_what_the_check_asks_for_is_recorded_behind_the_body(bench: Bench, books: Books) -> None:
    assert bench.deliver(bench.run_id) == ("SUCCESS", 7)
    assert types(bench)[3:] == [
        "step.started",
        "step.completed",
        "run.verifying",
        "input.recorded",
        "step.started",
        "step.completed",
        "run.committed",
        "run.delivered",
    ]
    assert bench.history(bench.run_id).verifying == (1, 7)


@pytest.mark.parametrize("agrees", [None, True, 0, ""])
def test_only_false_and_an_exception_refuse_a_result(
    bench: Bench, books: Books, agrees: Any
) -> None:
    books.agrees = agrees
    assert bench.deliver(bench.run_id) == ("SUCCESS", 7)


@pytest.mark.parametrize(
    "agrees, error, reason",
    [
        (False, VerificationFailed, "verification"),
        (LookupError("not in the books"), LookupError, "exception"),
    ],
)
def test_a_refused_result_aborts_the_run(
    bench: Bench, books: Books, agrees: Any, error: type[Exception], reason: str
) -> None:
    books.agrees = agrees
    state, raised = bench.deliver(bench.run_id)
    assert (state, type(raised)) == ("FAILURE", error)
    history = bench.history(bench.run_id)
    assert history.abort_reason == reason
    assert history.state is not None
    assert history.state.state is State.COMPENSATED


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("nth, event", [
    (1, "run.verifying"), (1, "input.recorded"), (2, "step.started"), (2, "step.completed"),
    (1, "run.committed"),
])  # fmt: skip
def test_a_kill_in_the_check_is_made_good_by_a_replay_of_both(
    bench: Bench, books: Books, tmp_path: Path, event: str, nth: int, when: Any
) -> None:
    point = CrashPoint(event, nth=nth, when=when, directory=tmp_path)
    is_in_doubt = (event, when) in (("step.started", "after"), ("step.completed", "before"))
    bench.app.commander.close()

    def dies(_: Forked) -> Any:
        os.environ.update(point.environment())
        arm()
        return bench.deliver(bench.run_id)

    with Forked(dies) as process, pytest.raises(EOFError):
        process.hear()
    assert point.fired
    result = bench.app.commander.bootstrapper.bootstrap()
    if is_in_doubt:  # a step of the check is a step
        assert result.aborted == 1
        return
    assert result.recovered == 1
    assert bench.deliver(bench.run_id) == ("SUCCESS", 7)
    assert books.lines == ["pay", "look up"]
    assert types(bench).count("run.committed") == 1


def test_a_body_that_ends_elsewhere_than_before_its_check_is_parked(
    bench: Bench, books: Books, tmp_path: Path
) -> None:
    point = CrashPoint("input.recorded", directory=tmp_path)
    bench.app.commander.close()

    def dies(_: Forked) -> Any:
        os.environ.update(point.environment())
        arm()
        return bench.deliver(bench.run_id)

    with Forked(dies) as process, pytest.raises(EOFError):
        process.hear()
    bench.app.commander.bootstrapper.bootstrap()
    books.body = lambda: books.pay() + 1  # type: ignore[method-assign]
    told = rehearse(bench.app.commander, bench.history(bench.run_id))
    assert (told.verdict, told.recorded) == (Verdict.DIVERGED, "the recorded result")
    assert bench.deliver(bench.run_id)[0] == "IGNORED"
    assert bench.state() is State.PAUSED
    assert books.lines == ["pay"]


def test_a_rehearsal_goes_through_the_check_too(bench: Bench, books: Books) -> None:
    bench.deliver(bench.run_id)
    lines = books.lines
    told = rehearse(bench.app.commander, bench.history(bench.run_id))
    assert (told.verdict, told.steps, told.end) == (Verdict.SAME, 3, "it returns")
    assert books.lines == lines


def test_a_method_of_a_class_is_a_check_too_and_what_is_none_is_refused(bench: Bench) -> None:
    app = bench.app

    class Paying(app.Task):  # type: ignore[name-defined]
        name = "paying"
        durable = True

        def run(self) -> int:
            return 3

        def verify(self, result: int) -> bool:
            return result == 4

    app.register_task(Paying())
    bench.run_id = bench.send("paying")
    assert isinstance(bench.deliver(bench.run_id)[1], VerificationFailed)
    with pytest.raises(TypeError, match="function of the result"):
        bench.task(lambda_free, name="wrong", verify="yes").apply_async()


def lambda_free() -> None: ...
