"""No memory at any single allocation of an append or a seal: nothing is torn, doubled or left locked.

A process that gets no memory at all any more cannot even give a lock back; the lock goes when it does.
"""

from __future__ import annotations

import signal
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from celery_commander.engine import EventSourcingEngine, Status

from .forked import Forked
from .logs import everything, open_log

_testcapi = pytest.importorskip("_testcapi")  # CPython's own, where it is installed with its tests

NTH_MAX = 2_000


def without_memory(work: Callable[[], object], nth: int) -> str:
    """Work while the n-th allocation fails; tell what came of it."""
    try:
        _testcapi.set_nomemory(nth, nth + 1)
        try:
            work()
        finally:
            _testcapi.remove_mem_hooks()
    except MemoryError:
        return "no memory"
    except (TypeError, SystemError):
        return "confused"  # the interpreter's own words for it, in a few of its places
    return "done"


def starve(directory: Path, name: str) -> Counter[str]:
    threading.excepthook = lambda _: (
        None
    )  # the flusher is struck too, and started again by the next append
    told: Counter[str] = Counter()
    with open_log(directory) as log, open_log(directory) as other:
        log.append("warm", {})
        nth = 1
        while nth < NTH_MAX:
            work: Callable[[], object] = partial(appended, log, nth, name != "ride along")
            before = log.append("before", {}, wait=False).seq
            outcome = without_memory(log.seal if name == "seal" else work, nth)
            told[outcome] += 1
            after = other.append("other", {}, wait=False).seq  # no lock is left, for nobody
            assert after - before in (1, 2), (nth, outcome)
            log.append("again", {}, wait=False)
            assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set(), nth
            nth += 1 if nth < 200 else 19
        assert log.verify_integrity().status is Status.OK_UNANCHORED
        indexes = [event.payload["nth"] for event in log.history("r")]
        assert indexes == sorted(set(indexes))
        assert len(indexes) >= (0 if name == "seal" else told["done"])
        everything(log)
    return told


def appended(log: EventSourcingEngine, nth: int, wait: bool) -> None:
    log.append("note", {"nth": nth}, run_id="r", wait=wait)


@pytest.mark.parametrize("name", ["append", "ride along", "seal"])
def test_no_memory_at_any_allocation_leaves_the_log_usable_by_everybody(
    tmp_path: Path, name: str
) -> None:
    with Forked(lambda _: starve(tmp_path, name)) as child:
        told = child.result()
    assert told["no memory"] > 40
    assert told["done"] > (0 if name == "seal" else 10)
