"""From a chosen moment the kernel itself refuses to sync, to a process and all that it forks."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from celery_commander.engine import EventSourcingEngine, LogError, LogPoisoned, NewEvent, Status
from tests.engine.forked import Forked

from . import seccomp

pytestmark = [
    pytest.mark.crash,
    pytest.mark.skipif(not seccomp.is_known(), reason="needs a kernel with seccomp"),
]

SYNCS = ("fsync", "fdatasync")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "events.wal"


def refused(log: EventSourcingEngine, *, wait: bool = True) -> str:
    """Return the name of the error with which an append ends."""
    try:
        log.append("note", {"i": "refused"}, run_id="r", wait=wait)
        log.sync()
    except LogError as error:
        return type(error).__name__
    return "acknowledged"


def test_nothing_is_acknowledged_by_any_process_once_the_kernel_refuses_to_sync(path: Path) -> None:
    def struck(child: Forked) -> list[str]:
        with EventSourcingEngine.open(path) as log:
            log.append("note", {"i": 0}, run_id="r")
            log.append("note", {"i": 1}, run_id="r", wait=False)  # its flusher is running by now
            seccomp.refuse(SYNCS, errno.EIO)
            first = refused(log)
            with Forked(lambda _: refused(log)) as grandchild:
                forked = str(grandchild.result())
            told = [first, refused(log), refused(log, wait=False), forked]
            child.say("struck")
            assert child.hear() == "end"
            with pytest.raises(LogPoisoned):
                log.close()
        return told

    EventSourcingEngine.open(path).close()
    with EventSourcingEngine.open(path) as other, Forked(struck) as child:
        other.append("note", {"i": "of another"})
        assert child.hear() == "struck"
        assert refused(other) == "LogPoisoned"  # open before, and its own syncs would succeed
        child.say("end")
        assert child.result() == ["LogPoisoned"] * 4
    with EventSourcingEngine.open(path) as later:
        assert refused(later) == "LogPoisoned"
        assert later.verify_integrity().status is Status.OK_UNANCHORED
        durable = [event.payload.get("i") for event in later.read_from(None)]
        assert "refused" not in durable
        assert {0, "of another"} <= set(durable)
    with EventSourcingEngine.open(path, boot_id="the next") as rebooted:
        assert refused(rebooted) == "LogPoisoned"
        assert rebooted.repair("somebody who looked") is not None
        assert rebooted.append("note", {"i": "after"}).payload == {"i": "after"}


def test_a_log_is_not_made_where_the_kernel_refuses_to_sync(path: Path) -> None:
    def struck(_: Forked) -> list[object]:
        seccomp.refuse(SYNCS, errno.EIO)
        try:
            EventSourcingEngine.open(path)
        except LogError as error:
            return [type(error).__name__, path.exists()]
        return ["made"]

    with Forked(struck) as child:
        told = child.result()
    assert told[0] != "made", told
    with EventSourcingEngine.open(path) as log:  # once the disk is well again
        log.append("note", {})
        assert log.verify_integrity().status is Status.OK_UNANCHORED


@pytest.mark.parametrize("work", ["seal", "snapshot", "compact"])
def test_no_work_on_the_files_counts_half_once_the_kernel_refuses_to_sync(
    path: Path, work: str
) -> None:
    with EventSourcingEngine.open(path) as log:
        log.append_many([NewEvent("note", {"i": number}, "r") for number in range(5)])
        log.snapshot("first")

    def struck(_: Forked) -> str:
        with EventSourcingEngine.open(path) as log:
            seccomp.refuse(SYNCS, errno.EIO)
            works = {
                "seal": log.seal,
                "snapshot": lambda: log.snapshot("second"),
                "compact": lambda: log.compact("first"),
            }
            try:
                works[work]()
            except LogError as error:
                os._exit(len(str(error)) == 0)
        return "it was done"

    with Forked(struck) as child, pytest.raises(EOFError):
        child.hear()
    with EventSourcingEngine.open(path) as log:
        assert log.verify_integrity().status is Status.OK_UNANCHORED
        if refused(log) == "LogPoisoned":
            log.repair("somebody who looked")
        log.append("note", {"i": "after"}, run_id="r")
        assert [event.payload["i"] for event in log.history("r")][:5] == list(range(5))
        assert log.verify_integrity().status is Status.OK_UNANCHORED
