import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit import CrashPoint
from tests.kit.workers import python_environment

pytestmark = pytest.mark.crash

# Appends a, b, a, b ... and tells each append once it has returned.
SCRIPT = """
import os, sys
from pathlib import Path
from celery_commander.engine import EventSourcingEngine
from tests.kit import arm
arm()
with EventSourcingEngine.open(Path("events.wal")) as log:
    for turn in range(3):
        for kind in ("step.started", "step.completed"):
            log.append(kind, {"turn": turn}, run_id=f"r-{turn}")
            print(kind, turn, flush=True)
"""


def run(directory: Path, environment: dict[str, str]) -> tuple[int, list[str]]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=directory,
        env=python_environment(environment),
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    return done.returncode, done.stdout.splitlines()


def recorded(directory: Path) -> list[tuple[str, int]]:
    from celery_commander.engine import EventSourcingEngine

    with EventSourcingEngine.open(directory / "events.wal") as log:
        return [(e.type, e.payload["turn"]) for e in log.read_from(None) if e.run_id is not None]


def test_a_process_dies_before_the_append_and_leaves_no_trace_of_it(tmp_path: Path) -> None:
    point = CrashPoint("step.completed", nth=2, when="before", directory=tmp_path)
    status, told = run(tmp_path, point.environment())
    assert status == -signal.SIGKILL
    assert point.fired
    assert told[-1] == "step.started 1"
    assert recorded(tmp_path)[-1] == ("step.started", 1)


def test_a_process_dies_after_the_append_and_before_it_can_say_so(tmp_path: Path) -> None:
    point = CrashPoint("step.completed", nth=2, when="after", directory=tmp_path)
    status, told = run(tmp_path, point.environment())
    assert status == -signal.SIGKILL
    assert told[-1] == "step.started 1"
    assert recorded(tmp_path)[-1] == ("step.completed", 1)


def test_a_point_fires_once_so_the_next_process_lives(tmp_path: Path) -> None:
    point = CrashPoint("step.started", directory=tmp_path)
    assert run(tmp_path, point.environment())[0] == -signal.SIGKILL
    status, told = run(tmp_path, point.environment())
    assert status == 0
    assert len(told) == 6
    assert point.seen == 4


def test_two_points_fire_one_after_the_other(tmp_path: Path) -> None:
    first = CrashPoint("step.started", directory=tmp_path)
    second = CrashPoint("step.completed", run_id="r-2", victim="group", directory=tmp_path)
    both = first.environment(second)
    assert run(tmp_path, both) == (-signal.SIGKILL, [])
    status, told = run(tmp_path, both)
    assert status == -signal.SIGKILL
    assert second.fired
    assert told[-1] == "step.started 2"
    assert run(tmp_path, both)[0] == 0


def test_without_a_point_nothing_is_touched(tmp_path: Path) -> None:
    status, told = run(tmp_path, {})
    assert status == 0
    assert len(told) == 6
