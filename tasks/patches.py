"""Let code change under runs that have begun: each run goes on in the way that it took."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from .execution import Execution

PATCHED: Final = "patched"


class Patches:
    """Answer `patched` for the body of one attempt."""

    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        self._known: dict[str, bool] = {}

    def take(self, change_id: str) -> bool:
        """Tell whether the body is to take the way that came with a change, and have every later attempt take it too.

        Where something else is recorded at this place, the run came past it before the change.
        """
        execution = self._execution
        execution.enter("patched()")
        execution.marks.begin()
        if change_id not in self._known:
            index = execution.index
            entry = execution.history.entries.get(index)
            takes = entry is None or (entry.kind, entry.name) == (PATCHED, change_id)
            if takes:
                execution.note_patch(index, change_id, is_recorded=entry is not None)
            self._known[change_id] = takes
        return self._known[change_id]
