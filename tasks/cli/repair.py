"""`commander repair`: let a log go on of which a sync has failed, and have it say who answers for that."""

from __future__ import annotations

import dataclasses
import getpass
import socket
from pathlib import Path

import click

from celery_commander.engine import EventSourcingEngine, IntegrityReport, LogPoisoned

from .output import UNREADABLE, as_json, belongs_to_us, fail, find_commander, find_log, print_json
from .verify import exit_status

NEEDED = 1

EXPLAINED = """\
A sync of the log has failed, so nobody can say which of its last bytes are on disk, and nothing is
appended. Every event that was acknowledged is on disk. Find out first why the sync failed: a disk
that is dying is no place for the repair. Then

    commander repair --accept --by NAME

copies what verifies to files of which no sync has failed, keeps the rest in quarantine, and writes
into the log what was done and who answers for it. Workers that wait go on by themselves."""


@click.command(short_help="Let a log go on of which a sync has failed.")
@click.option("--accept", is_flag=True, help="Do it; without this it is only said what is wrong.")
@click.option("--by", help="Who answers for it, for the log; default: this user at this host.")
@as_json
@click.pass_context
def repair(ctx: click.Context, accept: bool, by: str | None, as_json: bool) -> None:
    """Say what stops the log; with --accept let it go on after a sync has failed.

    What a crash leaves is repaired without this command, at the next append. Events that were on disk
    and do not verify any more are never given up here: restore the file from a backup.

    Exit status: 0 the log takes events, its chain is good · 1 a repair is needed, or a lock is held ·
    30 corrupt · 40 the disk still refuses, or the log was moved · else what verify answers.
    """
    commander = find_commander(ctx)
    path = find_log(commander)
    if not belongs_to_us(path):
        fail(f"{path} belongs to user {path.stat().st_uid}: repair as that user", UNREADABLE)
    engine = commander.engine
    reason = what_stops(engine)
    done = None
    if reason is not None and accept:
        try:
            done = engine.repair(by or f"{getpass.getuser()}@{socket.gethostname()}")
        except ValueError as error:
            fail(str(error))
        reason = what_stops(engine)
    report = None if reason is not None else engine.verify_integrity()
    if as_json:
        answer = None if done is None else dataclasses.asdict(done)
        status = None if report is None else report.status.name
        print_json({"path": path, "needed": reason, "repaired": answer, "verified": status})
    else:
        _say(path, reason, report)
    ctx.exit(NEEDED if report is None else exit_status(report, require_anchor=False))


def what_stops(engine: EventSourcingEngine) -> str | None:
    """Return why a log of which a sync has failed takes no events; None when it does.

    Raises:
        LogUnavailable, LogCorrupt: it is something else.
    """
    try:
        engine.settle()
    except LogPoisoned as error:
        return error.reason
    return None


def _say(path: Path, reason: str | None, report: IntegrityReport | None) -> None:
    if report is None:
        click.echo(f"{path}: {reason}\n\n{EXPLAINED}")
        return
    click.echo(f"{path} takes events; {report.status.name}: {report.events} events")
