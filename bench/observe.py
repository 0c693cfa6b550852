"""Measure what observing plain tasks costs a worker, in CPU seconds a task of its whole process tree.

    python -m bench.observe [--pairs 15] [--tasks 1500] [--restarts 3] [--broker redis://...] [--json FILE]

Three workers (prefork, two children, a no-op task, Redis) stand side by side: Celery alone ("bare"), Celery with a
commander that observes nothing ("none"), and one that observes everything ("all"). In turn (bare, none, all; then the
other way round: ABBA) each is given the same number of tasks, and the CPU time of its processes is read from /proc
before and after. A ratio is taken within each round; the median of the rounds is shown with a 95 % interval from order
statistics (the binomial ranks of the median: no assumption about how the figures are spread). The workers are started
anew a few times, so that how one process happened to lie in memory is not taken for a result. Publishing is not
counted, it happens in this process. CPU time, not the clock: a neighbour slows all three alike.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

from redis import Redis

from bench.observe_app import BARE, make_app
from tests.kit import running_service

VARIANTS = (BARE, "none", "all")
WARM_UP_TASKS = 300
SETTLE_SECONDS = 0.6
ROOT = Path(__file__).resolve().parents[1]
TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--pairs", type=int, default=15)
    options.add_argument(
        "--tasks", type=int, default=1500, help="tasks of one variant in one round"
    )
    options.add_argument(
        "--restarts", type=int, default=3, help="how often the workers are started"
    )
    options.add_argument("--broker", help="a Redis that may be used; default: one of our own")
    options.add_argument("--json", help="write the figures to this file as well")
    chosen = options.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="bench-observe-"))
    service = nullcontext(chosen.broker) if chosen.broker else running_service("redis")
    try:
        with service as broker:
            rounds = measure(broker, directory, chosen)
    finally:
        shutil.rmtree(directory)
    figures = summary(rounds)
    say(figures)
    if chosen.json:
        Path(chosen.json).write_text(
            json.dumps({"summary": figures, "rounds": rounds}, indent=2) + "\n", encoding="utf-8"
        )


def measure(broker: str, directory: Path, chosen: argparse.Namespace) -> list[dict[str, float]]:
    """Return CPU seconds a task of each variant, round by round."""
    rounds: list[dict[str, float]] = []
    for start in range(chosen.restarts):
        share = chosen.pairs * (start + 1) // chosen.restarts - len(rounds)
        with workers(broker, directory) as pids:
            for variant in VARIANTS:
                drain(variant, broker, WARM_UP_TASKS)
            for _ in range(share):
                order = VARIANTS if len(rounds) % 2 == 0 else VARIANTS[::-1]
                rounds.append(
                    {each: cost(each, broker, pids[each], chosen.tasks) for each in order}
                )
                print(
                    f"round {len(rounds)}: "
                    + "  ".join(f"{each} {rounds[-1][each] * 1e6:.0f} µs" for each in VARIANTS),
                    flush=True,
                )
    return rounds


@contextmanager
def workers(broker: str, directory: Path) -> Iterator[dict[str, int]]:
    """Start a worker of each variant; yield their main processes."""
    processes = {each: start_worker(each, broker, directory) for each in VARIANTS}
    try:
        for variant in VARIANTS:
            log = directory / f"{variant}.log"
            while " ready." not in log.read_text(encoding="utf-8"):
                if processes[variant].poll() is not None:
                    raise RuntimeError(log.read_text(encoding="utf-8"))
                time.sleep(0.05)
        yield {each: process.pid for each, process in processes.items()}
    finally:
        for process in processes.values():
            process.send_signal(signal.SIGTERM)
        for process in processes.values():
            process.wait(timeout=60)


def start_worker(variant: str, broker: str, directory: Path) -> subprocess.Popen[bytes]:
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    path = os.pathsep.join([str(ROOT), *(str(Path(part).resolve()) for part in known if part)])
    environment = os.environ | {
        "PYTHONPATH": path,
        "BENCH_VARIANT": variant,
        "BENCH_BROKER": broker,
        "BENCH_DIRECTORY": str(directory),
    }
    command = [*(sys.executable, "-m", "celery", "-A", "bench.observe_app", "worker")]
    command += ["--pool", "prefork", "--concurrency", "2", "--loglevel", "INFO"]
    command += ["--hostname", f"{variant}@%h", "--without-gossip", "--without-mingle"]
    with (directory / f"{variant}.log").open("wb") as log:
        return subprocess.Popen(
            command, cwd=directory, env=environment, stdout=log, stderr=subprocess.STDOUT
        )


def cost(variant: str, broker: str, pid: int, tasks: int) -> float:
    before = cpu_seconds(pid)
    drain(variant, broker, tasks)
    return (cpu_seconds(pid) - before) / tasks


def drain(variant: str, broker: str, tasks: int) -> None:
    """Give a worker its tasks and wait until it has done them, and written what it saw."""
    app = make_app(BARE, broker, "")
    queue = f"bench-{variant}"
    with app.connection_for_write() as connection, Redis.from_url(broker) as redis:
        producer = app.amqp.Producer(connection)
        for _ in range(tasks):
            app.send_task("bench.nothing", queue=queue, producer=producer)
        while redis.llen(queue) or redis.hlen("unacked"):
            time.sleep(0.02)
    time.sleep(SETTLE_SECONDS)


def cpu_seconds(pid: int) -> float:
    """Return the user and system time of a process, of its ended children, and of its living ones."""
    total = 0
    for process in (pid, *living_children(pid)):
        fields = stat_of(process)
        total += sum(int(each) for each in fields[11 : 15 if process == pid else 13])
    return total / TICKS_A_SECOND


def living_children(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += [int(each) for each in (task / "children").read_text().split()]
    return found


def stat_of(pid: int) -> list[str]:
    text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    return text[text.rindex(")") + 2 :].split()


def summary(rounds: Sequence[dict[str, float]]) -> dict[str, dict[str, float]]:
    figures = {
        f"{each}, CPU µs a task": spread([one[each] * 1e6 for one in rounds]) for each in VARIANTS
    }
    pairs = (("all", BARE), ("all", "none"), ("none", BARE))
    return figures | {
        f"{ours} / {theirs}": spread([one[ours] / one[theirs] for one in rounds])
        for ours, theirs in pairs
    }


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return the median and its 95 % interval, by the binomial ranks of the median."""
    ordered, count = sorted(values), len(values)
    below, rank = 0.0, 0
    while rank < (count - 1) // 2:
        below += math.comb(count, rank) / 2**count
        if below > 0.025:
            break
        rank += 1
    lowest = max(rank - 1, 0)
    return {
        "median": statistics.median(ordered),
        "low": ordered[lowest],
        "high": ordered[count - 1 - lowest],
    }


def say(figures: dict[str, dict[str, float]]) -> None:
    print(f"\n{'':24}{'median':>10}   95 % interval (order statistics)")
    for name, row in figures.items():
        digits = 3 if "/" in name else 0
        print(
            f"{name:24}{row['median']:10.{digits}f}   {row['low']:.{digits}f} .. {row['high']:.{digits}f}"
        )


if __name__ == "__main__":
    main()
