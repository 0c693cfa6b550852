"""A snapshot may come to hold the only copy of a run's lines: none is taken without them, none is thrown away."""

from __future__ import annotations

import errno
import os
from array import array
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

import celery_commander.engine.wal.index as index_module
from celery_commander.engine import (
    Event,
    EventSourcingEngine,
    Fenced,
    LogUnavailable,
    Settings,
    SnapshotMismatch,
    StoreUnavailable,
)
from celery_commander.engine.files import Files
from celery_commander.engine.wal.index_store import IndexLost, IndexStore, Mark
from tests.engine.forked import Forked
from tests.engine.histories import LIVE, opened, stored, tell
from tests.engine.ledgers import change, write
from tests.engine.story import COMPENSATED

INDEX = "event-sourcing.wal.d/index.sqlite"


@pytest.fixture
def _small_tail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "TAIL_EVENTS_MAX", 10)
    monkeypatch.setattr(index_module, "CHUNK_BYTES", 4096)


def remove_index(directory: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        (directory / f"{INDEX}{suffix}").unlink(missing_ok=True)


@pytest.mark.usefixtures("_small_tail")
@pytest.mark.parametrize("more", [0, 200])
def test_a_child_whose_parents_index_was_removed_looks_anew(tmp_path: Path, more: int) -> None:
    """It may hand over what it saw itself first; a database of that alone must not pass for a whole one."""
    with opened(tmp_path) as engine:
        tell(engine)
        before = stored(engine, LIVE)
        assert (tmp_path / INDEX).exists()
        remove_index(tmp_path)

        def look(_: Forked) -> dict[str, list[bytes]]:
            for number in range(more):
                engine.append("note", {"n": number}, run_id=f"y-{number % 3}", wait=False)
                engine._log.index.catch_up()
            return stored(engine, LIVE)

        with Forked(look) as child:
            assert child.result() == before
        assert stored(engine, LIVE) == before
    with opened(tmp_path) as engine:
        assert stored(engine, LIVE) == before


@pytest.mark.parametrize("others", [None, ("log", 10), ("another", 30)])
def test_a_database_that_goes_less_far_than_it_was_relied_on_is_lost(
    tmp_path: Path, others: tuple[str, int] | None
) -> None:
    def save(store: IndexStore, seq: int) -> bool:
        tail = {b'"r"': array("q", (seq, 1, -1, 0, 9))}
        return store.save(Mark(seq, 9, 0, "0" * 64, 1), tail, {})

    path = tmp_path / "index.sqlite"
    store = IndexStore(path, "log")
    assert save(store, 20)
    store.close()
    assert store.hits(b'"r"').found == [(20, 1, -1, 0, 9)]
    store.close()
    path.unlink()
    if others is not None:
        log_id, seq = others
        another = IndexStore(path, log_id)
        assert save(another, seq)
        another.close()
    for ask in (partial(store.hits, b'"r"'), store.fences):
        with pytest.raises(IndexLost):
            ask()
    assert not save(store, 40)
    store.discard()
    assert save(store, 40)
    store.close()


@pytest.mark.usefixtures("_small_tail")
@pytest.mark.parametrize("harm", ["delete from hits", "delete from hits where seq % 2"])
def test_a_snapshot_is_not_taken_from_an_index_that_lacks_events(tmp_path: Path, harm: str) -> None:
    with opened(tmp_path) as engine:
        tell(engine)
        before = stored(engine, LIVE)
    change(tmp_path / INDEX, harm)
    with opened(tmp_path) as engine:
        engine.snapshot("s")
        engine.compact("s")
        assert stored(engine, LIVE) == before
    with opened(tmp_path) as engine:
        assert stored(engine, LIVE) == before


def test_a_ledger_that_says_something_else_is_made_anew_before_a_snapshot(tmp_path: Path) -> None:
    with opened(tmp_path) as engine:
        tell(engine)
        states = engine.replay()
        engine.snapshot("first")
        change(engine.settings.ledger_path, "update runs set n = 99 where run_id = 'd-pending'")
        engine.snapshot("s")
        engine.compact("s")
        assert engine.replay() == states


def test_lines_that_are_gone_for_good_are_told_and_no_snapshot_is_left(tmp_path: Path) -> None:
    """As a snapshot by an older version may have left them behind."""
    with opened(tmp_path) as engine:
        tell(engine)
        entries = engine._log.index.entries
        engine._log.index.entries = lambda run_id: entries(run_id)[:-1]  # type: ignore[method-assign]
        with pytest.raises(StoreUnavailable, match="not what its events come to"):
            engine.snapshot("s")
        assert os.listdir(tmp_path / "event-sourcing.wal.d" / "snapshots") == []


@pytest.mark.parametrize("harmed", ["log_id", "position", "fold_version"])
def test_a_snapshot_with_a_harmed_first_line_is_not_thrown_away(
    tmp_path: Path, harmed: str
) -> None:
    with opened(tmp_path) as engine:
        tell(engine)
        before = stored(engine, LIVE)
        path = engine.snapshot("s").path
        engine.compact("s")
        engine.append("note", {})
    good = path.read_bytes()
    at = good.index(b'"%b":' % harmed.encode()) + len(harmed) + 4
    while chr(good[at]) not in "0123456789abcdef":
        at += 1
    path.write_bytes(good[:at] + (b"1" if good[at : at + 1] == b"2" else b"2") + good[at + 1 :])
    assert path.read_bytes() != good
    with opened(tmp_path) as engine:
        with pytest.raises(SnapshotMismatch):
            engine.snapshot("next")
        assert path.exists()
        assert engine.verify_integrity().exit_code == 38
    path.write_bytes(good)
    with opened(tmp_path) as engine:
        assert stored(engine, LIVE) == before
        engine.snapshot("next")
        assert stored(engine, LIVE) == before


def test_what_a_killed_one_left_is_removed_though_others_count(tmp_path: Path) -> None:
    def killed(*_: object, **__: object) -> list[Event]:
        raise KeyboardInterrupt

    with opened(tmp_path) as engine:
        tell(engine)
        first = engine.snapshot("s")
        write(engine, "more")
        engine._log.append = killed  # type: ignore[method-assign]  # its file stands, nothing is told
        with pytest.raises(KeyboardInterrupt):
            engine.snapshot("left")
        assert len(list(first.path.parent.iterdir())) == 2
    strange = first.path.with_name(f"{'9' * 20}-strange.snapshot")
    strange.write_text("somebody's")
    with opened(tmp_path) as engine:
        last = engine.snapshot("t")
        assert set(first.path.parent.iterdir()) == {first.path, last.path, strange}
        assert engine.verify_integrity().exit_code == 38


def test_a_late_owner_of_a_run_that_ended_is_still_refused_after_compaction(tmp_path: Path) -> None:
    with opened(tmp_path) as late, opened(tmp_path) as engine:
        late.append("note", {})
        write(engine, "r", ("run.created", "run.started@1"))
        engine.append("run.fenced", {"holder": "h"}, run_id="r", token=2)
        engine.append("run.started", {}, run_id="r", token=2, n=2)
        engine.append("run.committed", {}, run_id="r", token=2, n=3)
        engine.append("run.delivered", {"outcome": "COMMITTED"}, run_id="r", token=2, n=4)
        assert engine.replay()["r"].settled
        engine.snapshot("s")
        engine.compact("s")
        with opened(tmp_path) as fresh:
            for one in (engine, late, fresh):
                with pytest.raises(Fenced):
                    one.append("step.started", {"step": 0}, run_id="r", token=1, n=2)


class Full(Files):
    """A disk on which snapshots find no room."""

    def write_at(self, fd: int, data: bytes, offset: int) -> None:
        if ".snapshot" in os.readlink(f"/proc/self/fd/{fd}"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().write_at(fd, data, offset)


def test_a_full_disk_is_told_as_such_and_keeps_no_half_of_a_snapshot(tmp_path: Path) -> None:
    with opened(tmp_path, files=Full()) as engine:
        tell(engine)
        with pytest.raises(LogUnavailable, match="No space left"):
            engine.snapshot("s")
        assert os.listdir(tmp_path / "event-sourcing.wal.d" / "snapshots") == []
        write(engine, "later")
    with opened(tmp_path) as engine:
        assert engine.snapshot("s").through == engine.head()[0] - 1


def test_lines_for_an_open_letter_are_let_go_when_it_lapses(tmp_path: Path) -> None:
    ahead = timedelta(0)

    def now() -> datetime:
        return datetime.now(UTC) + ahead

    def kept(days: int) -> int:
        settings = Settings(state_directory=tmp_path, dead_letter_days=days)
        with EventSourcingEngine.open(settings, now=now) as engine:
            path = engine.snapshot("s").path
            engine.compact("s")
            assert engine.replay()["r"].letter is not None
            return sum(line.startswith(b"L ") for line in path.read_bytes().splitlines())

    with opened(tmp_path) as engine:
        write(engine, "r", (*COMPENSATED, "run.delivered@5"))
        assert engine.replay()["r"].settled
        whole = len(engine.history("r"))
    assert kept(30) == whole
    ahead = timedelta(days=40)
    assert kept(50) == whole
    assert kept(30) == 0
    assert kept(50) == 0  # let go before: no reason to refuse a snapshot
