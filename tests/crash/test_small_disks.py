"""A disk without room or without inodes, for real: everything is tried at every degree of fullness."""

from __future__ import annotations

from pathlib import Path

import pytest

from .namespaces import on_small_disk

pytestmark = pytest.mark.crash

FULL = """
import errno, os, shutil, sys
from pathlib import Path
from celery_commander.engine import CommanderError, EventSourcingEngine, Status
from tests.engine.histories import LIVE, settings_in, tell
disk, name, unit = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
WORKS = {
    "append": lambda log: log.append("note", {"x": "y" * 3000}, run_id="r"),
    "ride along": lambda log: (log.append("note", {"x": "y" * 3000}, run_id="r", wait=False), log.sync()),
    "seal": lambda log: log.seal(),
    "snapshot": lambda log: log.snapshot("another"),
    "compact": lambda log: log.compact("ready"),
}

def fill(room):
    # Take all the room there is but `room` pages, or all the inodes but `room`.
    taken = disk / "taken"
    taken.mkdir()
    made = []
    try:
        if unit == "inodes":
            while True:
                made.append(taken / str(len(made)))
                made[-1].touch()
        with open(taken / "bytes", "wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
    except OSError as error:
        assert error.errno == errno.ENOSPC, error
    if unit == "inodes":
        for each in made[: room + 1]:
            each.unlink(missing_ok=True)
    else:
        size = (taken / "bytes").stat().st_size
        os.truncate(taken / "bytes", max(0, size - room * 4096))

with EventSourcingEngine.open(settings_in(disk / "made")) as log:
    tell(log)
    log.snapshot("ready")
    log.append("note", {}, run_id="r")
    lines = {run_id: [event.hash for event in log.history(run_id)] for run_id in LIVE}

outcomes = []
for room in range(int(sys.argv[4])):
    shutil.copytree(disk / "made", disk / "log")
    acknowledged = 1
    try:
        with EventSourcingEngine.open(settings_in(disk / "log")) as log:
            log.append("note", {}, run_id="r") if room % 2 else None
            acknowledged += room % 2
            fill(room * 3 if name == "snapshot" and unit == "bytes" else room)
            try:
                WORKS[name](log)
                outcomes.append("done")
                acknowledged += name in ("append", "ride along")
            except CommanderError as error:
                outcomes.append(type(error).__name__)
            shutil.rmtree(disk / "taken")
            seen = len(log.history("r"))
            assert seen >= acknowledged, (seen, acknowledged)
            log.append("after", {}, run_id="r")
            assert log.seal()
            assert log.snapshot("later") and log.compact("later")
            assert log.verify_integrity().status is Status.OK_UNANCHORED
            assert {run: [event.hash for event in log.history(run)] for run in LIVE} == lines
        with EventSourcingEngine.open(settings_in(disk / "log"), boot_id="next") as log:
            log.append("next", {})
            assert log.verify_integrity().status is Status.OK_UNANCHORED
    finally:
        shutil.rmtree(disk / "log")
left = sorted(path.name for path in disk.rglob("*.partial"))
assert not left, left
print(*outcomes)
"""


@pytest.mark.parametrize(
    "unit,options,rooms", [("bytes", "size=1m", 12), ("inodes", "nr_inodes=80", 8)]
)
@pytest.mark.parametrize("name", ["append", "ride along", "seal", "snapshot", "compact"])
def test_a_full_disk_is_an_error_of_ours_and_forgotten_once_there_is_room(
    tmp_path: Path, name: str, unit: str, options: str, rooms: int
) -> None:
    """See etcd-io/etcd#2819 and #3591: the disk filled up during a write, and repairing it needed space too."""
    told = on_small_disk(FULL, tmp_path / "disk", options, name, unit, str(rooms)).split()
    assert len(told) == rooms
    assert told[-1] == "done"
    if name in ("seal", "snapshot") or (
        unit == "bytes" and name != "compact"
    ):  # the others need little
        assert told[0] != "done"
