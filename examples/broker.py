"""Kombu's file-system transport with whole messages only.

Kombu creates a message's file first and fills it afterwards. A consumer that lists the folder in
between, or that finds what a killed publisher left behind, reads an empty message, and a Celery
worker that reads one stops. Here a file gets its name when it is complete.
"""

from __future__ import annotations

import os
import time
import uuid
from typing import Any

from kombu.transport import filesystem
from kombu.utils.json import dumps


class Channel(filesystem.Channel):
    """A channel whose messages appear all at once."""

    def _put(  # type: ignore[override]  # kombu itself has two names for the second argument
        self, queue: str, payload: Any, **_options: Any
    ) -> None:
        name = f"{time.monotonic_ns() // 1_000_000}_{uuid.uuid4()}.{queue}.msg"
        path = os.path.join(self.data_folder_out, name)
        unfinished = os.path.join(self.data_folder_out, f"unfinished-{uuid.uuid4()}")
        with open(unfinished, "w", encoding="utf-8") as file:
            file.write(dumps(payload))
        os.rename(unfinished, path)


class Transport(filesystem.Transport):
    """Named by `broker_transport`, as "broker:Transport"."""

    Channel = Channel
