"""Remember when a round of maintenance last began and was done, so that nobody does it twice for one request."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from sqlalchemy import insert, select, update

from .database import Database
from .ledger_rows import pack_moment, unpack_moment
from .tables import HEALTH, rounds


class Rounds:
    """Note rounds by name; the moments are the host's UTC clock, and only ever save work.

    Every method raises StoreUnavailable when the database cannot be used.
    """

    def __init__(
        self, database: Database, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._database = database
        self.now = now
        database.use(HEALTH)

    def note(self, name: str, began_at: datetime) -> None:
        """Write down that a round that began then was done."""
        moment = pack_moment(began_at)
        with self._database.begin() as connection:
            changed = update(rounds).where(rounds.c.name == name).values(began_at=moment)
            if connection.execute(changed).rowcount == 0:
                connection.execute(insert(rounds), {"name": name, "began_at": moment})

    def last(self, name: str) -> datetime | None:
        """Return when the last round that was done began; None when there was none, or when that lies ahead of now.

        After a step of the clock backwards the noted moment means nothing, and a round too many is harmless.
        """
        query = select(rounds.c.began_at).where(rounds.c.name == name)
        with self._database.read() as connection:
            moment = connection.execute(query).scalar_one_or_none()
        began_at = unpack_moment(moment) if moment is not None else None
        return began_at if began_at is not None and began_at <= self.now() else None

    def covers(self, name: str, asked_at: datetime) -> bool:
        """Return whether a round began after it was asked for, and is done: then there is nothing left to do."""
        last = self.last(name)
        return last is not None and asked_at <= last

    def is_due(self, name: str, every_seconds: float) -> bool:
        """Return whether the last round began that long ago, or never."""
        last = self.last(name)
        return last is None or (self.now() - last).total_seconds() >= every_seconds
