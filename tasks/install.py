"""Install the commander on a Celery app: the one place of wiring."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

from celery import Celery

from celery_commander.engine import (
    CheckpointStore,
    EventSourcingEngine,
    HistoryArchived,
    LeaseManager,
    RunHistory,
    RunLedger,
    Settings,
    SettingsError,
)

from .bus import MessageBus, install_bus
from .canvas_values import register_signatures
from .compensation import CompensationBridge, register_tasks
from .dead_letters import DeadLetters
from .durable import install_task_class
from .health import FleetHealth
from .holder import Holder
from .keys import install_keys
from .maintenance import anchor_facts, register_maintenance
from .owed import Owed
from .ownership import Ownership
from .pages import mount_in_flower
from .publishing import install_sender
from .quiet import install_quiet
from .recovery import RecoveryBootstrapper
from .schedule import install_schedule
from .settings import Resolved, TaskSettings, check_overrides, resolve
from .stillness import install_stillness
from .store import Store, open_store
from .subscriber import EventSourcingSubscriber
from .task_signals import install_observation, remake_locks
from .worker import Watcher, install_worker

register_signatures()

_commanders: weakref.WeakSet[Commander] = weakref.WeakSet()


class Commander:
    """Give a Celery app crash-safe runs: `Commander(app)` is the whole installation.

    `overrides` are settings by their bare names (`lease_seconds=10`); they win over COMMANDER_* in the environment,
    which wins over commander_* on `app.conf`. Nothing is opened and the app's configuration is not read before the
    first use, so the order of this line and `app.conf.update(...)` does not matter.

    Raises:
        SettingsError: an unknown name or a value that cannot work, or an app that has a commander already. What the
            environment and the app's configuration say is checked at the first use, by a worker, beat or command at
            its start.

    """

    def __init__(self, app: Celery, **overrides: Any) -> None:
        if getattr(app, "commander", None) is not None:
            raise SettingsError(
                "Commander", app.main, "this app has a commander already; install it once"
            )
        self.app = app
        self._overrides = check_overrides(overrides)
        self.live: dict[str, Ownership] = {}
        self.called_plainly: set[str] = set()
        self._owed = Owed(self)
        self._resolved: Resolved | None = None
        self._store: Store | None = None
        self._holders: dict[str, Holder] = {}
        self._lock = threading.RLock()
        self.watcher: Watcher | None = None
        self.bootstrapper = RecoveryBootstrapper(self)
        self.compensation = CompensationBridge(self)
        self.bus = MessageBus(self)
        self.health = FleetHealth(self)
        self.health.contribute("bus", self.bus.health_facts)
        self.health.contribute("anchors", lambda: anchor_facts(self))
        self.dead_letters = DeadLetters(self)
        self.subscriber = EventSourcingSubscriber(self)
        self.health.contribute("subscriber", self.subscriber.health_facts)
        app.commander = self
        install_task_class(app)
        install_sender(app)
        install_keys(app)
        install_stillness(app)
        register_tasks(app)
        install_worker(app)
        install_bus(app)
        mount_in_flower()
        register_maintenance(app)
        install_schedule(app)
        install_observation(app)
        install_quiet(self)
        _commanders.add(self)

    @property
    def settings(self) -> TaskSettings:
        """Return how durable tasks behave; read and checked at the first use."""
        return self._resolve().tasks

    @property
    def engine_settings(self) -> Settings:
        """Return where the store lies and its bounds; read and checked at the first use."""
        return self._resolve().engine

    @property
    def namespace(self) -> str:
        """Return whose runs these are."""
        return self.settings.namespace or self.app.main or "celery"

    @property
    def store(self) -> Store:
        """Return the opened store; a process opens it at the first use, a forked child goes on with its parent's."""
        if self._store is None:
            with self._lock:
                if self._store is None:
                    self._store = open_store(self.engine_settings)
        return self._store

    @property
    def is_open(self) -> bool:
        """Tell whether this process has opened the store, or was forked from one that had."""
        return self._store is not None

    @property
    def engine(self) -> EventSourcingEngine:
        """Return the log."""
        return self.store.engine

    @property
    def known_log_id(self) -> str | None:
        """Return the log's id if this process has it open; opens nothing."""
        store = self._store
        return store.engine.log_id if store is not None else None

    @property
    def ledger(self) -> RunLedger:
        """Return the states of all runs, as folded from the log up to the last catch-up."""
        return self.store.ledger

    @property
    def leases(self) -> LeaseManager:
        """Return who owns what."""
        return self.store.leases

    @property
    def checkpoints(self) -> CheckpointStore:
        """Return the contents of what running bodies saved."""
        return self.store.checkpoints

    @property
    def holder(self) -> Holder:
        """Return this process as one that executes runs."""
        return self._holder("worker")

    @property
    def recovery_holder(self) -> Holder:
        """Return this process as one that decides about the runs of others."""
        return self._holder("recovery")

    def _holder(self, role: str) -> Holder:
        holder = self._holders.get(role)
        if holder is None or holder.pid != os.getpid():
            with self._lock:
                holder = self._holders.get(role)
                if holder is None or holder.pid != os.getpid():
                    holder = self._holders[role] = Holder(self.store, role)
        return holder

    def history(self, run_id: str) -> RunHistory:
        """Return everything that is recorded of one run up to now.

        Of a run that had ended when its events were compacted away, only its state: it is all that a
        late duplicate of its message has to be told. That nothing is known of a run is believed only when
        the ledger does not know it either.
        """
        try:
            events = self.engine.history(run_id)
            if not events and (state := self.ledger.get(run_id)) is not None:
                events = self.engine.history(run_id, known_seq=state.last_seq)
            return RunHistory.of(events)
        except HistoryArchived:
            known = self.engine.settled_state(run_id)
            return RunHistory(state=None if known is None else known[0])

    def close(self) -> None:
        """Close the store, if this process opened it; the next use opens it again. What is still owned runs out."""
        self.bus.close()
        self.subscriber.flush()
        with self._lock:
            holders, self._holders = self._holders, {}
            store, self._store = self._store, None
        for holder in holders.values():
            holder.stop()
        if store is not None:
            store.close()

    def nudge(self) -> None:
        """Have this worker look for dead owners at once; nothing happens where no worker runs."""
        if self.watcher is not None:
            self.watcher.nudge()

    def note_owed(self, run_id: str, event_type: str, data: dict[str, Any]) -> None:
        """Have an event of a run written down at the first chance, after an outage of the log."""
        self._owed.note(run_id, event_type, data)

    def _resolve(self) -> Resolved:
        if self._resolved is None:
            with self._lock:
                self._resolved = resolve(self._overrides, os.environ, _configured(self.app.conf))
        return self._resolved

    def after_fork(self) -> None:
        """Forget what belongs to the parent process alone: its name, its leases, and a lock that may be held."""
        self._lock = threading.RLock()
        self._holders = {}
        self.watcher = None
        self.live = {}
        self.called_plainly = set()
        self._owed = Owed(self)
        self.bus.after_fork()
        self.subscriber.after_fork()
        remake_locks()


def _configured(conf: Any) -> dict[str, Any]:
    """Return the app's own commander_* settings by lower-case names, a namespace cut off."""
    conf.get("broker_url")  # Celery reads its configuration at the first question
    prefix = (getattr(conf, "prefix", None) or "").lower()
    found: dict[str, Any] = {}
    for mapping in conf.maps:
        for key in list(mapping):
            name = str(key).lower().removeprefix(prefix)
            if name.startswith("commander_"):
                found.setdefault(name, mapping[key])
    return found


def _after_fork_in_child() -> None:
    for commander in list(_commanders):
        commander.after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)
