"""Keep what the workers report of themselves, and what was last said about the health of all of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import delete, insert, or_, select, update

from .boot import BootClock
from .database import Database
from .tables import HEALTH, health, reports

FORGOTTEN_SECONDS: Final = 24 * 3600.0
REPORTS_AT_MOST: Final = 1_000


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """What one worker said of itself, and how long ago."""

    source: str
    age_seconds: float
    facts: Mapping[str, Any]


class HealthStore:
    """Write and read reports of this boot; every method raises StoreUnavailable when the database cannot be used."""

    def __init__(self, database: Database, clock: BootClock) -> None:
        self._database = database
        self._clock = clock
        database.use(HEALTH)

    def put(self, source: str, facts: Mapping[str, Any]) -> None:
        """Replace the report of `source`; what other boots and long gone workers left is removed on the way."""
        now = self._clock.now()
        row = {"boot_id": self._clock.boot_id, "at": now, "facts": json.dumps(facts)}
        old = or_(reports.c.boot_id != self._clock.boot_id, reports.c.at < now - FORGOTTEN_SECONDS)
        with self._database.begin() as connection:
            connection.execute(delete(reports).where(old))
            changed = update(reports).where(reports.c.source == source).values(row)
            if connection.execute(changed).rowcount == 0:
                connection.execute(insert(reports), {"source": source, **row})

    def withdraw(self, source: str) -> None:
        """Remove the report of a worker that stops on purpose."""
        with self._database.begin() as connection:
            connection.execute(delete(reports).where(reports.c.source == source))

    def reports(self, *, younger_than_seconds: float) -> list[WorkerReport]:
        """Return the reports of this boot that are not older than that, by source."""
        now = self._clock.now()
        query = (
            select(reports.c.source, reports.c.at, reports.c.facts)
            .where(
                reports.c.boot_id == self._clock.boot_id,
                reports.c.at >= now - younger_than_seconds,
            )
            .order_by(reports.c.source)
            .limit(REPORTS_AT_MOST)
        )
        with self._database.read() as connection:
            found = connection.execute(query).all()
        return [WorkerReport(row.source, now - row.at, json.loads(row.facts)) for row in found]

    def change(self, namespace: str, status: str) -> str | None:
        """Say how the whole is now; return what it was if that is news, to exactly one of all who say the same.

        A namespace of which nothing was ever said counts as healthy.
        """
        mine = health.c.namespace == namespace
        with self._database.begin() as connection:
            before = connection.execute(select(health.c.status).where(mine)).scalar_one_or_none()
            if before is None:
                connection.execute(insert(health), {"namespace": namespace, "status": status})
            elif before != status:
                connection.execute(update(health).where(mine).values(status=status))
        before = before or "healthy"
        return None if before == status else before
