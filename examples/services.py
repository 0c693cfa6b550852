"""A stock, a bank and a carrier, each with a book of its own: the outside witness.

A service here is what it is in life: somebody else's system. It knows nothing of Celery or of
celery-commander, it writes every effect into its own SQLite book, and calling it twice does it
twice: a second `charge` with the same key is a second row, so an effect that was done twice is
counted by somebody who has no reason to hide it.

Only the undos are kind, because whoever undoes has to be able to ask again: they are done once a
key, and they do nothing where the effect they take back never happened.
"""

from __future__ import annotations

import os
import random
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

NO_SUCH_PLACE = "Atlantis"
LOST_ANSWER = "Skerries"
LOCK_SECONDS = 20.0

SCHEMA = """
CREATE TABLE IF NOT EXISTS effects (
    number   INTEGER PRIMARY KEY,
    key      TEXT NOT NULL,
    kind     TEXT NOT NULL,
    order_id TEXT NOT NULL,
    amount   INTEGER NOT NULL,
    pid      INTEGER NOT NULL,
    at       REAL NOT NULL
)
"""


class OutOfReach(Exception):
    """The carrier does not go there, and has not taken the parcel."""


class CardDeclined(Exception):
    """The bank said no, and has not taken the money."""


class NoAnswer(Exception):
    """The carrier's answer was lost, which says nothing about the parcel."""


@dataclass(frozen=True, slots=True)
class Effect:
    """What one row of a book says.

    `amount` is in pieces or cents; `at` is CLOCK_MONOTONIC in seconds, one clock for all processes.
    """

    key: str
    kind: str
    order_id: str
    amount: int
    pid: int
    at: float


class Book:
    """One service's record of what it did, a row for each time that it did it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def create(self) -> None:
        """Make the empty book. Safe to call again."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self._open("IMMEDIATE") as connection:
            connection.execute(SCHEMA)

    def record(self, kind: str, order_id: str, amount: int, *, key: str) -> int:
        """Write one effect and return its row number, whether or not it was done before."""
        with self._open("IMMEDIATE") as connection:
            return _insert(connection, kind, order_id, amount, key)

    def record_undo(self, kind: str, undone: tuple[str, str], *, key: str) -> bool:
        """Write an undo, once a key, if the effect `undone` (kind, key) happened; tell whether."""
        with self._open("IMMEDIATE") as connection:
            done = _find(connection, *undone)
            if done is None:
                return False
            if _find(connection, kind, key) is None:
                _insert(connection, kind, done[1], done[2], key)
            return True

    def find(self, kind: str, key: str) -> int | None:
        """Return the row number of an effect, or None if it never happened."""
        with self._open("DEFERRED") as connection:
            row = _find(connection, kind, key)
        return None if row is None else row[0]

    def effects(self) -> list[Effect]:
        """Return every row, oldest first."""
        query = "SELECT key, kind, order_id, amount, pid, at FROM effects ORDER BY number"
        with self._open("DEFERRED") as connection:
            return [Effect(*row) for row in connection.execute(query)]

    def count(self) -> int:
        """Return the number of rows."""
        with self._open("DEFERRED") as connection:
            return int(connection.execute("SELECT count(*) FROM effects").fetchone()[0])

    @contextmanager
    def _open(self, mode: str) -> Iterator[sqlite3.Connection]:
        """Open, begin, commit, close: the two sides of a fork must not share a connection."""
        connection = sqlite3.connect(self.path, timeout=LOCK_SECONDS, isolation_level=None)
        try:
            # The demo kills processes, not the machine: what the kernel was given survives that.
            connection.execute("PRAGMA synchronous = OFF")
            connection.execute(f"BEGIN {mode}")
            yield connection
            connection.execute("COMMIT")
        finally:
            connection.close()


def _insert(connection: sqlite3.Connection, kind: str, order_id: str, amount: int, key: str) -> int:
    cursor = connection.execute(
        "INSERT INTO effects (key, kind, order_id, amount, pid, at) VALUES (?, ?, ?, ?, ?, ?)",
        (key, kind, order_id, amount, os.getpid(), time.monotonic()),
    )
    assert cursor.lastrowid is not None
    return cursor.lastrowid


def _find(connection: sqlite3.Connection, kind: str, key: str) -> tuple[int, str, int] | None:
    row = connection.execute(
        "SELECT number, order_id, amount FROM effects WHERE kind = ? AND key = ?", (kind, key)
    ).fetchone()
    return None if row is None else (row[0], row[1], row[2])


class Pace:
    """Lets a service take a little time, so that a kill can fall on either side of an effect.

    `seconds` is the longest pause. Its length is drawn from the seed, the effect and the order.
    """

    def __init__(self, seed: str, seconds: float) -> None:
        self._seed = seed
        self._seconds = seconds

    def pause(self, kind: str, order_id: str, side: str) -> None:
        """Sleep for this effect's share of the longest pause."""
        share = random.Random(f"{self._seed}/{kind}/{order_id}/{side}").random()
        time.sleep(self._seconds * share)


class Service:
    """What the three have in common: a book and a pace."""

    def __init__(self, book: Book, pace: Pace) -> None:
        self.book = book
        self._pace = pace

    def _do(self, kind: str, order_id: str, amount: int, *, key: str) -> int:
        self._pace.pause(kind, order_id, "before")
        number = self.book.record(kind, order_id, amount, key=key)
        self._pace.pause(kind, order_id, "after")
        return number


class Stock(Service):
    """Puts goods aside."""

    def reserve(self, order_id: str, quantity: int, *, key: str) -> str:
        """Put `quantity` pieces aside and return the number of the shelf."""
        return f"shelf-{self._do('reserve', order_id, quantity, key=key)}"

    def release_if_reserved(self, reserve_key: str, *, key: str) -> bool:
        """Put back what was put aside under `reserve_key`, if anything was."""
        return self.book.record_undo("unreserve", ("reserve", reserve_key), key=key)


class Bank(Service):
    """Takes money and gives it back. Amounts are in cents."""

    def charge(self, order_id: str, cents: int, card: str, *, key: str) -> str:
        """Take the money and return the receipt's number, or take nothing: CardDeclined."""
        if card.startswith("declined"):
            raise CardDeclined(order_id)
        return f"receipt-{self._do('charge', order_id, cents, key=key)}"

    def find_charge(self, charge_key: str) -> str | None:
        """Return the receipt's number of a charge that happened, or None."""
        number = self.book.find("charge", charge_key)
        return None if number is None else f"receipt-{number}"

    def refund_if_charged(self, charge_key: str, *, key: str) -> bool:
        """Give back what was taken under `charge_key`, if anything was."""
        return self.book.record_undo("refund", ("charge", charge_key), key=key)


class Carrier(Service):
    """Quotes a price and takes parcels away."""

    def quote(self, order_id: str, quantity: int) -> int:
        """Return the price of the way in cents. Asking has no effect and may be repeated."""
        self._pace.pause("quote", order_id, "before")
        return 490 + 110 * quantity

    def ship(self, order_id: str, address: str, cents: int, *, key: str) -> str:
        """Take the parcel and return its number.

        Raises OutOfReach before the parcel is taken, and NoAnswer after it was.
        """
        if address == NO_SUCH_PLACE:
            raise OutOfReach(order_id)
        number = self._do("ship", order_id, cents, key=key)
        if address == LOST_ANSWER:
            raise NoAnswer(order_id)
        return f"parcel-{number}"

    def recall_if_shipped(self, ship_key: str, *, key: str) -> bool:
        """Bring back what was shipped under `ship_key`, if anything was."""
        return self.book.record_undo("recall", ("ship", ship_key), key=key)


@dataclass(frozen=True, slots=True)
class Town:
    """The three services of one demo, with their books in one directory."""

    stock: Stock
    bank: Bank
    carrier: Carrier

    @classmethod
    def open(cls, directory: Path, *, seed: str = "0", pause_seconds: float = 0.03) -> Town:
        """Open the books under `directory`, making those that are missing."""
        books = [Book(directory / f"{name}.sqlite") for name in ("stock", "bank", "carrier")]
        for book in books:
            book.create()
        pace = Pace(seed, pause_seconds)
        return cls(Stock(books[0], pace), Bank(books[1], pace), Carrier(books[2], pace))

    def effects(self) -> list[Effect]:
        """Return every effect of the three books, oldest first."""
        services: tuple[Service, ...] = (self.stock, self.bank, self.carrier)
        rows = [effect for service in services for effect in service.book.effects()]
        return sorted(rows, key=lambda effect: effect.at)

    def count(self) -> int:
        """Return how many effects the three books hold."""
        return self.stock.book.count() + self.bank.book.count() + self.carrier.book.count()
