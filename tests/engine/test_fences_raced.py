"""A fence that comes between the look and the lock is found all the same, however often that happens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from celery_commander.engine import EventSourcingEngine, Fenced, Settings
from celery_commander.engine.files import Files


class Raced(Files):
    """Do something right before each try to take the append lock."""

    def __init__(self) -> None:
        self.acts: list[Callable[[], object]] = []
        self.lock: int | None = None

    def try_lock(self, fd: int) -> bool:
        if fd == self.lock and self.acts:
            self.acts.pop(0)()
        return super().try_lock(fd)


@pytest.fixture
def raced(tmp_path: Path) -> tuple[Raced, EventSourcingEngine, EventSourcingEngine]:
    settings, files = Settings(state_directory=tmp_path), Raced()
    log = EventSourcingEngine.open(settings, files=files)
    other = EventSourcingEngine.open(settings)
    log.append("step.started", {}, run_id="r", token=1, n=1)
    handles = log._log._session.current()
    assert handles is not None
    files.lock = handles.append_lock.fd
    return files, log, other


def fence(other: EventSourcingEngine, run_id: str, token: int) -> Callable[[], object]:
    return lambda: other.append("run.fenced", {}, run_id=run_id, token=token)


@pytest.mark.parametrize("others_first", [0, 1, 2])
def test_a_fence_in_front_of_the_lock_is_found_under_it(
    raced: tuple[Raced, EventSourcingEngine, EventSourcingEngine], others_first: int
) -> None:
    files, log, other = raced
    files.acts = [fence(other, f"x-{number}", 1) for number in range(others_first)]
    files.acts.append(fence(other, "r", 2))
    before = len(other.history("r"))
    with pytest.raises(Fenced):
        log.append("step.completed", {}, run_id="r", token=1, n=2)
    assert files.acts == []
    assert [event.type for event in other.history("r")[before:]] == ["run.fenced"]
    log.close()
    other.close()


def test_a_fence_that_another_thread_has_read_already_is_found_too(
    raced: tuple[Raced, EventSourcingEngine, EventSourcingEngine],
) -> None:
    files, log, other = raced

    def fenced_and_read() -> None:
        fence(other, "r", 2)()
        log._log.index.catch_up()  # as the thread of another run does

    files.acts = [fenced_and_read]
    with pytest.raises(Fenced):
        log.append("step.completed", {}, run_id="r", token=1, n=2)
    log.close()
    other.close()
