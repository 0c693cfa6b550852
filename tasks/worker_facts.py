"""Judge what the workers report of themselves; all of it pure, from the rows alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from celery_commander.engine import Findings, Health, WorkerReport

PENDING: Final = "pending"
COMPLETE: Final = "complete"
INCOMPLETE: Final = "incomplete"
REFUSED: Final = "refused"
"""What a worker says of its recovery: not run yet, all handled, some runs left for the next pass, nothing decided."""

REMEDY: Final = (
    "Give every worker and publisher of this broker one state directory, as an absolute path"
)


def judge_workers(
    found: Findings, reports: Sequence[WorkerReport], *, log_id: str, stale_seconds: float
) -> None:
    """Add to `found` what the reports of all living workers come to.

    `log_id` is the log of whoever asks, `stale_seconds` how long a queue may hold messages of which a free worker
    takes none.
    """
    found.measure("workers", len(reports), "workers")
    if not reports:
        found.say(Health.DEGRADED, "no worker reports: nothing is executed or recovered")
    for report in reports:
        _judge_store(found, report, log_id)
        _judge_recovery(found, report)
        _judge_broker(found, report)
    _judge_queues(found, reports, stale_seconds)
    _judge_contributions(found, reports)


def _judge_store(found: Findings, report: WorkerReport, log_id: str) -> None:
    theirs, where = report.facts.get("log_id"), report.facts.get("where")
    if theirs is not None and theirs != log_id:
        found.say(
            Health.UNHEALTHY, f"worker {report.source} works with log {theirs}, not with {log_id}"
        )
    for name, other in (report.facts.get("other_logs") or {}).items():
        found.say(
            Health.UNHEALTHY,
            f"worker {name} takes messages of the same broker and namespace as {report.source},"
            f" but works with log {other}. {REMEDY}",
        )
    for other, seen in (report.facts.get("foreign") or {}).items():
        found.say(
            Health.UNHEALTHY,
            f"worker {report.source} works with log {theirs} in {where}, but is sent messages of log {other}"
            f" (such as task {seen.get('task')}), which it hands back. {REMEDY}",
        )


def _judge_recovery(found: Findings, report: WorkerReport) -> None:
    state, why = report.facts.get("recovery"), report.facts.get("recovery_reason")
    if state == REFUSED:
        found.say(Health.UNHEALTHY, f"worker {report.source} recovers nothing: {why}")
    elif state in (PENDING, INCOMPLETE):
        detail = f": {why}" if why else ""
        found.say(Health.DEGRADED, f"worker {report.source}: recovery is incomplete{detail}")


def _judge_broker(found: Findings, report: WorkerReport) -> None:
    trouble = report.facts.get("broker")
    if trouble:
        found.say(
            Health.DEGRADED,
            f"worker {report.source} cannot ask the broker for its queues: {trouble}",
        )


def _judge_queues(found: Findings, reports: Sequence[WorkerReport], stale_seconds: float) -> None:
    """Find queues that hold messages while a worker with a free hand has received none for too long.

    A queue that a worker was told to leave is nobody's fault as long as another one consumes it.
    """
    consumed = {
        queue["name"] for report in reports for queue in _queues(report) if queue.get("consuming")
    }
    waiting: dict[str, int] = {}
    for report in reports:
        quiet_seconds = report.facts.get("quiet_seconds") or 0.0
        for queue in _queues(report):
            name, count = queue["name"], queue.get("waiting") or 0
            waiting[name] = max(waiting.get(name, 0), count)
            is_missed = queue.get("consuming") or name not in consumed
            if count and is_missed and quiet_seconds >= stale_seconds:
                found.say(
                    Health.DEGRADED,
                    f"queue {name} holds {count} messages, and worker {report.source} is free and"
                    f" has received none for {quiet_seconds:.0f} s",
                )
    found.measure("messages_waiting", sum(waiting.values()), "messages")


def _queues(report: WorkerReport) -> Iterable[Mapping[str, Any]]:
    queues: Iterable[Mapping[str, Any]] = report.facts.get("queues") or ()
    return queues


def _judge_contributions(found: Findings, reports: Sequence[WorkerReport]) -> None:
    sums: dict[str, float] = {}
    for report in reports:
        for name, facts in (report.facts.get("contributed") or {}).items():
            for key, value in facts.items():
                if key in (Health.DEGRADED, Health.UNHEALTHY):
                    if value:
                        found.say(Health(key), f"worker {report.source}: {value}")
                elif isinstance(value, int | float):
                    sums[f"{name}_{key}"] = sums.get(f"{name}_{key}", 0) + value
    for name, value in sums.items():
        found.measure(name, value, "")
