"""Hold what one process has open of a log, and notice when that is no longer what it was.

Descriptors are opened by the process that uses them: a child of a fork drops its parent's (it
shares their locks) and opens its own. Before every write the numbers are compared with the files
they were opened for; when somebody closed them, as daemonising does, they are opened again. A log
that changed its place or identity stops loudly instead.

Sealing gives the active file's place to a new one. What tells that from somebody's replacing it is
``control``: it says at which seq the active file of this boot begins, and only for another such
number does a process that had the file open take another file for it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import datetime

from ..chain import Header
from ..control import Control, Head
from ..errors import LogMoved, LogPoisoned
from ..files import Files, Opened, all_intact, all_writable
from .broken import as_marked
from .layout import Layout
from .segments import LogFile, is_next, our_file, refuse_second_name

_LOOKS_DURING_A_SEAL = 50
_RETIRED_MAX = 2


class Handles:
    """Hold the four descriptors that appending needs; ``file`` is the number of the log's file among them."""

    def __init__(
        self,
        control: Control,
        *,
        header: Header,
        log: Opened,
        control_file: Opened,
        append_lock: Opened,
        sync_lock: Opened,
    ) -> None:
        self.control = control
        self.header = header
        self.file = header.first_seq
        self.log = log
        self.control_file = control_file
        self.append_lock = append_lock
        self.sync_lock = sync_lock
        self._others = (control_file, append_lock, sync_lock)
        self._appends_through = (log, control_file, append_lock)

    def are_intact(self) -> bool:
        """Tell whether every number that an append uses still means its file; a sync looks at its own."""
        return all_intact(self._appends_through) and all_writable((self.log, self.control_file))

    def with_log(self, log: LogFile) -> Handles:
        """Return handles of another file of the log that share everything else with these."""
        control_file, append_lock, sync_lock = self._others
        return Handles(
            self.control,
            header=log.header,
            log=log.opened,
            control_file=control_file,
            append_lock=append_lock,
            sync_lock=sync_lock,
        )

    def close(self) -> None:
        """Close what is still ours."""
        for opened in (self.log, *self._others):
            opened.close()


class Session:
    """Give out checked handles of one log to the process that asks."""

    def __init__(
        self,
        layout: Layout,
        files: Files,
        *,
        log_id: str,
        boot_id: str,
        now: Callable[[], datetime],
    ) -> None:
        self.layout = layout
        self.files = files
        self.log_id = log_id
        self.path = os.fspath(layout.active)
        self._control_path = os.fspath(layout.control)
        self.boot_id = boot_id
        self.now = now
        self._pid = os.getpid()
        self._handles: Handles | None = None
        self._retired: list[Opened] = []
        self._identity: tuple[int, int, int] | None = None

    def handles(self) -> Handles:
        """Return handles that this process may write through now.

        Raises:
            LogMoved: the log's file was renamed, removed or replaced.
            LogPoisoned: a sync failed earlier.
            LogBroken: a verification found a break.
            LogUnavailable: a file cannot be opened.
        """
        handles = self.open_handles()
        if not self._is_in_place(self.path, handles.log):
            handles = self.follow(handles)
        if not self._is_in_place(self._control_path, handles.control_file):
            raise LogMoved(self.path, f"another file stands at {self._control_path}")
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
        retired, self._retired = self._retired, []
        self._pid = os.getpid()
        if handles is not None:
            handles.close()  # closing a copy does not give back the parent's lock; unlocking would
        for opened in retired:
            opened.close()

    def follow(self, handles: Handles) -> Handles:
        """Go on with the file that stands in the log's place, if it is there because the last one was sealed.

        The old descriptor is kept for a while: another thread may be syncing it. It cannot still be doing so when
        the log was sealed twice more, which needs the lock that it holds.

        Raises:
            LogMoved: the file in its place is not the one that this boot's writers have agreed on.
        """
        log = self._open_log(handles.control)
        present = self._handles
        if present is not None and present is not handles:
            log.close()  # another thread was faster
            return present
        fresh = handles.with_log(log)
        if handles.log not in self._retired:
            self._retired.append(handles.log)
        while len(self._retired) > _RETIRED_MAX:
            self._retired.pop(0).close()
        self._handles = fresh
        return fresh

    def _reopen(self) -> Handles:
        self.drop()
        if self.files.exists(self.layout.poisoned):
            raise LogPoisoned(self.path, "an earlier sync failed, see POISONED beside it")
        if self.files.exists(self.layout.broken):
            raise as_marked(self.files, self.layout)
        opened: list[Opened] = []
        try:
            paths = (self.layout.control, self.layout.append_lock, self.layout.sync_lock)
            opened.extend(self.files.open(path, os.O_RDWR) for path in paths)
            control = Control(self.files, opened[0].fd, boot_id=self.boot_id, log_id=self.log_id)
            log = self._open_log(control)
        except BaseException as error:
            for each in opened:
                each.close()
            if isinstance(error, FileNotFoundError):
                raise LogMoved(self.path, f"{error.filename} is gone") from error
            raise
        self._handles = Handles(
            control,
            header=log.header,
            log=log.opened,
            control_file=opened[0],
            append_lock=opened[1],
            sync_lock=opened[2],
        )
        return self._handles

    def _open_log(self, control: Control) -> LogFile:
        """Open the active file; during a seal, look until ``control`` and the file are of one moment."""
        for _ in range(_LOOKS_DURING_A_SEAL):
            head = control.read_settled()[0]
            log = self._open_active()
            try:
                refuse_second_name(self.layout, self.files, log)
                if _state_of(head) == _state_of(control.read_settled()[0]):
                    self._refuse_another(log, head)
                    return log
            except BaseException:
                log.close()
                raise
            log.close()
        raise LogMoved(self.path, "it is sealed again and again while it is opened")

    def _open_active(self) -> LogFile:
        try:
            opened = self.files.open(self.layout.active, os.O_RDWR | os.O_APPEND, names_max=2)
        except FileNotFoundError as error:
            raise LogMoved(self.path, "it is gone") from error
        return our_file(self.files, opened, self.log_id)

    def _refuse_another(self, log: LogFile, head: Head | None) -> None:
        """Refuse a file that is not the one which this boot's writers have agreed on."""
        file = log.header.first_seq
        if head is not None and file != head.file and not is_next(log.header, head):
            reason = f"it begins at event {file}, the log's active file at {head.file}"
            raise LogMoved(self.path, reason)
        identity = (file, log.opened.device, log.opened.inode)
        known = self._identity
        if known is not None and known != identity and (head is None or known[0] == file):
            raise LogMoved(self.path, "another file stands in its place")
        self._identity = identity

    def _is_in_place(self, path: str, opened: Opened) -> bool:
        try:
            found = self.files.stat(path)
        except OSError as error:
            raise LogMoved(self.path, f"{path} is gone ({error.strerror})") from error
        return found.st_ino == opened.inode and found.st_dev == opened.device


def _state_of(head: Head | None) -> tuple[int, bool] | None:
    """Return which file ``control`` names, and whether another is about to take its place."""
    return None if head is None else (head.file, head.sealed)
