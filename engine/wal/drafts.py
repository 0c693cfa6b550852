"""Prepare events outside the lock, so that under it only the timestamp and the hash are missing."""

from __future__ import annotations

from typing import NamedTuple

from ..chain import check_id, check_type
from ..control import Head
from ..errors import InvalidEvent
from ..events import NewEvent

FENCED = "run.fenced"
REPAIRED = "wal.repaired"
CREATED = "wal.created"


class Draft(NamedTuple):
    """Hold an event's line but for its timestamp and hash, and what the fences need to know of it."""

    front: bytes
    back: bytes
    run_id: str | None
    token: int | None
    is_fence: bool


class Written(NamedTuple):
    """Say where a batch went: the heads before and after it, each line's hash and its offset."""

    before: Head
    after: Head
    hashes: list[bytes]
    offsets: list[int]


def draft(new: NewEvent, id_: str, payload: bytes) -> Draft:
    """Join what is known of an event before the lock.

    Raises:
        InvalidEvent: its type, its id or its token is not allowed.
    """
    check_type(new.type)
    check_id(id_)
    if new.token is not None and new.run_id is None:
        raise InvalidEvent("token", "only an event of a run can carry one")
    is_fence = new.type == FENCED
    if is_fence and new.token is None:
        raise InvalidEvent("token", f"{FENCED} must carry one")
    front = f"|{new.type}|{id_}|".encode("ascii")
    return Draft(front, b"|" + payload, new.run_id, new.token, is_fence)
