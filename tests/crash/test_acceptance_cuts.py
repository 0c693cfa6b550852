"""The power fails while a break is marked and accepted; and chance damages a log in any way it likes."""

from __future__ import annotations

import contextlib
import random
import shutil
from pathlib import Path

import pytest

from celery_commander.engine import (
    BreakRefused,
    EventSourcingEngine,
    LogCorrupt,
    LogError,
    Settings,
    Status,
)
from tests.engine.logs import BOOT, NEXT_BOOT, active, open_log, segmented
from tests.engine.test_breaks import mark, segments

from .disk import Disk, SimulatedFiles
from .harms import ACCEPTED, HARMS, before_end, everything, history, lost_of, without
from .images import images, put
from .world import scratch

pytestmark = [pytest.mark.crash]


def settings(root: Path) -> Settings:
    return Settings(state_directory=root / "state", flush_seconds=3600.0, lock_seconds=2.0)


class Booted:
    """See what a host makes of the log that a power cut has left to it."""

    def __init__(self, whole: dict[int, str], lost: set[int], damaged: bytes | None) -> None:
        self._whole = whole
        self._lost = lost
        self._damaged = damaged
        self.promised = 0
        self.images = 0
        self.marked = 0

    def look(self, disk: Disk, base: Path) -> None:
        for image in images(disk, random.Random(self.images), torn=2):
            self.images += 1
            root = base / f"image-{self.images}"
            put(disk, image, root)
            self._boot(root)
            shutil.rmtree(root)

    def _boot(self, root: Path) -> None:
        path = active(root)
        self.marked += mark(path).exists()
        with EventSourcingEngine.open(settings(root), boot_id=NEXT_BOOT) as log:
            found = log.breaks.verify()
            if mark(path).exists():
                with pytest.raises(LogCorrupt):
                    log.append("note", {"i": "too early"})
            assert found.status is ACCEPTED or not self.promised
            log.breaks.accept("second")
            log.breaks.lift(log.breaks.verify())
            log.append("note", {"i": "after"})
            report = log.breaks.verify()
            assert report.status is ACCEPTED, report
            assert len(report.accepted) == 1
            after = everything(log)
            assert max(after) >= self.promised
            end = max(self._whole)
            assert before_end(after, end) == without(self._whole, self._lost)
        if self._damaged is not None:
            kept = [each.read_bytes() for each in (*segments(path), path)]
            assert self._damaged in kept


@pytest.mark.parametrize(
    "kind", ["a payload in a sealed file", "the active file", "a missing file", "a header"]
)
def test_a_power_cut_at_any_moment_of_an_acceptance_breaks_no_promise(kind: str) -> None:
    with scratch() as base:
        root = base / "host"
        root.mkdir()
        path = segmented(root)
        with open_log(root) as log:
            whole = everything(log)
        harmed = HARMS[kind](path)
        damaged = harmed.read_bytes() if harmed.exists() else None
        with open_log(root) as log:
            lost = lost_of(log.breaks.survey())
        disk = Disk(root)
        booted = Booted(whole, lost, damaged)
        disk.before = lambda call, path: booted.look(disk, base)
        process = EventSourcingEngine.open(
            settings(root), files=SimulatedFiles(disk), boot_id="the host's"
        )
        process.verify_integrity()
        process.breaks.accept("first")
        booted.promised = process.append("note", {"i": "first"}).seq
        booted.look(disk, base)
        disk.before = None
        process.close()
        assert booted.images > 30
        assert booted.marked > 5


def scramble(path: Path, chance: random.Random) -> None:
    """Do something to a file that no crash does."""
    content = bytearray(path.read_bytes())
    at = chance.randrange(len(content))
    size = min(chance.choice((1, 1, 1, 7, 90, 400)), len(content) - at)
    match chance.choice(("flip", "noise", "zeros", "take out", "put in", "double", "swap")):
        case "flip":
            content[at] ^= 1 << chance.randrange(8)
        case "noise":
            content[at : at + size] = chance.randbytes(size)
        case "zeros":
            content[at : at + size] = bytes(size)
        case "take out":
            del content[at : at + size]
        case "put in":
            content[at:at] = chance.randbytes(size)
        case "double":
            content[at:at] = content[at : at + size]
        case "swap":
            lines = bytes(content).splitlines(keepends=True)
            chance.shuffle(lines)
            content = bytearray(b"".join(lines))
    path.write_bytes(content)


@pytest.mark.parametrize("boot", [BOOT, NEXT_BOOT], ids=["this boot", "after a reboot"])
def test_whatever_chance_does_to_a_log_nothing_false_is_ever_read(boot: str) -> None:
    accepted = 0
    for seed in range(120):
        chance = random.Random(seed)
        with scratch() as base:
            path = segmented(base, seals=chance.randint(1, 3))
            with open_log(base) as log:
                whole, end = everything(log), log.head()[0]
                runs = {run: history(log, run, end) for run in ("r-0", "r-1")}
            for _ in range(chance.choice((1, 1, 2))):
                scramble(chance.choice([*segments(path), path]), chance)
            try:
                accepted += _accepted(base, boot, whole, runs)
            except BaseException as error:
                error.add_note(f"seed {seed}")
                raise
    assert accepted > 60


def _accepted(
    base: Path, boot: str, whole: dict[int, str], runs: dict[str, dict[int, str]]
) -> bool:
    """Accept what can be, and see that what is read was written; tell whether there was anything to accept."""
    end = max(whole)
    try:
        log = open_log(base, boot_id=boot)
    except LogError:
        return False  # the header of the active file: the log does not open
    with log:
        report = log.verify_integrity()
        if report.status.is_good or report.status is Status.TORN_TAIL:
            return False
        with pytest.raises(LogError):
            log.append("note", {})
        try:
            done = log.breaks.accept("chance")
        except BreakRefused:
            return False
        report = log.verify_integrity()
        assert report.status is ACCEPTED, report
        event = log.append("note", {"i": "after"}, run_id="r-0")
        after = everything(log)
        assert event.seq in after
        found = done.damages
        read = [e.hash for e in log.read_from(None) if isinstance(e.payload.get("i"), int)]
        written = list(whole.values())
        assert [hash_ for hash_ in written if hash_ in read] == read, "it was never written so"
        if boot == BOOT:  # else where the active file ends is counted, and may be counted wrongly
            assert before_end(after, end) == without(whole, lost_of(found))
            for run, events in runs.items():
                assert history(log, run, end).items() <= events.items()
        with contextlib.suppress(LogError):
            log.seal()
        log.snapshot("nightly")
        log.compact("nightly")
        assert log.breaks.verify().status in (ACCEPTED, Status.OK_UNANCHORED)
    with open_log(base, boot_id="a third") as log:
        log.append("note", {})
        assert log.breaks.verify().status in (ACCEPTED, Status.OK_UNANCHORED)
    return True
