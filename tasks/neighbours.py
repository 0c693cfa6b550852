"""Find workers that share this worker's broker and namespace, but not its store.

Each would take the other's messages and could record none of them. Nobody can see that from one store, so a worker
says once, when it starts, which log it works with. Whoever works with another one remembers the newcomer and answers it
alone; from then on both tell each other now and then, and what is no longer told is forgotten. A worker that is sent
messages of another log tells all, with that log's id: those who have it hear of it whatever their namespace is.

Two workers may have one name (`celery@host`, started without `-n` in two directories): they are told apart by their
logs. On RabbitMQ such two share one queue for remote control, and each hears only a part of what is said.

The first word goes to all workers of the broker. One without a commander notes an unknown command in its own log, once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Final

from celery.worker.control import control_command, inspect_command

from .broker import BrokerSilent, tell_workers

if TYPE_CHECKING:
    from .install import Commander

logger = logging.getLogger(__name__)

COMMAND: Final = "commander_store"
ASK: Final = "commander_log"
TELL_SECONDS: Final = 20.0
FORGET_SECONDS: Final = 3.5 * TELL_SECONDS
NEIGHBOURS_AT_MOST: Final = 100


class Neighbours:
    """Remember, in one worker's main process, who works with another log."""

    def __init__(self, commander: Commander, name: str) -> None:
        self._commander = commander
        self._name = name
        self._others: dict[str, tuple[str, float]] = {}  # their log, and when they last said so
        self._told_at: float | None = None

    def heard(
        self, name: str, log_id: str, namespace: str, *, where: str = "", refuses: object = ()
    ) -> None:
        """Note what another worker said; called in the worker's main thread, so it sends nothing."""
        ours = self._commander.engine.log_id
        is_refused = isinstance(refuses, list) and ours in refuses
        if namespace != self._commander.namespace and not is_refused:
            return
        if log_id == ours:
            if name != self._name:  # our own word says nothing of one that is called the same
                self._others.pop(name, None)
            return
        told = f"{log_id} in {where}" if where else log_id
        if name not in self._others and len(self._others) < NEIGHBOURS_AT_MOST:
            logger.error("Worker %s works with another log, %s.", name, told)
            if self._told_at is not None:
                self._told_at = -TELL_SECONDS  # answer at the next turn
            self._others[name] = (told, time.monotonic())
        elif name in self._others:
            self._others[name] = (told, time.monotonic())

    def tell(self, *, refuses: Collection[str] = ()) -> None:
        """Say which log this worker works with: to all at first, later to those who work with another.

        `refuses` are the logs whose messages it is sent; their workers are unknown, so all are told.
        """
        now = time.monotonic()
        first = self._told_at is None  # nobody was told yet
        is_due = now - (self._told_at or 0.0) >= TELL_SECONDS and (self._others or refuses)
        if not first and not is_due:
            return
        said = {
            "name": self._name,
            "log_id": self._commander.engine.log_id,
            "namespace": self._commander.namespace,
            "where": str(self._commander.engine_settings.state_directory),
            "refuses": list(refuses),
        }
        whom = None if first or refuses else list(self._others)
        try:
            tell_workers(self._commander.app, COMMAND, said, whom)
        except BrokerSilent as error:
            logger.info("The other workers could not be told which log this one has: %s", error)
            return
        self._told_at = now

    def others(self) -> dict[str, str]:
        """Return the logs of those who work with another one and said so lately, by worker."""
        now = time.monotonic()
        for name, (_, at) in list(self._others.items()):
            if now - at > FORGET_SECONDS:
                self._others.pop(name, None)
        return {name: log_id for name, (log_id, _) in list(self._others.items())}


@control_command(name=COMMAND, signature="name log_id namespace")
def commander_store(state: Any, name: str, log_id: str, namespace: str, **more: Any) -> None:
    """Note which log another worker works with."""
    commander: Commander | None = getattr(state.app, "commander", None)
    if commander is not None and commander.watcher is not None:
        where, refuses = str(more.get("where") or ""), more.get("refuses")
        neighbours = commander.watcher.reporter.neighbours
        neighbours.heard(name, log_id, namespace, where=where, refuses=refuses)


@inspect_command(name=ASK)
def commander_log(state: Any) -> dict[str, Any] | None:
    """Return which log this worker works with; None where there is no commander."""
    commander: Commander | None = getattr(state.app, "commander", None)
    if commander is None or not commander.is_open:
        return None
    return {
        "log_id": commander.engine.log_id,
        "namespace": commander.namespace,
        "where": str(commander.engine_settings.state_directory),
    }
