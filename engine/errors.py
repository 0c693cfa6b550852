"""Say what went wrong, about which thing, and what to do about it.

One tree, so that a caller can catch as narrowly or as widely as it means to::

    CommanderError
    ├── SettingsError               a setting has a value that cannot work
    ├── LogError
    │   ├── LogUnavailable          cannot append now; trying again later is sensible
    │   │   ├── LogUnreadable       not there, or not to be opened for reading
    │   │   ├── LockTimeout         somebody held a lock for longer than the bound
    │   │   ├── DiskRefused         the system refused a call on one of its files (also an OSError)
    │   │   ├── LogTorn             a crash left bytes behind, and nobody may cut them by himself
    │   │   ├── LogPoisoned         a sync failed: nothing may be acknowledged any more
    │   │   └── LogMoved            renamed, truncated or replaced from outside
    │   │       └── LogCompacted    a snapshot stands for what was to be read
    │   ├── LogCorrupt              bytes that were durable do not verify
    │   │   └── LogBroken           a verification found that: nobody appends (also a LogUnavailable)
    │   ├── BreakRefused            a break that no person's word makes good
    │   ├── SnapshotMismatch        a snapshot is missing, or not what the log says of it
    │   ├── CompactionRefused       the log does not verify: nothing of it is moved
    │   ├── HistoryArchived         a run ended, and its events were compacted away
    │   ├── ForeignLog              another log, or no log of ours
    │   │   └── NotALog             no log at all
    │   └── InvalidEvent            an event that the grammar does not allow
    ├── AnchorError
    │   ├── AnchorContradicted      what is anchored is not what the log says now
    │   └── AnchorsUnreadable       the file of anchors holds something else
    ├── StoreUnavailable            a database beside the log cannot be used now
    │   └── StoreBusy               its write lock was not given within the bound
    ├── CheckpointInvalid           a checkpoint's content is not what the log says
    ├── CheckpointTooLarge          a state is larger than a checkpoint may be
    ├── UnrecordableValue           a value that would not come back as it went in
    ├── UnreadableValue             a recorded value that this process cannot rebuild
    ├── RecordedException           stands for a recorded exception whose class is not here
    ├── Fenced                      a newer token owns the run
    ├── LeaseLost                   the lease ran out, or somebody took it over
    ├── NonDeterministic            a replay asked for something else than was recorded
    ├── UnknownSnapshot             no snapshot of this name counts
    ├── UnknownRun                  no event of this run was found
    ├── UnknownTask                 this process has no task of that name
    ├── RunAborted                  what the caller of an aborted run is told
    ├── StepInDoubt                 a step was started and nobody recorded its end
    ├── UnknownDeadLetter           there is no dead letter of this id
    ├── DeadLetterResolved          somebody has answered it, or its run went on
    └── DeadLetterRefused           what was asked does not fit it

The first paragraph of a class's docstring is its message, filled in from the facts, which are attributes.
Every error is rebuilt from its ``args``, so it survives pickling and a JSON result backend.
"""

from __future__ import annotations

import os

from .shown import shown

StrPath = str | os.PathLike[str]


class CommanderError(Exception):
    """Something in celery-commander went wrong."""

    def __str__(self) -> str:
        template = (type(self).__doc__ or "").split("\n\n")[0]
        try:
            return " ".join(template.split()).format_map(vars(self)) or repr(self)
        except (KeyError, ValueError, IndexError, AttributeError):
            return repr(self)  # a subclass from elsewhere, whose docstring is no message of ours


class SettingsError(CommanderError):
    """Setting {key} = {shown}{origin} is refused: {reason}{hint}."""

    def __init__(self, key: str, value: object, reason: str, suggestion: str | None = None) -> None:
        super().__init__(key, value, reason, suggestion)
        self.key = key
        self.value = value
        self.reason = reason
        self.suggestion = suggestion
        self.source, self.origin = "", ""
        self.shown = shown(value)
        self.hint = f"; did you mean {suggestion!r}?" if suggestion else ""


class LogError(CommanderError):
    """The log could not do what was asked."""


class LogUnavailable(LogError):
    """The log {path} cannot be written now: {reason}.
    Nothing was appended; try again once the cause is gone.
    """

    def __init__(self, path: StrPath, reason: str) -> None:
        super().__init__(os.fspath(path), reason)
        self.path = os.fspath(path)
        self.reason = reason


class LogUnreadable(LogUnavailable):
    """The log {path} cannot be read: {reason}."""


class LockTimeout(LogUnavailable):
    """The lock {path} was not given within {seconds} s; it is held by {holder}.
    Look at that process, or raise lock_seconds.
    """

    def __init__(self, path: StrPath, holder: str, seconds: float) -> None:
        super().__init__(path, f"its lock was not given within {seconds} s")
        self.args = (os.fspath(path), holder, seconds)
        self.holder = holder
        self.seconds = seconds


class LogPoisoned(LogUnavailable):
    """The log {path} is poisoned: {reason}.
    A failed sync may have lost bytes; an operator's repair lets it go on: `commander repair`.
    """


class LogMoved(LogUnavailable):
    """The log {path} was moved, cut or replaced from outside: {reason}.
    Put the file back, and keep log rotation away from it.
    """


class LogCompacted(LogMoved):
    """What follows position {position} was compacted away; the log begins at event {first_seq}.
    Read the newest snapshot, and go on from there.
    """

    def __init__(self, position: object, first_seq: int) -> None:
        super().__init__("", f"it begins at event {first_seq}")
        self.position = str(position)
        self.args = (self.position, first_seq)
        self.first_seq = first_seq


class LogCorrupt(LogError):
    """The log is corrupt at event {seq}, {path} byte {offset}: {reason}.
    Nothing was cut; verify it before going on.
    """

    def __init__(self, seq: int, path: StrPath, offset: int, reason: str) -> None:
        super().__init__(seq, os.fspath(path), offset, reason)
        self.seq = seq
        self.path = os.fspath(path)
        self.offset = offset
        self.reason = reason


class SnapshotMismatch(LogError):
    """The snapshot {path} is not believed: {reason}.
    Put the file back as it was made, or put the archived segments back.
    """

    def __init__(self, path: StrPath, reason: str) -> None:
        super().__init__(os.fspath(path), reason)
        self.path = os.fspath(path)
        self.reason = reason


class CompactionRefused(LogError):
    """Nothing of the log {path} is compacted, it does not verify: {reason} ({status}, {exit_code}).
    Verify it, and mend what that says.
    """

    def __init__(self, path: StrPath, reason: str, status: str, exit_code: int) -> None:
        super().__init__(os.fspath(path), reason, status, exit_code)
        self.path = os.fspath(path)
        self.reason = reason
        self.status = status
        self.exit_code = exit_code


class HistoryArchived(LogError):
    """Run {run_id} is over ({state}), and its events up to {through} were compacted away.
    Look for them in the archive, as long as it keeps them.
    """

    def __init__(self, run_id: str, state: str, through: int) -> None:
        super().__init__(run_id, state, through)
        self.run_id = run_id
        self.state = state
        self.through = through


class ForeignLog(LogError):
    """{path} is log {found}, not {expected}.
    Point the setting at the right state, or start with an empty directory.
    """

    def __init__(self, path: StrPath, expected: str, found: str) -> None:
        super().__init__(os.fspath(path), expected, found)
        self.path = os.fspath(path)
        self.expected = expected
        self.found = found


class NotALog(ForeignLog):
    """{path} is not a celery-wal log: {reason}.
    Name the log's active file, or the state directory that holds it.
    """

    def __init__(self, path: StrPath, reason: str) -> None:
        super().__init__(path, "a celery-wal log", reason)
        self.args = (os.fspath(path), reason)
        self.reason = reason


class InvalidEvent(LogError):
    """The event was not appended, its {what} is not allowed: {reason}."""

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(what, reason)
        self.what = what
        self.reason = reason


class StoreUnavailable(CommanderError):
    """The database {path} cannot be used now: {reason}.
    Nothing was changed; try again once the cause is gone.
    """

    def __init__(self, path: StrPath, reason: str) -> None:
        super().__init__(os.fspath(path), reason)
        self.path = os.fspath(path)
        self.reason = reason


class StoreBusy(StoreUnavailable):
    """The database {path} stayed locked for {seconds} s.
    Nothing was changed; find the process that writes so long.
    """

    def __init__(self, path: StrPath, seconds: float) -> None:
        super().__init__(path, f"it stayed locked for {seconds} s")
        self.args = (os.fspath(path), seconds)
        self.seconds = seconds


class UnrecordableValue(CommanderError):
    """{path} ({type_name}) cannot be recorded: {reason}.
    Pass and return plain data, or register the type with register_type.
    """

    def __init__(self, path: str, type_name: str, reason: str) -> None:
        super().__init__(path, type_name, reason)
        self.path = path
        self.type_name = type_name
        self.reason = reason


class UnreadableValue(CommanderError):
    """{path} was recorded as {tag!r} and cannot be rebuilt here: {reason}.
    Register the type in this process before it is read.
    """

    def __init__(self, path: str, tag: str, reason: str) -> None:
        super().__init__(path, tag, reason)
        self.path = path
        self.tag = tag
        self.reason = reason


class RecordedException(CommanderError):
    """An exception was recorded that cannot be rebuilt here.

    Its class is not imported in this process, is no subclass of Exception, or refused to be rebuilt.
    """

    def __init__(self, type_name: str, message: str) -> None:
        super().__init__(type_name, message)
        self.type_name = type_name
        self.message = message

    def __str__(self) -> str:
        return f"{self.type_name}: {self.message}"


class Fenced(CommanderError):
    """Run {run_id} was taken over: token {fence} is newer than {token}.
    Stop; the new owner decides what happens to the run.
    """

    def __init__(self, run_id: str, token: int, fence: int) -> None:
        super().__init__(run_id, token, fence)
        self.run_id = run_id
        self.token = token
        self.fence = fence


class LeaseLost(CommanderError):
    """The lease on run {run_id} with token {token} is lost.
    Stop at once; the run may already go on elsewhere.
    """

    def __init__(self, run_id: str, token: int) -> None:
        super().__init__(run_id, token)
        self.run_id = run_id
        self.token = token


class NonDeterministic(CommanderError):
    """Run {run_id} differs from its history at {index}: recorded {recorded}, found {found}.
    Bring the old code back, or fork the run.
    """

    def __init__(self, run_id: str, index: int, recorded: str, found: str) -> None:
        super().__init__(run_id, index, recorded, found)
        self.run_id = run_id
        self.index = index
        self.recorded = recorded
        self.found = found


class UnknownSnapshot(CommanderError):
    """No snapshot {name!r} counts in this log; there are: {known}.
    Take it with `commander snapshot {name}`, or name one that is there.
    """

    def __init__(self, name: str, known: str) -> None:
        super().__init__(name, known)
        self.name = name
        self.known = known


class UnknownRun(CommanderError):
    """No run {run_id} is known. Check the id, and that this process reads the store that registered it."""

    def __init__(self, run_id: str) -> None:
        super().__init__(run_id)
        self.run_id = run_id


class UnknownTask(CommanderError):
    """Run {run_id} needs the task {name!r}, which is not registered here.
    Import the module that defines it.
    """

    def __init__(self, run_id: str, name: str) -> None:
        super().__init__(run_id, name)
        self.run_id = run_id
        self.name = name


class RunAborted(CommanderError):
    """Run {run_id} was aborted: {reason}.
    What its steps did is being undone; the run's events tell the rest.
    """

    def __init__(self, run_id: str, reason: str) -> None:
        super().__init__(run_id, reason)
        self.run_id = run_id
        self.reason = reason


class StepInDoubt(CommanderError):
    """Step {step} ({name}) of run {run_id} was started and nobody recorded its end.
    Find out whether its effect happened.
    """

    def __init__(self, run_id: str, step: int, name: str) -> None:
        super().__init__(run_id, step, name)
        self.run_id = run_id
        self.step = step
        self.name = name


class UnknownDeadLetter(CommanderError):
    """There is no dead letter {entry}: nothing made it, or it is older than dead_letter_days.
    List those that there are.
    """

    def __init__(self, entry: str) -> None:
        super().__init__(entry)
        self.entry = entry


class DeadLetterResolved(CommanderError):
    """Dead letter {entry} is resolved already: {resolution}, by {by}.
    Look at its run; what it needs now, if anything, has a letter of its own.
    """

    def __init__(self, entry: str, resolution: str, by: str) -> None:
        super().__init__(entry, resolution, by)
        self.entry = entry
        self.resolution = resolution
        self.by = by


class DeadLetterRefused(CommanderError):
    """Dead letter {entry} stays as it is: {reason}."""

    def __init__(self, entry: str, reason: str) -> None:
        super().__init__(entry, reason)
        self.entry = entry
        self.reason = reason
