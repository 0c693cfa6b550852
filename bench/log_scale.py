"""Measure what must not grow with the log, and how long an append holds its lock."""

from __future__ import annotations

import multiprocessing
import os
import resource
import statistics
import time
from pathlib import Path
from typing import Any

from celery_commander.engine import EventSourcingEngine, NewEvent, Settings
from celery_commander.engine.files import Files

FILLER = {"filler": "x" * 8_000}
FILLERS_A_WRITE = 64
SEGMENTS = 8
ACTIVE_BYTES = 4 * 1024 * 1024  # what a restart has to scan
MIB = 1024 * 1024


class Counting(Files):
    """Count the bytes that are read."""

    def __init__(self) -> None:
        self.read_bytes = 0

    def read(self, fd: int, size: int, offset: int) -> bytes:
        data = super().read(fd, size, offset)
        self.read_bytes += len(data)
        return data


class Timed(Files):
    """Note for how long each lock that an append takes is held, in seconds."""

    def __init__(self) -> None:
        self.held: dict[int, list[float]] = {}
        self._taken: dict[int, float] = {}

    def try_lock(self, fd: int) -> bool:
        taken = super().try_lock(fd)
        if taken:
            self._taken[fd] = time.perf_counter()
        return taken

    def unlock(self, fd: int) -> None:
        super().unlock(fd)
        if (began := self._taken.pop(fd, None)) is not None:
            self.held.setdefault(fd, []).append(time.perf_counter() - began)


class Slowed(Files):
    """Let every sync of the log take two milliseconds longer, as on a slow disk."""

    def sync(self, fd: int) -> None:
        time.sleep(0.002)
        super().sync(fd)


def held_microseconds(directory: Path, data: dict[str, Any], count: int) -> dict[str, float]:
    """Return how long one writer holds the append lock for a waited append."""
    files = Timed()
    path = directory / "held" / "event-sourcing.wal"
    with EventSourcingEngine.open(path, files=files) as log:
        for _ in range(count):
            log.append("step.started", data, run_id="r", token=1, n=1)
        (fd,) = (fd for fd in files.held if _is(fd, "append.lock"))
        held = sorted(files.held[fd])
    return {
        "median": statistics.median(held) * 1e6,
        "p99": held[int(len(held) * 0.99)] * 1e6,
        "most": held[-1] * 1e6,
    }


def _is(fd: int, name: str) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{fd}").endswith(name)
    except OSError:
        return False


def large_log(directory: Path, size: int) -> Settings:
    """Write a log of about `size` bytes over sealed files, and an active one of 4 MiB."""
    settings = Settings(
        state_directory=directory / "large",
        segment_bytes=max(2 * ACTIVE_BYTES, size // SEGMENTS),
        segment_seconds=1e9,
    )
    some = [NewEvent("note", FILLER, f"r-{number}") for number in range(FILLERS_A_WRITE)]
    with EventSourcingEngine.open(settings) as log:
        while log.live_bytes() < size:
            log.append_many(some, wait=False)
        log.seal()
        while log.path.stat().st_size < ACTIVE_BYTES:
            log.append_many(some, wait=False)
    return settings


def opening(settings: Settings) -> dict[str, float]:
    """Return what the first opening after a power cut costs that left half a line behind."""
    with settings.event_sourcing_wal.open("ab") as file:
        file.write(b"0" * 100)
    files = Counting()
    began = time.perf_counter()
    with EventSourcingEngine.open(settings, boot_id="the next", files=files) as log:
        seconds = time.perf_counter() - began
        return {
            "seconds": seconds,
            "read_mib": files.read_bytes / MIB,
            "log_mib": log.live_bytes() / MIB,
        }


def memory_mib(settings: Settings, data: dict[str, Any], count: int) -> dict[str, float]:
    """Return by how much a fresh process's memory grows while it appends, reads all, and verifies all."""
    context = multiprocessing.get_context("spawn")
    grown = {}
    for name in ("append", "read", "verify"):
        told: Any = context.Queue()
        process = context.Process(target=_grow, args=(settings, name, data, count, told))
        process.start()
        grown[name] = float(told.get())
        process.join()
    return grown


def _grow(settings: Settings, name: str, data: dict[str, Any], count: int, told: Any) -> None:
    """Do the work, and tell what the peak is above what the process began with."""
    with EventSourcingEngine.open(settings) as log:
        log.append("warm", {})
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        if name == "append":
            for _ in range(count):
                log.append("step.started", data, run_id="r", token=1, n=1, wait=False)
            log.sync()
        elif name == "read":
            for _ in log.read_from(None):
                pass
        else:
            log.verify_integrity()
        told.put((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
