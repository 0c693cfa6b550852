"""Deaths are noticed at once, and nothing else is taken for one."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from celery_commander.engine import (
    Database,
    LeaseManager,
    LeaseRow,
    LeaseStatus,
    LivenessLock,
)
from celery_commander.engine.leases import _Probes
from tests.kit import ManualClock, wait_until

from .forked import Forked
from .holders import TTL, claimed, manager, owner_process


@pytest.mark.crash
def test_the_leases_of_a_killed_process_are_free_at_once(
    tmp_path: Path, clock: ManualClock
) -> None:
    boot = clock.boot_clock()
    leases = manager(tmp_path, boot)
    with owner_process(leases, tmp_path, boot, "r", "s") as owner:
        name, held = owner.hear()
        assert sorted(held) == ["r", "s"]
        assert leases.acquire("r", "b") is None
        assert leases.dead_holders() == []
        assert leases.status("r") == LeaseStatus(True, False, None, name, 1)

        owner.send_signal(signal.SIGKILL)
        wait_until(
            lambda: leases.dead_holders() == [name], seconds=5, what="the death to be noticed"
        )

    assert leases.status("r") == LeaseStatus(False, True, None, name, 1)
    assert leases.runs_of(name) == ["r", "s"]
    taken = leases.acquire_many(["r", "s"], "recovery-1")
    assert {run_id: (lease.token, lease.took_over) for run_id, lease in taken.items()} == {
        "r": (2, True),
        "s": (2, True),
    }
    assert leases.dead_holders() == []


@pytest.mark.crash
def test_a_stopped_owner_is_no_dead_one_until_its_lease_runs_out(
    tmp_path: Path, clock: ManualClock
) -> None:
    boot = clock.boot_clock()
    leases = manager(tmp_path, boot)
    with owner_process(leases, tmp_path, boot, "r") as owner:
        name, _ = owner.hear()
        owner.send_signal(signal.SIGSTOP)

        assert leases.acquire("r", "b") is None
        assert leases.dead_holders() == []
        clock.advance(TTL + 5)
        assert leases.status("r") == LeaseStatus(False, False, 5.0, name, 1)
        assert claimed(leases.acquire("r", "b")).token == 2


@pytest.mark.crash
def test_an_expired_lease_of_a_dead_owner_is_proven_dead(
    tmp_path: Path, clock: ManualClock
) -> None:
    boot = clock.boot_clock()
    leases = manager(tmp_path, boot)
    with owner_process(leases, tmp_path, boot, "r") as owner:
        name, _ = owner.hear()
    clock.advance(TTL + 1)

    assert leases.status("r") == LeaseStatus(False, True, 1.0, name, 1)


@pytest.mark.crash
def test_a_dead_owner_that_gave_everything_back_is_nobodys_business(
    tmp_path: Path, clock: ManualClock
) -> None:
    boot = clock.boot_clock()
    leases = manager(tmp_path, boot)

    def run(_: Forked) -> None:
        lock = LivenessLock.take(tmp_path / "liveness", boot_id=boot.boot_id)
        leases.release(claimed(leases.acquire("r", "a", liveness=lock.ref)))

    Forked(run).result()

    assert leases.dead_holders() == []
    assert leases.status("r") == LeaseStatus(False, False, None, None, 1)
    assert leases.sweep_liveness() == 1


@pytest.mark.crash
def test_a_lock_that_was_taken_again_is_the_one_that_counts(
    tmp_path: Path, clock: ManualClock
) -> None:
    boot = clock.boot_clock()
    leases = manager(tmp_path, boot)

    def run(child: Forked) -> None:
        lock = LivenessLock.take(tmp_path / "liveness", boot_id=boot.boot_id)
        lease = claimed(leases.acquire("r", "a", liveness=lock.ref))
        (tmp_path / "liveness" / lock.ref.name).unlink()
        assert leases.renew([lease], liveness=lock.check()) == []
        child.say(lock.ref)
        signal.pause()

    with Forked(run) as owner:
        new = owner.hear()
        row = leases.get("r")
        assert row is not None
        assert row.liveness == new
        assert leases.acquire("r", "b") is None
    assert leases.acquire("r", "b") is not None


@pytest.mark.crash
def test_without_its_liveness_file_only_the_end_of_a_lease_frees_it(
    tmp_path: Path, clock: ManualClock
) -> None:
    boot = clock.boot_clock()
    leases = manager(tmp_path, boot)
    with owner_process(leases, tmp_path, boot, "r") as owner:
        owner.hear()
    for path in (tmp_path / "liveness").iterdir():
        path.unlink()

    assert leases.status("r").alive
    assert leases.acquire("r", "b") is None
    clock.advance(TTL)
    assert leases.acquire("r", "b") is not None


@pytest.mark.crash
def test_the_files_that_leases_name_are_not_swept(tmp_path: Path, clock: ManualClock) -> None:
    boot = clock.boot_clock()
    leases = manager(tmp_path, boot)
    with owner_process(leases, tmp_path, boot, "r") as owner:
        owner.hear()

    assert leases.sweep_liveness() == 0
    assert leases.status("r").proven_dead
    leases.acquire("r", "b")
    assert leases.sweep_liveness() == 1


class Raced(LeaseManager):
    """Let something happen between the look at the locks and the claim that follows it."""

    acts: list[Callable[[], object]]

    def _is_dead(self, row: LeaseRow, probes: _Probes) -> bool:
        dead = super()._is_dead(row, probes)
        self.acts.pop()()
        return dead


@pytest.mark.crash
@pytest.mark.parametrize("another", ["holder", "token", "both"])
def test_who_claims_before_the_one_that_saw_a_dead_holder_keeps_the_run(
    tmp_path: Path, clock: ManualClock, another: str
) -> None:
    boot = clock.boot_clock()
    leases, database = manager(tmp_path, boot), Database(tmp_path / "leases.sqlite")
    with owner_process(leases, tmp_path, boot, "r") as owner:
        old = owner.hear()[1]["r"]
    holder = old.holder if another == "token" else "b"

    def claim() -> None:
        if another == "holder":  # the table was lost, and with it the number
            with database.begin() as connection:
                connection.exec_driver_sql("DELETE FROM leases")
        claimed(leases.acquire("r", holder))

    raced = Raced(database, boot, ttl_seconds=TTL, liveness_directory=tmp_path / "liveness")
    raced.acts = [claim]

    assert raced.acquire("r", "late") is None
    row = leases.get("r")
    assert row is not None
    assert (row.holder, row.token) == (holder, old.token + (another != "holder"))
