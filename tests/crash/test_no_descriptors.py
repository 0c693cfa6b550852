"""No descriptors left, for real: an error of ours or none, and all is well once there are some again."""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from celery_commander.engine import CommanderError, EventSourcingEngine, Status
from tests.engine.forked import Forked
from tests.engine.histories import LIVE, settings_in, tell

pytestmark = pytest.mark.crash

ROOM_MAX = 12


def reopen(log: EventSourcingEngine) -> None:
    EventSourcingEngine.open(log.settings).close()


def verify(log: EventSourcingEngine) -> None:
    assert log.verify_integrity().status in (Status.OK_UNANCHORED, Status.UNREADABLE)


WORKS: dict[str, Callable[[EventSourcingEngine], object]] = {
    "append": lambda log: log.append("note", {}),
    "ride along": lambda log: log.append("note", {}, wait=False),
    "seal": lambda log: log.seal(),
    "history": lambda log: log.history(LIVE[0]),
    "read": lambda log: list(log.read_from(None)),
    "verify": verify,
    "snapshot": lambda log: log.snapshot("another"),
    "compact": lambda log: log.compact("ready"),
    "open": reopen,
}


@contextmanager
def starved(room: int) -> Iterator[None]:
    """Leave this process so many descriptors and no more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 40, hard))
    taken: list[int] = []
    try:
        while True:
            try:
                taken.append(os.dup(0))
            except OSError:
                break
        for _ in range(room):
            os.close(taken.pop())
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for each in taken:
            os.close(each)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def starve(made: Path, scratch: Path, work: Callable[[EventSourcingEngine], object]) -> list[str]:
    """Try the work with no room, then with more and more; return what came of each."""
    told = []
    for room in range(ROOM_MAX):
        shutil.rmtree(scratch, ignore_errors=True)
        shutil.copytree(made, scratch)
        with EventSourcingEngine.open(settings_in(scratch)) as log:
            before = log.append("note", {}).seq if room % 2 else log.head()[0]
            used = descriptors()
            with starved(room):
                try:
                    work(log)
                    told.append("done")
                except CommanderError as error:
                    told.append(type(error).__name__)
            assert log.verify_integrity().status is Status.OK_UNANCHORED
            assert log.append("after", {}).seq > before
            assert len(list(log.read_from(None))) > 0
            assert descriptors() <= used + 20  # what is kept open is bounded, and no try leaks
        EventSourcingEngine.open(settings_in(scratch)).close()
    return told


@pytest.mark.parametrize("name", WORKS)
def test_without_descriptors_nothing_is_lost(tmp_path: Path, name: str) -> None:
    made = tmp_path / "made"
    with EventSourcingEngine.open(settings_in(made)) as log:
        tell(log)
        log.snapshot("first")
        log.compact("first")
        tell(log, prefix="more ")
        log.snapshot("ready")
        log.append("note", {})
    with Forked(lambda _: starve(made, tmp_path / "log", WORKS[name])) as child:
        told = child.result()
    assert told[-1] == "done"
    if name not in ("append", "ride along", "verify"):  # they have theirs, or answer
        assert told[0] != "done"
