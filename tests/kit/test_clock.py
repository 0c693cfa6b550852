from datetime import timedelta

import pytest

from tests.kit import DeadlinePassed, ManualClock, wait_until


def test_time_stands_still_until_it_is_told_to_pass(clock: ManualClock) -> None:
    wall, boot = clock.wall(), clock.boot_seconds()
    assert (clock.wall(), clock.boot_seconds()) == (wall, boot)
    clock.advance(2.5)
    assert clock.wall() - wall == timedelta(seconds=2.5)
    assert clock.boot_seconds() - boot == 2.5


def test_a_corrected_wall_does_not_move_the_boot_clock(clock: ManualClock) -> None:
    boot = clock.boot_clock()
    before = boot.now()
    clock.set_wall(clock.wall() - timedelta(hours=1))
    assert boot.now() == before


def test_a_reboot_names_a_new_boot_and_begins_again(clock: ManualClock) -> None:
    old = clock.boot_clock()
    clock.advance(5_000)
    clock.reboot()
    new = clock.boot_clock()
    assert new.boot_id != old.boot_id
    assert new.now() < 5_000


def test_time_does_not_run_backwards(clock: ManualClock) -> None:
    with pytest.raises(ValueError, match="set_wall"):
        clock.advance(-1)


def test_waiting_ends_with_the_truth_or_with_a_deadline_that_says_what_for() -> None:
    answers = iter([None, 0, "here"])
    assert wait_until(lambda: next(answers)) == "here"
    with pytest.raises(
        DeadlinePassed, match=r"after 0\.05 s still waiting for the moon; last value: \[\]"
    ):
        wait_until(list, seconds=0.05, what="the moon")
