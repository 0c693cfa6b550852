"""Let chance drive processes, faults, kills and power cuts, and shrink what breaks a promise to a short story."""

from __future__ import annotations

import random
from contextlib import ExitStack

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from . import moves
from .images import drawn
from .world import World, scratch

pytestmark = pytest.mark.crash

chances = st.integers(0, 2**32 - 1).map(random.Random)


class PowerCuts(RuleBasedStateMachine):
    """One host; after every step the files are looked at, and now and then somebody is asked everything."""

    def __init__(self) -> None:
        super().__init__()
        self._stack = ExitStack()
        self.world = World(self._stack.enter_context(scratch()))
        self.world.open()

    def teardown(self) -> None:
        try:
            moves.is_asked_afresh(self.world, random.Random(0))
        finally:
            self.world.end()
            self._stack.close()


def _rule(move: moves.Move, copy: int) -> None:
    def step(self: PowerCuts, chance: random.Random) -> None:
        move(self.world, chance)
        self.world.look()

    name = f"{move.__name__}_{copy}" if copy else move.__name__
    step.__name__ = name
    setattr(PowerCuts, name, rule(chance=chances)(step))


for _move, _weight in moves.MOVES.items():
    for _copy in range(_weight):
        _rule(_move, _copy)


TestPowerCuts = PowerCuts.TestCase
TestPowerCuts.settings = settings(
    max_examples=60,
    stateful_step_count=25,
    derandomize=True,  # the same stories every time; `make chaos` tells new ones
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.parametrize("seed", range(12))
def test_a_lying_disk_gets_typed_answers_and_breaks_nobody(seed: int) -> None:
    """What it lost cannot be made good; nobody may loop, crash, or call it an OSError for all that."""
    chance = random.Random(seed)
    with scratch() as base:
        world = World(base)
        moves.runs(world, chance)
        world.disk.lies = True
        for _ in range(12):
            chance.choice(
                (moves.appends, moves.runs, moves.seals, moves.snapshots, moves.compacts)
            )(world, chance)
        for _ in range(3):
            world.cut(drawn(chance, world.disk), outside=chance.random() < 0.5)
            world.check_typed()
            world.disk.lies = True
        world.end()
