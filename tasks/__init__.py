"""Make Celery tasks durable: the door of the tasks room.

Installation: `Commander`. In a task: `current_run`, `step` and what its options take. For base classes: `DurableTask`.
"""

from celery_commander.engine import RunAborted, register_type

from .answers import Answer, NotDone, Unknown
from .bus import MessageBus
from .bus_message import BusMessage
from .compensation import CompensationBridge
from .current_run import current_run
from .dead_letters import Acted, DeadLetters, Said
from .durable import DurableTask
from .errors import (
    BodyExited,
    ForeignStore,
    HistoryUnreadable,
    InvalidRoutingKey,
    KeyRefused,
    NestedUndo,
    ReplaceNotSupported,
    RetryInsideStep,
    RunStopped,
    StepTimeout,
    TimeoutNotPossible,
    UndoNotFound,
    VerificationFailed,
)
from .health import FleetHealth, document
from .install import Commander
from .kept_history import replay_history
from .quiet import QuietReplay
from .recovery import Detail, RecoveryBootstrapper, RecoveryResult
from .replaying import Replayed, Verdict
from .settings import TaskSettings
from .steps import Step, Undo, step
from .stuck import StuckUndo
from .subscriber import EventSourcingSubscriber

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
    # Replay
    "QuietReplay",
    "Replayed",
    "Verdict",
    "replay_history",
    # Recovery
    "Detail",
    "RecoveryBootstrapper",
    "RecoveryResult",
    # Rollbacks
    "CompensationBridge",
    # Dead letters
    "Acted",
    "DeadLetters",
    "Said",
    "StuckUndo",
    # The bus
    "BusMessage",
    "MessageBus",
    # Health
    "FleetHealth",
    "document",
    # Observation
    "EventSourcingSubscriber",
    # Errors
    "BodyExited",
    "ForeignStore",
    "HistoryUnreadable",
    "InvalidRoutingKey",
    "KeyRefused",
    "NestedUndo",
    "ReplaceNotSupported",
    "RunAborted",
    "RetryInsideStep",
    "RunStopped",
    "StepTimeout",
    "TimeoutNotPossible",
    "UndoNotFound",
    "VerificationFailed",
]
