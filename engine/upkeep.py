"""Judge how the leases that are held now are kept, from one row a holder."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection

from .boot import BootClock
from .liveness import Liveness, LivenessRef, probe

STALLED_SHARE = 0.7
"""A living holder renews at every third of a lease's life; beyond this share of it two renewals were missed."""

# These are no runs: the maintenance tasks keep such leases as they need them.
_HELD = """
SELECT holder, boot_id, liveness_name, liveness_device, liveness_inode,
       count(*) AS held, sum(expires_at <= :now) AS expired, min(expires_at) AS first_end
FROM leases WHERE holder IS NOT NULL AND run_id NOT LIKE 'maintenance/%'
GROUP BY holder, boot_id, liveness_name, liveness_device, liveness_inode
"""


@dataclass(frozen=True, slots=True)
class Group:
    """All leases that one holder has, with one liveness lock."""

    holder: str
    boot_id: str
    liveness: LivenessRef | None
    held: int
    expired: int
    first_end: float


@dataclass(frozen=True, slots=True)
class Upkeep:
    """How all held leases are kept."""

    held: int
    zombies: int
    """Runs whose holder is dead, or let their lease run out."""
    renewal_age_seconds: float
    """The longest time since a living holder renewed."""
    stalled: tuple[str, ...]
    """Living holders that missed two renewals."""


def held_by(connection: Connection, now: float) -> list[Group]:
    """Return the held leases, summed by holder; `now` is the boot clock's."""
    groups = []
    for row in connection.exec_driver_sql(_HELD, {"now": now}):
        holder, boot_id, name, device, inode, held, expired, first_end = row
        ref = LivenessRef(name, device, inode, boot_id) if name is not None else None
        groups.append(Group(holder, boot_id, ref, held, expired, first_end))
    return groups


def judge_upkeep(
    groups: Iterable[Group], clock: BootClock, ttl_seconds: float, liveness_directory: Path
) -> Upkeep:
    """Return the sum of all holders; each liveness lock is asked once. Of another boot, all are dead."""
    now, held, zombies, oldest = clock.now(), 0, 0, 0.0
    stalled: list[str] = []
    for group in groups:
        held += group.held
        if not _is_alive(group, clock.boot_id, liveness_directory):
            zombies += group.held
            continue
        zombies += group.expired
        age_seconds = ttl_seconds - (group.first_end - now)
        oldest = max(oldest, age_seconds)
        if age_seconds > ttl_seconds * STALLED_SHARE:
            stalled.append(group.holder)
    return Upkeep(held, zombies, oldest, tuple(sorted(stalled)))


def _is_alive(group: Group, boot_id: str, liveness_directory: Path) -> bool:
    if group.boot_id != boot_id:
        return False
    ref = group.liveness
    return ref is None or probe(liveness_directory, ref, boot_id) is not Liveness.FREE
