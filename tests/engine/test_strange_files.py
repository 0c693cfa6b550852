"""A link, a pipe, a directory or a second name at every path of the state directory: refused or made anew.

Nobody waits at a pipe, and what a link leads to, inside or outside, gets not one byte.
"""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from celery_commander.engine import CommanderError, EventSourcingEngine, LogUnreadable
from celery_commander.engine.files import Files

from .forked import Forked
from .histories import settings_in, tell
from .ledgers import DELIVERS, write

LOG = "event-sourcing.wal"
FILES = [
    LOG,
    "ledger.sqlite",
    f"{LOG}.d/append.lock",
    f"{LOG}.d/sync.lock",
    f"{LOG}.d/seal.lock",
    f"{LOG}.d/compaction.lock",
    f"{LOG}.d/control",
    f"{LOG}.d/latency",
    f"{LOG}.d/newborn",
    f"{LOG}.d/index.sqlite",
    f"{LOG}.d/verified.json",
    f"{LOG}.d/POISONED",
]
DIRECTORIES = [f"{LOG}.d/{each}" for each in ("segments", "archive", "snapshots", "quarantine")]
TREASURE = b"somebody's own\n"


def link(path: Path, outside: Path) -> None:
    path.symlink_to(outside / "treasure")


def dangling(path: Path, outside: Path) -> None:
    path.symlink_to(outside / "not there")


def link_to_directory(path: Path, outside: Path) -> None:
    path.symlink_to(outside)


def second_name(path: Path, outside: Path) -> None:
    path.hardlink_to(outside / "treasure")


def pipe(path: Path, outside: Path) -> None:
    os.mkfifo(path, 0o600)


def directory(path: Path, outside: Path) -> None:
    path.mkdir(0o700)
    (path / "kept").write_bytes(TREASURE)


def plain_file(path: Path, outside: Path) -> None:
    path.write_bytes(TREASURE)
    path.chmod(0o600)


def listening(path: Path, outside: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # the name of a socket may not be long
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path.name)
    finally:
        os.chdir(here)


Kind = Callable[[Path, Path], None]
CASES: list[tuple[str, Kind]] = [
    *(
        (name, kind)
        for name in FILES
        for kind in (link, dangling, second_name, pipe, directory, listening)
    ),
    *(
        (name, kind)
        for name in DIRECTORIES
        for kind in (link, dangling, link_to_directory, pipe, plain_file)
    ),
]

WORKS: list[Callable[[EventSourcingEngine], object]] = [
    lambda log: log.check(),
    lambda log: log.health(),
    lambda log: log.append("note", {}, run_id="r"),
    lambda log: log.append("note", {}, run_id="r", wait=False),
    lambda log: log.history("late"),
    lambda log: list(log.read_from(None)),
    lambda log: log.verify_integrity(),
    lambda log: log.seal(),
    lambda log: log.snapshot("another"),
    lambda log: log.compact("another"),
    lambda log: log.sync(),
]


def made(directory: Path) -> None:
    with EventSourcingEngine.open(settings_in(directory)) as log:
        tell(log)
        log.snapshot("first")
        log.compact("first")
        write(log, "late", DELIVERS)
        log.seal()
        log.append("note", {}, run_id="r")
        log.verify_integrity()


def use(state: Path) -> list[str]:
    """Do everything that can be done with a log, before and after the next opening; return what was refused."""
    refused = []
    for create in (False, True):
        try:
            log = EventSourcingEngine.open(settings_in(state), create=create)
        except CommanderError as error:
            refused.append(f"open: {error}")
            continue
        for number, work in enumerate(WORKS):
            try:
                work(log)
            except CommanderError as error:
                refused.append(f"{number}: {error}")
        try:
            log.close()
        except CommanderError as error:
            refused.append(f"close: {error}")
    return refused


def using(state: Path) -> Callable[[Forked], list[str]]:
    return lambda _: use(state)


def inside(state: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(state.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("name", [*FILES, *DIRECTORIES])
def test_a_strange_file_gets_nothing_and_holds_nobody_up(tmp_path: Path, name: str) -> None:
    made(tmp_path / "made")
    for number, kind in enumerate(kind for case, kind in CASES if case == name):
        state, outside = tmp_path / f"{number}", tmp_path / f"outside-{number}"
        shutil.copytree(tmp_path / "made", state)
        outside.mkdir(0o700)
        (outside / "treasure").write_bytes(TREASURE)
        (outside / "treasure").chmod(0o600)
        path = state / name
        if path.exists():
            path.rename(tmp_path / f"aside-{number}")
        path.parent.mkdir(exist_ok=True)
        kind(path, outside)
        with Forked(using(state)) as child:
            child.result()
        assert inside(outside) == {"treasure": TREASURE}, kind.__name__
        if path.is_dir() and not path.is_symlink() and (path / "kept").exists():
            assert (path / "kept").read_bytes() == TREASURE


def test_only_a_regular_file_is_opened_to_be_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", Path("/dev/null")):
        with pytest.raises(LogUnreadable, match="regular file"):
            Files().open_to_read(path)
