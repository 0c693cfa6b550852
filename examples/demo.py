"""The demo: 200 orders, a worker killed three times with SIGKILL, and what is left at the end.

    python -m examples.demo [--seed N] [--broker redis://...] [--keep]

It starts a real prefork worker, submits the orders of orders.csv to the durable task of shop.py and
kills the worker's whole process group at random instants while work is going on. Each new worker
recovers by itself. At the end the books of the services (services.py) and the log are asked whether
anything was lost or done twice. Exit status 0 only if everything holds.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .demo_report import Report
from .demo_screen import Screen
from .demo_stage import DemoFailed, Kill, Stage, draw_plan, read_orders

if TYPE_CHECKING:
    from .shop import Order

DESCRIPTION = "Kill real Celery workers and see every order finish right."


def main(argv: Sequence[str] | None = None) -> int:
    """Play the demo and return the exit status: 0 all holds, 1 something does not, 2 bad options."""
    options = parse(argv)
    home = Path(tempfile.mkdtemp(prefix="commander-demo-"))
    screen = Screen()
    started_at = time.monotonic()
    try:
        holds = play(home, options, screen)
    except DemoFailed as failure:
        screen.say(f"\nThe demo stopped: {failure}")
        holds = False
    except BaseException:
        screen.say(f"\nEverything is kept in {home}")
        raise
    screen.say(
        f"\n{'Everything holds' if holds else 'NOT everything holds'}, in {seconds(started_at)}."
    )
    if options.keep or not holds:
        screen.say(f"Kept for you: {home} (again with SEED={options.seed})")
    else:
        shutil.rmtree(home)
    return 0 if holds else 1


def play(home: Path, options: argparse.Namespace, screen: Screen) -> bool:
    """Submit, kill as planned, finish, and report. True if everything holds."""
    orders = read_orders(options.orders)
    plan = draw_plan(options.seed, len(orders), options.kills)
    stage = Stage(home, shop_settings(home, options), screen)
    screen.say(f"seed {options.seed} (SEED={options.seed} repeats the plan), everything in {home}")
    screen.say(f"{len(orders)} orders, {len(plan)} kills, messages over {stage.shop.BROKER}")
    stage.connect()
    try:
        finished = perform(stage, orders, plan)
        report = Report(stage)
    finally:
        stage.close()
    screen.say(report.table())
    return finished and report.holds


def perform(stage: Stage, orders: list[Order], plan: list[Kill]) -> bool:
    """Let the workers work and die. False, and the reason said, if they do not get to the end."""
    try:
        stage.submit(orders)
        for kill in plan:
            stage.strike(stage.start_worker(), kill)
        stage.finish(stage.start_worker())
    except DemoFailed as failure:
        stage.screen.say(f"\nThe demo stopped: {failure}")
        return False
    return True


def shop_settings(home: Path, options: argparse.Namespace) -> dict[str, str]:
    """Return the environment in which the shop and its workers run."""
    scratch = home / "tmp"  # kombu moves each message through the temporary directory
    scratch.mkdir()
    return {
        "SHOP_DIR": str(home),
        "BROKER": options.broker,
        "SEED": options.seed,
        "TMPDIR": str(scratch),
    }


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the options; SEED and BROKER of the environment are their defaults."""
    parser = argparse.ArgumentParser(prog="demo", description=DESCRIPTION)
    seed = os.environ.get("SEED") or str(random.randrange(100_000))
    parser.add_argument("--seed", default=seed, help="repeats the plan of an earlier demo")
    parser.add_argument("--broker", default=os.environ.get("BROKER", ""), help="default: files")
    parser.add_argument("--orders", type=int, default=200, help="how many of orders.csv (200)")
    parser.add_argument("--kills", type=int, default=3, help="how many SIGKILLs (3)")
    parser.add_argument("--keep", action="store_true", help="keep books, log and worker output")
    return parser.parse_args(argv)


def seconds(since: float) -> str:
    """Return the time since a moment of CLOCK_MONOTONIC."""
    return f"{time.monotonic() - since:.1f} s"


if __name__ == "__main__":
    sys.exit(main())
