"""A broken log goes on at a person's word; what is lost is named, and nothing but that is passed by."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from celery_commander.engine import (
    BreakRefused,
    EventSourcingEngine,
    LogBroken,
    LogCorrupt,
    Status,
)
from tests.engine.logs import BOOT, NEXT_BOOT, add, flip, lines_of, open_log, segmented
from tests.engine.test_breaks import mark, middle, segments

from .harms import (
    ACCEPTED,
    AFTER_A_BOOT,
    HARMS,
    KINDS,
    before_end,
    broken,
    contents,
    everything,
    history,
    lost_of,
    without,
)

pytestmark = [pytest.mark.crash]


@pytest.mark.parametrize("boot", [BOOT, NEXT_BOOT], ids=["this boot", "after a reboot"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_broken_log_goes_on_and_says_so(tmp_path: Path, kind: str, boot: str) -> None:
    if boot == NEXT_BOOT and kind not in AFTER_A_BOOT:
        pytest.skip(
            "after a boot nobody knows that the last line had been there: it counts as torn"
        )
    path = segmented(tmp_path)
    with open_log(tmp_path) as log:
        whole, end = everything(log), log.head()[0]
        runs = {run: history(log, run, end) for run in ("r-0", "r-1")}
    harmed = HARMS[kind](path)
    with open_log(tmp_path, boot_id=boot) as log:
        assert log.verify_integrity().exit_code in (30, 33)
        with pytest.raises(LogBroken):
            log.append("note", {})
        before = contents(path)
        found = log.breaks.survey()
        assert contents(path) == before

        done = log.breaks.accept("Ada, ticket 7")
        assert done.damages == found
        for damage in found:
            if damage.sha256 is not None:
                kept = Path(f"{path}.d/segments/{damage.file:020d}.wal").read_bytes()
                assert kept == before[damage.name]
                assert hashlib.sha256(kept).hexdigest() == damage.sha256
        assert harmed.name in before or harmed.name in {damage.name for damage in found}
        assert not mark(path).exists()

        report = log.verify_integrity()
        assert (report.status, report.exit_code) == (ACCEPTED, 15)
        assert len(report.accepted) == len(found)
        assert "acknowledged break" in report.reason
        assert {each.by for each in report.accepted} == {"Ada, ticket 7"}

        lost = lost_of(found)
        event = log.append("note", {"i": "after"}, run_id="r-0")
        assert event.seq > end
        after = everything(log)
        assert before_end(after, end) == without(whole, lost)
        for run, events in runs.items():
            assert history(log, run, end) == without(events, lost)
        assert report.events + report.lost == done.seq
    for again in (boot, "a third"):
        with open_log(tmp_path, boot_id=again) as log:
            assert everything(log).items() >= after.items()
            for run, events in runs.items():
                assert history(log, run, end) == without(events, lost)
            log.append("note", {})
            assert log.verify_integrity().status is ACCEPTED
            assert log.breaks.survey() == ()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "a missing file"])
def test_any_further_change_of_the_damaged_file_is_a_break_again(tmp_path: Path, kind: str) -> None:
    path = broken(tmp_path, kind)
    with open_log(tmp_path) as log:
        (damage, *_) = log.breaks.accept("me").damages
        log.breaks.lift(log.verify_integrity())
        file = Path(f"{path}.d/segments/{damage.file:020d}.wal")
        for at in range(0, file.stat().st_size, 37):
            flip(file, at, 4)
            report = log.breaks.verify()
            assert report.exit_code in (30, 34), at
            flip(file, at, 4)
        assert log.verify_integrity().status is ACCEPTED
        add(file, b"x")
        report = log.verify_integrity()
        assert report.status is Status.CORRUPT
        with pytest.raises(LogBroken):
            log.append("note", {})


def test_damage_elsewhere_is_a_break_of_its_own(tmp_path: Path) -> None:
    path = broken(tmp_path)
    with open_log(tmp_path) as log:
        log.breaks.accept("me")
        third = segments(path)[2]
        flip(third, middle(third))
        report = log.verify_integrity()
        assert report.status is Status.CORRUPT
        assert report.broken_at is not None
        assert report.broken_at.path == str(third)
        (damage,) = log.breaks.accept("you").damages
        assert damage.name == third.name
        report = log.verify_integrity()
        assert [each.by for each in report.accepted] == ["me", "you"]
        log.append("note", {})


def test_a_file_that_is_put_right_later_is_no_break_any_more(tmp_path: Path) -> None:
    path = segmented(tmp_path)
    second = segments(path)[1]
    good = second.read_bytes()
    HARMS["a payload in a sealed file"](path)
    with open_log(tmp_path) as log:
        log.breaks.accept("me")
        part = log.verify_integrity().verified
        second.write_bytes(good)
        assert log.verify_integrity(after=part).status is Status.OK_UNANCHORED
        assert log.verify_integrity().status is Status.OK_UNANCHORED
        log.append("note", {})


def test_a_verification_that_goes_on_from_an_earlier_one_still_says_so(tmp_path: Path) -> None:
    path = broken(tmp_path)
    with open_log(tmp_path) as log:
        log.breaks.accept("me")
        first = log.verify_integrity()
        log.append("note", {})
        report = log.verify_integrity(after=first.verified)
        assert (report.status, len(report.accepted)) == (ACCEPTED, 1)
        second = segments(path)[1]
        flip(second, 3)
        assert log.verify_integrity(after=first.verified).exit_code in (30, 34)


def test_lines_that_link_to_nothing_are_lost_although_they_verify_among_themselves(
    tmp_path: Path,
) -> None:
    """Whoever can change one line can chain others to it."""
    with open_log(tmp_path) as log:
        for number in range(8):
            log.append("note", {"i": number}, run_id="r")
        log.seal()
        path = log.path
        (file,) = segments(path)
        assert len(log.history("r")) == 8  # so where each line lies is known here
        flip(file, middle(file, 3))
        flip(file, middle(file, 6))
        (damage,) = log.breaks.accept("me").damages
        assert damage.lost is not None
        assert (damage.lost.first_seq, damage.lost.last_seq) == (3, 6)
        assert [event.seq for event in log.history("r")] == [2, 7, 8, 9]
        assert damage.runs == ("r",)


def test_a_note_that_the_chain_does_not_hold_allows_nothing(tmp_path: Path) -> None:
    path = broken(tmp_path)
    with open_log(tmp_path) as log:
        log.breaks.accept("me")
        lines = lines_of(path)
        forged = lines[1].replace(b'"by":"me"', b'"by":"you"')
        path.write_bytes(b"".join([lines[0], forged, *lines[2:]]))
        report = log.verify_integrity()
        assert report.status is Status.CORRUPT
        with pytest.raises(LogCorrupt):
            list(log.read_from(None))


def test_a_verification_alone_and_the_bare_files_tell_the_same(tmp_path: Path) -> None:
    path = broken(tmp_path)
    with open_log(tmp_path) as log:
        log.breaks.accept("me")
    with EventSourcingEngine.open(path, create=False, boot_id="another") as log:
        report = log.verify_integrity()
        assert report.status is ACCEPTED
        assert "accepted by me at " in report.reason
        assert len(list(log.read_from(None))) == report.events


def test_a_snapshot_and_a_compaction_go_past_the_damage(tmp_path: Path) -> None:
    path = broken(tmp_path)
    damaged = segments(path)[1].read_bytes()
    with open_log(tmp_path) as log:
        log.breaks.accept("me")
        log.append("note", {"i": "after"}, run_id="r-0")
        report = log.verify_integrity()
        log.snapshot("nightly")
        log.compact("nightly")
        assert damaged in [each.read_bytes() for each in Path(f"{path}.d").glob("archive/*.wal")]
        assert report.accepted
        after = log.verify_integrity()
        assert after.status is Status.OK_UNANCHORED, after
        log.append("note", {})
        assert log.breaks.survey() == ()
    with open_log(tmp_path, boot_id=NEXT_BOOT) as log:
        assert log.verify_integrity().status is Status.OK_UNANCHORED


@pytest.mark.parametrize("kind", ["a payload in a sealed file", "a missing file", "a header"])
def test_a_compaction_may_end_right_behind_the_damage(tmp_path: Path, kind: str) -> None:
    path = segmented(tmp_path, seals=1)
    with open_log(tmp_path) as log:
        log.append("note", {})
        log.seal()
        log.snapshot("nightly")  # seals nothing: it holds the first two files
        log.seal()
        log.append("note", {})
        log.seal()
        HARMS[kind](path)
        log.verify_integrity()
        log.breaks.accept("me")
        assert log.verify_integrity().status is ACCEPTED
        log.compact("nightly")
        report = log.verify_integrity()
        assert report.status is Status.OK_UNANCHORED, report
        log.append("note", {})


@pytest.mark.parametrize(
    "harm,said",
    [
        pytest.param(lambda p: p.write_bytes(b"".join(lines_of(p)[:-1])), "rollback", id="cut"),
        pytest.param(lambda p: segments(p)[0].unlink(), "beginning", id="beginning"),
        pytest.param(lambda p: segments(p)[1].write_bytes(foreign()), "another log", id="foreign"),
    ],
)
def test_what_no_word_makes_good_is_refused(
    tmp_path: Path, harm: Callable[[Path], object], said: str
) -> None:
    path = segmented(tmp_path)
    harm(path)
    with open_log(tmp_path) as log:
        before = contents(path)
        with pytest.raises(BreakRefused, match=said):
            log.breaks.accept("me")
        assert contents(path) == before


def foreign() -> bytes:
    header = "#celery-wal/1|0b9d2c8e-1f2a-4c3d-9e4f-5a6b7c8d9e0f|2|4|" + "0" * 64 + "|" + "0" * 64
    return header.encode() + b"\n"


def test_a_log_that_is_well_is_left_alone(tmp_path: Path) -> None:
    path = segmented(tmp_path)
    with open_log(tmp_path) as log:
        before = contents(path)
        assert log.breaks.survey() == ()
        assert log.breaks.accept("me").seq == 0
        assert contents(path) == before
        log.append("note", {})


@pytest.mark.parametrize("by", ["", "  ", "x" * 201])
def test_somebody_must_answer_for_it(tmp_path: Path, by: str) -> None:
    path = broken(tmp_path)
    with open_log(tmp_path) as log, pytest.raises(ValueError, match="who answers"):
        log.breaks.accept(by)
    assert mark(path).exists()
