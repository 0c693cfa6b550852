"""Measure the log against the bare loops it is made of, in one run on one machine.

    make bench-log ARGS="--seconds 1.0 --rounds 5 --mib 256 --directory . --json results.json"

Every figure of ours is taken next to its bare loop, round by round; the ratio is the median of the
rounds' ratios, so a neighbour that wakes up in the middle harms both sides. The bare loops are: one
``write`` and one ``fdatasync`` an event (for waited appends), encoding and chaining without any file
call (for unwaited ones), and reading and hashing (for verification). The slow disk is made at the log's
own seam: each of its syncs sleeps two milliseconds first.

What must not grow with the log is measured on one of `--mib`: what an append costs beside an empty log,
how long the first opening after a power cut takes and how much of the log it reads, how much memory
appending, reading and verifying need. `--mib 5120` is worth its minutes now and then.
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

from celery_commander.engine import EventSourcingEngine, NewEvent, Settings

from .log_scale import MIB, Slowed, held_microseconds, large_log, memory_mib, opening

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


def observed(log: EventSourcingEngine, seconds: float) -> float:
    """Append as a process's observer does: events of no owner, in batches, waiting for no disk."""
    news = [NewEvent("task.succeeded", DATA, "r")] * BATCH
    return rate(lambda: len(log.append_many(news, wait=False)), seconds)


def _writer(path: Path, seconds: float, start: Any, rates: Any, is_slow: bool) -> None:
    with EventSourcingEngine.open(path, files=Slowed() if is_slow else None) as log:
        log.append("warm", {})
        start.wait()
        rates.put(waited(log, seconds))


def crowd(path: Path, seconds: float, *, writers: int = WRITERS, is_slow: bool = False) -> float:
    """Return the events per second of several processes together."""
    context = multiprocessing.get_context("spawn")
    start, rates = context.Barrier(writers), context.Queue()
    asked = (path, seconds, start, rates, is_slow)
    processes = [context.Process(target=_writer, args=asked) for _ in range(writers)]
    for process in processes:
        process.start()
    total = sum(rates.get() for _ in processes)
    for process in processes:
        process.join()
    return float(total)


Pair = tuple[Callable[[], float], Callable[[], float]]
Ratios = dict[str, dict[str, float]]


def measure(directory: Path, large: Settings, seconds: float, rounds: int) -> Ratios:
    """Return for each kind of work the medians of ours, of the bare loop, and of their ratio."""
    path = directory / "state" / "event-sourcing.wal"
    with (
        EventSourcingEngine.open(path) as log,
        EventSourcingEngine.open(directory / "empty" / "event-sourcing.wal") as empty,
        EventSourcingEngine.open(large) as full,
    ):
        pairs = _pairs(log, directory / "bare", seconds)
        pairs["large log / empty log"] = (
            lambda: waited(full, seconds),
            lambda: waited(empty, seconds),
        )
        pairs["verify large / read and hash"] = (
            lambda: _verified(full),
            lambda: _read_and_hashed(full.path),
        )
        return {name: _compare(*pair, rounds) for name, pair in pairs.items()}


def _pairs(log: EventSourcingEngine, bare: Path, seconds: float) -> dict[str, Pair]:
    path = log.path
    return {
        "one writer / write+sync": (
            lambda: waited(log, seconds),
            lambda: bare_writes(bare, seconds),
        ),
        "8 writers / one writer": (
            lambda: crowd(path, seconds),
            lambda: waited(log, seconds),
        ),
        "the same, syncs +2 ms": (
            lambda: crowd(path, seconds, is_slow=True),
            lambda: crowd(path, seconds, writers=1, is_slow=True),
        ),
        "batches of 100 / write+sync": (
            lambda: batches(log, seconds),
            lambda: bare_writes(bare, seconds, BATCH),
        ),
        "batches of 100 / chain": (
            lambda: batches(log, seconds),
            lambda: bare_chain(seconds),
        ),
        "observed / chain": (
            lambda: observed(log, seconds),
            lambda: bare_chain(seconds),
        ),
        "one by one, unwaited / chain": (
            lambda: unwaited(log, seconds),
            lambda: bare_chain(seconds),
        ),
        "verify / read and hash": (
            lambda: _verified(log),
            lambda: _read_and_hashed(path),
        ),
    }


def _verified(log: EventSourcingEngine) -> float:
    started = time.perf_counter()
    return log.verify_integrity().events / (time.perf_counter() - started)


def _read_and_hashed(path: Path) -> float:
    started, count, previous = time.perf_counter(), 0, hashlib.sha256(b"").hexdigest().encode()
    for each in [*sorted(Path(f"{path}.d").glob("segments/*.wal")), path]:
        with each.open("rb") as file:
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


def show(ratios: Ratios, figures: dict[str, dict[str, float]]) -> str:
    """Return both tables as text."""
    rows = [f"{'work':30}{'ours/s':>12}{'bare/s':>12}{'ratio':>8}"]
    for name, row in ratios.items():
        ours, bare = row["ours_per_second"], row["bare_per_second"]
        rows.append(f"{name:30}{ours:12.0f}{bare:12.0f}{row['ratio']:8.2f}")
    for name, facts in figures.items():
        told = "  ".join(f"{key} {value:.4g}" for key, value in facts.items())
        rows.append(f"{name:30}{told}")
    return "\n".join(rows)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=float, default=1.0)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--mib", type=int, default=256, help="the size of the large log")
    options.add_argument("--directory", default=".", help="where the disk to measure is")
    options.add_argument("--json", help="write the figures to this file as well")
    chosen = options.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="bench-log-", dir=chosen.directory))
    try:
        large = large_log(directory, chosen.mib * MIB)
        figures = {"opening after a crash": opening(large)}
        ratios = measure(directory, large, chosen.seconds, chosen.rounds)
        figures["append lock held, µs"] = held_microseconds(directory, DATA, 5_000)
        figures["memory grows by, MiB"] = memory_mib(large, DATA, 20_000)
    finally:
        shutil.rmtree(directory)
    print(show(ratios, figures))
    if chosen.json:
        told = {"load": os.getloadavg(), "ratios": ratios, "figures": figures}
        Path(chosen.json).write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
