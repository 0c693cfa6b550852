import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit import alive, celery_worker, kill, wait_gone, wait_until
from tests.kit.workers import python_environment

APP = "tests.kit.sample_app"
pytestmark = pytest.mark.celery


def send(directory: Path, task: str, *args: object) -> None:
    """Publish from a process of its own, as a web server does."""
    code = f"from {APP} import {task}; {task}.delay(*{args!r})"
    subprocess.run(
        [sys.executable, "-c", code], cwd=directory, env=python_environment(), check=True
    )


def pid_in(path: Path) -> int:
    return wait_until(lambda: path.exists() and int(path.read_text() or 0), what=f"{path.name}")


def test_a_real_worker_runs_a_task_in_a_pool_child(tmp_path: Path) -> None:
    with celery_worker(APP, tmp_path) as worker:
        send(tmp_path, "note", str(tmp_path / "ran"))
        assert pid_in(tmp_path / "ran") in worker.pool()
        assert len(worker.pool()) == 2
        assert os.getpgid(worker.pid) == worker.pid
        assert all(os.getpgid(child) == worker.pid for child in worker.pool())

        assert worker.stop_warm() == 0
        assert not worker.running


def test_a_killed_child_is_replaced_and_a_killed_group_leaves_nobody(tmp_path: Path) -> None:
    with celery_worker(APP, tmp_path) as worker:
        send(tmp_path, "hold", str(tmp_path / "first"), 60)
        victim = worker.kill_child(pid_in(tmp_path / "first"))
        assert not alive(victim)
        wait_until(lambda: len(set(worker.pool()) - {victim}) == 2, what="a new child")

        send(tmp_path, "hold", str(tmp_path / "second"), 60)
        holder = pid_in(tmp_path / "second")
        everybody = {worker.pid, *worker.pool()}
        worker.kill_group()
        assert holder in everybody
        assert not any(alive(pid) for pid in everybody)
        assert worker.process.returncode == -signal.SIGKILL


def test_only_a_child_of_the_worker_is_killed_as_one(tmp_path: Path) -> None:
    with celery_worker(APP, tmp_path) as worker, pytest.raises(ValueError, match="no child of w1"):
        worker.kill_child(os.getpid())


def test_a_worker_that_cannot_start_is_told_with_its_log(tmp_path: Path) -> None:
    with (
        pytest.raises(RuntimeError, match=r"(?s)ended instead of starting.*no_such_module"),
        celery_worker("tests.kit.no_such_module", tmp_path),
    ):
        pass


def test_a_worker_and_its_children_do_not_outlive_a_killed_test_run(tmp_path: Path) -> None:
    code = (
        "import time; from pathlib import Path; from tests.kit import celery_worker\n"
        f"with celery_worker({APP!r}, Path('.')) as worker:\n"
        "    print(worker.pid, *worker.pool(), flush=True); time.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=tmp_path, env=python_environment(), stdout=subprocess.PIPE
    ) as run:
        assert run.stdout is not None
        everybody = [int(pid) for pid in run.stdout.readline().split()]
        assert len(everybody) == 3
        assert all(alive(pid) for pid in everybody)
        kill(run.pid)
    wait_gone(everybody)


def test_a_developers_own_settings_do_not_reach_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMMANDER_STATE_DIRECTORY", "/home/me/state")
    monkeypatch.setenv("CELERY_BROKER_URL", "redis://production")
    environment = python_environment({"COMMANDER_TTL": "5"})
    assert "COMMANDER_STATE_DIRECTORY" not in environment
    assert "CELERY_BROKER_URL" not in environment
    assert environment["COMMANDER_TTL"] == "5"
