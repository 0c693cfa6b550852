"""Say what a log holds, in JSON that can be kept beside it and compared for ever."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from celery_commander.engine import (
    Event,
    EventSourcingEngine,
    HistoryArchived,
    RunState,
    Settings,
    Status,
)

LOGS = Path(__file__).parent / "logs"
FACTS = "facts.json"
BOOT = "00000000-0000-4000-8000-00000000601d"  # the boot in which the golden logs were written
FOR_EVER_SECONDS = 1e9


def settings_of(directory: Path) -> Settings:
    """Return settings under which nothing is sealed by itself, however old it is."""
    state = directory / "state"
    return Settings(state_directory=state, segment_seconds=FOR_EVER_SECONDS)


def facts_of(directory: Path) -> dict[str, Any]:
    """Return what whoever only reads finds in a log."""
    with EventSourcingEngine.open(settings_of(directory), create=False, boot_id=BOOT) as log:
        report = log.verify_integrity()
        events = list(log.read_from(None))
        run_ids = sorted({event.run_id for event in events if event.run_id} | set(log.replay()))
        return {
            "log_id": log.log_id,
            "status": report.status.name,
            "verified": report.events,
            "first_seq": log.first_seq,
            "head": list(log.head()),
            "events": [fact_of(event) for event in events],
            "histories": {run_id: history_of(log, run_id) for run_id in run_ids},
            "states": states_of(log.replay()),
            "snapshots": [snapshot.name for snapshot in log.snapshots()],
        }


def fact_of(event: Event) -> list[Any]:
    """Return everything that an event says."""
    at = event.timestamp.isoformat(timespec="microseconds")
    who = [event.run_id, event.token, event.n]
    return [event.seq, event.hash, event.type, event.id, at, *who, event.payload]


def history_of(log: EventSourcingEngine, run_id: str) -> list[str] | str:
    """Return the hashes of a run's events, or where they went."""
    try:
        return [event.hash for event in log.history(run_id)]
    except HistoryArchived as archived:
        return type(archived).__name__


def states_of(states: dict[str, RunState]) -> dict[str, dict[str, Any]]:
    """Return the state of every run as JSON has it."""
    rows = {run_id: asdict(state) for run_id, state in states.items()}
    told: dict[str, dict[str, Any]] = json.loads(json.dumps(rows, default=str))
    return told


def sums_of(directory: Path) -> dict[str, str]:
    """Return the SHA-256 of every file below a directory, the facts aside."""
    return {
        path.relative_to(directory).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name != FACTS
    }


def is_good(facts: dict[str, Any]) -> bool:
    """Tell whether the log was written down as whole, or as torn."""
    return bool(facts["status"] == Status.OK_UNANCHORED.name)
