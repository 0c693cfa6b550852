"""Measure the log against the bare loops it is made of, in one run on one machine.

    python bench/log.py [--seconds 1.0] [--rounds 5] [--directory .] [--json results.json]

Every figure of ours is taken next to its bare loop, round by round; the ratio is the median of the
rounds' ratios, so a neighbour that wakes up in the middle harms both sides. The bare loops are: one
``write`` and one ``fdatasync`` an event (for waited appends), and encoding and chaining without any file
call (for unwaited ones).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from celery_commander.engine import EventSourcingEngine, NewEvent

DATA = {
    "step": 3,
    "name": "charge",
    "kind": "step",
    "digest": "9f86d081884c7d659a2feaa0c55ad015" * 2,
    "key": "0191f7a2-6c1e-7d43-9b1a-3f0e8c5d7a21:3",
    "attempt": 1,
}
LINE = b"x" * 420  # about as long as the event above
BATCH = 100
WRITERS = 8


def rate(act: Callable[[], int], seconds: float) -> float:
    """Return events per second of calling `act`, which returns how many it made."""
    count, started = 0, time.perf_counter()
    while (spent := time.perf_counter() - started) < seconds:
        count += act()
    return count / spent


def bare_writes(path: Path, seconds: float, events_a_sync: int = 1) -> float:
    fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    data = LINE * events_a_sync

    def act() -> int:
        os.write(fd, data)
        os.fdatasync(fd)
        return events_a_sync

    try:
        return rate(act, seconds)
    finally:
        os.close(fd)


def bare_chain(seconds: float) -> float:
    encode = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode
    previous = b"0" * 64

    def act() -> int:
        nonlocal previous
        envelope = {"d": 1, "data": DATA, "n": 1, "run": "r-1", "token": 3, "v": 1}
        rest = b"|step.started|id|2026-01-02T03:04:05.000006Z|" + encode(envelope).encode()
        previous = hashlib.sha256(previous + rest).hexdigest().encode()
        return 1

    return rate(act, seconds)


def waited(log: EventSourcingEngine, seconds: float) -> float:
    return rate(lambda: bool(log.append("step.started", DATA, run_id="r", token=1, n=1)), seconds)


def unwaited(log: EventSourcingEngine, seconds: float) -> float:
    def act() -> int:
        log.append("step.started", DATA, run_id="r", token=1, n=1, wait=False)
        return 1

    return rate(act, seconds)


def batches(log: EventSourcingEngine, seconds: float) -> float:
    news = [NewEvent("step.started", DATA, "r", 1, 1)] * BATCH
    return rate(lambda: len(log.append_many(news)), seconds)


def _writer(path: Path, seconds: float, start: Any, rates: Any) -> None:
    with EventSourcingEngine.open(path) as log:
        log.append("warm", {})
        start.wait()
        rates.put(waited(log, seconds))


def crowd(path: Path, seconds: float) -> float:
    context = multiprocessing.get_context("spawn")
    start, rates = context.Barrier(WRITERS), context.Queue()
    processes = [
        context.Process(target=_writer, args=(path, seconds, start, rates)) for _ in range(WRITERS)
    ]
    for process in processes:
        process.start()
    total = sum(rates.get() for _ in processes)
    for process in processes:
        process.join()
    return float(total)


def measure(directory: Path, seconds: float, rounds: int) -> dict[str, dict[str, float]]:
    """Return for each kind of work the medians of ours, of the bare loop, and of their ratio."""
    path = directory / "state" / "event-sourcing.wal"
    bare_path = directory / "bare"
    with EventSourcingEngine.open(path) as log:
        pairs: dict[str, tuple[Callable[[], float], Callable[[], float]]] = {
            "one writer": (
                lambda: waited(log, seconds),
                lambda: bare_writes(bare_path, seconds),
            ),
            "batches of 100": (
                lambda: batches(log, seconds),
                lambda: bare_writes(bare_path, seconds, BATCH),
            ),
            "batches of 100 / chain": (
                lambda: batches(log, seconds),
                lambda: bare_chain(seconds),
            ),
            "unwaited / chain": (
                lambda: unwaited(log, seconds),
                lambda: bare_chain(seconds),
            ),
            "8 writers / one writer": (
                lambda: crowd(path, seconds),
                lambda: waited(log, seconds),
            ),
            "verify / read and hash": (
                lambda: _verified(log),
                lambda: _read_and_hashed(path),
            ),
        }
        return {name: _compare(*pair, rounds) for name, pair in pairs.items()}


def _verified(log: EventSourcingEngine) -> float:
    started = time.perf_counter()
    return log.verify_integrity().events / (time.perf_counter() - started)


def _read_and_hashed(path: Path) -> float:
    started, count, previous = time.perf_counter(), 0, hashlib.sha256(b"").hexdigest().encode()
    with path.open("rb") as file:
        next(file)
        for line in file:
            found = hashlib.sha256(previous + line[64:-1]).hexdigest().encode()
            assert found == line[:64]
            previous = found
            count += 1
    return count / (time.perf_counter() - started)


def _compare(ours: Callable[[], float], bare: Callable[[], float], rounds: int) -> dict[str, float]:
    pairs = [(ours(), bare()) for _ in range(rounds)]
    return {
        "ours_per_second": statistics.median(mine for mine, _ in pairs),
        "bare_per_second": statistics.median(theirs for _, theirs in pairs),
        "ratio": statistics.median(mine / theirs for mine, theirs in pairs),
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=float, default=1.0)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--directory", default=".", help="where the disk to measure is")
    options.add_argument("--json", help="write the figures to this file as well")
    chosen = options.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="bench-log-", dir=chosen.directory))
    try:
        figures = measure(directory, chosen.seconds, chosen.rounds)
    finally:
        shutil.rmtree(directory)
    print(f"{'work':26}{'ours/s':>12}{'bare/s':>12}{'ratio':>8}")
    for name, row in figures.items():
        print(
            f"{name:26}{row['ours_per_second']:12.0f}{row['bare_per_second']:12.0f}{row['ratio']:8.2f}"
        )
    if chosen.json:
        Path(chosen.json).write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
