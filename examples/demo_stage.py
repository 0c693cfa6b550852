"""The demo's stage: the shop in a directory of its own, its workers, and the blows they take."""

from __future__ import annotations

import csv
import os
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kombu.exceptions import OperationalError

from .demo_screen import Screen
from .demo_worker import WorkerGroup, environment

if TYPE_CHECKING:
    from celery_commander.tasks import Commander

    from .shop import Order

ORDERS = Path(__file__).with_name("orders.csv")
EFFECTS_PER_ORDER = 3
ENDS = ("COMMITTED", "COMPENSATED")
STILL_SECONDS = 25.0
LOOK_SECONDS = 0.02
COUNT_SECONDS = 0.25


class DemoFailed(Exception):
    """The demo could not be played to its end."""


@dataclass(frozen=True, slots=True)
class Kill:
    """Strike when a worker has done `effects` of its own, and then `seconds` later."""

    effects: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Strike:
    """A kill that was done: when (CLOCK_MONOTONIC), with how many orders open, after which event.

    `status` is what MAIN ended with: -9 for SIGKILL.
    """

    worker: int
    at: float
    unfinished: int
    seq: int
    status: int | None


def draw_plan(seed: str, orders: int, kills: int) -> list[Kill]:
    """Return when to kill, drawn from the seed.

    The first two thirds of all effects are shared out among the kills, so that work is left after
    the last one. Every second kill comes within a second of its worker's first effect, which is
    when recovery itself is at work.
    """
    chance = random.Random(f"kills/{seed}")
    share = max(orders * EFFECTS_PER_ORDER * 2 // 3 // max(kills, 1), 3)
    late = [Kill(chance.randint(share // 3, share), chance.uniform(0, 0.05)) for _ in range(kills)]
    early = [Kill(1, chance.uniform(0, 1.0)) for _ in range(kills)]
    return [early[number] if number % 2 else late[number] for number in range(kills)]


def read_orders(limit: int) -> list[Order]:
    """Return the first `limit` orders of orders.csv."""
    with ORDERS.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))[:limit]
    return [
        {
            "id": row["id"],
            "quantity": int(row["quantity"]),
            "cents": int(row["cents"]),
            "card": row["card"],
            "address": row["address"],
        }
        for row in rows
    ]


class Stage:
    """One demo: its directory, its app, and what can be seen of both."""

    def __init__(self, home: Path, settings: Mapping[str, str], screen: Screen) -> None:
        self.home = home
        self.screen = screen
        self.run_of: dict[str, str] = {}
        self.strikes: list[Strike] = []
        self._environment = environment(settings)
        self._counted_at = 0.0
        self._finished = 0
        os.environ.update(settings)
        from . import shop  # it reads its settings when it is imported

        self.shop = shop

    @property
    def commander(self) -> Commander:
        """Return the app's commander."""
        commander: Commander = self.shop.app.commander
        return commander

    def connect(self) -> None:
        """Declare the queue, so that no two processes do so at once; DemoFailed without a broker."""
        with self.shop.app.connection_for_write() as connection:
            try:
                connection.ensure_connection(max_retries=2, timeout=5)
            except OperationalError as error:
                raise DemoFailed(f"no broker at {self.shop.BROKER}: {error}") from error
            for queue in self.shop.app.amqp.queues.values():
                queue.bind(connection.default_channel).declare()

    def submit(self, orders: list[Order]) -> None:
        """Publish every order to the durable task."""
        for order in orders:
            self.run_of[order["id"]] = self.shop.fulfil.delay(order).id

    def close(self) -> None:
        """Leave nothing behind on a shared Redis; files go with the directory."""
        broker = self.shop.BROKER
        if broker.startswith("redis"):
            from redis import Redis

            with Redis.from_url(broker) as client:
                for key in client.scan_iter(f"{self.home.name}:*"):
                    client.delete(key)

    def effects(self) -> int:
        """Return how many effects the witness has seen."""
        return self.shop.town.count()

    def finished(self) -> int:
        """Return how many runs have ended and were delivered; looks at most four times a second."""
        if time.monotonic() >= self._counted_at + COUNT_SECONDS:
            ledger = self.commander.ledger
            ledger.catch_up()
            runs = ledger.runs(limit=len(self.run_of) + 1)
            self._finished = sum(run.state in ENDS and run.delivered for run in runs)
            self._counted_at = time.monotonic()
        return self._finished

    def all_finished(self) -> bool:
        """Return whether nothing is left to do."""
        return self.finished() >= len(self.run_of)

    def start_worker(self) -> WorkerGroup:
        """Start the next worker and wait for its first effect, if anything is left to be done."""
        before = self.effects()
        worker = WorkerGroup(len(self.strikes) + 1, self.home, self._environment)
        try:
            self.watch(worker, lambda: self.effects() > before)
        except BaseException:
            worker.kill()
            raise
        return worker

    def strike(self, worker: WorkerGroup, kill: Kill) -> None:
        """Let the worker get as far as the plan says, then kill all of it."""
        target = self.effects() + kill.effects - 1
        try:
            self.watch(worker, lambda: self.effects() >= target)
            time.sleep(kill.seconds)
        finally:
            at = worker.kill()
        self._counted_at = 0.0
        unfinished = len(self.run_of) - self.finished()
        seq, _hash = self.commander.engine.head()
        self.strikes.append(Strike(worker.number, at, unfinished, seq, worker.ended))
        self.screen.say(f"  SIGKILL to worker {worker.number}, {unfinished} orders unfinished")

    def finish(self, worker: WorkerGroup) -> None:
        """Let the last worker finish everything, then stop it as an operator would."""
        try:
            self.watch(worker, self.all_finished)
        finally:
            worker.stop()

    def watch(self, worker: WorkerGroup, until: Callable[[], bool]) -> None:
        """Show progress until `until()`, or until everything has finished.

        Raises DemoFailed when the worker ends by itself, or when nothing moves for STILL_SECONDS.
        """
        seen, moved_at = (-1, -1), time.monotonic()
        while not until() and not self.all_finished():
            self._show(worker)
            if worker.ended is not None:
                raise DemoFailed(_blame(worker, f"ended by itself with status {worker.ended}"))
            now = (self.finished(), self.effects())
            if now != seen:
                seen, moved_at = now, time.monotonic()
            elif time.monotonic() >= moved_at + STILL_SECONDS:
                raise DemoFailed(_blame(worker, f"got no further for {STILL_SECONDS:.0f} s"))
            time.sleep(LOOK_SECONDS)
        self._show(worker)

    def _show(self, worker: WorkerGroup) -> None:
        text = f"orders finished, {self.effects()} effects, worker {worker.number}"
        self.screen.progress(self.finished(), len(self.run_of), text)


def _blame(worker: WorkerGroup, what: str) -> str:
    return f"worker {worker.number} {what}. {worker.log_path} ends with:\n{worker.last_words()}"
