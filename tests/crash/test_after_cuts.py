"""What the power cuts of chance once broke, each told as the short story that it comes to."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from celery_commander.engine import EventSourcingEngine, LogUnavailable, Status
from celery_commander.engine.verify import verify_log
from tests.engine.ledgers import DELIVERS, lines_of

from .disk import EIO, ENOSPC, Fault
from .images import Choice, image_of
from .world import Process, World, scratch

pytestmark = pytest.mark.crash

NOTHING_SYNCED = Choice(names=-1, data=-1)


@pytest.fixture
def world() -> Iterator[World]:
    with scratch() as base:
        world = World(base)
        yield world
        world.end()


def opened(world: World) -> Process:
    process = world.open()
    assert process is not None
    return process


def test_a_killed_makers_log_is_on_disk_before_another_promises_anything(world: World) -> None:
    nth = 1
    while True:  # killed between the last rename and its directory's sync: the log is there, its name is not on disk
        world.next_fault = Fault(nth, frozenset(("sync_directory",)))
        assert world.open() is None
        if world.active.exists():
            break
        nth += 1
        assert nth < 20
    world.append(opened(world), wait=True)
    world.cut(image_of(world.disk, NOTHING_SYNCED))
    assert len(world.known) == 2


@pytest.mark.parametrize("folder", ["segments", "quarantine"])
def test_a_directory_that_a_killed_process_made_is_on_disk_before_it_is_used(
    world: World, folder: str
) -> None:
    process, other = opened(world), opened(world)
    world.append(process, wait=True)
    files = process.files
    real = files._mkdir

    def mkdir(path: Path) -> None:
        real(path)
        files.fault = Fault(1)  # killed at the next call, which would sync its name

    files._mkdir = mkdir  # type: ignore[method-assign]  # the seam is there for this
    if folder == "segments":
        assert not world.seal(process)
        world.seal(other)
        world.append(other, wait=True)
    else:
        with world.active.open("ab") as file:
            file.write(b"half a line")
        world.disk.inode(world.active.stat().st_ino).change(
            world.disk.at, world.active.read_bytes()
        )
        world.append(process, wait=True)
        world.append(other, wait=True)
    assert process not in world.processes
    world.cut(image_of(world.disk, NOTHING_SYNCED))
    assert (world.directory / folder).exists()
    world.check(opened(world))


@pytest.mark.parametrize("nth", range(1, 6))
@pytest.mark.parametrize("next_one", ["seals", "compacts"])
def test_a_move_into_the_archive_that_was_killed_half_way_loses_nothing(
    world: World, next_one: str, nth: int
) -> None:
    process = opened(world)
    world.run(process, delivered=True, wait=True)
    world.snapshot(process)
    files, real = process.files, process.files._link

    def link(source: Path, target: Path) -> None:
        if target.parent.name == "archive":
            files.fault = Fault(nth)
        real(source, target)

    files._link = link  # type: ignore[method-assign]  # the seam is there for this
    world.compact(process)
    other = opened(world)
    if next_one == "seals":
        world.seal(other)  # syncs one of the two directories
    else:
        world.compact(other)
    world.cut(image_of(world.disk, NOTHING_SYNCED))
    later = opened(world)
    assert world.snapshot(later)
    assert world.compact(later)
    world.check(later)


@pytest.mark.parametrize("step", ["snapshot", "compaction"])
def test_whatever_durability_says_files_go_only_after_the_claim_is_on_disk(
    world: World, step: str
) -> None:
    world.settings = replace(world.settings, durability="os")
    process = opened(world)
    engine = process.engine
    engine.append_many(lines_of("r-1", DELIVERS))
    engine.snapshot("nightly")
    if step == "compaction":
        engine.compact("nightly")
    later = World.after(world, image_of(world.disk, NOTHING_SYNCED), world.base / "later")
    again = opened(later).engine
    assert again.verify_integrity().status is Status.OK_UNANCHORED
    assert [each.name for each in again.snapshots()] == ["nightly"]
    assert set(again.replay()) == {"r-1"}
    later.end()


def test_a_refused_event_does_not_come_back_after_a_power_cut(world: World) -> None:
    process = opened(world)
    world.append(process, wait=True)
    process.files.fault = Fault(1, frozenset(("append",)), ENOSPC, taken=500)
    assert not world.append(process, 3, wait=True)
    assert process.files.struck == 2  # the rest of the write too
    assert len(world.look().links) == 2
    for choice in (NOTHING_SYNCED, Choice(), Choice(without=world.disk.at)):
        other = World.after(
            world, image_of(world.disk, choice), world.base / f"{choice.names}{choice.without}"
        )
        assert len(other.known) == 2
        other.end()


def test_a_fragment_that_cannot_be_cut_off_durably_poisons_the_log(world: World) -> None:
    process = opened(world)
    world.append(process, wait=True)
    files = process.files
    files.fault = Fault(1, frozenset(("append",)), ENOSPC, taken=100)
    real = files.truncate

    def truncate(fd: int, size: int) -> None:
        real(fd, size)
        files.fault = Fault(1, frozenset(("sync",)), EIO)

    files.truncate = truncate  # type: ignore[method-assign]  # the seam is there for this
    assert not world.append(process, wait=False)
    assert world.is_marked()


def test_a_repair_that_meets_a_failing_disk_says_so_in_its_own_words(world: World) -> None:
    process = opened(world)
    world.append(process, wait=True)
    for calls in ("rename", "truncate"):
        with world.active.open("ab") as file:
            file.write(b"half a line")
        process.files.fault = Fault(1, frozenset((calls,)), EIO)
        with pytest.raises(LogUnavailable, match="cannot be put in order"):
            process.engine.append("note", {})
        process.engine.append("note", {})
        assert process.engine.verify_integrity().status is Status.OK_UNANCHORED


@pytest.mark.parametrize("call", ["truncate", "append", "sync", "rename", "sync_directory"])
def test_what_a_killed_repair_has_cut_off_is_kept_over_a_power_cut(world: World, call: str) -> None:
    process = opened(world)
    world.append(process, wait=True)
    other = opened(world)
    other.files.fault = Fault(1, frozenset(("append",)), taken=50)
    assert not world.append(other, wait=True)  # killed in the middle of its write
    for nth in range(1, 4):
        if process in world.processes:
            process.files.fault = Fault(nth, frozenset((call,)))
            world.append(process, wait=True)
            for choice in (NOTHING_SYNCED, Choice(), Choice(names=-1), Choice(data=-1)):
                root = world.base / f"{nth}{choice.names}{choice.data}"
                later = World.after(world, image_of(world.disk, choice), root)
                later.check(opened(later), ledger=False)
                later.end()


def test_the_mark_of_a_failed_sync_outlasts_a_power_cut(world: World) -> None:
    process = opened(world)
    process.files.fault = Fault(1, frozenset(("sync",)), EIO)
    assert not world.append(process, wait=True)
    world.cut(image_of(world.disk, NOTHING_SYNCED))
    assert world.is_marked()
    assert not world.append(opened(world), wait=True)


def test_a_repair_whose_mark_was_half_taken_off_is_a_finished_one(world: World) -> None:
    """As where a rename shows both names after a power cut."""
    process = opened(world)
    world.append(process, wait=True)
    with world.active.open("ab") as file:
        file.write(b"half a line")
    process.engine.append("note", {})
    (kept,) = world.directory.glob("quarantine/*")
    os.link(kept, f"{kept}.unfinished")
    world.end()
    events = len(world.look().links)
    world.append(opened(world), wait=True)
    assert len(world.look().links) == events + 1
    assert list(world.directory.glob("quarantine/*")) == [kept]


@pytest.mark.parametrize("tail", [bytes(40) + b"\n" + bytes(20), b"x" * 200 + b"\n", b"half"])
def test_who_only_reads_a_torn_log_reads_up_to_the_tear(world: World, tail: bytes) -> None:
    process = opened(world)
    world.append(process, 3, wait=True)
    world.end()
    with world.active.open("ab") as file:
        file.write(tail)
    assert verify_log(world.active).status is Status.TORN_TAIL
    with EventSourcingEngine.open(world.active, create=False, boot_id="later") as reader:
        assert [event.seq for event in reader.read_from(None)] == [1, 2, 3, 4]


def test_who_only_reads_a_log_with_a_bad_line_that_was_durable_is_told(world: World) -> None:
    from celery_commander.engine import LogCorrupt

    process = opened(world)
    world.append(process, 3, wait=True)
    world.append(process, 3, wait=True)
    world.end()
    data = bytearray(world.active.read_bytes())
    data[data.index(b"|note|")] ^= 1
    world.active.write_bytes(data)
    with (
        EventSourcingEngine.open(world.active, create=False, boot_id="later") as reader,
        pytest.raises(LogCorrupt),
    ):
        list(reader.read_from(None))


def test_what_a_killed_writer_left_does_not_stop_a_compaction(world: World) -> None:
    process = opened(world)
    world.run(process, delivered=True, wait=True)
    world.snapshot(process)
    other = opened(world)
    other.files.fault = Fault(1, frozenset(("append",)), taken=50)
    assert not world.append(other, wait=True)
    assert world.compact(process)
    world.check(opened(world))
