"""Offer the log to everybody: append, read, follow, look up a run, verify, replay."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from .boot import read_boot_id
from .errors import LogCorrupt, LogUnavailable
from .events import Event, NewEvent, Position
from .files import Files
from .fold import state_after
from .settings import Settings
from .states import RunState
from .verify import IntegrityReport, verify_log
from .wal import FileLog

_BATCH_EVENTS = 256
_FOLLOW_SECONDS = 0.05


class EventSourcingEngine:
    """Record events durably, and read them back verified.

    One engine may be used by all threads, and by children of a fork: each process opens files of its
    own on first use. Close it, or use it as a context manager.
    """

    def __init__(self, log: FileLog) -> None:
        self._log = log

    @classmethod
    def open(
        cls,
        settings: Settings | str | Path,
        *,
        now: Callable[[], datetime] | None = None,
        create: bool = True,
        boot_id: str | None = None,
    ) -> Self:
        """Open the log, and make it first if there is none.

        A torn tail is repaired here. A log that cannot take events (corrupt, moved, poisoned) opens all
        the same, so that it can be read and verified; the reason is raised by the first append.

        Args:
            settings: the settings, or the path of the active file.
            now: the wall clock for timestamps; default UTC of the system.
            create: False opens for reading what is there, and touches nothing until something is
                appended.
            boot_id: which boot this is; default the kernel's answer.

        Raises:
            ForeignLog: the file is no log of ours.
            LogUnavailable: it cannot be opened or made.
        """
        if not isinstance(settings, Settings):
            settings = Settings.at(settings)
        boot = read_boot_id() if boot_id is None else boot_id
        log = FileLog(settings, Files(), now=now or _utc_now, boot_id=boot, create=create)
        if create:
            try:
                log.settle()
            except (LogCorrupt, LogUnavailable):
                pass  # said again, by the same check, to the first who appends
        return cls(log)

    @property
    def log_id(self) -> str:
        """Return the log's identity, made with it."""
        return self._log.header.log_id

    @property
    def path(self) -> Path:
        """Return the absolute path of the active file."""
        return self._log.layout.active

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

        Args:
            type: what happened, as ``billing.note``.
            data: a JSON object with string keys, at most max_payload_bytes with its envelope.
            run_id: the run it belongs to.
            token: the fencing token of an owner; an outsider has none.
            n: the run's own dense number of the event.
            wait: True returns once the event is on disk. False returns once it is written: it survives
                this process, and a power cut from flush_seconds later on.

        Raises:
            Fenced: a newer token owns the run; nothing was written.
            InvalidEvent: the grammar does not allow it; nothing was written.
            LogUnavailable: and its subclasses: the log cannot take events now.
            LogCorrupt: durable bytes do not verify; nothing is appended behind them.
        """
        return self._log.append([NewEvent(type, data, run_id, token, n)], wait=wait)[0]

    def append_many(self, news: Sequence[NewEvent], *, wait: bool = True) -> list[Event]:
        """Append events in one write and one sync: all of them, or on any error none.

        Only a process killed in the middle of a large write may leave the first of them.

        Raises:
            Fenced, InvalidEvent, LogUnavailable, LogCorrupt: as for append.
        """
        return self._log.append(news, wait=wait) if news else []

    def sync(self) -> None:
        """Wait until everything that this process has written is on disk."""
        self._log.sync()

    def read_from(self, position: Position | None) -> Iterator[Event]:
        """Yield every event after `position` (None: all), verified, up to those written by now.

        Raises:
            LogCorrupt: a line does not follow from the one before it.
            LogMoved: there is no event at the position.
        """
        return self._log.reader.read(position)

    async def stream_from(
        self, position: Position | None, follow: bool = False
    ) -> AsyncIterator[Event]:
        """Yield the same as read_from without blocking the loop; `follow` goes on waiting for more.

        Reading is done in the loop's default executor, a batch at a time.
        """
        while True:
            batch = await asyncio.to_thread(self._log.reader.batch, position, _BATCH_EVENTS)
            for event in batch:
                yield event
                position = event.position
            if not batch:
                if not follow:
                    return
                await asyncio.sleep(_FOLLOW_SECONDS)

    def history(self, run_id: str) -> list[Event]:
        """Return a run's events in order, each hashed again, with all that any process wrote before.

        Raises:
            LogCorrupt: one of them does not verify.
        """
        return self._log.index.history(run_id)

    def verify_integrity(self) -> IntegrityReport:
        """Read the whole log and say whether it holds, and if not, where it breaks."""
        return verify_log(self.path, published=self._log.reader.published, log_id=self.log_id)

    def replay(self) -> dict[str, RunState]:
        """Fold the whole log into the state of every run."""
        states: dict[str, RunState] = {}
        for event in self.read_from(None):
            if event.run_id is not None:
                state = state_after(states.get(event.run_id), event)
                if state is not None:
                    states[event.run_id] = state
        return states

    @property
    def durable_seq(self) -> int:
        """Return the highest seq that is known to be on disk."""
        return self._log.durable_seq

    def head(self) -> tuple[int, str]:
        """Return the seq and the hash of the last published event."""
        head = self._log.head()
        if head is None:
            seq, hash_ = 0, self._log.header.base_hash
            for event in self.read_from(None):
                seq, hash_ = event.seq, event.hash
            return seq, hash_
        return head.seq, head.hash.decode("ascii")

    def close(self) -> None:
        """Sync what is written and close every file. Safe to call twice."""
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _utc_now() -> datetime:
    return datetime.now(UTC)
