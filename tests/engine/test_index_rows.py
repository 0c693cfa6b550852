"""The database of the index may lose rows or be edited: a history comes out whole, or the index is made anew."""

from __future__ import annotations

import sqlite3
from array import array
from functools import partial
from pathlib import Path

import pytest

import celery_commander.engine.wal.index as index_module
from celery_commander.engine import EventSourcingEngine, HistoryArchived
from celery_commander.engine.wal import fences
from celery_commander.engine.wal.fences import Fences
from celery_commander.engine.wal.index_store import IndexStore, Mark
from tests.engine.histories import LIVE, opened, stored, tell
from tests.engine.ledgers import DELIVERS, change, write

INDEX = "event-sourcing.wal.d/index.sqlite"
RUN = "b-committed"
KEY = "x'" + f'"{RUN}"'.encode().hex() + "'"


@pytest.fixture(autouse=True)
def _small_tail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "TAIL_EVENTS_MAX", 10)
    monkeypatch.setattr(index_module, "CHUNK_BYTES", 4096)


def rows(directory: Path, statement: str) -> list[tuple[int, ...]]:
    connection = sqlite3.connect(directory / INDEX)
    try:
        return connection.execute(statement).fetchall()
    finally:
        connection.close()


@pytest.mark.parametrize(
    "harm",
    [
        f"delete from hits where run = {KEY} and seq = (select max(seq) from hits where run = {KEY})",
        f"delete from hits where run = {KEY} and seq = (select min(seq) from hits where run = {KEY})",
        f"delete from hits where run = {KEY}",
        f"delete from runs where run = {KEY}",
        f"update runs set events = 1 where run = {KEY}",
        "delete from hits",
        "delete from runs",
        "delete from mark",
        "drop table runs",
        "drop table hits",
        f"update hits set start = start + 1 where run = {KEY}",
        f"update hits set seq = seq + 1000 where run = {KEY}",
    ],
)
@pytest.mark.parametrize("is_open", [False, True], ids=["before", "while open"])
def test_a_history_is_whole_whatever_rows_are_lost(
    tmp_path: Path, harm: str, is_open: bool
) -> None:
    with opened(tmp_path) as engine:
        tell(engine)
        before = stored(engine, LIVE)
    assert len(before[RUN]) == 3
    with opened(tmp_path) as engine:
        if is_open:
            engine.history("d-pending")
        change(tmp_path / INDEX, harm)
        assert stored(engine, LIVE) == before


@pytest.mark.parametrize("lost", ["= (select max(seq) from hits where run = {})", "> 0"])
def test_rows_lost_with_their_count_are_missed_by_who_knows_of_a_later_event(
    tmp_path: Path, lost: str
) -> None:
    with opened(tmp_path) as engine:
        tell(engine)
        before = engine.history(RUN)
    gone = f"delete from hits where run = {KEY} and seq {lost.format(KEY)}"
    change(tmp_path / INDEX, gone)
    count = f"(select count(*) from hits where run = {KEY})"
    change(tmp_path / INDEX, f"update runs set events = {count} where run = {KEY}")
    with opened(tmp_path) as engine:
        assert engine.history(RUN) != before  # nobody but the ledger can tell
        assert engine.history(RUN, known_seq=before[-1].seq) == before
        assert engine.history(RUN) == before


def test_a_database_of_the_format_before_is_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "index.sqlite"
    old = sqlite3.connect(path)
    old.execute("create table mark (one integer primary key, version integer, log text, seq integer,"
                " start integer, last integer, hash text, file integer)")  # fmt: skip
    old.commit()
    old.close()
    store = IndexStore(path, "log")
    assert store.load(lambda _: True) is None
    assert store.save(Mark(5, 9, 0, "0" * 64, 1), {b'"r"': array("q", (5, 1, -1, 0, 9))}, {})
    assert store.hits(b'"r"').found == [(5, 1, -1, 0, 9)]
    store.close()


def test_two_processes_that_hand_over_the_same_events_count_them_once(tmp_path: Path) -> None:
    def tail(*seqs: int) -> dict[bytes, array[int]]:
        return {b'"r"': array("q", [n for seq in seqs for n in (seq, 1, -1, 0, 9)])}

    one, other = (
        IndexStore(tmp_path / "index.sqlite", "log"),
        IndexStore(tmp_path / "index.sqlite", "log"),
    )
    assert one.save(Mark(6, 9, 0, "0" * 64, 1), tail(5, 6), {})
    assert other.save(Mark(8, 9, 0, "0" * 64, 1), tail(5, 6, 7, 8), {})
    assert other.save(
        Mark(6, 9, 0, "0" * 64, 1), tail(5, 6), {}
    )  # late, and told that all is there
    for store in (one, other):
        assert [hit[0] for hit in store.hits(b'"r"').found] == [5, 6, 7, 8]
        store.close()


# What was compacted away


def grow(engine: EventSourcingEngine, name: str) -> None:
    for number in range(12):
        write(engine, f"{name}{number}", DELIVERS)
    engine.history(f"{name}0")


def test_the_index_lets_go_of_what_was_compacted_away(tmp_path: Path) -> None:
    with opened(tmp_path) as engine:
        tell(engine)
        before = stored(engine, LIVE)
        grow(engine, "x")
        sizes = []
        for _ in range(4):
            engine.snapshot("s")
            engine.compact("s")
            grow(engine, f"y{_}-")
            assert rows(tmp_path, "select min(file) from hits") == [(engine.first_seq,)]
            counted = "select count(*), (select sum(events) from runs) from hits"
            hits, events = rows(tmp_path, counted)[0]
            assert hits == events
            sizes.append(hits)
        assert max(sizes) < 2 * sizes[0]
        assert stored(engine, LIVE) == before
    with opened(tmp_path) as engine:
        assert stored(engine, LIVE) == before


@pytest.mark.parametrize("others", [0, 2, 12], ids=["nothing", "a little", "much"])
def test_who_looked_on_before_a_compaction_takes_no_ended_run_for_a_new_one(
    tmp_path: Path, others: int
) -> None:
    """It looked once more after the last sealing, so that nothing but the missing file tells of the compaction."""
    with opened(tmp_path) as engine, opened(tmp_path) as looker:
        tell(engine)
        grow(engine, "x")
        looker.history("x0")
        engine.snapshot("s")
        looker.history("d-pending")
        engine.compact("s")
        with opened(tmp_path) as newcomer:
            for number in range(others):
                write(newcomer, f"z{number}", DELIVERS)
            newcomer.history("z0")  # with enough that is new, it lets go of what is gone
        for run_id in ("c-delivered", "x3"):
            assert told(looker, run_id) in (len(DELIVERS), "COMMITTED")


def told(engine: EventSourcingEngine, run_id: str) -> int | str:
    """Return how many events there are of a run, or what it ended as; a file may still be open."""
    try:
        return len(engine.history(run_id))
    except HistoryArchived as archived:
        return archived.state


def test_only_so_many_kept_fences_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fences, "KEPT_MAX", 3)
    known = Fences()
    known.see(b"2", 9)
    asked: list[bytes] = []

    def ask(key: bytes) -> int:
        asked.append(key)
        return int(key)

    for key in (b"1", b"2", b"3", b"1", b"4", b"4", b"1"):
        assert known.highest(key, partial(ask, key)) == max(int(key), 9 if key == b"2" else 0)
    assert asked == [b"1", b"2", b"3", b"4", b"1"]
    assert known.highest(b"8", None) == 0
