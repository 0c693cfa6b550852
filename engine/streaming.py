"""Follow a growing log from an event loop: what a follower has seen is on disk and never vanishes again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Final

from .events import Event, Position

BATCH_EVENTS: Final = 256
FOLLOW_SECONDS: Final = 0.05

Batch = Callable[[Position | None, int], list[Event]]


async def stream(
    place: Callable[[], Position | None], batch: Batch, *, follow: bool
) -> AsyncIterator[Event]:
    """Yield batches from a place on; without `follow` until one is empty. Neither is asked in the loop's thread."""
    at = await asyncio.to_thread(place)
    while True:
        events = await asyncio.to_thread(batch, at, BATCH_EVENTS)
        for event in events:
            yield event
            at = event.position
        if not events:
            if not follow:
                return
            await asyncio.sleep(FOLLOW_SECONDS)
