"""Let processes work on a simulated disk, kill them, cut the power, and ask what must hold after each step.

It knows no more than a user does: what was returned, what a reader saw, and what stands in the files by the
independent check of chain.py.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from celery_commander.engine import (
    CommanderError,
    CompactionRefused,
    EventSourcingEngine,
    LogPoisoned,
    NewEvent,
    Settings,
    Status,
)
from celery_commander.engine.control import Control
from celery_commander.engine.files import Files
from celery_commander.engine.snapshots import PARTIAL
from celery_commander.engine.verify import verify_log
from tests.engine.ledgers import COMMITS, DELIVERS, lines_of

from .chain import Chain, Link
from .disk import Disk, Fault, Killed, SimulatedFiles
from .images import Image, put
from .judge import (
    AFTER_A_CRASH,
    check_files,
    check_histories,
    check_kept,
    check_ledger,
    judge_image,
)

BY_RECOVERY = frozenset({"wal.repaired", "wal.sealed"})
_SEGMENT_BYTES = 8192


@contextmanager
def scratch() -> Iterator[Path]:
    """Give a directory in memory where the host has one; a disk below it would only cost time."""
    memory = Path("/dev/shm")
    place = memory if memory.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="power-", dir=place) as directory:
        yield Path(directory)


class Process:
    """One process with the log open, as its files and its engine are all that the log knows of it."""

    def __init__(self, world: World, *, create: bool = True) -> None:
        self.files = SimulatedFiles(world.disk)
        self.files.fault, world.next_fault = world.next_fault, None
        try:
            self.engine = EventSourcingEngine.open(
                world.settings,
                files=self.files,
                now=world.now,
                boot_id=f"boot {world.boot}",
                create=create,
            )
        except BaseException:
            self.files.die()
            raise
        self.last_seq = 0

    def end(self) -> None:
        """Kill it."""
        self.files.die()
        log = self.engine._log
        log._flusher.close()
        log.index.close()
        log.latency.close()


class World:
    """A host with a disk, some processes, and a memory of what it was promised."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.boot = 0
        self.runs = 0
        self.moments = 0
        self.crashes = 0  # kills, cuts and faults, of which each may leave one file in quarantine
        self.known: list[Link] = []
        self.promised = 0
        self.poisoned = False
        self.next_fault: Fault | None = None
        self.processes: list[Process] = []
        self.counts: Counter[str] = Counter()
        self._enter(base / "0", Disk(base / "0"))

    @classmethod
    def after(cls, world: World, image: Image, root: Path) -> World:
        """Return another host that boots with an image of this one's disk, in a directory of its own."""
        other = cls.__new__(cls)
        other.base, other.boot = root.parent, world.boot + 1
        other.runs, other.moments = world.runs, world.moments + 1000
        other.crashes, other.next_fault = world.crashes + 1, None
        other.processes, other.counts = [], world.counts
        other.counts["images"] += 1
        put(world.disk, image, root, outside=False)
        other._enter(root, Disk(root))
        other.poisoned = other.is_marked()
        before = Chain(world.active).links
        other.promised = max(world.promised, world.control_promise(before))
        other.known = judge_image(other.active, before, other.promised)
        return other

    def _enter(self, root: Path, disk: Disk) -> None:
        self.root, self.disk = root, disk
        self.settings = Settings(
            state_directory=root / "deep" / "state",
            segment_bytes=_SEGMENT_BYTES,
            flush_seconds=3600.0,
            lock_seconds=2.0,
        )
        self.active = self.settings.event_sourcing_wal
        self.directory = Path(f"{self.active}.d")

    def now(self) -> datetime:
        self.moments += 1
        return datetime(2026, 1, 2, tzinfo=UTC) + timedelta(milliseconds=self.moments)

    # -- what processes do ------------------------------------------------------------------

    def open(self, *, create: bool = True) -> Process | None:
        """Start a process; None when it was killed, or met a fault, before it had the log open."""
        self.counts["opened"] += 1
        armed = self.next_fault
        try:
            process = Process(self, create=create)
        except Killed:
            self.crashes += 1
            return None
        except CommanderError:
            if armed is None or armed.nth > 0:
                raise
            self.crashes += 1
            return None
        if armed is not None and armed.nth <= 0:
            self.crashes += 1
            self.poisoned = self.poisoned or self.is_marked()
        self.processes.append(process)
        return process

    def act(self, process: Process, work: Callable[[EventSourcingEngine], int]) -> bool:
        """Let a process do something that returns up to which event it was promised durability."""
        if process not in self.processes:
            return False  # it was killed
        self.counts["acts"] += 1
        files = process.files
        struck = files.struck
        try:
            self.promised = max(self.promised, work(process.engine))
        except Killed:
            self.crashes += 1
            self.bury(process)
            return False
        except CommanderError as error:
            self.crashes += files.struck - struck
            self.poisoned = self.poisoned or self.is_marked()
            is_refused = self.poisoned and isinstance(error, LogPoisoned | CompactionRefused)
            if files.struck == struck and not is_refused:
                raise
            return False
        self.crashes += files.struck - struck
        return True

    def append(self, process: Process, count: int = 1, *, wait: bool, size: int = 10) -> bool:
        """Append events of a run that has nothing else."""
        self.runs += 1
        news = [
            NewEvent("note", {"i": index, "x": "y" * size}, f"n-{self.runs % 5}")
            for index in range(count)
        ]
        return self._append(process, news, wait=wait)

    def run(self, process: Process, *, delivered: bool, wait: bool) -> bool:
        """Append all events of a whole run in one batch."""
        self.runs += 1
        story = DELIVERS if delivered else COMMITS
        return self._append(process, lines_of(f"r-{self.runs}", story), wait=wait)

    def _append(self, process: Process, news: list[NewEvent], *, wait: bool) -> bool:
        def work(engine: EventSourcingEngine) -> int:
            last = engine.append_many(news, wait=wait)[-1].seq
            process.last_seq = last
            return last if wait else 0

        return self.act(process, work)

    def sync(self, process: Process) -> bool:
        def work(engine: EventSourcingEngine) -> int:
            engine.sync()
            return process.last_seq

        return self.act(process, work)

    def seal(self, process: Process) -> bool:
        return self.act(process, lambda engine: engine.head()[0] if engine.seal() else 0)

    def snapshot(self, process: Process) -> bool:
        def work(engine: EventSourcingEngine) -> int:
            return engine.snapshot("nightly").through

        done = self.act(process, work)
        if done:
            assert not list(self.directory.glob(f"snapshots/*{PARTIAL}"))
        return done

    def compact(self, process: Process) -> bool:
        def work(engine: EventSourcingEngine) -> int:
            if any(snapshot.name == "nightly" for snapshot in engine.snapshots()):
                engine.compact("nightly")
            return 0

        return self.act(process, work)

    def repair(self, process: Process) -> bool:
        """Let a person answer for what a failed sync may have lost."""

        def work(engine: EventSourcingEngine) -> int:
            mended = engine.repair("ann@shop")
            self.poisoned = self.is_marked()
            return 0 if mended is None else engine.head()[0]

        return self.act(process, work)

    # -- what happens to them ---------------------------------------------------------------

    def bury(self, process: Process) -> None:
        """Kill a process between two calls, or tidy up after one that was killed in one."""
        self.counts["kills"] += 1
        process.end()
        if process in self.processes:
            self.processes.remove(process)

    def close(self, process: Process) -> None:
        """End a process in good order."""
        self.act(process, lambda engine: _closed(engine, process))
        if process in self.processes:
            self.bury(process)

    def control_promise(self, links: list[Link]) -> int:
        """Return up to which event this boot's ``control`` promises durability to whoever asks."""
        path = self.directory / "control"
        if not path.exists() or not links:
            return 0
        fd = Files().open_to_read(path)
        try:
            log_id = links[0].payload["data"]["log_id"]
            control = Control(Files(), fd.fd, boot_id=f"boot {self.boot}", log_id=log_id)
            promise = control.read()[1]
        finally:
            fd.close()
        return promise.seq if promise is not None else 0

    def look(self) -> Chain:
        """See by the files that nothing which was there is gone or changed; whoever reads sees no more than that."""
        chain = Chain(self.active)
        self.poisoned = self.poisoned or self.is_marked()
        found = [link.line for link in chain.links[: len(self.known)]]
        assert found == [link.line for link in self.known], "an event has vanished, or is another"
        stamps = [link.timestamp for link in chain.links]
        assert stamps == sorted(stamps), "timestamps run backwards"
        self.known = chain.links
        self.promised = max(self.promised, self.control_promise(self.known))
        assert self.promised <= len(self.known), "more was promised than is there"
        return chain

    def cut(self, image: Image, *, outside: bool = True) -> None:
        """Cut the power and boot with what an image has left."""
        if not self.disk.lies:
            self.look()
        before, promised = self.known, self.promised
        for process in list(self.processes):
            self.bury(process)
        self.crashes += 1
        self.counts["cuts"] += 1
        self.counts["images"] += 1
        self.boot += 1
        old, root = self.disk, self.base / f"{self.boot}"
        put(old, image, root, outside=outside)
        self._enter(root, Disk(root))
        assert self.is_marked() or not self.poisoned or old.lies, (
            "the mark of a failed sync is lost"
        )
        self.poisoned = self.is_marked()  # one that was just removed may come back
        shutil.rmtree(old.root)
        if old.lies:
            self.known, self.promised = [], 0
            return
        self.known = judge_image(self.active, before, promised)
        self.promised = promised

    def is_marked(self) -> bool:
        return (self.directory / "POISONED").exists()

    def is_half_mended(self) -> bool:
        """Tell whether a repair was cut short: the active file has a sealed copy under its own name."""
        with self.active.open("rb") as file:
            first_seq = int(file.readline().split(b"|")[3])
        return (self.directory / "segments" / f"{first_seq:020d}.wal").exists()

    def unmark(self) -> None:
        """Do what a person may do after replacing the disk and looking at the log: take the mark away."""
        for process in list(self.processes):
            self.bury(process)
        (self.directory / "POISONED").unlink()
        self.poisoned = False
        self.boot += 1
        self._enter(self.root, Disk(self.root))

    def check(self, process: Process, *, ledger: bool = True, is_fresh: bool = True) -> None:
        """Ask a process that has the log open for everything, and compare it with the files.

        What a killed one left about is tidied away by who opens the log next.
        """
        self.counts["checks"] += 1
        engine = process.engine
        if not self.poisoned:
            engine.settle()
        chain = self.look()
        report = engine.verify_integrity()
        if self.poisoned:
            assert report.status in AFTER_A_CRASH, report
            with contextlib.suppress(LogPoisoned):
                engine.append("note", {})
                raise AssertionError("a poisoned log took an event")
            read = [event.hash for event in engine.read_from(None)]
            written = [link.hash for link in chain.links]
            begin = written.index(read[0]) if read else 0
            assert read == written[begin : begin + len(read)]
            told = max(link.payload["d"] for link in chain.links)
            assert begin + len(read) >= told, "what the log knows to be on disk is not shown"
            return
        assert report.status is Status.OK_UNANCHORED, report
        assert not chain.rest, chain.rest
        events = list(engine.read_from(None))
        begins_at = events[0].seq if events else 1
        assert begins_at - 1 <= chain.archived or begins_at == 1
        told = [(event.seq, event.hash, event.type) for event in events]
        assert told == [(each.seq, each.hash, each.type) for each in chain.links[begins_at - 1 :]]
        assert engine.head() == (len(chain.links), chain.links[-1].hash)
        check_histories(engine, chain)
        check_kept(self.directory, chain)
        if is_fresh:
            check_files(self.active, self.crashes)
        if ledger:
            check_ledger(engine, self.base)

    def check_typed(self) -> None:
        """Ask only that every answer is a typed one: what a lying disk lost cannot be made good."""
        assert isinstance(verify_log(self.active).status, Status)
        try:
            process = Process(self)
        except CommanderError:
            return
        self.processes.append(process)
        engine = process.engine
        assert isinstance(engine.verify_integrity().status, Status)
        for work in (
            lambda: list(engine.read_from(None)),
            lambda: engine.history("n-1"),
            lambda: engine.append("note", {}),
            engine.replay,
            engine.seal,
            lambda: engine.snapshot("late"),
            engine.check,
        ):
            try:
                work()
            except CommanderError:
                pass

    def end(self) -> None:
        for process in list(self.processes):
            self.bury(process)


def _closed(engine: EventSourcingEngine, process: Process) -> int:
    engine.close()
    return process.last_seq
