"""Learn which tests execute a line of the log, and how long each takes: a plugin of pytest, and its reader.

    coverage run --data-file FILE -m pytest -p tests.kit.covering ...

What runs in another process is not seen; who asks for the tests of a line has to run the others after them.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from pathlib import Path

import coverage
import pytest

DURATIONS = "COMMANDER_TEST_DURATIONS"

_seconds: dict[str, float] = defaultdict(float)


def pytest_runtest_logstart(nodeid: str) -> None:
    """Count all that runs from now on as run by this test, its fixtures too."""
    running = coverage.Coverage.current()
    if running is not None:
        running.switch_context(nodeid)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add up the phases of a test."""
    _seconds[report.nodeid] += report.duration


def pytest_sessionfinish() -> None:
    """Leave the durations where they were asked for."""
    path = os.environ.get(DURATIONS)
    if path is not None:
        Path(path).write_text(json.dumps(_seconds), encoding="utf-8")


class Covering:
    """Answer which tests execute a line, the shortest first."""

    def __init__(self, data_file: Path, durations: Path) -> None:
        self.seconds: dict[str, float] = json.loads(durations.read_text(encoding="utf-8"))
        self._data = coverage.CoverageData(str(data_file))
        self._data.read()
        self._files = sorted(self._data.measured_files())

    def tests(self, path: str, line: int) -> list[str]:
        """Return the tests that execute a line of a file, as `engine/wal/seal.py`, in their own process."""
        name = next((each for each in self._files if each.endswith(f"/{path}")), None)
        found = self._data.contexts_by_lineno(name).get(line, []) if name is not None else []
        return sorted(filter(None, found), key=lambda test: self.seconds.get(test, 0.0))
