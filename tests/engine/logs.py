"""Make logs, and do to their files what crashes, tools and attackers do."""

from __future__ import annotations

import os
from pathlib import Path

from celery_commander.engine import Event, EventSourcingEngine, Settings

BOOT = "00000000-0000-0000-0000-00000000000a"
NEXT_BOOT = "00000000-0000-0000-0000-00000000000b"


def active(directory: Path) -> Path:
    return directory / "state" / "event-sourcing.wal"


def open_log(directory: Path, *, boot_id: str = BOOT) -> EventSourcingEngine:
    return EventSourcingEngine.open(active(directory), boot_id=boot_id)


def made_log(directory: Path, count: int = 5) -> Path:
    """Make a closed log of `count` waited events after wal.created, and return its file."""
    with open_log(directory) as log:
        for index in range(count):
            log.append("note", {"i": index}, run_id=f"r-{index % 2}")
    return active(directory)


def lines_of(path: Path) -> list[bytes]:
    """Return the header and the events, each with its LF."""
    return path.read_bytes().splitlines(keepends=True)


def types_of(log: EventSourcingEngine) -> list[str]:
    return [event.type for event in log.read_from(None)]


def quarantined(path: Path) -> list[Path]:
    return sorted(Path(f"{path}.d").glob("quarantine/*"))


def add(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def cut(path: Path, size: int) -> None:
    os.truncate(path, size)


def flip(path: Path, offset: int, mask: int = 1) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ mask]))


def small_segments(directory: Path) -> Settings:
    return Settings(state_directory=directory / "state", segment_bytes=4096)


def segmented(directory: Path, seals: int = 3) -> Path:
    """Make a closed log of `seals` sealed files and an active one, with two events of two runs in each."""
    with open_log(directory) as log:
        for index in range(2 * seals + 2):
            log.append("note", {"i": index}, run_id=f"r-{index % 2}")
            if index % 2 and index < 2 * seals:
                assert log.seal()
    return active(directory)


def notes(events: list[Event]) -> list[int]:
    """Return what tells the notes among events apart."""
    return [event.payload["i"] for event in events if event.type == "note"]


def everything(log: EventSourcingEngine) -> list[Event]:
    """Return every event that is there, after seeing that none is missing between them."""
    events = list(log.read_from(None))
    first = events[0].seq
    assert [event.seq for event in events] == list(range(first, first + len(events)))
    return events
