"""What an aborted run owes becomes a Celery chain, the last step first, and only then."""

from __future__ import annotations

from typing import Any

import pytest

from celery_commander.engine import State
from celery_commander.tasks import CompensationBridge, Undo, step
from celery_commander.tasks.compensation import LINKS_AT_ONCE
from tests.tasks.bench import Bench


def run_of(bench: Bench, steps: int, *, fails: bool = True) -> str:
    """Run a body of so many steps with undos, which then fails."""

    @bench.app.task(name="undo", shared=False)
    def undo(told: Undo) -> None:
        bench.calls.append(told["step"])

    @step(compensate="undo")
    def act(number: int) -> int:
        return number

    def body() -> None:
        for number in range(steps):
            act(number)
        if fails:
            raise LookupError("enough")

    bench.run(body)
    return bench.run_id


def links(chain: Any) -> list[tuple[str, Any]]:
    return [(link.task.rpartition(".")[2], link.args[1]) for link in chain.tasks]


@pytest.fixture
def bridge(bench: Bench) -> CompensationBridge:
    found: CompensationBridge = bench.app.commander.compensation
    return found


def test_the_chain_undoes_the_last_step_first_and_then_settles(
    bench: Bench, bridge: CompensationBridge
) -> None:
    run_id = run_of(bench, 3)

    assert [entry.step for entry in bridge.owed(run_id)] == [2, 1, 0]
    undone = [("compensate_step", number) for number in (2, 1, 0)]
    assert links(bridge.chain(run_id)) == [*undone, ("finish_compensation", 1)]


def test_a_long_rollback_is_cut_into_chains_of_a_bounded_length(
    bench: Bench, bridge: CompensationBridge
) -> None:
    run_id = run_of(bench, LINKS_AT_ONCE + 5)

    chain = links(bridge.chain(run_id))

    assert len(chain) == LINKS_AT_ONCE + 1
    assert chain[0] == ("compensate_step", LINKS_AT_ONCE + 4)
    assert chain[-1][0] == "finish_compensation"


def test_a_run_that_is_not_aborted_has_no_chain_and_starting_it_changes_nothing(
    bench: Bench, bridge: CompensationBridge
) -> None:
    run_id = run_of(bench, 2, fails=False)
    before = len(bench.app.commander.engine.history(run_id))

    bridge.start(run_id)
    bridge.start("nobody")

    assert bench.state() is State.COMMITTED
    assert bridge.chain(run_id) is None
    assert bridge.chain("nobody") is None
    assert len(bench.app.commander.engine.history(run_id)) == before


def test_an_aborted_run_that_owes_nothing_is_settled_at_once(
    bench: Bench, bridge: CompensationBridge
) -> None:
    run_of(bench, 0)

    assert bench.state() is State.COMPENSATED
