"""A body whose code a test changes between two attempts, and what it saved."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from celery_commander.engine import (
    Event,
)
from celery_commander.tasks import current_run, step
from tests.tasks.bench import Bench


def saves(*states: Any) -> Callable[[Any], None]:
    """Return what saves all of these at one place."""

    def save(_: Any) -> None:
        for state in states:
            current_run.checkpoint(state)

    return save


class Flow:
    """A body whose code the test changes: names before and behind its checkpoint, and how it begins."""

    def __init__(self, bench: Bench, tmp_path: Path) -> None:
        self.bench = bench
        self.database = tmp_path / "state" / "checkpoints.sqlite"
        self.before: Sequence[str] = ("a", "b")
        self.behind: Sequence[str] = ("c",)
        self.begins: Callable[[Any], Any] = lambda default: current_run.restored(default)
        self.save: Callable[[Any], None] = lambda state: current_run.checkpoint(state)
        self.state: Any = None
        self.ends = False
        self.got: list[Any] = []
        self.calls: list[Any] = []

        @step
        def act(name: str) -> str:
            self.calls.append((name, current_run.idempotency_key.rpartition(":")[2]))
            return name.upper()

        self.act = act

    def body(self) -> Callable[..., Any]:
        def flow(task: Any) -> list[Any]:
            state = self.begins(None)
            self.got.append(state)
            done = [self.act(name) for name in self.before] if state is None else ["restored"]
            if state is None:
                self.save(self.state or {"done": done})
            done += [self.act(name) for name in self.behind]
            if not self.ends:
                raise task.retry(countdown=0)
            return done

        return flow

    def start(self) -> str:
        self.bench.task(self.body(), bind=True, max_retries=None)
        self.bench.run_id = self.bench.send("flow")
        return self.deliver()

    def deliver(self) -> str:
        return str(self.bench.deliver(self.bench.run_id)[0])

    def events(self, type: str) -> list[Event]:
        events = self.bench.app.commander.engine.history(self.bench.run_id)
        return [event for event in events if event.type == type]

    def reason(self) -> str:
        return str(self.events("run.paused")[-1].payload["reason"])

    def change(self, statement: str) -> None:
        connection = sqlite3.connect(self.database)
        connection.execute(statement)
        connection.commit()
        connection.close()


def at(text: str) -> list[tuple[str, str]]:
    """Return calls by name and index: "a0 b1"."""
    return [(word[0], word[1:]) for word in text.split()]
