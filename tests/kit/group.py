"""Run a program in a process group of its own, which ends with the block, and with the test run."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .processes import descendants, kill, kill_group
from .workers import start_watched

STOP_SECONDS = 30


@dataclass(slots=True)
class Group:
    """A program and whatever it has started."""

    process: subprocess.Popen[bytes]
    log_path: Path

    @property
    def running(self) -> bool:
        """Tell whether the program itself runs."""
        return self.process.poll() is None

    def __str__(self) -> str:
        return self.tail()

    def log(self) -> str:
        """Return everything that it has printed so far."""
        return self.log_path.read_text(encoding="utf-8", errors="replace")

    def tail(self, lines: int = 40) -> str:
        """Return the last lines that it has printed, for a failure's message."""
        return "\n".join(self.log().splitlines()[-lines:])

    def stop(self) -> None:
        """End it: politely, then whatever is left of it, also what has left its group."""
        started = descendants(self.process.pid)
        kill(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            pass  # killed with its group below
        kill_group(self.process.pid)
        for pid in started:
            kill(pid)
        self.process.wait(timeout=STOP_SECONDS)


@contextmanager
def process_group(
    command: Sequence[str],
    directory: Path,
    *,
    name: str,
    env: Mapping[str, str] | None = None,
) -> Iterator[Group]:
    """Run a command in *directory* until the block ends; its output goes to `<name>.<number>.log` there."""
    number = len(list(directory.glob(f"{name}.*.log"))) + 1
    log_path = directory / f"{name}.{number}.log"
    process, watch = start_watched(command, directory, os.environ if env is None else env, log_path)
    group = Group(process, log_path)
    try:
        yield group
    finally:
        kill(watch.pid)  # first: it must not kill a group whose number is free again
        watch.communicate()
        group.stop()
