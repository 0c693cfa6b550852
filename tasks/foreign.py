"""Hold messages of another store in the worker's main process, and hand each back after a pause that grows.

Such a message is not this worker's to run: executing it here would split its run's history. It is met before a pool
process is taken, waits unacknowledged, and is then published once more as it came, with one more refusal counted in its
header: so a worker that has the right store soon gets it, and one that never comes costs little. The place that a held
message takes among the prefetched ones is given back at once, so the worker's own work goes on beside it.

Weak here: beyond `foreign_messages` held ones of a worker, the others keep their places, and its own work slows down.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from celery import Celery, Task
from celery.contrib.migrate import republish
from kombu.utils.imports import symbol_by_name

from .gate import fork_gate
from .message import HEADER

if TYPE_CHECKING:
    from .install import Commander

logger = logging.getLogger(__name__)

FIRST_SECONDS: Final = 1.0
AGAIN_SECONDS: Final = 2.0
"""The pause after a broker that took nothing."""

LOGS_AT_MOST: Final = 10
FORGET_FACTOR: Final = 3.0
"""After how many of the longest pauses a log whose messages come no more is forgotten."""

_OF_THE_DELIVERY: Final = (
    "application_headers", "content_type", "content_encoding", "headers",
    "delivery_info", "delivery_tag", "body_encoding",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Held:
    """One message that waits to be handed back."""

    due: float
    message: Any
    acknowledge: Callable[[], Any]
    consumer: Any
    connection: Any
    has_place: bool  # among the prefetched ones; given up again when it leaves


@dataclass(frozen=True, slots=True)
class Seen:
    """What is told of another log."""

    at: float
    count: int
    run_id: str
    task: str


class ForeignMessages:
    """Keep the messages of other stores that one worker holds, and remember what it saw."""

    def __init__(self, commander: Commander) -> None:
        self._commander = commander
        self._held: list[Held] = []
        self._seen: dict[str, Seen] = {}
        self._lock = threading.Lock()

    def take(
        self, message: Any, log_id: str, *, consumer: Any, acknowledge: Callable[[], Any]
    ) -> None:
        """Hold a message; called in the worker's main thread, so it sends nothing and waits for nothing."""
        settings = self._commander.settings
        refused = refusals_of(message.headers)
        pause_seconds = pause_of(refused, self._longest_seconds())
        run_id, task = str(message.headers.get("id")), str(message.headers.get("task"))
        level = logging.INFO if refused else logging.ERROR
        logger.log(
            level,
            "Run %s was not started and is handed back in %g s: it is recorded in log %s; this worker writes %s in %s."
            " Give both one state directory.",
            *(run_id, pause_seconds, log_id),
            *(self._commander.engine.log_id, self._commander.engine_settings.state_directory),
        )
        with self._lock:
            has_place = len(self._held) < settings.foreign_messages
            if has_place:
                consumer.qos.increment_eventually()
            due = time.monotonic() + pause_seconds
            held = (due, message, acknowledge, consumer, consumer.connection, has_place)
            self._held.append(Held(*held))
            before = self._seen.pop(log_id, None)
            if len(self._seen) < LOGS_AT_MOST:
                count = (before.count if before else 0) + 1
                self._seen[log_id] = Seen(time.monotonic(), count, run_id, task)

    def hand_back(self) -> None:
        """Publish again what has waited long enough; one that came over a lost connection is the broker's to send."""
        now = time.monotonic()
        with self._lock:
            due = [held for held in self._held if held.due <= now]
            self._held = [held for held in self._held if held.due > now]
        for n, held in enumerate(due):
            if held.consumer.connection is not held.connection:
                continue
            try:
                self._publish(held)
            except Exception as error:  # noqa: BLE001  # each transport has its own; the message stays ours
                logger.warning("Messages of another store could not be handed back: %s", error)
                self._keep(due[n:], now + AGAIN_SECONDS)
                return

    def logs(self) -> dict[str, dict[str, Any]]:
        """Return whose messages came lately, by log: how many, and the run and task of the last one."""
        now, longest = time.monotonic(), self._longest_seconds()
        with self._lock:
            for log_id, seen in list(self._seen.items()):
                if now - seen.at > FORGET_FACTOR * max(longest, AGAIN_SECONDS):
                    del self._seen[log_id]
            return {
                log_id: {"count": seen.count, "run_id": seen.run_id, "task": seen.task}
                for log_id, seen in self._seen.items()
            }

    def _publish(self, held: Held) -> None:
        again = once_more(held.message)
        app = self._commander.app
        with fork_gate.passed(), app.producer_pool.acquire(block=True) as producer:
            republish(producer, again, remove_props=list(_OF_THE_DELIVERY))
        # After the broker has it again; a death between the two doubles it. Channels are the main thread's alone.
        held.consumer.call_soon(held.acknowledge)
        if held.has_place:
            held.consumer.qos.decrement_eventually()

    def _keep(self, several: list[Held], due: float) -> None:
        kept = [
            Held(due, one.message, one.acknowledge, one.consumer, one.connection, one.has_place)
            for one in several
        ]
        with self._lock:
            self._held += kept

    def _longest_seconds(self) -> float:
        """Return the longest pause, well before a broker takes the message for lost and sends it again."""
        longest_seconds = self._commander.settings.foreign_seconds
        options = self._commander.app.conf.broker_transport_options or {}
        visible_seconds = options.get("visibility_timeout")
        if isinstance(visible_seconds, int | float) and visible_seconds > 0:
            return min(longest_seconds, visible_seconds / 4)
        return longest_seconds


def foreign_log(commander: Commander, headers: Mapping[str, Any] | None) -> str | None:
    """Return the log that a message names, if this process has another one open."""
    stamp = (headers or {}).get(HEADER)
    log_id = stamp.get("log_id") if isinstance(stamp, Mapping) else None
    ours = commander.known_log_id
    return str(log_id) if log_id is not None and ours is not None and log_id != ours else None


def refusals_of(headers: Mapping[str, Any]) -> int:
    """Return how often a message was refused before."""
    refused = headers[HEADER].get("refused")
    return refused if isinstance(refused, int) and refused > 0 else 0


def pause_of(refused: int, longest_seconds: float) -> float:
    """Return how long a message is held that was refused so often before: doubling, up to the longest."""
    return min(FIRST_SECONDS * float(2 ** min(refused, 16)), longest_seconds)


def once_more(message: Any) -> Any:
    """Return a message as it came, with one more refusal counted."""
    stamp = {**message.headers[HEADER], "refused": refusals_of(message.headers) + 1}
    return SimpleNamespace(
        body=message.body,
        headers={**message.headers, HEADER: stamp},
        properties=dict(message.properties),
        delivery_info=message.delivery_info,
        content_type=message.content_type,
        content_encoding=message.content_encoding,
    )


def strategy(task: Task, app: Celery, consumer: Any) -> Callable[..., Any]:
    """Return what the worker does with a durable task's message: what the task's own strategy does, if it is ours."""
    below = symbol_by_name(task._commander_strategy)(task, app, consumer)
    commander: Commander = app.commander

    def on_message(message: Any, body: Any, ack: Any, *rest: Any, **options: Any) -> Any:
        log_id, watcher = foreign_log(commander, message.headers), commander.watcher
        if log_id is None or watcher is None:
            return below(message, body, ack, *rest, **options)
        watcher.reporter.foreign.take(
            message,
            log_id,
            consumer=consumer,
            acknowledge=lambda: ack(logger, consumer.connection_errors),
        )
        return None

    return on_message
