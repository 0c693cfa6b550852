"""The engine's door: everything that other rooms may use, and nothing else."""

from .anchors import (
    Anchor,
    AnchorContradicted,
    AnchorDirectory,
    AnchorError,
    AnchorsUnreadable,
    durable_anchor,
)
from .boot import BootClock
from .breaks import is_break
from .checkpoints import CheckpointInvalid, CheckpointStore, CheckpointTooLarge, SavedContent
from .compaction import CompactionReport
from .database import Database
from .dead_letters import DeadLetterQueue
from .engine import EventSourcingEngine
from .errors import (
    CommanderError,
    CompactionRefused,
    DeadLetterRefused,
    DeadLetterResolved,
    Fenced,
    ForeignLog,
    HistoryArchived,
    InvalidEvent,
    LeaseLost,
    LockTimeout,
    LogCompacted,
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
    SnapshotMismatch,
    StepInDoubt,
    StoreBusy,
    StoreUnavailable,
    UnknownDeadLetter,
    UnknownRun,
    UnknownSnapshot,
    UnknownTask,
    UnreadableValue,
    UnrecordableValue,
)
from .events import Event, NewEvent, Position
from .exceptions import decode_exception, encode_exception
from .fold import DURABLE_TYPES, FOLD_VERSION, RunState, State, Void, fold, state_after
from .health import EventSourcingHealth, unopened
from .health_report import Findings, Health, HealthReport, Metric, worst
from .health_store import HealthStore, WorkerReport
from .history import Entry, RunHistory
from .ids import EventId, RunId, holder_name, new_event_id
from .integrity import AcceptedBreak, BrokenAt, IntegrityReport, Status, Verified
from .leases import Lease, LeaseManager, LeaseRow, LeaseStatus
from .ledger import RunLedger
from .letters import (
    LETTER_TYPES,
    PARKED,
    Category,
    DeadLetter,
    category_of,
    exception_kind,
    keeps_events,
)
from .liveness import Liveness, LivenessLock, LivenessRef, probe
from .plan import (
    Abort,
    Compensate,
    Decision,
    Deliver,
    Facts,
    Park,
    ParkDamaged,
    ParkVersion,
    Policy,
    Republish,
    Requeue,
    Skip,
    Wait,
    plan,
)
from .refused import DiskRefused
from .rounds import Rounds
from .run_query import RunQuery
from .secret import keep_secret
from .settings import (
    ORDERED,
    Settings,
    check_seconds,
    check_whole_number,
    number_of,
    suggest,
)
from .snapshots import Snapshot
from .states import Checkpoint
from .values import decode, digest, encode, register_type
from .verify import verify_log
from .wal.accept import Acceptance
from .wal.broken import LogBroken, LogTorn
from .wal.damage import Accepted, Damage, Lost
from .wal.survey import BreakRefused

__all__ = [
    # the log
    "Anchor",
    "AnchorDirectory",
    "durable_anchor",
    "is_break",
    "Acceptance",
    "Accepted",
    "AcceptedBreak",
    "BrokenAt",
    "CompactionReport",
    "Damage",
    "Event",
    "EventSourcingEngine",
    "IntegrityReport",
    "Lost",
    "NewEvent",
    "Position",
    "Snapshot",
    "Status",
    "Verified",
    "verify_log",
    # settings and time
    "BootClock",
    "Settings",
    "keep_secret",
    "ORDERED",
    "check_seconds",
    "check_whole_number",
    "number_of",
    "suggest",
    # names
    "EventId",
    "RunId",
    "holder_name",
    "new_event_id",
    # maintenance
    "Rounds",
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
    "Checkpoint",
    "CheckpointStore",
    "DURABLE_TYPES",
    "Entry",
    "FOLD_VERSION",
    "RunHistory",
    "RunLedger",
    "RunQuery",
    "RunState",
    "SavedContent",
    "State",
    "Void",
    "exception_kind",
    "fold",
    "state_after",
    # dead letters
    "Category",
    "DeadLetter",
    "DeadLetterQueue",
    "LETTER_TYPES",
    "PARKED",
    "category_of",
    "keeps_events",
    # recovery's decision
    "Abort",
    "Compensate",
    "Decision",
    "Deliver",
    "Facts",
    "Park",
    "ParkDamaged",
    "ParkVersion",
    "Policy",
    "Republish",
    "Requeue",
    "Skip",
    "Wait",
    "plan",
    # health
    "EventSourcingHealth",
    "Findings",
    "Health",
    "HealthReport",
    "HealthStore",
    "Metric",
    "WorkerReport",
    "unopened",
    "worst",
    # errors
    "CheckpointInvalid",
    "CheckpointTooLarge",
    "AnchorContradicted",
    "AnchorError",
    "AnchorsUnreadable",
    "CommanderError",
    "DeadLetterRefused",
    "DeadLetterResolved",
    "CompactionRefused",
    "Fenced",
    "ForeignLog",
    "HistoryArchived",
    "InvalidEvent",
    "LeaseLost",
    "LockTimeout",
    "BreakRefused",
    "LogBroken",
    "LogCompacted",
    "LogCorrupt",
    "LogError",
    "LogMoved",
    "LogPoisoned",
    "LogTorn",
    "LogUnavailable",
    "LogUnreadable",
    "DiskRefused",
    "NonDeterministic",
    "NotALog",
    "RecordedException",
    "RunAborted",
    "SettingsError",
    "SnapshotMismatch",
    "StepInDoubt",
    "StoreBusy",
    "StoreUnavailable",
    "UnknownDeadLetter",
    "UnknownRun",
    "UnknownSnapshot",
    "UnknownTask",
    "UnreadableValue",
    "UnrecordableValue",
]
