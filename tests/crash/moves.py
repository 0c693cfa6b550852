"""Name what may happen on a host with a log, each move drawn from a source of chance, so that a seed tells it again."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable

from .disk import EIO, ENOSPC, Fault
from .images import drawn
from .world import Process, World

PROCESSES_MAX = 3
CALLS_MAX = 14

Move = Callable[[World, random.Random], object]


def appends(world: World, chance: random.Random) -> None:
    process = some(world, chance)
    if process is not None:
        size, wait = chance.choice((10, 300, 1500)), chance.random() < 0.5
        world.append(process, chance.randint(1, 4), wait=wait, size=size)


def runs(world: World, chance: random.Random) -> None:
    process = some(world, chance)
    if process is not None:
        world.run(process, delivered=chance.random() < 0.7, wait=chance.random() < 0.5)


def syncs(world: World, chance: random.Random) -> None:
    process = some(world, chance)
    if process is not None:
        world.sync(process)


def seals(world: World, chance: random.Random) -> None:
    process = some(world, chance)
    if process is not None:
        world.seal(process)


def snapshots(world: World, chance: random.Random) -> None:
    process = some(world, chance)
    if process is not None:
        world.snapshot(process)


def compacts(world: World, chance: random.Random) -> None:
    process = some(world, chance)
    if process is not None:
        world.compact(process)


def repairs(world: World, chance: random.Random) -> None:
    process = some(world, chance)
    if process is not None and world.poisoned:
        world.repair(process)


def opens(world: World, chance: random.Random) -> None:
    if len(world.processes) < PROCESSES_MAX:
        world.open()


def closes(world: World, chance: random.Random) -> None:
    process = some(world, chance)
    if process is not None:
        world.close(process)


def is_killed(world: World, chance: random.Random) -> None:
    process = some(world, chance)
    if process is not None:
        world.crashes += 1
        world.bury(process)


def will_meet_a_fault(world: World, chance: random.Random) -> None:
    process = some(world, chance)
    if process is not None:
        process.files.fault = fault(chance)


def will_meet_a_fault_at_opening(world: World, chance: random.Random) -> None:
    world.next_fault = fault(chance)
    world.open()
    world.next_fault = None


def fault(chance: random.Random) -> Fault:
    """Draw a kill, a full disk, a short write, or a disk that fails."""
    nth = chance.randint(1, CALLS_MAX)
    few = chance.randint(1, 3)
    return chance.choice(
        [
            Fault(nth),
            Fault(nth),
            Fault(1, frozenset(("append",)), taken=chance.randint(0, 400)),
            Fault(few, frozenset(("append",)), ENOSPC, chance.randint(0, 400)),
            Fault(few, frozenset(("create", "append", "mkdir", "link", "rename")), ENOSPC),
            Fault(few, frozenset(("create", "mkdir", "link", "rename", "remove", "truncate")), EIO),
            Fault(few, frozenset(("sync",)), EIO),
            Fault(few, frozenset(("sync_directory",)), EIO),
        ]
    )


def loses_power(world: World, chance: random.Random) -> None:
    world.cut(drawn(chance, world.disk), outside=chance.random() < 0.5)
    # A repair that was cut short is finished by the command, never by hand.
    if world.poisoned and not world.is_half_mended() and chance.random() < 0.2:
        world.unmark()


def could_lose_power(world: World, chance: random.Random) -> None:
    """Let other hosts boot with what a cut would leave now, and go on here as if nothing had been."""
    for number in range(3):
        root = world.base / f"other-{number}"
        other = World.after(world, drawn(chance, world.disk), root)
        is_asked_afresh(other, chance)
        appends(other, chance)
        other.look()
        other.end()
        shutil.rmtree(root)


def loses_power_at_once_after_a_kill(world: World, chance: random.Random) -> None:
    """Open a process that is killed as it repairs, as often as it takes, and cut the power in the same moment."""
    for _ in range(chance.randint(1, 3)):
        world.next_fault = Fault(chance.randint(1, CALLS_MAX))
        if world.open() is not None:
            break
        loses_power(world, chance)
    world.next_fault = None


def is_asked(world: World, chance: random.Random) -> None:
    process = some(world, chance)
    if process is not None:
        process.files.fault = None
        world.check(process, ledger=False, is_fresh=False)


def is_asked_afresh(world: World, chance: random.Random) -> None:
    if len(world.processes) >= PROCESSES_MAX:
        world.bury(world.processes[0])
    process = world.open()
    assert process is not None
    world.check(process, ledger=chance.random() < 0.5)


def some(world: World, chance: random.Random) -> Process | None:
    """Return a process; where none is left, one more is opened."""
    if not world.processes:
        world.open()
    return chance.choice(world.processes) if world.processes else None


MOVES: dict[Move, int] = {
    appends: 8,
    runs: 3,
    syncs: 2,
    seals: 2,
    snapshots: 1,
    compacts: 2,
    repairs: 4,
    opens: 2,
    closes: 1,
    is_killed: 1,
    will_meet_a_fault: 4,
    will_meet_a_fault_at_opening: 1,
    loses_power: 3,
    could_lose_power: 2,
    loses_power_at_once_after_a_kill: 1,
    is_asked: 2,
    is_asked_afresh: 2,
}
