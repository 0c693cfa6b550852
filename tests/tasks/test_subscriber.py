"""The subscriber in one process: what it keeps, drops and says, and that it never gets in a task's way."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, signals
from celery.app.trace import build_tracer

from celery_commander.engine import Event
from celery_commander.tasks import Commander, EventSourcingSubscriber
from celery_commander.tasks.observations import Observation, event_of
from tests.kit import wait_until

SECRET = "4111-1111-1111-1111"


def seen(number: int, **changes: Any) -> Observation:
    plain = Observation("task.started", f"t-{number}", "mail.send", 1, time.time())
    return plain._replace(**changes)


def make_app(directory: Path, **settings: Any) -> Celery:
    app = Celery("watched", broker="memory://", backend="cache+memory://")
    quick = {"observe_flush_seconds": 0.01}
    Commander(app, state_directory=directory / "state", **{**quick, **settings})
    return app


@pytest.fixture
def app(tmp_path: Path) -> Celery:
    app = make_app(tmp_path)
    app.commander.engine.append("test.begun", {})  # the store is there, as in a worker
    return app


def events(app: Celery, kind: str = "task.") -> list[Event]:
    found = list(app.commander.engine.read_from(None))
    return [event for event in found if event.type.startswith(kind)]


def flushed(app: Celery, kind: str = "task.") -> list[Event]:
    assert app.commander.subscriber.flush(20)
    return events(app, kind)


@pytest.fixture
def away(app: Celery) -> Iterator[Path]:
    """Take the log away; whoever wants it back renames it."""
    wal = Path(app.commander.engine.path)
    moved = wal.rename(wal.with_suffix(".away"))
    yield moved
    if moved.exists():
        moved.rename(wal)


def test_it_is_a_public_part_of_the_commander(app: Celery) -> None:
    assert isinstance(app.commander.subscriber, EventSourcingSubscriber)
    assert app.commander.subscriber.facts() == {
        "dropped": 0,
        "queued": 0,
        "oldest_age_seconds": 0.0,
        "last_error": None,
    }


def test_observations_arrive_in_the_order_in_which_they_were_put(app: Celery) -> None:
    for number in range(100):
        app.commander.subscriber.put(seen(number))

    assert [event.run_id for event in flushed(app)] == [f"t-{n}" for n in range(100)]


def test_a_full_queue_drops_and_the_log_is_told_how_many_before_anything_else(
    tmp_path: Path,
) -> None:
    app = make_app(tmp_path, observe_queue_events=5)
    subscriber = app.commander.subscriber
    app.commander.engine.append("test.begun", {})
    subscriber.hold()  # as before the pool is made: no thread takes anything out
    for number in range(12):
        subscriber.put(seen(number))
    assert subscriber.facts()["dropped"] == 7
    assert subscriber.facts()["queued"] == 5
    subscriber.release()
    subscriber.put(seen(12))

    written = flushed(app, "")[2:]

    assert [event.type for event in written] == ["subscriber.gap"] + ["task.started"] * 5
    gap = written[0].payload
    assert (gap["count"], gap["reason"]) == (8, "the queue was full")
    assert gap["since"] <= gap["until"]


def test_a_gap_is_told_once(tmp_path: Path) -> None:
    app = make_app(tmp_path, observe_queue_events=1)
    subscriber = app.commander.subscriber
    app.commander.engine.append("test.begun", {})
    for _ in range(2):
        subscriber.hold()
        for number in range(3):
            subscriber.put(seen(number))
        subscriber.release()
        subscriber.put(seen(3))
        flushed(app)

    assert [event.payload["count"] for event in events(app, "subscriber.gap")] == [3, 3]


def test_drops_of_many_threads_are_all_counted(tmp_path: Path) -> None:
    app = make_app(tmp_path, observe_queue_events=1)
    app.commander.engine.append("test.begun", {})
    subscriber = app.commander.subscriber
    subscriber.hold()

    def put_many() -> None:
        for number in range(2000):
            subscriber.put(seen(number))

    threads = [threading.Thread(target=put_many) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    facts = subscriber.facts()
    assert facts["dropped"] + facts["queued"] == 8000
    flushed(app)
    (gap,) = events(app, "subscriber.gap")
    assert gap.payload["count"] == facts["dropped"]


def test_an_outage_is_waited_out_and_recording_resumes_by_itself(app: Celery, away: Path) -> None:
    subscriber = app.commander.subscriber
    subscriber.put(seen(1))
    wait_until(lambda: subscriber.facts()["last_error"] == "LogMoved")
    assert subscriber.facts()["queued"] == 1
    assert subscriber.facts()["oldest_age_seconds"] > 0

    away.rename(app.commander.engine.path)

    wait_until(lambda: [event.run_id for event in events(app)] == ["t-1"])
    wait_until(lambda: subscriber.facts()["last_error"] is None)


def test_a_flush_is_bounded_when_the_log_is_away(app: Celery, away: Path) -> None:
    subscriber = app.commander.subscriber
    subscriber.put(seen(1))

    assert subscriber.flush(0.2) is False

    away.rename(app.commander.engine.path)
    subscriber.put(seen(2))
    assert [event.run_id for event in flushed(app)] == ["t-1", "t-2"]


def test_what_the_log_cannot_hold_does_not_take_the_others_with_it(app: Celery) -> None:
    subscriber = app.commander.subscriber
    odd = [seen(1, id="\ud800"), seen(2, id="x" * 1000), seen(3, id=None), seen(4, at=float("nan"))]
    for each in [seen(0), *odd, seen(5)]:
        subscriber.put(each)

    written = flushed(app)

    assert [event.run_id for event in written] == ["t-0", None, None, None, "t-5"]
    assert [event.payload.get("id") for event in written[1:4]] == ["?", "x" * 255, None]
    assert subscriber.facts()["dropped"] == 1


def test_every_observation_is_small_whatever_it_is_given() -> None:
    event = event_of(seen(1, task="n" * 10_000, more={"queue": "q" * 10_000, "worker": object()}))

    assert max(len(str(value)) for value in event.data.values()) <= 255


def test_a_child_of_a_fork_writes_its_own_and_not_its_parents(app: Celery) -> None:
    subscriber = app.commander.subscriber
    subscriber.hold()
    subscriber.put(seen(1))
    pid = os.fork()
    if pid == 0:
        subscriber.put(seen(2))
        os._exit(0 if subscriber.flush(20) else 1)
    assert os.waitpid(pid, 0)[1] == 0
    subscriber.release()
    subscriber.put(seen(3))

    assert [event.run_id for event in flushed(app)] == ["t-2", "t-1", "t-3"]


def test_a_child_finds_the_locks_of_the_signals_free(app: Celery) -> None:
    """See celery/celery issue 9808: a lock that was held at the fork stays locked in the child."""
    with signals.task_failure.lock:
        pid = os.fork()
        if pid == 0:
            os._exit(0 if signals.task_failure.lock.acquire(timeout=5) else 1)
        assert os.waitpid(pid, 0)[1] == 0


def test_many_threads_that_begin_at_once_start_one_writer(app: Celery) -> None:
    subscriber = app.commander.subscriber
    barrier = threading.Barrier(8)

    def put_one(number: int) -> None:
        barrier.wait()
        subscriber.put(seen(number))

    threads = [threading.Thread(target=put_one, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    names = [thread.name for thread in threading.enumerate()]
    assert names.count("commander-subscriber") <= 1
    assert len(flushed(app)) == 8


class Traced:
    """Run bodies through Celery's own tracer, with our receivers connected as in a worker."""

    def __init__(self, app: Celery) -> None:
        self.app = app
        signals.worker_process_init.send(sender="here")

    def run(self, body: Any, *, name: str | None = None, **request: Any) -> str:
        task = self.app.task(name=name or body.__name__, shared=False, bind=True)(body)
        task_id = f"id-{task.name}"
        told = {"id": task_id, "hostname": "here", "delivery_info": {}, "args": (), "kwargs": {}}
        build_tracer(task.name, task, app=self.app)(task_id, (), {}, told | request)
        return task_id

    def kinds(self, task_id: str) -> list[str]:
        return [e.type.removeprefix("task.") for e in flushed(self.app) if e.run_id == task_id]


def good(self: Any) -> str:
    return SECRET


def bad(self: Any) -> None:
    raise ValueError(SECRET)


@pytest.mark.parametrize(
    "observe, of_good, of_bad",
    [
        ("all", ["started", "succeeded"], ["started", "failed"]),
        ("failures", [], ["failed"]),
        ("none", [], []),
        (["go*"], ["started", "succeeded"], []),
        ("x.y, ba?", [], ["started", "failed"]),
    ],
)
def test_what_is_observed_is_what_the_setting_says(
    tmp_path: Path, observe: Any, of_good: list[str], of_bad: list[str]
) -> None:
    app = make_app(tmp_path, observe=observe)
    app.commander.engine.append("test.begun", {})
    traced = Traced(app)

    assert traced.kinds(traced.run(good)) == of_good
    assert traced.kinds(traced.run(bad)) == of_bad
    assert SECRET.encode() not in Path(app.commander.engine.path).read_bytes()


def test_of_our_own_tasks_only_failures_are_observed(app: Celery) -> None:
    traced = Traced(app)

    assert traced.kinds(traced.run(good, name="celery_commander.good")) == []
    assert traced.kinds(traced.run(bad, name="celery_commander.bad")) == ["failed"]


def test_an_eager_task_is_a_function_call(app: Celery) -> None:
    traced = Traced(app)

    assert traced.kinds(traced.run(good, is_eager=True)) == []


def test_a_task_of_another_app_is_not_ours(app: Celery) -> None:
    Traced(app)
    stranger = Traced(Celery("stranger", backend="cache+memory://"))

    stranger.run(good)

    assert flushed(app) == []


def test_a_durable_run_writes_no_duplicates(app: Celery) -> None:
    Traced(app)

    @app.task(name="run", durable=True, shared=False)
    def run() -> None:
        pass

    signals.task_prerun.send(sender=run, task_id="r-1", task=run, args=(), kwargs={})
    signals.task_success.send(sender=run, result=None, runtime=0.1)

    assert flushed(app) == []


def test_what_cannot_be_observed_never_reaches_the_sender(app: Celery) -> None:
    app.commander.subscriber.sent("mail.send", {"retries": object()}, {})

    assert flushed(app) == []
