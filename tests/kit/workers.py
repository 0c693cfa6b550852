"""Start real Celery workers in subprocesses, and kill them as production does."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from .processes import children, descendants, kill, kill_group, wait_gone
from .waiting import PATIENCE_SECONDS, wait_until

ROOT = Path(__file__).resolve().parents[2]
WATCH = Path(__file__).with_name("watch.py")
_READY = re.compile(r"\S+@\S+ ready\.")


@dataclass(slots=True)
class Worker:
    """A worker's MAIN process, in a process group of its own."""

    process: subprocess.Popen[bytes]
    watch: subprocess.Popen[bytes]
    log_path: Path
    name: str
    _seen: set[int] = field(default_factory=set)

    @property
    def pid(self) -> int:
        """Return MAIN's pid, which is also its process group's."""
        return self.process.pid

    @property
    def running(self) -> bool:
        """Tell whether MAIN runs."""
        return self.process.poll() is None

    def log(self) -> str:
        """Return everything the worker has printed so far."""
        return self.log_path.read_text(encoding="utf-8", errors="replace")

    def tail(self, lines: int = 40) -> str:
        """Return the last lines of the log, for a failure's message."""
        return "\n".join(self.log().splitlines()[-lines:])

    def pool(self) -> list[int]:
        """Return the pids of the pool's living children, oldest first."""
        found = children(self.pid)
        self._seen.update(found)
        return found

    def wait_ready(self, seconds: float = PATIENCE_SECONDS) -> None:
        """Wait until the worker says that it is ready.

        Raises:
            DeadlinePassed: it did not in time.
            RuntimeError: it ended instead; the message quotes its log.
        """

        def ready() -> bool:
            if not self.running:
                raise RuntimeError(f"worker {self.name} ended instead of starting:\n{self.tail()}")
            return _READY.search(self.log()) is not None

        wait_until(ready, seconds=seconds, what=lambda: f"{self.name} to be ready:\n{self.tail()}")

    def wait_log(self, pattern: str, *, seconds: float = PATIENCE_SECONDS) -> re.Match[str]:
        """Return the first match of a regular expression in the log, once there is one."""
        return wait_until(
            lambda: re.search(pattern, self.log()),
            seconds=seconds,
            what=lambda: f"{pattern!r} in the log of {self.name}:\n{self.tail()}",
        )

    def kill_child(self, pid: int | None = None) -> int:
        """SIGKILL one pool child, as the out-of-memory killer does; return its pid.

        Prefer one that runs a task (pass its pid). On transports without an event loop, as the
        filesystem's, an idle child may hold the lock of the queue that all children read; killed with
        it, it leaves a pool that takes nothing more. That is Celery's, and no test of ours.
        """
        victim = wait_until(self.pool, what="a pool child")[0] if pid is None else pid
        if victim not in self.pool():
            raise ValueError(f"{victim} is no child of {self.name}: {self.pool()}")
        kill(victim)
        wait_gone([victim])
        return victim

    def kill_main(self) -> None:
        """SIGKILL MAIN alone; its children find out by themselves."""
        self._remember()
        kill(self.pid)
        self.process.wait(timeout=PATIENCE_SECONDS)

    def kill_group(self) -> None:
        """SIGKILL MAIN and all its children at one instant, as a power cut does to a container."""
        self._remember()
        kill_group(self.pid)
        self.process.wait(timeout=PATIENCE_SECONDS)
        wait_gone(self._seen)

    def stop_warm(self, seconds: float = PATIENCE_SECONDS) -> int:
        """SIGTERM MAIN, let it finish what runs, and return its exit status."""
        self._remember()
        kill(self.pid, signal.SIGTERM)
        return self.process.wait(timeout=seconds)

    def close(self) -> None:
        """End whatever is left of it, at once: a test that wants a warm stop asks for it."""
        kill(self.watch.pid)  # first: it must not kill a group whose number is free again
        self.watch.communicate()
        self.kill_group()

    def _remember(self) -> None:
        self._seen.update(descendants(self.pid))


@contextmanager
def celery_worker(
    app: str,
    directory: Path,
    *,
    env: Mapping[str, str] | None = None,
    concurrency: int = 2,
    name: str = "w1",
    options: Sequence[str] = (),
    ready_seconds: float = PATIENCE_SECONDS,
) -> Iterator[Worker]:
    """Run ``celery -A app worker`` with a prefork pool until the block ends.

    *directory* becomes its working directory and takes its log, ``<name>.log``; a second worker of the
    same name goes on in that file's successor. The repository's root is importable, so *app* may be a
    module of the tests. Should the test run be killed, watch.py ends the worker. ``ready_seconds=0``
    does not wait.
    """
    worker = start_worker(
        app, directory, env=env, concurrency=concurrency, name=name, options=options
    )
    try:
        if ready_seconds:
            worker.wait_ready(ready_seconds)
        yield worker
    finally:
        worker.close()


def start_worker(
    app: str,
    directory: Path,
    *,
    env: Mapping[str, str] | None = None,
    concurrency: int = 2,
    name: str = "w1",
    options: Sequence[str] = (),
) -> Worker:
    """Start a worker and return at once; the caller owes it a ``close()``."""
    command = [
        *(sys.executable, "-m", "celery", "-A", app),
        # Celery patches the process for gevent by the first --pool that it sees.
        *("worker", *(() if "--pool" in options else ("--pool", "prefork"))),
        *("--concurrency", str(concurrency)),
        *("--hostname", f"{name}@%h", "--loglevel", "INFO", *options),
    ]
    log_path = _fresh_log(directory, name)
    process, watch = start_watched(command, directory, python_environment(env), log_path)
    return Worker(process, watch, log_path, name)


def start_watched(
    command: Sequence[str], directory: Path, env: Mapping[str, str], log_path: Path
) -> tuple[subprocess.Popen[bytes], subprocess.Popen[bytes]]:
    """Start a program in a process group of its own, and who kills the group should this process die."""
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            command,
            cwd=directory,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    watch = subprocess.Popen(
        [sys.executable, "-S", str(WATCH), str(process.pid)],
        stdin=subprocess.PIPE,
        start_new_session=True,
    )
    return process, watch


def python_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return an environment in which a subprocess imports what this process can, and the tests."""
    inherited = os.environ.get("PYTHONPATH", "")
    path = os.pathsep.join(
        [str(ROOT), *(str(Path(part).resolve()) for part in inherited.split(os.pathsep) if part)]
    )
    environment = {key: value for key, value in os.environ.items() if not _belongs_to_us(key)}
    return environment | {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1"} | dict(extra or {})


def _belongs_to_us(key: str) -> bool:
    # A developer's own settings must not decide what a test's worker does.
    return key.startswith(("CELERY_", "COMMANDER_"))


def _fresh_log(directory: Path, name: str) -> Path:
    number = 1
    while (directory / f"{name}.{number}.log").exists():
        number += 1
    return directory / f"{name}.{number}.log"
