"""Logs that earlier versions wrote: read, verified, repaired and gone on with, whatever this version has become.

A red test here means that users' logs cannot be read any more. The logs are never made again to please it:
see make.py.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from celery_commander.engine import (
    Anchor,
    AnchorDirectory,
    Database,
    EventSourcingEngine,
    NotALog,
    RunLedger,
    Status,
)
from tests.source_tree import ROOMS, ROOT

from .facts import BOOT, FACTS, LOGS, facts_of, is_good, settings_of, states_of, sums_of
from .make import STORIES, main

NAMES = sorted(path.name for path in LOGS.iterdir())
OLD_LINES = b"#celery-wal/1|"
CONTENT = ("*.wal", "*.snapshot", "*.anchors")


def facts_about(name: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((LOGS / name / FACTS).read_text(encoding="utf-8"))
    return told


def content_of(directory: Path) -> dict[str, bytes]:
    """Return what stands for itself; control, locks, the index and the ledger may be made anew."""
    found = (path for pattern in CONTENT for path in directory.rglob(pattern))
    return {path.relative_to(directory).as_posix(): path.read_bytes() for path in found}


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def copy(name: str, tmp_path: Path) -> Path:
    """Give a copy with the modes that a checkout does not keep."""
    directory = tmp_path / name
    shutil.copytree(LOGS / name, directory)
    for path in directory.rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o600)
    return directory


def test_no_golden_log_was_lost_or_changed(name: str) -> None:
    assert name in STORIES
    assert sums_of(LOGS / name) == facts_about(name)["sha256"]


def test_every_story_has_its_golden_log() -> None:
    assert set(NAMES) == set(STORIES)


def test_the_script_refuses_to_make_one_anew(capsys: pytest.CaptureFixture[str]) -> None:
    before = sums_of(LOGS)
    main()
    assert capsys.readouterr().out.count("stays as it is") == len(NAMES)
    assert sums_of(LOGS) == before


def test_a_reader_finds_everything_that_was_written_and_changes_nothing(
    name: str, copy: Path
) -> None:
    before = content_of(copy)
    assert set(before) >= {"state/event-sourcing.wal"}
    told, found = facts_about(name), facts_of(copy)

    states, now = told.pop("states"), found.pop("states")
    assert found == {key: value for key, value in told.items() if key != "sha256"}
    assert set(now) == set(states)
    for run_id, state in states.items():  # a later version may know more of a run
        assert {key: now[run_id][key] for key in state} == state
    assert content_of(copy) == before


def test_ten_lines_without_our_code_find_every_file_good(name: str, copy: Path) -> None:
    state = copy / "state"
    files = [*sorted(state.rglob("event-sourcing.wal.d/*/*.wal")), state / "event-sourcing.wal"]
    previous = hashlib.sha256(b"").hexdigest().encode()
    count = 0
    for path in files:
        header, *lines = path.read_bytes().split(b"\n")
        assert header.startswith(OLD_LINES)
        for line in lines[:-1]:
            assert hashlib.sha256(previous + line[64:]).hexdigest().encode() == line[:64]
            previous, count = line[:64], count + 1
        assert (lines[-1] == b"") == (path != files[-1] or is_good(facts_about(name)))
    assert [count, previous.decode()] == facts_about(name)["head"]


@pytest.mark.parametrize("boot_id", [BOOT, "another"])
def test_this_version_goes_on_where_the_old_one_ended(name: str, copy: Path, boot_id: str) -> None:
    told = facts_about(name)
    old = [event[1] for event in told["events"]]
    with EventSourcingEngine.open(settings_of(copy), boot_id=boot_id) as log:
        assert log.verify_integrity().status is Status.OK_UNANCHORED
        log.append("note", {"i": 1}, run_id="new")
        events = list(log.read_from(None))
        added = [event.type for event in events[len(old) :]]
        assert [event.hash for event in events[: len(old)]] == old
        assert added == (["note"] if is_good(told) else ["wal.repaired", "note"])
        for run_id, hashes in told["histories"].items():
            if isinstance(hashes, list):
                assert [event.hash for event in log.history(run_id)] == hashes
        assert [event.payload["i"] for event in log.history("new")] == [1]
        assert log.verify_integrity().status is Status.OK_UNANCHORED


def test_this_version_seals_snapshots_and_compacts_what_the_old_one_wrote(
    name: str, copy: Path
) -> None:
    told = facts_about(name)
    with EventSourcingEngine.open(settings_of(copy)) as log:
        before = states_of(log.replay())
        with_ledger(log)
        log.snapshot("again")
        log.compact("again")
        assert log.verify_integrity().status is Status.OK_UNANCHORED
        assert states_of(log.replay()) == before
        assert set(before) == set(told["states"])
        for run_id, hashes in told["histories"].items():
            if run_id in before and before[run_id]["delivered"] is None:
                assert [event.hash for event in log.history(run_id)] == hashes


def with_ledger(log: EventSourcingEngine) -> None:
    """See that the ledger that lies there, or a new one, is the fold of the log."""
    database = Database(log.settings.ledger_path)
    try:
        ledger = RunLedger(database, log)
        ledger.catch_up()
        assert {run.run_id: run for run in ledger.runs(limit=1000)} == log.replay()
    finally:
        database.close()


def test_an_old_anchor_still_vouches_and_still_accuses(tmp_path: Path) -> None:
    (name,) = (each for each in NAMES if (LOGS / each / "anchors").exists())
    told = facts_about(name)
    anchors = AnchorDirectory(LOGS / name / "anchors").read(told["log_id"])
    directory = tmp_path / name
    shutil.copytree(LOGS / name, directory)
    with EventSourcingEngine.open(settings_of(directory), create=False) as log:
        assert log.verify_integrity(anchors=anchors).status is Status.OK_ANCHORED
        (anchor,) = anchors
        forged = Anchor(anchor.log_id, anchor.seq, "0" * 64, anchor.at)
        assert log.verify_integrity(anchors=[forged]).status is Status.FORKED


def test_the_log_of_a_later_version_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    path = settings_of(tmp_path).event_sourcing_wal
    path.parent.mkdir()
    old = (LOGS / "format-1-vectors" / "state" / path.name).read_bytes()
    path.write_bytes(old.replace(b"#celery-wal/1|", b"#celery-wal/2|", 1))
    path.chmod(0o600)
    before = path.read_bytes()
    for create in (True, False):
        with pytest.raises(NotALog, match="celery-wal/1"):
            EventSourcingEngine.open(settings_of(tmp_path), create=create)
    assert path.read_bytes() == before


@pytest.mark.slow
def test_no_golden_log_gets_into_a_package(tmp_path: Path) -> None:
    pytest.importorskip("setuptools", minversion="77")
    for each in ("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        if (ROOT / each).exists():
            shutil.copy(ROOT / each, tmp_path)
    for room in (*ROOMS, "tests/golden"):
        shutil.copytree(ROOT / room, tmp_path / room, ignore=shutil.ignore_patterns("__pycache__"))
    build = "import setuptools.build_meta as b; print(b.build_sdist('.'))"
    done = subprocess.run(
        [sys.executable, "-c", build], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    with tarfile.open(tmp_path / done.stdout.split()[-1]) as archive:
        names = archive.getnames()
    assert any(each.endswith("engine/files.py") for each in names)
    assert not [each for each in names if "golden" in each]
