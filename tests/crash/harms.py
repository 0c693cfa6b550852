"""Harm a log of three sealed files in one way or another, and tell what is left of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from celery_commander.engine import (
    Damage,
    EventSourcingEngine,
    Status,
)
from tests.engine.logs import flip, lines_of, open_log, segmented
from tests.engine.test_breaks import mark, middle, segments

ACCEPTED = Status.BREAK_ACCEPTED


def before_lf(path: Path, number: int) -> int:
    """Return the offset of a line's LF."""
    return sum(map(len, lines_of(path)[: number + 1])) - 1


def rewritten(path: Path, change: Callable[[list[bytes]], list[bytes]]) -> None:
    path.write_bytes(b"".join(change(lines_of(path))))


# Each harms a log of three sealed files (events 1-5, 6-9... ) and says which notes are lost by it.
HARMS: dict[str, Callable[[Path], Path]] = {}


def harms(name: str) -> Callable[[Callable[[Path], Path]], Callable[[Path], Path]]:
    def add_it(harm: Callable[[Path], Path]) -> Callable[[Path], Path]:
        HARMS[name] = harm
        return harm

    return add_it


@harms("a payload in a sealed file")
def _(path: Path) -> Path:
    second = segments(path)[1]
    flip(second, middle(second))
    return second


@harms("a hash in a sealed file")
def _(path: Path) -> Path:
    second = segments(path)[1]
    flip(second, len(lines_of(second)[0]) + 5)
    return second


@harms("an LF in a sealed file")
def _(path: Path) -> Path:
    second = segments(path)[1]
    flip(second, before_lf(second, 1), 2)
    return second


@harms("the last line of a sealed file")
def _(path: Path) -> Path:
    second = segments(path)[1]
    flip(second, middle(second, len(lines_of(second)) - 1))
    return second


@harms("a header")
def _(path: Path) -> Path:
    second = segments(path)[1]
    flip(second, 80)
    return second


@harms("the header of the first file")
def _(path: Path) -> Path:
    first = segments(path)[0]
    flip(first, 80)
    return first


@harms("the first event")
def _(path: Path) -> Path:
    first = segments(path)[0]
    flip(first, middle(first))
    return first


@harms("zeros over several lines")
def _(path: Path) -> Path:
    second = segments(path)[1]
    content = bytearray(second.read_bytes())
    at = middle(second)
    content[at : at + 200] = bytes(200)
    second.write_bytes(content)
    return second


@harms("a line that was put in")
def _(path: Path) -> Path:
    second = segments(path)[1]
    rewritten(second, lambda lines: [*lines[:2], b"rubbish\n", *lines[2:]])
    return second


@harms("a line that was taken out")
def _(path: Path) -> Path:
    second = segments(path)[1]
    rewritten(second, lambda lines: [*lines[:1], *lines[2:]])
    return second


@harms("a sealed file that was cut")
def _(path: Path) -> Path:
    second = segments(path)[1]
    rewritten(second, lambda lines: lines[:-1])
    return second


@harms("a missing file")
def _(path: Path) -> Path:
    second = segments(path)[1]
    second.rename(second.with_suffix(".away"))
    return second


@harms("the active file")
def _(path: Path) -> Path:
    flip(path, middle(path))
    return path


@harms("the end of the active file")
def _(path: Path) -> Path:
    flip(path, middle(path, len(lines_of(path)) - 1))
    return path


@harms("the last hash of the active file")
def _(path: Path) -> Path:
    flip(path, sum(map(len, lines_of(path)[:-1])) + 5)
    return path


@harms("a file and the active file")
def _(path: Path) -> Path:
    flip(path, middle(path))
    second = segments(path)[1]
    flip(second, middle(second))
    return second


KINDS = list(HARMS)
ONLY_KNOWN_HERE = ("the end of the active file", "the last hash of the active file")
AFTER_A_BOOT = [kind for kind in KINDS if kind not in ONLY_KNOWN_HERE]


def everything(log: EventSourcingEngine) -> dict[int, str]:
    return {event.seq: event.hash for event in log.read_from(None)}


def history(log: EventSourcingEngine, run: str, through: int) -> dict[int, str]:
    return {event.seq: event.hash for event in log.history(run) if event.seq <= through}


def lost_of(found: Sequence[Damage]) -> set[int]:
    lost = [damage.lost for damage in found if damage.lost is not None]
    return {seq for each in lost for seq in range(each.first_seq, each.last_seq + 1)}


def without(events: dict[int, str], lost: set[int]) -> dict[int, str]:
    return {seq: hash_ for seq, hash_ in events.items() if seq not in lost}


def before_end(events: dict[int, str], end: int) -> dict[int, str]:
    return {seq: hash_ for seq, hash_ in events.items() if seq <= end}


def contents(path: Path) -> dict[str, bytes]:
    """Return the bytes of every file of the log, by name."""
    return {each.name: each.read_bytes() for each in (*segments(path), path)}


def broken(tmp_path: Path, kind: str = "a payload in a sealed file") -> Path:
    """Leave a log with a break that a verification has found."""
    path = segmented(tmp_path)
    HARMS[kind](path)
    with open_log(tmp_path) as log:
        log.verify_integrity()
    assert mark(path).exists()
    return path
