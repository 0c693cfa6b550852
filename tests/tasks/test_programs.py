"""Any program, killed at any of its events, comes to what its twin comes to that nobody kills.

TEST_EXAMPLES=100 tries more programs than the few that a run of all tests has time for.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_commander.engine import State
from celery_commander.tasks import Verdict, current_run, step
from celery_commander.tasks.replaying import rehearse
from tests.engine.forked import Forked
from tests.kit import CrashPoint, arm
from tests.tasks.bench import Bench, make_bench

pytestmark = [pytest.mark.crash, pytest.mark.slow]

OPERATIONS = (
    "step",
    "fails",
    "tries",
    "tool",
    "now",
    "record",
    "refused",
    "patched",
    "save",
    "retry",
    "retried",
    "asked",
)
ENDS = ("return", "raise", "verify")
OVER = (State.COMMITTED, State.COMPENSATED)
DELIVERIES_MAX = 40

IN_DOUBT = {
    (event, "before")
    for event in ("step.completed", "step.failed", "step.try_failed", "input.recorded")
}
"""Kills between an effect and its record: there it is repeated, as the step says, and nowhere else."""


class Away(Exception):
    pass


@dataclass(frozen=True)
class Program:
    """What a body does, one operation after another, and how it ends."""

    operations: tuple[str, ...]
    end: str


class World:
    """One run of a program in a store of its own, and what it did to the outside."""

    def __init__(self, directory: Path, program: Program) -> None:
        self.bench: Bench = make_bench(directory)
        self.calls_file = directory / "calls"
        self.program = program
        self.directory = directory
        again: dict[str, Any] = {"retry_in_doubt": True}
        self.act = step(name="act", **again)(self.call)
        self.fail = step(name="fail", **again)(self.call_and_fail)
        self.try_hard = step(name="try", retries=2, retry_on=Away, backoff=0, **again)(self.try_)
        self.is_away = False
        self.retried: dict[str, Any] = {
            "retried": step(name="retried", **again)(self.call_if_there),
            "asked": lambda name: current_run.record(self.call_if_there, name),
        }

        def body(task: Any) -> Any:
            return self.run(task)

        check = {"verify": self.check} if program.end == "verify" else {}
        self.bench.task(body, bind=True, max_retries=None, **check)
        self.run_id = self.bench.run_id = self.bench.send("body")

    def call(self, name: str) -> str:
        with self.calls_file.open("a") as file:
            file.write(f"{name}\n")
        return name

    def call_and_fail(self, name: str) -> Any:
        self.call(name)
        raise Away(name)

    def call_if_there(self, name: str) -> str:
        return self.call_and_fail(name) if self.is_away else self.call(name)

    def try_(self, name: str) -> str:
        self.call(name)
        if self.calls[name] == 1:
            raise Away(name)
        return name

    @property
    def calls(self) -> Counter[str]:
        return Counter(self.calls_file.read_text().split() if self.calls_file.exists() else ())

    def check(self, result: list[Any]) -> None:
        self.act("checked")
        current_run.now()

    def run(self, task: Any) -> list[Any]:
        done: list[Any] = []
        retries = 0
        for place, operation in enumerate(self.program.operations):
            name = f"{operation}-{place}"
            match operation:
                case "step":
                    done.append(self.act(name))
                case "fails":
                    try:
                        self.fail(name)
                    except Away as error:
                        done.append(str(error))
                case "tries":
                    done.append(self.try_hard(name))
                case "tool":
                    done.append(current_run.record(str, current_run.random() >= 0))
                case "now":
                    done.append(current_run.now().tzinfo is not None)
                case "record":
                    done.append(current_run.record(self.call, name))
                case "refused":
                    try:
                        current_run.record(self.call_and_fail, name)
                    except Away as error:
                        done.append(str(error))
                case "patched":
                    done.append(current_run.patched(name))
                case "save":
                    current_run.checkpoint(done)
                case "retry":
                    retries += 1
                    if task.request.retries < retries:
                        raise task.retry(countdown=0)
                case "retried" | "asked":
                    retries += 1
                    self.is_away = task.request.retries < retries
                    try:
                        done.append(self.retried[operation](name))
                    except Away as error:
                        raise task.retry(exc=error, countdown=0) from None
        if self.program.end == "raise":
            raise LookupError("the end")
        return done

    def deliver(self) -> Any:
        history = self.bench.history(self.run_id)
        return self.bench.deliver(self.run_id, retries=history.retries)

    def finish(self) -> None:
        """Deliver until the run is over, recovering in between as a worker does."""
        for _ in range(DELIVERIES_MAX):
            self.deliver()
            state = self.bench.history(self.run_id).state
            if state is not None and state.state in OVER and state.delivered:
                return
            self.bench.app.commander.bootstrapper.bootstrap()
        raise AssertionError(f"not over: {self.bench.history(self.run_id).state}")

    def die_at(self, point: CrashPoint) -> None:
        """Deliver in processes of their own until one is killed there."""
        self.bench.app.commander.close()

        def dies(_: Forked) -> Any:
            os.environ.update(point.environment())
            arm()
            for _delivery in range(DELIVERIES_MAX):
                self.deliver()
            return "it outlived its runs"

        with Forked(dies) as process, pytest.raises(EOFError):
            process.hear()
        assert point.fired

    def story(self) -> dict[str, Any]:
        history = self.bench.history(self.run_id)
        state = history.state
        assert state is not None
        return {
            "state": state.state,
            "outcome": history.outcome,
            "reason": history.abort_reason,
            "retries": history.retries,
            "complete": history.complete,
            "records": [
                (entry.step, entry.kind, entry.name, entry.status)
                for entry in history.entries.values()
            ],
            "tries": [entry.tries for entry in history.entries.values()],
        }

    def points(self) -> list[tuple[str, int]]:
        """Return every event that a delivery appended, by type and number."""
        seen: Counter[str] = Counter()
        found = []
        for event in self.bench.app.commander.engine.history(self.run_id):
            seen[event.type] += 1
            if event.type.startswith(("run.", "step.", "input.", "checkpoint.")):
                found.append((event.type, seen[event.type]))
        return [each for each in found if each[0] not in ("run.created", "run.fenced")]

    def close(self) -> None:
        self.bench.app.commander.close()


programs = st.builds(
    Program,
    st.lists(st.sampled_from(OPERATIONS), min_size=1, max_size=5).map(tuple),
    st.sampled_from(ENDS),
)


@settings(max_examples=int(os.environ.get("TEST_EXAMPLES", "5")), deadline=None)
@given(programs, st.data())
def test_a_program_that_is_killed_at_any_event_comes_to_what_its_twin_comes_to(
    program: Program, data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as base:
        twin = World(Path(base) / "twin", program)
        twin.finish()
        story, calls, points = twin.story(), twin.calls, twin.points()
        told = rehearse(twin.bench.app.commander, twin.bench.history(twin.run_id))
        assert told.verdict is Verdict.SAME, told
        assert twin.calls == calls
        twin.close()
        for number, (event, nth) in enumerate(points):
            when: Any = data.draw(st.sampled_from(("before", "after")), label=f"{event} {nth}")
            world = World(Path(base) / str(number), program)
            world.die_at(CrashPoint(event, nth=nth, when=when, directory=world.directory))
            assert world.bench.app.commander.bootstrapper.bootstrap().refused is None
            world.finish()
            found = world.story()
            if (
                event,
                when,
            ) in IN_DOUBT:  # a try of which nobody wrote down that it failed does not count
                found["tries"] = story["tries"]
            assert found == story, (event, nth, when)
            more = world.calls - calls
            assert calls - world.calls == Counter()
            assert more.total() <= ((event, when) in IN_DOUBT), (event, nth, when, more)
            assert world.bench.app.commander.engine.verify_integrity().status.is_good
            world.close()
