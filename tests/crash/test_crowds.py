"""Many processes of many threads append to one log: one chain, and everybody gets through."""

from __future__ import annotations

import os
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from celery_commander.engine import EventSourcingEngine, Settings, Status
from tests.engine.forked import Forked

pytestmark = pytest.mark.crash

PROCESSES, THREADS, EVENTS = 32, 3, 12


def test_a_crowd_of_processes_and_threads_makes_one_chain_and_nobody_is_starved(
    tmp_path: Path,
) -> None:
    settings = Settings(state_directory=tmp_path, segment_bytes=64 * 1024, lock_seconds=60)
    EventSourcingEngine.open(settings).close()

    def crowd(child: Forked) -> list[int]:
        child.say("ready")
        child.hear()
        with EventSourcingEngine.open(settings) as log, ThreadPoolExecutor(THREADS) as pool:

            def write(number: int) -> list[int]:
                chance = random.Random(number)
                name = f"{os.getpid()}-{number}"
                return [
                    log.append("note", {"i": i}, run_id=name, wait=chance.random() < 0.7).seq
                    for i in range(EVENTS)
                ]

            return [seq for seqs in pool.map(write, range(THREADS)) for seq in seqs]

    children = [Forked(crowd) for _ in range(PROCESSES)]
    try:
        for child in children:
            assert child.hear() == "ready"
        for child in children:
            child.say("go")
        told = [child.result() for child in children]  # a LockTimeout would come out here
    finally:
        for child in children:
            child.end()
    seqs = sorted(seq for each in told for seq in each)
    assert len(set(seqs)) == len(seqs) == PROCESSES * THREADS * EVENTS
    with EventSourcingEngine.open(settings) as log:
        assert log.verify_integrity().status is Status.OK_UNANCHORED
        events = [event for event in log.read_from(None) if event.type == "note"]
        assert [event.seq for event in events] == seqs
        for each in told:
            assert each[:EVENTS] == sorted(each[:EVENTS])  # a thread's own events are in its order
        runs = {event.run_id for event in events}
        assert len(runs) == PROCESSES * THREADS
        for run_id in sorted(filter(None, runs))[:5]:
            assert [event.payload["i"] for event in log.history(run_id)] == list(range(EVENTS))
