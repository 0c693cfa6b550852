"""Keep what one process holds: its name, its liveness lock, its leases, and the thread that renews them.

The thread is a native one with all signals blocked: it must renew while the main thread runs somebody's code, and
Celery's limits must reach that code, not this thread. It starts with the first lease, so never before a pool's fork.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import signal
import threading
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from celery_commander.engine import (
    CommanderError,
    Lease,
    LivenessLock,
    LivenessRef,
    StoreUnavailable,
    holder_name,
)

if TYPE_CHECKING:
    from .store import Store

logger = logging.getLogger(__name__)

RENEWALS_PER_TTL = 3


class Holder:
    """Hold leases in one process's name; another process, a forked child too, makes its own."""

    def __init__(self, store: Store, role: str) -> None:
        self.pid = os.getpid()
        self._store = store
        self.name = holder_name(role, store.clock)
        self._liveness = LivenessLock.take(
            store.settings.liveness_directory, boot_id=store.clock.boot_id
        )
        self._leases: dict[str, Lease] = {}
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._stopped = False

    @property
    def liveness(self) -> dict[str, Any]:
        """Return where this process's liveness lock lies, as it is written into the log with each claim."""
        return dataclasses.asdict(self._liveness.ref)

    def acquire(self, run_id: str, *, floor: int) -> Lease | None:
        """Take the lease on a run, or None when its owner is alive; it is renewed until it is released."""
        lease = self._store.leases.acquire(
            run_id, self.name, floor=floor, liveness=self._liveness.ref
        )
        if lease is not None:
            self._keep(lease)
        return lease

    def acquire_many(self, floors: Mapping[str, int]) -> dict[str, Lease]:
        """Take the leases on several runs, each above its floor, in one transaction; those that were free."""
        leases = self._store.leases.acquire_many(
            floors, self.name, floors=floors, liveness=self._liveness.ref
        )
        for lease in leases.values():
            self._keep(lease)
        return leases

    def release_many(self, leases: Iterable[Lease]) -> None:
        """Give several leases back."""
        for lease in leases:
            self.release(lease)

    def owns(self, lease: Lease) -> bool:
        """Return whether the lease still holds as far as this process can know."""
        with self._lock:
            current = self._leases.get(str(lease.run_id))
        return (
            current is not None
            and current.token == lease.token
            and self._store.leases.is_mine(current)
        )

    def release(self, lease: Lease) -> None:
        """Give a lease back; one that was lost meanwhile belongs to somebody else and stays untouched."""
        with self._lock:
            self._leases.pop(str(lease.run_id), None)
        try:
            self._store.leases.release(lease)
        except StoreUnavailable as error:
            logger.warning("The lease on run %s runs out by itself: %s", lease.run_id, error)

    def stop(self) -> None:
        """End the renewing thread; what is still held runs out by itself."""
        self._stopped = True
        self._wake.set()

    def _keep(self, lease: Lease) -> None:
        with self._lock:
            self._leases[str(lease.run_id)] = lease
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._renew_for_ever, name="commander-renewal", daemon=True
                )
                self._thread.start()

    def _renew_for_ever(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        pause_seconds = self._store.settings.lease_seconds / RENEWALS_PER_TTL
        while not self._stopped:
            self._wake.wait(pause_seconds)
            self._renew_once()

    def _moved_lock(self) -> LivenessRef | None:
        """Return where the liveness lock lies if it had to be taken anew; renewing goes on without one."""
        before = self._liveness.ref
        try:
            now = self._liveness.check()
        except StoreUnavailable as error:
            logger.error("The liveness lock is gone, only the lease tells that we live: %s", error)
            return None
        return now if now != before else None

    def _renew_once(self) -> None:
        with self._lock:
            held = list(self._leases.values())
        try:
            lost = self._store.leases.renew(held, liveness=self._moved_lock())
        except (CommanderError, OSError) as error:
            logger.error("Leases could not be renewed, trying again: %s", error)
            return
        with self._lock:
            for lease in lost:
                if self._leases.get(str(lease.run_id)) is not None:
                    del self._leases[str(lease.run_id)]
                    logger.warning(
                        "Lost the lease on run %s; it stops at its next step.", lease.run_id
                    )
