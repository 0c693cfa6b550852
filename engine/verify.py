"""Check a log from its stored bytes, and say what was found in a way that can be acted on.

Every line is hashed as it stands; no JSON is read. The answer is never a bare yes: without an
anchor outside the writer's reach, a good chain still says nothing about events that were cut off
its end, nor about a log that was rewritten as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from .anchors import Anchor
from .chain import GENESIS
from .control import Head, Promise
from .errors import LogUnavailable, StrPath
from .files import Files
from .integrity import IntegrityReport, Status, Verified
from .verification import Verification
from .verify_task import ActiveFile, Task
from .wal.layout import Layout
from .wal.segments import LogFile, read_header

Published = Callable[[], tuple[Head | None, Promise | None]]

_LOOKS = 50
_LOOK_SECONDS = 0.002


def verify_log(
    path: StrPath,
    *,
    published: Published | None = None,
    log_id: str | None = None,
    after: Verified | None = None,
    anchors: Sequence[Anchor] = (),
    files: Files | None = None,
) -> IntegrityReport:
    """Verify the log at `path`, in bounded memory; never raises for what its files may hold.

    Args:
        path: the active file; the sealed ones are looked for in the directory beside it.
        published: tells the head and the durable position that this boot has published; without it the
            files are judged alone.
        log_id: which log it must be; by default any.
        after: where an earlier verification ended. Only what comes after it is hashed; of the files before
            it no more is looked at than that none is missing. When any of them was compacted since, all is verified.
        anchors: what the log is known to have been. Those before `after` are not compared again.
        files: the operating system.
    """
    files = files or Files()
    layout = Layout.of(Path(path))
    task = Task(layout, published or _nothing, log_id, after, tuple(anchors))
    for _ in range(_LOOKS):
        try:
            report = _verify(task, files)
        except (OSError, LogUnavailable) as error:
            return _unreadable(error)
        if report is not None:
            return report
        files.nap(_LOOK_SECONDS)
    return _unreadable(LogUnavailable(layout.active, "its files change all the time"))


def _verify(task: Task, files: Files) -> IntegrityReport | None:
    """Verify once; None when the files were sealed or compacted meanwhile."""
    opened = files.open_to_read(task.layout.active)
    try:
        header = read_header(files, opened.fd)
        if header is None:
            text = GENESIS.decode("ascii")
            reason = "the file has no header of this format"
            return IntegrityReport(Status.FOREIGN, 0, text, None, reason)
        head, promise = task.published()
        active = ActiveFile(LogFile(header, opened), head, promise)
        if not active.is_of_one_moment() and not files.is_same(task.layout.active, opened):
            return None
        try:
            verification = Verification(task, files, active)
            report = verification.report()
        except FileNotFoundError:
            return None  # a sealed file went away: the others tell why
        if not report.status.is_good and verification.has_moved():
            return None  # what looked wrong may have been a seal or a compaction on its way
        return report
    finally:
        opened.close()


def _unreadable(error: OSError | LogUnavailable) -> IntegrityReport:
    reason = error.reason if isinstance(error, LogUnavailable) else str(error)
    return IntegrityReport(Status.UNREADABLE, 0, GENESIS.decode("ascii"), None, reason)


def _nothing() -> tuple[None, None]:
    return None, None
