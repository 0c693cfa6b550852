"""Cut the power before every operation of a scene, and let other hosts boot with what each cut would leave."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

from .disk import EIO, Fault
from .images import images
from .world import Process, World

_TORN = 4
_INNER_SHARE = 0.05  # each costs as much as a scene


class Cuts:
    """Stop a world before each of its operations, and let other hosts boot with what a cut would leave there."""

    def __init__(
        self,
        world: World,
        base: Path,
        *,
        torn: int = _TORN,
        inner: int = 0,
        boots: bool = True,
    ) -> None:
        self._boots = boots
        self._world = world
        self._base = base
        self._torn = torn
        self._inner = inner
        self._chance = random.Random(1)
        self._seen: set[tuple[bytes, int]] = set()
        self.images = 0
        self.operations = 0
        world.disk.before = self._before

    def end(self) -> None:
        """Cut once more, behind the last operation, and let the world alone from here on."""
        self._before("the end", self._world.root)
        self._world.disk.before = None

    def _before(self, call: str, path: Path) -> None:
        self.operations += 1
        for image in images(self._world.disk, self._chance, self._torn):
            key = image.digest(), self._world.promised
            if key not in self._seen:
                self._seen.add(key)
                self.images += 1
                root = self._base / f"{self._inner}-{self.images}"
                try:
                    other = World.after(self._world, image, root)
                    if self._boots:
                        self._boot(other)
                except BaseException as error:
                    error.add_note(f"cut before operation {self.operations}, {call} {path}")
                    raise
                shutil.rmtree(root)

    def _boot(self, world: World) -> None:
        """Boot, open the log, append, and see that all holds; with cuts in all of that, if asked."""
        cuts = None
        if self._inner and self._chance.random() < _INNER_SHARE:
            cuts = Cuts(world, self._base, torn=1, inner=self._inner - 1)
        process = world.open()
        assert process is not None
        if world.poisoned:
            world.repair(process)
        world.append(process, wait=True)
        world.disk.before = None
        world.check(process, ledger=False)
        world.end()
        if cuts is not None:
            self.images += cuts.images


def appending(world: World, process: Process) -> None:
    world.append(process, wait=True)
    world.append(process, 3, wait=False)
    world.append(process, 2, wait=False, size=700)
    world.sync(process)
    world.append(process, 3, wait=True, size=300)


def sealing(world: World, process: Process) -> None:
    world.append(process, wait=False)
    world.seal(process)
    world.append(process, wait=True)
    world.append(process, wait=False)
    world.seal(process)


def snapshotting(world: World, process: Process) -> None:
    world.run(process, delivered=False, wait=False)
    world.snapshot(process)


def compacting(world: World, process: Process) -> None:
    world.run(process, delivered=True, wait=True)
    world.seal(process)
    world.run(process, delivered=False, wait=True)
    world.snapshot(process)
    world.compact(process)


def reopening(world: World, process: Process) -> None:
    world.append(process, 4, wait=False, size=400)
    world.close(process)
    world.append(world.open() or process, wait=True)


def repairing(world: World, process: Process) -> None:
    """Repair what a failed sync of another process has poisoned."""
    other = world.open()
    assert other is not None
    other.files.fault = Fault(1, frozenset(("sync",)), EIO)
    world.append(other, 2, wait=True)
    world.repair(process)
    world.append(process, wait=True)


SCENES = (appending, sealing, snapshotting, compacting, reopening, repairing)


def gone_on(world: World, base: Path, other: Process | None) -> int:
    """Let another process append, seal and append; the power may fail at any moment of that."""
    cuts = Cuts(world, base, torn=1, boots=False)
    other = other or world.open()
    assert other is not None
    if world.poisoned:
        world.repair(other)
    world.append(other, wait=True)
    world.seal(other)
    world.append(other, wait=True)
    world.append(other, wait=True)
    cuts.end()
    world.check(other, ledger=False)
    world.end()
    return cuts.images
