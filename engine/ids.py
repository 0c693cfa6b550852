"""Make the names that nobody may ever make twice."""

from __future__ import annotations

import os
import re
import socket
from datetime import datetime
from typing import NewType, cast

from .boot import BootClock

RunId = NewType("RunId", str)
"""A run's name: its Celery task id, with ``.n`` for its n-th replacement."""

EventId = NewType("EventId", str)
"""An event's name, unique in its log."""

_RANDOM_BYTES = 10  # an id takes 74 of their 80 bits
_VARIANT = {digit: "89ab"[int(digit, 16) % 4] for digit in "0123456789abcdef"}
_UNSAFE_IN_A_NAME = re.compile(r"[^A-Za-z0-9.-]")


def new_event_id(now: datetime) -> EventId:
    """Return a fresh UUIDv7 (RFC 9562, section 5.7): made at `now`, so ids sort about as they were made.

    The 74 random bits come from the system at each call, so a forked child never repeats its parent.
    """
    return new_event_ids(now, 1)[0]


def new_event_ids(now: datetime, count: int) -> list[EventId]:
    """Return `count` fresh ids at one moment; the random bits of all of them are asked for in one call."""
    moment = f"{int(now.timestamp() * 1000) & 0xFFFF_FFFF_FFFF:012x}"
    front = f"{moment[:8]}-{moment[8:]}-7"  # 7: the version
    bits = os.urandom(_RANDOM_BYTES * count).hex()
    ids = [
        f"{front}{bits[at : at + 3]}-{_VARIANT[bits[at + 3]]}{bits[at + 4 : at + 7]}"
        f"-{bits[at + 7 : at + 19]}"
        for at in range(0, 2 * _RANDOM_BYTES * count, 2 * _RANDOM_BYTES)
    ]
    return cast("list[EventId]", ids)


def holder_name(role: str, clock: BootClock) -> str:
    """Return a name for what this process holds, as ``worker-4711@host/3f2a9c1e/8d1b0c55e0a1``.

    It is for people: role, process, host, boot. Only the nonce makes it unique, and no part of it ever decides
    anything. A forked child is another holder and asks for its own.
    """
    host = _host_in_a_name(socket.gethostname())
    return f"{role}-{os.getpid()}@{host}/{clock.boot_id[:8]}/{os.urandom(6).hex()}"


def is_of_host(holder: str, host: str) -> bool:
    """Tell whether a holder's name says that it runs on `host`; for those who show or restart, not who decide."""
    return holder.partition("@")[2].partition("/")[0] == _host_in_a_name(host)


def _host_in_a_name(host: str) -> str:
    return _UNSAFE_IN_A_NAME.sub("-", host) or "localhost"
