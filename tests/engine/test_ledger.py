"""The ledger catches up with the log and answers by index."""

from __future__ import annotations

import sqlite3
from dataclasses import replace

import pytest

from celery_commander.engine.database import Database
from celery_commander.engine.fold import State
from celery_commander.engine.ledger_rows import save
from tests.engine.ledgers import COMMITS, DELIVERS, holds, lines_of, rows, write

# --- catching up ----------------------------------------------------------------------------------


def test_before_the_first_catch_up_nothing_is_known(ledger, engine):
    write(engine, "r-1")

    assert ledger.folded_through is None
    assert ledger.get("r-1") is None
    assert ledger.runs() == []


def test_catching_up_folds_what_is_new_and_says_how_much(ledger, engine):
    write(engine, "r-1")
    assert ledger.catch_up() == 1 + len(COMMITS)  # wal.created is an event, too
    assert ledger.catch_up() == 0

    write(engine, "r-2", ("run.created", "run.started@1"))
    assert ledger.catch_up() == 2
    assert ledger.folded_through.seq == engine.head()[0]
    assert holds(ledger, engine)


def test_a_run_goes_on_where_the_last_catch_up_left_it(ledger, engine):
    for new in lines_of("r-1", DELIVERS):
        engine.append_many([new], wait=False)
        ledger.catch_up()
        assert holds(ledger, engine)
    assert ledger.get("r-1").delivered


def test_a_limit_bounds_the_events_of_one_call(ledger, engine):
    write(engine, "r-1")

    taken = []
    while count := ledger.catch_up(limit=4):
        taken.append(count)
        assert ledger.folded_through.seq == sum(taken)
    assert taken == [4, 2]
    assert holds(ledger, engine)


def test_many_batches_end_as_one(ledger, engine, monkeypatch):
    monkeypatch.setattr("celery_commander.engine.ledger.BATCH_EVENTS", 7)
    for number in range(20):
        write(engine, f"r-{number}")

    assert ledger.catch_up() == 1 + 20 * len(COMMITS)
    assert holds(ledger, engine)


def test_more_runs_than_one_query_names_are_found_again(ledger, engine):
    for number in range(1_200):
        write(engine, f"r-{number:04}", ("run.created",))
    ledger.catch_up()
    for number in range(1_200):
        engine.append("run.started", {}, run_id=f"r-{number:04}", token=1, n=1, wait=False)

    assert ledger.catch_up() == 1_200
    assert ledger.counts()[State.EXECUTING] == 1_200
    assert holds(ledger, engine)


def test_void_and_unknown_events_leave_the_rows_alone(ledger, engine):
    write(engine, "r-1")
    ledger.catch_up()
    before = rows(ledger)

    write(engine, "r-1", ("task.succeeded", "run.started@9", "run.created"))
    write(engine, "r-2", ("run.started@1", "task.sent"))

    assert ledger.catch_up() == 5
    assert rows(ledger) == before


# --- questions ------------------------------------------------------------------------------------


def test_recovery_looks_at_all_runs_that_are_not_settled(filled):
    assert [run.run_id[0] for run in filled.candidates("shop", 100)] == list("acdefgi")
    assert [run.run_id[0] for run in filled.candidates("other", 100)] == ["j"]
    assert filled.candidates("nobody", 100) == []


def test_candidates_come_in_pages(filled):
    pages, after = [], None
    while page := filled.candidates("shop", 3, after):
        pages.append([run.run_id[0] for run in page])
        after = page[-1].run_id

    assert pages == [list("acd"), list("efg"), ["i"]]


def test_runs_are_counted_by_state(filled):
    counts = filled.counts()

    assert list(counts) == list(State)
    assert counts[State.COMMITTED] == 2
    assert counts[State.PENDING] == 2
    assert counts[State.STUCK] == 2
    assert counts[State.COMPENSATED] == 0
    assert sum(counts.values()) == 10


def test_runs_are_listed_newest_first_and_by_state(filled):
    assert [run.run_id[0] for run in filled.runs()] == list("jihgfedcba")
    assert [run.run_id[0] for run in filled.runs(limit=3, offset=2)] == list("hgf")
    assert [run.run_id[0] for run in filled.runs(State.STUCK)] == list("hg")
    assert filled.runs(State.COMPENSATED) == []


def test_one_run_is_found_by_its_id(filled):
    assert filled.get("e-paused").paused_kind == "timer"
    assert filled.get("nobody") is None


@pytest.mark.parametrize(
    "question, index",
    [
        (
            "SELECT * FROM runs WHERE namespace = 'x' AND settled = 0 AND run_id > 'r'"
            " ORDER BY run_id LIMIT 5",
            "runs_unsettled",
        ),
        (
            "SELECT queue, max(created_at) FROM runs WHERE namespace = 'x' AND attempt > 0"
            " GROUP BY queue",
            "runs_claimed",
        ),
        ("SELECT state, count(*) FROM runs GROUP BY state", "COVERING INDEX runs_by_state"),
        (
            "SELECT * FROM runs WHERE state = 'STUCK' ORDER BY created_at DESC, run_id DESC LIMIT 5",
            "runs_by_state",
        ),
        ("SELECT * FROM runs ORDER BY created_at DESC, run_id DESC LIMIT 5", "runs_by_age"),
    ],
)
def test_questions_are_answered_by_an_index_without_sorting(filled, path, question, index):
    connection = sqlite3.connect(path)
    plan = " ".join(row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {question}"))
    connection.close()

    assert index in plan
    assert "TEMP B-TREE" not in plan


def test_a_row_is_written_over_the_very_one_that_was_read(filled, path):
    database = Database(path)
    read = filled.get("c-pending")
    after = replace(read, last_seq=read.last_seq + 1, attempt=1)

    with database.begin() as connection:
        assert save(connection, {"c-pending": read}, {"c-pending": after}, {})
        assert not save(connection, {"c-pending": read}, {"c-pending": after}, {})
    assert filled.get("c-pending") == after
    database.close()


def test_a_run_that_did_not_change_is_not_written(filled, path):
    database = Database(path)
    read = filled.get("c-pending")

    with database.begin() as connection:
        assert save(connection, {"c-pending": read}, {"c-pending": read}, {})
        changes = connection.exec_driver_sql("SELECT total_changes()").scalar()
    assert changes == 0
    database.close()
