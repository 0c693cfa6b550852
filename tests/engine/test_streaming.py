"""What readers and followers are shown: every event, in order, and none that a power cut could take back."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from celery_commander.engine import Event, EventSourcingEngine, Settings

from .forked import Forked
from .logs import made_log, open_log


def test_a_stream_is_what_reading_gives_and_following_waits_for_more(tmp_path: Path) -> None:
    async def follow(log: EventSourcingEngine) -> list[object]:
        seen = []
        async for event in log.stream_from(None, follow=True):
            seen.append(event.payload.get("i"))
            if len(seen) == 6:
                await asyncio.to_thread(log.append, "note", {"i": "later"})
            if seen[-1] == "later":
                return seen
        raise AssertionError("a followed stream has no end")

    async def read(log: EventSourcingEngine) -> list[Event]:
        return [event async for event in log.stream_from(None)]

    made_log(tmp_path)
    with open_log(tmp_path) as log:
        assert asyncio.run(read(log)) == list(log.read_from(None))
        assert asyncio.run(follow(log)) == [None, 0, 1, 2, 3, 4, "later"]


@pytest.mark.parametrize("durability", ["fsync", "group", "os"])
def test_who_follows_sees_an_event_once_it_is_on_disk(
    tmp_path: Path, durability: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(state_directory=tmp_path, durability=durability, flush_seconds=3600)
    with EventSourcingEngine.open(settings) as log:
        log.append("note", {"i": 0})
        log.sync()
        position = list(log.read_from(None))[-1].position
        log.append("note", {"i": 1}, wait=False)
        reader, looks = log._log.reader, []
        really = reader.durable

        def look(*arguments: Any) -> Iterator[Event]:
            looks.append(log.durable_seq)
            if len(looks) == 3:
                log.sync()
            return really(*arguments)

        monkeypatch.setattr(reader, "durable", look)

        async def first() -> Event:
            return await anext(log.stream_from(position, follow=True))

        assert asyncio.run(first()).payload == {"i": 1}
        assert looks == ([] if durability == "os" else [2, 2, 2])
        assert [event.payload for event in log.read_from(position)] == [{"i": 1}]


@pytest.mark.parametrize("durability", ["fsync", "group"])
def test_who_reads_is_shown_nothing_that_a_power_cut_takes_back(
    tmp_path: Path, durability: str
) -> None:
    settings = Settings(state_directory=tmp_path, durability=durability, flush_seconds=3600)
    with (
        EventSourcingEngine.open(settings) as log,
        EventSourcingEngine.open(settings, create=False) as onlooker,
    ):
        log.append("note", {"i": 0}, wait=False)

        assert [event.type for event in onlooker.read_from(None)] == ["wal.created"]
        assert [event.payload.get("i") for event in log.read_from(None)] == [None, 0]
        assert log.durable_seq == 2  # reading had it synced before it was shown
        assert [event.payload.get("i") for event in onlooker.read_from(None)] == [None, 0]

        log.append("note", {"i": 1}, wait=False)
        streamed = asyncio.run(_all_of(log.stream_from(None)))
        assert [event.payload.get("i") for event in streamed] == [None, 0, 1]
        assert log.durable_seq == 3


async def _all_of(events: AsyncIterator[Event]) -> list[Event]:
    return [event async for event in events]


def test_a_cancelled_stream_leaves_the_engine_usable(tmp_path: Path) -> None:
    async def cancelled(log: EventSourcingEngine) -> None:
        async def drain() -> None:
            async for _ in log.stream_from(None, follow=True):
                pass

        task = asyncio.create_task(drain())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    made_log(tmp_path)
    with open_log(tmp_path) as log:
        asyncio.run(cancelled(log))
        assert log.append("note", {}).seq == 7


def test_a_follower_counts_what_eight_writers_wrote_and_skips_none_that_came_late(
    tmp_path: Path,
) -> None:
    """See akkadotnet/Akka.Persistence.MongoDB#296: a reader by position passed an event that was committed late."""
    made_log(tmp_path)
    writers, count = 8, 60

    def write(child: Forked) -> None:
        child.hear()
        with open_log(tmp_path) as log:
            for number in range(count):
                log.append("note", {"i": number}, run_id=str(os.getpid()), wait=number % 3 == 0)

    async def follow(log: EventSourcingEngine) -> list[int]:
        seen: list[int] = []
        async for event in log.stream_from(None, follow=True):
            seen.append(event.seq)
            if len(seen) == 6 + writers * count:
                break
        return seen

    children = [Forked(write) for _ in range(writers)]
    try:
        with open_log(tmp_path) as log:
            for child in children:
                child.say("go")
            seen = asyncio.run(asyncio.wait_for(follow(log), 120))
            for child in children:
                child.result()
            assert seen == [event.seq for event in log.read_from(None)]
    finally:
        for child in children:
            child.end()
