"""Have a run's result looked at before it counts: the phase between a body's end and the commit.

What the check asks for is recorded as the body's own steps and inputs are, behind them. A run that is killed meanwhile
is replayed, body and check.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from celery import Task

from celery_commander.engine import NonDeterministic, State, decode, encode

from .errors import VerificationFailed

if TYPE_CHECKING:
    from .execution import Execution

Check = Callable[[Any], Any]


def prepare_check(cls: type[Task]) -> None:
    """Make what was given as `verify=` callable as `task.verify(result)`.

    Raises:
        TypeError: it is not callable.

    """
    check = getattr(cls, "verify", None)
    if check is None:
        return
    if not callable(check):
        raise TypeError(f"verify of task {cls.name} takes a function of the result, not {check!r}")
    if "verify" in vars(cls) and vars(cls).get("_decorated"):
        cls.verify = staticmethod(vars(cls)["verify"])  # given to the decorator, it is no method


def conclude(task: Task, execution: Execution, result: Any) -> Any:
    """Return the result of a body that has ended, once it asked for all that is recorded, and its check agrees.

    Raises:
        StopRun: the body or the check is another one than was recorded, or the attempt is over.
        VerificationFailed: the check returned False. What it raises comes out as it is.

    """
    if getattr(task, "verify", None) is None:
        execution.settle_end()
        return result
    encoded = encode(result, path="result")
    _begin(execution, encoded)
    if task.verify(decode(encoded)) is False:
        raise VerificationFailed(execution.run_id, execution.task_name)
    execution.settle_end()
    return result


def _begin(execution: Execution, encoded: Any) -> None:
    known = execution.history.verifying
    if known is None:
        execution.settle_end()
    else:
        execution.enter("the end of the body")
        execution.marks.begin()
        _compare(execution, encoded, *known)
    execution.is_verifying = True
    state = execution.state
    if state is None or state.state is not State.VERIFYING:
        execution.note_verifying(encoded, is_known=known is not None)


def _compare(execution: Execution, encoded: Any, index: int, recorded: Any) -> None:
    """See that the body ended where it did before, with the same result."""
    told, found = "the body's end", None
    if execution.position != index:
        found = f"its end at place {execution.position}"
    elif encoded != recorded:
        told, found = "the recorded result", "another result"
    if found is not None:
        raise execution.stop(NonDeterministic(execution.run_id, index, told, found))
