"""An exception may strike at any bytecode of an append: the lock is free, the chain is whole, once."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from celery_commander.engine import EventSourcingEngine, LogUnavailable, Status

from .forked import Forked
from .logs import open_log


class SoftLimit(Exception):
    pass


class StrikeAt:
    """Raise at the n-th bytecode of the log's own code, as a signal handler would."""

    def __init__(self, nth: int, error: type[BaseException] = SoftLimit) -> None:
        self.left = nth
        self.error = error
        self.struck = False

    def __call__(self, frame: FrameType, event: str, arg: object) -> Any:
        if not frame.f_globals.get("__name__", "").startswith("celery_commander."):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            self.left -= 1
            if self.left == 0:
                self.struck = True
                sys.settrace(None)
                frame.f_trace = None
                raise self.error
        return self


def struck_append(
    log: EventSourcingEngine,
    nth: int,
    append: Callable[[], object],
    error: type[BaseException] = SoftLimit,
) -> bool:
    """Append while an exception strikes at the n-th bytecode; tell whether it came that far."""
    strike = StrikeAt(nth, error)
    sys.settrace(strike)
    try:
        append()
    except error:
        pass
    finally:
        sys.settrace(None)
    return strike.struck


@pytest.mark.parametrize("error", [SoftLimit, KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("wait", [True, False])
def test_an_exception_at_any_bytecode_leaves_the_log_usable_by_everybody(
    tmp_path: Path, wait: bool, error: type[BaseException]
) -> None:
    """See celery/celery#1762 and #3914: the exception of a soft limit landed outside the body."""
    stride = 3 if error is SoftLimit else 11
    with open_log(tmp_path) as log, open_log(tmp_path) as other:
        log.append("warm", {}, wait=wait)
        nth, struck = 1, True
        while struck:
            before = log.head()[0]
            append = partial(log.append, "note", {"nth": nth}, run_id="r", wait=wait)
            struck = struck_append(log, nth, append, error)
            after = other.append("other", {}, wait=False).seq  # the lock is free for another opener
            assert after - before in (1, 2), f"bytecode {nth}"
            log.append("again", {}, wait=False)
            assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set(), f"bytecode {nth}"
            nth += stride if nth > 200 else 1
        log.sync()
        assert nth > 300
        assert log.verify_integrity().status is Status.OK_UNANCHORED
        seen = [event.payload["nth"] for event in log.history("r")]
        assert len(seen) == len(set(seen))
        assert seen[-1] == nth - stride


def test_an_exception_at_any_bytecode_of_a_seal_leaves_the_log_usable_by_everybody(
    tmp_path: Path,
) -> None:
    with open_log(tmp_path) as log, open_log(tmp_path) as other:
        nth, struck, count = 1, True, 0
        while struck:
            log.append("note", {"nth": nth}, wait=False)
            struck = struck_append(log, nth, log.seal)
            other.append("other", {}, wait=False)  # no lock is left, the head is agreed
            log.append("again", {}, wait=False)
            assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set(), f"bytecode {nth}"
            nth, count = nth + max(7, nth // 60), count + 1  # a seal lists those before it
        assert nth > 2_000
        assert log.seal()  # nor is a half seal in the way of the next
        assert log.verify_integrity().status is Status.OK_UNANCHORED
        kinds = [event.type for event in log.read_from(None)]
        assert [kinds.count(kind) for kind in ("note", "other", "again")] == [count] * 3


def test_an_exception_in_a_history_leaves_the_index_right(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        nth, struck = 1, True
        while struck:
            log.append("note", {"nth": nth}, run_id=f"r-{nth}", wait=False)
            struck = struck_append(log, nth, partial(log.history, f"r-{nth}"))
            assert log.history("nobody") == []  # goes on from wherever the struck one was left
            nth += 1
        assert nth > 300
        for each in range(1, nth):
            assert [event.payload["nth"] for event in log.history(f"r-{each}")] == [each]


def test_a_storm_of_signals_neither_tears_nor_doubles_an_event(tmp_path: Path) -> None:
    def stormed(child: Forked) -> tuple[int, int]:
        is_appending = False

        def handler(number: int, frame: object) -> None:
            nonlocal is_appending
            if is_appending:  # elsewhere it would strike the test and not the log
                is_appending = False
                raise SoftLimit

        signal.signal(signal.SIGUSR1, handler)
        done = interrupted = 0
        with open_log(tmp_path) as log:
            child.say("ready")
            for index in range(300):
                try:
                    is_appending = True
                    log.append("note", {"i": index}, run_id="r")
                    is_appending = False
                    done += 1
                except SoftLimit:
                    interrupted += 1
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        return done, interrupted

    child = Forked(stormed)
    assert child.hear() == "ready"
    ended = threading.Event()

    def storm() -> None:
        while not ended.wait(0.0007):
            os.kill(child.pid, signal.SIGUSR1)

    thread = threading.Thread(target=storm)
    thread.start()
    try:
        fine, result = child.hear()
    finally:
        ended.set()
        thread.join()
    assert fine, result
    done, interrupted = result
    assert interrupted > 0
    with open_log(tmp_path) as log:
        seen = [event.payload["i"] for event in log.history("r")]
        assert seen == sorted(set(seen))
        assert done <= len(seen) <= 300
        assert log.verify_integrity().status is Status.OK_UNANCHORED


def test_a_handler_that_appends_in_the_middle_of_an_append_is_refused_not_hung(
    tmp_path: Path,
) -> None:
    with open_log(tmp_path) as log:
        with pytest.raises(LogUnavailable, match="handler"):
            log._log._appender.under_lock(lambda handles: log.append("nested", {}))
        assert log.append("note", {}).seq == 2


def test_the_flusher_takes_no_signals(tmp_path: Path) -> None:
    others = set(threading.enumerate())  # other logs of this process have theirs
    with open_log(tmp_path) as log:
        log.append("note", {}, wait=False)
        ours = set(threading.enumerate()) - others
        (flusher,) = (thread for thread in ours if thread.name == "wal-flusher")
        status = Path(f"/proc/self/task/{flusher.native_id}/status").read_text()
        blocked = int(
            next(r for r in status.splitlines() if r.startswith("SigBlk:")).split()[1], 16
        )
        assert blocked & (1 << (signal.SIGUSR1 - 1))
        assert blocked & (1 << (signal.SIGTERM - 1))
