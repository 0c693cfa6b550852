"""Wait for a condition with a deadline; a test never sleeps and hopes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

POLL_SECONDS = 0.02
# For what should come at once. It tells a hang from a machine that does much else; no test measures with it.
PATIENCE_SECONDS = 90.0


class DeadlinePassed(AssertionError):
    """A condition did not come true in time."""


def wait_until(
    condition: Callable[[], T | None],
    *,
    seconds: float = PATIENCE_SECONDS,
    what: str | Callable[[], str] = "the condition",
) -> T:
    """Return the first truthy value of *condition*, asked every 20 ms.

    *what* names the condition in the failure; given as a callable it is asked only then, so it can
    quote the log of the process that was waited for.

    Raises:
        DeadlinePassed: it was still falsy after *seconds*.
    """
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= deadline:
            told = what if isinstance(what, str) else what()
            raise DeadlinePassed(
                f"after {seconds:g} s still waiting for {told}; last value: {value!r}"
            )
        time.sleep(POLL_SECONDS)
