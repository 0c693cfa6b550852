"""End all promises after a failed sync.

When fdatasync fails the kernel may already have dropped the pages and marked them clean: a second
try would succeed and prove nothing. So nobody tries again. Every waiter of every process is
failed, and a file tells those who come later, also after a restart.
"""

from __future__ import annotations

import os
from pathlib import Path

from ..control import Promise
from ..errors import LogPoisoned, LogUnavailable
from ..files import Files
from .session import Handles, Session


def poison(session: Session, handles: Handles, durable: int, error: OSError) -> LogPoisoned:
    """Mark the log as poisoned as well as the disk still allows, and return what to raise.

    `durable` is the last event that this process knows to be on disk.
    """
    reason = f"a sync failed: {error.strerror}"
    try:
        told = handles.control.read()[1]  # others may know of more, and what was promised stays so
        told = told or Promise(0)
        durable = max(durable, told.seq)
        handles.control.publish_promise(Promise(durable, poisoned=True, broken=told.broken))
    except OSError:
        pass  # the file below says it too
    try:
        text = f"{reason}; event {durable} is the last known to be on disk\n"
        leave_mark(session.files, session.layout.poisoned, text)
    except (OSError, LogUnavailable):
        pass  # a disk that takes no mark: `control` still stops this boot's writers
    return LogPoisoned(session.path, reason)


def leave_mark(files: Files, path: Path, text: str) -> None:
    """Write the mark that stops those who come later, or see that the one which is there is on disk."""
    mark = files.open(path, os.O_RDWR | os.O_CREAT)
    try:
        if not files.size(mark.fd):
            files.write_at(mark.fd, text.encode(), 0)
        files.sync(mark.fd)
        files.sync_directory(path.parent)
    finally:
        mark.close()
