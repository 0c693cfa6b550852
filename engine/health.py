"""Answer how a store is, in constant time: nothing is verified, folded or scanned for it.

Every number is read from where it is kept anyhow, so asking each second is harmless. Whatever cannot be asked counts
as unhealthy, with the reason: silence is not health. What only Celery's side knows (workers, queues, the broker) is
added there; this is the part that the log and the databases beside it can tell.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from .database import Database
from .dead_letters import DeadLetterQueue
from .errors import CommanderError, LogError
from .events import Event
from .files import Files
from .health_report import Findings, Health, HealthReport
from .ids import is_of_host
from .leases import LeaseManager
from .ledger import RunLedger
from .letters import FOR_A_PERSON, Category
from .places import unsafe_place
from .states import State
from .verified import Verification, is_sound

if TYPE_CHECKING:
    from .engine import EventSourcingEngine

_NEW: Final = timedelta(hours=1)
COUNTED_AT_MOST: Final = 10_000


class EventSourcingHealth:
    """Judge one store from what its log and databases already know.

    Without a ledger it opens the one beside the log, if there is one; leases and dead letters are asked where given.
    """

    def __init__(
        self,
        engine: EventSourcingEngine,
        *,
        ledger: RunLedger | None = None,
        leases: LeaseManager | None = None,
        dead_letters: DeadLetterQueue | None = None,
    ) -> None:
        self._engine = engine
        self._settings = engine.settings
        self._ledger = ledger
        self._leases = leases
        self._dead_letters = dead_letters
        self._first: Event | None = None
        self._place: tuple[str | None] | None = None

    def report(self) -> HealthReport:
        """Return how the store is now; it never raises for what it may find."""
        found = Findings()
        found.ask("the log", lambda: self._ask_log(found))
        found.ask("the write latency", lambda: self._ask_latency(found))
        found.ask("the size of the log", lambda: self._ask_size(found))
        found.ask("the last verification", lambda: self._ask_chain(found))
        found.ask("the free disk", lambda: self._ask_disk(found))
        found.ask("the ledger", lambda: self._ask_ledger(found))
        found.ask("the dead letters", lambda: self._ask_dead_letters(found))
        found.ask("the leases", lambda: self._ask_leases(found))
        found.ask("the state directory", lambda: self._ask_place(found))
        return found.report()

    def problem(self) -> str | None:
        """Return why nothing may be decided from this log: poisoned, broken, cut, moved, not writable; else None."""
        unwritable = self.unwritable()
        if unwritable is not None:
            return unwritable
        try:
            last = self._engine.last_verification()
        except (OSError, ValueError) as error:
            return f"the last verification cannot be read: {error}"
        return self._broken(last)

    def unwritable(self) -> str | None:
        """Return why the next append would be refused, or None; nothing is written to find out."""
        try:
            self._engine.check()
            disk = os.statvfs(self._engine.path.parent)
        except (LogError, OSError) as error:
            return str(error)
        if disk.f_flag & os.ST_RDONLY:
            return f"{self._engine.path} lies on a file system that is mounted read-only"
        if not os.access(self._engine.path, os.R_OK | os.W_OK):
            return f"{self._engine.path} is not writable for user {os.geteuid()}"
        return None

    def stalled(self, host: str | None = None) -> list[str]:
        """Return what is to be said of living processes that do not renew; `host` limits it to one host name."""
        if self._leases is None:
            return []
        try:
            stalled = self._leases.upkeep().stalled
        except CommanderError as error:
            return [str(error)]
        return [_not_renewing(name) for name in stalled if host is None or is_of_host(name, host)]

    def _broken(self, last: Verification | None) -> str | None:
        if last is None or is_sound(last.status):
            return None
        return (
            f"the chain does not hold: verification said {last.status} behind event {last.seq}"
            f" at {last.at.isoformat(timespec='seconds')}: {last.reason}"
        )

    def _ask_log(self, found: Findings) -> None:
        unwritable = self.unwritable()
        if unwritable is not None:
            found.say(Health.UNHEALTHY, unwritable)
        if self._settings.durability != "fsync":
            found.say(
                Health.DEGRADED,
                f"durability is {self._settings.durability}, so a power cut may lose what was acknowledged",
            )

    def _ask_latency(self, found: Findings) -> None:
        found.measure(
            "log_write_latency_p95",
            self._engine.latency.p95(self._settings.latency_window_seconds),
            "seconds",
            degraded_at=self._settings.latency_degraded_seconds,
            unhealthy_at=self._settings.latency_unhealthy_seconds,
        )

    def _ask_size(self, found: Findings) -> None:
        found.measure(
            "live_log_size",
            self._engine.live_bytes(),
            "bytes",
            degraded_at=self._settings.log_degraded_bytes,
            unhealthy_at=self._settings.log_unhealthy_bytes,
        )

    def _ask_chain(self, found: Findings) -> None:
        last = self._engine.last_verification()
        broken = self._broken(last)
        found.measure(
            "chain_breaks", float(broken is not None), "breaks", unhealthy_at=1, reason=broken
        )
        if last is not None and last.status == "BREAK_ACCEPTED":
            found.say(Health.DEGRADED, f"the log goes on behind damage: {last.reason}")
        if last is not None and last.status == "STALE_ANCHOR":
            found.say(Health.DEGRADED, f"the newest anchor is too old: {last.reason}")
        now, first = self._engine.now(), self._first_event()
        begun_at = first.timestamp if first is not None else now
        found.measure(
            "verification_age",
            max(0.0, (now - (last.at if last is not None else begun_at)).total_seconds()),
            "seconds",
            degraded_at=self._settings.verify_stale_seconds,
            reason=None if last is not None else "the chain was never verified",
        )
        if first is not None and first.seq == 1 and (now - begun_at) < _NEW:
            found.say(
                Health.HEALTHY,
                f"the log {self._engine.path} was newly made at"
                f" {begun_at.isoformat(timespec='seconds')}; if it should have a history, it lies elsewhere",
            )

    def _first_event(self) -> Event | None:
        """Return the oldest event that is still there; read once."""
        if self._first is None:
            self._first = next(self._engine.outlines_from(None, frozenset()), None)
        return self._first

    def _ask_disk(self, found: Findings) -> None:
        disk = os.statvfs(self._engine.path.parent)
        found.measure(
            "free_disk",
            disk.f_bavail * disk.f_frsize,
            "bytes",
            degraded_at=self._settings.disk_degraded_bytes,
            unhealthy_at=self._settings.disk_unhealthy_bytes,
            little_is_bad=True,
        )

    def _ask_ledger(self, found: Findings) -> None:
        ledger = self._ledger or self._ledger_beside()
        backlog = ledger.backlog() if ledger is not None else self._engine.published_seq
        found.measure(
            "event_backlog",
            backlog,
            "events",
            degraded_at=self._settings.backlog_degraded_events,
            unhealthy_at=self._settings.backlog_unhealthy_events,
        )
        if ledger is None:
            return
        stuck = ledger.count(State.STUCK, at_most=COUNTED_AT_MOST)
        found.measure("stuck_runs", stuck, "runs", degraded_at=1)
        since = self._engine.now() - timedelta(seconds=self._settings.unrecorded_seconds)
        unrecorded = ledger.unrecorded(since, at_most=COUNTED_AT_MOST)
        found.measure("unrecorded_runs", unrecorded, "runs", unhealthy_at=1)
        self._ask_gaps(found, ledger)

    def _ask_gaps(self, found: Findings, ledger: RunLedger) -> None:
        """Say how many observations were dropped in all; for a while after the last time that is a fault."""
        gaps = ledger.gaps()
        found.measure("dropped_observations", gaps.events, "events")
        since = self._engine.now() - timedelta(seconds=self._settings.unrecorded_seconds)
        if gaps.last_at is not None and gaps.last_at >= since:
            at = gaps.last_at.isoformat(timespec="seconds")
            found.say(Health.DEGRADED, f"observations were dropped, the last at {at}")

    def _ledger_beside(self) -> RunLedger | None:
        """Return the ledger of an engine that was opened alone; where there is none, every event is backlog."""
        if self._ledger is None and self._settings.ledger_path.exists():
            busy_seconds = min(self._settings.lock_seconds, 2.0)
            database = Database(self._settings.ledger_path, busy_seconds=busy_seconds)
            self._ledger = RunLedger(database, self._engine)
            self._dead_letters = DeadLetterQueue(database, days=self._settings.dead_letter_days)
        return self._ledger

    def _ask_dead_letters(self, found: Findings) -> None:
        if self._dead_letters is not None:
            counts = self._dead_letters.counts()
            measure_letters(found, counts, self._settings.dead_letters_degraded)

    def _ask_leases(self, found: Findings) -> None:
        if self._leases is None:
            return
        upkeep = self._leases.upkeep()
        found.measure("held_leases", upkeep.held, "leases")
        found.measure("zombies", upkeep.zombies, "runs", degraded_at=1)
        found.measure("renewal_age", upkeep.renewal_age_seconds, "seconds")
        found.measure(
            "stalled_renewals",
            len(upkeep.stalled),
            "processes",
            unhealthy_at=1,
            reason="; ".join(map(_not_renewing, upkeep.stalled)),
        )

    def _ask_place(self, found: Findings) -> None:
        if self._place is None:
            self._place = (unsafe_place(self._engine.path.parent, Files().mounts()),)
        if self._place[0] is not None:
            found.say(Health.DEGRADED, self._place[0])


def measure_letters(found: Findings, counts: Mapping[Category, int], degraded_at: int) -> None:
    """Add how many dead letters are open: of all kinds together, and of those that only a person can end."""
    open_ones = sum(counts.values())
    found.measure("dead_letters", open_ones, "letters", degraded_at=degraded_at)
    waiting = sum(counts.get(category, 0) for category in FOR_A_PERSON)
    found.measure("dead_letters_for_a_person", waiting, "letters", degraded_at=1)


def _not_renewing(holder: str) -> str:
    return f"{holder} lives and does not renew its leases"


def unopened(error: CommanderError | OSError) -> HealthReport:
    """Return the report of a store that could not even be opened."""
    return HealthReport(Health.UNHEALTHY, (), (str(error),))
