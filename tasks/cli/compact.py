"""`commander compact`: move what a snapshot holds out of the log, into the archive."""

from __future__ import annotations

import dataclasses

import click

from .output import UNREADABLE, as_json, belongs_to_us, fail, find_commander, find_log, print_json
from .snapshot import DEFAULT_NAME


@click.command(short_help="Reclaim the space of what a snapshot holds.")
@click.argument("name", default=DEFAULT_NAME)
@as_json
@click.pass_context
def compact(ctx: click.Context, name: str, as_json: bool) -> None:
    """Move the log's sealed files that snapshot NAME (manual) holds into the archive.

    The log and the snapshot are verified before, and the log after; no event is rewritten, and workers
    go on meanwhile. Archived files that are older than commander_archive_days are removed then.

    Exit status: 0 done, or nothing to do · 1 no such snapshot, or a store is busy · 38 the snapshot is
    not believed · 40 the log cannot be written · what verify answers, when the log does not verify.
    """
    commander = find_commander(ctx)
    path = find_log(commander)
    if not belongs_to_us(path):
        fail(f"{path} belongs to user {path.stat().st_uid}: compact as that user", UNREADABLE)
    report = commander.engine.compact(name)
    pruned = commander.engine.archive_prune()
    if as_json:
        print_json({**dataclasses.asdict(report), "pruned_files": pruned})
        return
    click.echo(
        f"{report.removed_events} events, {report.reclaimed_bytes} bytes moved to {report.archived_to}"
        if report.removed_events
        else "nothing to do: no sealed file lies wholly within that snapshot"
    )
    if pruned:
        days = commander.engine_settings.archive_days
        click.echo(f"{pruned} archived files removed after {days} days")
