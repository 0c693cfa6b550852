"""Say how a whole deployment is: the store's own health, and what every worker reported of itself.

Each worker's main process writes one row now and then; whoever asks (a command, Flower, a scheduled check) reads the
rows, so nobody has to be reached by a broker that may be the very thing that is broken. A row that grows old belonged
to a worker that went away, which is no failure; that there is no worker at all is one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from celery_commander.engine import (
    CommanderError,
    EventSourcingHealth,
    Findings,
    Health,
    HealthReport,
    Metric,
    unopened,
)

from .worker_facts import judge_workers

if TYPE_CHECKING:
    from .install import Commander
    from .store import Store

logger = logging.getLogger(__name__)

REASONS_AT_MOST = 20
"""How many reasons stand in one event; a report has them all."""

Fact = float | int | str | bool | None
Contributor = Callable[[], Mapping[str, Fact]]


class FleetHealth:
    """Report, check and explain; safe from every thread, and never raises for what it may find."""

    def __init__(self, commander: Commander) -> None:
        self._commander = commander
        self._contributors: dict[str, Contributor] = {}
        self._of_store: tuple[Store, EventSourcingHealth] | None = None

    def contribute(self, name: str, facts: Contributor) -> None:
        """Have `facts` asked at every report of this worker; it must be quick, and may fail.

        Numbers are shown as metrics `name_key`, summed over all workers. A text under the key `degraded` or
        `unhealthy` gives the whole that status, with the text as the reason. A second contributor of a name replaces
        the first.
        """
        self._contributors[name] = facts

    def contributed(self) -> dict[str, dict[str, Fact]]:
        """Return what the contributors say now; one that fails says so."""
        return {name: _told(name, facts) for name, facts in list(self._contributors.items())}

    def report(self) -> HealthReport:
        """Return how the store and its workers are now, in time that depends on neither the log nor the runs."""
        try:
            report = self._health().report()
        except (CommanderError, OSError) as error:
            return unopened(error)
        found = Findings()
        found.ask("the workers", lambda: self._ask_workers(found))
        return report.with_more(found)

    def problem(self) -> str | None:
        """Return why nothing may be decided from the log now, or None; recovery asks before it acts."""
        try:
            return self._health().problem()
        except (CommanderError, OSError) as error:
            return str(error)

    def unwritable(self) -> str | None:
        """Return why the log takes no event now, or None."""
        try:
            return self._health().unwritable()
        except (CommanderError, OSError) as error:
            return str(error)

    def probe(self, host: str | None = None) -> list[str]:
        """Return what restarting a worker could mend: a log that cannot be used, leases that are not renewed.

        `host` limits the second to the processes of one host name. An empty answer is a pass.
        """
        try:
            health = self._health()
        except (CommanderError, OSError) as error:
            return [str(error)]
        problem = health.problem()
        return [problem] if problem is not None else health.stalled(host)

    def check(self) -> HealthReport:
        """Return the report; if its status is news, tell the log and the bus, once for all who check."""
        report = self.report()
        try:
            before = self._commander.store.reports.change(
                self._commander.namespace, report.status.value
            )
        except (CommanderError, OSError) as error:
            logger.warning("The health could not be compared with the last: %s", error)
            return report
        if before is not None:
            self._tell(before, report)
        return report

    def _ask_workers(self, found: Findings) -> None:
        settings = self._commander.settings
        reports = self._commander.store.reports.reports(
            younger_than_seconds=settings.report_stale_seconds
        )
        judge_workers(
            found,
            reports,
            log_id=self._commander.engine.log_id,
            stale_seconds=settings.consume_stale_seconds,
        )

    def _health(self) -> EventSourcingHealth:
        """Return the store's health; a store that was opened anew has one of its own."""
        store = self._commander.store
        if self._of_store is None or self._of_store[0] is not store:
            health = EventSourcingHealth(
                store.engine,
                ledger=store.ledger,
                leases=store.leases,
                dead_letters=store.dead_letters,
            )
            self._of_store = (store, health)
        return self._of_store[1]

    def _tell(self, before: str, report: HealthReport) -> None:
        after = report.status.value
        level = logging.INFO if report.status is Health.HEALTHY else logging.WARNING
        logger.log(level, "Health: %s, was %s. %s", after, before, "; ".join(report.reasons))
        data = {"from": before, "to": after, "namespace": self._commander.namespace}
        self._append(data, report)
        bus = getattr(self._commander, "bus", None)
        if bus is not None:
            bus.publish("health.changed", data)

    def _append(self, data: dict[str, Any], report: HealthReport) -> None:
        if self.unwritable() is not None:
            return  # the log takes nothing; the bus and this process's own log tell it
        try:
            reasons = list(report.reasons[:REASONS_AT_MOST])
            self._commander.engine.append(
                "health.changed", {**data, "reasons": reasons}, wait=False
            )
        except CommanderError as error:
            logger.warning("The log could not be told that health changed: %s", error)


def document(report: HealthReport, *, anonymous: bool) -> dict[str, Any]:
    """Return a report as JSON shows it; an anonymous one has numbers only: no ids, names or reasons."""
    told: dict[str, Any] = {
        "status": report.status.value,
        "metrics": {metric.name: _metric(metric) for metric in report.metrics},
    }
    if not anonymous:
        told["reasons"] = list(report.reasons)
    return told


def _metric(metric: Metric) -> dict[str, Any]:
    return {
        "value": metric.value,
        "unit": metric.unit,
        "degraded_at": metric.degraded_at,
        "unhealthy_at": metric.unhealthy_at,
        "status": metric.status.value,
    }


def _told(name: str, facts: Contributor) -> dict[str, Fact]:
    try:
        return dict(facts())
    except Exception as error:  # noqa: BLE001  # whatever it was, it is the report
        return {"degraded": f"{name} could not be asked: {str(error) or type(error).__name__}"}
