"""Let one thread of a process through at a time, and survive an exception at any bytecode.

A lock from ``threading`` is taken in one step and known to be taken in the next; an exception between
the two, as a soft time limit raises it, would leave it locked for ever. Here both are one step: entering
one's own id where nobody's stands. So giving back may be tried as often as one likes, by whoever is not
sure, and only ever gives back what is one's own.
"""

from __future__ import annotations

import threading

from ..errors import LockTimeout
from ..files import Opened
from .locks import Patience


class Claim:
    """Belong to one thread of this process, or to none."""

    def __init__(self) -> None:
        self._owner: dict[str, int] = {}

    def take(self) -> bool:
        """Take it if it is free; tell whether it is this thread's now. It does not count."""
        me = threading.get_ident()
        return self._owner.setdefault("", me) == me

    def is_mine(self) -> bool:
        """Tell whether this thread has it."""
        return self._owner.get("") == threading.get_ident()

    def give_back(self) -> None:
        """Give it back if it is this thread's."""
        if self.is_mine():
            self._owner.pop("", None)


def outlast(claim: Claim, patience: Patience, path: str) -> None:
    """Take a claim for good once nobody has it, or after the bound: what is closed stays closed."""
    try:
        while not claim.take():
            patience.nap(Opened(-1, path, 0, 0), lambda _: "another thread of this process")
    except LockTimeout:
        pass  # it is being closed all the same; the thread that hangs finds its descriptors gone
