"""Look at processes through /proc, and end exactly those that a test started."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from pathlib import Path

from .waiting import PATIENCE_SECONDS, wait_until

_PROC = Path("/proc")


def alive(pid: int) -> bool:
    """Tell whether *pid* still runs; a zombie that nobody reaped does not."""
    return _state_and_parent(pid) is not None


def children(pid: int) -> list[int]:
    """Return the living direct children of *pid*, oldest first."""
    found = []
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            known = _state_and_parent(int(entry.name))
            if known is not None and known[1] == pid:
                found.append(int(entry.name))
    return sorted(found)


def descendants(pid: int) -> list[int]:
    """Return the living descendants of *pid*, parents before their children."""
    found: list[int] = []
    for child in children(pid):
        found += [child, *descendants(child)]
    return found


def kill(pid: int, sign: signal.Signals = signal.SIGKILL) -> None:
    """Send *sign* to one process; one that is gone already is fine."""
    try:
        os.kill(pid, sign)
    except ProcessLookupError:
        pass  # it ended first, which is what the caller wanted


def kill_group(pgid: int, sign: signal.Signals = signal.SIGKILL) -> None:
    """Send *sign* to a whole process group; one that is gone already is fine."""
    try:
        os.killpg(pgid, sign)
    except ProcessLookupError:
        pass  # see kill()


def wait_gone(pids: Iterable[int], *, seconds: float = PATIENCE_SECONDS) -> None:
    """Wait until none of *pids* runs any more."""
    watched = list(pids)
    wait_until(
        lambda: not any(alive(pid) for pid in watched),
        seconds=seconds,
        what=lambda: f"the end of {[pid for pid in watched if alive(pid)]}",
    )


def _state_and_parent(pid: int) -> tuple[str, int] | None:
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command stands in parentheses and may hold anything, parentheses too: cut after the last.
    state, parent = text[text.rindex(")") + 2 :].split()[:2]
    return None if state in "ZX" else (state, int(parent))
