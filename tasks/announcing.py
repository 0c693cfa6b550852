"""Tell the message bus of each dead letter, where there is a bus."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from celery_commander.engine import LETTER_TYPES, Event, category_of

if TYPE_CHECKING:
    from .install import Commander

logger = logging.getLogger(__name__)

CREATED = "dead_letter.created"


def announce(commander: Commander, events: Iterable[Event]) -> None:
    """Publish the dead letters that freshly written events make; nothing is waited for, nothing raised.

    Whoever must not miss one reads them from the queue: a process that dies here has told nobody.
    """
    for event in events:
        if event.type in LETTER_TYPES:
            _publish(commander, event)


def _publish(commander: Commander, event: Event) -> None:
    bus, category = getattr(commander, "bus", None), category_of(event)
    if bus is None or category is None:
        return
    try:
        bus.publish(
            CREATED, {"entry": str(event.seq), "category": category.value}, run_id=event.run_id
        )
    except Exception:  # what is said of a run must not become part of it
        logger.exception("Dead letter %s could not be announced.", event.seq)
