"""Open what an app keeps: the log, the ledger folded from it, the leases, and the checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from celery_commander.engine import (
    BootClock,
    CheckpointStore,
    Database,
    DeadLetterQueue,
    EventSourcingEngine,
    HealthStore,
    LeaseManager,
    Rounds,
    RunLedger,
    Settings,
    digest,
    keep_secret,
)


@dataclass(frozen=True, slots=True)
class Store:
    """Hold the opened parts of one store; each of them minds forks by itself."""

    settings: Settings
    clock: BootClock
    engine: EventSourcingEngine
    ledger: RunLedger
    leases: LeaseManager
    dead_letters: DeadLetterQueue
    checkpoints: CheckpointStore
    reports: HealthStore
    rounds: Rounds
    secret: bytes
    databases: tuple[Database, ...]

    def close(self) -> None:
        """Sync what is written and close every file; for scripts and tests, a worker's process just ends."""
        self.engine.close()
        for database in self.databases:
            database.close()

    def digest(self, told: Any) -> str:
        """Return what a replay compares instead of the arguments themselves; hexadecimal.

        Raises:
            UnrecordableValue: an argument that no log can hold; its path is named.
        """
        return digest(told, self.secret)


def open_store(settings: Settings) -> Store:
    """Open the store that the settings name, creating what is missing.

    Raises:
        LogError: the log is not ours, not writable, poisoned or corrupt.
        StoreUnavailable: a database beside it cannot be used.

    """
    clock = BootClock()
    engine = EventSourcingEngine.open(settings)
    folded = Database(settings.ledger_path, busy_seconds=settings.lock_seconds)
    owners = Database(settings.leases_path, busy_seconds=settings.lock_seconds)
    contents = Database(settings.checkpoints_path, busy_seconds=settings.lock_seconds, durable=True)
    # Who only observes does not wait long.
    health = Database(settings.health_path, busy_seconds=min(settings.lock_seconds, 2.0))
    ttl_seconds, liveness = settings.lease_seconds, settings.liveness_directory
    return Store(
        secret=keep_secret(settings.wal_directory / "digest.key"),
        settings=settings,
        clock=clock,
        engine=engine,
        ledger=RunLedger(folded, engine),
        leases=LeaseManager(owners, clock, ttl_seconds=ttl_seconds, liveness_directory=liveness),
        dead_letters=DeadLetterQueue(folded, days=settings.dead_letter_days),
        checkpoints=CheckpointStore(
            contents, max_bytes=settings.checkpoint_bytes, kept=settings.checkpoints_kept
        ),
        reports=HealthStore(health, clock),
        rounds=Rounds(health),
        databases=(folded, owners, contents, health),
    )
