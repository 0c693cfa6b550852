"""Give each test a deployment of its own: a directory, an app to publish with, and workers that can be killed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from celery_commander.engine import RunHistory, RunState, State
from celery_commander.tasks import install
from tests.celery.durable_app import Witness, make_app
from tests.kit import PATIENCE_SECONDS, Worker, celery_worker, wait_until

MODULE = "tests.celery.durable_app"

STEPS = ("one", "two", "three")

ENDED = (State.COMMITTED, State.COMPENSATED, State.STUCK)


@dataclass(slots=True)
class Deployment:
    """One store with its app and workers."""

    directory: Path
    broker: str | None
    stack: ExitStack
    settings: dict[str, Any] = field(default_factory=dict)
    app: Celery = field(init=False)
    witness: Witness = field(init=False)

    def __post_init__(self) -> None:
        self.app = make_app(self.directory, self.broker, **self.settings)
        self.witness = Witness(self.directory)

    def worker(
        self,
        name: str = "w1",
        *,
        concurrency: int = 2,
        env: dict[str, str] | None = None,
        ready_seconds: float = PATIENCE_SECONDS,
        pool: str = "prefork",
        options: Sequence[str] = (),
        module: str = MODULE,
    ) -> Worker:
        return self.stack.enter_context(
            celery_worker(
                module,
                self.directory,
                env=self.environment() | (env or {}),
                concurrency=concurrency,
                name=name,
                ready_seconds=ready_seconds,
                options=["--pool", pool, *options],
            )
        )

    def environment(self) -> dict[str, str]:
        """Return what makes a process of the same app find this deployment."""
        environment = {"TEST_DIRECTORY": str(self.directory), "TEST_BROKER": self.broker or ""}
        settings = self.settings.items()
        return environment | {f"COMMANDER_{key.upper()}": str(value) for key, value in settings}

    def send(self, task: str, *args: Any, **options: Any) -> str:
        return str(self.app.tasks[task].apply_async(args, **options).id)

    def history(self, run_id: str) -> RunHistory:
        history: RunHistory = self.app.commander.history(run_id)
        return history

    def state(self, run_id: str) -> RunState:
        state = self.history(run_id).state
        assert state is not None
        return state

    def wait_ended(self, *run_ids: str, seconds: float = PATIENCE_SECONDS) -> list[RunState]:
        """Return the runs' states once each has its outcome and Celery was told it."""

        def ended() -> bool:
            return all(self._is_over(run_id) for run_id in run_ids)

        wait_until(ended, seconds=seconds, what=lambda: self._told(run_ids))
        return [self.state(run_id) for run_id in run_ids]

    def wait_mark(self, *words: object, times: int = 1, seconds: float = PATIENCE_SECONDS) -> None:
        def seen() -> bool:
            return self.witness.count(*words) >= times

        wait_until(
            seen, seconds=seconds, what=lambda: f"{words} in {self.witness.lines()}\n{self.logs()}"
        )

    def wait_result(self, run_id: str, *, seconds: float = PATIENCE_SECONDS) -> Any:
        """Return what Celery's own result backend holds of a run, once there is something."""
        result = self.app.AsyncResult(run_id)
        wait_until(
            result.ready, seconds=seconds, what=lambda: f"the result of {run_id}\n{self.logs()}"
        )
        return result

    def did(self, who: str) -> list[int]:
        """Return how often each of the three steps had its effect."""
        return [self.witness.count("did", name, who) for name in STEPS]

    def types(self, run_id: str) -> list[str]:
        return [event.type for event in self.app.commander.engine.history(run_id)]

    def logs(self) -> str:
        return "\n".join(path.read_text()[-3000:] for path in sorted(self.directory.glob("*.log")))

    def _told(self, run_ids: Sequence[str]) -> str:
        states = "\n".join(str(self.state(run_id)) for run_id in run_ids)
        recovery = self.app.commander.bootstrapper.bootstrap(dry_run=True)
        return f"the end of\n{states}\nrecovery would: {recovery}\n{self.logs()}"

    def _is_over(self, run_id: str) -> bool:
        state = self.history(run_id).state
        return state is not None and state.state in ENDED and state.delivered


@pytest.fixture
def deploy(tmp_path: Path) -> Iterator[Callable[..., Deployment]]:
    """Give a maker of deployments; all their workers are ended with the test."""
    with ExitStack() as stack:

        def make(broker: str | None = None, **settings: Any) -> Deployment:
            directory = tmp_path / f"d{len(list(tmp_path.iterdir()))}"
            directory.mkdir()
            return Deployment(directory, broker, stack, settings)

        yield make


@pytest.fixture
def deployment(deploy: Callable[..., Deployment]) -> Deployment:
    """Give one deployment without a server: messages in files, the log, SQLite."""
    return deploy()


@pytest.fixture(autouse=True)
def _stores_are_closed() -> Iterator[None]:
    """Close what the apps of a test opened in this process: their descriptors add up."""
    yield
    for commander in list(install._commanders):
        commander.close()
