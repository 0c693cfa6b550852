"""The engine's door: everything that other rooms may use, and nothing else."""

from .boot import BootClock
from .database import Database
from .engine import EventSourcingEngine
from .errors import (
    CommanderError,
    Fenced,
    ForeignLog,
    InvalidEvent,
    LeaseLost,
    LockTimeout,
    LogCorrupt,
    LogError,
    LogMoved,
    LogPoisoned,
    LogUnavailable,
    LogUnreadable,
    NonDeterministic,
    NotALog,
    RecordedException,
    RunAborted,
    SettingsError,
    StepInDoubt,
    StoreBusy,
    StoreUnavailable,
    UnknownRun,
    UnknownTask,
    UnreadableValue,
    UnrecordableValue,
)
from .events import Event, NewEvent, Position
from .exceptions import decode_exception, encode_exception
from .fold import DURABLE_TYPES, FOLD_VERSION, RunState, State, Void, fold, state_after
from .history import Entry, RunHistory
from .ids import EventId, RunId, holder_name, new_event_id
from .leases import Lease, LeaseManager, LeaseRow, LeaseStatus
from .ledger import RunLedger
from .liveness import Liveness, LivenessLock, LivenessRef, probe
from .plan import (
    Abort,
    Compensate,
    Decision,
    Deliver,
    Facts,
    Park,
    Policy,
    Republish,
    Requeue,
    Skip,
    Wait,
    plan,
)
from .secret import keep_secret
from .settings import Settings, suggest
from .values import decode, digest, encode, register_type
from .verify import BrokenAt, IntegrityReport, Status, verify_log

__all__ = [
    # the log
    "BrokenAt",
    "Event",
    "EventSourcingEngine",
    "IntegrityReport",
    "NewEvent",
    "Position",
    "Status",
    "verify_log",
    # settings and time
    "BootClock",
    "Settings",
    "keep_secret",
    "suggest",
    # names
    "EventId",
    "RunId",
    "holder_name",
    "new_event_id",
    # ownership
    "Database",
    "Lease",
    "LeaseManager",
    "LeaseRow",
    "LeaseStatus",
    "Liveness",
    "LivenessLock",
    "LivenessRef",
    "probe",
    # values
    "decode",
    "decode_exception",
    "digest",
    "encode",
    "encode_exception",
    "register_type",
    # runs
    "DURABLE_TYPES",
    "Entry",
    "FOLD_VERSION",
    "RunHistory",
    "RunLedger",
    "RunState",
    "State",
    "Void",
    "fold",
    "state_after",
    # recovery's decision
    "Abort",
    "Compensate",
    "Decision",
    "Deliver",
    "Facts",
    "Park",
    "Policy",
    "Republish",
    "Requeue",
    "Skip",
    "Wait",
    "plan",
    # errors
    "CommanderError",
    "Fenced",
    "ForeignLog",
    "InvalidEvent",
    "LeaseLost",
    "LockTimeout",
    "LogCorrupt",
    "LogError",
    "LogMoved",
    "LogPoisoned",
    "LogUnavailable",
    "LogUnreadable",
    "NonDeterministic",
    "NotALog",
    "RecordedException",
    "RunAborted",
    "SettingsError",
    "StepInDoubt",
    "StoreBusy",
    "StoreUnavailable",
    "UnknownRun",
    "UnknownTask",
    "UnreadableValue",
    "UnrecordableValue",
]
