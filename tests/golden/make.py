"""Write golden logs: small complete state directories that every later version must go on reading.

    python -m tests.golden.make            writes those of STORIES that are not there yet

A golden log is never written again. When the format changes, the old ones stay, a story with a new name is
added below, and its log is made once, by the first version that writes so. So this refuses to overwrite: a
golden log that is made by the code it is to judge proves nothing about the code before.

What is kept is all that a process leaves: locks, ``control``, the index, the ledger too. A checkout gives the
files other modes and times; whoever opens a copy sets the modes first (tests/golden/test_golden.py).
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from celery_commander.engine import AnchorDirectory, EventSourcingEngine, durable_anchor
from celery_commander.engine.chain import first_header
from tests.engine.histories import tell
from tests.engine.ledgers import DELIVERS, write
from tests.engine.test_chain import CREATED, vector_lines

from .facts import BOOT, FACTS, LOGS, facts_of, settings_of, sums_of

START = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
TORN = b"0123456789abcdef" * 4 + b"|note|018f3a5e-7c00-7000-8000-0000000000ff|2026-01-02T03"


class Steps:
    """Be a clock that goes on by a millisecond whenever somebody looks at it."""

    def __init__(self) -> None:
        self._looks = 0

    def __call__(self) -> datetime:
        self._looks += 1
        return START + timedelta(milliseconds=self._looks)


def open_new(directory: Path) -> EventSourcingEngine:
    """Open a log as the boot and the clock of all golden logs."""
    return EventSourcingEngine.open(settings_of(directory), now=Steps(), boot_id=BOOT)


def one_file(directory: Path) -> None:
    """Write runs that stand everywhere, into one file."""
    with open_new(directory) as log:
        tell(log)
        log.append("note", {"text": "é\u2028😀|\n", "big": 2**63, "ratio": 0.1, "none": None})
        log.history("b-committed")  # makes the index


def sealed(directory: Path) -> None:
    """Write the same over three files, with an anchor of the second's end outside."""
    with open_new(directory) as log:
        tell(log)
        log.seal()
        write(log, "late", DELIVERS)
        log.seal()
        anchor = durable_anchor(log)
        assert anchor is not None
        AnchorDirectory(directory / "anchors").write(anchor)
        write(log, "later", ("run.created", "run.started@1"))


def compacted(directory: Path) -> None:
    """Write a log whose beginning a snapshot replaced and the archive keeps, and events after it."""
    with open_new(directory) as log:
        tell(log)
        log.snapshot("first")
        log.compact("first")
        write(log, "late", DELIVERS)
        log.snapshot("nightly")
        log.compact("nightly")
        write(log, "later", ("run.created", "run.started@1"))
        log.history("later")


def torn(directory: Path) -> None:
    """Write a log whose last line a crash left half."""
    sealed(directory)
    shutil.rmtree(directory / "anchors")
    with settings_of(directory).event_sourcing_wal.open("ab") as file:
        file.write(TORN)


def vectors(directory: Path) -> None:
    """Write the three test vectors of docs/log-format.md behind a header, and nothing beside them."""
    path = settings_of(directory).event_sourcing_wal
    path.parent.mkdir(parents=True)
    lines = [line + b"\n" for line in vector_lines()]
    path.write_bytes(first_header(CREATED["log_id"]).format() + b"".join(lines))


STORIES: dict[str, Callable[[Path], None]] = {
    "format-1-one-file": one_file,
    "format-1-sealed": sealed,
    "format-1-compacted": compacted,
    "format-1-torn": torn,
    "format-1-vectors": vectors,
}


def make(name: str) -> None:
    """Write one golden log and the facts about it.

    Raises:
        FileExistsError: it is there; nothing is changed.
    """
    directory = LOGS / name
    if directory.exists():
        raise FileExistsError(directory)
    with tempfile.TemporaryDirectory() as scratch:
        made, copy = Path(scratch, "made"), Path(scratch, "copy")
        made.mkdir()
        STORIES[name](made)
        shutil.copytree(made, copy)  # reading makes an index, and it is the writer's that is kept
        facts = {**facts_of(copy), "sha256": sums_of(made)}
        text = json.dumps(facts, indent=1, ensure_ascii=False, sort_keys=True)
        (made / FACTS).write_text(text + "\n", encoding="utf-8")
        shutil.copytree(made, directory)


def main() -> None:
    """Make those that are missing, and name those that are there."""
    for name in STORIES:
        try:
            make(name)
        except FileExistsError:
            sys.stdout.write(f"{name} is there and stays as it is\n")
        else:
            sys.stdout.write(f"{name} was made\n")


if __name__ == "__main__":
    main()
