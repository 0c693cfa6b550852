"""Interrupt a step that takes too long.

Only the main thread of a process can be interrupted, by a signal: in a prefork child and in the solo pool the body runs
there. What is interrupted may have had its effect, so the step has failed in the same way as one that raised.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from .errors import StepTimeout, TimeoutNotPossible
from .retrying import checked_seconds


def refuse_wrong_timeout(step: str, timeout: object) -> None:
    """Return if a step can be declared with this timeout.

    Raises:
        TypeError, ValueError: it is no time in seconds above 0.

    """
    if timeout is not None and checked_seconds(step, "timeout", timeout) == 0:
        raise ValueError(f"timeout of step {step} is 0; leave it out where there is none")


def refuse_impossible(name: str, seconds: float | None) -> None:
    """Return if a step with this timeout can be called here.

    Raises:
        TimeoutNotPossible: this is not the main thread.

    """
    if seconds is not None and threading.current_thread() is not threading.main_thread():
        raise TimeoutNotPossible(name)


@contextmanager
def limited(name: str, seconds: float | None) -> Iterator[None]:
    """Raise StepTimeout inside the block once it has taken `seconds`; a timer that runs already goes on afterwards.

    Raises:
        TimeoutNotPossible: this is not the main thread.

    """
    if seconds is None:
        yield
        return
    refuse_impossible(name, seconds)
    is_over = False

    def strike(_signal: int, _frame: FrameType | None) -> None:
        if not is_over:
            raise StepTimeout(name, seconds)

    began = time.monotonic()
    left, interval = signal.setitimer(signal.ITIMER_REAL, 0)
    handler = signal.signal(signal.SIGALRM, strike)
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, seconds)
            yield
        finally:
            # It may strike just before this; then the outer block still puts all back.
            is_over = True
    finally:
        is_over = True
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        if left:
            rest = max(left - (time.monotonic() - began), 0.001)
            signal.setitimer(signal.ITIMER_REAL, rest, interval)
