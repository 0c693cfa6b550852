"""Prepare events outside the lock, so that under it only the timestamp and the hash are missing."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..chain import check_id, check_type
from ..control import Head
from ..errors import InvalidEvent
from ..events import NewEvent, encode_payload

FENCED = "run.fenced"
REPAIRED = "wal.repaired"
CREATED = "wal.created"
SEALED = "wal.sealed"


class Draft(NamedTuple):
    """Hold an event's line but for its timestamp and hash, and what is to be told of it once it is written."""

    front: bytes
    back: bytes
    new: NewEvent
    id: str
    data: dict[str, Any]


class Written(NamedTuple):
    """Say where a batch went: the heads before and after it, each line's hash and its offset."""

    before: Head
    after: Head
    hashes: list[bytes]
    offsets: list[int]


def draft(new: NewEvent, fresh_id: str, *, durable: int, bytes_max: int) -> Draft:
    """Make all of an event that can be made before the lock; `fresh_id` is for one that names none itself.

    Raises:
        InvalidEvent: its type, its id, its token or its data is not allowed.
    """
    payload, data = encode_payload(new, durable=durable, bytes_max=bytes_max)
    check_type(new.type)
    id_ = fresh_id
    if new.id is not None:
        id_ = new.id
        check_id(id_)
    if new.token is None:
        if new.type == FENCED:
            raise InvalidEvent("token", f"{FENCED} must carry one")
    elif new.run_id is None:
        raise InvalidEvent("token", "only an event of a run can carry one")
    front = f"|{new.type}|{id_}|".encode("ascii")
    return Draft(front, b"|" + payload, new, id_, data)
