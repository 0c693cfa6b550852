"""A snapshot holds every run's state and the events of unfinished runs; only what the chain says of it counts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from celery_commander.engine import (
    EventSourcingEngine,
    SnapshotMismatch,
    Status,
    UnknownSnapshot,
)
from celery_commander.engine.dead_letters import DeadLetterQueue
from celery_commander.engine.events import Position
from celery_commander.engine.files import Files
from celery_commander.engine.ledger_view import LedgerView, restore
from celery_commander.engine.snapshot_file import Head, SnapshotFile, SnapshotWriter
from celery_commander.engine.tables import LEDGER
from celery_commander.engine.wal import StoredLine
from tests.engine.histories import LIVE, STORIES, hash_of, ledger_of, opened, stored, tell
from tests.engine.ledgers import DELIVERS, rows, write
from tests.engine.logs import flip
from tests.engine.story import COMPENSATED, STUCK

HEAD = Head("id", "s", "log", Position(9, 1, 90), "0" * 64, "2026-01-01T00:00:00+00:00", 1)


def file_of(path: Path) -> SnapshotFile:
    return SnapshotFile(Files(), path)


def test_a_snapshot_holds_every_state_and_the_lines_of_what_is_unfinished(tmp_path: Path) -> None:
    with opened(tmp_path) as engine:
        tell(engine)
        before = stored(engine, LIVE)
        snapshot = engine.snapshot("nightly")
        file = file_of(snapshot.path)

        assert [row["run_id"] for row in file.runs()] == sorted(STORIES)
        assert {run_id for run_id, _ in file.events()} == set(LIVE)
        for run_id in STORIES:
            kept = [line.line for line in file.lines(run_id)]
            assert kept == (before[run_id] if run_id in LIVE else [])
            found = file.run(run_id)
            assert found is not None
            assert found["run_id"] == run_id
        assert file.run("nobody") is None
        assert file.run("") is None
        assert file.run("zzz") is None


@pytest.mark.parametrize("part", ["R", "L", "T"])
def test_a_line_that_is_none_is_told_as_a_snapshot_that_is_not_believed(
    tmp_path: Path, part: str
) -> None:
    """Whoever gets here has hashed the file: it was written so, by a broken writer or by a forger."""
    path = tmp_path / "s"
    with path.open("wb") as written:
        writer = SnapshotWriter(Files(), written.fileno(), HEAD)
        writer.row("letters", {})
        writer.run("r", {"run_id": "r"})
        writer.event("r", StoredLine(1, b"0" * 64, b"1" * 64 + b"|note|{}", 1, 90))
        writer.finish()
    file = SnapshotFile(Files(), path)
    reads: dict[str, list[Callable[[], object]]] = {
        "T": [lambda: list(file.rows())],
        "R": [lambda: list(file.runs()), lambda: file.run("r")],
        "L": [lambda: list(file.events()), lambda: file.lines("r")],
    }
    assert all(read() for read in reads[part])
    harm = {
        "T": (b"T letters {", b"T letters !"),
        "R": (b'"r" {', b'"r" !'),
        "L": (b"000 ", b"00 0"),
    }
    path.write_bytes(path.read_bytes().replace(*harm[part], 1))
    for read in reads[part]:
        with pytest.raises(SnapshotMismatch, match="cannot be read"):
            read()


def test_one_run_of_many_is_found_by_halving_wherever_it_stands(tmp_path: Path) -> None:
    names = [f"{'x' * (n % 40)}{n}" for n in range(300)]
    with opened(tmp_path) as engine:
        for name in names:
            write(engine, name, ("run.created",) if len(name) % 3 else DELIVERS)
        file = file_of(engine.snapshot("s").path)

        for name in names:
            assert (file.run(name) or {})["run_id"] == name
            assert len(file.lines(name)) == (1 if len(name) % 3 else 0)
            assert file.run(f"{name}!") is None
            assert file.lines(f"{name}!") == []


def test_a_snapshot_is_found_by_name_and_by_id_and_read_from(tmp_path: Path) -> None:
    with opened(tmp_path) as engine:
        tell(engine)
        first = engine.snapshot("nightly")
        write(engine, "later")
        second = engine.snapshot("nightly")
        write(engine, "latest", ("run.created",))

        assert engine.snapshots() == [first, second]
        after_first = [event.run_id for event in engine.read_from(first.id)]
        assert after_first.count("later") == 5
        assert [e.run_id for e in engine.read_from("nightly")].count("later") == 0
        assert list(engine.read_from("nightly"))[-1].run_id == "latest"

        async def streamed() -> list[int]:
            return [event.seq async for event in engine.stream_from(first.id)]

        assert asyncio.run(streamed()) == [event.seq for event in engine.read_from(first.position)]
        with pytest.raises(UnknownSnapshot) as refused:
            engine.read_from("weekly")
        assert "nightly" in str(refused.value)


def test_another_process_finds_the_same_snapshots(tmp_path: Path) -> None:
    with opened(tmp_path) as engine:
        tell(engine)
        taken = engine.snapshot("nightly")
        with opened(tmp_path) as other:
            assert other.snapshots() == [taken]


def test_a_snapshot_of_an_empty_log_is_one(tmp_path: Path) -> None:
    with opened(tmp_path) as engine:
        snapshot = engine.snapshot("empty")
        file = file_of(snapshot.path)
        assert (list(file.runs()), list(file.events()), file.run("x")) == ([], [], None)
        assert engine.compact("empty").removed_events == 0


@pytest.mark.parametrize("name", ["", "../up", "a b", "x" * 65, "-dash"])
def test_a_name_that_could_not_be_told_apart_is_refused(tmp_path: Path, name: str) -> None:
    with opened(tmp_path) as engine, pytest.raises(ValueError, match="must match"):
        engine.snapshot(name)


def compacted(directory: Path) -> tuple[str, Path]:
    with opened(directory) as engine:
        tell(engine)
        before = hash_of(engine.replay())
        snapshot = engine.snapshot("nightly")
        assert engine.compact("nightly").removed_events > 0
        return before, snapshot.path


@pytest.mark.parametrize("what", ["edited", "missing", "cut", "longer"])
def test_a_snapshot_that_was_tampered_with_is_never_believed(tmp_path: Path, what: str) -> None:
    _, path = compacted(tmp_path)
    spoil(path, what)
    with opened(tmp_path) as engine, ledger_of(engine, tmp_path / "other.sqlite") as ledger:
        for use in (engine.replay, ledger.rebuild, lambda: engine.history("d-pending")):
            with pytest.raises(SnapshotMismatch) as refused:
                use()
            assert path.name in str(refused.value) or what == "missing"
        report = engine.verify_integrity()
        assert (report.status, report.exit_code) == (Status.SNAPSHOT_MISMATCH, 38)
        with pytest.raises((SnapshotMismatch, UnknownSnapshot)):
            engine.compact("nightly")


def spoil(path: Path, what: str) -> None:
    if what == "edited":
        flip(path, path.stat().st_size // 2)
    elif what == "missing":
        path.unlink()
    elif what == "cut":
        path.write_bytes(path.read_bytes()[:-1])
    else:
        path.write_bytes(path.read_bytes() + b"R\n")


def test_an_edit_is_noticed_by_a_process_that_has_hashed_the_file_before(tmp_path: Path) -> None:
    _, path = compacted(tmp_path)
    with opened(tmp_path) as engine:
        assert engine.history("d-pending")
        flip(path, path.stat().st_size // 2)
        with pytest.raises(SnapshotMismatch):
            engine.history("d-pending")


def test_an_older_snapshot_serves_where_the_newest_is_broken(tmp_path: Path) -> None:
    before, _ = compacted(tmp_path)
    with opened(tmp_path) as engine:
        broken = engine.snapshot("broken")
        flip(broken.path, broken.path.stat().st_size // 2)
        assert hash_of(engine.replay()) == before
        assert engine.verify_integrity().status is Status.SNAPSHOT_MISMATCH


def test_a_snapshot_by_other_rules_has_its_unfinished_runs_folded_anew(tmp_path: Path) -> None:
    from celery_commander.engine.ledger_view import states_of

    with opened(tmp_path) as engine:
        tell(engine)
        now = engine.replay()
        file = file_of(engine.snapshot("s").path)
        head = file.head()
        assert head is not None
        lines = file.path.read_bytes().splitlines(keepends=True)
        older = [line for line in lines if not line.startswith(b"R ")]
        rows_of_old = [_without_a_column(line) for line in lines if line.startswith(b"R ")]
        first = lines[0].replace(b'"fold_version":%d' % head.fold_version, b'"fold_version":0')
        file.path.write_bytes(b"".join([first, *rows_of_old, *older[1:]]))
        old_head = file.head()
        assert old_head is not None
        assert states_of(file, old_head) == now


def test_a_snapshot_by_other_rules_has_its_letters_made_anew(tmp_path: Path) -> None:
    """Version 2 had an open letter of every body that raised."""
    with opened(tmp_path) as engine, ledger_of(engine, tmp_path / "other.sqlite") as ledger:
        write(engine, "r-1", COMPENSATED)
        write(engine, "r-2", STUCK)
        ledger.catch_up()
        file = file_of(engine.snapshot("s").path)
        database = ledger._database
        queue = DeadLetterQueue(database)
        now = queue.list(open_only=False)
        assert [one.resolution for one in now] == [None, "stuck", "told"]

        head = file.head()
        assert head is not None
        lines = file.path.read_bytes().splitlines(keepends=True)
        lines[0] = lines[0].replace(b'"fold_version":%d' % head.fold_version, b'"fold_version":2')
        file.path.write_bytes(b"".join(_open_if_told(line) for line in lines))
        old_head = file.head()
        assert old_head is not None
        with database.begin() as connection:
            LEDGER.drop_all(connection)
            LEDGER.create_all(connection)
            restore(connection, file, old_head)
            assert connection.exec_driver_sql("SELECT count(*) FROM dead_letters").scalar() == 3

        assert queue.list(open_only=False) == now


def _open_if_told(line: bytes) -> bytes:
    """Return a letter's line as version 2 wrote it."""
    if not line.startswith(b"T dead_letters ") or b'"told"' not in line:
        return line
    front, _, row = line.partition(b' {"')
    values = json.loads(b'{"' + row) | {"resolution": None, "resolved_at": None}
    return front + b" " + json.dumps(values).encode() + b"\n"


def _without_a_column(line: bytes) -> bytes:
    front, _, row = line.partition(b' {"')
    values = json.loads(b'{"' + row)
    values.pop("released")
    values["n"] = values["n"] if values["settled"] else 99  # an older rule's answer
    return front + b" " + json.dumps(values).encode() + b"\n"


def test_the_backlog_is_what_no_snapshot_covers(tmp_path: Path) -> None:
    with opened(tmp_path) as engine, ledger_of(engine, tmp_path / "other.sqlite") as ledger:
        write(engine, "over", DELIVERS)
        write(engine, "live", ("run.created", "run.started@1"))
        ledger.catch_up()
        assert ledger.backlog() == 2
        engine.snapshot("s")
        ledger.catch_up()
        assert ledger.backlog() == 0
        write(engine, "new", ("run.created",))
        ledger.catch_up()
        assert ledger.backlog() == 1
        write(engine, "soon", DELIVERS[:-1])
        ledger.catch_up()
        assert ledger.backlog() == 6
        engine.append(
            "run.delivered", {"outcome": "COMMITTED"}, run_id="soon", token=1, n=5, wait=False
        )
        ledger.catch_up()
        assert ledger.backlog() == 1
        assert ledger.rebuild() > 0
        assert ledger.backlog() == 1


def test_what_was_appended_while_a_snapshot_was_written_is_not_in_it(tmp_path: Path) -> None:
    with opened(tmp_path) as engine, ledger_of(engine, tmp_path / "other.sqlite") as ledger:
        write(engine, "live", ("run.created",))
        snapshots = engine._snapshots
        real = snapshots._fill

        def late(writer: SnapshotWriter, view: LedgerView) -> None:
            write(engine, "meanwhile", ("run.created", "run.started@1"))
            engine.append("run.started", {"task": "t"}, run_id="live", token=1, n=1)
            real(writer, view)

        snapshots._fill = late  # type: ignore[method-assign]  # a writer at a chosen moment
        snapshot = engine.snapshot("s")
        ledger.catch_up()
        assert ledger.backlog() == 3
        assert all(line.seq <= snapshot.through for _, line in file_of(snapshot.path).events())
        assert len(file_of(snapshot.path).lines("live")) == 1
        assert engine.replay() == rows(ledger)


def test_gaps_are_counted_as_the_log_tells_them(tmp_path: Path) -> None:
    with opened(tmp_path) as engine, ledger_of(engine, tmp_path / "other.sqlite") as ledger:
        assert ledger.gaps().events == 0
        engine.append("subscriber.gap", {"count": 3, "since": "x"})
        ledger.catch_up()
        last = engine.append("subscriber.gap", {"count": 4, "since": "x"})
        ledger.catch_up()
        assert (ledger.gaps().events, ledger.gaps().last_at) == (7, last.timestamp)
        engine.snapshot("s")
        engine.compact("s")
        for look in (ledger.catch_up, ledger.rebuild):
            look()
            assert (ledger.gaps().events, ledger.gaps().last_at) == (7, last.timestamp)
        engine.append("subscriber.gap", {"count": 1, "since": "x"})
        ledger.catch_up()
        assert ledger.gaps().events == 8


def test_a_snapshot_from_before_gaps_were_kept_is_read(tmp_path: Path) -> None:
    with opened(tmp_path) as engine:
        line = engine.snapshot("s").path.read_bytes().splitlines()[0]
        head = Head.parse(line)
        assert head is not None
        older = line.replace(b',"gaps":0,"gap_at":null', b"")
        assert older != line
        assert Head.parse(older) == head


def test_the_ledger_may_lie_beside_another_engine(tmp_path: Path) -> None:
    with EventSourcingEngine.open(tmp_path / "events.wal") as engine:
        tell(engine)
        with ledger_of(engine, tmp_path / "mine.sqlite") as ledger:
            ledger.catch_up()
            engine.snapshot("s")
            ledger.catch_up()
            assert rows(ledger) == engine.replay()
