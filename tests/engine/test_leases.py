"""One owner a run, and numbers that only grow."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from celery_commander.engine import (
    LeaseManager,
    LeaseStatus,
    LivenessRef,
)
from tests.kit import ManualClock

from .forked import Forked
from .holders import TTL, claimed, manager


@pytest.fixture
def leases(tmp_path: Path, clock: ManualClock) -> LeaseManager:
    return manager(tmp_path, clock.boot_clock())


def test_a_run_has_one_owner(leases: LeaseManager) -> None:
    mine = claimed(leases.acquire("r", "a"))

    assert leases.acquire("r", "b") is None
    assert leases.acquire("r", "a") is None
    assert (mine.run_id, mine.token, mine.holder, mine.took_over) == ("r", 1, "a", False)
    assert leases.acquire("another", "b") is not None


def test_a_lease_given_back_and_taken_again_has_a_larger_token(leases: LeaseManager) -> None:
    tokens: list[int] = []
    for _ in range(5):
        lease = claimed(leases.acquire("r", "a"))
        tokens.append(lease.token)
        assert not lease.took_over
        assert leases.is_mine(lease)
        assert leases.release(lease)
        assert not leases.is_mine(lease)

    assert tokens == [1, 2, 3, 4, 5]


def test_a_token_is_larger_than_every_one_in_the_log(leases: LeaseManager) -> None:
    first = claimed(leases.acquire("r", "a", floor=41))
    leases.release(first)

    assert first.token == 42
    second = claimed(leases.acquire("r", "a", floor=7))
    leases.release(second)
    assert second.token == 43
    assert claimed(leases.acquire("r", "a", floor=99)).token == 100


def test_the_table_may_be_lost_and_the_tokens_still_grow(
    tmp_path: Path, leases: LeaseManager
) -> None:
    old = claimed(leases.acquire("r", "a", floor=9))
    for path in tmp_path.glob("leases.sqlite*"):
        path.unlink()

    new = claimed(leases.acquire("r", "b", floor=old.token))

    assert new.token == old.token + 1
    assert leases.renew([old]) == [old]
    assert not leases.release(old)
    assert leases.get("r") is not None


def test_a_batch_answers_only_what_was_free(leases: LeaseManager) -> None:
    leases.acquire("b", "other")

    taken = leases.acquire_many(["a", "b", "c", "a"], "me", floors={"c": 6})

    assert {run_id: lease.token for run_id, lease in taken.items()} == {"a": 1, "c": 7}


def test_an_expired_lease_is_free_and_its_owner_is_told(
    leases: LeaseManager, clock: ManualClock
) -> None:
    old = claimed(leases.acquire("r", "a"))
    clock.advance(TTL - 0.001)
    assert leases.acquire("r", "b") is None
    clock.advance(0.001)

    new = claimed(leases.acquire("r", "b"))

    assert new.took_over
    assert not leases.is_mine(old)
    assert leases.renew([old]) == [old]
    assert not leases.release(old)
    assert leases.is_mine(new)


def test_a_renewed_lease_lives_on(leases: LeaseManager, clock: ManualClock) -> None:
    lease = claimed(leases.acquire("r", "a"))
    for _ in range(5):
        clock.advance(TTL - 1)
        assert leases.renew([lease]) == []

    assert leases.is_mine(lease)
    assert leases.acquire("r", "b") is None
    clock.advance(TTL)
    assert not leases.is_mine(lease)
    assert leases.acquire("r", "b") is not None


def test_a_lease_that_ran_out_and_was_not_claimed_can_be_renewed(
    leases: LeaseManager, clock: ManualClock
) -> None:
    lease = claimed(leases.acquire("r", "a"))
    clock.advance(2 * TTL)
    assert not leases.is_mine(lease)

    assert leases.renew([lease]) == []
    assert leases.is_mine(lease)


def test_a_renewal_tells_which_leases_were_lost_and_keeps_the_others(
    leases: LeaseManager, clock: ManualClock
) -> None:
    kept, lost = claimed(leases.acquire("kept", "a")), claimed(leases.acquire("lost", "a"))
    clock.advance(TTL - 1)
    leases.renew([kept])
    clock.advance(1)
    leases.acquire("lost", "b")

    assert leases.renew([kept, lost]) == [lost]
    assert leases.is_mine(kept)
    assert not leases.is_mine(lost)


@pytest.mark.parametrize("renews_the_lock", [False, True])
def test_only_the_very_lease_is_renewed_and_given_back(
    tmp_path: Path, leases: LeaseManager, renews_the_lock: bool
) -> None:
    """Its run, its holder and its token: each alone is also another's."""
    ref = LivenessRef("1-a.alive", 1, 2, "boot") if renews_the_lock else None
    other = claimed(leases.acquire("another run", "a"))
    mine = claimed(leases.acquire("r", "a"))
    strangers = [replace(mine, holder="b"), replace(mine, token=2), replace(mine, run_id="none")]
    before = [leases.get("another run"), leases.get("r")]

    assert leases.renew(strangers, liveness=ref) == strangers
    assert [leases.release(stranger) for stranger in strangers] == [False, False, False]
    assert [leases.get("another run"), leases.get("r")] == before
    assert other.token == mine.token
    assert leases.release(mine)
    assert leases.status("another run").alive


def test_the_time_to_live_can_be_given_for_one_claim(
    leases: LeaseManager, clock: ManualClock
) -> None:
    leases.acquire("r", "a", ttl_seconds=2)
    clock.advance(2)

    assert leases.acquire("r", "b") is not None


def test_the_wall_clock_does_not_matter(leases: LeaseManager, clock: ManualClock) -> None:
    lease = claimed(leases.acquire("r", "a"))
    clock.set_wall(clock.wall().replace(year=2050))

    assert leases.is_mine(lease)
    assert leases.acquire("r", "b") is None
    assert leases.status("r").alive


def test_a_lease_of_another_boot_is_free_whatever_its_numbers_say(
    tmp_path: Path, leases: LeaseManager, clock: ManualClock
) -> None:
    clock.advance(100_000)
    leases.acquire("r", "a")
    clock.reboot()
    after = manager(tmp_path, clock.boot_clock())

    assert after.status("r") == LeaseStatus(False, False, clock.boot_seconds(), "a", 1)
    assert claimed(after.acquire("r", "b")).took_over


def test_a_released_lease_stays_released_when_a_renewal_was_under_way(leases: LeaseManager) -> None:
    lease = claimed(leases.acquire("r", "a"))
    leases.release(lease)

    assert leases.renew([lease]) == [lease]
    assert not leases.is_mine(lease)
    assert leases.acquire("r", "b") is not None


def test_a_forked_child_owns_nothing_of_its_parent(leases: LeaseManager) -> None:
    lease = claimed(leases.acquire("r", "a"))

    assert Forked(lambda _: leases.is_mine(lease)).result() is False
    assert leases.is_mine(lease)


def test_many_statuses_are_one_look(leases: LeaseManager) -> None:
    runs = [f"run-{number}" for number in range(1200)]
    leases.acquire_many(runs[:700], "a")

    statuses = leases.statuses(runs)

    assert list(statuses) == runs
    assert sum(status.alive for status in statuses.values()) == 700
    assert statuses["run-1199"] == LeaseStatus(False, False, None, None, 0)


def test_nobody_ever_claimed_it(leases: LeaseManager) -> None:
    assert leases.get("r") is None
    assert leases.status("r") == LeaseStatus(False, False, None, None, 0)
    assert leases.runs_of("a") == []
    assert leases.sweep_liveness() == 0
    assert leases.renew([]) == []
