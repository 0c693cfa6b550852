"""A log in memory with the engine's surface: for tests of what is built on top of a log.

It chains, checks and fences as the file log does, with the same pure functions, so an event from here
has the bytes and the hash it would have on disk. It keeps no file, takes no lock between processes,
and is durable at once where it is waited for. tests/engine compares it with the real one.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from celery_commander.engine import Fenced
from celery_commander.engine.chain import (
    FORMAT,
    GENESIS,
    PAYLOAD_BYTES_MAX,
    check_id,
    check_type,
    link,
    split_line,
)
from celery_commander.engine.events import (
    Event,
    NewEvent,
    Position,
    decode_line,
    encode_payload,
    format_timestamp,
)

FENCED = "run.fenced"


class MemoryLog:
    """Hold a log's events; *now* gives their moments (default: the host's UTC clock)."""

    def __init__(self, *, now: Callable[[], datetime] | None = None) -> None:
        self.log_id = str(uuid.uuid4())
        self._now = now or (lambda: datetime.now(UTC))
        self._events: list[Event] = []
        self._fences: dict[str, int] = {}
        self._bytes = 0
        self._durable_seq = 0
        self.append("wal.created", {"format": FORMAT, "log_id": self.log_id})

    @property
    def durable_seq(self) -> int:
        """Return the highest sequence number that somebody waited for."""
        return self._durable_seq

    def head(self) -> tuple[int, str]:
        """Return the last sequence number and its hash."""
        last = self._events[-1]
        return last.seq, last.hash

    def append(
        self,
        type: str,
        data: Mapping[str, Any],
        *,
        run_id: str | None = None,
        token: int | None = None,
        n: int | None = None,
        wait: bool = True,
    ) -> Event:
        """Append one event.

        Raises:
            InvalidEvent: the grammar or JSON refuses it.
            Fenced: a newer token owns the run.
        """
        return self.append_many([NewEvent(type, data, run_id, token, n)], wait=wait)[0]

    def append_many(self, events: Sequence[NewEvent], *, wait: bool = True) -> list[Event]:
        """Append all of them or, if one is refused, none; raises as :meth:`append`."""
        for new in events:
            self._refuse(new)
        drafts = [
            encode_payload(new, durable=self._durable_seq, bytes_max=PAYLOAD_BYTES_MAX)[0]
            for new in events
        ]
        appended = [self._chain(new, payload) for new, payload in zip(events, drafts, strict=True)]
        if wait:
            self.sync()
        return appended

    def sync(self) -> None:
        """Make everything durable."""
        self._durable_seq = len(self._events)

    def read_from(self, position: Position | None = None) -> Iterator[Event]:
        """Yield the events after *position* in order; None: from the first one."""
        seq = 0 if position is None else position.seq
        while seq < len(self._events):
            yield self._events[seq]
            seq += 1

    def outlines_from(self, position: Position | None, contents: frozenset[str]) -> Iterator[Event]:
        """Yield the same; contents are always there."""
        return self.read_from(position)

    def history(self, run_id: str) -> list[Event]:
        """Return one run's events in order."""
        return [event for event in self._events if event.run_id == run_id]

    def _refuse(self, new: NewEvent) -> None:
        check_type(new.type)
        if new.id is not None:
            check_id(new.id)
        fence = self._fences.get(new.run_id or "", 0)
        if new.token is not None and new.token < fence:
            raise Fenced(str(new.run_id), new.token, fence)

    def _chain(self, new: NewEvent, payload: bytes) -> Event:
        seq = len(self._events) + 1
        event_id = new.id or uuid.uuid4().hex
        before = self._events[-1] if self._events else None
        moment = max(self._now(), before.timestamp) if before else self._now()
        stamp = format_timestamp(moment)
        rest = b"|" + b"|".join([new.type.encode(), event_id.encode(), stamp, payload])
        line = link(before.hash.encode() if before else GENESIS, rest) + rest
        parts = split_line(line)
        assert parts is not None
        event = decode_line(parts, Position(seq, 1, self._bytes))
        self._events.append(event)
        self._bytes += len(line) + 1
        if new.type == FENCED and new.run_id is not None and new.token is not None:
            self._fences[new.run_id] = max(new.token, self._fences.get(new.run_id, 0))
        return event
