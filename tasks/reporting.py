"""What a worker's main process sees of itself, and writes down for whoever asks how the deployment is.

Only counters are kept while the worker works. They are put together in the watcher's thread, between its passes.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from celery.worker import state

from celery_commander.engine import CommanderError

from .broker import BrokerSilent, messages_in
from .foreign import ForeignMessages
from .neighbours import Neighbours
from .worker_facts import COMPLETE, INCOMPLETE, PENDING, REFUSED

if TYPE_CHECKING:
    from .install import Commander
    from .recovery import RecoveryResult

logger = logging.getLogger(__name__)


class Reporter:
    """Observe one worker from its main process, and report it.

    A worker is quiet while it has a free hand, receives nothing, and messages were waiting when it last looked. The
    time since it received something is one number for all its queues: one starved queue among busy ones is not seen.
    """

    def __init__(self, commander: Commander, consumer: Any = None) -> None:
        self._commander = commander
        self._consumer = consumer
        self._source = str(getattr(consumer, "hostname", None) or "worker")
        self.neighbours = Neighbours(commander, self._source)
        self.foreign = ForeignMessages(commander)
        self._received = 0
        self._received_at: float | None = None
        self._received_seen = 0
        self._fine_at = time.monotonic()
        self._queues: dict[str, int | None] = {}
        self._asked_at: float | None = None
        self._broker: str | None = None
        self._recovery: tuple[str, str | None] = (PENDING, None)

    def note_received(self) -> None:
        """Note one message; called in the worker's main thread."""
        self._received += 1
        self._received_at = time.monotonic()

    def note_pass(self, result: RecoveryResult | None, error: Exception | None = None) -> None:
        """Note what a pass of recovery came to: all handled, some left, or nothing decided."""
        if result is None:
            self._recovery = (INCOMPLETE, str(error) if error else None)
        elif result.refused is not None:
            self._recovery = (REFUSED, result.refused)
        elif result.failed:
            first = result.failed[0]
            why = f"{len(result.failed)} runs could not be handled, {first.run_id}: {first.reason}"
            self._recovery = (INCOMPLETE, why)
        else:
            self._recovery = (COMPLETE, None)

    def look(self) -> None:
        """Notice whether the worker is busy or receives; cheap, for every turn of the watcher."""
        if self._received != self._received_seen or self._is_saturated():
            self._received_seen = self._received
            self._fine_at = time.monotonic()

    def write(self) -> None:
        """Ask the queues if that is due, and write this worker's row; what fails is logged, and tried next time."""
        try:
            self._ask_queues()
            if self._consumer is not None:
                self.neighbours.tell(refuses=self.foreign.logs())
            self._commander.store.reports.put(self._source, self.facts())
        except CommanderError as error:
            logger.warning("This worker's health report was not written: %s", error)
        except Exception:
            logger.exception("This worker's health report was not written.")

    def withdraw(self) -> None:
        """Remove this worker's row: it stops on purpose."""
        try:
            self._commander.store.reports.withdraw(self._source)
        except (CommanderError, OSError) as error:
            logger.warning("This worker's health report was not removed: %s", error)

    def facts(self) -> dict[str, Any]:
        """Return what is reported now."""
        now = time.monotonic()
        recovery, why = self._recovery
        since = None if self._received_at is None else now - self._received_at
        return {
            "log_id": self._commander.engine.log_id,
            "where": str(self._commander.engine_settings.state_directory),
            "namespace": self._commander.namespace,
            "other_logs": self.neighbours.others(),
            "foreign": self.foreign.logs(),
            "recovery": recovery,
            "recovery_reason": why,
            "received": self._received,
            "received_age_seconds": since,
            "quiet_seconds": now - self._fine_at,
            "broker": self._broker,
            "queues": [
                {"name": name, "waiting": waiting, "consuming": self._is_consuming(name)}
                for name, waiting in self._queues.items()
            ],
            "contributed": self._commander.health.contributed(),
        }

    def _ask_queues(self) -> None:
        now = time.monotonic()
        pause_seconds = self._commander.settings.queue_check_seconds
        if self._asked_at is not None and now - self._asked_at < pause_seconds:
            return
        # Every queue that was ever consumed: one that was left with messages in it is the point.
        names = dict.fromkeys([*self._queues, *self._consumed_queues()])
        self._asked_at = now
        try:
            counts = messages_in(self._commander.app, names)
        except BrokerSilent as error:
            self._broker, self._queues = str(error), dict.fromkeys(names)
            return
        finally:
            self._asked_at = time.monotonic()
        self._broker, self._queues = None, dict(counts)
        if not any(counts.values()):
            self._fine_at = time.monotonic()

    def _consumed_queues(self) -> list[str]:
        try:
            return list(self._commander.app.amqp.queues.consume_from)
        except RuntimeError:  # it changed while it was read; the next look sees it
            return []

    def _is_consuming(self, name: str) -> bool:
        consumer = getattr(self._consumer, "task_consumer", None)
        return consumer is not None and bool(consumer.consuming_from(name))

    def _is_saturated(self) -> bool:
        """Tell whether the worker has no free hand, or holds as many messages as it may."""
        pool = getattr(self._consumer, "pool", None)
        hands = getattr(pool, "num_processes", None) or getattr(pool, "limit", None) or 1
        held, allowed = len(state.reserved_requests), self._allowed()
        return len(state.active_requests) >= hands or 0 < allowed <= held

    def _allowed(self) -> int:
        """Return how many messages the worker may hold; 0 is as many as it likes."""
        qos = getattr(self._consumer, "qos", None)
        return int(getattr(qos, "value", 0) or 0)
