"""`commander recover`: decide about the runs that nobody holds."""

from __future__ import annotations

import dataclasses
from collections import Counter

import click

from ..recovery import RecoveryResult
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

SKIPPED = "skip"


@click.command(short_help="Recover what a dead worker left.")
@click.option("--force-abort", is_flag=True, help="Abort and undo instead of going on.")
@click.option("--dry-run", is_flag=True, help="Say what would be decided, and decide nothing.")
@as_json
@click.pass_context
def recover(ctx: click.Context, force_abort: bool, dry_run: bool, as_json: bool) -> None:
    """Look at every unfinished run and decide, as each worker does at its start.

    A run with a living owner is left alone. What is decided is published; the workers do it.
    Exit status 1 when nothing could be decided because the log cannot be trusted or written.
    """
    commander = find_commander(ctx)
    path = find_log(commander)
    if not belongs_to_us(path):
        owner = path.stat().st_uid
        fail(f"{path} belongs to user {owner}: recover as that user; others may look", UNREADABLE)
    result = commander.bootstrapper.bootstrap(force_abort=force_abort, dry_run=dry_run)
    if as_json:
        print_json({"dry_run": dry_run, **dataclasses.asdict(result)})
    elif result.refused is None:
        _say(result, dry_run=dry_run)
    if result.refused is not None:
        fail(f"nothing was decided: {result.refused}")


def _say(result: RecoveryResult, *, dry_run: bool) -> None:
    """Print each decision, and only the number of runs that were left alone for the same reason."""
    decided = [detail for detail in result.details if detail.action != SKIPPED]
    skipped = Counter(detail.reason for detail in result.details if detail.action == SKIPPED)
    if decided:
        print_table(("run", "decision", "reason"), [dataclasses.astuple(d) for d in decided])
        click.echo()
    would = "would be " if dry_run else ""
    click.echo(
        f"{result.scanned} looked at, {result.recovered} {would}resumed,"
        f" {result.aborted} {would}aborted, {result.skipped} left alone"
    )
    for reason, number in skipped.most_common():
        click.echo(f"  {number} left alone: {reason}")
