"""`commander verify`: whether the log is what was written."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import click

from celery_commander.engine import (
    BrokenAt,
    EventSourcingEngine,
    ForeignLog,
    IntegrityReport,
    LogUnavailable,
    Settings,
    Status,
)

from .output import as_json, find_commander, find_log, print_json

UNANCHORED = (
    "Every event is as it was chained. Nothing outside vouches for it: whoever can write the file"
    " could have rewritten all of it."
)


@click.command(short_help="Check every event of the log.")
@click.argument("path", required=False, type=click.Path(readable=False, path_type=Path))
@click.option(
    "--require-anchor", is_flag=True, help="Fail unless an anchor outside vouches for it."
)
@as_json
@click.pass_context
def verify(ctx: click.Context, path: Path | None, require_anchor: bool, as_json: bool) -> None:
    """Check the chain of the app's log, or of the log at PATH, which needs no app.

    PATH is the log's file, or the state directory that holds it. Being able to read it is enough.

    Exit status: 0 the chain is good · 10 it is, but --require-anchor was given and nothing outside
    vouches for it · 20 torn tail · 30 corrupt · 31 truncated · 33 gap · 34 not our log ·
    40 unreadable. The JSON says 10 where nothing outside vouches, whatever the exit status.
    """
    path = find_log(find_commander(ctx)) if path is None else log_at(path)
    try:
        report = check(path)
    except (ForeignLog, LogUnavailable) as error:
        if not as_json:
            raise
        report = unread(error)
    if as_json:
        print_json(document(path, report))
    else:
        say(path, report)
    ctx.exit(exit_status(report, require_anchor=require_anchor))


def log_at(path: Path) -> Path:
    """Return the log that is meant: a directory is taken as a state directory."""
    return Settings(state_directory=path).event_sourcing_wal if os.path.isdir(path) else path


def check(path: Path) -> IntegrityReport:
    """Verify the log at `path` without changing a byte of it.

    Raises:
        NotALog: it is no log of ours.
        LogUnreadable: it cannot be read.
    """
    with EventSourcingEngine.open(path, create=False) as engine:
        return engine.verify_integrity()


def unread(error: ForeignLog | LogUnavailable) -> IntegrityReport:
    """Return the report of a file whose events could not be looked at."""
    status = Status.FOREIGN if isinstance(error, ForeignLog) else Status.UNREADABLE
    return IntegrityReport(status, 0, "", None, str(error))


def exit_status(report: IntegrityReport, *, require_anchor: bool) -> int:
    """Return what the shell is told: an unanchored good log is good unless an anchor is asked for."""
    if report.status is Status.OK_UNANCHORED and not require_anchor:
        return 0
    return report.exit_code


def document(path: Path, report: IntegrityReport) -> dict[str, object]:
    """Return the report as JSON shows it."""
    place = report.broken_at
    return {
        "path": str(path),
        "status": report.status.name,
        "exit_code": report.exit_code,
        "events": report.events,
        "head": report.head,
        "broken_at": None if place is None else place_of(place),
        "reason": report.reason,
        "anchored_to": report.anchored_to,
    }


def place_of(place: BrokenAt) -> dict[str, object]:
    """Return where the chain breaks, as JSON shows it."""
    return dataclasses.asdict(place)


def say(path: Path, report: IntegrityReport) -> None:
    """Print the report: the answer first, then the place, then why."""
    click.echo(f"{report.status.name}: {path}, {report.events} events, head {report.head}")
    place = report.broken_at
    if place is not None:
        click.echo(f"broken at event {place.seq}, {place.path} byte {place.offset}")
    if report.status is Status.OK_UNANCHORED:
        click.echo(UNANCHORED)
    elif report.reason:
        click.echo(report.reason)
