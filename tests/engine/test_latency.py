"""The ring of write latencies: cheap, of one boot and one log, and never in anybody's way."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_commander.engine import EventSourcingEngine, Settings
from celery_commander.engine.latency import SLOTS, LatencyRing, percentile

from .forked import Forked
from .logs import BOOT, NEXT_BOOT, active, open_log


class Seconds:
    """A monotonic clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def ring(path: Path, *, boot_id: str = BOOT, log_id: str = "log", seconds: Seconds | None = None):
    return LatencyRing(path, boot_id=boot_id, log_id=log_id, seconds=seconds or Seconds())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "latency"


def test_what_one_process_noted_another_reads(path: Path) -> None:
    ring(path).note(7, 0.25)
    ring(path).note(8, 0.5)

    assert ring(path).durations() == [0.25, 0.5]


def test_the_file_is_its_owners_alone(path: Path) -> None:
    ring(path).note(1, 0.1)

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == ["latency"]


def test_nothing_measured_is_no_number(path: Path) -> None:
    assert ring(path).p95() is None
    assert not path.exists()


def test_one_hiccup_is_no_percentile(path: Path) -> None:
    measured = ring(path)

    measured.note(1, 3.0)
    assert measured.p95() is None
    measured.note(2, 0.001)
    assert measured.p95() == 0.001


def test_the_percentile_is_that_of_the_last_thousand(path: Path) -> None:
    measured = ring(path)
    for seq in range(1, SLOTS + 1):
        measured.note(seq, 1.0)
    for seq in range(SLOTS + 1, 2 * SLOTS + 1):
        measured.note(seq, 0.001 if seq <= 2 * SLOTS - 51 else 0.3)

    assert len(measured.durations()) == SLOTS
    assert measured.p95() == 0.3
    measured.note(2 * SLOTS, 0.001)
    assert measured.p95() == 0.001  # now only 50 of 1,000 are slow


def test_slots_that_nobody_hits_again_are_forgotten(path: Path) -> None:
    """Waited appends of even numbers only leave the odd slots as they were on a slow day."""
    measured = ring(path)
    for seq in range(1, 2 * SLOTS, 2):
        measured.note(seq, 2.0)
    for seq in range(6 * SLOTS, 8 * SLOTS, 2):
        measured.note(seq, 0.001)

    assert measured.p95() == 0.001


def test_what_was_measured_long_ago_says_nothing_about_now(path: Path) -> None:
    seconds = Seconds()
    measured = ring(path, seconds=seconds)
    for seq in range(30):
        measured.note(seq, 2.0)

    seconds.now += 100
    assert measured.p95(window_seconds=100) == 2.0
    seconds.now += 1
    assert measured.p95(window_seconds=100) is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"somebody's notes"),
        lambda path: path.write_bytes(os.urandom(12_064)),
        lambda path: path.unlink(),
        lambda path: os.truncate(path, 100),
        lambda path: (path.unlink(), path.symlink_to("/etc/hostname")),
        lambda path: path.unlink() or os.mkfifo(path),  # type: ignore[func-returns-value]
    ],
    ids=["empty", "foreign", "noise", "gone", "cut", "link", "pipe"],
)
def test_a_file_that_is_not_ours_is_replaced(path: Path, damage: Callable[[Path], object]) -> None:
    before = ring(path)
    before.note(1, 0.1)
    damage(path)

    after = ring(path)
    after.note(2, 0.25)
    after.note(3, 0.5)

    assert after.durations()[-2:] == [0.25, 0.5]
    assert path.lstat().st_mode & 0o777 == 0o600
    before.note(
        4, 0.75
    )  # the other process goes on in the new file, and its own number is not written to
    assert 0.75 in after.durations()


@pytest.mark.parametrize("other", [{"boot_id": NEXT_BOOT}, {"log_id": "another"}])
def test_another_boot_and_another_log_measure_anew(path: Path, other: dict[str, str]) -> None:
    ring(path).note(1, 0.25)

    fresh = ring(path, **other)  # type: ignore[arg-type]

    assert fresh.durations() == []
    fresh.note(2, 0.5)
    assert fresh.durations() == [0.5]


def test_a_place_that_takes_no_file_is_no_error(path: Path) -> None:
    path.mkdir()
    (path / "in the way").touch()
    measured = ring(path)

    for seq in range(3):
        measured.note(seq, 0.1)

    assert measured.durations() == []
    assert not any(name.name.startswith("latency.") for name in path.parent.iterdir())


def test_a_forked_child_notes_in_the_same_file(path: Path) -> None:
    measured = ring(path)
    measured.note(1, 0.25)

    def noting(child: Forked) -> None:
        measured.note(2, 0.5)

    Forked(noting).result()

    assert measured.durations() == [0.25, 0.5]


def test_a_number_that_means_another_file_by_now_is_not_written_to(path: Path) -> None:
    measured = ring(path)
    measured.note(1, 0.25)
    assert measured._opened is not None
    stranger = path.parent / "stranger"
    stranger.write_bytes(b"x" * 20_000)
    with stranger.open("r+b") as file:
        os.dup2(file.fileno(), measured._opened[0])
        number = measured._opened[0]
        measured.note(2, 0.5)
        os.close(number)

    assert stranger.read_bytes() == b"x" * 20_000
    assert ring(path).durations() == [0.25, 0.5]


def test_every_waited_append_is_measured_and_no_other(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.append("note", {}, wait=False)
        assert log.latency.durations() == []
        log.append("note", {})
        log.append("note", {})
        assert len(log.latency.durations()) == 2
        assert all(0 < seconds < 60 for seconds in log.latency.durations())


def test_a_log_goes_on_when_its_latency_cannot_be_noted(tmp_path: Path) -> None:
    with EventSourcingEngine.open(Settings.at(active(tmp_path))) as log:
        log.latency._path.mkdir()

        assert log.append("note", {}).seq == 2


@given(st.lists(st.floats(0, 10), min_size=1, max_size=300))
def test_at_most_a_twentieth_lies_above_the_percentile(durations: list[float]) -> None:
    durations.sort()

    value = percentile(durations)

    if len(durations) == 1:
        assert value is None
        return
    assert value is not None
    above = sum(duration > value for duration in durations)
    assert above <= max(len(durations) // 20, 1)
    assert sum(duration >= value for duration in durations) > len(durations) // 20
