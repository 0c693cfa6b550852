"""Say what a durable body did that it may not do; continues the engine's tree of errors.

::

    CommanderError
    ├── NestedUndo          a step with an undo was called inside another step
    ├── RunStopped          something of a run was asked for where no run goes on
    ├── StepTimeout         a step took longer than its timeout; what became of its effect is not known
    ├── TimeoutNotPossible  a step with a timeout was called where nothing can interrupt it
    ├── RetryInsideStep     a step asked Celery for a retry of the whole task
    ├── ReplaceNotSupported a body replaced itself by another durable task
    ├── BodyExited          a body called sys.exit()
    ├── VoidEvent           an event that would count for nothing was about to be written
    ├── UndoNotFound        a step's undo is not a task of this worker
    ├── HistoryUnreadable   a run's history is archived, or an exported one is none
    ├── VerificationFailed  a task's own check refused what its body returned
    ├── InvalidRoutingKey   the bus cannot carry or match that
    ├── UnreadableMessage   the bus brought something that is no message of ours
    ├── KeyRefused          a business key that cannot be one, or a task that can have none
    └── ForeignStore        a message names another store than this worker's
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from billiard.common import terminate_handler_fired
from celery.exceptions import SoftTimeLimitExceeded

from celery_commander.engine import (
    CommanderError,
    Fenced,
    ForeignLog,
    InvalidEvent,
    LeaseLost,
    LogCorrupt,
    LogUnavailable,
    RecordedException,
    encode_exception,
)

LONGEST_MESSAGE = 2_000


class NestedUndo(CommanderError):
    """Step {name} of run {run_id} has an undo and was called inside another step. Call it from the task's body."""

    def __init__(self, run_id: str, name: str) -> None:
        super().__init__(run_id, name)
        self.run_id = run_id
        self.name = name


class RunStopped(CommanderError):
    """Run {run_id} cannot do that here: {reason}."""

    def __init__(self, run_id: str, reason: str) -> None:
        super().__init__(run_id, reason)
        self.run_id = run_id
        self.reason = reason


class RetryInsideStep(CommanderError):
    """A step of run {run_id} called self.retry(). Let the step raise, and retry in the task's body."""

    def __init__(self, run_id: str) -> None:
        super().__init__(run_id)
        self.run_id = run_id


class ReplaceNotSupported(CommanderError):
    """Run {run_id} replaced itself by the durable task {name}, which is not supported yet. Send {name} from a step."""

    def __init__(self, run_id: str, name: str) -> None:
        super().__init__(run_id, name)
        self.run_id = run_id
        self.name = name


class BodyExited(CommanderError):
    """The body of run {run_id} called sys.exit({code!r}). Raise an exception instead; the run was aborted."""

    def __init__(self, run_id: str, code: object) -> None:
        super().__init__(run_id, code)
        self.run_id = run_id
        self.code = code


class StepTimeout(CommanderError):
    """Step {name} was still running after {seconds} s. What became of its effect is not known."""

    def __init__(self, name: str, seconds: float) -> None:
        super().__init__(name, seconds)
        self.name = name
        self.seconds = seconds


class TimeoutNotPossible(CommanderError):
    """Step {name} has a timeout, and runs in a thread: only the main thread can be interrupted. Use prefork or solo."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class HistoryUnreadable(CommanderError):
    """The history of {run_id} cannot be replayed here: {reason}."""

    def __init__(self, run_id: str, reason: str) -> None:
        super().__init__(run_id, reason)
        self.run_id = run_id
        self.reason = reason


class VerificationFailed(CommanderError):
    """The result of run {run_id} of task {task} was refused by the task's own check."""

    def __init__(self, run_id: str, task: str) -> None:
        super().__init__(run_id, task)
        self.run_id = run_id
        self.task = task


class InvalidRoutingKey(CommanderError):
    """{key!r} is no routing key or pattern: {reason}."""

    def __init__(self, key: object, reason: str) -> None:
        super().__init__(key, reason)
        self.key = key
        self.reason = reason


class KeyRefused(CommanderError):
    """Task {task} cannot be sent with key {key!r}: {reason}."""

    def __init__(self, task: str, key: object, reason: str) -> None:
        super().__init__(task, key, reason)
        self.task = task
        self.key = key
        self.reason = reason


class UnreadableMessage(CommanderError):
    """A message on the bus cannot be read: {reason}. Something else than a commander publishes to its exchange."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class ForeignStore(CommanderError):
    """Run {run_id} is recorded in log {found}; this worker writes {expected}. Give both one state directory."""

    def __init__(self, run_id: str, expected: str, found: str) -> None:
        super().__init__(run_id, expected, found)
        self.run_id = run_id
        self.expected = expected
        self.found = found


class UndoNotFound(CommanderError):
    """Step {step} of run {run_id} is undone by task {name!r}, which this worker does not know. Import it."""

    def __init__(self, run_id: str, step: str, name: str) -> None:
        super().__init__(run_id, step, name)
        self.run_id = run_id
        self.step = step
        self.name = name


class VoidEvent(CommanderError):
    """{event_type} of run {run_id} would count for nothing: {reason}. This attempt ends, the log decides."""

    def __init__(self, run_id: str, event_type: str, reason: str) -> None:
        super().__init__(run_id, event_type, reason)
        self.run_id = run_id
        self.event_type = event_type
        self.reason = reason


class StopRun(BaseException):
    """Leave a body at once, past its own `except Exception`; only the durable task catches it."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


UNRECORDED = (Fenced, LeaseLost, LogUnavailable, LogCorrupt, ForeignLog, VoidEvent)
"""What an append raises when nothing can be written in a run's name any more; the attempt ends, the run does not."""


def is_termination(error: BaseException) -> bool:
    """Return whether the process is being ended from outside, rather than the body ending itself."""
    return isinstance(error, KeyboardInterrupt) or (
        isinstance(error, SystemExit) and terminate_handler_fired()
    )


def record_exception(error: BaseException, append: Callable[[Any], object]) -> Any:
    """Append an exception in the log's form by `append`; one that is too large is recorded by a stand-in.

    Returns what was recorded.
    """
    whole = encode_exception(error)
    try:
        append(whole)
    except InvalidEvent:
        short = RecordedException(type(error).__qualname__, str(error)[:LONGEST_MESSAGE])
        whole = encode_exception(short)
        append(whole)
    return whole


def is_recordable_end(error: BaseException) -> bool:
    """Return whether an exception is how a step ended, rather than something that befell it from outside."""
    if isinstance(error, SoftTimeLimitExceeded):
        return False
    return isinstance(error, Exception) or (
        isinstance(error, SystemExit) and not is_termination(error)
    )
