"""Expose the health as Prometheus gauges, asked anew at every scrape."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import REGISTRY, Collector

from celery_commander.engine import Health, HealthReport

if TYPE_CHECKING:
    from .install import Commander

_UNITS = ("seconds", "bytes")
_UNSAFE = re.compile(r"[^a-zA-Z0-9_]")


class HealthCollector(Collector):
    """Give a commander's health as gauges `commander_*`; a number that nobody knows is left out.

    `commander_health` is 0 healthy, 1 degraded, 2 unhealthy. No gauge carries ids, names or reasons.
    """

    def __init__(self, commander: Commander) -> None:
        self._commander = commander

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Ask once, and yield what the answer holds."""
        yield from gauges(self._commander.health.report())

    def describe(self) -> list[GaugeMetricFamily]:
        """Describe nothing beforehand: registering must not open the store."""
        return []


def gauges(report: HealthReport) -> Iterator[GaugeMetricFamily]:
    """Yield a report's status and numbers, units at the end of their names."""
    levels = tuple(Health)
    yield GaugeMetricFamily(
        "commander_health", "0 healthy, 1 degraded, 2 unhealthy.", levels.index(report.status)
    )
    for metric in report.metrics:
        if metric.value is not None:
            name = f"commander_{_UNSAFE.sub('_', metric.name)}"
            if metric.unit in _UNITS:
                name = f"{name}_{metric.unit}"
            unit = f", in {metric.unit}" if metric.unit else ""
            yield GaugeMetricFamily(name, f"{metric.name}{unit}.", metric.value)


def register(commander: Commander, registry: CollectorRegistry = REGISTRY) -> HealthCollector:
    """Add the gauges of a commander to a registry, by default the process's own; return what to unregister."""
    collector = HealthCollector(commander)
    registry.register(collector)
    return collector


def exposition(commander: Commander) -> str:
    """Return the gauges in Prometheus's text format."""
    registry = CollectorRegistry()
    register(commander, registry)
    return generate_latest(registry).decode("utf-8")
