"""`commander verify`: whether the log is what was written."""

from __future__ import annotations

import dataclasses
import os
from contextlib import suppress
from pathlib import Path

import click

from celery_commander.engine import (
    AnchorDirectory,
    BrokenAt,
    EventSourcingEngine,
    ForeignLog,
    IntegrityReport,
    LogError,
    LogUnavailable,
    Settings,
    Status,
)

from .output import as_json, belongs_to_us, find_commander, find_log, print_json

UNANCHORED = (
    "Every event is as it was chained. Nothing outside vouches for it: whoever can write the file"
    " could have rewritten all of it."
)


@click.command(short_help="Check every event of the log.")
@click.argument("path", required=False, type=click.Path(readable=False, path_type=Path))
@click.option(
    "--require-anchor", is_flag=True, help="Fail unless an anchor outside vouches for it."
)
@click.option(
    "--anchors",
    type=click.Path(file_okay=False, path_type=Path),
    help="Hold the log against the anchors in this directory; default: the app's anchor_directory.",
)
@as_json
@click.pass_context
def verify(
    ctx: click.Context,
    path: Path | None,
    *,
    require_anchor: bool,
    anchors: Path | None,
    as_json: bool,
) -> None:
    """Check the chain of the app's log, or of the log at PATH, which needs no app.

    PATH is the log's file, or the state directory that holds it. Being able to read it is enough.

    A break of the app's own log stops whoever appends, until a person acts (see `repair`); once the
    right file is back, this command lets them go on.

    Exit status: 0 the chain is good · 10 it is, but --require-anchor was given and nothing outside
    vouches for it · 15 it is, but for damage that a person has accepted · 20 torn tail · 30 corrupt ·
    31 truncated · 32 not what was anchored · 33 gap · 34 not our log · 36 unauthorised compaction ·
    38 a snapshot is not what the log says · 40 unreadable. The JSON says 10 where nothing outside
    vouches, whatever the exit status.
    """
    is_ours = path is None
    if path is None:
        commander = find_commander(ctx)
        path, anchors = find_log(commander), anchors or commander.engine_settings.anchor_directory
    else:
        path = log_at(path)
    try:
        report = check(path, anchors=anchors, note=is_ours and belongs_to_us(path))
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


def check(path: Path, *, anchors: Path | None = None, note: bool = False) -> IntegrityReport:
    """Verify the log at `path` without changing a byte of it.

    `note` leaves the answer beside it, for health, and the mark of a break, or takes that mark away.

    Raises:
        NotALog: it is no log of ours.
        LogUnreadable: it cannot be read.
        AnchorsUnreadable: the anchors cannot be believed.
    """
    with EventSourcingEngine.open(path, create=False) as engine:
        known = AnchorDirectory(anchors).read(engine.log_id) if anchors is not None else []
        report = engine.verify_integrity(anchors=known)
        if note:
            engine.note_verified(report)
            with suppress(LogError, OSError):  # beat's next verification tries again
                if not engine.breaks.lift(report):
                    engine.breaks.mark(report, known)
        return report


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
        "lost": report.lost,
        "accepted": [dataclasses.asdict(each) for each in report.accepted],
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
