"""A person's word counts once, survives its speaker, and is refused where it does not fit."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from celery_commander.engine import (
    CommanderError,
    DeadLetterRefused,
    DeadLetterResolved,
    Event,
    LogUnavailable,
    UnknownDeadLetter,
    UnknownTask,
)
from celery_commander.tasks import Commander, Said
from celery_commander.tasks.announcing import announce
from celery_commander.tasks.dead_letters import who
from tests.tasks.letters_kit import say, types

# --- once, and by one ------------------------------------------------------------------------------


def test_a_word_whose_speaker_died_is_done_by_the_next_pass(bench, world, letters, parked):
    say(bench, parked, {"step": 0, "happened": False})

    bench.app.commander.bootstrapper.bootstrap()

    assert bench.deliver(bench.run_id) == ("SUCCESS", "7 euro charged, shipped")
    assert types(bench).count("operator.retried") == 1


def test_a_word_whose_speaker_died_is_done_by_the_same_command_again(bench, letters, parked):
    say(bench, parked, {"step": 0, "happened": False})

    with pytest.raises(DeadLetterResolved, match="retried, by ann@shop"):
        letters.retry(parked.id, Said(happened=True))
    assert letters.retry(parked.id, Said(happened=False)).action == "requeue"

    assert types(bench).count("operator.retried") == 1
    with pytest.raises(DeadLetterResolved):
        letters.retry(parked.id, Said(happened=False))
    assert types(bench).count("run.requeued") == 1


def test_a_stuck_undo_whose_speaker_died_is_taken_up_by_the_next_pass(bench, letters, stuck):
    state = bench.history(bench.run_id).state
    told = {"outcome": "STUCK"}
    bench.app.commander.engine.append(
        "run.delivered", told, run_id=bench.run_id, token=state.token, n=state.n + 1
    )
    say(bench, stuck, None)

    result = bench.app.commander.bootstrapper.bootstrap()

    assert [(one.run_id, one.action) for one in result.details] == [(bench.run_id, "abort")]
    assert bench.history(bench.run_id).state.generation == 2


@pytest.mark.parametrize("finisher", ["the next pass", "the same command"])
def test_a_promised_run_whose_speaker_died_is_made_once(bench, letters, aborted, finisher):
    new_id = letters._new_id(aborted)
    say(bench, aborted, None, retry_as=new_id)
    letters.list()

    for _ in range(2):
        if finisher == "the next pass":
            bench.app.commander.bootstrapper.bootstrap()
            continue
        try:
            assert letters.retry(aborted.id).run_id == new_id
        except DeadLetterResolved:
            assert bench.history(new_id).state is not None

    assert types(bench, new_id) == ["run.created", "task.sent"]
    assert bench.history(new_id).created["retry_of"] == aborted.run_id


def test_of_two_people_the_first_wins_and_the_second_is_told(bench, letters, aborted):
    letters._say(
        aborted, "operator.discarded", {"entry": aborted.id, "by": "ann@shop", "reason": "x"}
    )
    with pytest.raises(DeadLetterResolved, match=r"discarded, by ann@shop"):
        letters._say(
            aborted, "operator.retried", {"entry": aborted.id, "by": "bob@shop", "answer": None}
        )


def test_a_word_that_does_not_fit_any_more_leaves_the_letter_open(bench, letters, parked):
    with pytest.raises(DeadLetterRefused, match="changed meanwhile"):
        letters._say(
            parked, "operator.retried", {"entry": parked.id, "by": "bob@shop", "answer": None}
        )

    assert letters.list() == [parked]


def test_of_many_at_once_one_wins_and_the_run_goes_anew_once(bench, letters, aborted):
    start, won, told = threading.Barrier(6), [], []

    def ask(number: int) -> None:
        start.wait()
        try:
            if number % 2:
                won.append(letters.discard(aborted.id, "enough", by=f"p{number}"))
            else:
                won.append(letters.retry(aborted.id, by=f"p{number}"))
        except DeadLetterResolved as error:
            told.append(error)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(won) + len(told) == 6
    assert len({one.letter.resolved_by for one in won}) == 1
    bench.app.commander.ledger.catch_up()
    made = [run for run in bench.app.commander.ledger.runs() if run.run_id != aborted.run_id]
    assert len(made) == (won[0].action == "run anew")


# --- what cannot be acted on -----------------------------------------------------------------------


@pytest.mark.parametrize("entry", ["999", "x", ""])
def test_an_unknown_letter_is_named(bench, letters, entry):
    for ask in (letters.show, letters.retry, lambda it: letters.discard(it, "why")):
        with pytest.raises(UnknownDeadLetter):
            ask(entry)


def test_a_resolved_letter_says_by_whom(bench, letters, aborted):
    letters.discard(aborted.id, "done", by="ann@shop")

    for ask in (letters.retry, lambda it: letters.discard(it, "again")):
        with pytest.raises(DeadLetterResolved, match="discarded, by ann@shop"):
            ask(aborted.id)


def test_a_task_that_this_app_does_not_know_is_not_retried_but_may_be_closed(
    bench, letters, aborted
):
    del bench.app.tasks["fail"]

    with pytest.raises(UnknownTask, match="fail"):
        letters.retry(aborted.id)
    assert letters.discard(aborted.id, "the task is gone").action == "discard"


def test_another_apps_letters_are_shown_and_not_acted_on(bench, letters, aborted):
    bench.app.commander._resolved = None
    bench.app.conf.commander_namespace = "another"

    assert letters.list() == [aborted]
    for ask in (letters.retry, lambda it: letters.discard(it, "why")):
        with pytest.raises(DeadLetterRefused, match="namespace 'attempts'"):
            ask(aborted.id)


@pytest.mark.parametrize("said", [Said(happened=True), Said(happened=False), Said(abort=True)])
def test_an_answer_that_nobody_asked_for_is_refused(bench, letters, aborted, said):
    with pytest.raises(DeadLetterRefused, match="without an answer"):
        letters.retry(aborted.id, said)


def test_a_log_that_cannot_be_written_leaves_the_letter_as_it_is(
    bench, letters, aborted, monkeypatch
):
    def full(*_: Any, **__: Any) -> None:
        raise LogUnavailable("the log", "no space")

    with monkeypatch.context() as patched:
        patched.setattr(type(bench.app.commander.engine), "append", full)
        with pytest.raises(CommanderError):
            letters.retry(aborted.id)

    assert letters.list() == [aborted]
    assert letters.retry(aborted.id).action == "run anew"


# --- around it -------------------------------------------------------------------------------------


def test_a_letter_is_announced_where_there_is_a_bus(bench, letters, aborted, caplog):
    said: list[Any] = []
    bus = SimpleNamespace(publish=lambda *args, **options: said.append((*args, options)))
    events: list[Event] = bench.app.commander.engine.history(aborted.run_id)

    without, with_bus, broken = (
        cast("Commander", SimpleNamespace(bus=it)) for it in (None, bus, SimpleNamespace())
    )
    announce(without, events)
    announce(with_bus, events)

    payload = {"entry": aborted.id, "category": "aborted"}
    assert said == [("dead_letter.created", payload, {"run_id": aborted.run_id})]
    announce(broken, events)
    assert "could not be announced" in caplog.text


def test_lapsed_letters_are_pruned_by_a_sweep_now_and_then(bench, letters, aborted, monkeypatch):
    pruned: list[int] = []
    queue = type(bench.app.commander.store.dead_letters)
    monkeypatch.setattr(queue, "prune", lambda _: pruned.append(1))

    for _ in range(3):
        bench.app.commander.bootstrapper.bootstrap()

    assert pruned == [1]


def test_a_promise_that_cannot_be_kept_stops_no_pass(bench, letters, aborted, caplog):
    say(bench, aborted, None, retry_as="x" * 300)
    letters.list()

    assert bench.app.commander.bootstrapper.bootstrap().refused is None
    assert "could not be retried" in caplog.text or "the next pass" in caplog.text


def test_who_asks_is_a_user_at_a_host():
    user, _, host = who().partition("@")

    assert user
    assert host
