"""Find workers that share this worker's broker and namespace, but not its store.

Each would take the other's messages and could record none of them. Nobody can see that from one store, so a worker
says once, when it starts, which log it works with. Whoever works with another one remembers the newcomer and answers it
alone; from then on both tell each other now and then, and what is no longer told is forgotten.

The first word goes to all workers of the broker. One without a commander notes an unknown command in its own log, once.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Final

from celery.worker.control import control_command

from .broker import BrokerSilent, tell_workers

if TYPE_CHECKING:
    from .install import Commander

logger = logging.getLogger(__name__)

COMMAND: Final = "commander_store"
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

    def heard(self, name: str, log_id: str, namespace: str) -> None:
        """Note what another worker said; called in the worker's main thread, so it sends nothing."""
        if namespace != self._commander.namespace or name == self._name:
            return
        if log_id == self._commander.engine.log_id:
            self._others.pop(name, None)
            return
        if name not in self._others and len(self._others) < NEIGHBOURS_AT_MOST:
            logger.error("Worker %s works with another log, %s.", name, log_id)
            if self._told_at is not None:
                self._told_at = -TELL_SECONDS  # answer at the next turn
            self._others[name] = (log_id, time.monotonic())
        elif name in self._others:
            self._others[name] = (log_id, time.monotonic())

    def tell(self) -> None:
        """Say which log this worker works with: to all at first, later to those who work with another."""
        now = time.monotonic()
        first = self._told_at is None  # nobody was told yet
        if not first and (not self._others or now - (self._told_at or 0.0) < TELL_SECONDS):
            return
        said = {
            "name": self._name,
            "log_id": self._commander.engine.log_id,
            "namespace": self._commander.namespace,
        }
        try:
            tell_workers(self._commander.app, COMMAND, said, None if first else list(self._others))
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
def commander_store(state: Any, name: str, log_id: str, namespace: str, **_: Any) -> None:
    """Note which log another worker works with."""
    commander: Commander | None = getattr(state.app, "commander", None)
    if commander is not None and commander.watcher is not None:
        commander.watcher.reporter.neighbours.heard(name, log_id, namespace)
