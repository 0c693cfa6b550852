"""One real Celery worker, MAIN and children, in a process group of its own that can be killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OPTIONS = ("--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel=INFO")
CHILDREN = 2


class WorkerGroup:
    """A prefork worker and everything that it forked."""

    def __init__(self, number: int, home: Path, environment: Mapping[str, str]) -> None:
        """Start worker `number`; what it says goes to a file in `home`."""
        self.number = number
        self.log_path = home / f"worker-{number}.log"
        self.started_at = time.monotonic()
        command = [sys.executable, "-m", "celery", "-A", "examples.shop", "worker"]
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, f"--concurrency={CHILDREN}", f"--hostname=demo-{number}@%h", *OPTIONS],
                cwd=ROOT,
                env=dict(environment),
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def ended(self) -> int | None:
        """Return MAIN's exit status (negative: the signal that ended it), or None while it lives."""
        return self._process.poll()

    def kill(self) -> float:
        """SIGKILL the whole group at once and return the moment (CLOCK_MONOTONIC)."""
        at = time.monotonic()
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(timeout=10)
        return at

    def stop(self, seconds: float = 15.0) -> None:
        """Ask for a warm stop, as an operator would; kill what is left after `seconds`."""
        if self.ended is None:
            self._process.terminate()
        try:
            self._process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.kill()

    def last_words(self, lines: int = 15) -> str:
        """Return the end of what the worker said."""
        text = self.log_path.read_text(encoding="utf-8", errors="replace")
        return "\n".join(text.splitlines()[-lines:])


def environment(settings: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment with `settings`, and with our folder first on the path."""
    inherited = [
        str(Path(entry).absolute()) for entry in _entries(os.environ.get("PYTHONPATH", ""))
    ]
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *inherited])} | dict(settings)


def _entries(path: str) -> list[str]:
    return [entry for entry in path.split(os.pathsep) if entry]
