"""Say when a step that raised is tried again, in the same attempt of its run."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple, Self

RETRIES_MAX: Final = 1000
_MAX_DOUBLINGS: Final = 64


class Tries(NamedTuple):
    """Count the tries of a call that have failed; `acted` says that one of them may have had the effect."""

    failed: int
    acted: bool


NO_TRIES: Final = Tries(0, acted=False)


class Done(NamedTuple):
    """Hold what a try returned, encoded."""

    result: Any


class Failed(NamedTuple):
    """Say that a try raised and that another follows, in `seconds`."""

    tries: Tries
    seconds: float

    def told(self, step: int, now: datetime) -> dict[str, Any]:
        """Return what the log keeps of it, so that another process can go on: beside the exception itself."""
        return {
            "step": step,
            "tries": self.tries.failed,
            "acted": self.tries.acted,
            "due": (now + timedelta(seconds=self.seconds)).isoformat(),
        }


@dataclass(frozen=True, slots=True)
class Retrying:
    """Hold how often, after what and with which waits a step is tried again."""

    retries: int = 0
    retry_on: tuple[type[BaseException], ...] = ()
    backoff: float = 1.0
    backoff_max: float = 60.0
    jitter: bool = True

    @classmethod
    def of(
        cls,
        step: str,
        *,
        retries: object = 0,
        retry_on: object = (),
        backoff: object = 1.0,
        backoff_max: object = 60.0,
        jitter: object = True,
    ) -> Self:
        """Return the options of a step, checked where it is declared.

        Raises:
            TypeError, ValueError: one of them cannot work; it names the step and the option.

        """
        if isinstance(retries, bool) or not isinstance(retries, int):
            raise TypeError(f"retries of step {step} takes a whole number, not {retries!r}")
        if not 0 <= retries <= RETRIES_MAX:
            raise ValueError(f"retries of step {step} is {retries}; 0 to {RETRIES_MAX} can work")
        listed = retry_on if isinstance(retry_on, tuple) else (retry_on,)
        if not all(isinstance(item, type) and issubclass(item, Exception) for item in listed):
            raise TypeError(f"retry_on of step {step} takes exception classes, not {retry_on!r}")
        if bool(retries) != bool(listed):
            raise ValueError(
                f"step {step} has {'retries' if retries else 'retry_on'} alone; give both: how often, and after which"
                " exceptions it is safe to try again"
            )
        if not isinstance(jitter, bool):
            raise TypeError(f"jitter of step {step} takes True or False, not {jitter!r}")
        first = checked_seconds(step, "backoff", backoff)
        longest = checked_seconds(step, "backoff_max", backoff_max)
        return cls(retries, listed, first, longest, jitter)

    @property
    def longest(self) -> float:
        """Return the longest wait, in seconds."""
        return self.backoff_max

    def after(
        self, error: BaseException, tries: Tries, *, not_done: tuple[type[BaseException], ...]
    ) -> Failed | None:
        """Return what follows a try that raised; None when the step has failed."""
        if tries.failed >= self.retries or not isinstance(error, self.retry_on):
            return None
        acted = tries.acted or not isinstance(error, not_done)
        return Failed(Tries(tries.failed + 1, acted), self._wait(tries.failed))

    def _wait(self, failed: int) -> float:
        """Double the wait with each failed try, up to its bound; "equal jitter": half of it is drawn.

        See M. Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.
        """
        whole = min(self.backoff * 2.0 ** min(failed, _MAX_DOUBLINGS), self.backoff_max)
        return whole * random.uniform(0.5, 1.0) if self.jitter else whole


NEVER: Final = Retrying()
RETRYING: Final = ("retries", "retry_on", "backoff", "backoff_max", "jitter")


def checked_seconds(step: str, option: str, value: object) -> float:
    """Return an option that is a time in seconds, 0 or more.

    Raises:
        TypeError, ValueError: it is none.

    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{option} of step {step} takes seconds, not {value!r}")
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{option} of step {step} is {value}; 0 or more seconds can work")
    return float(value)
