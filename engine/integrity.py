"""Name what verification can find. Never a bare yes or no."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Status(Enum):
    """Name what verification found; the value is the exit code."""

    OK_ANCHORED = 0
    OK_UNANCHORED = 10
    BREAK_ACCEPTED = 15
    TORN_TAIL = 20
    CORRUPT = 30
    TRUNCATED = 31
    FORKED = 32
    GAP = 33
    FOREIGN = 34
    BAD_SIGNATURE = 35
    UNAUTHORISED_COMPACTION = 36
    STALE_ANCHOR = 37
    SNAPSHOT_MISMATCH = 38
    UNREADABLE = 40

    @property
    def is_good(self) -> bool:
        """Tell whether the whole chain holds, but for what a person has accepted."""
        return self in (Status.OK_ANCHORED, Status.OK_UNANCHORED, Status.BREAK_ACCEPTED)


@dataclass(frozen=True, slots=True)
class BrokenAt:
    """Say where the log stops being good; expected and found are hashes, where there are two."""

    seq: int
    path: str
    offset: int
    expected: str | None = None
    found: str | None = None


@dataclass(frozen=True, slots=True)
class Verified:
    """Say up to where a log was found good: an event, its hash, its file, and the offset behind its line.

    The next verification may go on from here. It is only as good as the place where it is kept. `first_seq`
    is the event that the log began with then (0: not known): what was removed since is not vouched for.
    """

    seq: int
    hash: str
    file: int
    offset: int
    first_seq: int = 0


@dataclass(frozen=True, slots=True)
class AcceptedBreak:
    """Say which damage the log goes on behind, and who has answered for that.

    Events ``first_seq`` to ``last_seq`` are lost (none, if the last comes before the first). ``sha256`` is that
    of the damaged file, None where it is missing. ``by`` accepted it ``at`` a moment, and event ``noted_at``
    says so.
    """

    first_seq: int
    last_seq: int
    path: str
    offset: int
    sha256: str | None
    reason: str
    by: str
    at: str
    noted_at: int

    @property
    def told(self) -> str:
        """Return it in one line."""
        lost = "no event is lost"
        if self.last_seq >= self.first_seq:
            lost = f"events {self.first_seq} to {self.last_seq} are lost"
        return f"{self.path} byte {self.offset}, {lost} ({self.reason}), accepted by {self.by} at {self.at}"


@dataclass(frozen=True, slots=True)
class IntegrityReport:
    """Say what verification came to.

    ``events`` hold, from ``first_seq`` on; ``head`` is the hash of the last of them, ``broken_at`` is what
    comes next. ``verified`` is where to go on next time, when all is good. ``anchored_to`` is the highest
    anchor that was found in the chain. ``lost`` events among them are accepted as lost, and not counted;
    ``accepted`` says where.
    """

    status: Status
    events: int
    head: str
    broken_at: BrokenAt | None
    reason: str
    anchored_to: str | None = None
    first_seq: int = 1
    verified: Verified | None = None
    lost: int = 0
    accepted: tuple[AcceptedBreak, ...] = ()

    @property
    def exit_code(self) -> int:
        """Return the status as a process would."""
        return self.status.value
