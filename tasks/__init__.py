"""Make Celery tasks durable: the door of the tasks room.

Installation: `Commander`. In a task: `current_run`, `step` and what its options take. For base classes: `DurableTask`.
"""

from celery_commander.engine import RunAborted, register_type

from .answers import Answer, NotDone, Unknown
from .current_run import current_run
from .durable import DurableTask
from .errors import (
    BodyExited,
    ForeignStore,
    NestedUndo,
    ReplaceNotSupported,
    RetryInsideStep,
    RunStopped,
    UndoNotFound,
)
from .install import Commander
from .recovery import Detail, RecoveryBootstrapper, RecoveryResult
from .settings import TaskSettings
from .steps import Step, Undo, step

__all__ = [
    # Installation
    "Commander",
    "TaskSettings",
    # In a task
    "Answer",
    "DurableTask",
    "NotDone",
    "Step",
    "Undo",
    "Unknown",
    "current_run",
    "register_type",
    "step",
    # Recovery
    "Detail",
    "RecoveryBootstrapper",
    "RecoveryResult",
    # Errors
    "BodyExited",
    "ForeignStore",
    "NestedUndo",
    "ReplaceNotSupported",
    "RunAborted",
    "RetryInsideStep",
    "RunStopped",
    "UndoNotFound",
]
