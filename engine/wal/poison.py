"""End all promises after a failed sync.

When fdatasync fails the kernel may already have dropped the pages and marked them clean: a second
try would succeed and prove nothing. So nobody tries again. Every waiter of every process is
failed, and a file tells those who come later, also after a restart.
"""

from __future__ import annotations

import os

from ..control import Promise
from ..errors import LogPoisoned, LogUnavailable
from .session import Handles, Session


def poison(session: Session, handles: Handles, durable: int, error: OSError) -> LogPoisoned:
    """Mark the log as poisoned as well as the disk still allows, and return what to raise."""
    reason = f"a sync failed: {error.strerror}"
    try:
        handles.control.publish_promise(Promise(durable, poisoned=True))
    except OSError:
        pass  # the file below says it too
    try:
        _leave_mark(session, f"{reason}; event {durable} is the last known to be on disk\n")
    except (OSError, LogUnavailable):
        pass  # a disk that takes no mark: `control` still stops this boot's writers
    return LogPoisoned(session.path, reason)


def _leave_mark(session: Session, text: str) -> None:
    files = session.files
    mark = files.open(session.layout.poisoned, os.O_RDWR | os.O_CREAT)
    try:
        files.write_at(mark.fd, text.encode(), 0)
        files.sync(mark.fd)
        files.sync_directory(session.layout.directory)
    finally:
        mark.close()
