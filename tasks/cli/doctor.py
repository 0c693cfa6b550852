"""`commander doctor`: whether everything is there that a deployment needs."""

from __future__ import annotations

import dataclasses

import click

from ..diagnosis import Verdict, examine
from .output import FAILED, as_json, find_commander, print_json, print_table


@click.command(short_help="Look for what is missing or set wrong.")
@as_json
@click.pass_context
def doctor(ctx: click.Context, as_json: bool) -> None:
    """Look at the settings, the state directory, the health, the result backend, beat, queues and tasks.

    Workers are asked over the broker, so this takes a second or two. Nothing is made or changed.

    Exit status: 0 nothing is wrong, warnings or not · 1 something is.
    """
    findings = examine(find_commander(ctx))
    wrong = [finding for finding in findings if finding.verdict is Verdict.WRONG]
    if as_json:
        print_json([dataclasses.asdict(finding) for finding in findings])
    else:
        print_table(("what", "found", "detail"), [dataclasses.astuple(each) for each in findings])
        warnings = sum(finding.verdict is Verdict.WARNING for finding in findings)
        click.echo(f"\n{len(wrong)} wrong, {warnings} warnings")
    ctx.exit(FAILED if wrong else 0)
