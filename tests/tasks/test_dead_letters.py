"""What a person's word on a dead letter does."""

from __future__ import annotations

from typing import Any

import pytest

from celery_commander.engine import Category, DeadLetterRefused, State, UnrecordableValue
from celery_commander.tasks import Said, Unknown, step
from celery_commander.tasks.message import as_new_run, of_created
from tests.tasks.letters_kit import ended, let_die, types

# --- a step in doubt -------------------------------------------------------------------------------


def test_a_parked_run_has_one_letter_that_names_its_step(bench, letters, parked):
    asked = letters.asked_about(parked)

    assert (parked.category, parked.run_id, parked.task) == (Category.IN_DOUBT, bench.run_id, "pay")
    assert (asked.step, asked.name, asked.key) == (0, "charge", f"{bench.run_id}:0")


def test_what_happened_is_not_done_again_and_its_result_is_the_bodys(bench, world, letters, parked):
    acted = letters.retry(parked.id, Said(happened=True, result="paid by hand"), by="ann@shop")

    assert (acted.action, acted.reason, acted.run_id) == ("requeue", "operator", bench.run_id)
    assert (acted.letter.resolution, acted.letter.resolved_by) == ("retried", "ann@shop")
    assert types(bench)[-5:] == [
        "operator.retried", "run.fenced", "run.started", "step.completed", "run.requeued",
    ]  # fmt: skip
    assert bench.deliver(bench.run_id) == ("SUCCESS", "paid by hand, shipped")
    assert world.calls == ["7 euro", "shipped"]
    assert letters.list() == []


def test_what_did_not_happen_is_done_by_the_next_attempt(bench, world, letters, parked):
    letters.retry(parked.id, Said(happened=False))

    assert bench.deliver(bench.run_id) == ("SUCCESS", "7 euro charged, shipped")
    assert world.calls == ["7 euro", "7 euro", "shipped"]
    assert bench.history(bench.run_id).entries[0].attempt == 2


def test_a_word_settles_one_doubt_and_not_the_next(bench, world, letters, parked):
    letters.retry(parked.id, Said(happened=False))
    world.dies = True
    let_die(bench, bench.run_id)
    bench.app.commander.bootstrapper.bootstrap()

    (again,) = letters.list()
    assert again.id != parked.id
    assert again.category is Category.IN_DOUBT
    assert world.calls == ["7 euro", "7 euro"]


def test_a_parked_run_may_be_aborted_with_its_step_in_doubt(bench, letters, parked):
    acted = letters.retry(parked.id, Said(abort=True))

    assert (acted.action, acted.reason) == ("abort", "cancelled")
    state = bench.history(bench.run_id).state
    assert (state.state, state.owed) == (State.ABORTED, (0,))
    assert letters.list() == []  # whoever said so knows it
    (last, _) = letters.list(open_only=False)
    assert (last.category, last.resolution) == (Category.ABORTED, "told")


@pytest.mark.parametrize("said", [None, Said()])
def test_a_step_in_doubt_is_never_repeated_without_an_answer(bench, world, letters, parked, said):
    with pytest.raises(DeadLetterRefused, match=r"step 0 .charge.*--did-happen.*--did-not-happen"):
        letters.retry(parked.id, said)

    assert "operator.retried" not in types(bench)
    bench.app.commander.bootstrapper.bootstrap()
    assert letters.list() == [parked]


def test_a_result_that_no_log_can_hold_is_refused_before_anything_is_said(bench, letters, parked):
    with pytest.raises(UnrecordableValue):
        letters.retry(parked.id, Said(happened=True, result=object()))

    assert "operator.retried" not in types(bench)


def test_a_step_whose_resolve_does_not_know_is_asked_about(bench, world, letters):
    act = step(name="act", in_doubt="park", resolve=lambda key: Unknown)(world.charge)

    def ask(what: str) -> Any:
        return act(what)

    bench.task(ask)
    bench.run_id = bench.send("ask", "7 euro")
    let_die(bench, bench.run_id)
    world.dies = False
    bench.app.commander.bootstrapper.bootstrap()
    assert bench.deliver(bench.run_id)[0] == "IGNORED"

    (letter,) = letters.list()
    letters.retry(letter.id, Said(happened=False))

    assert bench.deliver(bench.run_id) == ("SUCCESS", "7 euro charged")


# --- another code, a stuck undo, a run anew --------------------------------------------------------


def test_a_version_conflict_is_replayed_under_the_code_as_it_is_now(
    bench, world, letters, conflict
):
    assert conflict.category is Category.VERSION_CONFLICT
    letters.retry(conflict.id)
    assert bench.deliver(bench.run_id)[0] == "IGNORED"
    (again,) = letters.list()
    assert (again.category, again.id != conflict.id) == (Category.VERSION_CONFLICT, True)

    world.steps = ["check", "charge"]
    letters.retry(again.id)

    assert bench.deliver(bench.run_id) == ("SUCCESS", "charged, shipped")
    assert world.calls == ["7 euro", "shipped"]


def test_a_version_conflict_may_be_aborted_too(bench, letters, conflict):
    letters.retry(conflict.id, Said(abort=True))

    assert bench.history(bench.run_id).state.state is State.ABORTED


def test_a_stuck_undo_begins_again_in_a_new_generation(bench, letters, stuck):
    acted = letters.retry(stuck.id)

    state = bench.history(bench.run_id).state
    assert (stuck.category, acted.action) == (Category.STUCK, "abort")
    assert (state.state, state.generation, state.owed) == (State.ABORTED, 2, (0,))
    assert bench.history(bench.run_id).abort_reason == "exception"
    assert letters.list() == []
    last = letters.list(open_only=False)[0]
    assert (last.category, last.reason, last.resolution) == ("aborted", "LookupError", "told")


def test_an_aborted_run_goes_anew_under_a_fresh_id(bench, letters, aborted):
    acted = letters.retry(aborted.id)

    old, new = bench.history(aborted.run_id), bench.history(acted.run_id)
    assert acted.run_id != aborted.run_id
    assert (acted.action, acted.letter.retried_as) == ("run anew", acted.run_id)
    assert new.created["retry_of"] == aborted.run_id
    assert new.message["body"] == old.message["body"]
    assert new.message["headers"]["id"] == new.message["properties"]["correlation_id"]
    assert (new.state.state, old.state.state) == (State.PENDING, State.COMPENSATED)
    assert bench.deliver(acted.run_id)[0] == "FAILURE"
    assert bench.calls == ["7 euro", "7 euro"]
    assert [one.run_id for one in letters.list()] == [acted.run_id]


def test_no_run_goes_anew_while_the_undo_of_the_first_is_under_way(bench, letters):
    letter = ended(bench, letters)

    with pytest.raises(DeadLetterRefused, match=r"undo.*under way"):
        letters.retry(letter.id)


def test_a_new_run_keeps_its_callbacks_and_leaves_what_it_was_counted_in(bench, aborted):
    created = bench.history(aborted.run_id).created
    message = of_created(created)
    embed = {"callbacks": ["c"], "chain": ["n"], "errbacks": ["e"], "chord": "counted"}
    headers = {
        **message.headers,
        "root_id": "another",
        "group": "g",
        "group_index": 2,
        "retries": 3,
    }
    counted = type(message)(headers, message.properties, (*message.body[:2], embed))

    new = as_new_run(counted, "r-new")

    assert new.body[2] == {**embed, "chord": None}
    kept = {key: new.headers[key] for key in ("id", "root_id", "group", "group_index", "retries")}
    assert kept == {
        "id": "r-new", "root_id": "another", "group": None, "group_index": None, "retries": 0,
    }  # fmt: skip


def test_an_ordinary_refusal_is_open_for_nobody_and_may_be_run_anew(bench, letters):
    """A declined card is told to the caller; an operator has nothing to do about it, and health neither."""

    def decline(what: str) -> None:
        bench.calls.append(what)
        raise PermissionError(what)

    bench.run(decline, "7 euro")
    bench.app.commander.ledger.catch_up()

    (letter,) = letters.list(open_only=False)
    assert (letter.category, letter.resolution, letter.resolved_by) == ("aborted", "told", None)
    assert (letters.list(), letters.open_count) == ([], 0)
    assert bench.app.commander.health.report().metric("dead_letters").value == 0
    acted = letters.retry(letter.id, by="ann@shop")
    assert bench.deliver(acted.run_id)[0] == "FAILURE"
    assert bench.calls == ["7 euro"] * 2
    assert letters.show(letter.id).resolved_by == "ann@shop"


# --- closing one -----------------------------------------------------------------------------------


def test_a_discarded_letter_is_closed_with_its_reason_and_touches_nothing(bench, letters, aborted):
    acted = letters.discard(aborted.id, "settled by phone", by="bob@shop")

    assert (acted.letter.resolution, acted.letter.resolved_by) == ("discarded", "bob@shop")
    assert letters.list() == []
    assert letters.list(open_only=False) == [letters.show(aborted.id)] == [acted.letter]
    event = bench.app.commander.engine.history(aborted.run_id)[-1]
    assert (event.type, event.payload["reason"]) == ("operator.discarded", "settled by phone")


@pytest.mark.parametrize("kind", ["parked", "conflict"])
def test_a_parked_run_is_not_over_and_cannot_be_closed(bench, letters, kind, request):
    letter = request.getfixturevalue(kind)

    with pytest.raises(DeadLetterRefused, match="--abort"):
        letters.discard(letter.id, "never mind")

    assert "operator.discarded" not in types(bench)


def test_a_stuck_run_may_be_settled_by_hand(bench, letters, stuck):
    letters.discard(stuck.id, "refunded by hand")

    assert bench.history(bench.run_id).state.state is State.STUCK
    assert letters.open_count == 0
