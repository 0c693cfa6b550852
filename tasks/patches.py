"""Let code change under runs that have begun: each run goes on in the way that it took.

A run that goes on from a checkpoint keeps the answers that it had been given by then: the checkpoint names them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from .ends import is_the_bodys

if TYPE_CHECKING:
    from .execution import Execution

PATCHED: Final = "patched"


class Patches:
    """Answer `patched` for the body of one attempt."""

    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        base = execution.history.base
        self._known = dict(base.patches) if base is not None else {}

    @property
    def answers(self) -> dict[str, bool]:
        """Return which changes were asked about up to now, and what the body was told."""
        return dict(self._known)

    def _has_ended_before(self) -> bool:
        """Tell whether the body, which has not ended yet, did so in an earlier attempt."""
        execution = self._execution
        verified = execution.history.verifying is not None and not execution.is_verifying
        return verified or (execution.is_rehearsal and is_the_bodys(execution.history))

    def take(self, change_id: str) -> bool:
        """Tell whether the body is to take the way that came with a change, and have every later attempt take it too.

        Where something else is recorded at this place, or an earlier attempt came to the body's end here, the run came
        past it before the change.
        """
        execution = self._execution
        execution.enter("patched()")
        execution.marks.begin()
        if change_id not in self._known:
            index = execution.index
            entry = execution.history.entries.get(index)
            is_it = entry is not None and (entry.kind, entry.name) == (PATCHED, change_id)
            takes = is_it or (entry is None and not self._has_ended_before())
            if takes:
                execution.note_patch(index, change_id, is_recorded=entry is not None)
            self._known[change_id] = takes
        return self._known[change_id]
