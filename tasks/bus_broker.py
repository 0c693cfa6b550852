"""Know how the bus lies on each kind of broker: exchanges, queues, and connections that cannot hang for ever.

Messages go to the topic exchange `commander`. A subscriber's own queue lives as long as its connection; a named queue
stays, holds what comes while nobody listens, and is shared by all who name it.

- RabbitMQ: own queues are exclusive, named ones durable. Publishing waits for the broker's confirmation.
- Redis: it has no queue that ends with its reader, so own queues would fill up after a SIGKILL. What is published goes,
  beside the named queues, to the fanout exchange `commander.live`, which is Redis's own pub/sub.
- Files and memory: an own queue is removed when its reader stops; one that a killed reader left stays with its files.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from celery import Celery
from kombu import Connection, Consumer, Exchange, Producer, Queue, binding
from kombu.transport import filesystem
from kombu.utils.json import dumps

EXCHANGE = Exchange("commander", type="topic", durable=True)
LIVE = Exchange("commander.live", type="fanout", durable=False)
"""Where Redis's pub/sub lies; on other brokers the topic exchange serves own queues too."""

SOCKET_SECONDS = 5.0
EXPIRES_SECONDS = 300
"""How long the broker keeps an own queue that nobody reads, where it can tell."""

PREFETCH = 100

_BOUNDED: Mapping[str, Mapping[str, Any]] = {
    "redis": {"socket_timeout": SOCKET_SECONDS, "socket_connect_timeout": SOCKET_SECONDS},
    "amqp": {
        "read_timeout": SOCKET_SECONDS,
        "write_timeout": SOCKET_SECONDS,
        "confirm_publish": True,
    },
}


class WholeFileChannel(filesystem.Channel):
    """Kombu's channel of files, whose messages appear all at once.

    Kombu itself makes a message's file first and fills it afterwards, and a worker that reads an empty one stops.
    """

    def _put(  # type: ignore[override]  # kombu itself has two names for the second argument
        self, queue: str, payload: Any, **_options: Any
    ) -> None:
        name = f"{time.monotonic_ns():020}_{uuid.uuid4()}.{queue}.msg"
        unfinished = os.path.join(self.data_folder_out, f"unfinished-{uuid.uuid4()}")
        with open(unfinished, "w", encoding="utf-8") as file:
            file.write(dumps(payload))
        os.rename(unfinished, os.path.join(self.data_folder_out, name))


class WholeFileTransport(filesystem.Transport):
    """Kombu's transport over files, with whole messages only."""

    Channel = WholeFileChannel


def kind_of(connection: Connection) -> str:
    """Return which kind of broker a connection leads to: amqp, redis, filesystem, memory or another."""
    return str(connection.get_transport_cls().driver_type)


def load_transport(app: Celery) -> None:
    """Import what the app's broker needs; not left to a thread, which may come to it when the process ends."""
    app.connection_for_write().get_transport_cls()


@contextmanager
def open_post(app: Celery) -> Iterator[Callable[[str, str], None]]:
    """Connect to the app's broker for a block; give a function that publishes one body under one key."""
    with _bounded(app.connection_for_write()) as connection:
        connection.ensure_connection(
            max_retries=max(1, len(connection.alt)), interval_start=0, interval_step=0
        )
        exchanges = (EXCHANGE, LIVE) if kind_of(connection) == "redis" else (EXCHANGE,)
        producers = [Producer(connection.default_channel, exchange) for exchange in exchanges]

        def send(key: str, body: str) -> None:
            for producer in producers:
                producer.publish(
                    body,
                    routing_key=key,
                    content_type="application/json",
                    content_encoding="utf-8",
                    confirm_timeout=SOCKET_SECONDS,
                )

        yield send


def _bounded(connection: Connection) -> Connection:
    """Give a connection that is not open yet a bound for every wait; what the app itself says wins."""
    if connection.get_transport_cls() is filesystem.Transport:
        connection.transport_cls = WholeFileTransport
    bounds = _BOUNDED.get(kind_of(connection), {})
    connection.transport_options = {**bounds, **(connection.transport_options or {})}
    return connection


def own_queue(kind: str, patterns: Iterable[str]) -> Queue:
    """Return a queue for one reader, which ends with it."""
    name = f"commander.bus.{uuid.uuid4().hex}"
    if kind == "redis":
        return Queue(
            name, LIVE, "#", durable=False, auto_delete=True, expires=float(EXPIRES_SECONDS)
        )
    return Queue(
        name,
        bindings=_bindings(patterns),
        durable=False,
        exclusive=kind == "amqp",
        auto_delete=True,
    )


def named_queue(namespace: str, name: str, patterns: Iterable[str]) -> Queue:
    """Return a queue that stays and that all readers of one name share."""
    return Queue(f"commander.{namespace}.{name}", bindings=_bindings(patterns), durable=True)


def _bindings(patterns: Iterable[str]) -> list[binding]:
    return [binding(EXCHANGE, routing_key=pattern) for pattern in sorted(set(patterns))]


def open_consumer(channel: Any, queue: Queue, on_message: Callable[[Any], object]) -> Consumer:
    """Return a consumer of one queue, which it has declared and bound."""
    return Consumer(
        channel,
        queues=[queue],
        on_message=on_message,
        accept=["json"],
        prefetch_count=PREFETCH,
    )


def remove_own(consumer: Consumer) -> None:
    """Remove the own queues of a consumer that stops, on brokers that would keep them."""
    channel: Any = consumer.channel
    kind = getattr(channel.connection, "driver_type", "amqp")  # kombu's own transports have one
    if kind in ("amqp", "redis"):
        return
    for queue in list(consumer.queues or ()):
        if queue.auto_delete:
            queue(channel).delete()
            if kind == "filesystem":
                _forget_binding(channel.control_folder / f"{EXCHANGE.name}.exchange", queue.name)
            for bound in queue.bindings:
                with suppress(KeyError):
                    bound.unbind(queue, channel=channel)


def _forget_binding(path: Path, queue: str) -> None:
    """Take a queue out of an exchange's file; kombu does so since 5.6 only, and would go on filling the queue."""
    with suppress(FileNotFoundError), path.open("r+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        bindings = json.load(file)
        kept = [bound for bound in bindings if bound[2] != queue]
        if kept != bindings:
            file.seek(0)
            file.truncate()
            json.dump(kept, file)
