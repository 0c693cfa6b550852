"""Bring the bus's messages to callbacks: in a worker's main process, or in a script that listens."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from celery import Celery, bootsteps
from kombu import Connection, Consumer, Queue

from . import bus_broker
from .bus_message import BusMessage, matches
from .errors import UnreadableMessage

logger = logging.getLogger(__name__)

Callback = Callable[[BusMessage], object]

POLL_SECONDS = 0.5
"""The longest time until a script that listens notices that it is to stop."""

RECONNECT_SECONDS = 0.5
BIND_TRIES = 5


@dataclass(frozen=True, slots=True)
class Subscription:
    """What one callback is to hear."""

    pattern: str
    callback: Callback
    queue: str | None
    every_namespace: bool


def hand_out(message: Any, subscriptions: Sequence[Subscription], namespace: str) -> int:
    """Call everybody whom a message concerns, acknowledge it whatever happens; return how many were called."""
    try:
        return _call(_read(message.body), subscriptions, namespace)
    except UnreadableMessage as error:
        logger.warning("A message on the bus was passed over: %s", error)
        return 0
    finally:
        message.ack()


def _read(body: Any) -> BusMessage:
    return BusMessage.unpack(bytes(body) if isinstance(body, memoryview) else body)


def _call(told: BusMessage, subscriptions: Sequence[Subscription], namespace: str) -> int:
    called = 0
    for subscription in subscriptions:
        ours = subscription.every_namespace or told.namespace == namespace
        if ours and matches(subscription.pattern, told.type):
            called += 1
            try:
                subscription.callback(told)
            except Exception:
                logger.exception("A callback for %s failed on %s.", subscription.pattern, told.type)
    return called


@contextmanager
def consuming(
    connection: Connection, subscriptions: Sequence[Subscription], namespace: str
) -> Iterator[Callable[[], int]]:
    """Consume for some subscriptions while a block runs; give a function that counts the callbacks' calls."""
    calls = [0]
    consumers: list[Consumer] = []
    try:
        for queue, heard in _queues(bus_broker.kind_of(connection), subscriptions, namespace):
            consumers.append(_consumer(connection.channel(), queue, heard, namespace, calls=calls))
        yield lambda: calls[0]
    finally:
        close(connection, consumers)


def _consumer(
    channel: Any,
    queue: Queue,
    heard: Sequence[Subscription],
    namespace: str,
    *,
    calls: list[int],
) -> Consumer:
    def receive(message: Any) -> None:
        calls[0] += hand_out(message, heard, namespace)

    consumer = bus_broker.open_consumer(channel, queue, receive)
    consumer.consume()
    return consumer


def _queues(
    kind: str, subscriptions: Sequence[Subscription], namespace: str
) -> Iterator[tuple[Queue, list[Subscription]]]:
    """Yield one queue for all that want their own, and one for each name."""
    for name in dict.fromkeys(subscription.queue for subscription in subscriptions):
        heard = [subscription for subscription in subscriptions if subscription.queue == name]
        patterns = [subscription.pattern for subscription in heard]
        if name is None:
            yield bus_broker.own_queue(kind, patterns), heard
        else:
            yield bus_broker.named_queue(namespace, name, patterns), heard


def close(connection: Connection, consumers: Sequence[Consumer]) -> None:
    """End consumers whose connection may be gone."""
    errors = (*connection.connection_errors, *connection.channel_errors, OSError, AttributeError)
    for consumer in consumers:
        channel: Any = consumer.channel
        for end in (consumer.cancel, lambda: bus_broker.remove_own(consumer)):  # noqa: B023  # called at once
            with suppress(*errors):
                end()
        with suppress(*errors):
            channel.close()


class BusStep(bootsteps.StartStopStep):
    """Consume in a worker's main process, for the subscriptions that stood when it started.

    Celery starts this step anew at each new connection. A broker that refuses it (no permission to declare, say) costs
    the worker its subscriptions, which is said in its log, and nothing else.
    """

    requires = ("celery.worker.consumer:Connection",)

    def __init__(self, parent: Any, **kwargs: Any) -> None:
        super().__init__(parent, **kwargs)
        self._open = ExitStack()

    def include_if(self, parent: Any) -> bool:
        """Stay out of workers that subscribed to nothing."""
        return bool(parent.app.commander.bus.subscriptions)

    def start(self, parent: Any) -> None:
        """Declare the queues and consume."""
        commander = parent.app.commander
        for attempt in range(1, BIND_TRIES + 1):
            try:
                self._open.enter_context(
                    consuming(parent.connection, commander.bus.subscriptions, commander.namespace)
                )
                return
            except parent.connection.connection_errors:
                raise  # Celery connects again, and comes back here
            except Exception:
                if attempt == BIND_TRIES:
                    logger.exception("This worker hears nothing of the bus until it reconnects.")
                time.sleep(0.05 * attempt)  # kombu's exchange file was being written, perhaps

    def stop(self, parent: Any) -> None:
        """Consume no more; own queues end."""
        self._open.close()

    shutdown = stop


def listen(
    app: Celery,
    subscriptions: Sequence[Subscription],
    namespace: str,
    *,
    until: Callable[[], bool],
) -> int:
    """Consume in this thread until `until()` is true, through any outage; return how many callbacks were called."""
    calls = 0
    while not until():
        connection = app.connection_for_read()
        errors = (*connection.connection_errors, *connection.channel_errors)
        try:
            with connection, consuming(connection, subscriptions, namespace) as count:
                try:
                    _drain(connection, until)
                finally:
                    calls += count()
        except errors as error:
            logger.warning("The bus is out of reach, connecting again: %s", error)
            time.sleep(RECONNECT_SECONDS)
    return calls


def _drain(connection: Connection, until: Callable[[], bool]) -> None:
    while not until():
        try:
            connection.drain_events(timeout=POLL_SECONDS)
        except TimeoutError:
            connection.heartbeat_check()
