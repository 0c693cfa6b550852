"""Dead letters of real workers: made by kills, answered by the real command, counted by a witness."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from celery_commander.engine import Category, DeadLetter, State
from tests.celery.conftest import Deployment
from tests.kit import CrashPoint, wait_until

pytestmark = [pytest.mark.celery, pytest.mark.crash]


def command(
    deployment: Deployment, *words: str, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the real command line against a deployment."""
    environment = {"TEST_DIRECTORY": str(deployment.directory), "TEST_BROKER": ""}
    return subprocess.run(
        [sys.executable, "-m", "tests.celery.command", "dead", *words],
        env=os.environ | environment | (env or {}),
        capture_output=True,
        text=True,
        timeout=60,
    )


def asked(deployment: Deployment, *words: str) -> Any:
    done = command(deployment, *words, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def letters(deployment: Deployment, **options: Any) -> list[DeadLetter]:
    found: list[DeadLetter] = deployment.app.commander.dead_letters.list(**options)
    return found


def wait_letter(deployment: Deployment, category: Category) -> DeadLetter:
    wait_until(lambda: letters(deployment, category=category), what=f"a letter {category}")
    (letter,) = letters(deployment, category=category)
    return letter


def park(deployment: Deployment) -> DeadLetter:
    """Kill a worker inside a step whose doubt is for a person; return the letter that follows."""
    gate = deployment.witness.hold("one")
    first = deployment.worker("w1", concurrency=1)
    deployment.send("flow_parked", "ann")
    deployment.wait_mark("begin", "one", "ann")
    first.kill_group()
    gate.unlink()
    deployment.worker("w2", concurrency=1)
    return wait_letter(deployment, Category.IN_DOUBT)


def test_a_task_that_kills_its_worker_again_and_again_has_one_open_letter(
    deployment: Deployment,
) -> None:
    deployment.worker(concurrency=1)
    run_id = deployment.send("flow_poison", "ann")

    (state,) = deployment.wait_ended(run_id)

    assert state.state is State.COMPENSATED
    assert deployment.witness.count("body", "ann") == 3
    (letter,) = letters(deployment)
    assert (letter.category, letter.run_id, letter.reason) == (Category.POISON, run_id, "poison")
    whole = [one.category.value for one in letters(deployment, open_only=False)]
    assert whole == ["poison", "recovered", "recovered"]


def test_a_step_that_happened_is_not_done_again(deployment: Deployment) -> None:
    letter = park(deployment)

    refused = command(deployment, "retry", letter.id)
    told = asked(deployment, "retry", letter.id, "--did-happen", '"by hand"')

    assert (refused.returncode, "--did-not-happen" in refused.stderr) == (1, True)
    assert told["letter"]["resolution"] == "retried"
    assert told["action"] in ("requeue", "skip")  # a worker's own pass may have been quicker
    (state,) = deployment.wait_ended(letter.run_id)
    assert state.state is State.COMMITTED
    deployment.wait_result(letter.run_id)
    assert deployment.app.AsyncResult(letter.run_id).result == "by hand"
    assert deployment.witness.count("begin", "one", "ann") == 1


def test_a_step_that_did_not_happen_is_done_once(deployment: Deployment) -> None:
    letter = park(deployment)

    asked(deployment, "retry", letter.id, "--did-not-happen")

    (state,) = deployment.wait_ended(letter.run_id)
    assert state.state is State.COMMITTED
    assert deployment.witness.count("did", "one", "ann") == 1
    again = command(deployment, "retry", letter.id, "--did-not-happen")
    assert (again.returncode, "resolved already: retried, by" in again.stderr) == (1, True)


def test_a_parked_run_is_aborted_and_its_step_in_doubt_undone(deployment: Deployment) -> None:
    letter = park(deployment)

    told = asked(deployment, "retry", letter.id, "--abort")

    assert told["action"] in ("abort", "skip"), told  # a worker's own pass may have been quicker
    (state,) = deployment.wait_ended(letter.run_id)
    assert state.state is State.COMPENSATED
    assert deployment.witness.count("undid", "one", "ann", "in_doubt=True") == 1
    assert deployment.witness.count("did", "one", "ann") == 0


@pytest.mark.parametrize("event", ["operator.retried", "run.requeued"])
def test_a_command_that_is_killed_half_way_is_finished_by_the_workers(
    deployment: Deployment, event: str
) -> None:
    letter = park(deployment)
    point = CrashPoint(event, deployment.directory)

    killed = command(deployment, "retry", letter.id, "--did-not-happen", env=point.environment())

    assert (killed.returncode, point.fired) == (-9, True)
    (state,) = deployment.wait_ended(letter.run_id)
    assert state.state is State.COMMITTED
    assert deployment.witness.count("did", "one", "ann") == 1
    assert deployment.types(letter.run_id).count("operator.retried") == 1


def test_a_stuck_undo_goes_on_once_it_was_mended(deployment: Deployment) -> None:
    broken = deployment.directory / "fail.two"
    broken.write_text("1000")
    deployment.worker(concurrency=1, env={"COMMANDER_UNDO_RETRIES": "0"})
    run_id = deployment.send("flow_refused", "ann")
    letter = wait_letter(deployment, Category.STUCK)
    deployment.wait_ended(run_id)

    why = "the undo undo of step 1 (define_tasks.<locals>.act) failed for good: RuntimeError"
    assert letter.reason == why
    shown = asked(deployment, "show", letter.id, "--values")["stuck"]
    assert shown == {
        "step": 1,
        "name": "define_tasks.<locals>.act",
        "undo": "undo",
        "attempts": 1,
        "error": "RuntimeError",
        "message": "the undo failed",
    }

    told = asked(deployment, "retry", letter.id)
    again = wait_letter(deployment, Category.STUCK)
    assert told["action"] in ("abort", "skip"), told
    assert (again.run_id, again.id != letter.id) == (run_id, True)

    broken.unlink()
    asked(deployment, "retry", again.id)

    wait_until(
        lambda: deployment.state(run_id).state is State.COMPENSATED, what="the undo to be finished"
    )
    assert [deployment.witness.count("undid", name, "ann") for name in ("one", "two")] == [1, 1]
    assert deployment.state(run_id).generation == 3
    assert letters(deployment, category="stuck") == []


def test_a_recovered_runs_letter_is_born_resolved(deployment: Deployment) -> None:
    gate = deployment.witness.hold("two")
    first = deployment.worker("w1", concurrency=1)
    run_id = deployment.send("flow_safe", "ann")
    deployment.wait_mark("begin", "two", "ann")
    first.kill_group()
    gate.unlink()
    deployment.worker("w2", concurrency=1)
    deployment.wait_ended(run_id)

    assert letters(deployment) == []
    (letter,) = letters(deployment, open_only=False)
    assert (letter.category, letter.run_id) == (Category.RECOVERED, run_id)
    assert letter.resolution == "resumed"


def test_a_run_that_was_refused_is_open_for_nobody_and_may_go_anew(deployment: Deployment) -> None:
    deployment.worker(concurrency=1)
    run_id = deployment.send("flow_refused", "ann")
    deployment.wait_ended(run_id)
    (letter,) = letters(deployment, open_only=False)
    assert (letter.category, letter.resolution) == (Category.ABORTED, "told")
    assert letters(deployment) == []

    point = CrashPoint("operator.retried", deployment.directory)
    killed = command(deployment, "retry", letter.id, env=point.environment())

    assert (killed.returncode, point.fired) == (-9, True)
    again = wait_anew(deployment, run_id)
    deployment.wait_ended(again.run_id)
    assert (again.run_id != run_id, again.task) == (True, "flow_refused")
    assert deployment.witness.count("did", "one", "ann") == 2
    assert [one.resolution for one in letters(deployment, open_only=False)] == ["told", "retried"]
    assert letters(deployment) == []


def wait_anew(deployment: Deployment, run_id: str) -> DeadLetter:
    """Wait for the letter of the run that went in place of another."""

    def others() -> list[DeadLetter]:
        found = letters(deployment, open_only=False)
        return [one for one in found if one.run_id != run_id]

    wait_until(others, what=lambda: f"another run\n{deployment.logs()}")
    return others()[0]
