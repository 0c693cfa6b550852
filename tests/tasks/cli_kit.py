"""An app whose log the command line looks at, and the ways in which the tests ask."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from click.testing import CliRunner, Result

from celery_commander.engine import NewEvent, encode
from celery_commander.tasks import Commander, Undo, step
from celery_commander.tasks.cli import commander as commands

DONE, HALF, OPEN = "run-done", "run-half", "run-open"


def invoke(app: Celery | None, *arguments: str) -> Result:
    return CliRunner().invoke(commands, arguments, obj=SimpleNamespace(app=app))


def answer(app: Celery | None, *arguments: str) -> Any:
    result = invoke(app, *arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def make_app(state: Path, **settings: Any) -> Celery:
    app = Celery("cli", broker="memory://", backend="cache+memory://")
    Commander(app, state_directory=state, **settings)

    @app.task(name="cli.refund", shared=False)
    def refund(undo: Undo) -> None:
        """Undo nothing; the commands only look."""

    @step(name="charge", compensate=refund)
    def charge(cents: int) -> str:
        return f"receipt over {cents}"

    @app.task(name="cli.pay", durable=True, shared=False)
    def pay(cents: int) -> str:
        return charge(cents)

    return app


def make_log(app: Celery) -> Path:
    """Write a finished run, one left after its step, one left inside it; return the log's path."""
    app.commander.engine.append_many([*life(DONE), *life(HALF)[:4], *life(OPEN)[:3]])
    return Path(app.commander.engine_settings.event_sourcing_wal)


def life(run_id: str) -> list[NewEvent]:
    message = {
        "headers": {"id": run_id, "task": "cli.pay", "lang": "py"},
        "properties": {"correlation_id": run_id, "delivery_mode": 2},
        "body": [[4200], {}, {}],
        "exchange": "",
        "routing_key": "celery",
        "queue": "celery",
        "options": {},
    }
    created = {"task": "cli.pay", "message": message, "namespace": "cli", "due": None, "key": None}
    charged = {
        "step": 0, "kind": "step", "name": "charge", "digest": "d", "key": f"{run_id}:0",
        "args": encode([4200]), "kwargs": encode({}), "undo": "cli.refund", "resolve": False,
        "retry_in_doubt": False, "in_doubt": "abort", "attempt": 1,
    }  # fmt: skip
    owner: list[tuple[str, Mapping[str, Any]]] = [
        ("run.started", {"task": "cli.pay", "attempt": 1, "holder": "worker-1@gone"}),
        ("step.started", charged),
        ("step.completed", {"step": 0, "result": encode("top secret receipt")}),
        ("run.committed", {"result": encode("top secret receipt")}),
        ("run.delivered", {"outcome": "COMMITTED"}),
    ]
    return [
        NewEvent("run.created", created, run_id=run_id),
        *(NewEvent(t, d, run_id=run_id, token=1, n=n) for n, (t, d) in enumerate(owner, 1)),
    ]


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def forbid(monkeypatch: pytest.MonkeyPatch, call: str, path: Path) -> None:
    """Have a call of `os` refuse the path and what is below it; root is refused nothing by modes."""
    really = getattr(os, call)

    def refuse(asked: Any, *arguments: Any, **options: Any) -> Any:
        if str(asked).startswith(str(path)):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(asked))
        return really(asked, *arguments, **options)

    monkeypatch.setattr(os, call, refuse)


def snapshot(directory: Path) -> dict[str, bytes]:
    files = (path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


def middle_of_line(path: Path, number: int) -> int:
    """Return an offset inside the payload of a line, the header line being 0."""
    lines = path.read_bytes().splitlines(keepends=True)
    return sum(len(line) for line in lines[:number]) + len(lines[number]) - 20
