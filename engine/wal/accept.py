"""Let a broken log go on at a person's word: nothing is cut or rewritten, what is lost is named in the chain.

The damaged files stay byte for byte; their SHA-256 go into the note, so that any further change of them is a
break again. The note, ``wal.repaired``, is the first event of a fresh file. The steps, each durable before
the next:

1. the mark of the break is on disk
2. if the active file is good, a copy of it is sealed (as when a failed sync is repaired); if it is damaged
   itself it is synced as it is
3. the fresh file with the note is written and synced under another name
4. the copy gets the old file's own name in ``segments/``; a damaged file gets that name beside the active one
5. ``control`` forgets where the log ends, so that until 7 the files alone say it
6. the fresh file is renamed over the active name
7. ``control`` is told, then the mark is removed

Killed before 6 the log is as it was, and still marked. Killed after it nothing is left to be accepted, and
whoever verifies the log takes the mark away.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from ..control import Control, Promise
from ..errors import LogPoisoned
from .broken import Mark
from .damage import Damage
from .mend import BY_MAX
from .poison import leave_mark
from .renew import Renewer
from .segments import LogFile, our_file
from .standstill import Chain, Standstill
from .survey import Survey, Surveyed

__all__ = ["Acceptance", "Acceptor"]


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Say what was accepted, and with which event the log says so (0: nothing was left to accept)."""

    damages: tuple[Damage, ...]
    seq: int


class Acceptor:
    """Survey one log, and accept what is found; everybody else is kept out meanwhile."""

    def __init__(self, still: Standstill, now: Callable[[], datetime]) -> None:
        self._still = still
        self._now = now

    def survey(self) -> tuple[Damage, ...]:
        """Return what is damaged and was not accepted; nothing is changed.

        Raises:
            BreakRefused: a person's word would not make it good.
            LockTimeout, LogUnavailable: it cannot be looked at now.
        """
        with self._still.begun() as control:
            log = self._open()
            try:
                return self._surveyed(log, control).damages
            finally:
                log.close()

    def accept(self, by: str, chain: Chain) -> Acceptance:
        """Let the log go on; `by` is who answers for it.

        Raises:
            ValueError: nobody is named, or in more than BY_MAX characters.
            BreakRefused: what is wrong cannot be accepted; nothing is changed.
            LogPoisoned: a sync has failed too; that is repaired first.
            LockTimeout, LogUnavailable, OSError: the log stays as it was, and marked.
        """
        if not 1 <= len(by.strip()) <= BY_MAX:
            raise ValueError(f"say who answers for the repair, in 1 to {BY_MAX} characters")
        files, layout = self._still.files, self._still.layout
        with self._still.begun() as control:
            promise = control.read()[1]
            if files.exists(layout.poisoned) or (promise is not None and promise.poisoned):
                raise LogPoisoned(layout.active, "a sync failed, which is to be repaired first")
            log = self._open()
            try:
                surveyed = self._surveyed(log, control)
                if not surveyed.damages:
                    return Acceptance((), 0)
                self._mark(surveyed.damages[0], control)
                return self._accept(log, surveyed, by=by, chain=chain, control=control)
            finally:
                log.close()

    def _accept(
        self, log: LogFile, surveyed: Surveyed, *, by: str, chain: Chain, control: Control
    ) -> Acceptance:
        damages, renewer = surveyed.damages, Renewer(self._still, chain, control)
        told = {
            "by": by,
            "reason": f"a person accepted {len(damages)} break(s)",
            "breaks": [damage.format() for damage in damages],
        }
        if surveyed.active is not None:
            renewed = renewer.by_copy(log, surveyed.active, told)
        else:
            renewed = renewer.behind(log, surveyed.end, told)
        control.publish_promise(Promise(renewed.after.seq, broken=True))
        self._let_go(control)
        return Acceptance(damages, renewed.after.seq)

    def _open(self) -> LogFile:
        opened = self._still.files.open(self._still.layout.active, os.O_RDWR, names_max=2)
        return our_file(self._still.files, opened, self._still.log_id)

    def _surveyed(self, log: LogFile, control: Control) -> Surveyed:
        head, promise = control.read()
        return Survey(self._still.layout, self._still.files, log, head=head, promise=promise).run()

    def _mark(self, damage: Damage, control: Control) -> None:
        """See that the mark is on disk: a kill from now on must leave a log in which nobody appends."""
        path = self._still.layout.segment(damage.file)
        found = Mark(
            status="GAP" if damage.is_missing else "CORRUPT",
            seq=damage.first_seq,
            path=str(path if damage.name == path.name else Path(path.parent.parent, damage.name)),
            offset=damage.offset,
            reason=damage.reason,
            at=self._now().isoformat(timespec="seconds"),
        )
        leave_mark(self._still.files, self._still.layout.broken, found.format())
        promise = control.read()[1]
        if promise is not None and not promise.broken:
            control.publish_promise(promise._replace(broken=True))

    def _let_go(self, control: Control) -> None:
        files, layout = self._still.files, self._still.layout
        promise = control.read()[1]
        if promise is not None and promise.broken:
            control.publish_promise(promise._replace(broken=False))
        if files.exists(layout.broken):
            files.remove(layout.broken)
            files.sync_directory(layout.directory)
