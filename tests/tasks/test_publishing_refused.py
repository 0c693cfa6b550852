"""A publish whose registration raised, although it was written, is cancelled: a second try is the only one."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from celery import Celery

from celery_commander.engine import LockTimeout, LogPoisoned, LogUnavailable, State
from tests.kit import wait_until
from tests.tasks.test_publishing import events, history, make_app, waiting


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Hold a lock as another process would."""
    fd = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def locks(app: Celery) -> Path:
    directory: Path = app.commander.engine.directory
    return directory


def test_when_the_wait_for_the_disk_takes_too_long_the_run_is_cancelled_at_once(
    tmp_path: Path,
) -> None:
    app = make_app(tmp_path, lock_seconds=0.2)
    app.tasks["work"].delay("first")
    (first,) = waiting(app)
    with held(locks(app) / "sync.lock"), pytest.raises(LockTimeout):
        app.tasks["work"].delay("second")

    (created, cancelled) = events(app)[-2:]
    assert (created[0], cancelled[0]) == ("run.created", "run.cancelled")
    state = history(app, str(created[1])).state
    assert state is not None
    assert (state.state, state.delivered) == (State.COMPENSATED, True)
    assert "LockTimeout" in str(state.cancel_requested)
    assert waiting(app) == []
    assert created[1] != first.headers["id"]


def test_when_nothing_was_written_nothing_is_cancelled(tmp_path: Path) -> None:
    app = make_app(tmp_path, lock_seconds=0.2)
    app.tasks["work"].delay("first")
    with held(locks(app) / "append.lock"), pytest.raises(LockTimeout):
        app.tasks["work"].delay("second")

    assert [event for event, _ in events(app)] == ["run.created", "task.sent"]


def test_when_the_log_is_poisoned_the_run_is_cancelled_once_it_is_repaired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_app(tmp_path)
    app.tasks["work"].delay("first")
    waiting(app)

    def refuse(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", refuse)
        with pytest.raises(LogPoisoned):
            app.tasks["work"].delay("second")
    assert events(app)[-1][0] == "run.created"
    assert app.commander.engine.repair("me") is not None

    wait_until(lambda: events(app)[-1][0] == "run.cancelled", what="the run to be cancelled")
    run_id = str(events(app)[-1][1])
    state = history(app, run_id).state
    assert state is not None
    assert (state.state, state.delivered) == (State.COMPENSATED, True)
    assert [event for event, of in events(app) if of == run_id] == ["run.created", "run.cancelled"]
    assert waiting(app) == []


def test_a_second_publication_under_a_taken_id_that_is_refused_cancels_nothing(
    tmp_path: Path,
) -> None:
    app = make_app(tmp_path, lock_seconds=0.2)
    run_id = app.tasks["work"].delay("first").id
    with held(locks(app) / "sync.lock"), pytest.raises(LogUnavailable):
        app.tasks["work"].apply_async(("again",), task_id=run_id)

    assert "run.cancelled" not in [event for event, _ in events(app)]
    state = history(app, run_id).state
    assert state is not None
    assert state.state is State.PENDING
