"""What health says of the log itself: whether its chain held when last verified, whether it can be written."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from celery_commander.engine import (
    EventSourcingEngine,
    EventSourcingHealth,
)
from celery_commander.engine.verified import Verification, save_verification
from tests.kit import ManualClock

from .healths import DEGRADED, HEALTHY, UNHEALTHY, Open, status_of
from .logs import flip


class TestTheChain:
    def test_health_tells_what_verification_last_found(self, opened: Open) -> None:
        engine = opened()
        engine.append("note", {"i": "text to be changed"})
        flip(engine.path, engine.path.stat().st_size - 10)
        assert engine.health().status is HEALTHY  # it never verifies

        engine.verify_integrity()
        report = engine.health()

        assert status_of(report, "chain_breaks") == (1, UNHEALTHY)
        assert any("verification said CORRUPT" in reason for reason in report.reasons)
        assert EventSourcingHealth(engine).problem() is not None

    def test_a_good_verification_later_ends_it(self, opened: Open) -> None:
        engine = opened()
        engine.append("note", {"i": "text to be changed"})
        at = engine.path.stat().st_size - 10
        flip(engine.path, at)
        engine.verify_integrity()
        flip(engine.path, at)

        report = engine.verify_integrity()
        assert engine.health().status is UNHEALTHY  # until a person says so
        assert engine.breaks.lift(report)

        assert engine.health().status is HEALTHY
        assert EventSourcingHealth(engine).problem() is None

    def test_the_next_verification_may_go_on_where_the_last_one_ended(self, opened: Open) -> None:
        engine = opened()
        assert engine.last_verification() is None
        report = engine.verify_integrity()
        engine.append("note", {})

        last = opened().last_verification()

        assert last is not None
        assert last.verified is not None
        assert (last.verified, last.seq) == (report.verified, 1)
        assert engine.verify_integrity(after=last.verified).status.name == "OK_UNANCHORED"

    def test_a_break_stays_until_the_log_was_read_whole(self, opened: Open) -> None:
        engine = opened()
        good = engine.verify_integrity().verified
        at = engine.path.stat().st_size - 10
        engine.append("note", {})
        flip(engine.path, at)  # in event 1, before what was found good
        assert engine.verify_integrity().status.name == "CORRUPT"

        assert engine.verify_integrity(after=good).status.name == "OK_UNANCHORED"
        assert engine.health().status is UNHEALTHY

        flip(engine.path, at)
        assert engine.breaks.lift(engine.verify_integrity())
        assert engine.health().status is HEALTHY

    def test_a_verification_grows_stale(self, opened: Open, clock: ManualClock) -> None:
        engine = opened(verify_stale_seconds=7200)
        clock.advance(5000)
        engine.verify_integrity()

        clock.advance(7199)
        assert status_of(engine.health(), "verification_age") == (7199, HEALTHY)
        clock.advance(1)
        assert status_of(engine.health(), "verification_age") == (7200, DEGRADED)

    def test_never_verified_counts_from_the_logs_first_event(
        self, opened: Open, clock: ManualClock
    ) -> None:
        engine = opened(verify_stale_seconds=7200)
        clock.advance(7199)
        assert engine.health().status is HEALTHY

        clock.advance(1)

        report = engine.health()
        assert report.status is DEGRADED
        assert "the chain was never verified" in report.reasons

    def test_the_word_on_another_log_says_nothing(self, opened: Open, clock: ManualClock) -> None:
        engine = opened()
        foreign = Verification("another", "CORRUPT", 30, 3, "0" * 64, clock.wall())
        save_verification(engine.directory, foreign)

        assert engine.health().status is HEALTHY
        assert EventSourcingHealth(engine).problem() is None

    def test_an_old_anchor_degrades_and_breaks_nothing(
        self, opened: Open, clock: ManualClock
    ) -> None:
        engine = opened()
        said = Verification(engine.log_id, "STALE_ANCHOR", 37, 3, "0" * 64, clock.wall())
        save_verification(engine.directory, said)

        assert engine.health().status is DEGRADED
        assert EventSourcingHealth(engine).problem() is None

    @pytest.mark.parametrize(
        "content",
        [
            b"",
            b"[]",
            b"{}",
            b'{"at": "soon"}',
            b'{"at": "2026-01-01T00:00:00"}',
            b"\xff",
            b"[" * 9000,
        ],
    )
    def test_a_record_that_cannot_be_read_is_no_good_news(
        self, opened: Open, content: bytes
    ) -> None:
        engine = opened()
        (engine.directory / "verified.json").write_bytes(content)

        assert engine.health().status is UNHEALTHY
        assert EventSourcingHealth(engine).problem() is not None

    @pytest.mark.parametrize(
        "spoiled",
        [
            {"offset": "12"},
            {"seq": None},
            {"seq": True},
            {"offset": -5},
            {"offset": 2**70},
            {"hash": 5},
            {"file": 1.5},
            {"first_seq": "1"},
        ],
    )
    def test_a_place_to_go_on_from_that_was_edited_is_none(
        self, opened: Open, spoiled: dict[str, object]
    ) -> None:
        engine = opened()
        engine.append("note", {})
        engine.verify_integrity()
        path = engine.directory / "verified.json"
        document = json.loads(path.read_text())
        path.write_text(json.dumps(document | {"verified": document["verified"] | spoiled}))

        with pytest.raises(ValueError, match="is not ours"):
            engine.last_verification()
        assert EventSourcingHealth(engine).problem() is not None

        engine.verify_integrity()  # reading it whole mends it
        assert engine.last_verification() is not None

    def test_a_place_that_does_not_say_where_the_log_began_is_not_gone_on_from(
        self, opened: Open
    ) -> None:
        engine = opened()
        engine.verify_integrity()
        path = engine.directory / "verified.json"
        document = json.loads(path.read_text())
        del document["verified"]["first_seq"]
        path.write_text(json.dumps(document))
        spoiled = bytearray(engine.path.read_bytes())
        spoiled[300] ^= 1  # within event 1, which going on would not read again
        engine.path.write_bytes(spoiled)

        last = engine.last_verification()
        assert last is not None
        assert engine.verify_integrity(after=last.verified).status.name == "CORRUPT"

    def test_an_engine_that_only_reads_writes_no_record(self, opened: Open) -> None:
        engine = opened()
        with EventSourcingEngine.open(engine.path, create=False) as reading:
            reading.verify_integrity()

        assert not (engine.directory / "verified.json").exists()


class TestALogThatCannotBeWritten:
    @pytest.mark.parametrize(
        "damage, said",
        [
            (lambda path: path.rename(path.with_name("away")), "moved"),
            (lambda path: Path(f"{path}.d/POISONED").touch(), "poisoned"),
            (lambda path: os.truncate(path, path.stat().st_size - 5), "bytes were published"),
            (lambda path: Path(f"{path}.d/control").unlink(), "control is gone"),
            (
                lambda path: (path.rename(path.with_name("away")), path.touch()),
                "is log no log",
            ),
            (lambda path: Path(f"{path}.d").rename(path.with_name("away")), "is gone"),
        ],
        ids=["moved", "poisoned", "cut", "control", "replaced", "directory"],
    )
    def test_is_unhealthy_and_a_problem(
        self, opened: Open, damage: Callable[[Path], object], said: str
    ) -> None:
        engine = opened()
        engine.append("note", {})
        health = EventSourcingHealth(engine)
        assert health.problem() is None

        damage(engine.path)

        report = engine.health()
        assert report.status is UNHEALTHY
        assert any(said in reason for reason in report.reasons), report.reasons
        assert said in str(health.problem())

    def test_a_read_only_file_system_is_told_by_its_flags(
        self, opened: Open, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        engine = opened()
        really = os.statvfs

        def read_only(path: Path) -> os.statvfs_result:
            found = list(really(path))
            found[8] |= os.ST_RDONLY
            return os.statvfs_result(found)

        monkeypatch.setattr(os, "statvfs", read_only)

        assert "read-only" in str(EventSourcingHealth(engine).problem())
        assert engine.health().status is UNHEALTHY

    def test_a_closed_engine_answers_too(self, opened: Open) -> None:
        engine = opened()
        engine.close()

        assert engine.health().status is UNHEALTHY

    def test_durability_below_fsync_is_said(self, opened: Open) -> None:
        report = opened(durability="os").health()

        assert report.status is DEGRADED
        assert any("power cut" in reason for reason in report.reasons)
