"""One suite for the bus over every broker: what is published is heard, by those whom it concerns, and nobody waits."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from kombu.transport import filesystem

from celery_commander.tasks import (
    BusMessage,
    MessageBus,
    bus_broker,
    bus_subscriber,
)
from celery_commander.tasks.bus_subscriber import Subscription
from tests.kit import PATIENCE_SECONDS, wait_until
from tests.tasks.bus_kit import drain, make_app

BROKERS = [
    "memory",
    "filesystem",
    "redis",
    pytest.param("rabbitmq", marks=pytest.mark.slow),  # it takes ten seconds to start
]
Make = Callable[..., MessageBus]


@pytest.fixture(params=BROKERS)
def broker(request: pytest.FixtureRequest) -> str:
    if request.param in ("redis", "rabbitmq"):
        return str(request.getfixturevalue(f"{request.param}_url"))
    return f"{request.param}://"


@pytest.fixture
def make(tmp_path: Path, broker: str) -> Make:
    def made(name: str = "shop", **settings: Any) -> MessageBus:
        bus: MessageBus = make_app(tmp_path, broker, name, **settings).commander.bus
        return bus

    return made


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bus_subscriber, "POLL_SECONDS", 0.1)


@pytest.fixture
def queue() -> str:
    """Give a name of the test's own: RabbitMQ outlives it."""
    return f"audit-{uuid.uuid4().hex[:8]}"


@contextmanager
def listening(bus: MessageBus, pattern: str, **options: Any) -> Iterator[list[BusMessage]]:
    """Listen in a thread with a queue of its own, from before the block begins."""
    heard: list[BusMessage] = []
    over, bound = threading.Event(), threading.Event()

    def take(message: BusMessage) -> None:
        if message.type == "test.bound":
            bound.set()
        else:
            heard.append(message)

    def listen() -> None:
        every = options.get("every_namespace", False)
        # Two patterns on one queue: the second one tells when it is bound.
        two = [Subscription(one, take, None, every) for one in (pattern, "test.bound")]
        bus_subscriber.listen(bus._commander.app, two, "shop", until=over.is_set)

    thread = threading.Thread(target=listen)
    thread.start()
    try:
        for _ in range(400):
            bus.publish("test.bound", {})
            if bound.wait(0.05):
                break
        assert bound.is_set()
        yield heard
    finally:
        over.set()
        thread.join(20)


def test_what_is_published_is_heard_as_it_was_told(make: Make) -> None:
    bus = make()

    with listening(bus, "run.#") as heard:
        bus.publish("run.recovered", {"reason": "owner dead", "n": [1, None]}, run_id="r-1")
        wait_until(lambda: heard, what="the message")

    (message,) = heard
    assert (message.type, message.run_id, message.namespace) == ("run.recovered", "r-1", "shop")
    assert message.data == {"reason": "owner dead", "n": [1, None]}
    assert abs(message.at.timestamp() - time.time()) < 60


def test_only_what_matches_is_heard_in_order(make: Make, queue: str) -> None:
    bus = make()
    drain(bus, "run.*", queue)

    for number in range(150):  # more than one burst
        bus.publish("run.stuck", {"number": number})
        bus.publish("health.changed", {"number": number})
    assert bus.flush(20)
    heard = drain(bus, "run.*", queue, count=150)

    assert [message.data["number"] for message in heard] == list(range(150))
    assert {message.type for message in heard} == {"run.stuck"}
    assert bus.facts() == {"undelivered": 0, "dropped": 0, "last_error": None}


def test_a_named_queue_keeps_what_comes_while_nobody_listens(make: Make, queue: str) -> None:
    bus = make()
    drain(bus, "#", queue)

    bus.publish("run.parked", {}, run_id="r-1")
    assert bus.flush(20)

    assert [message.run_id for message in drain(bus, "#", queue, count=1)] == ["r-1"]
    assert drain(bus, "#", queue) == []


def test_a_callback_that_fails_has_heard_its_message(
    make: Make, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    bus = make()
    drain(bus, "#", queue)
    bus.publish("run.stuck", {}, run_id="r-1")
    calls: list[str | None] = []

    def fail(message: BusMessage) -> None:
        calls.append(message.run_id)
        raise RuntimeError("no mail today")

    bus.listen("#", fail, queue=queue, seconds=PATIENCE_SECONDS, until=lambda: bool(calls))

    assert calls == ["r-1"]
    assert "no mail today" in caplog.text
    assert drain(bus, "#", queue) == []


def test_another_namespace_is_heard_on_request_only(make: Make, queue: str) -> None:
    ours, theirs = make(), make("bank")

    with (
        listening(ours, "run.#") as own,
        listening(ours, "run.#", every_namespace=True) as every,
    ):
        theirs.publish("run.stuck", {})
        ours.publish("run.stuck", {})
        wait_until(lambda: own and len(every) == 2, what="both")

    assert [message.namespace for message in own] == ["shop"]
    assert {message.namespace for message in every} == {"shop", "bank"}


def test_an_own_queue_ends_with_its_reader(make: Make, broker: str, tmp_path: Path) -> None:
    bus = make()
    with listening(bus, "run.#"):
        pass

    bus.publish("run.stuck", {})
    assert bus.flush(20)

    assert left_behind(broker, tmp_path) == []


def test_a_message_in_a_file_appears_all_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kombu makes the file first and fills it then; a worker that reads it in between stops."""
    bus = make_app(tmp_path, "filesystem://", "shop").commander.bus
    drain(bus, "#", "audit")
    seen: list[list[int]] = []
    real = filesystem.dumps

    def watch(message: Any) -> str:
        seen.append([file.stat().st_size for file in (tmp_path / "messages").glob("*.msg")])
        return str(real(message))

    for module in (filesystem, bus_broker):
        monkeypatch.setattr(module, "dumps", watch)
    bus.publish("run.stuck", {}, run_id="r-1")
    assert bus.flush(20)

    assert seen == [[]]
    assert [message.run_id for message in drain(bus, "#", "audit", count=1)] == ["r-1"]


def left_behind(broker: str, tmp_path: Path) -> list[str]:
    """Return what an own queue has left in the broker, where it can be looked at from outside."""
    if broker.startswith("filesystem"):
        return [path.name for path in (tmp_path / "messages").iterdir()]
    if broker.startswith("redis"):
        from redis import Redis

        with Redis.from_url(broker, decode_responses=True) as client:
            return [key for key in client.scan_iter() if key.startswith("commander.bus")]
    if broker.startswith("memory"):
        from kombu.transport.memory import Channel

        return [name for name in Channel.queues if name.startswith("commander.bus")]
    return []  # the server itself removes an exclusive queue
