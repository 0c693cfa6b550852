"""Keep Python's signal handlers out of a section that must not be cut short.

Celery's soft time limit is an exception that a signal handler raises wherever the main thread is. While that
thread blocks the signal, it waits; threads of ours block all signals, so nobody else gets it. A thread of the
user's that does not block it may still make the main thread run its handler: a section must survive that too.
"""

from __future__ import annotations

import importlib
import signal
import threading
from collections.abc import Callable, Iterable
from typing import cast

Mask = set[int]

_DEFERRED = frozenset(
    {
        signal.SIGHUP,
        signal.SIGINT,
        signal.SIGQUIT,
        signal.SIGUSR1,
        signal.SIGUSR2,
        signal.SIGALRM,
        signal.SIGTERM,
    }
)


def current_mask() -> Mask | None:
    """Return what the main thread blocks; None in every other thread, which runs no handlers."""
    if threading.get_ident() != threading.main_thread().ident:
        return None
    return set_mask(signal.SIG_BLOCK, ())


def defer(mask: Mask | None) -> None:
    """Block what raises. Whoever does sets the mask that was asked for before again, in a finally."""
    if mask is not None:
        set_mask(signal.SIG_BLOCK, _DEFERRED)


def _without_enums() -> Callable[[int, Iterable[int]], Mask]:
    """Return the call below `signal`'s own, which makes an enum of each of 64 signals: 10 µs."""
    try:
        found = importlib.import_module("_signal").pthread_sigmask
    except (ImportError, AttributeError):
        found = signal.pthread_sigmask
    return cast("Callable[[int, Iterable[int]], Mask]", found)


set_mask = _without_enums()
"""Set the mask, as `signal.pthread_sigmask` does. A handler that waited runs inside this call, and may raise.

Called from a finally directly: a function around it could be interrupted where it begins, and the mask would stay.
"""
