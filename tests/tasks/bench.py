"""Deliver one run's message again and again, through Celery's own tracer, in this process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from celery import Celery
from celery.app.trace import build_tracer

from celery_commander.engine import RunHistory, State
from celery_commander.tasks import Commander, Detail, RecoveryResult
from celery_commander.tasks.message import of_created


@dataclass
class Bench:
    """An app whose deliveries the test makes by hand."""

    app: Celery
    calls: list[Any]

    def task(self, body: Callable[..., Any], **options: Any) -> Any:
        name = options.pop("name", body.__name__)
        return self.app.task(name=name, durable=True, shared=False, **options)(body)

    def send(self, name: str, *args: Any) -> str:
        return str(self.app.tasks[name].apply_async(args).id)

    def deliver(self, run_id: str, **headers: Any) -> Any:
        """Trace the run's message as a pool process would; return (state, value) as Celery saw it."""
        message = of_created(self.history(run_id).created)
        args, kwargs, embed = message.body
        task = self.app.tasks[message.task]
        request = {
            **message.headers,
            **embed,
            "delivery_info": {},
            "hostname": "here",
            **headers,
        }
        request |= {"args": args, "kwargs": kwargs}
        tracer = build_tracer(task.name, task, app=self.app)
        value, info, _, _ = tracer(run_id, args, kwargs, request)
        return ("SUCCESS", value) if info is None else (info.state, info.retval)

    def run(self, body: Callable[..., Any], *args: Any, **options: Any) -> Any:
        self.task(body, **options)
        self.run_id = self.send(body.__name__, *args)
        return self.deliver(self.run_id)

    def history(self, run_id: str) -> RunHistory:
        found: RunHistory = self.app.commander.history(run_id)
        return found

    def state(self) -> State:
        state = self.history(self.run_id).state
        assert state is not None
        return state.state


def make_bench(tmp_path: Path) -> Bench:
    app = Celery("attempts", broker="memory://", backend="cache+memory://")
    app.conf.task_default_queue = tmp_path.name
    Commander(app, state_directory=tmp_path / "state")
    return Bench(app, [])


def passed(refused: str | None = None, *details: Detail) -> RecoveryResult:
    return RecoveryResult(len(details), 0, 0, 0, details, refused)
