"""Run tests until one fails, and say which: a plugin of pytest, and who reads what it writes.

python -m pytest -x -p tests.kit.noticing ...
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

PROGRESS = "COMMANDER_TEST_PROGRESS"
AT_IMPORT = "the import of the tests"
_OPTIONS = ("-x", "-q", "-p", "no:cacheprovider", "-p", "tests.kit.noticing", "-m", "not slow")
_LOOK_SECONDS = 0.05


def pytest_runtest_logstart(nodeid: str) -> None:
    """Say which test runs now."""
    _say("runs", nodeid)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Say which one failed, whatever part of it."""
    if report.failed:
        _say("failed", report.nodeid)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Say which file could not even be read."""
    if report.failed:
        _say("failed", report.nodeid)


def _say(word: str, test: str) -> None:
    path = os.environ.get(PROGRESS)
    if path is not None:
        with open(path, "a", encoding="utf-8") as progress:
            progress.write(f"{word} {test}\n")


@dataclass(frozen=True, slots=True)
class Runner:
    """Run tests of one tree, each run in a process of its own."""

    tree: Path
    variables: Mapping[str, str]

    def noticed(
        self,
        tests: Sequence[str],
        *,
        silence_seconds: float,
        before: Sequence[str] = ("-m", "pytest"),
        without: Sequence[str] = (),
    ) -> tuple[str, bool]:
        """Return the first test that fails, an empty text when none does, and whether it hung.

        One that runs for longer than `silence_seconds` hangs. `before` is what Python runs; `without` names tests
        that are left out.
        """
        left_out = [option for test in without for option in ("--deselect", test)]
        with tempfile.TemporaryDirectory() as directory:
            listed, progress = Path(directory) / "tests.txt", Path(directory) / "progress"
            listed.write_text("\n".join(tests), encoding="utf-8")
            progress.touch()
            process = subprocess.Popen(
                [sys.executable, *before, *_OPTIONS, *left_out, f"@{listed}"],
                cwd=self.tree,
                env=os.environ | self.variables | {PROGRESS: str(progress)},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            hung = not _ended(process, progress, silence_seconds)
            return _verdict(process.returncode, progress), hung

    def names(self, tests: Sequence[str]) -> frozenset[str]:
        """Return the name of each test, as pytest takes it."""
        command = [sys.executable, "-m", "pytest", *_OPTIONS, "--collect-only", *tests]
        environment = os.environ | self.variables
        found = subprocess.run(
            command, cwd=self.tree, env=environment, capture_output=True, text=True, check=True
        )
        return frozenset(line for line in found.stdout.splitlines() if "::" in line)

    def fails(self, test: str, silence_seconds: float) -> bool:
        """Return whether a test fails, or hangs, when it runs alone."""
        return bool(self.noticed([test], silence_seconds=silence_seconds)[0])


def _ended(process: subprocess.Popen[bytes], progress: Path, silence_seconds: float) -> bool:
    """Wait for the process; False when it had to be killed since no test has begun for too long."""
    size, since = 0, time.monotonic()
    while process.poll() is None:
        if progress.stat().st_size != size:
            size, since = progress.stat().st_size, time.monotonic()
        elif time.monotonic() - since > silence_seconds:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return False
        time.sleep(_LOOK_SECONDS)
    return True


def _verdict(code: int, progress: Path) -> str:
    told = [line.split(" ", 1) for line in progress.read_text(encoding="utf-8").splitlines()]
    failed = [test for word, test in told if word == "failed"]
    runs = [test for word, test in told if word == "runs"]
    if failed:
        return failed[0]
    if code in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        return ""
    return runs[-1] if runs else AT_IMPORT
