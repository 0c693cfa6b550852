"""Join a worker's life: refuse to start on a broken store, recover when ready, and watch for owners that die."""

from __future__ import annotations

import logging
import signal
import threading
from typing import TYPE_CHECKING, Any

from celery import Celery, bootsteps, signals

from celery_commander.engine import CommanderError

from .delivery import forget
from .reporting import Reporter

if TYPE_CHECKING:
    from .install import Commander

logger = logging.getLogger(__name__)


class StoreStep(bootsteps.Step):
    """Open the store before the pool is made: a worker that cannot record does not start."""

    def __init__(self, worker: Any, **kwargs: Any) -> None:
        super().__init__(worker, **kwargs)
        commander: Commander = worker.app.commander
        settings = commander.engine_settings
        if commander.settings.on_log_unavailable == "refuse":
            commander.engine.settle()  # a log that takes nothing is found here, and the start is refused
        logger.info(
            "Runs are recorded in %s (log %s).",
            settings.event_sourcing_wal,
            commander.engine.log_id,
        )


class Watcher:
    """Look, in one thread of the worker's main process, for dead owners, and sweep now and then."""

    def __init__(self, commander: Commander, consumer: Any = None) -> None:
        self._commander = commander
        self.reporter = Reporter(commander, consumer)
        self._wake = threading.Event()
        self._stopped = False
        self._thread = threading.Thread(target=self._watch, name="commander-watcher", daemon=True)

    def start(self) -> None:
        """Start with a whole pass; whatever an earlier life left behind is met at once."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; a pass that is under way is finished first, within a bound."""
        self._stopped = True
        self._wake.set()
        self._thread.join(timeout=10)
        self.reporter.withdraw()

    def nudge(self) -> None:
        """Look at once: somebody knows of a death."""
        self._wake.set()

    def _watch(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        self.reporter.write()  # until the first pass is over, its recovery is pending
        self._pass()
        self._report()
        settings = self._commander.engine_settings
        pause_seconds, waited_seconds = self._commander.settings.watch_seconds, 0.0
        while not self._stopped:
            self._wake.wait(pause_seconds)
            waited_seconds += pause_seconds
            if self._stopped:
                return
            due = waited_seconds >= settings.sweep_seconds
            self.reporter.look()
            self.reporter.foreign.hand_back()
            if self._wake.is_set() or due or self._somebody_died():
                self._wake.clear()
                waited_seconds = 0.0 if due else waited_seconds
                self._pass()
                if due:
                    self._report()

    def _somebody_died(self) -> bool:
        try:
            return bool(self._commander.leases.dead_holders())
        except CommanderError as error:
            logger.error("The leases could not be looked at: %s", error)
            return False

    def _pass(self) -> None:
        try:
            result = self._commander.bootstrapper.bootstrap()
        except Exception as error:
            logger.exception("A recovery pass failed; the next one tries again.")
            self.reporter.note_pass(None, error)
            return
        self.reporter.note_pass(result)
        if result.recovered or result.aborted:
            logger.info(
                "Recovery: %s resumed, %s aborted of %s.",
                result.recovered,
                result.aborted,
                result.scanned,
            )

    def _report(self) -> None:
        """Write what this worker is like, and look whether the whole has become another."""
        try:
            self.reporter.write()
            self._commander.health.check()
        except Exception:
            logger.exception("The health could not be checked; the next look tries again.")


def install_worker(app: Celery) -> None:
    """Hook the commander of an app into its workers."""
    app.steps["worker"].add(StoreStep)
    commander: Commander = app.commander
    uid = f"celery_commander.{id(commander)}"

    def ready(sender: Any = None, **_: Any) -> None:
        if getattr(sender, "app", None) is app:
            commander.watcher = Watcher(commander, sender)
            commander.watcher.start()

    def shutdown(sender: Any = None, **_: Any) -> None:
        watcher, commander.watcher = commander.watcher, None
        if watcher is not None:
            watcher.stop()

    def received(sender: Any = None, **_: Any) -> None:
        if commander.watcher is not None and getattr(sender, "app", None) is app:
            commander.watcher.reporter.note_received()

    def postrun(sender: Any = None, task_id: str | None = None, **_: Any) -> None:
        if task_id in commander.live:
            forget(commander, str(task_id))

    signals.worker_ready.connect(ready, weak=False, dispatch_uid=f"{uid}.ready")
    signals.worker_shutdown.connect(shutdown, weak=False, dispatch_uid=f"{uid}.shutdown")
    signals.task_received.connect(received, weak=False, dispatch_uid=f"{uid}.received")
    signals.task_postrun.connect(postrun, weak=False, dispatch_uid=f"{uid}.postrun")
