"""Let one owner at a time have a run, and number the owners.

Every claim gets a token that is larger than all before it. Whoever held the run with a smaller one may still
believe that it does; the log compares tokens and lets it write no more (the fencing token of Kleppmann, "How to
do distributed locking", 2016). So a lease is only an optimisation of the truth, and may be lost by expiry, by a
reboot, or with its whole table: `floor`, the highest token in the log, keeps the numbers growing.

A lease is free when nobody ever had it, when it was given back, when its time is up on the boot clock, when it is
of another boot, or when its holder's liveness lock proves that the holder is dead. Rows are never deleted.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection

from . import liveness as locks
from .boot import BootClock
from .database import Database
from .errors import StrPath
from .liveness import Liveness, LivenessRef
from .tables import LEASES
from .upkeep import Upkeep, held_by, judge_upkeep

_BATCH = 500  # SQLite of old allows 999 variables in one statement

# Text for the driver, not expressions: these run for every task, and compiling is what they would cost most.
_CLAIM = """
INSERT INTO leases (run_id, token, holder, boot_id, expires_at, took_over,
                    liveness_name, liveness_device, liveness_inode)
VALUES (:run_id, :floor + 1, :holder, :boot_id, :expires_at, 0, :name, :device, :inode)
ON CONFLICT (run_id) DO UPDATE SET
    token = max(leases.token, :floor) + 1,
    took_over = leases.holder IS NOT NULL,
    holder = excluded.holder, boot_id = excluded.boot_id, expires_at = excluded.expires_at,
    liveness_name = excluded.liveness_name, liveness_device = excluded.liveness_device,
    liveness_inode = excluded.liveness_inode
WHERE leases.holder IS NULL OR leases.boot_id <> :boot_id OR leases.expires_at <= :now
   OR (leases.holder = :dead_holder AND leases.token = :dead_token)
"""
_CLAIMED = "SELECT token, took_over FROM leases WHERE run_id = ?"
_RENEW = """
UPDATE leases SET expires_at = :expires_at
WHERE run_id = :run_id AND holder = :holder AND token = :token
"""
_RENEW_LIVENESS = """
UPDATE leases SET expires_at = :expires_at,
    liveness_name = :name, liveness_device = :device, liveness_inode = :inode
WHERE run_id = :run_id AND holder = :holder AND token = :token
"""
_RELEASE = "UPDATE leases SET holder = NULL WHERE run_id = ? AND holder = ? AND token = ?"
_ROW = """
SELECT run_id, token, holder, boot_id, expires_at, liveness_name, liveness_device, liveness_inode
FROM leases
"""
_HOLDERS = """
SELECT DISTINCT liveness_name, holder, liveness_device, liveness_inode, boot_id FROM leases
WHERE holder IS NOT NULL AND liveness_name IS NOT NULL
"""


@dataclass(frozen=True, slots=True)
class Lease:
    """One owner's hold on one run, as it was when it was claimed; renewing does not change it."""

    run_id: str
    token: int
    holder: str
    expires_at: float
    """BootClock seconds; a renewal moves the row's, not this one."""
    took_over: bool
    """Whether the holder before had not given the run back: it died, or lost its lease."""


@dataclass(frozen=True, slots=True)
class LeaseRow:
    """What the table says about one run. `holder` is None when the lease was given back."""

    run_id: str
    token: int
    holder: str | None
    boot_id: str
    expires_at: float
    liveness: LivenessRef | None


@dataclass(frozen=True, slots=True)
class LeaseStatus:
    """Whether somebody owns a run now, for those who must decide about it."""

    alive: bool
    """Somebody holds it, and nothing says that it ended."""
    proven_dead: bool
    """The holder had not given it back, and its liveness lock of this boot is free."""
    expired_seconds: float | None
    """How long ago an unreleased lease ran out; for one of another boot, at least the age of this boot."""
    holder: str | None
    token: int


class LeaseManager:
    """Claim, renew and give back leases of one database; for many threads and across forks."""

    def __init__(
        self,
        database: Database,
        clock: BootClock,
        *,
        ttl_seconds: float,
        liveness_directory: StrPath,
    ) -> None:
        self._database = database
        self._clock = clock
        self._ttl_seconds = ttl_seconds
        self._liveness_directory = Path(liveness_directory).absolute()
        self._deadlines = _Deadlines()
        database.use(LEASES)

    def acquire(
        self,
        run_id: str,
        holder: str,
        *,
        floor: int = 0,
        liveness: LivenessRef | None = None,
        ttl_seconds: float | None = None,
    ) -> Lease | None:
        """Claim a run, or return None when somebody else has it.

        `floor` is the highest token that the log knows for the run; the new one is larger. `liveness` names this
        process's lock, so that its death is noticed before the lease runs out. `ttl_seconds` overrides the
        manager's.

        Raises:
            StoreBusy, StoreUnavailable: nothing was claimed.
        """
        return self.acquire_many(
            [run_id], holder, floors={run_id: floor}, liveness=liveness, ttl_seconds=ttl_seconds
        ).get(run_id)

    def acquire_many(
        self,
        run_ids: Iterable[str],
        holder: str,
        *,
        floors: Mapping[str, int] | None = None,
        liveness: LivenessRef | None = None,
        ttl_seconds: float | None = None,
    ) -> dict[str, Lease]:
        """Claim several runs in one transaction; the answer holds those that were free. See `acquire`."""
        wanted = list(dict.fromkeys(run_ids))
        claim = _Claim(
            self._clock, holder, floors or {}, liveness, ttl_seconds or self._ttl_seconds
        )
        with self._database.begin() as connection:
            leases = claim.take(connection, wanted)
            rest = [run_id for run_id in wanted if run_id not in leases]
            rows = _rows(connection, rest) if rest else {}
        # The locks are asked outside the transaction, and the claim names exactly the holder that was proven dead.
        dead = {row.run_id: row for row in rows.values() if self._is_dead(row, self._probes())}
        if dead:
            with self._database.begin() as connection:
                leases |= claim.take(connection, list(dead), dead)
        for lease in leases.values():
            self._deadlines.put(lease, lease.expires_at)
        return leases

    def renew(self, leases: Sequence[Lease], *, liveness: LivenessRef | None = None) -> list[Lease]:
        """Let leases live on for another TTL from now; return those that were lost.

        Give `liveness` (what `LivenessLock.check` returned) to record a lock that had to be taken again. A lease that
        ran out and that nobody claimed meanwhile is renewed all the same: its token is still the highest.
        """
        if not leases:
            return []
        lost: list[Lease] = []
        renewed: list[Lease] = []
        with self._database.begin() as connection:
            deadline = self._clock.now() + self._ttl_seconds
            new = {"expires_at": deadline} | _columns(liveness)
            statement = _RENEW if liveness is None else _RENEW_LIVENESS
            for lease in leases:
                key = {"run_id": lease.run_id, "holder": lease.holder, "token": lease.token}
                done = connection.exec_driver_sql(statement, new | key).rowcount
                (renewed if done else lost).append(lease)
        for lease in renewed:
            self._deadlines.extend(lease, deadline)
        for lease in lost:
            self._deadlines.forget(lease)
        return lost

    def release(self, lease: Lease) -> bool:
        """Give a run back; False when the lease was lost before. The row stays, and with it the token."""
        self._deadlines.forget(lease)
        with self._database.begin() as connection:
            key = (lease.run_id, lease.holder, lease.token)
            return connection.exec_driver_sql(_RELEASE, key).rowcount == 1

    def is_mine(self, lease: Lease) -> bool:
        """Return whether this process may still act for the run: from memory, by the deadline it last wrote.

        True proves nothing about the next instant; the log's fence does. A forked child owns nothing.
        """
        deadline = self._deadlines.get(lease)
        return deadline is not None and self._clock.now() < deadline

    def get(self, run_id: str) -> LeaseRow | None:
        """Return what the table says about a run, or None when nobody ever claimed it."""
        with self._database.read() as connection:
            return _rows(connection, [run_id]).get(run_id)

    def status(self, run_id: str) -> LeaseStatus:
        """Return whether somebody owns the run now."""
        return self.statuses([run_id])[run_id]

    def statuses(self, run_ids: Iterable[str]) -> dict[str, LeaseStatus]:
        """Return the status of each run, from one look at the table; each liveness lock is asked once."""
        wanted = list(dict.fromkeys(run_ids))
        with self._database.read() as connection:
            rows = _rows(connection, wanted)
        probes = self._probes()
        return {run_id: self._judge(rows.get(run_id), probes) for run_id in wanted}

    def dead_holders(self) -> list[str]:
        """Return the holders that are proven dead and had not given everything back. Cheap: for a watcher."""
        with self._database.read() as connection:
            found = connection.exec_driver_sql(_HOLDERS).all()
        probes = self._probes()
        refs = {holder: LivenessRef(name, dev, ino, boot) for name, holder, dev, ino, boot in found}
        return sorted(holder for holder, ref in refs.items() if probes.ask(ref) is Liveness.FREE)

    def runs_of(self, holder: str) -> list[str]:
        """Return the runs that `holder` has not given back, expired or not."""
        with self._database.read() as connection:
            found = connection.exec_driver_sql(
                "SELECT run_id FROM leases WHERE holder = ? AND holder IS NOT NULL ORDER BY run_id",
                (holder,),
            )
            return [run_id for (run_id,) in found]

    def sweep_liveness(self) -> int:
        """Remove the liveness files of dead processes that no lease names; return how many."""
        with self._database.read() as connection:
            names = frozenset(name for name, *_ in connection.exec_driver_sql(_HOLDERS))
        return locks.sweep(self._liveness_directory, names)

    def upkeep(self) -> Upkeep:
        """Return how the held leases are kept: whose owner is gone, who stopped renewing. One row a holder is read."""
        with self._database.read() as connection:
            groups = held_by(connection, self._clock.now())
        return judge_upkeep(groups, self._clock, self._ttl_seconds, self._liveness_directory)

    def _judge(self, row: LeaseRow | None, probes: _Probes) -> LeaseStatus:
        if row is None or row.holder is None:
            return LeaseStatus(False, False, None, None, row.token if row else 0)
        now = self._clock.now()
        if row.boot_id != self._clock.boot_id:
            return LeaseStatus(False, False, now, row.holder, row.token)
        expired = now - row.expires_at if row.expires_at <= now else None
        dead = self._is_dead(row, probes)
        return LeaseStatus(expired is None and not dead, dead, expired, row.holder, row.token)

    def _is_dead(self, row: LeaseRow, probes: _Probes) -> bool:
        return (
            row.holder is not None
            and row.liveness is not None
            and probes.ask(row.liveness) is Liveness.FREE
        )

    def _probes(self) -> _Probes:
        return _Probes(self._liveness_directory, self._clock.boot_id)


class _Probes:
    """Ask each liveness lock once, however many leases name it."""

    def __init__(self, directory: Path, boot_id: str) -> None:
        self._directory = directory
        self._boot_id = boot_id
        self._answers: dict[LivenessRef, Liveness] = {}

    def ask(self, ref: LivenessRef) -> Liveness:
        if ref not in self._answers:
            self._answers[ref] = locks.probe(self._directory, ref, self._boot_id)
        return self._answers[ref]


class _Deadlines:
    """Remember until when this process may act; a forked child remembers nothing."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._mutex = threading.Lock()
        self._until: dict[Lease, float] = {}

    def put(self, lease: Lease, deadline: float) -> None:
        self._mine()[lease] = deadline

    def extend(self, lease: Lease, deadline: float) -> None:
        mine = self._mine()
        with self._mutex:
            if lease in mine:  # not given back by another thread meanwhile
                mine[lease] = deadline

    def get(self, lease: Lease) -> float | None:
        return self._mine().get(lease)

    def forget(self, lease: Lease) -> None:
        mine = self._mine()
        with self._mutex:
            mine.pop(lease, None)

    def _mine(self) -> dict[Lease, float]:
        if os.getpid() != self._pid:
            self._until, self._mutex, self._pid = {}, threading.Lock(), os.getpid()
        return self._until


@dataclass(frozen=True, slots=True)
class _Claim:
    """One holder's wish for some runs, as the claiming statement needs it."""

    clock: BootClock
    holder: str
    floors: Mapping[str, int]
    liveness: LivenessRef | None
    ttl_seconds: float

    def take(
        self,
        connection: Connection,
        run_ids: Sequence[str],
        dead: Mapping[str, LeaseRow] | None = None,
    ) -> dict[str, Lease]:
        """Claim what is free, or what the holders in `dead` still have; the clock is read behind the lock."""
        now = self.clock.now()
        common = {
            "holder": self.holder,
            "boot_id": self.clock.boot_id,
            "now": now,
            "expires_at": now + self.ttl_seconds,
        } | _columns(self.liveness)
        taken = {}
        for run_id in run_ids:
            row = dead.get(run_id) if dead else None
            own = {
                "run_id": run_id,
                "floor": self.floors.get(run_id, 0),
                "dead_holder": row.holder if row else None,
                "dead_token": row.token if row else None,
            }
            if connection.exec_driver_sql(_CLAIM, common | own).rowcount == 1:
                token, took_over = connection.exec_driver_sql(_CLAIMED, (run_id,)).one()
                taken[run_id] = Lease(
                    run_id, token, self.holder, now + self.ttl_seconds, bool(took_over)
                )
        return taken


def _columns(liveness: LivenessRef | None) -> dict[str, Any]:
    if liveness is None:
        return {"name": None, "device": None, "inode": None}
    return {"name": liveness.name, "device": liveness.device, "inode": liveness.inode}


def _rows(connection: Connection, run_ids: Sequence[str]) -> dict[str, LeaseRow]:
    rows = {}
    for start in range(0, len(run_ids), _BATCH):
        part = tuple(run_ids[start : start + _BATCH])
        marks = ",".join("?" * len(part))
        for found in connection.exec_driver_sql(f"{_ROW} WHERE run_id IN ({marks})", part):
            run_id, token, holder, boot_id, expires_at, name, device, inode = found
            ref = LivenessRef(name, device, inode, boot_id) if name is not None else None
            rows[run_id] = LeaseRow(run_id, token, holder, boot_id, expires_at, ref)
    return rows
