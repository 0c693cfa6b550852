"""Ask a step's `resolve=` whether it happened, and name the two answers that are not a result."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from .calls import Call
    from .execution import Execution

logger = logging.getLogger(__name__)


class Answer:
    """One fixed answer; compared by identity, shown by its name."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


NotDone: Final = Answer("NotDone")
"""The effect did not happen: the step runs again."""

Unknown: Final = Answer("Unknown")
"""Nobody can tell: the step stays in doubt, and the run is aborted and undone, or parked."""


def asked(execution: Execution, call: Call) -> Any:
    """Return what the step's `resolve` says of it; one that fails says nothing."""
    assert call.spec.resolve is not None
    execution.step_key = call.key
    try:
        return call.spec.resolve(call.key)
    except Exception as error:  # noqa: BLE001  # see above
        logger.warning("resolve of step %s in run %s: %s", call.spec.name, execution.run_id, error)
        return Unknown
    finally:
        execution.step_key = None
