"""Who waits for a lock or for the disk: for how long, for whom, and whom it does not keep waiting."""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path

import pytest

from celery_commander.engine import EventSourcingEngine, LockTimeout, LogMoved
from celery_commander.engine.files import Files, Opened
from celery_commander.engine.wal.locks import FIRST_NAP_SECONDS_MAX, NAP_SECONDS_MIN, Patience
from tests.kit import wait_until

from .logs import active, open_log

LOCK = Opened(-1, "sync.lock", 0, 0)


class Napping(Files):
    """Note every nap, and let the clock go on by it."""

    def __init__(self) -> None:
        self.naps: list[float] = []
        self.now = 100.0

    def seconds(self) -> float:
        return self.now

    def nap(self, seconds: float) -> None:
        self.naps.append(seconds)
        self.now += seconds

    def give_way(self) -> None:
        self.naps.append(0.0)


def naps_of(count: int, *, yields: int = 0, usual_seconds: float = 0.0) -> list[float]:
    files = Napping()
    patience = Patience(files, 5.0, yields=yields, usual_seconds=usual_seconds)
    for _ in range(count):
        patience.nap(LOCK, lambda _: "somebody")
    return files.naps


def test_a_short_lock_is_asked_for_again_at_once_before_anybody_sleeps() -> None:
    naps = naps_of(6, yields=4)
    assert naps[:4] == [0.0] * 4
    assert naps[4] == NAP_SECONDS_MIN


def test_who_knows_how_long_it_takes_sleeps_through_most_of_it_once() -> None:
    first, second, *_ = naps_of(3, usual_seconds=4e-3)
    assert 2e-3 < first < 4e-3
    assert second < 1e-3
    assert naps_of(1, usual_seconds=60.0) == [FIRST_NAP_SECONDS_MAX]
    assert naps_of(1, usual_seconds=1e-6) == [NAP_SECONDS_MIN]


def nap_for_ever(patience: Patience) -> None:
    while True:
        patience.nap(LOCK, lambda _: "process 7 (celery)")


@pytest.mark.parametrize("usual_seconds", [0.0, 1e-3, 60.0])
def test_every_wait_is_bounded_and_names_the_holder(usual_seconds: float) -> None:
    files = Napping()
    patience = Patience(files, 0.25, yields=4, usual_seconds=usual_seconds)
    with pytest.raises(LockTimeout) as raised:
        nap_for_ever(patience)
    assert raised.value.holder == "process 7 (celery)"
    assert 0.25 <= sum(files.naps) <= 0.25 + FIRST_NAP_SECONDS_MAX


def seen_naps(log: EventSourcingEngine, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    naps: list[float] = []
    monkeypatch.setattr(log._log._session.files, "nap", naps.append)
    return naps


def expect_crowd(log: EventSourcingEngine, crowd: int, sync_seconds: float) -> None:
    durability = log._log._durability
    durability._company, durability._crowd, durability._sync_seconds = 8, crowd, sync_seconds


def test_a_leader_with_company_lets_its_sync_serve_those_who_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_log(tmp_path) as log, open_log(tmp_path) as other:
        log.append("note", {})
        expect_crowd(log, 4, 60.0)
        came: list[int] = []

        def come(seconds: float) -> None:
            came.append(other.append("late", {}, wait=False).seq)

        monkeypatch.setattr(log._log._session.files, "nap", come)
        monkeypatch.setattr(log._log._session.files, "seconds", lambda: 100.0)
        mine = log.append("note", {})
        assert came == [mine.seq + 1, mine.seq + 2, mine.seq + 3]  # four: the crowd is complete
        assert log.durable_seq == came[-1]


def test_a_leader_waits_for_a_crowd_no_longer_than_half_a_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_log(tmp_path) as log:
        log.append("note", {})
        files, now = log._log._session.files, 100.0

        def nap(seconds: float) -> None:
            nonlocal now
            now += seconds

        monkeypatch.setattr(files, "nap", nap)
        monkeypatch.setattr(files, "seconds", lambda: now)
        expect_crowd(log, 100, 1e-3)
        log.append("note", {})
        assert 100.0005 <= now < 100.0006
        expect_crowd(log, 100, 3600.0)
        log.append("note", {})
        assert now < 100.01


@pytest.mark.parametrize(
    "crowd, sync_seconds", [(100, 1e-4), (1, 60.0)], ids=["a fast disk", "nobody is missing"]
)
def test_a_leader_does_not_wait_where_it_does_not_pay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crowd: int, sync_seconds: float
) -> None:
    with open_log(tmp_path) as log:
        log.append("note", {})
        naps = seen_naps(log, monkeypatch)
        expect_crowd(log, crowd, sync_seconds)
        log.append("note", {})
        assert naps == []


def test_who_writes_alone_never_waits_for_a_crowd(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_log(tmp_path) as log:
        for _ in range(9):  # what opening was taken for is forgotten by then
            log.append("note", {})
        durability = log._log._durability
        assert durability._company == 0
        durability._crowd, durability._sync_seconds = 100, 60.0
        naps = seen_naps(log, monkeypatch)
        log.append("note", {}, wait=False)
        log.append("note", {})
        assert naps == []


def test_others_events_are_company(tmp_path: Path) -> None:
    with open_log(tmp_path) as log, open_log(tmp_path) as other:
        for _ in range(9):
            log.append("note", {})
        other.append("note", {})
        assert log._log._durability._company == 0
        log.append("note", {})
        assert log._log._durability._company == 7


def test_a_sync_lock_that_was_closed_is_opened_again_and_a_strangers_lock_stays(
    tmp_path: Path,
) -> None:
    with open_log(tmp_path) as log:
        log.append("note", {})
        handles = log._log._session.current()
        assert handles is not None
        (tmp_path / "stranger").touch()
        stranger = os.open(tmp_path / "stranger", os.O_RDWR)
        fcntl.flock(stranger, fcntl.LOCK_EX)
        os.dup2(stranger, handles.sync_lock.fd)  # the number means the stranger's lock by now
        assert log.append("note", {}).seq == 3
        again = os.open(tmp_path / "stranger", os.O_RDWR)
        with pytest.raises(BlockingIOError):
            fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for fd in (stranger, handles.sync_lock.fd, again):
            os.close(fd)


def append_while_locked(log: EventSourcingEngine, directory: Path, change: object) -> list[object]:
    """Append in a thread that finds the lock taken; change something; let go; return what came of it."""
    assert callable(change)
    files = log._log._session.files
    waits = threading.Event()
    results: list[object] = []
    real = files.nap

    def nap(seconds: float) -> None:
        waits.set()
        real(seconds)

    def append() -> None:
        try:
            results.append(log.append("waited", {}, wait=False).seq)
        except LogMoved as error:
            results.append(error)

    files.nap = nap  # type: ignore[method-assign]  # the seam is there for this
    lock = os.open(f"{active(directory)}.d/append.lock", os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    thread = threading.Thread(target=append)
    thread.start()
    try:
        wait_until(waits.is_set)
        change()
    finally:
        os.close(lock)
        thread.join()
    return results


def test_a_log_that_moved_during_the_wait_gets_no_event(tmp_path: Path) -> None:
    path = active(tmp_path)
    with open_log(tmp_path) as log:
        log.append("note", {})
        (result,) = append_while_locked(log, tmp_path, lambda: path.rename(f"{path}.1"))
        assert isinstance(result, LogMoved)
        assert b"waited" not in Path(f"{path}.1").read_bytes()


def test_a_lock_closed_during_the_wait_is_opened_again(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.append("note", {})
        handles = log._log._session.current()
        assert handles is not None
        (tmp_path / "stranger").touch()
        stranger = os.open(tmp_path / "stranger", os.O_RDWR)
        fcntl.flock(stranger, fcntl.LOCK_EX)
        results = append_while_locked(
            log, tmp_path, lambda: os.dup2(stranger, handles.append_lock.fd)
        )
        assert results == [3]
        again = os.open(tmp_path / "stranger", os.O_RDWR)
        with pytest.raises(BlockingIOError):
            fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for fd in (stranger, handles.append_lock.fd, again):
            os.close(fd)
