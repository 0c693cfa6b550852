"""Hold one call of a step at its place in a run, and what the log is told before it is made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from celery_commander.engine import Entry, encode

if TYPE_CHECKING:
    from .steps import StepSpec


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a step; `key` is its idempotency key, the same at every try."""

    spec: StepSpec
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    index: int
    digest: str
    key: str

    def intent(self, attempt: int, on_doubt: str) -> dict[str, Any]:
        """Return what `step.started` records; arguments only where an undo will need them."""
        spec = self.spec
        told = {
            "step": self.index,
            "name": spec.name,
            "kind": spec.kind,
            "digest": self.digest,
            "key": self.key,
            "attempt": attempt,
            "undo": spec.undo,
            "resolve": spec.resolve is not None,
            "retry_in_doubt": spec.retry_in_doubt,
            "in_doubt": on_doubt,
        }
        if spec.undo is not None:
            told |= {"args": encode(list(self.args)), "kwargs": encode(self.kwargs)}
        return told


def described(entry: Entry) -> str:
    """Return how a record is named to people."""
    return f"{entry.kind} {entry.name}"
