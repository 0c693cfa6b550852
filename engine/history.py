"""One run's events, read for whoever goes on with it: what to hand out again, what to ask, what to undo."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final, Literal

from .events import Event
from .fields import MAX_NUMBER, is_number, moment
from .fold import fold
from .states import Checkpoint, RunState, State, Void

Status = Literal["started", "completed", "failed", "recorded"]

_STEP_ENDS: Final[Mapping[str, tuple[Status, str]]] = {
    "step.completed": ("completed", "result"),
    "step.failed": ("failed", "exception"),
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One step or recorded input of a run, at its index.

    `value` is the encoded result, exception or input; None while there is none (an encoded None is
    None too: look at `status`). `in_doubt` says that the effect may or may not have happened: no
    end is recorded, or the step raised something that does not exclude it.
    """

    step: int
    kind: str  # "step", "tool", or the kind of the input
    name: str
    status: Status
    started_seq: int  # of its latest step.started, or of its input.recorded
    digest: str | None = None
    key: str | None = None
    value: Any = None
    args: Any = None
    kwargs: Any = None
    undo: str | None = None  # the name of the task that undoes it
    resolve: bool = False
    retry_in_doubt: bool = False
    on_doubt: str = "abort"  # or "park"
    attempt: int = 1
    tries: int = 0
    """How many tries have raised and were followed, or are to be followed, by another."""
    acted: bool = False
    """Whether one of those tries may have had the effect."""
    due: datetime | None = None
    """When the next try is due, while a failed one is the last that is known; else None."""
    in_doubt: bool = False
    told: Literal["happened", "not happened"] | None = None
    """What a person said of a step in doubt; then `value` is the result that was given."""

    @property
    def settles_itself(self) -> bool:
        """Tell whether its code can say, or need not know, if it happened, should that be in doubt."""
        return self.resolve or self.retry_in_doubt

    @property
    def ended(self) -> bool:
        """Tell whether a replay may hand out what is recorded here."""
        return self.status != "started"


@dataclass(frozen=True, slots=True)
class RunHistory:
    """What one run's events say, in the order of the log.

    Of a run that somebody owns, an open step is only under way; read it as in doubt after the owner
    is fenced. `entries` holds valid ones, and steps that only a void `step.started` names.
    """

    state: RunState | None
    created: Mapping[str, Any] = field(default_factory=dict)  # data of run.created
    entries: Mapping[int, Entry] = field(default_factory=dict)
    outcome: tuple[Literal["result", "exception"], Any] | None = None  # encoded
    abort_reason: str | None = None  # of the first run.aborted
    voided: tuple[tuple[Event, str], ...] = ()
    complete: bool = (
        False  # nothing is missing: its own numbers are dense, each token was announced
    )
    republished: int = 0  # requeued while PENDING, since it was last claimed
    retries: int = 0  # how often its body has asked Celery for a retry
    undo_attempts: Mapping[int, int] = field(default_factory=dict)  # in this generation, by step
    checkpoints: tuple[Checkpoint, ...] = ()  # in the order of the log
    broken_seq: int = 0  # of the last event before which something is missing
    verifying: tuple[int, Any] | None = None
    """Where the body ended and its result began to be verified: the next index, and the encoded result."""

    @classmethod
    def of(cls, events: Sequence[Event]) -> RunHistory:
        """Read the events of one run, oldest first; others must not be among them."""
        reading = _Reading()
        for event in events:
            reading.take(event)
        return reading.history()

    @property
    def message(self) -> Mapping[str, Any]:
        """Return the message as it was published: headers, properties, body, routing."""
        message: Mapping[str, Any] = self.created.get("message", {})
        return message

    @property
    def in_doubt(self) -> tuple[Entry, ...]:
        """Return the steps whose last try has no recorded end, by index."""
        open_steps = self.state.open_steps if self.state else ()
        found = (self.entries[step] for step in open_steps)
        return tuple(entry for entry in found if entry.due is None)

    @property
    def owed(self) -> tuple[Entry, ...]:
        """Return the steps whose undo is owed, newest first: the order in which they are undone."""
        return tuple(self.entries[step] for step in self.state.owed[::-1]) if self.state else ()

    @property
    def next_n(self) -> int:
        """Return the number that the next event of an owner carries."""
        return self.state.n + 1 if self.state else 1

    @property
    def next_step(self) -> int:
        """Return the first index without a recorded end: up to there a replay hands out records."""
        if self.state is None:
            return 0
        return min((*self.state.open_steps, self.state.steps))

    @property
    def base(self) -> Checkpoint | None:
        """Return the checkpoint from which the run goes on; None too when its event is missing."""
        wanted = self.state.checkpoint if self.state else None
        return next((one for one in self.checkpoints if one.id == wanted), None)

    def is_complete_since(self, checkpoint: Checkpoint) -> bool:
        """Tell whether nothing is missing behind a checkpoint; what is missing before it is not asked."""
        return checkpoint.seq >= self.broken_seq

    def restarts(self, version: int | None = None) -> tuple[Checkpoint, ...]:
        """Return the checkpoints from which the run may go on if their contents are there, best first.

        As at a replay, a step in doubt must be met again, and be one that may be asked or repeated.
        `version` is what the body asks for; who has no body at hand takes what the last one saved.
        """
        if not self.checkpoints or not all(entry.settles_itself for entry in self.in_doubt):
            return ()
        last_step = min((entry.step for entry in self.in_doubt), default=MAX_NUMBER)
        wanted = self.checkpoints[-1].version if version is None else version
        fit = [
            one
            for one in self.checkpoints
            if one.restorable
            and one.version == wanted
            and one.step <= last_step
            and self.is_complete_since(one)
        ]
        return tuple(sorted(fit, key=lambda one: (one.step, one.seq), reverse=True))


class _Reading:
    """Folds, and keeps beside the state what only a history has: contents."""

    def __init__(self) -> None:
        self.state: RunState | None = None
        self.created: Mapping[str, Any] = {}
        self.entries: dict[int, Entry] = {}
        self.outcome: tuple[Literal["result", "exception"], Any] | None = None
        self.abort_reason: str | None = None
        self.voided: list[tuple[Event, str]] = []
        self.checkpoints: list[Checkpoint] = []
        self.broken_seq = 0
        self.verifying: tuple[int, Any] | None = None
        self.republished = 0
        self.retries = 0
        self.undo_attempts: dict[int, int] = {}

    def take(self, event: Event) -> None:
        before, folded = self.state, fold(self.state, event)
        if isinstance(folded, Void):
            self.voided.append((event, folded.reason))
            if self._is_unannounced(event):
                self.broken_seq = event.seq
            if folded.state is not before:
                self._open(event)
            self.state = folded.state
        elif folded is not before and folded is not None:
            self.state = folded
            self._count(before, event)
            self._keep(before, event)

    def history(self) -> RunHistory:
        return RunHistory(
            state=self.state,
            created=self.created,
            entries=self.entries,
            outcome=self.outcome,
            abort_reason=self.abort_reason,
            voided=tuple(self.voided),
            complete=self.broken_seq == 0 and self.state is not None,
            republished=self.republished,
            retries=self.retries,
            undo_attempts=self.undo_attempts,
            checkpoints=tuple(self.checkpoints),
            broken_seq=self.broken_seq,
            verifying=self.verifying,
        )

    def _count(self, before: RunState | None, event: Event) -> None:
        """See that the owners' numbers have no hole and no double; a fence carries none."""
        owned = event.token is not None and event.type != "run.fenced"
        if owned and event.n != (before.n if before else 0) + 1:
            self.broken_seq = event.seq

    def _is_unannounced(self, event: Event) -> bool:
        """Tell whether somebody worked under a token whose claim is missing; so may other things."""
        fence = self.state.token if self.state else 0
        claims = event.type in ("run.fenced", "run.started")
        return is_number(event.token) and event.token > fence and not claims

    def _keep(self, before: RunState | None, event: Event) -> None:
        data = event.payload
        match event.type:
            case "run.created":
                self.created = data
            case "run.started":
                self.republished = 0
            case "run.requeued" if before is not None and before.state is State.PENDING:
                self.republished += 1
            case "run.verifying" if self.state is not None:
                self.verifying = (self.state.steps, data.get("result"))
            case "run.paused":
                self.retries += data.get("kind") == "retry"
            case "run.committed":
                self.outcome = ("result", data.get("result"))
            case "run.aborted":
                self.undo_attempts = {}
                # A retry of a stuck undo does not change what the run came to.
                self.outcome = self.outcome or ("exception", data.get("exception"))
                self.abort_reason = self.abort_reason or _text_of(data, "reason")
            case "compensation.started":
                self.undo_attempts[data["step"]] = self.undo_attempts.get(data["step"], 0) + 1
            case _:
                self._keep_of_body(event)

    def _keep_of_body(self, event: Event) -> None:
        data = event.payload
        match event.type:
            case "step.started":
                self._open(event)
            case "step.completed" | "step.failed":
                self._end(event)
            case "step.try_failed":
                self._end_try(event)
            case "input.recorded":
                self.entries[data["step"]] = _input(event)
            case "checkpoint.saved":
                self.checkpoints.append(_checkpoint(event))
            case "operator.retried":
                self._tell(data.get("answer") or {})

    def _open(self, event: Event) -> None:
        step = event.payload["step"]
        before, opened = self.entries.get(step), _step(event)
        if before is not None:
            opened = replace(opened, tries=before.tries, acted=before.acted)
        self.entries[step] = opened

    def _end_try(self, event: Event) -> None:
        data = event.payload
        self.entries[data["step"]] = replace(
            self.entries[data["step"]],
            tries=data["tries"],
            acted=data["acted"],
            due=moment(data, "due"),
            value=data.get("exception"),
            told=None,
            in_doubt=data["acted"],
        )

    def _tell(self, answer: Mapping[str, Any]) -> None:
        """Keep a person's word on a step in doubt, until the step is started again."""
        if "step" in answer and answer.get("abort") is not True:
            happened = answer["happened"]
            self.entries[answer["step"]] = replace(
                self.entries[answer["step"]],
                told="happened" if happened else "not happened",
                value=answer.get("result") if happened else None,
            )

    def _end(self, event: Event) -> None:
        data = event.payload
        status, field_name = _STEP_ENDS[event.type]
        self.entries[data["step"]] = replace(
            self.entries[data["step"]],
            status=status,
            value=data.get(field_name),
            told=None,
            due=None,
            in_doubt=event.type == "step.failed" and data["owed"],
        )


def _step(event: Event) -> Entry:
    data = event.payload
    return Entry(
        step=data["step"],
        kind=_text_of(data, "kind") or "step",
        name=_text_of(data, "name") or "",
        status="started",
        started_seq=event.seq,
        digest=_text_of(data, "digest"),
        key=_text_of(data, "key"),
        args=data.get("args"),
        kwargs=data.get("kwargs"),
        undo=_text_of(data, "undo"),
        resolve=data.get("resolve") is True,
        retry_in_doubt=data.get("retry_in_doubt") is True,
        on_doubt=_text_of(data, "in_doubt") or "abort",
        attempt=data["attempt"] if is_number(data.get("attempt")) else 1,
        in_doubt=True,
    )


def _input(event: Event) -> Entry:
    data = event.payload
    return Entry(
        step=data["step"],
        kind=_text_of(data, "kind") or "record",
        name=_text_of(data, "name") or "",
        status="failed" if data.get("raised") is True else "recorded",
        started_seq=event.seq,
        digest=_text_of(data, "digest"),
        value=data.get("value"),
    )


def _checkpoint(event: Event) -> Checkpoint:
    data = event.payload
    return Checkpoint(
        id=data["checkpoint"],
        step=data["step"],
        version=data["version"],
        sha256=data["sha256"],
        bytes=data["bytes"],
        restorable=data["restorable"],
        seq=event.seq,
        patches=_patches(data.get("patches")),
    )


def _patches(told: object) -> tuple[tuple[str, bool], ...]:
    """Return the answers that a checkpoint goes on with; what is none is left out."""
    pairs = told.items() if isinstance(told, Mapping) else ()
    return tuple((name, answer) for name, answer in pairs if type(answer) is bool)


def _text_of(data: Mapping[str, Any], name: str) -> str | None:
    """Return a text of an event that counts whatever this field holds; anything else is absent."""
    value = data.get(name)
    return value if isinstance(value, str) else None
