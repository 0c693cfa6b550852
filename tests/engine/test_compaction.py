"""Compaction takes sealed files away and nothing else: no state, no unfinished history, no event of a writer."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from celery_commander.engine import (
    CompactionRefused,
    EventSourcingEngine,
    Fenced,
    HistoryArchived,
    LogCompacted,
    Position,
    RunState,
    Status,
    UnknownSnapshot,
)
from tests.engine.histories import (
    LIVE,
    STORIES,
    hash_of,
    ledger_of,
    opened,
    settings_in,
    stored,
    tell,
)
from tests.engine.ledgers import DELIVERS, lines_of, rows, write
from tests.engine.logs import flip
from tests.engine.test_ledger_is_the_fold import MOVE, make_move
from tests.kit.workers import ROOT

GOOD = Status.OK_UNANCHORED


def segments(directory: Path) -> list[Path]:
    return sorted(directory.glob("event-sourcing.wal.d/segments/*.wal"))


def archived(directory: Path) -> list[Path]:
    return sorted(directory.glob("event-sourcing.wal.d/archive/*.wal"))


def test_states_and_unfinished_histories_are_the_same_before_and_after(tmp_path: Path) -> None:
    with opened(tmp_path) as engine, ledger_of(engine, tmp_path / "other.sqlite") as ledger:
        tell(engine)
        engine.seal()
        tell(engine, prefix="second ")
        live = [*LIVE, *(f"second {run_id}" for run_id in LIVE)]
        ledger.catch_up()
        states, lines = engine.replay(), stored(engine, live)
        histories = {run_id: engine.history(run_id) for run_id in live}
        engine.snapshot("nightly")
        sealed = {path.name: path.read_bytes() for path in segments(tmp_path)}
        report = engine.compact("nightly")

        assert report.removed_events == engine.first_seq - 1 > 70
        assert report.reclaimed_bytes == sum(map(len, sealed.values()))
        assert {path.name: path.read_bytes() for path in archived(tmp_path)} == sealed
        assert segments(tmp_path) == []
        assert report.archived_to == archived(tmp_path)[0].parent
        for one in (engine, *_another(tmp_path)):
            assert one.replay() == states
            assert stored(one, live) == lines
            assert {run_id: one.history(run_id) for run_id in live} == histories
            assert one.verify_integrity().status is GOOD
        assert rows(ledger) == states
        ledger.rebuild()
        assert rows(ledger) == states
        write(engine, "later", DELIVERS)
        ledger.catch_up()
        assert rows(ledger) == engine.replay()


def _another(directory: Path) -> list[EventSourcingEngine]:
    """Return an engine of somebody who has neither an index nor anything else to go by."""
    for path in directory.glob("event-sourcing.wal.d/index.sqlite*"):
        path.unlink()
    return [EventSourcingEngine.open(settings_in(directory))]


def test_an_ended_run_says_where_its_history_went(tmp_path: Path) -> None:
    with opened(tmp_path) as engine:
        tell(engine)
        snapshot = engine.snapshot("nightly")
        engine.compact("nightly")
    with opened(tmp_path) as engine:
        with pytest.raises(HistoryArchived) as told:
            engine.history("c-delivered")
        assert (told.value.state, told.value.through) == ("COMMITTED", snapshot.through)
        known = engine.settled_state("c-delivered")
        assert known is not None
        assert known[0].settled
        engine.append("task.rejected", {"why": "duplicate"}, run_id="c-delivered")
        with pytest.raises(HistoryArchived):
            engine.history("c-delivered")
        write(engine, "c-delivered", ("run.created",))  # somebody publishes under the same id
        with pytest.raises(HistoryArchived):
            engine.history("c-delivered")
        assert engine.history("never heard of") == []
        write(engine, "new", ("run.created",))
        assert len(engine.history("new")) == 1


def test_a_process_that_was_looking_on_finds_everything_afterwards(tmp_path: Path) -> None:
    with opened(tmp_path) as engine, opened(tmp_path) as other:
        tell(engine)
        histories = {run_id: other.history(run_id) for run_id in LIVE}
        engine.snapshot("nightly")
        engine.compact("nightly")
        assert {run_id: other.history(run_id) for run_id in LIVE} == histories
        assert other.first_seq == engine.first_seq > 1


@pytest.mark.parametrize("files_between", [0, 1, 2])
def test_a_fence_in_a_file_that_went_unread_still_holds(tmp_path: Path, files_between: int) -> None:
    """Who looked last before the file was sealed has an older fence in mind, and no file to correct it."""
    with opened(tmp_path) as engine, opened(tmp_path) as zombie:
        write(engine, "r", ("run.created", "run.fenced@1", "run.started@1"))
        zombie.append("step.started", {"step": 0, "name": "a"}, run_id="r", token=1, n=2)
        for _ in range(files_between):
            engine.seal()
            write(engine, f"x{_}", ("run.created",))
        engine.append("run.fenced", {"holder": "h"}, run_id="r", token=7)
        engine.snapshot("s")
        engine.compact("s")
        with pytest.raises(Fenced):
            zombie.append("step.completed", {"step": 0, "result": 1}, run_id="r", token=1, n=3)


def test_a_fence_holds_that_came_after_the_kept_ones_were_asked_for(tmp_path: Path) -> None:
    with opened(tmp_path) as engine, opened(tmp_path) as zombie:
        write(engine, "r", ("run.created", "run.fenced@1", "run.started@1"))
        engine.snapshot("s")
        engine.compact("s")
        zombie.append("step.started", {"step": 0, "name": "a"}, run_id="r", token=1, n=2)
        engine.seal()
        engine.append("run.fenced", {"holder": "h"}, run_id="r", token=7)
        engine.snapshot("s")
        engine.compact("s")
        with pytest.raises(Fenced):
            zombie.append("step.completed", {"step": 0, "result": 1}, run_id="r", token=1, n=3)


def test_half_a_history_is_none(tmp_path: Path) -> None:
    """A process may still have some of the archived files open, and not all."""
    with opened(tmp_path) as engine, opened(tmp_path) as other:
        write(engine, "r", ("run.created",))
        first = other.history("r")
        engine.seal()
        for new in lines_of("r", DELIVERS)[1:]:
            engine.append_many([new])
        assert len(other.history("r")) == len(DELIVERS)
        engine.snapshot("s")
        engine.compact("s")
        reader = other._log.reader
        for number in [each for each in reader._open_files if each > first[0].position.file]:
            reader._open_files.pop(number).close()
        with pytest.raises(HistoryArchived):
            other.history("r")


def test_a_run_that_came_between_sealing_and_folding_keeps_its_history(tmp_path: Path) -> None:
    with opened(tmp_path) as engine:
        tell(engine)
        seal = engine._log.seal

        def sealing() -> bool:
            done = seal()
            write(engine, "between", DELIVERS)
            write(engine, "between and live", ("run.created",))
            return done

        engine._log.seal = sealing  # type: ignore[method-assign]  # a writer at a chosen moment
        snapshot = engine.snapshot("s")
        engine.compact("s")
        assert snapshot.through >= engine.first_seq + len(DELIVERS)
    with opened(tmp_path) as engine:
        assert len(engine.history("between")) == len(DELIVERS)
        assert len(engine.history("between and live")) == 1


def test_snapshots_and_compactions_go_on_for_ever(tmp_path: Path) -> None:
    with opened(tmp_path) as engine, ledger_of(engine, tmp_path / "other.sqlite") as ledger:
        write(engine, "old", ("run.created", "run.started@1"))
        old = engine.history("old")
        for number in range(4):
            tell(engine, prefix=f"{number} ")
            ledger.catch_up()
            engine.snapshot("nightly")
            assert engine.compact("nightly").removed_events > 0
            assert engine.compact("nightly").removed_events == 0
            assert engine.history("old") == old
            assert engine.verify_integrity().status is GOOD
            assert rows(ledger) == engine.replay()
        ledger.rebuild()
        assert len(rows(ledger)) == 1 + 4 * len(STORIES)
        assert rows(ledger) == engine.replay()


def test_reading_on_from_what_was_compacted_away_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path) as engine:
        tell(engine)
        first = next(engine.read_from(None)).position
        old = engine.snapshot("old")
        write(engine, "more")
        engine.snapshot("new")
        engine.compact("new")
        with pytest.raises(LogCompacted):
            list(engine.read_from(first))
        with pytest.raises(UnknownSnapshot):
            engine.read_from(old.id)
        assert isinstance(engine.snapshots()[-1].position, Position)
        assert next(engine.read_from("new")).seq == engine.first_seq


def test_a_ledger_that_slept_through_a_compaction_begins_with_the_snapshot(tmp_path: Path) -> None:
    with opened(tmp_path) as engine, ledger_of(engine, tmp_path / "other.sqlite") as ledger:
        write(engine, "first")
        ledger.catch_up()
        tell(engine)
        engine.snapshot("s")
        engine.compact("s")
        ledger.catch_up()
        assert rows(ledger) == engine.replay()
        assert len(rows(ledger)) == 1 + len(STORIES)


def test_nothing_is_moved_of_a_log_that_does_not_verify(tmp_path: Path) -> None:
    with opened(tmp_path) as engine:
        tell(engine)
        engine.snapshot("s")
        (sealed,) = segments(tmp_path)
        flip(sealed, sealed.stat().st_size // 2)
        with pytest.raises(CompactionRefused) as refused:
            engine.compact("s")
        assert refused.value.status == "CORRUPT"
        assert segments(tmp_path) == [sealed]
        assert "wal.compacted" not in {e.type for e in engine.read_from("s")}


def test_a_file_that_stands_in_the_archive_already_is_not_replaced(tmp_path: Path) -> None:
    from celery_commander.engine import LogUnavailable

    with opened(tmp_path) as engine:
        tell(engine)
        engine.snapshot("s")
        (sealed,) = segments(tmp_path)
        there = sealed.parent.parent / "archive" / sealed.name
        there.parent.mkdir(mode=0o700)
        there.write_text("somebody's")
        with pytest.raises(LogUnavailable, match="there already"):
            engine.compact("s")
        assert there.read_text() == "somebody's"
        assert engine.verify_integrity().status is GOOD


def test_a_prefix_that_nobody_compacted_is_missing(tmp_path: Path) -> None:
    with opened(tmp_path) as engine:
        tell(engine)
        engine.snapshot("s")
        for path in segments(tmp_path):
            path.unlink()
        assert engine.verify_integrity().status is Status.GAP


def test_the_archive_is_pruned_by_how_long_files_lay_there(tmp_path: Path) -> None:
    ahead = timedelta(0)
    with EventSourcingEngine.open(
        settings_in(tmp_path), now=lambda: datetime.now(UTC) + ahead
    ) as engine:
        tell(engine)
        engine.snapshot("s")
        engine.compact("s")
        (path,) = archived(tmp_path)
        os.utime(path, (0, 0))
        ahead = timedelta(days=29)
        assert engine.archive_prune() == 0
        ahead = timedelta(days=31)
        assert engine.archive_prune(40) == 0
        assert engine.archive_prune() == 1
        assert archived(tmp_path) == []
        assert engine.verify_integrity().status is GOOD
        assert set(engine.replay()) == set(STORIES)


WRITER = """
import sys
from celery_commander.engine import EventSourcingEngine
from celery_commander.engine.settings import Settings
settings = Settings(state_directory=sys.argv[1], segment_bytes=20_000)
with EventSourcingEngine.open(settings) as log:
    for i in range(400):
        log.append("note", {"i": i, "pad": "x" * 100}, run_id=sys.argv[2], wait=i % 20 == 0)
        if i % 100 == 0:
            print(i, flush=True)
"""


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_four_writers_lose_nothing_while_the_log_is_compacted(tmp_path: Path) -> None:
    with opened(tmp_path) as engine, ledger_of(engine, tmp_path / "other.sqlite") as ledger:
        tell(engine)
        live = {run_id: engine.history(run_id) for run_id in LIVE}
        seen: dict[str, list[int]] = {}
        through = 0
        processes = [
            subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), f"w-{number}"], cwd=ROOT)
            for number in range(4)
        ]
        compactions = 0
        while any(process.poll() is None for process in processes) or not compactions:
            engine.snapshot("busy")
            through = _note(engine, seen, through)
            compactions += engine.compact("busy").removed_events > 0
            ledger.catch_up()
        assert [process.returncode for process in processes] == [0] * 4
        _note(engine, seen, through)
        assert seen == {f"w-{number}": list(range(400)) for number in range(4)}
        assert engine.verify_integrity().status is GOOD
        assert {run_id: engine.history(run_id) for run_id in LIVE} == live
        ledger.catch_up()
        assert rows(ledger) == engine.replay()


def _note(engine: EventSourcingEngine, seen: dict[str, list[int]], through: int) -> int:
    """Note what the writers wrote, and that seqs have no hole, before the next compaction."""
    for event in engine.read_from(None):
        if event.seq > through:
            assert event.seq == through + 1
            through = event.seq
            if event.type == "note":
                seen.setdefault(str(event.run_id), []).append(event.payload["i"])
    return through


@settings(max_examples=10, deadline=None, phases=(Phase.explicit, Phase.generate))
@given(
    moves=st.lists(MOVE, min_size=5, max_size=40),
    cuts=st.lists(
        st.sampled_from(["", "", "snapshot", "compact", "seal"]), min_size=5, max_size=40
    ),
)
def test_the_ledger_is_the_fold_of_all_events_ever_whatever_was_compacted(
    moves: list[tuple[int, int, int, str, str | None]], cuts: list[str]
) -> None:
    with TemporaryDirectory() as folder:
        directory = Path(folder)
        states: dict[str, RunState] = {}
        with opened(directory) as engine, ledger_of(engine, directory / "other.sqlite") as ledger:
            for move, cut in zip(moves, cuts * 8, strict=False):
                make_move(engine, states, move)
                if cut == "seal":
                    engine.seal()
                elif cut:
                    engine.snapshot("s")
                    if cut == "compact":
                        engine.compact("s")
            ledger.catch_up()
            assert rows(ledger) == states == engine.replay()
            ledger.rebuild()
            assert rows(ledger) == states
            assert hash_of(states) == hash_of(rows(ledger))
            assert engine.verify_integrity().status is GOOD
