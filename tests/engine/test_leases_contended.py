"""Many processes want the same leases at one instant."""

from __future__ import annotations

import os
import signal
import sqlite3
from pathlib import Path

import pytest

from celery_commander.engine import (
    BootClock,
    Database,
    LeaseManager,
    StoreBusy,
)
from tests.kit import ManualClock

from .forked import Forked, together
from .holders import TTL, claimed, manager, owner_process


def test_twenty_processes_and_one_lease_make_one_owner_at_a_time(tmp_path: Path) -> None:
    leases = manager(tmp_path, BootClock())
    inside = tmp_path / "somebody is inside"

    def contend(number: int) -> list[int]:
        tokens: list[int] = []
        while len(tokens) < 10:
            lease = leases.acquire("r", f"holder {number}")
            if lease is not None:
                os.close(os.open(inside, os.O_CREAT | os.O_EXCL))  # raises when two are inside
                tokens.append(lease.token)
                inside.unlink()
                assert leases.release(lease)
        return tokens

    answers = together(20, contend)

    assert all(tokens == sorted(tokens) for tokens in answers)
    assert sorted(token for tokens in answers for token in tokens) == list(range(1, 201))


@pytest.mark.parametrize("found", ["new", "released", "expired", "another boot", "dead"])
def test_of_twenty_processes_that_claim_at_once_one_wins(
    tmp_path: Path, clock: ManualClock, found: str
) -> None:
    leases = manager(tmp_path, clock.boot_clock())
    before = 0
    if found == "dead":
        with owner_process(leases, tmp_path, clock.boot_clock(), "r") as owner:
            before = owner.hear()[1]["r"].token
    elif found != "new":
        lease = claimed(leases.acquire("r", "before"))
        before = lease.token
        if found == "released":
            leases.release(lease)
        elif found == "expired":
            clock.advance(TTL)
        else:
            clock.reboot()
            leases = manager(tmp_path, clock.boot_clock())

    answers = together(20, lambda number: leases.acquire("r", f"recovery-{number}"))

    won = [lease for lease in answers if lease is not None]
    assert [lease.token for lease in won] == [before + 1]
    assert won[0].took_over is (found in ("expired", "another boot", "dead"))


def test_recoverers_that_claim_the_same_batch_share_it_without_overlap(tmp_path: Path) -> None:
    leases = manager(tmp_path, BootClock())
    runs = [f"run-{number}" for number in range(200)]

    def claim(number: int) -> set[str]:
        # Each begins elsewhere, in parts, so that the batches really interleave.
        order = runs[number * 40 :] + runs[: number * 40]
        parts = [order[start : start + 10] for start in range(0, 200, 10)]
        return {
            run_id for part in parts for run_id in leases.acquire_many(part, f"recovery-{number}")
        }

    answers = together(5, claim)

    assert sum(len(taken) for taken in answers) == 200
    assert set().union(*answers) == set(runs)


@pytest.mark.crash
def test_each_run_of_a_dead_owner_is_taken_over_once(tmp_path: Path) -> None:
    boot = BootClock()
    leases = manager(tmp_path, boot)
    runs = [f"run-{number}" for number in range(300)]
    with owner_process(leases, tmp_path, boot, *runs) as owner:
        owner.hear()

    def take_over(number: int) -> list[tuple[str, int]]:
        taken = [leases.acquire(run_id, f"recovery-{number}") for run_id in runs]
        return [(lease.run_id, lease.token) for lease in taken if lease is not None]

    answers = together(8, take_over)

    assert sorted(taken for answer in answers for taken in answer) == sorted((r, 2) for r in runs)


def test_a_process_killed_while_it_claims_leaves_all_or_nothing(tmp_path: Path) -> None:
    leases = manager(tmp_path, BootClock())
    runs = [f"run-{number}" for number in range(2000)]

    def claim(child: Forked) -> None:
        child.say("begin")
        leases.acquire_many(runs, "victim")

    for delay in range(8):
        with Forked(claim) as victim:
            victim.hear()
            signal.sigtimedwait([], 0.005 * delay)
            victim.send_signal(signal.SIGKILL)
        held = leases.runs_of("victim")
        assert len(held) in (0, 2000)
        if held:
            break
    # Whatever happened, the table is usable.
    assert leases.acquire("other", "a") is not None


def test_a_lock_that_is_busy_claims_nothing_and_says_so(tmp_path: Path) -> None:
    database = Database(tmp_path / "leases.sqlite", busy_seconds=0.1)
    leases = LeaseManager(database, BootClock(), ttl_seconds=TTL, liveness_directory=tmp_path)
    leases.acquire("another", "a")
    other = sqlite3.connect(tmp_path / "leases.sqlite", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")

    with pytest.raises(StoreBusy):
        leases.acquire("r", "a")
    other.close()

    assert claimed(leases.acquire("r", "a")).token == 1
