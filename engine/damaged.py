"""Tell whether events of a run may be lost in damage that a person has accepted. Pure.

Lost lines cannot be asked whose they were: what they still say was not what was written. So a run is believed
to be whole only where that can be shown:

- its first event stands behind the damage and is its registration, or
- it was over and told before the damage, or
- its owners' own numbers, which are dense, go on behind the damage without a hole.

Any other may have done more than its history says. It is neither replayed nor undone by guess: a person looks at
it, and the word that the person then says stands behind the damage too. A lost fence or cancellation, which have
no such numbers, is not found by this.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from .events import Event
from .fold import fold_all
from .states import FINISHED


class LostEvents(NamedTuple):
    """Say which events are lost, and which event says that this was accepted."""

    first_seq: int
    last_seq: int
    noted_at: int


def doubt_of(events: Sequence[Event], lost: Iterable[LostEvents]) -> str | None:
    """Return why some of one run's events may be lost, or None where none can be, or a person has spoken since."""
    for each in lost:
        if events and not _is_whole(events, each) and not _was_answered(events, each):
            return (
                f"events {each.first_seq} to {each.last_seq} of the log are lost, and that none of them was this"
                " run's cannot be shown"
            )
    return None


def _is_whole(events: Sequence[Event], lost: LostEvents) -> bool:
    before = [event for event in events if event.seq < lost.first_seq]
    behind = [event for event in events if event.seq > lost.last_seq]
    if events[0].type not in ("run.created", "run.degraded"):
        return False
    if not before:
        return True
    if _is_over(before):
        return True
    known = max((event.n or 0 for event in before if _is_numbered(event)), default=0)
    following = next((event.n for event in behind if _is_numbered(event)), None)
    return following == known + 1


def _is_numbered(event: Event) -> bool:
    return event.token is not None and event.n is not None


def _is_over(events: Sequence[Event]) -> bool:
    states = fold_all(events).values()
    return any(state.state in FINISHED and state.delivered for state in states)


def _was_answered(events: Sequence[Event], lost: LostEvents) -> bool:
    return any(event.type.startswith("operator.") and event.seq > lost.noted_at for event in events)
