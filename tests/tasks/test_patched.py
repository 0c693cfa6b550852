"""Code changes under runs that have begun: each goes on in the way that it took."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from celery_commander.engine import State
from celery_commander.tasks import RunStopped, Verdict, current_run, step
from celery_commander.tasks.replaying import rehearse
from tests.engine.forked import Forked
from tests.kit import CrashPoint, arm

from .bench import Bench


class Changing:
    """A body in two versions; it asks for a retry as long as it is told to."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.retries = 1
        self.calls: list[str] = []

        @step
        def act(name: str) -> str:
            self.calls.append(name)
            return name

        self.act = act

    def old(self, task: Any) -> list[str]:
        done = [self.act("a")]
        self.pause_before(task, "b")
        return [*done, self.act("b")]

    def new(self, task: Any) -> list[str]:
        done = [self.act("a")]
        if current_run.patched("tax"):
            done.append(self.act("tax"))
        self.pause_before(task, "b")
        return [*done, self.act("b")]

    def pause_before(self, task: Any, name: str) -> None:
        if task.request.retries < self.retries:
            raise task.retry(countdown=0)

    def deploy(self, body: Callable[[Any], Any]) -> None:
        def changing(task: Any) -> Any:
            return body(task)

        self.bench.app.tasks.pop("changing", None)
        self.bench.task(changing, bind=True, max_retries=None)

    def start(self, body: Callable[[Any], Any]) -> Any:
        self.deploy(body)
        self.bench.run_id = self.bench.send("changing")
        return self.bench.deliver(self.bench.run_id)

    def again(self, retries: int) -> Any:
        return self.bench.deliver(self.bench.run_id, retries=retries)


@pytest.fixture
def changing(bench: Bench) -> Changing:
    return Changing(bench)


def test_a_new_run_takes_the_new_way_and_keeps_it(changing: Changing) -> None:
    assert changing.start(changing.new)[0] == "RETRY"
    assert changing.again(1) == ("SUCCESS", ["a", "tax", "b"])
    assert changing.calls == ["a", "tax", "b"]


def test_a_run_that_had_come_past_the_place_goes_on_in_the_old_way(changing: Changing) -> None:
    changing.retries = 0

    def old(task: Any) -> list[str]:
        done = [changing.act("a"), changing.act("b")]
        changing.retries = 1
        changing.pause_before(task, "c")
        return done

    changing.start(old)

    def new(task: Any) -> list[str]:
        done = [changing.act("a")]
        if current_run.patched("tax"):
            done.append(changing.act("tax"))
        return [*done, changing.act("b")]

    changing.deploy(new)
    assert changing.again(1) == ("SUCCESS", ["a", "b"])
    assert changing.calls == ["a", "b"]


def test_a_run_that_stood_right_before_the_place_takes_the_new_way(changing: Changing) -> None:
    assert changing.start(changing.old)[0] == "RETRY"  # it has recorded "a", and nothing behind it
    changing.retries = 2
    changing.deploy(changing.new)
    assert changing.again(1)[0] == "RETRY"
    assert changing.again(2) == ("SUCCESS", ["a", "tax", "b"])
    assert changing.calls == ["a", "tax", "b"]


def test_without_the_patch_the_same_change_parks_the_run(changing: Changing) -> None:
    changing.retries = 0

    def old(task: Any) -> None:
        changing.act("a")
        changing.act("b")
        changing.retries = 1
        changing.pause_before(task, "c")

    changing.start(old)

    def new(_: Any) -> None:
        changing.act("a")
        changing.act("tax")
        changing.act("b")

    changing.deploy(new)
    assert changing.again(1)[0] == "IGNORED"
    assert changing.bench.state() is State.PAUSED


def test_one_id_has_one_answer_in_a_run_and_several_ids_may_stand_at_one_place(
    changing: Changing,
) -> None:
    answers: list[list[bool]] = []

    def body(task: Any) -> None:
        first = [current_run.patched("one"), current_run.patched("two"), current_run.patched("one")]
        changing.act("a")
        answers.append([*first, current_run.patched("two")])
        changing.pause_before(task, "b")

    changing.start(body)
    changing.again(1)
    assert answers == [[True] * 4] * 2
    kinds = [entry.kind for entry in changing.bench.history(changing.bench.run_id).entries.values()]
    assert kinds == ["patched", "patched", "step"]


def test_an_old_answer_holds_for_every_turn_of_a_loop(changing: Changing) -> None:
    changing.retries = 0

    def old(task: Any) -> None:
        changing.act("a0")
        changing.retries = 1
        changing.pause_before(task, "")

    changing.start(old)
    seen: list[bool] = []

    def new(_: Any) -> list[bool]:
        for turn in range(3):
            seen.append(current_run.patched("loop"))
            changing.act(f"a{turn}")
        return seen

    changing.deploy(new)
    assert changing.again(1) == ("SUCCESS", [False] * 3)


def test_a_patch_is_retired_in_two_steps(changing: Changing) -> None:
    changing.retries = 3
    changing.start(changing.new)

    def always(task: Any) -> list[str]:  # the old way is gone, the call stays
        done = [changing.act("a")]
        current_run.patched("tax")
        done.append(changing.act("tax"))
        changing.pause_before(task, "b")
        return [*done, changing.act("b")]

    changing.deploy(always)
    assert changing.again(1)[0] == "RETRY"

    def without(task: Any) -> list[str]:  # too early: this run has the patch recorded
        done = [changing.act("a"), changing.act("tax")]
        changing.pause_before(task, "b")
        return [*done, changing.act("b")]

    changing.deploy(without)
    assert changing.again(2)[0] == "IGNORED"
    assert changing.bench.state() is State.PAUSED


def test_it_is_refused_where_its_place_is_not_certain(bench: Bench) -> None:
    refused: list[str] = []

    @step
    def act() -> None:
        try:
            current_run.patched("x")
        except RunStopped as error:
            refused.append(str(error))

    def body() -> None:
        act()
        thread = threading.Thread(target=in_thread)
        thread.start()
        thread.join()

    def in_thread() -> None:
        try:
            current_run.patched("x")
        except RunStopped as error:
            refused.append(str(error))

    assert bench.run(body) == ("SUCCESS", None)
    assert len(refused) == 2
    assert current_run.patched("outside a run") is True
    for wrong in ("", "x" * 129, 7, None):
        with pytest.raises(ValueError, match="id"):
            current_run.patched(wrong)  # type: ignore[arg-type]


# --- after a restart from a checkpoint, and before the end of a body --------------------------------


class Turning:
    """A loop that saves where it stands, whose beginning changes so that it must go on from there."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.word = "first"
        self.asks = True
        self.calls: list[str] = []
        self.retries = 1

        @step(name="turn")
        def act(name: str) -> None:
            self.calls.append(name)

        def turning(task: Any) -> int:
            turn = int(current_run.restored(0))
            if turn == 0:
                act(self.word)
            while turn < 4:
                is_new = self.asks and current_run.patched("x")
                act(f"{'new' if is_new else 'old'}{turn}")
                turn += 1
                if turn == 2:
                    current_run.checkpoint(turn)
                if turn == 3 and task.request.retries < self.retries:
                    raise task.retry(countdown=0)
            return turn

        bench.task(turning, bind=True, max_retries=None)
        bench.run_id = bench.send("turning")

    def deliver(self, retries: int) -> str:
        return str(self.bench.deliver(self.bench.run_id, retries=retries)[0])


def test_a_patch_that_was_taken_before_a_checkpoint_is_taken_behind_it(bench: Bench) -> None:
    turning = Turning(bench)
    assert turning.deliver(0) == "RETRY"
    turning.word = "another"  # it cannot be replayed from its first line
    assert turning.deliver(1) == "IGNORED"
    assert turning.deliver(1) == "SUCCESS"
    assert turning.calls == ["first", "new0", "new1", "new2", "new3"]


def test_a_run_that_took_the_old_way_before_its_checkpoint_keeps_it_behind_it(bench: Bench) -> None:
    turning = Turning(bench)
    turning.asks, turning.retries = False, 2
    assert turning.deliver(0) == "RETRY"  # old0 old1 old2
    turning.asks = True
    assert turning.deliver(1) == "RETRY"  # past the place: false, and nothing new is done
    assert turning.calls == ["first", "old0", "old1", "old2"]
    assert turning.deliver(2) == "SUCCESS"
    assert turning.calls[-1] == "old3"


def test_a_checkpoint_names_the_answers_that_were_given_by_then(bench: Bench) -> None:
    turning = Turning(bench)
    turning.deliver(0)
    (saved,) = bench.history(bench.run_id).checkpoints
    assert saved.patches == (("x", True),)


def test_a_run_whose_body_had_ended_before_the_change_takes_the_old_way(
    bench: Bench, tmp_path: Path
) -> None:
    asks: list[bool] = []
    calls: list[str] = []

    @step(name="act")
    def act(name: str) -> None:
        calls.append(name)

    def body() -> int:
        act("a")
        if asks and current_run.patched("x"):
            act("b")
        return 1

    bench.task(body, verify=lambda result: current_run.patched("in the check"))
    bench.run_id = bench.send("body")
    point = CrashPoint("run.verifying", when="after", directory=tmp_path)
    bench.app.commander.close()

    def dies(_: Forked) -> Any:
        os.environ.update(point.environment())
        arm()
        return bench.deliver(bench.run_id)

    with Forked(dies) as process, pytest.raises(EOFError):
        process.hear()
    bench.app.commander.bootstrapper.bootstrap()
    asks.append(True)
    assert rehearse(bench.app.commander, bench.history(bench.run_id)).verdict is Verdict.SAME
    assert bench.deliver(bench.run_id) == ("SUCCESS", 1)
    assert calls == []
    kinds = [entry.name for entry in bench.history(bench.run_id).entries.values()]
    assert kinds == ["act", "in the check"]
    assert rehearse(bench.app.commander, bench.history(bench.run_id)).verdict is Verdict.SAME


@pytest.mark.parametrize("raises", [False, True])
def test_a_rehearsal_of_what_is_over_takes_the_old_way_too(bench: Bench, raises: bool) -> None:
    asks: list[bool] = []

    def body() -> int:
        current_run.now()
        if asks and current_run.patched("x"):
            return 2
        if raises:
            raise LookupError("as ever")
        return 1

    bench.run(body)
    asks.append(True)
    told = rehearse(bench.app.commander, bench.history(bench.run_id))
    assert told.verdict is Verdict.SAME, told
