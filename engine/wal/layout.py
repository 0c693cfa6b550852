"""Say where each file of a log lies."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Layout:
    """Name the active file and everything in the directory beside it."""

    active: Path
    directory: Path

    @classmethod
    def of(cls, active: Path) -> Layout:
        """Return the layout of the log whose active file is `active`."""
        return cls(active, Path(f"{active}.d"))

    @property
    def append_lock(self) -> Path:
        """Return the file whose lock orders the writers."""
        return self.directory / "append.lock"

    @property
    def sync_lock(self) -> Path:
        """Return the file whose lock chooses who syncs for everybody."""
        return self.directory / "sync.lock"

    @property
    def seal_lock(self) -> Path:
        """Return the file whose lock lets one process at a time begin to seal."""
        return self.directory / "seal.lock"

    @property
    def control(self) -> Path:
        """Return the file that holds the agreed head and the durable position."""
        return self.directory / "control"

    @property
    def newborn(self) -> Path:
        """Return the name under which a new active file is written before it gets its own."""
        return self.directory / "newborn"

    @property
    def mended(self) -> Path:
        """Return the name under which a copy of a poisoned file is written before it gets that one's."""
        return self.directory / "mended"

    @property
    def segments(self) -> Path:
        """Return the directory of the sealed files."""
        return self.directory / "segments"

    def segment(self, first_seq: int) -> Path:
        """Return the name of the sealed file that begins at `first_seq`."""
        return self.segments / f"{first_seq:020d}.wal"

    @property
    def archive(self) -> Path:
        """Return the directory of sealed files that a snapshot replaced."""
        return self.directory / "archive"

    @property
    def snapshots(self) -> Path:
        """Return the directory of snapshots."""
        return self.directory / "snapshots"

    @property
    def checkpoints(self) -> Path:
        """Return the directory of signed checkpoints."""
        return self.directory / "checkpoints"

    @property
    def quarantine(self) -> Path:
        """Return the directory that keeps what was cut off."""
        return self.directory / "quarantine"

    @property
    def poisoned(self) -> Path:
        """Return the mark that a sync failed."""
        return self.directory / "POISONED"

    @property
    def broken(self) -> Path:
        """Return the mark that what was on disk does not verify."""
        return self.directory / "BROKEN"

    @property
    def latency(self) -> Path:
        """Return the ring of the latest write latencies."""
        return self.directory / "latency"

    @property
    def index(self) -> Path:
        """Return the disposable index of runs."""
        return self.directory / "index.sqlite"
