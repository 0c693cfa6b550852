"""Mark a log in which a verification has found a break, so that nobody appends behind it.

A wrong mark would stop everybody for nothing, so who marks looks twice, the second time under the log's own
locks, when nobody can be sealing or appending.
"""

from __future__ import annotations

from collections.abc import Callable

from .broken import Mark
from .poison import leave_mark
from .standstill import Standstill


class Marker:
    """Put the mark on one log, and take it away."""

    def __init__(self, still: Standstill) -> None:
        self._still = still

    def mark(self, found: Mark, is_so: Callable[[], bool]) -> bool:
        """Stop every process if `is_so` finds the same again, asked while nobody can write; tell whether it did.

        The file comes first: a mark that only ``control`` knew would be gone after a restart. A disk that takes
        no file is no reason to let this boot go on.

        Raises:
            LockTimeout: somebody holds the log's locks; nothing is marked.
            LogUnavailable: the mark did not reach the disk; this boot's writers are stopped all the same.
        """
        layout, files = self._still.layout, self._still.files
        with self._still.begun() as control:
            if not is_so():
                return False
            try:
                leave_mark(files, layout.broken, found.format())
            finally:
                promise = control.read()[
                    1
                ]  # None: nobody has appended since the boot, and who will sees the file
                if promise is not None and not promise.broken:
                    control.publish_promise(promise._replace(broken=True))
        return True

    def lift(self, is_so: Callable[[], bool]) -> bool:
        """Take the mark away if `is_so` finds, while nobody can write, that the log holds; tell whether there was one.

        Raises:
            LockTimeout: somebody holds the log's locks; the mark stays.
        """
        layout, files = self._still.layout, self._still.files
        with self._still.begun() as control:
            promise = control.read()[1]
            is_told = promise is not None and promise.broken
            if not is_told and not files.exists(layout.broken):
                return False
            if not is_so():
                return False
            if promise is not None and is_told:
                control.publish_promise(promise._replace(broken=False))
            files.remove(layout.broken)
            files.sync_directory(layout.directory)
        return True
