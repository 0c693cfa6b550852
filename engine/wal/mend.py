"""Let a poisoned log go on, at an operator's word, in files of which no sync has failed.

Nobody can tell which bytes of a file are on disk after one of its syncs has failed, and a later sync of
the same file proves nothing. But whatever can be read and verifies may be copied to a fresh file and
synced there. The copy is sealed, it takes the place of the file that it was copied from, and the log
goes on in the next one. The steps, each durable before the next:

1. the mark of the poisoning is on disk (when the sync failed it may not have got there), and what does not
   verify is set aside in quarantine, as after any crash
2. the copy is written and synced under another name; its last line is `wal.sealed`
3. so is the next file, whose first line is `wal.repaired`: what was cut off, and who answers for it
4. the copy gets the file's own name in ``segments/``
5. ``control`` forgets where the log ends, so that until 7 the files alone say it
6. the next file is renamed over the active name
7. ``control`` is told, then the mark of the poisoning is removed

Killed before 6 the log is as it was, and a repair begins again. Killed after it the log is still marked,
and the next repair finds a fresh active file.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from ..control import Control, Promise
from ..errors import LogCorrupt, LogMoved, LogPoisoned, LogUnavailable
from .poison import leave_mark
from .renew import Renewer
from .repair import Scan, scan
from .segments import LogFile, our_file, start_of
from .standstill import Chain, Standstill

BY_MAX = 200
_MARK_BYTES_MAX = 512


@dataclass(frozen=True, slots=True)
class Mended:
    """Say what a repair came to.

    `through` is the last event of what was kept, `quarantine` the name of what was cut off behind it
    (`quarantined_bytes` long), or None where everything verified.
    """

    through: int
    reason: str
    quarantine: str | None = None
    quarantined_bytes: int = 0


class Mender:
    """Repair one poisoned log; everybody else is kept out meanwhile."""

    def __init__(self, still: Standstill) -> None:
        self._still = still
        self._layout = still.layout
        self._files = still.files
        self._log_id = still.log_id

    def mend(self, by: str, chain: Chain) -> Mended | None:
        """Let the log go on; None when it is not poisoned. `by` is who answers for it.

        Raises:
            ValueError: nobody is named, or in more than BY_MAX characters.
            LockTimeout: somebody holds the log's locks.
            LogCorrupt, LogMoved: events that were on disk do not verify, or are missing; nothing is changed.
            LogPoisoned: the disk still refuses; the log stays as it was.
        """
        if not 1 <= len(by.strip()) <= BY_MAX:
            raise ValueError(f"say who answers for the repair, in 1 to {BY_MAX} characters")
        files, layout = self._files, self._layout
        try:
            with self._still.begun() as control:
                promise = control.read()[1]
                is_poisoned = promise is not None and promise.poisoned
                if not is_poisoned and not files.exists(layout.poisoned):
                    return None
                active = files.open(layout.active, os.O_RDWR, names_max=2)
                log = our_file(files, active, self._log_id)
                try:
                    found = self._believed(log, promise)
                    leave_mark(files, layout.poisoned, "a sync failed\n")
                    return self._mend(log, found, _Told(by, self._reason(), chain, control))
                finally:
                    log.close()
        except OSError as error:
            reason = f"it cannot be repaired now: {error.strerror or error}"
            raise LogPoisoned(layout.active, reason) from error

    def _mend(self, log: LogFile, found: Scan, told: _Told) -> Mended:
        files, layout = self._files, self._layout
        renewer = Renewer(self._still, told.chain, told.control)
        renewed = renewer.by_copy(log, found, {"reason": told.reason, "by": told.by})
        promise = told.control.read()[1]
        is_broken = promise is not None and promise.broken
        told.control.publish_promise(Promise(renewed.after.seq, broken=is_broken))
        files.remove(layout.poisoned)
        files.sync_directory(layout.directory)
        kept = renewed.quarantine, renewed.quarantined_bytes
        return Mended(found.head.seq, told.reason, *kept)

    def _believed(self, log: LogFile, promise: Promise | None) -> Scan:
        """Return how far the active file is good; what was on disk must be."""
        found = scan(self._files, log.opened.fd, start_of(log.header))
        known = max(found.durable, promise.seq if promise else 0)
        broken = found.broken
        if broken is not None and broken.seq <= known:
            reason = f"{broken.reason}, although event {known} was durable"
            raise LogCorrupt(broken.seq, self._layout.active, broken.offset, reason)
        if found.head.seq < known:
            reason = f"it ends at {found.head.seq}, {known} was durable"
            raise LogMoved(self._layout.active, reason)
        return found

    def _reason(self) -> str:
        """Return what the mark says of the sync that failed."""
        try:
            mark = self._files.open(self._layout.poisoned, os.O_RDONLY)
        except (FileNotFoundError, LogUnavailable):
            return "a sync failed"
        try:
            text = self._files.read(mark.fd, _MARK_BYTES_MAX, 0).decode("utf-8", "replace")
        finally:
            mark.close()
        return " ".join(text.split()) or "a sync failed"


@dataclass(frozen=True, slots=True)
class _Told:
    """Hold what one repair was told."""

    by: str
    reason: str
    chain: Chain
    control: Control
