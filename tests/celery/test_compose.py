"""What docker-compose.yml would run, run here: each service's own command and health check, on local servers."""

from __future__ import annotations

import re
import subprocess
import sys
import urllib.request
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from celery import Celery

from celery_commander.engine import State
from celery_commander.tasks import Commander
from tests.kit import PATIENCE_SECONDS, wait_until
from tests.kit.group import Group, process_group
from tests.kit.servers import free_port
from tests.kit.workers import python_environment
from tests.source_tree import ROOT

pytestmark = [pytest.mark.celery, pytest.mark.slow]

SERVICES: dict[str, Any] = yaml.safe_load(
    (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
)["services"]
OURS = ("worker", "beat", "flower")


@dataclass(frozen=True, slots=True)
class Host:
    """Stand in for the network and the volume that compose would make."""

    directory: Path
    broker: str
    results: str
    port: int

    def here(self, text: str) -> str:
        """Return a text of the compose file as it reads on this machine."""
        text = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)
        text = text.replace("/var/lib/commander", str(self.directory))
        return text.replace("5555", str(self.port)).replace("0.0.0.0", "127.0.0.1")

    def command(self, words: list[str]) -> list[str]:
        """Return a command with this interpreter's own programs."""
        program, *rest = (self.here(word) for word in words)
        ours = {"celery": [sys.executable, "-m", "celery"], "python": [sys.executable]}
        return [*ours.get(program, [program]), *rest]

    def environment(self, service: str) -> dict[str, str]:
        told = {key: self.here(value) for key, value in SERVICES[service]["environment"].items()}
        assert told["BROKER_URL"].startswith("amqp://")
        assert told["RESULT_BACKEND"].startswith("redis://")
        told |= {"BROKER_URL": self.broker, "RESULT_BACKEND": self.results}
        quick = {"COMMANDER_HEALTH_CHECK_SECONDS": "1", "COMMANDER_SWEEP_SECONDS": "1"}
        return python_environment(told | quick)

    def start(self, service: str, stack: ExitStack) -> Group:
        command = self.command(SERVICES[service]["command"])
        environment = self.environment(service)
        return stack.enter_context(
            process_group(command, self.directory, name=service, env=environment)
        )

    def is_healthy(self, service: str) -> bool:
        kind, *words = SERVICES[service]["healthcheck"]["test"]
        assert kind == "CMD"
        done = subprocess.run(
            self.command(words),
            cwd=self.directory,
            env=self.environment(service),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=100,
        )
        self.check_of(service).write_text(f"{done.returncode}: {done.stdout}", encoding="utf-8")
        return done.returncode == 0

    def check_of(self, service: str) -> Path:
        """Return where the last answer of a service's health check lies."""
        return self.directory / f"{service}.check"

    def told(self, service: str, group: Group) -> str:
        return f"{service} to be healthy; it is\n{self.check_of(service).read_text()}\n{group}"


@pytest.fixture(scope="module")
def host(
    tmp_path_factory: pytest.TempPathFactory, _rabbitmq_server: str, _redis_server: str
) -> Host:
    return Host(tmp_path_factory.mktemp("compose"), _rabbitmq_server, _redis_server, free_port())


def test_worker_beat_and_flower_start_as_described_and_become_healthy(host: Host) -> None:
    if not host.broker or not host.results:
        pytest.skip("needs RabbitMQ and Redis")
    with ExitStack() as stack:
        groups = {name: host.start(name, stack) for name in OURS}
        for name, group in groups.items():
            wait_until(
                partial(host.is_healthy, name),
                seconds=120,
                what=partial(host.told, name, group),
            )
        app = client(host)
        run = app.send_task("examples.service.welcome", ["Ann"])
        assert run.get(timeout=PATIENCE_SECONDS)["said"].startswith("Hello, Ann!")
        state = app.commander.history(run.id).state
        assert state is not None
        assert state.state is State.COMMITTED

        def page() -> str:
            url = f"http://127.0.0.1:{host.port}/durable-runs"
            return str(urllib.request.urlopen(url, timeout=10).read().decode())

        wait_until(lambda: run.id in page(), what="the run on Flower's page")
        rounds = app.commander.store.rounds
        wait_until(
            lambda: rounds.last("check_health/service") is not None,
            what=lambda: f"a health check by beat:\n{groups['beat'].tail()}",
        )
        assert all(group.running for group in groups.values())
        app.commander.close()


def client(host: Host) -> Celery:
    app = Celery("service", broker=host.broker, backend=host.results)
    Commander(app, state_directory=host.directory / "state")

    @app.task(name="examples.service.welcome", durable=True, shared=False)
    def welcome(name: str) -> None:
        """Stand for the task of the worker."""

    return app


def test_a_health_check_fails_where_nothing_runs(tmp_path: Path, host: Host) -> None:
    nobody = Host(tmp_path, host.broker, host.results, free_port())

    assert [nobody.is_healthy(service) for service in OURS] == [False] * 3
