"""Work on a log that stands still: everybody else is kept out by its locks while a person's word is carried out."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path

from ..chain import PAYLOAD_BYTES_MAX, Header
from ..control import Control, Head
from ..events import NewEvent
from ..files import Files, Opened
from ..ids import new_event_id
from .drafts import Draft, Written, draft
from .layout import Layout
from .locks import Patience

Chain = Callable[[Head, Sequence[Draft]], tuple[Written, bytes]]


class Standstill:
    """Hold what such work needs of one log."""

    def __init__(
        self,
        layout: Layout,
        files: Files,
        *,
        log_id: str,
        boot_id: str,
        now: Callable[[], datetime],
        lock_seconds: float,
    ) -> None:
        self.layout = layout
        self.files = files
        self.log_id = log_id
        self._boot_id = boot_id
        self._now = now
        self._lock_seconds = lock_seconds

    @contextmanager
    def begun(self) -> Iterator[Control]:
        """Hold every lock of the log, in the order in which sealing takes them, and lend ``control``.

        Raises:
            LockTimeout: somebody holds one for too long.
        """
        layout = self.layout
        with ExitStack() as held:
            for path in (layout.seal_lock, layout.sync_lock, layout.append_lock):
                lock = self.files.open(path, os.O_RDWR | os.O_CREAT)
                held.callback(lock.close)
                held.callback(self.files.unlock, lock.fd)  # a child forked meanwhile has a copy
                patience = Patience(self.files, self._lock_seconds)
                while not self.files.try_lock(lock.fd):
                    patience.nap(lock, self.files.lock_holder)
            control_file = self.files.open(layout.control, os.O_RDWR)
            held.callback(control_file.close)
            fd = control_file.fd
            yield Control(self.files, fd, boot_id=self._boot_id, log_id=self.log_id)

    @contextmanager
    def fresh(self, path: Path) -> Iterator[Opened]:
        """Open a file that is new, whatever somebody who was killed left under its name."""
        self.files.remove(path)
        opened = self.files.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            yield opened
        finally:
            opened.close()

    def chained(self, new: NewEvent, head: Head, chain: Chain) -> tuple[Head, bytes]:
        """Return the line of one event behind `head`, and the head behind that."""
        id_ = new_event_id(self._now())
        note = draft(new, id_, durable=head.seq, bytes_max=PAYLOAD_BYTES_MAX)
        written, line = chain(head, [note])
        return written.after, line

    def write_next(self, header: Header, head: Head, note: NewEvent, chain: Chain) -> Head:
        """Write and sync the file that the log goes on in, not yet under its name; return where it ends."""
        after, line = self.chained(note, head, chain)
        with self.fresh(self.layout.newborn) as newborn:
            self.files.write_at(newborn.fd, header.format() + line, 0)
            self.files.sync(newborn.fd)
        return after
