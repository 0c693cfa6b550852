"""Cut the power before every operation of what the log does, and try the images that it may leave."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .cuts import SCENES, Cuts, gone_on
from .disk import Fault
from .world import Process, World, scratch

pytestmark = pytest.mark.crash


def test_a_log_that_is_made_while_the_power_fails_is_whole_or_not_there() -> None:
    with scratch() as base:
        world = World(base)
        cuts = Cuts(world, base)
        process = world.open()
        assert process is not None
        world.append(process, wait=True)
        assert cuts.operations > 20
        world.end()


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_a_power_cut_before_any_operation_breaks_no_promise(
    scene: Callable[[World, Process], None],
) -> None:
    with scratch() as base:
        world = World(base)
        process = world.open()
        assert process is not None
        world.append(process, wait=True)
        cuts = Cuts(world, base)
        scene(world, process)
        cuts.end()
        assert cuts.images > 10
        world.end()


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_who_goes_on_after_a_kill_promises_no_more_than_a_power_cut_leaves(
    scene: Callable[[World, Process], None],
) -> None:
    total = 0
    for nth in range(1, 200):
        with scratch() as base:
            world = World(base)
            process, other = world.open(), world.open()
            assert process is not None
            world.append(process, wait=True)
            process.files.fault = Fault(nth)
            scene(world, process)
            if process.files.fault is not None:
                break
            total += gone_on(world, base, other if nth % 2 else None)
    assert nth >= 5
    assert total > 100


def test_a_log_whose_maker_was_killed_is_on_disk_before_anything_in_it_is_promised() -> None:
    total = 0
    for nth in range(1, 60):
        with scratch() as base:
            world = World(base)
            world.next_fault = Fault(nth)
            if world.open() is not None:
                break
            total += gone_on(world, base, None)
    assert nth > 10
    assert total > 1000
