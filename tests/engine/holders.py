"""Processes that hold leases, and managers on one table."""

from __future__ import annotations

import signal
from pathlib import Path

from celery_commander.engine import (
    BootClock,
    Database,
    Lease,
    LeaseManager,
    LivenessLock,
    holder_name,
)

from .forked import Forked

TTL = 30.0


def manager(directory: Path, clock: BootClock) -> LeaseManager:
    return LeaseManager(
        Database(directory / "leases.sqlite"),
        clock,
        ttl_seconds=TTL,
        liveness_directory=directory / "liveness",
    )


def claimed(lease: Lease | None) -> Lease:
    assert lease is not None
    return lease


def owner_process(leases: LeaseManager, directory: Path, clock: BootClock, *run_ids: str) -> Forked:
    """Start a process that takes leases with a liveness lock and then waits to be killed."""

    def run(child: Forked) -> None:
        lock = LivenessLock.take(directory / "liveness", boot_id=clock.boot_id)
        name = holder_name("worker", clock)
        child.say((name, leases.acquire_many(run_ids, name, liveness=lock.ref)))
        while True:
            signal.pause()

    return Forked(run)
