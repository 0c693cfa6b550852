"""Tell the world what becomes of runs, over the app's own broker: the topic exchange `commander`.

The log is the truth and the bus only tells of it. A message is told after its event is durable; at most one burst of
them may come twice after a broker failed in between, and what a killed process had not delivered yet is never told. A
subscriber that must miss nothing reads the log, or asks the ledger, and lets the bus only wake it.
"""

from __future__ import annotations

import atexit
import logging
import time
import weakref
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from celery import Celery, signals

from .bus_broker import load_transport, open_post
from .bus_message import BusMessage, check_key, check_pattern
from .bus_outbox import Outbox
from .bus_subscriber import BusStep, Callback, Subscription, listen
from .stillness import current_rehearsal

if TYPE_CHECKING:
    from .install import Commander

logger = logging.getLogger(__name__)

_buses: weakref.WeakSet[MessageBus] = weakref.WeakSet()


class MessageBus:
    """Publish what happened, and hear it: `app.commander.bus`.

    The commander itself publishes `run.recovered`, `run.aborted` and `run.parked` when recovery or an attempt decided
    so, `run.compensated` and `run.stuck` when a rollback ended, `health.changed` and `dead_letter.created`.
    """

    def __init__(self, commander: Commander) -> None:
        self._commander = commander
        self._outbox = self._empty_outbox()
        self._loaded = False
        self.subscriptions: list[Subscription] = []
        _buses.add(self)

    def publish(
        self, routing_key: str, payload: Mapping[str, Any], *, run_id: str | None = None
    ) -> None:
        """Have a message delivered in the background; returns at once and never raises.

        `payload` is plain JSON, at most `max_payload_bytes` of it. At most `bus_outbox_messages` wait: beyond that the
        oldest are dropped, and `facts()` says how many.
        """
        try:
            settings = self._commander.settings
            if settings.bus and current_rehearsal() is None:
                body = self._pack(routing_key, payload, run_id)
                self._load_transport()
                self._outbox.put(routing_key, body, limit=settings.bus_outbox_messages)
        except Exception as error:  # noqa: BLE001  # whoever tells has more important work than telling
            self._outbox.note_dropped(f"{type(error).__name__} while a message was packed")
            logger.warning("A message %s was not put on the bus: %s", routing_key, error)

    def subscribe(
        self,
        pattern: str,
        callback: Callback,
        *,
        queue: str | None = None,
        every_namespace: bool = False,
    ) -> None:
        """Call `callback(message)` for what matches, in each worker of this app that starts from now on.

        It runs in the worker's main process between two messages of Celery: keep it short, and give longer work to a
        task. An exception is logged, and the message counts as heard. Each worker hears everything by a queue of its
        own, and misses what comes while it is away. With `queue` a message waits for, and reaches, one of the workers
        that name it; RabbitMQ and Redis keep it for as long as it takes, so end its use by deleting it there.

        Patterns are those of topic exchanges: `*` is one word, `#` any number of them. Only this app's namespace is
        heard, unless `every_namespace` says otherwise.

        Raises:
            InvalidRoutingKey: the pattern is none.
        """
        self.subscriptions.append(
            Subscription(check_pattern(pattern), callback, queue, every_namespace)
        )

    def listen(
        self,
        pattern: str,
        callback: Callback,
        *,
        seconds: float | None = None,
        queue: str | None = None,
        until: Callable[[], bool] | None = None,
        every_namespace: bool = False,
    ) -> int:
        """Call `callback(message)` for what matches, in this thread; for scripts. Return how often it was called.

        Ends after `seconds` (None: never) or when `until()` is true, which is asked twice a second. Otherwise as
        `subscribe`; a broker that goes away is waited for.

        Raises:
            InvalidRoutingKey: the pattern is none.
        """
        heard = [Subscription(check_pattern(pattern), callback, queue, every_namespace)]
        end = None if seconds is None else time.monotonic() + seconds

        def over() -> bool:
            return (end is not None and time.monotonic() >= end) or (until is not None and until())

        return listen(self._commander.app, heard, self._commander.namespace, until=over)

    def facts(self) -> dict[str, int | str | None]:
        """Return `undelivered` and `dropped`, counted in this process, and `last_error`, which a success clears."""
        return self._outbox.facts()

    def health_facts(self) -> dict[str, int | str]:
        """Return what health shows of this process: numbers, and why messages wait when they do."""
        facts = self.facts()
        told: dict[str, int | str] = {
            key: number for key, number in facts.items() if isinstance(number, int)
        }
        if facts["undelivered"] and facts["last_error"]:
            told["degraded"] = f"the bus cannot deliver: {facts['last_error']}"
        return told

    def flush(self, seconds: float | None = None) -> bool:
        """Wait until all is delivered, at most `seconds` (default: `bus_flush_seconds`); return whether it is."""
        if not self._outbox.facts()["undelivered"]:
            return True
        bound = self._commander.settings.bus_flush_seconds if seconds is None else seconds
        return self._outbox.flush(bound)

    def close(self) -> None:
        """Deliver what is left, within the bound of `flush`, and give up the rest; the next message starts afresh."""
        if not self.flush():
            logger.warning("The bus ends with %s messages untold.", self.facts()["undelivered"])
            outbox, self._outbox = self._outbox, self._empty_outbox()
            outbox.abandon()

    def after_fork(self) -> None:
        """Forget what the parent process has yet to tell: it will."""
        self._outbox = self._empty_outbox()

    def _load_transport(self) -> None:
        if not self._loaded:
            load_transport(self._commander.app)
            self._loaded = True

    def _empty_outbox(self) -> Outbox:
        return Outbox(lambda: open_post(self._commander.app))

    def _pack(self, routing_key: str, payload: Mapping[str, Any], run_id: str | None) -> str:
        told = BusMessage(
            type=check_key(routing_key),
            run_id=run_id,
            at=datetime.now(UTC),
            namespace=self._commander.namespace,
            log_id=self._commander.known_log_id,
            data=payload,
        ).pack()
        most = self._commander.engine_settings.max_payload_bytes
        if len(told.encode()) > most:
            raise ValueError(f"it is larger than max_payload_bytes ({most})")
        return told


def install_bus(app: Celery) -> None:
    """Let an app's workers hear the bus, and tell what is left when a process ends."""
    app.steps["consumer"].add(BusStep)
    bus: MessageBus = app.commander.bus

    def flush(**_: Any) -> None:
        bus.flush()

    uid = f"celery_commander.{id(bus)}.flush"
    signals.worker_process_shutdown.connect(flush, weak=False, dispatch_uid=uid)


def _close_all() -> None:
    for bus in list(_buses):
        bus.close()


atexit.register(_close_all)
