"""`commander health`: how the log, the stores and the workers are."""

from __future__ import annotations

import socket
import sys
from typing import TYPE_CHECKING

import click

from celery_commander.engine import Health, HealthReport, Metric

from ..health import document
from .output import (
    UNREADABLE,
    as_json,
    belongs_to_us,
    fail,
    find_commander,
    find_log,
    print_json,
    print_table,
)

if TYPE_CHECKING:
    from ..install import Commander

EXIT_CODES = {Health.HEALTHY: 0, Health.DEGRADED: 1, Health.UNHEALTHY: 2}


@click.command(short_help="Say how the log, the stores and the workers are.")
@click.option(
    "--probe",
    is_flag=True,
    help="Fail only for a log that cannot be used, or leases that are not renewed.",
)
@click.option("--prometheus", is_flag=True, help="Print the numbers in Prometheus's text format.")
@as_json
@click.pass_context
def health(ctx: click.Context, probe: bool, prometheus: bool, as_json: bool) -> None:
    """Report every number with its limits, and a reason for each thing that is not as it should be.

    Nothing is verified or counted for it, so it is cheap to ask. --probe is for the liveness checks of
    Kubernetes and compose: a backlog must not restart healthy workers. It looks at processes of this
    host name only, so that one stalled worker does not restart all.

    Exit status: 0 healthy · 1 degraded · 2 unhealthy · 40 unreadable. With --probe 0 or 2.
    """
    commander = find_commander(ctx)
    path = find_log(commander)
    if not belongs_to_us(path):
        owner = path.stat().st_uid
        fail(f"{path} belongs to user {owner}: ask as that user", UNREADABLE)
    if probe:
        ctx.exit(_probe(commander, as_json=as_json))
    if prometheus:
        from ..metrics import exposition

        click.echo(exposition(commander), nl=False)
        return
    report = commander.health.report()
    if as_json:
        print_json(document(report, anonymous=False))
    else:
        _say(report)
    ctx.exit(EXIT_CODES[report.status])


def _probe(commander: Commander, *, as_json: bool) -> int:
    """Print whether restarting this container could help, and return the exit status."""
    reasons = commander.health.probe(socket.gethostname())
    status = Health.UNHEALTHY if reasons else Health.HEALTHY
    if as_json:
        print_json({"status": status.value, "reasons": reasons})
    else:
        for reason in reasons or ["the log can be used and leases are renewed"]:
            click.echo(reason, file=sys.stderr if reasons else None)
    return EXIT_CODES[status]


def _say(report: HealthReport) -> None:
    click.echo(report.status.value.upper())
    for reason in report.reasons:
        click.echo(f"  {reason}")
    if report.metrics:
        click.echo()
        print_table(
            ("metric", "value", "unit", "degraded at", "unhealthy at", "status"),
            [_row(metric) for metric in report.metrics],
        )


def _row(metric: Metric) -> tuple[object, ...]:
    return (
        metric.name,
        _number(metric.value),
        metric.unit,
        _number(metric.degraded_at),
        _number(metric.unhealthy_at),
        metric.status,
    )


def _number(value: float | None) -> str | None:
    if value is None:
        return None
    return f"{value:.0f}" if value == int(value) else f"{value:.3g}"
