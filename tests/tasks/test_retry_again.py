"""A retry of the run tries again what it was asked for, and nothing else; other records stay as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from celery_commander.engine import State
from celery_commander.tasks import current_run, step

from .bench import Bench
from .test_step_retries import Away, Declined, Remote, types


class Wrapped(Exception):
    """What a body makes of a step's exception."""


def by_hand(self: Any, act: Any) -> Any:
    try:
        return act()
    except Away as error:
        raise self.retry(exc=error, countdown=0) from error


def by_hand_without_the_exception(self: Any, act: Any) -> Any:
    try:
        return act()
    except Away:
        self.retry(countdown=0)


def by_hand_and_wrapped(self: Any, act: Any) -> Any:
    try:
        return act()
    except Away:
        raise self.retry(exc=Wrapped(), countdown=0) from None


def by_hand_and_later(self: Any, act: Any) -> Any:
    kept = None
    try:
        return act()
    except Away as error:
        kept = error
    raise self.retry(exc=kept, countdown=0)


def by_celery(self: Any, act: Any) -> Any:
    return act()


def by_celery_and_wrapped(self: Any, act: Any) -> Any:
    try:
        return act()
    except Away as error:
        raise Wrapped from error


ASKERS = [
    by_hand,
    by_hand_without_the_exception,
    by_hand_and_wrapped,
    by_hand_and_later,
    by_celery,
    by_celery_and_wrapped,
]

BY_CELERY: dict[str, Any] = {
    "autoretry_for": (Away, Wrapped),
    "retry_kwargs": {"countdown": 0},
    "retry_backoff": False,
}


def body_of(asker: Any, act: Any, before: Any = None) -> Any:
    def body(self: Any) -> Any:
        if before is not None:
            before()
        return asker(self, act)

    return body


def start(bench: Bench, body: Any, asker: Any = by_hand, **options: Any) -> Any:
    given = BY_CELERY if asker.__name__.startswith("by_celery") else {}
    return bench.run(body, bind=True, max_retries=2, **given, **options)


@pytest.mark.parametrize("asker", ASKERS)
def test_the_step_that_raised_is_tried_again_under_its_key_and_none_before_it(
    bench: Bench, tmp_path: Path, asker: Any
) -> None:
    remote = Remote(tmp_path, Away(), Away(), "paid")
    (tmp_path / "first").mkdir()
    first = Remote(tmp_path / "first", *["reserved"] * 3)
    body = body_of(asker, step(name="charge")(remote), step(name="reserve")(first))
    assert start(bench, body, asker)[0] == "RETRY"
    assert bench.deliver(bench.run_id, retries=1)[0] == "RETRY"
    assert bench.deliver(bench.run_id, retries=2) == ("SUCCESS", "paid")
    assert remote.calls == [f"{bench.run_id}:1"] * 3
    assert first.calls == [f"{bench.run_id}:0"]
    found = bench.history(bench.run_id).entries[1]
    assert (found.status, found.attempt, found.value) == ("completed", 3, "paid")
    assert types(bench)[2:] == [
        *["step.started", "step.failed"] * 2,
        "step.started",
        "step.completed",
    ]


@pytest.mark.parametrize("asker", ASKERS)
def test_an_input_that_raised_is_asked_for_again(bench: Bench, tmp_path: Path, asker: Any) -> None:
    calls: list[int] = []

    def ask() -> str:
        calls.append(1)
        if len(calls) == 1:
            raise Away
        return "an answer"

    body = body_of(asker, lambda: current_run.llm(ask))
    assert start(bench, body, asker)[0] == "RETRY"
    assert bench.deliver(bench.run_id, retries=1) == ("SUCCESS", "an answer")
    assert len(calls) == 2


def test_the_last_retry_ends_with_what_the_step_raised(bench: Bench, tmp_path: Path) -> None:
    remote = Remote(tmp_path, *[Away(str(number)) for number in range(3)])
    assert start(bench, body_of(by_celery, step(name="charge")(remote)), by_celery)[0] == "RETRY"
    assert bench.deliver(bench.run_id, retries=1)[0] == "RETRY"
    state, error = bench.deliver(bench.run_id, retries=2)
    assert (state, type(error), str(error)) == ("FAILURE", Away, "2")
    assert bench.state() is State.COMPENSATED


@pytest.mark.parametrize(
    "answers, is_owed",
    [
        ((Declined(), Declined()), False),
        ((Away(), Declined()), True),  # the first may have charged, whatever the second says
        ((Declined(), Away()), True),
    ],
)
def test_an_undo_is_owed_unless_every_attempt_proves_that_nothing_happened(
    bench: Bench, tmp_path: Path, answers: tuple[Exception, ...], is_owed: bool
) -> None:
    remote = Remote(tmp_path, *answers)
    act = step(name="charge", compensate="undo.it", not_done=(Declined,))(remote)

    def body(self: Any) -> Any:
        try:
            return act()
        except (Away, Declined) as error:
            raise self.retry(exc=error, countdown=0, max_retries=1) from error

    assert bench.run(body, bind=True)[0] == "RETRY"
    waiting = bench.history(bench.run_id)
    assert waiting.state is not None
    assert waiting.state.owed == ((0,) if isinstance(answers[0], Away) else ())
    assert bench.deliver(bench.run_id, retries=1)[0] == "FAILURE"
    state = bench.history(bench.run_id).state
    assert state is not None
    assert state.owed == ((0,) if is_owed else ())


def test_a_step_gets_all_its_tries_in_each_attempt(bench: Bench, tmp_path: Path) -> None:
    remote = Remote(tmp_path, Away(), Away(), Away(), "paid")
    act = step(name="charge", retries=1, retry_on=Away, backoff=0)(remote)
    assert start(bench, body_of(by_hand, act))[0] == "RETRY"
    assert bench.deliver(bench.run_id, retries=1) == ("SUCCESS", "paid")
    assert len(remote.calls) == 4


def test_a_step_whose_failure_a_body_has_gone_on_from_stays_failed(
    bench: Bench, tmp_path: Path
) -> None:
    remote = Remote(tmp_path, Away("the first"), "too late")
    act = step(name="charge")(remote)

    def body(self: Any) -> Any:
        kept: Any = None
        try:
            act()
        except Away as error:
            kept = error
        current_run.now()
        if self.request.retries == 0:
            raise self.retry(exc=kept, countdown=0)
        return str(kept)

    assert bench.run(body, bind=True)[0] == "RETRY"
    assert bench.deliver(bench.run_id, retries=1) == ("SUCCESS", "the first")
    assert len(remote.calls) == 1


def test_a_retry_for_another_reason_repeats_nothing(bench: Bench, tmp_path: Path) -> None:
    remote = Remote(tmp_path, Away("the first"), "too late")
    act = step(name="charge")(remote)

    def body(self: Any) -> Any:
        told = "paid"
        try:
            act()
        except Away as error:
            told = str(error)
        if self.request.retries == 0:
            raise self.retry(exc=Wrapped(), countdown=0)
        return told

    assert bench.run(body, bind=True)[0] == "RETRY"
    assert bench.deliver(bench.run_id, retries=1) == ("SUCCESS", "the first")
    assert len(remote.calls) == 1


def test_a_body_that_leaves_out_what_it_was_retried_for_is_parked_and_owes_its_undo(
    bench: Bench, tmp_path: Path
) -> None:
    remote = Remote(tmp_path, Away())
    act = step(name="charge", compensate="undo.it")(remote)

    def body(self: Any) -> Any:
        return "left out" if self.request.retries else by_hand(self, act)

    assert bench.run(body, bind=True)[0] == "RETRY"
    assert bench.deliver(bench.run_id, retries=1)[0] == "IGNORED"
    state = bench.history(bench.run_id).state
    assert state is not None
    assert (state.state, state.paused_kind, state.owed) == (State.PAUSED, "version", (0,))
    (owed,) = bench.history(bench.run_id).owed
    assert (owed.name, owed.undo, owed.key) == ("charge", "undo.it", f"{bench.run_id}:0")
