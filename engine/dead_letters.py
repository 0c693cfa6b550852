"""Answer which dead letters there are: what gave up, was parked, got stuck or was recovered.

Letters that need a person are kept for ever. Resolved and aborted ones are left out of every answer
once they are older than `dead_letter_days`, and their rows go with the next `prune`.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from sqlalchemy import ColumnElement, and_, delete, func, or_, select

from .ledger_rows import pack_moment
from .letters import FOR_A_PERSON, Category, DeadLetter, unpack_letter
from .tables import LEDGER, dead_letters, runs

if TYPE_CHECKING:
    from .database import Database

Letters = list[DeadLetter]

_STAYS: Final = sorted(category.value for category in FOR_A_PERSON)


class DeadLetterQueue:
    """Answer which dead letters there are, of every namespace, as of the ledger's last `catch_up`.

    Every method raises `StoreUnavailable` when the ledger's
    database cannot be used.
    """

    def __init__(
        self,
        database: Database,
        *,
        days: int = 30,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._database = database
        self._days = timedelta(days=days)
        self._now = now
        database.use(LEDGER)

    def list(
        self,
        category: Category | str | None = None,
        *,
        open_only: bool = True,
        limit: int = 100,
        offset: int = 0,
    ) -> Letters:
        """Return letters, newest first; of one category, or of all.

        Raises:
            ValueError: there is no such category.
        """
        wanted = [self._kept()]
        if open_only:
            wanted.append(dead_letters.c.resolved_at.is_(None))
        if category is not None:
            wanted.append(dead_letters.c.category == Category(category).value)
        query = select(dead_letters).where(*wanted).order_by(dead_letters.c.seq.desc())
        with self._database.read() as connection:
            return [
                unpack_letter(row) for row in connection.execute(query.limit(limit).offset(offset))
            ]

    def get(self, entry: str) -> DeadLetter | None:
        """Return one letter, open or not; None when there is none of that id, or it has lapsed."""
        if not (entry.isascii() and entry.isdecimal() and len(entry) < 20):
            return None
        query = select(dead_letters).where(dead_letters.c.seq == int(entry), self._kept())
        with self._database.read() as connection:
            row = connection.execute(query).first()
        return None if row is None else unpack_letter(row)

    def counts(self) -> dict[Category, int]:
        """Return how many letters are open of each category, also of those that have none.

        Counted over an index of the open ones alone, so its time grows with their number only.
        """
        query = (
            select(dead_letters.c.category, func.count())
            .where(dead_letters.c.resolved_at.is_(None), self._kept())
            .group_by(dead_letters.c.category)
        )
        with self._database.read() as connection:
            found = {row[0]: row[1] for row in connection.execute(query)}
        return {category: found.get(category.value, 0) for category in Category}

    @property
    def open_count(self) -> int:
        """Return how many letters are open."""
        return sum(self.counts().values())

    def unanswered(self, limit: int = 100) -> Letters:
        """Return letters that were to be retried as another run which the ledger does not have yet."""
        missing = ~select(runs.c.run_id).where(runs.c.run_id == dead_letters.c.retried_as).exists()
        query = select(dead_letters).where(
            dead_letters.c.retried_as.isnot(None), missing, self._kept()
        )
        with self._database.read() as connection:
            return [unpack_letter(row) for row in connection.execute(query.limit(limit))]

    def prune(self, limit: int = 1_000) -> int:
        """Forget up to `limit` letters that have lapsed; return how many that were.

        A ledger that is built anew has them again, until they are pruned again; no answer has them.
        """
        lapsed = select(dead_letters.c.seq).where(self._lapsed()).limit(limit)
        with self._database.begin() as connection:
            return connection.execute(
                delete(dead_letters).where(dead_letters.c.seq.in_(lapsed))
            ).rowcount

    def _kept(self) -> ColumnElement[bool]:
        """Say which letters are answered for."""
        return or_(
            dead_letters.c.created_at >= pack_moment(self._oldest()),
            and_(
                dead_letters.c.resolved_at.is_(None),
                dead_letters.c.category.in_(_STAYS),
            ),
        )

    def _lapsed(self) -> ColumnElement[bool]:
        """Say which rows may go: the opposite of those that are kept."""
        lapses = dead_letters.c.category.not_in(_STAYS)
        return and_(
            dead_letters.c.created_at < pack_moment(self._oldest()),
            or_(dead_letters.c.resolved_at.isnot(None), lapses),
        )

    def _oldest(self) -> datetime:
        return self._now() - self._days
