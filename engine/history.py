"""One run's events, read for whoever goes on with it: what to hand out again, what to ask, what to undo."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from .events import Event
from .fields import is_number
from .fold import fold
from .states import RunState, State, Void

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
    in_doubt: bool = False

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
    voided: tuple[tuple[Event, str], ...] = ()
    complete: bool = (
        False  # nothing is missing: its own numbers are dense, each token was announced
    )
    republished: int = 0  # requeued while PENDING, since it was last claimed
    undo_attempts: Mapping[int, int] = field(default_factory=dict)  # in this generation, by step

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
        """Return the steps that have no recorded end, by index."""
        return tuple(self.entries[step] for step in self.state.open_steps) if self.state else ()

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


class _Reading:
    """Folds, and keeps beside the state what only a history has: contents."""

    def __init__(self) -> None:
        self.state: RunState | None = None
        self.created: Mapping[str, Any] = {}
        self.entries: dict[int, Entry] = {}
        self.outcome: tuple[Literal["result", "exception"], Any] | None = None
        self.voided: list[tuple[Event, str]] = []
        self.complete = True
        self.republished = 0
        self.undo_attempts: dict[int, int] = {}

    def take(self, event: Event) -> None:
        before, folded = self.state, fold(self.state, event)
        if isinstance(folded, Void):
            self.voided.append((event, folded.reason))
            self.complete &= not self._is_unannounced(event)
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
            voided=tuple(self.voided),
            complete=self.complete and self.state is not None,
            republished=self.republished,
            undo_attempts=self.undo_attempts,
        )

    def _count(self, before: RunState | None, event: Event) -> None:
        """See that the owners' numbers have no hole and no double; a fence carries none."""
        if event.token is not None and event.type != "run.fenced":
            self.complete &= event.n == (before.n if before else 0) + 1

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
            case "run.committed":
                self.outcome = ("result", data.get("result"))
            case "run.aborted":
                self.undo_attempts = {}
                # A retry of a stuck undo does not change what the run came to.
                self.outcome = self.outcome or ("exception", data.get("exception"))
            case "step.started":
                self._open(event)
            case "step.completed" | "step.failed":
                self._end(event)
            case "input.recorded":
                self.entries[data["step"]] = _input(event)
            case "compensation.started":
                self.undo_attempts[data["step"]] = self.undo_attempts.get(data["step"], 0) + 1

    def _open(self, event: Event) -> None:
        self.entries[event.payload["step"]] = _step(event)

    def _end(self, event: Event) -> None:
        data = event.payload
        status, field_name = _STEP_ENDS[event.type]
        self.entries[data["step"]] = replace(
            self.entries[data["step"]],
            status=status,
            value=data.get(field_name),
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


def _text_of(data: Mapping[str, Any], name: str) -> str | None:
    """Return a text of an event that counts whatever this field holds; anything else is absent."""
    value = data.get(name)
    return value if isinstance(value, str) else None
