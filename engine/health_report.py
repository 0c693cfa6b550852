"""What a health report is made of: states, numbers with limits, and reasons."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Health(StrEnum):
    """How something is; the value is what people and JSON see."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    UNHEALTHY = "unhealthy"


_ORDER: Final = tuple(Health)


def worst(states: Iterable[Health]) -> Health:
    """Return the worst of some states; healthy when there is none."""
    return max(states, key=_ORDER.index, default=Health.HEALTHY)


@dataclass(frozen=True, slots=True)
class Metric:
    """One number and its limits: reaching a limit is crossing it. None is no number, or no limit.

    Where little is bad (free disk), the limits are crossed from above.
    """

    name: str
    value: float | None
    unit: str
    degraded_at: float | None
    unhealthy_at: float | None
    status: Health

    @classmethod
    def judged(
        cls,
        name: str,
        value: float | None,
        unit: str,
        *,
        degraded_at: float | None = None,
        unhealthy_at: float | None = None,
        little_is_bad: bool = False,
    ) -> Metric:
        """Return a metric with the status that its limits give it."""

        def crosses(limit: float | None) -> bool:
            if value is None or limit is None:
                return False
            return value <= limit if little_is_bad else value >= limit

        status = Health.HEALTHY
        if crosses(unhealthy_at):
            status = Health.UNHEALTHY
        elif crosses(degraded_at):
            status = Health.DEGRADED
        return cls(name, value, unit, degraded_at, unhealthy_at, status)

    @property
    def reason(self) -> str | None:
        """Return what is to be said about it, or None while it is within its limits."""
        if self.status is Health.HEALTHY:
            return None
        limit = self.unhealthy_at if self.status is Health.UNHEALTHY else self.degraded_at
        value, bound = (f"{number:.6g}" for number in (self.value or 0, limit or 0))
        return f"{self.name} is {value} {self.unit}, the limit is {bound}"


@dataclass(frozen=True, slots=True)
class HealthReport:
    """The worst of everything that was asked, the numbers, and a text for each thing that is worth knowing.

    A reason may also be a note about something that is no fault, such as a log that was just made.
    """

    status: Health
    metrics: tuple[Metric, ...]
    reasons: tuple[str, ...]

    def with_more(self, findings: Findings) -> HealthReport:
        """Return this report with what others found besides."""
        return HealthReport(
            worst((self.status, findings.status)),
            (*self.metrics, *findings.metrics),
            (*self.reasons, *findings.reasons),
        )

    def metric(self, name: str) -> Metric | None:
        """Return a metric by its name, or None."""
        return next((metric for metric in self.metrics if metric.name == name), None)


class Findings:
    """Gather metrics and reasons while things are asked; what cannot be asked is a finding too."""

    def __init__(self) -> None:
        self.metrics: list[Metric] = []
        self.reasons: list[str] = []
        self._states: list[Health] = []

    @property
    def status(self) -> Health:
        """Return the worst so far."""
        return worst(self._states)

    def say(self, status: Health, reason: str) -> None:
        """Add a reason; a healthy one is a note."""
        self._states.append(status)
        self.reasons.append(reason)

    def measure(
        self,
        name: str,
        value: float | None,
        unit: str,
        *,
        degraded_at: float | None = None,
        unhealthy_at: float | None = None,
        little_is_bad: bool = False,
        reason: str | None = None,
    ) -> None:
        """Add a number, and if it crosses a limit `reason`, or what the numbers themselves say."""
        metric = Metric.judged(
            name,
            value,
            unit,
            degraded_at=degraded_at,
            unhealthy_at=unhealthy_at,
            little_is_bad=little_is_bad,
        )
        self.metrics.append(metric)
        self._states.append(metric.status)
        if metric.reason is not None:
            self.reasons.append(reason or metric.reason)

    def ask(self, what: str, question: Callable[[], None]) -> None:
        """Run one part of the questions; whatever it raises makes the whole unhealthy, and stops no other part."""
        try:
            question()
        except Exception as error:  # noqa: BLE001  # whatever it was, it is the finding
            self.say(
                Health.UNHEALTHY, f"{what} cannot be asked: {str(error) or type(error).__name__}"
            )

    def report(self) -> HealthReport:
        """Return everything as a value."""
        return HealthReport(self.status, tuple(self.metrics), tuple(self.reasons))
