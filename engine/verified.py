"""Keep what the last verification of a log came to, for those who ask often and must not verify.

One small file beside the log, replaced as a whole. It proves nothing: whoever can write the log can write it too. It
saves a reading of the log; whoever needs proof verifies.
"""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Self

from .fields import Refused, number, text
from .integrity import IntegrityReport, Verified

_NAME: Final = "verified.json"
_BYTES_MAX: Final = 16_384
_LEFT_SECONDS: Final = 60.0
_REASON_MAX: Final = 4000


_SOUND: Final = ("OK_ANCHORED", "OK_UNANCHORED", "BREAK_ACCEPTED", "TORN_TAIL", "STALE_ANCHOR")
"""What verification may say of a chain that holds; a torn tail is settled by the next append."""


@dataclass(frozen=True, slots=True)
class Verification:
    """Say what a verification found, when, and through which event the chain held.

    `verified` is where the next one may go on.
    """

    log_id: str
    status: str
    exit_code: int
    seq: int
    hash: str
    at: datetime
    reason: str = ""
    verified: Verified | None = None

    @classmethod
    def of(cls, report: IntegrityReport, *, log_id: str, at: datetime) -> Self:
        """Return what is kept of a report."""
        return cls(
            log_id=log_id,
            status=report.status.name,
            exit_code=report.exit_code,
            seq=report.first_seq - 1 + report.events + report.lost,
            hash=report.head,
            at=at,
            reason=report.reason[:_REASON_MAX],
            verified=report.verified,
        )


def is_sound(status: str) -> bool:
    """Tell whether the chain held, going by a status's name."""
    return status in _SOUND


def note_verification(directory: Path, found: Verification, *, whole: bool) -> None:
    """Write a verification down if the directory takes it; health otherwise reports the one before, and its age.

    A break stays until the log was read whole: what comes behind it may well be good.
    """
    with suppress(OSError, ValueError):
        last = None if whole else last_verification(directory)
        if last is None or last.log_id != found.log_id or is_sound(last.status):
            save_verification(directory, found)


def _sweep(directory: Path) -> None:
    """Remove what processes left that were killed while they wrote one down."""
    oldest = time.time() - _LEFT_SECONDS
    for left in directory.glob(f"{_NAME}.*"):
        with suppress(OSError):
            if left.stat().st_mtime < oldest:
                left.unlink()


def save_verification(directory: Path, verification: Verification) -> None:
    """Write it down in the log's own directory, readable by its owner only.

    Raises:
        OSError: it cannot be written.
    """
    _sweep(directory)
    document = asdict(verification) | {"at": verification.at.astimezone(UTC).isoformat()}
    path = directory / f"{_NAME}.{os.getpid()}-{os.urandom(4).hex()}"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            json.dump(document, file)
        path.rename(directory / _NAME)
    except BaseException:
        with suppress(OSError):
            path.unlink()
        raise


def last_verification(directory: Path) -> Verification | None:
    """Return the last verification of the log in `directory`, or None where there was none.

    Raises:
        OSError: it is there and cannot be read.
        ValueError: it is there and is not ours.
    """
    try:
        with open(directory / _NAME, "rb", opener=_open_to_look) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ValueError(f"{_NAME} is not ours: it is not a regular file")
            document = json.loads(file.read(_BYTES_MAX))
    except FileNotFoundError:
        return None
    except RecursionError as error:
        raise ValueError(f"{_NAME} is not ours: it is nested too deeply") from error
    try:
        return _read(document)
    except (TypeError, KeyError, AttributeError, Refused) as error:
        raise ValueError(f"{_NAME} is not ours: {error}") from error


def _open_to_look(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)  # nobody waits at a pipe


def _read(document: Mapping[str, Any]) -> Verification:
    at = datetime.fromisoformat(document["at"])
    if at.tzinfo is None:
        raise ValueError("its moment has no time zone")
    place = document.get("verified")
    return Verification(
        log_id=text(document, "log_id"),
        status=text(document, "status"),
        exit_code=number(document, "exit_code"),
        seq=number(document, "seq"),
        hash=text(document, "hash"),
        at=at,
        reason=text(document, "reason"),
        verified=None if place is None else _place(place),
    )


def _place(document: Mapping[str, Any]) -> Verified:
    numbers = {name: number(document, name) for name in ("seq", "file", "offset")}
    first_seq = number(document, "first_seq") if "first_seq" in document else 0
    return Verified(hash=text(document, "hash"), first_seq=first_seq, **numbers)
