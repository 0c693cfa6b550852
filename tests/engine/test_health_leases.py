"""Leases as health sees them: held and renewed, stalled, or a zombie's."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from celery_commander.engine import (
    EventSourcingHealth,
    LivenessLock,
    holder_name,
)
from tests.kit import ManualClock, wait_until

from .healths import DEGRADED, HEALTHY, UNHEALTHY, Open, status_of
from .holders import TTL, claimed, manager, owner_process


class TestTheLeases:
    def test_held_and_renewed_is_healthy(self, tmp_path: Path, clock: ManualClock) -> None:
        leases = manager(tmp_path, clock.boot_clock())
        claimed(leases.acquire("r", "worker-1@h/b/1"))
        clock.advance(TTL / 3)

        upkeep = leases.upkeep()

        assert (upkeep.held, upkeep.zombies, upkeep.stalled) == (1, 0, ())
        assert upkeep.renewal_age_seconds == pytest.approx(TTL / 3)

    def test_a_living_holder_that_missed_two_renewals_is_stalled(
        self, opened: Open, tmp_path: Path, clock: ManualClock
    ) -> None:
        boot = clock.boot_clock()
        leases, name = manager(tmp_path, boot), holder_name("worker", boot)
        lock = LivenessLock.take(tmp_path / "liveness", boot_id=boot.boot_id)
        lease = claimed(leases.acquire("r", name, liveness=lock.ref))
        health = EventSourcingHealth(opened(), leases=leases)
        clock.advance(TTL * 0.7)
        assert health.report().status is HEALTHY

        clock.advance(0.1)

        report = health.report()
        assert status_of(report, "stalled_renewals") == (1, UNHEALTHY)
        assert any(name in reason for reason in report.reasons)
        assert health.stalled() == health.stalled(os.uname().nodename)
        assert health.stalled("another-host") == []
        leases.renew([lease])
        assert health.report().status is HEALTHY

    def test_an_expired_lease_is_a_zombies(
        self, opened: Open, tmp_path: Path, clock: ManualClock
    ) -> None:
        leases = manager(tmp_path, clock.boot_clock())
        claimed(leases.acquire("r", "worker-1@h/b/1"))
        clock.advance(TTL)

        report = EventSourcingHealth(opened(), leases=leases).report()

        assert status_of(report, "zombies") == (1, DEGRADED)

    @pytest.mark.crash
    def test_every_lease_of_a_dead_process_is_a_zombies(
        self, tmp_path: Path, clock: ManualClock
    ) -> None:
        boot = clock.boot_clock()
        leases = manager(tmp_path, boot)
        with owner_process(leases, tmp_path, boot, "r", "s") as owner:
            owner.hear()
            assert leases.upkeep().zombies == 0

            owner.send_signal(signal.SIGKILL)
            wait_until(lambda: leases.upkeep().zombies == 2, what="the zombies to be seen")

        assert leases.upkeep().stalled == ()

    def test_leases_of_another_boot_are_zombies(self, tmp_path: Path, clock: ManualClock) -> None:
        claimed(manager(tmp_path, clock.boot_clock()).acquire("r", "worker-1@h/b/1"))
        clock.reboot()

        assert manager(tmp_path, clock.boot_clock()).upkeep().zombies == 1

    def test_what_was_given_back_and_what_is_no_run_does_not_count(
        self, tmp_path: Path, clock: ManualClock
    ) -> None:
        leases = manager(tmp_path, clock.boot_clock())
        leases.release(claimed(leases.acquire("r", "worker-1@h/b/1")))
        claimed(leases.acquire("maintenance/compact", "worker-1@h/b/1", ttl_seconds=1))
        clock.advance(TTL * 2)

        assert leases.upkeep().held == 0
