"""`commander history RUN`: a run's history as a document that a test suite keeps, and replays."""

from __future__ import annotations

import click

from ..kept_history import exported
from .output import as_json, fail, find_commander, find_log, print_json
from .show import show


@click.command(short_help="Export a run's history.")
@click.argument("run_id", metavar="RUN")
@as_json
@click.pass_context
def history(ctx: click.Context, run_id: str, as_json: bool) -> None:
    """Show a run's history; with --json export it whole, arguments and results included.

    What --json prints stands for itself: kept as a file beside the tests, `replay --file FILE` and
    celery_commander.tasks.replay_history(app, FILE) run the code over it, and tell when it is another.
    The values in it may be secret.
    """
    if not as_json:
        ctx.invoke(show, run_id=run_id, values=False, as_json=False)
        return
    commander = find_commander(ctx)
    path = find_log(commander)
    document = exported(commander, run_id)
    if not document["events"]:
        fail(f"no run {run_id} in {path}; `celery -A APP commander runs` lists those that it has")
    print_json(document)
