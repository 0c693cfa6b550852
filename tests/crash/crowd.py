"""Run real processes on one log, kill them at random while they write, seal, compact, read and verify, and count.

Each role is a forked process; whoever is killed is started again. What a process was acknowledged it writes into a
file of its own, which outlives it. The seed tells who does what and who is killed; when, the machine decides.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from celery_commander.engine import (
    Database,
    EventSourcingEngine,
    Fenced,
    HistoryArchived,
    LockTimeout,
    LogCompacted,
    NewEvent,
    RunHistory,
    RunLedger,
    Settings,
    Status,
)
from tests.engine.ledgers import lines_of, rows

from .chain import Chain

ROLES = ("writer", "writer", "writer", "keeper", "keeper", "reader", "verifier", "folder")
STORIES = (
    ("run.created", "run.started@1", "step.started@1", "step.completed@1", "run.committed@1"),
    ("run.created", "run.started@1", "run.committed@1", "run.delivered@1"),
    ("run.created", "run.started@1", "step.started@1"),
    ("run.created", "run.started@1", "step.started@1", "run.fenced@5"),
    ("run.created", "run.started@1", "step.started@1", "run.aborted@1"),
)
_FENCED = STORIES[3]


def settings_in(directory: Path) -> Settings:
    return Settings(state_directory=directory / "state", segment_bytes=24_000)


class Role:
    """One process's work; whatever it meets that it should not, it writes down."""

    def __init__(self, directory: Path, name: str, seed: str) -> None:
        self.settings = settings_in(directory)
        self.engine = EventSourcingEngine.open(self.settings)
        self.chance = random.Random(f"{seed} {name} {os.getpid()}")
        self.name = name
        self._told = (directory / f"told.{name}").open("a", encoding="utf-8")
        self._acks = (directory / f"acks.{name}").open("a", encoding="utf-8")

    def tell(self, *words: object) -> None:
        print(*words, file=self._told, flush=True)

    def ack(self, *words: object) -> None:
        print(*words, file=self._acks, flush=True)

    def writer(self) -> Iterator[None]:
        """Append runs event by event or as a whole; a fenced owner's next append must be refused."""
        number = 0
        while True:
            number += 1
            run_id = f"{self.name}-{os.getpid()}-{number}"
            story = self.chance.choice(STORIES)
            self._write(run_id, lines_of(run_id, story))
            if story is _FENCED:
                try:
                    self.engine.append("run.committed", {"result": 1}, run_id=run_id, token=1, n=3)
                    self.tell("a fence was ignored", run_id)
                except Fenced:
                    pass
            yield

    def _write(self, run_id: str, news: list[NewEvent]) -> None:
        if self.chance.random() < 0.3:
            events = self.engine.append_many(news, wait=True)
            for event in events:
                self.ack(event.id, event.seq, event.hash)
            return
        for new in news:
            wait = self.chance.random() < 0.5
            (event,) = self.engine.append_many([new], wait=wait)
            self.ack(
                event.id, event.seq, event.hash
            )  # a killed process's event survives unsynced too

    def keeper(self) -> Iterator[None]:
        """Snapshot and compact, now and then only seal."""
        while True:
            if self.chance.random() < 0.3:
                self.engine.seal()
            else:
                self.engine.snapshot("kept")
                self.engine.compact("kept")
            time.sleep(self.chance.random() * 0.2)
            yield

    def reader(self) -> Iterator[None]:
        """Read on and on, and ask for histories; what was seen once is told, to be compared later."""
        position = None
        while True:
            try:
                for event in self.engine.read_from(position):
                    if position is not None and event.seq != position.seq + 1:
                        self.tell("a hole before", event.seq)
                    position = event.position
                    self.ack(event.id, event.seq, event.hash)
                    if event.run_id is not None and self.chance.random() < 0.02:
                        self._ask(event.run_id)
            except LogCompacted:
                position = None
            yield

    def _ask(self, run_id: str) -> None:
        try:
            self.engine.history(run_id)
        except HistoryArchived:
            pass  # it had ended

    def verifier(self) -> Iterator[None]:
        """Verify, whole or from where the last one ended; nothing here may look tampered with."""
        after = None
        while True:
            report = self.engine.verify_integrity(after=after)
            if report.status not in (Status.OK_UNANCHORED, Status.TORN_TAIL):
                self.tell("verified as", report)
            after = report.verified if self.chance.random() < 0.7 else None
            yield

    def folder(self) -> Iterator[None]:
        """Keep the ledger up with the log."""
        ledger = RunLedger(Database(self.settings.ledger_path), self.engine)
        while True:
            ledger.catch_up()
            time.sleep(0.02)
            yield


def work(role: str, directory: Path, name: str, seed: str) -> None:
    """Do a role's work until killed."""
    process = Role(directory, name, seed)
    while True:
        try:
            for _ in getattr(process, role)():
                pass
        except LockTimeout:
            pass  # a busy machine; nothing was written
        except Exception as error:  # noqa: BLE001 - told to whoever started this
            process.tell(role, type(error).__name__, error)


class Crowd:
    """Start the roles, kill one after another, and judge what they left."""

    def __init__(self, directory: Path, seed: int) -> None:
        self._directory = directory
        self._seed = seed
        self._chance = random.Random(seed)
        self._processes: dict[str, tuple[str, int]] = {}
        self.kills = 0

    def run(self, seconds: float) -> None:
        EventSourcingEngine.open(settings_in(self._directory)).close()
        try:
            for number, role in enumerate(ROLES):
                self._start(role, f"{role}-{number}")
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline:
                time.sleep(self._chance.random() * 0.5)
                name = self._chance.choice(sorted(self._processes))
                role, pid = self._processes.pop(name)
                self._kill(pid)
                self._start(role, name)
        finally:
            for _, pid in self._processes.values():
                self._kill(pid)

    def _start(self, role: str, name: str) -> None:
        pid = os.fork()
        if pid == 0:
            try:
                work(role, self._directory, name, str(self._seed))
            finally:
                os._exit(1)
        self._processes[name] = role, pid

    def _kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        status = os.waitpid(pid, 0)[1]
        assert os.WIFSIGNALED(status), f"a process ended by itself: {status}"
        self.kills += 1

    def judge(self) -> dict[str, int]:
        """See that nothing acknowledged or read is missing, and that everybody's view of it is one; return counts."""
        told = [
            line
            for path in self._directory.glob("told.*")
            for line in path.read_text().splitlines()
        ]
        assert not told, told
        settings = settings_in(self._directory)
        with EventSourcingEngine.open(settings) as engine:
            engine.append("note", {})
            report = engine.verify_integrity()
            assert report.status is Status.OK_UNANCHORED, report
            chain = Chain(engine.path)
            assert not chain.rest
            known = {link.parts[2].decode("ascii"): (link.seq, link.hash) for link in chain.links}
            assert len(known) == len(chain.links), "an event is there twice"
            acks = list(self._acknowledged())
            for id_, seq, hash_ in acks:
                assert known.get(id_) == (seq, hash_), (id_, seq)
            self._judge_states(engine)
        left = [path.name for path in Path(f"{engine.path}.d").rglob("*")]
        assert not [name for name in left if name == "newborn" or name.endswith(".unfinished")]
        return {
            "events": len(chain.links),
            "archived": chain.archived,
            "acknowledged": len(acks),
            "kills": self.kills,
        }

    def _acknowledged(self) -> Iterator[tuple[str, int, str]]:
        for path in self._directory.glob("acks.*"):
            for line in path.read_text().splitlines():
                words = line.split()
                if len(words) == 3 and len(words[2]) == 64:  # its writer may have been killed in it
                    yield words[0], int(words[1]), words[2]

    def _judge_states(self, engine: EventSourcingEngine) -> None:
        states = engine.replay()
        for path in (engine.settings.ledger_path, self._directory / "anew.sqlite"):
            database = Database(path)
            try:
                ledger = RunLedger(database, engine)
                ledger.catch_up()
                assert rows(ledger) == states, path.name
            finally:
                database.close()
        for state in [state for state in states.values() if not state.settled][:300]:
            assert RunHistory.of(engine.history(state.run_id)).state == state, state.run_id
            if state.fenced and state.token == 5:
                try:
                    engine.append("run.committed", {"result": 1}, run_id=state.run_id, token=1, n=9)
                    raise AssertionError(f"the fence of {state.run_id} is forgotten")
                except Fenced:
                    pass
