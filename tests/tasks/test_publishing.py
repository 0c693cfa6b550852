"""A run is in the log before its message can be anywhere else, with everything that is needed to send it again."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from celery import Celery, chain, chord
from kombu.exceptions import OperationalError

from celery_commander.engine import InvalidEvent, RunHistory, State, UnrecordableValue
from celery_commander.tasks import Commander, ReplaceNotSupported
from celery_commander.tasks.message import of_context, of_created
from celery_commander.tasks.publishing import publish_again, publish_as_it_was
from tests.tasks.bench import Bench


def make_app(directory: Path, *, broker: str = "memory://", **settings: Any) -> Celery:
    app = Celery("publishing", broker=broker, backend="cache+memory://")
    app.conf.task_default_queue = directory.name
    app.conf.task_publish_retry = False
    Commander(app, state_directory=directory / "state", **settings)

    @app.task(name="work", durable=True, shared=False)
    def work(*args: Any, **kwargs: Any) -> Any:
        return args

    @app.task(name="plain", shared=False)
    def plain(*args: Any) -> Any:
        return args

    return app


def events(app: Celery) -> list[tuple[str, str | None]]:
    return [(e.type, e.run_id) for e in app.commander.engine.read_from(None)][1:]


def history(app: Celery, run_id: str) -> RunHistory:
    found: RunHistory = app.commander.history(run_id)
    return found


def waiting(app: Celery) -> list[Any]:
    """Take every message out of the queue."""
    taken: list[Any] = []
    with app.connection_for_read() as connection:
        queue = connection.SimpleQueue(app.amqp.queues[app.conf.task_default_queue])
        while True:
            try:
                message = queue.get(block=False)
            except queue.Empty:
                return taken
            message.ack()
            taken.append(message)


@pytest.mark.parametrize("last", ["work", "chain", "chord", "chain of a chord"])
def test_a_replacement_that_would_need_a_second_run_of_one_id_is_refused_before_anything_is_sent(
    tmp_path: Path, last: str
) -> None:
    app = make_app(tmp_path)
    bench = Bench(app, [])
    work, plain = app.tasks["work"], app.tasks["plain"]
    sigs = {
        "work": work.s(1),
        "chain": chain(plain.s(), work.s()),
        "chord": chord([plain.s(), plain.s()], work.s()),
        "chain of a chord": chain(plain.s(), chord([plain.s()], work.s())),
    }

    def body(self: Any) -> None:
        raise self.replace(sigs[last])

    assert isinstance(bench.run(body, bind=True)[1], ReplaceNotSupported)
    assert [message.headers["task"] for message in waiting(app)] == ["body"]


def test_a_plain_task_or_a_group_may_take_a_durable_tasks_place(tmp_path: Path) -> None:
    app = make_app(tmp_path)
    bench = Bench(app, [])
    work, plain = app.tasks["work"], app.tasks["plain"]

    def body(self: Any) -> None:
        raise self.replace(chain(work.s(1), plain.s()))

    assert bench.run(body, bind=True)[0] == "IGNORED"
    assert [message.headers["task"] for message in waiting(app)] == ["body", "work"]
    assert bench.state() is State.COMMITTED


def test_a_retry_whose_message_was_lost_is_sent_again_with_its_count(tmp_path: Path) -> None:
    bench = Bench(make_app(tmp_path, pending_after_seconds=0), [])

    def body(self: Any) -> int:
        if self.request.retries < 2:
            raise self.retry(countdown=0)
        return int(self.request.retries)

    assert bench.run(body, bind=True)[0] == "RETRY"
    assert bench.deliver(bench.run_id, retries=1)[0] == "RETRY"
    waiting(bench.app)  # the broker has lost them all
    assert bench.app.commander.bootstrapper.bootstrap().recovered == 1
    (message,) = waiting(bench.app)
    assert message.headers["retries"] == 2
    assert bench.deliver(bench.run_id, retries=message.headers["retries"]) == ("SUCCESS", 2)


def test_a_durable_task_is_registered_and_then_sent(tmp_path: Path) -> None:
    app = make_app(tmp_path)

    result = app.tasks["work"].delay(1, b=2)

    assert events(app) == [("run.created", result.id), ("task.sent", result.id)]
    state = history(app, result.id).state
    assert state is not None
    assert (state.state, state.task, state.queue) == (State.PENDING, "work", tmp_path.name)
    (message,) = waiting(app)
    assert message.headers["commander"] == {"log_id": app.commander.engine.log_id}


def test_a_task_sent_by_name_is_registered_too_and_a_plain_one_never(tmp_path: Path) -> None:
    app = make_app(tmp_path)

    sent = app.send_task("work", (1,))
    app.send_task("plain", (1,))
    app.tasks["plain"].delay(2)

    assert events(app) == [("run.created", sent.id), ("task.sent", sent.id)]


def test_where_registration_is_off_only_the_message_leaves(tmp_path: Path) -> None:
    app = make_app(tmp_path, register_on_publish="never")

    app.tasks["work"].delay(1)

    assert len(waiting(app)) == 1
    assert not (tmp_path / "state").exists()


def test_a_message_that_did_not_leave_cancels_its_run_so_that_a_second_try_is_the_only_one(
    tmp_path: Path,
) -> None:
    app = make_app(tmp_path, broker="amqp://127.0.0.1:1//")

    with pytest.raises(OperationalError):
        app.tasks["work"].delay(1)

    (created, cancelled) = events(app)
    assert (created[0], cancelled[0]) == ("run.created", "run.cancelled")
    state = history(app, str(created[1])).state
    assert state is not None
    assert (state.state, state.delivered) == (State.COMPENSATED, True)
    assert "not sent" in str(state.cancel_requested)


@pytest.mark.parametrize(
    "value, place",
    [(object(), "args"), ([1, {"deep": object()}], "args"), (float("nan"), "message|args")],
)
def test_what_cannot_travel_is_refused_before_anything_happens(
    tmp_path: Path, value: object, place: str
) -> None:
    app = make_app(tmp_path)

    with pytest.raises(UnrecordableValue, match=place):
        app.tasks["work"].delay(value)

    assert events(app) == []
    assert waiting(app) == []


def test_a_message_too_large_for_the_log_is_refused_before_anything_happens(tmp_path: Path) -> None:
    app = make_app(tmp_path)

    with pytest.raises(InvalidEvent, match="payload"):
        app.tasks["work"].delay("x" * (1024 * 1024 + 1))

    assert events(app) == []
    assert waiting(app) == []


def test_a_registered_message_is_sent_again_as_it_was_without_its_expiry(tmp_path: Path) -> None:
    app = make_app(tmp_path)
    args = (datetime(2026, 1, 2, tzinfo=UTC), UUID(int=7), Decimal("1.10"), "é", [1, None])
    after = app.tasks["plain"].s()
    result = app.tasks["work"].apply_async(
        args, {"k": 1}, link=after, expires=60, priority=3, headers={"mine": "x"}
    )
    (first,) = waiting(app)

    publish_again(app.commander, of_created(history(app, result.id).created))

    (second,) = waiting(app)
    assert second.payload == first.payload
    assert second.properties["priority"] == first.properties["priority"] == 3
    assert second.headers["mine"] == "x"
    assert second.headers["expires"] is None
    same = {key: value for key, value in first.headers.items() if key != "expires"}
    assert {key: value for key, value in second.headers.items() if key != "expires"} == same
    assert [kind for kind, _ in events(app)] == ["run.created", "task.sent"]


def test_canvas_registers_each_durable_member_that_leaves_with_what_comes_after_it(
    tmp_path: Path,
) -> None:
    app = make_app(tmp_path)
    work, plain = app.tasks["work"], app.tasks["plain"]

    chain(work.s(1), work.s(2), plain.s()).apply_async()
    chord([work.s(3), work.s(4)], plain.s()).apply_async()

    created = [e for e in app.commander.engine.read_from(None) if e.type == "run.created"]
    embeds = [of_created(event.payload).body[2] for event in created]
    assert len(created) == 3
    assert len(embeds[0]["chain"]) == 2
    assert [bool(embed["chord"]) for embed in embeds] == [False, True, True]


def test_the_same_task_id_twice_is_one_run(tmp_path: Path) -> None:
    app = make_app(tmp_path)

    for argument in (1, 2):
        app.tasks["work"].apply_async((argument,), task_id="mine")

    found = history(app, "mine")
    assert of_created(found.created).body[0] == [1]
    assert [event.type for event, _ in found.voided] == ["run.created"]


def test_an_eta_without_a_zone_means_utc_as_celerys_workers_read_it(tmp_path: Path) -> None:
    app = make_app(tmp_path)
    app.conf.timezone = "Europe/Berlin"

    result = app.tasks["work"].apply_async((1,), eta=datetime(2027, 1, 2, 12, 0))  # noqa: DTZ001

    found = history(app, result.id)
    assert found.state is not None
    assert found.state.due_at == datetime(2027, 1, 2, 12, 0, tzinfo=UTC)
    assert not found.voided


def test_a_failed_second_publication_under_a_taken_id_cancels_nothing(tmp_path: Path) -> None:
    app = make_app(tmp_path)
    app.tasks["work"].apply_async((1,), task_id="mine")
    app.commander.engine.close()
    cut_off = make_app(tmp_path, broker="amqp://127.0.0.1:1//")

    with pytest.raises(OperationalError):
        cut_off.tasks["work"].apply_async((2,), task_id="mine")

    app = cut_off

    found = history(app, "mine")
    assert found.state is not None
    assert (found.state.state, found.state.cancel_requested) == (State.PENDING, None)


def test_a_message_known_only_by_its_routing_key_goes_back_to_that_queue(tmp_path: Path) -> None:
    app = make_app(tmp_path)
    context = {"id": "r-1", "args": [1], "kwargs": {}, "task": "work"}
    context["delivery_info"] = {"exchange": "", "routing_key": tmp_path.name}

    publish_as_it_was(app, of_context("work", context))

    (message,) = waiting(app)
    assert message.headers["id"] == "r-1"
    assert message.payload[0] == [1]
