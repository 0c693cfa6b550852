"""Code that differs from its records begins at a checkpoint, or waits for a person; it undoes nothing."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from celery_commander.engine import (
    State,
    register_type,
    values,
)
from celery_commander.tasks import current_run, step
from tests.tasks.bench import Bench
from tests.tasks.flow import Flow, at

NESTED = {
    "done": [("a", 1), {"when": datetime(2026, 1, 2, tzinfo=UTC)}],
    3: {frozenset({1, 2}): Decimal("1.10")},
    "raw": b"\x00\xff",
}


def test_unchanged_code_is_replayed_and_not_restarted(flow: Flow) -> None:
    flow.start()
    flow.ends = True

    assert flow.deliver() == "SUCCESS"
    assert flow.got == [None, None]
    assert flow.events("run.requeued") == []


def test_changed_code_goes_on_from_the_checkpoint_and_repeats_nothing(flow: Flow) -> None:
    flow.state = NESTED
    flow.start()
    flow.before, flow.behind, flow.ends = ("z", "b"), ("c", "d"), True

    assert flow.deliver() == "IGNORED"  # the mismatch
    assert flow.bench.state() is State.PENDING
    state, value = flow.bench.deliver(flow.bench.run_id)

    assert (state, value) == ("SUCCESS", ["restored", "C", "D"])
    assert flow.got == [None, None, NESTED]
    assert flow.calls == at("a0 b1 c2 d3")  # keys as they were, and new ones behind them
    (requeued,) = flow.events("run.requeued")
    assert requeued.payload["checkpoint"]["step"] == 2
    assert "with other arguments" in requeued.payload["why"]
    assert len(flow.events("checkpoint.saved")) == 1


def test_what_was_done_before_the_checkpoint_is_still_owed(bench: Bench) -> None:
    code = ["a"]

    @step(compensate="undo.it")
    def charge(name: str) -> None:
        bench.calls.append(name)

    def body(self: Any) -> None:
        if current_run.restored(None) is None:
            charge(code[0])
            current_run.checkpoint("charged")
        if code == ["a"]:
            raise self.retry(countdown=0)
        charge("c")
        raise LookupError("given up")

    bench.run(body, bind=True)
    code[:] = ["z"]
    assert bench.deliver(bench.run_id)[0] == "IGNORED"
    assert bench.deliver(bench.run_id)[0] == "FAILURE"

    assert bench.calls == ["a", "c"]
    assert [entry.step for entry in bench.history(bench.run_id).owed] == [1, 0]


def test_a_mismatch_behind_the_restart_parks(flow: Flow) -> None:
    flow.start()
    flow.before, flow.behind = ("z",), ("y",)

    assert [flow.deliver(), flow.deliver()] == ["IGNORED", "IGNORED"]

    assert flow.bench.state() is State.PAUSED
    assert len(flow.events("run.requeued")) == 1
    assert flow.events("run.paused")[-1].payload["kind"] == "version"
    assert "No restart: it has no checkpoint to go on from" in flow.reason()
    assert flow.calls == at("a0 b1 c2")
    assert flow.deliver() == "IGNORED"
    assert len(flow.events("run.started")) == 3


def test_a_further_checkpoint_may_serve_a_further_change_and_none_serves_twice(
    flow: Flow,
) -> None:
    codes = {"abc": (2,), "zzcd": (3,), "zzyde": (), "zzydx": ()}
    code = ["abc"]

    def body(self: Any) -> None:
        done: list[str] = current_run.restored([])
        flow.got.append(len(done))
        for name in code[0][len(done) :]:
            done = [*done, flow.act(name)]
            if len(done) in codes[code[0]]:
                current_run.checkpoint(done)
        raise self.retry(countdown=0)

    assert flow.bench.run(body, bind=True, max_retries=None)[0] == "RETRY"
    seen = []
    for code[0] in ("zzcd", "zzyde", "zzydx"):
        seen += [flow.deliver(), flow.deliver()]

    assert seen == ["IGNORED", "RETRY", "IGNORED", "RETRY", "IGNORED", "IGNORED"]
    assert flow.got == [0, 0, 2, 2, 3, 3]
    assert flow.calls == at("a0 b1 c2 d3 e4")
    assert [e.payload["checkpoint"]["step"] for e in flow.events("run.requeued")] == [2, 3]
    assert flow.bench.state() is State.PAUSED


def test_the_place_from_which_a_run_goes_on_stays_at_a_second_crash(flow: Flow) -> None:
    flow.start()
    flow.before = ("z",)
    flow.deliver()
    assert flow.deliver() == "RETRY"
    flow.behind, flow.ends = ("c", "d"), True

    assert flow.deliver() == "SUCCESS"

    assert flow.got[2:] == [{"done": ["A", "B"]}] * 2
    assert flow.calls == at("a0 b1 c2 d3")
    assert len(flow.events("run.requeued")) == 1


def test_a_body_that_never_asks_for_its_state_is_parked(flow: Flow) -> None:
    flow.begins = lambda default: default
    flow.start()
    flow.before = ("z",)

    assert flow.deliver() == "IGNORED"
    assert flow.bench.state() is State.PAUSED
    assert "the body does not begin with restored()" in flow.reason()


def test_marks_of_a_body_that_could_not_begin_from_them_serve_no_later_one(flow: Flow) -> None:
    flow.begins = lambda default: default
    flow.start()
    flow.begins, flow.before = lambda default: current_run.restored(default), ("z",)

    assert flow.deliver() == "IGNORED"
    assert flow.bench.state() is State.PAUSED


@pytest.mark.parametrize("begins", ["a call", "nothing", "an error"])
def test_a_body_that_leaves_restored_out_when_it_is_to_begin_from_it_is_parked(
    flow: Flow, begins: str
) -> None:
    flow.behind = ()
    flow.start()
    flow.before = ("z",)
    flow.deliver()

    def left_out(default: Any) -> Any:
        if begins == "an error":
            raise LookupError("before anything")
        return None if begins == "a call" else "not asked for"

    flow.begins, flow.ends = left_out, True

    assert flow.deliver() == "IGNORED"
    assert flow.bench.state() is State.PAUSED
    assert flow.events("run.paused")[-1].payload["kind"] == "version"
    assert flow.calls == at("a0 b1")


def test_a_state_of_another_version_is_not_handed_out(flow: Flow) -> None:
    flow.start()
    flow.before = ("z",)
    flow.begins = lambda default: current_run.restored(default, version=2)

    assert flow.deliver() == "IGNORED"
    assert flow.bench.state() is State.PAUSED
    assert flow.got == [None, None]


def test_a_body_that_asks_for_another_version_after_its_restart_is_parked(flow: Flow) -> None:
    flow.start()
    flow.before = ("z",)
    flow.deliver()
    flow.begins = lambda default: current_run.restored(default, version=2)

    assert flow.deliver() == "IGNORED"
    assert "recorded checkpoint" in flow.reason()
    assert "found restored() of version 2" in flow.reason()
    assert flow.got == [None, None]


def test_a_new_version_is_saved_while_the_old_code_is_replayed(flow: Flow) -> None:
    flow.start()
    flow.begins = lambda default: current_run.restored(default, version=2)
    flow.save = lambda state: current_run.checkpoint({"v2": True}, version=2)
    flow.deliver()
    flow.before, flow.ends = ("z",), True

    flow.deliver()
    assert flow.deliver() == "SUCCESS"

    assert flow.got[-1] == {"v2": True}
    assert [e.payload["version"] for e in flow.events("checkpoint.saved")] == [1, 2]


class Order:
    def __init__(self, number: int) -> None:
        self.number = number


def test_a_state_of_a_type_that_is_gone_is_a_conflict(flow: Flow) -> None:
    register_type(Order, "test.Order", lambda order: order.number, Order)
    try:
        flow.state = Order(7)
        flow.start()
    finally:  # the next attempt is in a process that lacks it
        del values._BY_NAME["test.Order"]
        del values._BY_CLASS[Order]
    flow.before = ("z",)

    assert [flow.deliver(), flow.deliver()] == ["IGNORED", "IGNORED"]

    assert flow.bench.state() is State.PAUSED
    assert "test.Order" in flow.reason()
