"""Whoever looks at a log while others seal and compact it is told the truth, or that it is gone; never half of it."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest

from celery_commander.engine import (
    EventSourcingEngine,
    HistoryArchived,
    LogCompacted,
    NewEvent,
    RunHistory,
    Settings,
    State,
    UnknownSnapshot,
)

CREATED = {"task": "t", "namespace": "n", "message": {"queue": "q"}, "due": None, "key": None}
OPENED = 3


def test_a_log_that_is_sealed_again_and_again_is_not_taken_for_cut(tmp_path: Path) -> None:
    path = tmp_path / "events.wal"
    with EventSourcingEngine.open(path) as log, EventSourcingEngine.open(path) as other:
        done = threading.Event()

        def seal() -> None:
            try:
                for number in range(150):
                    other.append_many([NewEvent("note", {"n": number})] * 20, wait=False)
                    other.seal()
            finally:
                done.set()

        thread = threading.Thread(target=seal)
        thread.start()
        looks = 0
        while not done.is_set():
            log.check()
            looks += 1
        thread.join()

        assert looks > 50


@pytest.mark.parametrize("from_snapshot", [False, True])
def test_a_beginning_that_is_compacted_away_while_it_is_opened_is_not_called_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, from_snapshot: bool
) -> None:
    with EventSourcingEngine.open(Settings(state_directory=tmp_path)) as log:
        log.append("note", {"n": 1})
        first = log.snapshot("first")
        log.append("note", {"n": 2})
        log.snapshot("second")
        log.append("note", {"n": 3})
        if from_snapshot:
            log.compact("first")  # its position lies in a file that is gone, right before the log
        reader, rounds = log._log.reader, ["second"]
        really = reader.numbers

        def numbers() -> list[int]:
            found = really()
            if rounds:
                log.compact(rounds.pop())
            return found

        monkeypatch.setattr(reader, "numbers", numbers)
        if from_snapshot:
            with pytest.raises(LogCompacted):
                list(reader.read(first.position))
        else:
            events = list(reader.read(None))
            assert (events[0].seq, events[0].type) == (log.first_seq, "snapshot.created")
            assert [e.payload["n"] for e in events if e.type == "note"] == [3]


@pytest.mark.parametrize("look", [1, 2])
def test_an_index_whose_first_file_is_compacted_away_while_it_is_opened_looks_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, look: int
) -> None:
    with EventSourcingEngine.open(Settings(state_directory=tmp_path)) as log:
        log.append("note", {"n": 1}, run_id="x")
        log.snapshot("first")
        log.append("note", {"n": 2}, run_id="x")
        with EventSourcingEngine.open(Settings(state_directory=tmp_path)) as newcomer:
            reader = newcomer._log.reader
            looks: list[list[int]] = []
            really = reader.numbers

            def numbers() -> list[int]:
                looks.append(really())
                if len(looks) == look:
                    log.compact("first")
                return looks[-1]

            monkeypatch.setattr(reader, "numbers", numbers)
            assert [event.payload["n"] for event in newcomer.history("x")] == [2]


class Life:
    """Runs that several open engines push on in turn, while another one compacts."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.random = random.Random(seed)
        size = self.random.choice((4096, 6000, 20_000))
        self.settings = Settings(state_directory=directory, segment_bytes=size)
        self.engines = [self.open() for _ in range(OPENED)]
        self.compactor = self.open()
        self.states: dict[str, State] = {}

    def open(self) -> EventSourcingEngine:
        return EventSourcingEngine.open(self.settings)

    def close(self) -> None:
        for engine in (*self.engines, self.compactor):
            engine.close()

    def act(self) -> None:
        engine, what = self.random.choice(self.engines), self.random.random()
        if what < 0.35 or not self.states:
            self.create(engine)
        elif what < 0.6:
            self.push(engine, self.random.choice(list(self.states)))
        elif what < 0.7:
            self.compactor.snapshot("s")
        elif what < 0.78:
            self.compact()
        elif what < 0.82:
            self.engines[self.engines.index(engine)].close()
            self.engines[self.engines.index(engine)] = self.open()
        elif what < 0.86:
            assert list(engine.read_from(None))
        else:
            self.look(engine, self.random.choice(list(self.states)))

    def create(self, engine: EventSourcingEngine) -> None:
        run_id = f"r{len(self.states)}"
        engine.append("run.created", CREATED, run_id=run_id)
        self.states[run_id] = State.PENDING

    def push(self, engine: EventSourcingEngine, run_id: str) -> None:
        if self.states[run_id] is State.PENDING:
            started = {"task": "t", "attempt": 1, "holder": "h"}
            engine.append("run.started", started, run_id=run_id, token=1, n=1)
            self.states[run_id] = State.EXECUTING
        elif self.states[run_id] is State.EXECUTING:
            result = {"result": "x" * self.random.randint(1, 600)}
            engine.append("run.committed", result, run_id=run_id, token=1, n=2)
            engine.append("run.delivered", {"outcome": "COMMITTED"}, run_id=run_id, token=1, n=3)
            self.states[run_id] = State.COMMITTED

    def compact(self) -> None:
        try:
            self.compactor.compact("s")
        except UnknownSnapshot:
            pass  # none was taken yet

    def look(self, engine: EventSourcingEngine, run_id: str) -> None:
        """See that a run's history says where it stands, or that the run is over and archived."""
        try:
            state = RunHistory.of(engine.history(run_id)).state
        except HistoryArchived:
            settled = engine.settled_state(run_id)
            state = settled[0] if settled is not None else None
            assert self.states[run_id] is State.COMMITTED
        assert state is not None, run_id
        assert state.state is self.states[run_id], run_id


@pytest.mark.parametrize("seed", [24, 28, 36, 37, 128, 130, 134, 136, *range(40, 52)])
def test_a_history_is_whole_or_archived_whoever_compacts_meanwhile(
    tmp_path: Path, seed: int
) -> None:
    """A process may hold files open that were compacted away, and have missed others before they went."""
    life = Life(tmp_path / "state", seed)
    try:
        for _ in range(120):
            life.act()
        for engine in life.engines:
            for run_id in life.states:
                life.look(engine, run_id)
    finally:
        life.close()
