"""A step that raised is tried again as it was declared; its tries are in the log, and none of them is repeated."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from celery_commander.engine import Entry, State
from celery_commander.tasks import StepTimeout, TimeoutNotPossible, current_run, step
from tests.engine.forked import Forked
from tests.kit import CrashPoint, arm, wait_until

from .bench import Bench


class Away(Exception):
    """What a bank raises that does not answer: nobody knows what it did."""


class Declined(Exception):
    """What proves that nothing happened."""


class Remote:
    """Something far away that answers as it is told, call by call, and writes the calls down."""

    def __init__(self, directory: Path, *answers: Any) -> None:
        self.book = directory / "calls"
        self.answers = answers

    @property
    def calls(self) -> list[str]:
        return self.book.read_text().split() if self.book.exists() else []

    def __call__(self) -> Any:
        with self.book.open("a") as file:
            file.write(f"{current_run.idempotency_key}\n")
        answer = self.answers[len(self.calls) - 1]
        if isinstance(answer, Exception):
            raise answer
        return answer


def body_of(act: Callable[..., Any]) -> Callable[..., Any]:
    def body() -> Any:
        return act()

    return body


def entry_of(bench: Bench) -> Entry:
    return bench.history(bench.run_id).entries[0]


def types(bench: Bench) -> list[str]:
    events = bench.app.commander.engine.history(bench.run_id)
    return [event.type for event in events if event.type.startswith("step.")]


def test_a_step_is_tried_again_until_it_returns_always_under_one_key(
    bench: Bench, tmp_path: Path
) -> None:
    remote = Remote(tmp_path, Away(), Away(), "paid")
    act = step(name="charge", retries=3, retry_on=Away, backoff=0)(remote)
    assert bench.run(body_of(act)) == ("SUCCESS", "paid")
    assert remote.calls == [f"{bench.run_id}:0"] * 3
    found = entry_of(bench)
    assert (found.status, found.attempt, found.tries, found.acted) == ("completed", 3, 2, True)
    assert types(bench) == [
        *["step.started", "step.try_failed"] * 2,
        "step.started",
        "step.completed",
    ]


def test_the_last_try_ends_the_step_and_a_replay_tries_nothing(
    bench: Bench, tmp_path: Path
) -> None:
    remote = Remote(tmp_path, Away("first"), Away("second"), "too late")
    act = step(name="charge", retries=1, retry_on=Away, backoff=0)(remote)

    def body(self: Any) -> str:
        told = "paid"
        try:
            act()
        except Away as error:
            told = str(error)
        if self.request.retries == 0:
            raise self.retry(countdown=0)
        return told

    assert bench.run(body, bind=True)[0] == "RETRY"
    assert bench.deliver(bench.run_id, retries=1) == ("SUCCESS", "second")
    assert len(remote.calls) == 2


def test_only_what_is_listed_is_tried_again(bench: Bench, tmp_path: Path) -> None:
    remote = Remote(tmp_path, Away(), Declined(), "paid")
    act = step(name="charge", retries=5, retry_on=(Away,), backoff=0)(remote)
    assert bench.run(body_of(act))[0] == "FAILURE"
    assert len(remote.calls) == 2
    assert (entry_of(bench).status, entry_of(bench).tries) == ("failed", 1)


@pytest.mark.parametrize(
    "answers, is_owed",
    [
        ((Declined(), Declined()), False),
        ((Away(), Declined()), True),  # the first may have charged, whatever the second says
        ((Declined(), Away()), True),
        ((Away(), Away()), True),
    ],
)
def test_an_undo_is_owed_unless_every_try_proves_that_nothing_happened(
    bench: Bench, tmp_path: Path, answers: tuple[Exception, ...], is_owed: bool
) -> None:
    remote = Remote(tmp_path, *answers)
    options: dict[str, Any] = {"compensate": "undo.it", "not_done": (Declined,)}
    act = step(name="charge", retries=1, retry_on=(Away, Declined), backoff=0, **options)(remote)
    assert bench.run(body_of(act))[0] == "FAILURE"
    state = bench.history(bench.run_id).state
    assert state is not None
    assert state.state is (State.ABORTED if is_owed else State.COMPENSATED)
    assert state.owed == ((0,) if is_owed else ())


def test_an_exception_that_is_too_large_for_the_log_costs_no_try(
    bench: Bench, tmp_path: Path
) -> None:
    remote = Remote(tmp_path, Away("x" * 2_000_000), "paid")
    act = step(name="charge", retries=1, retry_on=Away, backoff=0)(remote)
    assert bench.run(body_of(act)) == ("SUCCESS", "paid")
    assert entry_of(bench).tries == 1


def die_at(bench: Bench, point: CrashPoint) -> None:
    """Deliver the run's message in a process of its own, which is killed there."""
    bench.app.commander.close()

    def dies(_: Forked) -> Any:
        os.environ.update(point.environment())
        arm()
        return bench.deliver(bench.run_id)

    with Forked(dies) as process, pytest.raises(EOFError):
        process.hear()
    assert point.fired


KILLS = [
    ("step.started", 1, "before", 3),  # (event, which of them, before or after it, calls in all)
    ("step.try_failed", 1, "before", 4),  # nobody wrote down that it had raised: it was in doubt
    ("step.try_failed", 1, "after", 3),
    ("step.started", 2, "before", 3),
    ("step.started", 2, "after", 3),
    ("step.try_failed", 2, "after", 3),
    ("step.started", 3, "after", 3),
    ("step.completed", 1, "before", 4),
    ("step.completed", 1, "after", 3),
]


@pytest.mark.parametrize("event, nth, when, calls", KILLS)
def test_a_kill_at_any_event_repeats_no_try_that_was_written_down(
    bench: Bench, tmp_path: Path, event: str, nth: int, when: Any, calls: int
) -> None:
    remote = Remote(tmp_path, Away(), Away(), *["paid"] * 3)
    act = step(name="charge", retries=2, retry_on=Away, backoff=0, retry_in_doubt=True)(remote)
    if (event, when) == ("step.try_failed", "before"):
        remote.answers = (Away(), Away(), Away(), "paid")  # the one in doubt is no try of the two
    bench.task(body_of(act))
    bench.run_id = bench.send("body")
    die_at(bench, CrashPoint(event, nth=nth, when=when, directory=tmp_path))
    result = bench.app.commander.bootstrapper.bootstrap()
    assert (result.recovered, result.aborted) == (1, 0), result
    assert bench.deliver(bench.run_id) == ("SUCCESS", "paid")
    assert len(remote.calls) == calls
    assert set(remote.calls) == {f"{bench.run_id}:0"}
    assert (entry_of(bench).status, entry_of(bench).tries) == ("completed", 2)


def test_a_repeated_step_owes_its_undo_for_the_try_of_which_nobody_knows_the_end(
    bench: Bench, tmp_path: Path
) -> None:
    remote = Remote(tmp_path, "paid", Declined())
    options: dict[str, Any] = {"compensate": "undo.it", "not_done": Declined}
    act = step(name="charge", retry_in_doubt=True, **options)(remote)
    bench.task(body_of(act))
    bench.run_id = bench.send("body")
    die_at(bench, CrashPoint("step.completed", when="before", directory=tmp_path))
    bench.app.commander.bootstrapper.bootstrap()
    assert bench.deliver(bench.run_id)[0] == "FAILURE"
    found = bench.history(bench.run_id).state
    assert found is not None
    assert found.owed == (0,)


@pytest.mark.parametrize(
    "begins, found",
    [(lambda: None, "the body returned"), (lambda: current_run.checkpoint(1), "checkpoint()")],
)
def test_a_changed_body_that_does_not_come_to_the_next_try_is_parked_with_both_sides_named(
    bench: Bench, tmp_path: Path, begins: Callable[[], None], found: str
) -> None:
    act = step(name="charge", retries=1, retry_on=Away, backoff=0)(Remote(tmp_path, Away()))
    bench.task(body_of(act))
    bench.run_id = bench.send("body")
    die_at(bench, CrashPoint("step.try_failed", directory=tmp_path))
    bench.app.commander.bootstrapper.bootstrap()
    bench.app.tasks.pop("body")
    bench.task(body_of(begins))
    assert bench.deliver(bench.run_id)[0] == "IGNORED"
    (*_, last) = bench.app.commander.engine.history(bench.run_id)
    assert (last.type, last.payload["kind"]) == ("run.paused", "version")
    assert "step charge" in last.payload["reason"]
    assert found in last.payload["reason"]


def test_a_kill_between_two_tries_leaves_no_doubt_even_where_a_doubt_would_abort(
    bench: Bench, tmp_path: Path
) -> None:
    remote = Remote(tmp_path, Away(), "paid")
    act = step(name="charge", retries=1, retry_on=Away, backoff=0)(remote)
    bench.task(body_of(act))
    bench.run_id = bench.send("body")
    die_at(bench, CrashPoint("step.try_failed", directory=tmp_path))
    assert bench.history(bench.run_id).in_doubt == ()
    assert bench.app.commander.bootstrapper.bootstrap().recovered == 1
    assert bench.deliver(bench.run_id) == ("SUCCESS", "paid")


def test_code_that_allows_fewer_tries_than_were_made_ends_with_the_recorded_exception(
    bench: Bench, tmp_path: Path
) -> None:
    remote = Remote(tmp_path, Away("the third"), "paid")
    options: dict[str, Any] = {"retry_on": Away, "backoff": 0, "compensate": "undo.it"}
    bench.task(body_of(step(name="charge", retries=3, **options)(remote)))
    bench.run_id = bench.send("body")
    die_at(bench, CrashPoint("step.try_failed", directory=tmp_path))
    bench.app.commander.bootstrapper.bootstrap()
    bench.app.tasks.pop("body")
    bench.task(body_of(step(name="charge", **options | {"retry_on": ()})(remote)))
    state, error = bench.deliver(bench.run_id)
    assert (state, str(error)) == ("FAILURE", "the third")
    assert len(remote.calls) == 1
    found = bench.history(bench.run_id).state
    assert found is not None
    assert found.owed == (0,)


def test_a_run_whose_end_is_asked_for_while_it_waits_is_left_to_recovery(
    bench: Bench, tmp_path: Path
) -> None:
    remote = Remote(tmp_path, Away(), "paid")
    act = step(name="charge", retries=1, retry_on=Away, backoff=3600, backoff_max=3600)(remote)
    commander = bench.app.commander

    def cancel() -> None:
        wait_until(lambda: "step.try_failed" in types(bench), what="the first try")
        told = {"reason": "revoked", "sent": True}
        commander.engine.append("run.cancelled", told, run_id=bench.run_id)

    bench.task(body_of(act))
    bench.run_id = bench.send("body")
    other = threading.Thread(target=cancel)
    other.start()
    assert bench.deliver(bench.run_id)[0] == "IGNORED"
    other.join()
    assert commander.bootstrapper.bootstrap().aborted == 1
    assert len(remote.calls) == 1


def test_a_run_that_is_lost_while_it_waits_tries_nothing_more(bench: Bench, tmp_path: Path) -> None:
    remote = Remote(tmp_path, Away(), "paid")
    act = step(name="charge", retries=1, retry_on=Away, backoff=3600, backoff_max=3600)(remote)
    commander = bench.app.commander

    def take_away() -> None:
        wait_until(lambda: bench.run_id in commander.live, what="the claim")
        wait_until(lambda: "step.try_failed" in types(bench), what="the first try")
        commander.live[bench.run_id].release()

    bench.task(body_of(act))
    bench.run_id = bench.send("body")
    thief = threading.Thread(target=take_away)
    thief.start()
    state, _ = bench.deliver(bench.run_id)
    thief.join()
    assert state == "IGNORED"
    assert len(remote.calls) == 1


@pytest.mark.parametrize(
    "options, error",
    [
        ({"retries": 3}, ValueError),  # after which exceptions?
        ({"retry_on": Away}, ValueError),
        ({"retries": -1, "retry_on": Away}, ValueError),
        ({"retries": 10**9, "retry_on": Away}, ValueError),
        ({"retries": True, "retry_on": Away}, TypeError),
        ({"retries": 1.5, "retry_on": Away}, TypeError),
        ({"retries": 1, "retry_on": "Away"}, TypeError),
        ({"retries": 1, "retry_on": (Away, KeyboardInterrupt)}, TypeError),
        ({"retries": 1, "retry_on": Away, "backoff": -1}, ValueError),
        ({"retries": 1, "retry_on": Away, "backoff": float("nan")}, ValueError),
        ({"retries": 1, "retry_on": Away, "backoff_max": "1"}, TypeError),
        ({"retries": 1, "retry_on": Away, "jitter": 1}, TypeError),
        ({"timeout": 0}, ValueError),
        ({"timeout": float("inf")}, ValueError),
        ({"timeout": "1"}, TypeError),
        ({"retires": 1}, TypeError),
    ],
)
def test_options_that_cannot_work_are_refused_where_they_stand(
    options: dict[str, Any], error: type[Exception]
) -> None:
    def charge() -> None: ...

    with pytest.raises(error, match=r"charge|retires"):
        step(**options)(charge)


# --- a try that takes too long --------------------------------------------------------------------


def sleeps(calls: list[str], *seconds: float) -> Callable[[], str]:
    def act() -> str:
        calls.append("act")
        time.sleep(seconds[len(calls) - 1])
        return "done"

    return act


def test_a_step_that_takes_too_long_is_interrupted_and_its_effect_counts_as_unknown(
    bench: Bench,
) -> None:
    calls: list[str] = []
    act = step(name="charge", timeout=0.2, compensate="undo.it")(sleeps(calls, 300))
    state, error = bench.run(body_of(act))
    assert (state, type(error)) == ("FAILURE", StepTimeout)
    assert "charge" in str(error)
    found = bench.history(bench.run_id).state
    assert found is not None
    assert found.owed == (0,)


def test_a_try_that_took_too_long_is_followed_by_another(bench: Bench) -> None:
    calls: list[str] = []
    options: dict[str, Any] = {"retries": 1, "retry_on": StepTimeout, "backoff": 0}
    act = step(name="charge", timeout=0.2, **options)(sleeps(calls, 300, 0))
    assert bench.run(body_of(act)) == ("SUCCESS", "done")
    assert len(calls) == 2


def test_a_timer_that_runs_already_goes_on_after_the_step(bench: Bench) -> None:
    calls: list[str] = []
    act = step(name="charge", timeout=60)(sleeps(calls, 0))
    before = signal.getitimer(signal.ITIMER_REAL)[0], signal.getsignal(signal.SIGALRM)
    assert bench.run(body_of(act)) == ("SUCCESS", "done")
    after = signal.getitimer(signal.ITIMER_REAL)[0], signal.getsignal(signal.SIGALRM)
    assert after[1] is before[1]
    assert (after[0] > 0) is (before[0] > 0)


def test_a_timer_that_has_struck_leaves_no_trace(bench: Bench) -> None:
    before = signal.getsignal(signal.SIGALRM)
    act = step(name="charge", timeout=0.05)(sleeps([], 300))
    assert bench.run(body_of(act))[0] == "FAILURE"
    assert signal.getsignal(signal.SIGALRM) is before


def test_where_nothing_can_be_interrupted_a_timeout_is_refused_before_the_step(
    bench: Bench,
) -> None:
    calls: list[str] = []
    act = step(name="charge", timeout=60)(sleeps(calls, 0))
    told: list[Any] = []
    bench.task(body_of(act))
    bench.run_id = bench.send("body")
    thread = threading.Thread(target=lambda: told.append(bench.deliver(bench.run_id)))
    thread.start()
    thread.join()
    ((state, error),) = told
    assert (state, type(error)) == ("FAILURE", TimeoutNotPossible)
    assert calls == []
    assert "step.started" not in types(bench)
