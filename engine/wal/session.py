"""Hold what one process has open of a log, and notice when that is no longer what it was.

Descriptors are opened by the process that uses them: a child of a fork drops its parent's (it
shares their locks) and opens its own. Before every write the numbers are compared with the files
they were opened for; when somebody closed them, as daemonising does, they are opened again. A log
that changed its place or identity stops loudly instead.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import datetime

from ..chain import HEADER_BYTES_MAX, Header
from ..control import Control
from ..errors import ForeignLog, LogMoved, LogPoisoned
from ..files import Files, Opened, all_intact
from .layout import Layout


class Handles:
    """Hold the four descriptors that appending needs."""

    def __init__(
        self,
        control: Control,
        *,
        log: Opened,
        control_file: Opened,
        append_lock: Opened,
        sync_lock: Opened,
    ) -> None:
        self.control = control
        self.log = log
        self.control_file = control_file
        self.append_lock = append_lock
        self.sync_lock = sync_lock
        self._all = (log, control_file, append_lock, sync_lock)
        self._appends_through = (log, control_file, append_lock)

    def are_intact(self) -> bool:
        """Tell whether every number that an append uses still means its file; a sync looks at its own."""
        return all_intact(self._appends_through)

    def close(self) -> None:
        """Close what is still ours."""
        for opened in self._all:
            opened.close()


class Session:
    """Give out checked handles of one log to the process that asks."""

    def __init__(
        self,
        layout: Layout,
        files: Files,
        header: Header,
        *,
        boot_id: str,
        now: Callable[[], datetime],
    ) -> None:
        self.layout = layout
        self.files = files
        self.header = header
        self.path = os.fspath(layout.active)
        self._control_path = os.fspath(layout.control)
        self.boot_id = boot_id
        self.now = now
        self._pid = os.getpid()
        self._handles: Handles | None = None
        self._identity: tuple[int, int] | None = None

    def handles(self) -> Handles:
        """Return handles that this process may write through now.

        Raises:
            LogMoved: the log's file was renamed, removed or replaced.
            LogPoisoned: a sync failed earlier.
            LogUnavailable: a file cannot be opened.
        """
        handles = self.open_handles()
        self._check_place(self.path, handles.log)
        self._check_place(self._control_path, handles.control_file)
        return handles

    def open_handles(self) -> Handles:
        """Return handles as the append before left them; they are opened again only when gone."""
        handles = self._handles
        if handles is None or not handles.are_intact():
            handles = self._reopen()
        return handles

    def current(self) -> Handles | None:
        """Return the handles that were checked last, without a look at them; None when there are none."""
        return self._handles

    def drop(self) -> None:
        """Have the files opened again, without closing what another thread may be writing through."""
        self._handles = None

    def is_of_another_process(self) -> bool:
        """Tell whether this process was forked since the handles were opened."""
        return self._pid != os.getpid()

    def forget(self) -> None:
        """Drop every handle; called in the child of a fork, where they are the parent's."""
        handles, self._handles = self._handles, None
        self._pid = os.getpid()
        if handles is not None:
            handles.close()  # closing a copy does not give back the parent's lock; unlocking would

    def _reopen(self) -> Handles:
        self.drop()
        if self.files.exists(self.layout.poisoned):
            raise LogPoisoned(self.path, "an earlier sync failed, see POISONED beside it")
        opened: list[Opened] = []
        try:
            log = self._open_log()
            opened.append(log)
            paths = (self.layout.control, self.layout.append_lock, self.layout.sync_lock)
            opened.extend(self.files.open(path, os.O_RDWR) for path in paths)
        except BaseException as error:
            for each in opened:
                each.close()
            if isinstance(error, FileNotFoundError):
                raise LogMoved(self.path, f"{error.filename} is gone") from error
            raise
        control = Control(self.files, opened[1].fd, boot_id=self.boot_id, log_id=self.header.log_id)
        self._handles = Handles(
            control,
            log=log,
            control_file=opened[1],
            append_lock=opened[2],
            sync_lock=opened[3],
        )
        return self._handles

    def _open_log(self) -> Opened:
        log = self.files.open(self.layout.active, os.O_RDWR | os.O_APPEND)
        found = read_header(self.files, log.fd)
        if found is None or found.log_id != self.header.log_id:
            log.close()
            raise ForeignLog(self.path, self.header.log_id, found.log_id if found else "no log")
        if self._identity not in (None, (log.device, log.inode)):
            log.close()
            raise LogMoved(self.path, "another file stands in its place")
        self._identity = (log.device, log.inode)
        return log

    def _check_place(self, path: str, opened: Opened) -> None:
        try:
            found = self.files.stat(path)
        except OSError as error:
            raise LogMoved(self.path, f"{path} is gone ({error.strerror})") from error
        if found.st_ino != opened.inode or found.st_dev != opened.device:
            raise LogMoved(self.path, f"another file stands at {path}")


def read_header(files: Files, fd: int) -> Header | None:
    """Read the header line at the beginning of a file, or return None when there is none of ours."""
    line, newline, _ = files.read(fd, HEADER_BYTES_MAX, 0).partition(b"\n")
    return Header.parse(line) if newline else None
