"""What the tests of health share: a log under other settings, and one number of a report."""

from __future__ import annotations

from collections.abc import Callable

from celery_commander.engine import EventSourcingEngine, Health, HealthReport

Open = Callable[..., EventSourcingEngine]
HEALTHY, DEGRADED, UNHEALTHY = Health.HEALTHY, Health.DEGRADED, Health.UNHEALTHY


def status_of(report: HealthReport, name: str) -> tuple[float | None, Health]:
    metric = report.metric(name)
    assert metric is not None, report
    return metric.value, metric.status
