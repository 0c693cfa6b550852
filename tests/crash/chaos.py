"""Go on breaking the log for as long as there is time: ``make chaos SECONDS=600``, ``make chaos SEED=17``.

Rounds on the simulated disk and rounds with real processes take turns. Each prints its seed before it begins. With
a seed, that round alone is told again: on the simulated disk exactly, operation by operation; of real processes the
same are killed, though not in the same moment.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

from . import moves
from .crowd import Crowd
from .cuts import SCENES, Cuts, gone_on
from .disk import Fault
from .images import drawn
from .world import World, scratch

WALK_STEPS = 60
WALKS_A_ROUND = 20
SCENES_A_ROUND = 10
CROWD_SECONDS = 20.0
ROUNDS_A_CROWD = 8


def walk(seed: int, counts: Counter[str]) -> None:
    """Let chance drive one host."""
    chance = random.Random(seed)
    with scratch() as base:
        world = World(base)
        trail = []
        try:
            for _ in range(WALK_STEPS):
                move = chance.choices(list(moves.MOVES), list(moves.MOVES.values()))[0]
                trail.append(move.__name__)
                move(world, chance)
                world.look()
            moves.is_asked_afresh(world, chance)
        except BaseException as error:
            error.add_note(f"walk {seed}: {' '.join(trail)}")
            raise
        finally:
            counts.update(world.counts)
            counts["operations"] += world.disk.at
            world.end()


def scene(seed: int, counts: Counter[str]) -> None:
    """Cut the power at every operation of a scene that follows a walk, at the second cut of a repair too."""
    chance = random.Random(seed)
    with scratch() as base:
        world = World(base)
        calm = [
            moves.appends,
            moves.runs,
            moves.seals,
            moves.snapshots,
            moves.compacts,
            moves.opens,
        ]
        for _ in range(chance.randrange(8)):
            chance.choice(calm)(world, chance)
        process = moves.some(world, chance)
        assert process is not None
        killed = chance.random() < 0.5
        if killed:
            process.files.fault = Fault(chance.randint(1, 60))
            chance.choice(SCENES)(world, process)
            gone_on(world, base, None)
        else:
            cuts = Cuts(world, base, torn=4, inner=chance.randrange(2))
            chance.choice(SCENES)(world, process)
            cuts.end()
        world.disk.before = None
        counts.update(world.counts)
        counts["operations"] += world.disk.at
        world.end()


def lies(seed: int, counts: Counter[str]) -> None:
    """Let the disk lie about some syncs; typed answers are all that can be asked of the log then."""
    chance = random.Random(seed)
    with scratch() as base:
        world = World(base)
        for move in (moves.runs, moves.seals, moves.snapshots)[: chance.randrange(4)]:
            move(world, chance)
        for _ in range(3):
            world.disk.lies = True
            for _ in range(chance.randrange(10)):
                if world.processes:
                    chance.choice((moves.appends, moves.runs, moves.seals))(world, chance)
            world.cut(drawn(chance, world.disk), outside=chance.random() < 0.5)
            world.check_typed()
            world.end()
        counts.update(world.counts)


def simulated(seed: int, counts: Counter[str]) -> None:
    """Do one round on the simulated disk."""
    chance = random.Random(seed)
    for _ in range(WALKS_A_ROUND):
        walk(chance.getrandbits(48), counts)
    for _ in range(SCENES_A_ROUND):
        scene(chance.getrandbits(48), counts)
    for _ in range(10):
        lies(chance.getrandbits(48), counts)


def crowded(seed: int, counts: Counter[str], seconds: float) -> None:
    """Do one round with real processes; what they left stays where it is when it is not right."""
    directory = Path(tempfile.mkdtemp(prefix="crowd-"))
    crowd = Crowd(directory, seed)
    try:
        crowd.run(seconds)
        counts.update(crowd.judge())
    except BaseException as error:
        error.add_note(f"left in {directory}")
        raise
    for path in sorted(directory.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    directory.rmdir()


def is_crowded(seed: int) -> bool:
    return seed % ROUNDS_A_CROWD == 0


def play(seed: int, counts: Counter[str], seconds: float) -> bool:
    """Do the round that a seed names; tell whether it went well."""
    kind = "real processes" if is_crowded(seed) else "simulated disk"
    began = time.monotonic()
    say(f"seed {seed}: {kind}")
    try:
        if is_crowded(seed):
            crowded(seed, counts, min(CROWD_SECONDS, seconds))
        else:
            simulated(seed, counts)
    except Exception:  # noqa: BLE001 - shown, counted, and answered with the exit code
        traceback.print_exc()
        say(f"FAILED. Again: make chaos SEED={seed}")
        return False
    say(f"    {time.monotonic() - began:.1f} s; so far {dict(sorted(counts.items()))}")
    return True


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=600.0, help="go on for so long")
    parser.add_argument("--seed", type=int, help="tell only this round again")
    options = parser.parse_args()
    counts: Counter[str] = Counter()
    if options.seed is not None:
        return not play(options.seed, counts, options.seconds)
    deadline = time.monotonic() + options.seconds
    failures = 0
    for seed in itertools.count(random.SystemRandom().randrange(10**9)):
        left = deadline - time.monotonic()
        if left <= 0:
            break
        failures += not play(seed, counts, max(left, 5.0))
    say(f"{failures} rounds failed; {dict(sorted(counts.items()))}")
    return failures > 0


if __name__ == "__main__":
    sys.exit(main())
