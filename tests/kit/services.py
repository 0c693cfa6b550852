"""Real Redis, RabbitMQ and PostgreSQL for tests: found, started on free ports, stopped again.

``with running_service("redis") as url`` is the whole of it. A service is looked for in this order:

1. ``COMMANDER_TEST_REDIS_URL`` / ``_RABBITMQ_URL`` / ``_POSTGRES_URL``: a server that runs already.
   It is used as it is and emptied between tests: give one that nobody misses.
2. Where the systems' packages put the programs, and on PATH.
3. Nowhere: :class:`ServiceMissing`, with the command that installs it. tests/conftest.py turns that
   into a skip at home and into a failure where CI=true.

A started server lives in a directory of its own under the system's temporary one, listens on
loopback only, and ends with the process that started it, even if that is killed (guard.py).
"""

from __future__ import annotations

import glob
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from . import servers
from .waiting import DeadlinePassed, wait_until

GUARD = Path(__file__).with_name("guard.py")
STOP_SECONDS = 20
START_TRIES = 3  # a machine under load may be too slow once


@dataclass(frozen=True, slots=True)
class Service:
    """Know where a service's programs are, and how to run it in a directory."""

    name: str
    package: str
    programs: tuple[str, ...]
    places: tuple[str, ...]
    plan: Callable[[servers.Site], servers.Plan]
    start_seconds: float

    @property
    def variable(self) -> str:
        """Return the environment variable that names a running server."""
        return f"COMMANDER_TEST_{self.name.upper()}_URL"

    @property
    def given(self) -> str | None:
        """Return the URL of a server that is to be used as it runs, if the variable names one."""
        return os.environ.get(self.variable) or None

    @property
    def hint(self) -> str:
        """Return how to get it."""
        return f"sudo apt-get install {self.package}   (or set {self.variable})"

    def find(self) -> dict[str, str] | None:
        """Return the full path of each program, or None if one is missing."""
        found = {program: self._find_one(program) for program in self.programs}
        missing = [program for program, path in found.items() if path is None]
        return None if missing else {program: str(path) for program, path in found.items()}

    def _find_one(self, program: str) -> str | None:
        # The packages' own places first: on PATH they put wrappers that insist on a user and a directory.
        for pattern in self.places:
            for place in sorted(glob.glob(pattern), reverse=True):
                if os.access(os.path.join(place, program), os.X_OK):
                    return os.path.join(place, program)
        return shutil.which(program)


SERVICES: Mapping[str, Service] = {
    service.name: service
    for service in (
        Service("redis", "redis-server", ("redis-server",), (), servers.redis, 60),
        Service(
            "rabbitmq",
            "rabbitmq-server",
            ("rabbitmq-server", "epmd"),
            ("/usr/lib/rabbitmq/bin",),
            servers.rabbitmq,
            90,
        ),
        Service(
            "postgres",
            "postgresql",
            ("initdb", "postgres"),
            ("/usr/lib/postgresql/*/bin",),
            servers.postgres,
            60,
        ),
    )
}


class ServiceMissing(Exception):
    """A service is neither installed nor named by its variable."""

    def __init__(self, service: Service) -> None:
        super().__init__(f"{service.name} is not installed: {service.hint}")
        self.service = service


class ServiceBroken(Exception):
    """A service is installed but did not start; the message quotes its output."""


@contextmanager
def running_service(name: str) -> Iterator[str]:
    """Yield the URL of a running service: redis://, amqp:// or postgresql://.

    Raises:
        ServiceMissing: there is none to run.
        ServiceBroken: it did not answer within its bound, tried three times.
    """
    service = SERVICES[name]
    if service.given:
        yield service.given
        return
    programs = service.find()
    if programs is None:
        raise ServiceMissing(service)
    with ExitStack() as stack:
        yield _started(service, programs, stack)


def _started(service: Service, programs: dict[str, str], stack: ExitStack) -> str:
    for attempt in range(1, START_TRIES + 1):
        with ExitStack() as this_try:
            directory = this_try.enter_context(_directory(service.name))
            plan = service.plan(servers.Site(directory, programs))
            try:
                _run(plan, directory, service.start_seconds, this_try)
            except ServiceBroken:
                if attempt == START_TRIES:
                    raise
            else:
                stack.push(this_try.pop_all())
                return plan.url
    raise AssertionError("unreachable: the last try returns or raises")


@contextmanager
def _directory(name: str) -> Iterator[Path]:
    # Not pytest's tmp_path: only its owner may enter that one, and a server may have to be another user.
    path = Path(tempfile.mkdtemp(prefix=f"commander-{name}-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _run(plan: servers.Plan, directory: Path, seconds: float, stack: ExitStack) -> None:
    if plan.user is not None:
        shutil.chown(directory, plan.user)
    output = directory / "output.log"
    log = stack.enter_context(output.open("wb"))
    launcher = _Launcher(plan, directory, log.fileno())
    try:
        if plan.prepare and launcher.start(plan.prepare).wait(timeout=seconds) != 0:
            raise ServiceBroken(f"{plan.prepare[0]} failed")
        if plan.helper:
            helper = launcher.start(plan.helper)
            stack.callback(_stop, helper, signal.SIGTERM)
            _await(lambda: servers.listens(plan.helper_port), helper, seconds)
        server = launcher.start(plan.command)
        stack.callback(_stop, server, plan.stop_signal)
        _await(plan.answers, server, seconds)
    except (ServiceBroken, DeadlinePassed, subprocess.TimeoutExpired) as error:
        raise ServiceBroken(f"{plan.url}: {error}\n{_tail(output)}") from error


def _await(answers: Callable[[], bool], process: subprocess.Popen[bytes], seconds: float) -> None:
    def up() -> bool:
        if process.poll() is not None:
            raise ServiceBroken(f"it ended at its start with status {process.returncode}")
        return answers()

    wait_until(up, seconds=seconds, what="its answer")


@dataclass(frozen=True, slots=True)
class _Launcher:
    plan: servers.Plan
    directory: Path
    log: int
    environment: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(
            self,
            "environment",
            {
                "PATH": os.environ["PATH"],
                "HOME": str(self.directory),
                "LC_ALL": "C.UTF-8",
                **self.plan.environment,
            },
        )

    def start(self, command: list[str]) -> subprocess.Popen[bytes]:
        """Start a command as the plan's user, tied to the life of this process."""
        user = [] if self.plan.user is None else ["--user", self.plan.user]
        return subprocess.Popen(
            [sys.executable, str(GUARD), *user, self.plan.stop_signal.name, *command],
            cwd=self.directory,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _stop(process: subprocess.Popen[bytes], politely: signal.Signals) -> None:
    """End one server by its pid: politely, then for certain."""
    process.send_signal(politely)
    try:
        process.wait(timeout=STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _tail(output: Path) -> str:
    return "\n".join(output.read_text(encoding="utf-8", errors="replace").splitlines()[-30:])
