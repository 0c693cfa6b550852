"""Messages of another store are held outside the pool and handed back, none of them lost."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from kombu import Connection

from celery_commander.tasks.foreign import ForeignMessages, foreign_log, pause_of, refusals_of
from tests.tasks.bench import Bench


class Prefetch:
    """Count as Celery's own does."""

    def __init__(self) -> None:
        self.value = 4

    def increment_eventually(self) -> None:
        self.value += 1

    def decrement_eventually(self) -> None:
        self.value -= 1


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    moment = [1_000.0]
    monkeypatch.setattr("celery_commander.tasks.foreign.time.monotonic", lambda: moment[0])
    return moment


@pytest.fixture
def consumer() -> Any:
    soon: list[Any] = []
    return SimpleNamespace(
        qos=Prefetch(),
        connection=object(),
        connection_errors=(),
        call_soon=soon.append,
        soon=soon,  # what the main thread does at its next turn
    )


@pytest.fixture
def held(bench: Bench) -> ForeignMessages:
    assert bench.app.commander.engine.log_id
    return ForeignMessages(bench.app.commander)


def waiting(bench: Bench) -> list[Any]:
    """Take every message out of the app's queue."""
    found = []
    with bench.app.connection_for_read() as connection:
        queue = connection.SimpleQueue(bench.app.conf.task_default_queue)
        while queue.qsize():
            message = queue.get(block=False)
            message.ack()
            found.append(message)
        queue.close()
    return found


def message_of(bench: Bench, refused: int = 0) -> Any:
    """Return a message as a worker gets it whose run another log holds."""

    def pay() -> None:
        """Do nothing."""

    bench.task(pay)
    bench.send("pay")
    (message,) = waiting(bench)
    stamp = {"log_id": "theirs"} | ({"refused": refused} if refused else {})
    message.headers["commander"] = stamp
    return message


def test_the_pauses_double_up_to_the_longest() -> None:
    assert [pause_of(n, 30.0) for n in (0, 1, 2, 5, 9_999)] == [1, 2, 4, 30, 30]


@pytest.mark.parametrize(
    "headers", [None, {}, {"commander": None}, {"commander": "x"}, {"commander": {}}]
)
def test_a_message_that_names_no_log_is_not_foreign(bench: Bench, headers: Any) -> None:
    assert bench.app.commander.engine.log_id
    assert foreign_log(bench.app.commander, headers) is None


def test_what_was_held_long_enough_is_published_once_more_and_then_acknowledged(
    bench: Bench, held: ForeignMessages, now: list[float], consumer: Any
) -> None:
    message, acknowledged = message_of(bench, refused=2), []
    before = (dict(message.headers), message.body)
    held.take(
        message,
        "theirs",
        consumer=consumer,
        acknowledge=lambda: acknowledged.append(waiting(bench)),
    )
    assert consumer.qos.value == 5  # its place is given to another one

    now[0] += 3.9
    held.hand_back()
    assert consumer.soon == []
    now[0] += 0.2
    held.hand_back()
    held.hand_back()
    assert acknowledged == []  # this thread must not touch the channel

    (acknowledge,) = consumer.soon
    acknowledge()
    ((again,),) = acknowledged  # the broker had it before
    assert (dict(message.headers), message.body) == before
    assert again.headers | {"commander": None} == message.headers | {"commander": None}
    assert again.headers["commander"] == {"log_id": "theirs", "refused": 3}
    assert again.payload == message.payload
    assert again.properties["correlation_id"] == message.properties["correlation_id"]
    assert consumer.qos.value == 4


def test_a_broker_that_takes_nothing_leaves_the_message_held(
    bench: Bench, held: ForeignMessages, now: list[float], consumer: Any
) -> None:
    message = message_of(bench)
    held.take(message, "theirs", consumer=consumer, acknowledge=message.ack)
    pool, away = bench.app.amqp.producer_pool, Connection("amqp://127.0.0.1:1//", connect_timeout=1)
    broken = pool.__class__(away.Pool(1), limit=1)
    away.transport_options = {"max_retries": 1, "interval_start": 0}
    bench.app.amqp.__dict__["_producer_pool"] = broken

    now[0] += 1.1
    held.hand_back()
    assert consumer.soon == []
    bench.app.amqp.__dict__["_producer_pool"] = pool
    now[0] += 2.1
    held.hand_back()

    assert len(consumer.soon) == 1
    assert len(waiting(bench)) == 1


def test_a_message_of_a_lost_connection_is_the_brokers_to_send_again(
    bench: Bench, held: ForeignMessages, now: list[float], consumer: Any
) -> None:
    message = message_of(bench)
    held.take(message, "theirs", consumer=consumer, acknowledge=message.ack)
    consumer.connection = object()

    now[0] += 1.1
    held.hand_back()

    assert (consumer.soon, waiting(bench)) == ([], [])


def test_a_worker_gives_up_no_more_places_than_it_may(
    bench: Bench, now: list[float], consumer: Any
) -> None:
    bench.app.commander._overrides["foreign_messages"] = 2
    held, message = ForeignMessages(bench.app.commander), message_of(bench)

    for _ in range(3):
        held.take(message, "theirs", consumer=consumer, acknowledge=lambda: None)
    assert consumer.qos.value == 6
    now[0] += 2
    held.hand_back()

    assert consumer.qos.value == 4
    assert len(waiting(bench)) == 3


def test_a_broker_that_sends_again_what_is_held_too_long_gets_it_before(
    bench: Bench, held: ForeignMessages, now: list[float], consumer: Any
) -> None:
    bench.app.conf.broker_transport_options = {"visibility_timeout": 8}
    held.take(message_of(bench, 9), "theirs", consumer=consumer, acknowledge=lambda: None)

    now[0] += 2.1
    held.hand_back()

    assert [refusals_of(message.headers) for message in waiting(bench)] == [10]


def test_another_log_is_remembered_while_its_messages_come(
    bench: Bench, held: ForeignMessages, now: list[float], consumer: Any
) -> None:
    message = message_of(bench)
    for _ in range(2):
        held.take(message, "theirs", consumer=consumer, acknowledge=lambda: None)
    seen = held.logs()["theirs"]
    assert (seen["count"], seen["task"], seen["run_id"]) == (2, "pay", message.headers["id"])

    now[0] += 89
    assert held.logs() != {}
    now[0] += 2
    assert held.logs() == {}
