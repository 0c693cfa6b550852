"""Compare what a log tells whoever asks with what stands in its files."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

from celery_commander.engine import (
    Database,
    EventSourcingEngine,
    HistoryArchived,
    RunLedger,
    Status,
)
from celery_commander.engine.verify import verify_log
from tests.engine.ledgers import rows

from .chain import Chain, Link

AFTER_A_CRASH = (Status.OK_ANCHORED, Status.OK_UNANCHORED, Status.TORN_TAIL)


def judge_image(active: Path, before: list[Link], promised: int) -> list[Link]:
    """See that an image, before anybody repairs it, holds what was promised and nothing else; return what it holds."""
    chain = Chain(active)
    found = [link.line for link in chain.links]
    assert found == [link.line for link in before[: len(found)]], "an event that nobody wrote"
    assert len(found) >= promised, f"{promised} events were promised, {len(found)} are there"
    if promised:
        report = verify_log(active)
        assert report.status in AFTER_A_CRASH, report
    return chain.links


def check_histories(engine: EventSourcingEngine, chain: Chain) -> None:
    by_run: dict[str, list[str]] = {}
    for link in chain.links:
        run = link.payload["run"]
        if run is not None:
            by_run.setdefault(run, []).append(link.hash)
    for run, hashes in by_run.items():
        try:
            found = [event.hash for event in engine.history(run)]
        except HistoryArchived:
            continue
        if run.startswith("n-") and chain.archived:
            assert hashes[len(hashes) - len(found) :] == found, run  # of no run: not kept
        else:
            assert found == hashes, run


def check_kept(directory: Path, chain: Chain) -> None:
    """See that what was cut off is kept as the log says, and that it says so of all that is kept."""
    told = set()
    for link in chain.links:
        data = link.payload["data"]
        if link.type == "wal.repaired" and data["quarantine"] is not None:
            kept = directory / "quarantine" / data["quarantine"]
            if not kept.exists():
                kept = kept.with_name(f"{kept.name}.unfinished")
            told.add(data["quarantine"])
            assert sha256(kept.read_bytes()).hexdigest() == data["sha256"], kept
    for path in directory.glob("quarantine/*"):
        assert path.name in told or path.name.endswith(".unfinished"), path


def check_files(active: Path, crashes: int) -> None:
    directory = Path(f"{active}.d")
    names = [path.name for path in directory.rglob("*")]
    left = [name for name in names if name == "newborn" or name.endswith(".unfinished")]
    assert not left, left
    assert active.stat().st_nlink == 1
    kept = list(directory.glob("quarantine/*"))
    assert len(kept) <= crashes, kept


def check_ledger(engine: EventSourcingEngine, scratch: Path) -> None:
    for path in (engine.settings.ledger_path, scratch / "fresh.sqlite"):
        path.parent.mkdir(exist_ok=True)
        database = Database(path)
        try:
            ledger = RunLedger(database, engine)
            ledger.catch_up()
            assert rows(ledger) == engine.replay(), path.name
        finally:
            database.close()
    for path in scratch.glob("fresh.sqlite*"):
        path.unlink()
