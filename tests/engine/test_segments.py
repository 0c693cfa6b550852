"""A log of many files reads, follows, looks up and goes on like one of one file."""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from celery_commander.engine import (
    EventSourcingEngine,
    Fenced,
    NewEvent,
    Position,
    Settings,
    Status,
)
from celery_commander.engine.files import Files
from celery_commander.engine.wal.layout import Layout
from celery_commander.engine.wal.segments import sealed_segments
from tests.kit.workers import ROOT

from .forked import Forked
from .logs import (
    NEXT_BOOT,
    everything,
    made_log,
    notes,
    open_log,
    segmented,
    small_segments,
    types_of,
)


def test_a_log_of_many_files_is_read_as_one(tmp_path: Path) -> None:
    path = segmented(tmp_path)
    with open_log(tmp_path) as log:
        events = everything(log)
        assert notes(events) == list(range(8))
        assert types_of(log).count("wal.sealed") == 3
        assert notes(log.history("r-1")) == [1, 3, 5, 7]
        assert log.head() == (events[-1].seq, events[-1].hash)
        assert (log.first_seq, log.verify_integrity().status) == (1, Status.OK_UNANCHORED)
    segments = sealed_segments(Layout.of(path), Files())
    assert [(each.first_seq, each.last_seq) for each in segments] == [(1, 4), (5, 7), (8, 10)]
    assert [each.bytes for each in segments] == [each.path.stat().st_size for each in segments]
    assert {each.path.stat().st_nlink for each in segments} == {1}


@pytest.mark.parametrize("number", [1, 5, 8])
def test_the_verifier_that_the_format_shows_reads_any_file_of_a_log(
    tmp_path: Path, number: int
) -> None:
    page = (ROOT / "docs" / "log-format.md").read_text(encoding="utf-8")
    shown = page.partition("```python\n")[2].partition("```")[0]
    data = Layout.of(segmented(tmp_path)).segment(number).read_bytes()
    header, *lines = data.splitlines(keepends=True)
    names = {"hashlib": hashlib, "header": header, "lines_after_the_header": lines}
    exec(shown, dict(names))
    for at in range(len(lines)):
        damaged = [line.replace(b"|", b"/", 1) if n == at else line for n, line in enumerate(lines)]
        with pytest.raises(AssertionError):
            exec(shown, {**names, "lines_after_the_header": damaged})


def test_every_position_stays_good_when_its_file_is_sealed(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        events = [log.append("note", {"i": index}) for index in range(3)]
        log.seal()
        events += [log.append("note", {"i": index}) for index in range(3, 6)]
        log.seal()
        whole = everything(log)
        assert {event.position for event in events} <= {event.position for event in whole}
        for index, event in enumerate(whole):
            again = Position.parse(str(event.position))
            assert list(log.read_from(again)) == whole[index + 1 :]


def test_a_file_is_sealed_at_its_size_by_whoever_appends(tmp_path: Path) -> None:
    with EventSourcingEngine.open(small_segments(tmp_path)) as log:
        for index in range(60):
            log.append("note", {"i": index, "x": "y" * 200}, wait=index % 3 == 0)
        assert notes(everything(log)) == list(range(60))
    sizes = [each.bytes for each in sealed_segments(Layout.of(log.path), Files())]
    assert len(sizes) > 4
    assert all(4096 <= size < 6144 for size in sizes)
    assert log.path.stat().st_size < 6144


def test_a_file_is_sealed_at_its_age_by_the_event_that_comes_then(tmp_path: Path) -> None:
    moment = datetime(2026, 1, 2, tzinfo=UTC)
    settings = Settings(state_directory=tmp_path / "state", segment_seconds=3600)
    with EventSourcingEngine.open(settings, now=lambda: moment) as log:
        log.append("note", {"i": 0})
        moment += timedelta(seconds=3599)
        log.append("note", {"i": 1})
        assert not (settings.wal_directory / "segments").exists()
        moment += timedelta(seconds=1)
        log.append("note", {"i": 2})
        assert len(sealed_segments(Layout.of(log.path), Files())) == 1
        moment += timedelta(seconds=3600)
        log.append(
            "note", {"i": 3}
        )  # the fresh file is as old as its first event, which is this one
        assert len(sealed_segments(Layout.of(log.path), Files())) == 1


def test_there_is_nothing_to_seal_in_a_fresh_file(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        assert not log.seal()
        log.append("note", {})
        assert log.seal()
        assert not log.seal()
        assert types_of(log) == ["wal.created", "note", "wal.sealed"]


def test_an_open_log_goes_on_where_another_process_sealed(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.append("note", {"i": 0}, run_id="r")

        def seal_and_write(child: Forked) -> tuple[bool, int]:
            return log.seal(), log.append("note", {"i": 1}, run_id="r").position.file

        assert Forked(seal_and_write).hear() == (True, (True, 4))
        event = log.append("note", {"i": 2}, run_id="r")
        assert (event.seq, event.position.file) == (5, 4)
        assert notes(log.history("r")) == [0, 1, 2]
        assert Forked(seal_and_write).hear() == (True, (True, 7))
        log.append("note", {"i": 3}, run_id="r", wait=False)
        log.sync()
        assert log.durable_seq == log.head()[0]
        assert notes(everything(log)) == [0, 1, 2, 1, 3]


def test_an_owner_fenced_before_a_seal_is_refused_after_it(tmp_path: Path) -> None:
    with open_log(tmp_path) as log, open_log(tmp_path) as owner:
        owner.append("step.started", {}, run_id="r", token=1, n=1)
        log.append("run.fenced", {}, run_id="r", token=2)
        log.append("run.fenced", {}, run_id="other", token=9)
        assert log.seal()
        log.append("note", {})
        with pytest.raises(Fenced):
            owner.append("step.started", {}, run_id="r", token=1, n=2)
    with open_log(tmp_path, boot_id=NEXT_BOOT) as later:
        with pytest.raises(Fenced):
            later.append("step.started", {}, run_id="r", token=1, n=2)
        assert later.append("step.started", {}, run_id="r", token=2, n=2).seq == 7


def test_a_reader_in_the_middle_of_a_file_goes_on_through_its_seal(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        for index in range(4):
            log.append("note", {"i": index})
        reading = log.read_from(None)
        seen = [next(reading) for _ in range(2)]
        log.seal()
        log.append("note", {"i": 4})
        seen += list(reading)
        assert [event.seq for event in seen] == [1, 2, 3, 4, 5]  # up to those written when it began
        assert notes(list(log.read_from(seen[-1].position))) == [4]


def test_a_follower_sees_every_event_once_across_seals(tmp_path: Path) -> None:
    async def follow(log: EventSourcingEngine, goal: int) -> list[int]:
        seen = []
        async for event in log.stream_from(None, follow=True):
            seen.append(event.seq)
            if event.type == "note" and event.payload["i"] == goal:
                return seen
        return seen

    with open_log(tmp_path) as log, open_log(tmp_path) as writer:

        def write() -> None:
            for index in range(200):
                writer.append("note", {"i": index}, wait=False)
                if index % 20 == 19:
                    writer.seal()
            writer.append("note", {"i": 200})

        thread = threading.Thread(target=write)
        thread.start()
        seen = asyncio.run(asyncio.wait_for(follow(log, 200), timeout=30))
        thread.join()
    assert seen == list(range(1, len(seen) + 1))
    assert len(seen) == 1 + 201 + 10


def test_threads_that_append_while_others_seal_lose_nothing(tmp_path: Path) -> None:
    with EventSourcingEngine.open(small_segments(tmp_path)) as log:

        def write(name: str) -> None:
            for index in range(60):
                log.append("note", {"i": index, "x": "y" * 100}, run_id=name, wait=index % 2 == 0)

        threads = [threading.Thread(target=write, args=(f"r-{number}",)) for number in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(10):
            log.seal()
        for thread in threads:
            thread.join()
        assert len(everything(log)) >= 240
        for number in range(4):
            assert notes(log.history(f"r-{number}")) == list(range(60))
        assert log.verify_integrity().status is Status.OK_UNANCHORED


def test_descriptors_do_not_pile_up_with_the_segments(tmp_path: Path) -> None:
    def open_descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    with open_log(tmp_path) as log, open_log(tmp_path) as other:
        counts = []
        for index in range(30):
            log.append("note", {"i": index}, run_id="r")
            other.append("note", {"i": index}, run_id="r")
            assert log.seal()
            list(log.read_from(None))
            log.history("r")
            counts.append(open_descriptors())
        assert len(set(counts[15:])) == 1


@pytest.mark.parametrize("hooks", [True, False])
def test_a_fork_in_the_middle_of_a_seal_hinders_nobody_to_seal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hooks: bool
) -> None:
    def in_child(child: Forked) -> bool:
        child.hear()
        log.append("note", {"from": "child"})
        return log.seal()

    if not hooks:
        monkeypatch.setattr(os, "register_at_fork", lambda **hooks: None)
    settings = Settings(state_directory=tmp_path / "state", lock_seconds=2)
    with EventSourcingEngine.open(settings) as log:
        log.append("note", {})
        children: list[Forked] = []
        hold = log._log._durability.hold

        def forking(work: Callable[[], bool]) -> bool:
            if not children:
                children.append(Forked(in_child))
            return hold(work)

        monkeypatch.setattr(log._log._durability, "hold", forking)
        assert log.seal()
        log.append("note", {})
        assert log.seal()  # although the child has a copy of the lock's descriptor
        children[0].say("go")
        assert children[0].hear() == (True, True)
        assert log.append("note", {}).seq == 8
        assert log.verify_integrity().status is Status.OK_UNANCHORED


def test_a_sync_of_a_file_that_was_sealed_promises_nothing_of_the_next(tmp_path: Path) -> None:
    with open_log(tmp_path) as log, open_log(tmp_path) as other:
        log.append("note", {})
        late = log._log._session.current()
        assert late is not None
        other.seal()
        durable = other.durable_seq
        other._log._flusher.note = lambda seq: None  # type: ignore[method-assign]  # nobody else syncs
        unsynced = other.append("note", {}, wait=False)
        assert not log._log._durability._sync_all(late, unsynced.seq)
        assert log.durable_seq == durable < unsynced.seq
        log._log._durability.wait(unsynced.seq, late)
        assert log.durable_seq >= unsynced.seq


def test_logs_of_one_file_stay_as_they_were(tmp_path: Path) -> None:
    path = made_log(tmp_path)
    with open_log(tmp_path, boot_id=NEXT_BOOT) as log:
        log.append("note", {})
        assert len(everything(log)) == 7
    names = {entry.name for entry in Path(f"{path}.d").iterdir()}
    assert names == {"append.lock", "sync.lock", "control", "latency"}


def test_many_events_in_one_write_stay_in_one_file(tmp_path: Path) -> None:
    with EventSourcingEngine.open(small_segments(tmp_path)) as log:
        events = log.append_many(
            [NewEvent("note", {"i": index, "x": "y" * 100}) for index in range(80)]
        )
        assert len({event.position.file for event in events}) == 1
        assert log.append("note", {}).position.file == 83
