"""Make the names that nobody may ever make twice."""

from __future__ import annotations

import os
import re
import socket
from datetime import datetime
from typing import NewType
from uuid import UUID

from .boot import BootClock

RunId = NewType("RunId", str)
"""A run's name: its Celery task id, with ``.n`` for its n-th replacement."""

EventId = NewType("EventId", str)
"""An event's name, unique in its log."""

_UNSAFE_IN_A_NAME = re.compile(r"[^A-Za-z0-9.-]")


def new_event_id(now: datetime) -> EventId:
    """Return a fresh UUIDv7 (RFC 9562, section 5.7): made at `now`, so ids sort about as they were made.

    The 74 random bits come from the system at each call, so a forked child never repeats its parent.
    """
    milliseconds = int(now.timestamp() * 1000) & 0xFFFF_FFFF_FFFF
    random_bits = int.from_bytes(os.urandom(10), "big")
    high = (milliseconds << 16) | 0x7000 | (random_bits >> 68)
    low = (0b10 << 62) | (random_bits & ((1 << 62) - 1))
    return EventId(str(UUID(int=(high << 64) | low)))


def holder_name(role: str, clock: BootClock) -> str:
    """Return a name for what this process holds, as ``worker-4711@host/3f2a9c1e/8d1b0c55e0a1``.

    It is for people: role, process, host, boot. Only the nonce makes it unique, and no part of it ever decides
    anything. A forked child is another holder and asks for its own.
    """
    host = _UNSAFE_IN_A_NAME.sub("-", socket.gethostname()) or "localhost"
    return f"{role}-{os.getpid()}@{host}/{clock.boot_id[:8]}/{os.urandom(6).hex()}"
