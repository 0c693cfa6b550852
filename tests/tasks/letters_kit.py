"""Runs that end up with dead letters, and the words that people say on them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from celery_commander.engine import DeadLetter, RunState
from celery_commander.tasks import DeadLetters, step
from tests.engine.forked import Forked
from tests.tasks.bench import Bench


class World:
    """What the bodies of these tests act on; a step's process dies here when it is told to."""

    def __init__(self, witness: Path) -> None:
        self.witness = witness
        self.dies = True
        self.steps = ["charge"]

    @property
    def calls(self) -> list[str]:
        return self.witness.read_text().splitlines()

    def note(self, what: str) -> None:
        with self.witness.open("a") as file:
            file.write(f"{what}\n")

    def charge(self, what: str) -> str:
        self.note(what)
        if self.dies:
            os.kill(os.getpid(), signal.SIGKILL)
        return f"{what} charged"

    def body(self) -> Callable[[str], Any]:
        act = step(name="charge", in_doubt="park", compensate="undo")(self.charge)
        after = step(name="ship")(lambda: self.note("shipped"))

        def pay(what: str) -> str:
            for name in self.steps[:-1]:
                step(name=name)(lambda: None)()
            charged = act(what)
            after()
            return f"{charged}, shipped"

        return pay


def let_die(bench: Bench, run_id: str) -> None:
    """Deliver a run in a process that is killed inside its step."""
    bench.app.commander.close()
    with Forked(lambda _: bench.deliver(run_id)) as process, pytest.raises(EOFError):
        process.hear()


def ended(bench: Bench, letters: DeadLetters, *ends: tuple[str, dict[str, Any]]) -> DeadLetter:
    act = step(name="act", compensate="undo")(lambda: "done")

    def fail(what: str) -> None:
        act()
        raise LookupError(what)

    bench.run(fail, "7 euro")
    for event_type, data in ends:
        state = bench.history(bench.run_id).state
        assert state is not None
        data = {"generation": state.generation, **data}
        bench.app.commander.engine.append(
            event_type, data, run_id=bench.run_id, token=state.token, n=state.n + 1
        )
    return letters.list(open_only=False)[0]


def types(bench: Bench, run_id: str | None = None) -> list[str]:
    return [e.type for e in bench.app.commander.engine.history(run_id or bench.run_id)]


def state_of(bench: Bench, run_id: str | None = None) -> RunState:
    state = bench.history(run_id or bench.run_id).state
    assert state is not None
    return state


def say(bench: Bench, letter: DeadLetter, answer: Any, **more: str) -> None:
    word = {"entry": letter.id, "by": "ann@shop", "answer": answer, **more}
    bench.app.commander.engine.append("operator.retried", word, run_id=letter.run_id)
