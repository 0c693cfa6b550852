"""`commander snapshot`: write down where every run stands, so that the log need not be kept for it."""

from __future__ import annotations

import dataclasses

import click

from .output import UNREADABLE, as_json, belongs_to_us, fail, find_commander, find_log, print_json

DEFAULT_NAME = "manual"


@click.command(short_help="Take a snapshot of every run's state.")
@click.argument("name", default=DEFAULT_NAME)
@as_json
@click.pass_context
def snapshot(ctx: click.Context, name: str, as_json: bool) -> None:
    """Take a snapshot called NAME (manual); workers go on meanwhile.

    It holds the state of every run and the events of those that are unfinished. `compact NAME` then
    reclaims the space of what it holds. Names may repeat: the newest of a name is meant.

    Exit status: 0 it was taken · 1 a store is busy or the name cannot be one · 30 corrupt · 34 not
    our log · 38 an older snapshot that is needed is not believed · 40 the log cannot be written.
    """
    commander = find_commander(ctx)
    path = find_log(commander)
    if not belongs_to_us(path):
        owner = path.stat().st_uid
        fail(f"{path} belongs to user {owner}: take snapshots as that user", UNREADABLE)
    try:
        taken = commander.engine.snapshot(name)
    except ValueError as error:
        fail(str(error))
    size = taken.path.stat().st_size
    if as_json:
        document = dataclasses.asdict(taken)
        print_json({**document, "position": str(taken.position), "bytes": size})
        return
    click.echo(f"snapshot {taken.name} through event {taken.through}: {size} bytes, {taken.path}")
    click.echo(f"SHA-256 {taken.sha256}")
