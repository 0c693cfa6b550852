"""Keep Python's signal handlers out of a locked section.

Celery's soft time limit is an exception that a signal handler raises at whatever bytecode the
main thread has reached. While a lock is held that must wait: the main thread blocks the signals
for the section and takes them right after it. Other threads never run handlers; but a signal that
the kernel gives to one of *them* still makes the main thread run its handler, so a section must
also survive an exception at any point. The shield makes that rare, not impossible.
"""

from __future__ import annotations

import importlib
import signal
import threading
from collections.abc import Callable, Iterable
from typing import TypeVar, cast

T = TypeVar("T")

_DEFERRED = tuple(
    int(each)  # an enum is looked up at every use
    for each in (
        signal.SIGHUP,
        signal.SIGINT,
        signal.SIGQUIT,
        signal.SIGUSR1,
        signal.SIGUSR2,
        signal.SIGALRM,
        signal.SIGTERM,
    )
)


def _raw_set_mask() -> Callable[[int, Iterable[int]], set[int]]:
    """Return the call below signal's wrapper, which makes an enum of every signal: 10 µs an append."""
    try:
        return cast(
            "Callable[[int, Iterable[int]], set[int]]",
            importlib.import_module("_signal").pthread_sigmask,
        )
    except (ImportError, AttributeError):
        return signal.pthread_sigmask


_set_mask = _raw_set_mask()


def shielded(section: Callable[[], T]) -> T:
    """Run a section with signal handlers deferred; in any thread but the main one just run it."""
    if threading.get_ident() != threading.main_thread().ident:
        return section()
    before = _set_mask(signal.SIG_BLOCK, ())
    is_restored = False
    try:
        try:
            _set_mask(signal.SIG_BLOCK, _DEFERRED)
            return section()
        finally:
            _set_mask(signal.SIG_SETMASK, before)
            is_restored = True
    finally:
        if (
            not is_restored
        ):  # an exception hit the lines above, or a handler raised in the first call
            _set_mask(signal.SIG_SETMASK, before)


def start_deaf(thread: threading.Thread) -> None:
    """Start a thread of ours that no signal is ever given to, not even in its first moment."""
    before = _set_mask(signal.SIG_BLOCK, ())
    try:
        try:
            _set_mask(signal.SIG_BLOCK, signal.valid_signals())
            thread.start()  # a thread inherits the mask of the one that starts it
        finally:
            _set_mask(signal.SIG_SETMASK, before)
    finally:
        _set_mask(signal.SIG_SETMASK, before)  # again: an exception may have hit the line above
