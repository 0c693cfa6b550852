"""Make Celery tasks durable: the door of the tasks room.

Installation: `Commander`. In a task: `current_run`, `step` and what its options take. For base classes: `DurableTask`.
"""

from .answers import NotDone, Unknown
from .current_run import current_run
from .durable import DurableTask
from .errors import BodyExited, ForeignStore, NestedUndo, RetryInsideStep, RunStopped, UndoNotFound
from .install import Commander
from .recovery import Detail, RecoveryBootstrapper, RecoveryResult
from .settings import TaskSettings
from .steps import Step, Undo, step

__all__ = [
    # Installation
    "Commander",
    "TaskSettings",
    # In a task
    "DurableTask",
    "NotDone",
    "Step",
    "Undo",
    "Unknown",
    "current_run",
    "step",
    # Recovery
    "Detail",
    "RecoveryBootstrapper",
    "RecoveryResult",
    # Errors
    "BodyExited",
    "ForeignStore",
    "NestedUndo",
    "RetryInsideStep",
    "RunStopped",
    "UndoNotFound",
]
