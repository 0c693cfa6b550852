"""Ask and tell the broker something within a bound: never for longer than a few seconds, broker or no broker."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from celery import Celery
from kombu.exceptions import ChannelError

from .gate import fork_gate

ASK_SECONDS: Final = 2.0
"""How long each call to the broker may take. While it lasts no pool child can be forked."""

_BOUNDS: Final = {
    "redis": ("socket_timeout", "socket_connect_timeout"),
    "amqp": ("read_timeout", "write_timeout"),
}


class BrokerSilent(Exception):
    """The broker did not answer: {reason}."""


def messages_in(app: Celery, queues: Iterable[str]) -> dict[str, int]:
    """Return how many messages wait in each queue; one that does not exist holds nothing, as Redis forgets it.

    Raises:
        BrokerSilent: the broker cannot be asked now.
    """
    with fork_gate.passed():
        try:
            with _bounded_connection(app) as connection:
                return {name: _count(connection, name) for name in dict.fromkeys(queues)}
        except Exception as error:
            # Each transport has exceptions of its own, and some are not told before it has connected.
            raise BrokerSilent(str(error) or type(error).__name__) from error


def tell_workers(
    app: Celery, command: str, arguments: dict[str, Any], names: list[str] | None
) -> None:
    """Send a remote control command to some workers (None: to all) and wait for no answer.

    Raises:
        BrokerSilent: the broker cannot be reached now.
    """
    with fork_gate.passed():
        try:
            with _bounded_connection(app) as connection:
                app.control.broadcast(command, arguments, destination=names, connection=connection)
        except Exception as error:
            raise BrokerSilent(str(error) or type(error).__name__) from error


def ask_workers(app: Celery, command: str, seconds: float) -> dict[str, Any]:
    """Ask all workers by a remote control command; return by name what those said that answered in time.

    Two workers of one name give one answer.

    Raises:
        BrokerSilent: the broker cannot be reached now.
    """
    with fork_gate.passed():
        try:
            with _bounded_connection(app) as connection:
                replies = app.control.broadcast(
                    command, reply=True, timeout=seconds, connection=connection
                )
        except Exception as error:
            raise BrokerSilent(str(error) or type(error).__name__) from error
    return {name: said for reply in replies or () for name, said in reply.items()}


def _bounded_connection(app: Celery) -> Any:
    kind = app.connection_for_read().transport.driver_type
    options = dict.fromkeys(_BOUNDS.get(kind, ()), ASK_SECONDS)
    connection = app.connection_for_read(transport_options=options, connect_timeout=ASK_SECONDS)
    # The channel would be opened with as many tries as it takes; a first connection is tried once.
    connection.ensure_connection(max_retries=1, timeout=ASK_SECONDS, interval_start=0)
    return connection


def _count(connection: Any, queue: str) -> int:
    channel = connection.channel()
    try:
        return int(channel.queue_declare(queue, passive=True).message_count)
    except (*connection.channel_errors, ChannelError):
        return 0
    finally:
        channel.close()
