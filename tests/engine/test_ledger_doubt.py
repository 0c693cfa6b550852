"""A ledger that could be wrong is never trusted: it is made anew from the log."""

from __future__ import annotations

import os
import shutil

import pytest

from celery_commander.engine.database import Database
from celery_commander.engine.engine import EventSourcingEngine
from celery_commander.engine.errors import LogCorrupt, StoreUnavailable
from celery_commander.engine.ledger import RunLedger
from tests.engine.ledgers import COMMITS, change, everything, holds, rows, write


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE folded SET log_id = 'another'",
        "UPDATE folded SET fold_version = fold_version - 1",
        "UPDATE folded SET fold_version = fold_version + 1",
        "UPDATE folded SET hash = replace(hash, substr(hash, 1, 1), 'x')",
        "UPDATE folded SET position = 'nowhere'",
        "UPDATE folded SET position = '999999:1:99999999'",
        "UPDATE folded SET position = '3:1:5'",
        "UPDATE folded SET before = '3:1:5'",
        "UPDATE folded SET before = '3:7:5'",
        "UPDATE folded SET before = NULL",
        "UPDATE folded SET before = 'x'",
        "UPDATE folded SET position = x'00'",
        "UPDATE folded SET position = 17",
        "DELETE FROM folded",
        "DROP TABLE folded",
        "DROP TABLE runs",
        "ALTER TABLE runs DROP COLUMN deaths",
        "ALTER TABLE folded DROP COLUMN hash",
    ],
)
def test_a_ledger_of_doubtful_origin_is_made_anew(ledger, engine, path, statement):
    for number in range(3):
        write(engine, f"r-{number}")
    ledger.catch_up()
    change(path, statement)
    write(engine, "r-new")

    assert ledger.catch_up() == everything(engine)
    assert holds(ledger, engine)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE runs SET state = 'ELSEWHERE'",
        "UPDATE runs SET open_steps = '[1'",
        "UPDATE runs SET created_at = 'yesterday'",
        "UPDATE runs SET last_seq = 1000000",
    ],
)
def test_a_row_that_is_not_ours_is_found_when_its_run_goes_on(ledger, engine, path, statement):
    write(engine, "r-1")
    ledger.catch_up()
    change(path, statement)
    write(engine, "r-1", ("run.delivered@1",))

    assert ledger.catch_up() == everything(engine)
    assert holds(ledger, engine)


def test_a_row_that_is_not_ours_is_not_handed_out(ledger, engine, path):
    write(engine, "r-1")
    ledger.catch_up()
    change(path, "UPDATE runs SET state = 'ELSEWHERE'")

    with pytest.raises(StoreUnavailable, match="not ours"):
        ledger.get("r-1")
    ledger.rebuild()
    assert holds(ledger, engine)


@pytest.mark.parametrize(
    "garbage", [b"", b"garbage", b"SQLite format 3\x00" + b"\xff" * 8192, os.urandom(20_000)]
)
def test_a_file_of_garbage_is_replaced(engine, path, garbage):
    path.write_bytes(garbage)
    write(engine, "r-1")
    ledger = RunLedger(Database(path), engine)

    assert ledger.catch_up() == everything(engine)
    assert holds(ledger, engine)


def test_a_file_that_breaks_while_it_is_open_is_replaced(ledger, engine, path):
    for number in range(200):
        write(engine, f"r-{number}")
    ledger.catch_up()
    change(path, "PRAGMA wal_checkpoint(TRUNCATE)")
    size = path.stat().st_size
    with path.open("r+b") as file:  # the first page stays: the file still opens
        file.seek(4096)
        file.write(b"\xa5" * (size - 4096))
    ledger._database.close()
    for number in range(200):
        write(engine, f"r-{number}", ("run.delivered@1",))

    assert ledger.catch_up() == everything(engine)
    assert holds(ledger, engine)


def test_a_file_that_is_missing_is_made_anew(ledger, engine, path):
    write(engine, "r-1")
    ledger.catch_up()
    path.unlink()

    assert ledger.catch_up() == everything(engine)
    assert holds(ledger, engine)


def test_a_log_that_lost_its_tail_takes_the_ledger_back(tmp_path, path):
    log = tmp_path / "log"
    with EventSourcingEngine.open(log / "wal") as engine:
        write(engine, "r-1", COMMITS[:2])
    shutil.copytree(log, tmp_path / "earlier")
    with EventSourcingEngine.open(log / "wal") as engine:
        write(engine, "r-1", ("step.started@1",))
        write(engine, "r-2")
        RunLedger(Database(path), engine).catch_up()

    shutil.rmtree(log)
    (tmp_path / "earlier").rename(log)
    with EventSourcingEngine.open(log / "wal") as engine:
        ledger = RunLedger(Database(path), engine)
        assert ledger.catch_up() == everything(engine)
        assert holds(ledger, engine)
        assert ledger.get("r-2") is None


def test_a_log_that_lost_its_tail_and_grew_another_takes_the_ledger_back(tmp_path, path):
    log = tmp_path / "log"
    with EventSourcingEngine.open(log / "wal") as engine:
        write(engine, "r-1", COMMITS[:2])
    shutil.copytree(log, tmp_path / "earlier")
    with EventSourcingEngine.open(log / "wal") as engine:
        write(engine, "r-2")
        RunLedger(Database(path), engine).catch_up()

    shutil.rmtree(log)
    (tmp_path / "earlier").rename(log)
    with EventSourcingEngine.open(log / "wal") as engine:
        write(engine, "r-3")
        write(engine, "r-4")
        ledger = RunLedger(Database(path), engine)
        assert ledger.catch_up() == everything(engine)
        assert holds(ledger, engine)


def test_another_log_gets_another_ledger(tmp_path, path):
    for name in ("one", "two"):
        with EventSourcingEngine.open(tmp_path / name / "wal") as engine:
            write(engine, f"r-{name}")
            ledger = RunLedger(Database(path), engine)
            assert ledger.catch_up() == everything(engine)
            assert list(rows(ledger)) == [f"r-{name}"]


def test_a_corrupt_log_leaves_the_ledger_as_it_was(ledger, engine):
    write(engine, "r-1")
    write(engine, "r-2")
    ledger.catch_up()
    before = rows(ledger)
    write(engine, "r-3")
    content = bytearray(engine.path.read_bytes())
    content[-10] ^= 1
    engine.path.write_bytes(content)

    with pytest.raises(LogCorrupt):
        ledger.catch_up()
    with pytest.raises(LogCorrupt):
        ledger.rebuild()
    assert rows(ledger) == before


def test_a_database_that_cannot_be_opened_is_said_and_not_deleted(engine, tmp_path):
    (tmp_path / "folder").mkdir()
    ledger = RunLedger(Database(tmp_path / "folder"), engine)

    with pytest.raises(StoreUnavailable):
        ledger.catch_up()
    assert (tmp_path / "folder").is_dir()


def test_rebuilding_gives_the_same_rows(filled, engine):
    before = rows(filled)

    assert filled.rebuild() == everything(engine)
    assert rows(filled) == before
