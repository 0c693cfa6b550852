"""`commander dead`: what gave up, was parked or got stuck, and what a person does about it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from celery_commander.engine import PARKED, Category, DeadLetter

from ..dead_letters import Acted, Said
from ..stuck import StuckUndo
from .output import (
    UNREADABLE,
    as_json,
    belongs_to_us,
    fail,
    find_commander,
    find_log,
    print_json,
    print_table,
    utc,
)

if TYPE_CHECKING:
    from ..install import Commander

HEADS = ("id", "category", "task", "run", "created (UTC)", "reason", "resolution")


@click.group(invoke_without_command=True, short_help="Look after runs that need somebody.")
@click.option("--category", type=click.Choice([category.value for category in Category]))
@click.option("--all", "everything", is_flag=True, help="Resolved ones too.")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 10_000))
@as_json
@click.pass_context
def dead(
    ctx: click.Context, *, category: str | None, everything: bool, limit: int, as_json: bool
) -> None:
    """List dead letters: runs that gave up, wait for a person, or were recovered.

    in_doubt, version_conflict, damaged and stuck stay until somebody acts. aborted and poison runs are
    over; they may be run anew, and lapse after commander_dead_letter_days, as resolved ones do.
    A run whose body raised is there from the start as resolved (told): its caller has the
    exception. --all --category aborted lists these, and dead retry runs one of them anew.
    """
    if ctx.invoked_subcommand is not None:
        return
    commander = _ready(ctx)
    letters = commander.dead_letters.list(category, open_only=not everything, limit=limit)
    counts = {kind.value: number for kind, number in commander.dead_letters.counts().items()}
    if as_json:
        print_json({"open": counts, "letters": [dataclasses.asdict(one) for one in letters]})
        return
    if letters:
        print_table(HEADS, [_row(letter) for letter in letters])
        click.echo()
    told = ", ".join(f"{number} {kind}" for kind, number in counts.items() if number)
    click.echo(f"open: {told}" if told else "nothing is open")


@dead.command(short_help="Tell one letter, and what may be done about it.")
@click.argument("entry", metavar="ID")
@click.option("--values", is_flag=True, help="The error's message too; it may hold secrets.")
@as_json
@click.pass_context
def show(ctx: click.Context, entry: str, *, values: bool, as_json: bool) -> None:
    """Show a letter, the step that is asked about or could not be undone, and the commands that answer it."""
    commander = _ready(ctx)
    letter = commander.dead_letters.show(entry)
    asked = commander.dead_letters.asked_about(letter) if letter.is_open else None
    question = asked and {"step": asked.step, "name": asked.name, "key": asked.key}
    commands = _commands(letter, asks=asked is not None)
    stuck = commander.dead_letters.stuck_undo(letter)
    undo = None if stuck is None else dataclasses.asdict(stuck)
    if undo is not None and not values:
        del undo["message"]
    if as_json:
        told = {"asks": question, "stuck": undo, "commands": commands}
        print_json({**dataclasses.asdict(letter), **told})
        return
    print_table(HEADS, [_row(letter)])
    if stuck is not None:
        click.echo(f"\n{_stuck(stuck, values=values)}")
    if asked is not None:
        click.echo(f"\nDid step {asked.step} ({asked.name}) happen? Its key is {asked.key}.")
    for command in commands:
        click.echo(f"  celery -A APP commander {command}")


@dead.command(short_help="Let its run go on, or run it anew.")
@click.argument("entry", metavar="ID")
@click.option(
    "--did-happen", metavar="JSON", help="The step in doubt happened; this is its result."
)
@click.option("--did-not-happen", is_flag=True, help="It did not: the next attempt runs it.")
@click.option("--abort", is_flag=True, help="End the parked run and undo what it did.")
@as_json
@click.pass_context
def retry(
    ctx: click.Context,
    *,
    entry: str,
    did_happen: str | None,
    did_not_happen: bool,
    abort: bool,
    as_json: bool,
) -> None:
    """Let a parked or stuck run go on, or run an aborted one anew under a fresh id.

    A run that was parked because of a step in doubt needs one of the three answers: that step is
    never repeated on a guess.
    """
    said = _said(did_happen, did_not_happen=did_not_happen, abort=abort)
    _report(_ready(ctx).dead_letters.retry(entry, said), as_json=as_json)


@dead.command(short_help="Close a letter.")
@click.argument("entry", metavar="ID")
@click.option("--reason", required=True, help="Why nothing more is to be done; the log keeps it.")
@as_json
@click.pass_context
def discard(ctx: click.Context, entry: str, reason: str, as_json: bool) -> None:
    """Close a letter of which nothing more is expected; a parked run cannot be closed so."""
    _report(_ready(ctx).dead_letters.discard(entry, reason), as_json=as_json)


def _ready(ctx: click.Context) -> Commander:
    """Return the app's commander, where there is a log and this user may write beside it."""
    # A command is called by its group's name where there is no app to ask.
    commander = find_commander(ctx.parent if ctx.parent and ctx.command is not dead else ctx)
    path = find_log(commander)
    if not belongs_to_us(path):
        owner = path.stat().st_uid
        fail(f"{path} belongs to user {owner}: ask as that user", UNREADABLE)
    return commander


def _said(did_happen: str | None, *, did_not_happen: bool, abort: bool) -> Said | None:
    if (did_happen is not None) + did_not_happen + abort > 1:
        raise click.UsageError("--did-happen, --did-not-happen and --abort exclude each other")
    if did_happen is not None:
        try:
            return Said(happened=True, result=json.loads(did_happen))
        except ValueError as error:
            raise click.BadParameter(
                f"{did_happen!r} is no JSON ({error}); a text is written with its quotes",
                param_hint="--did-happen",
            ) from error
    if did_not_happen:
        return Said(happened=False)
    return Said(abort=True) if abort else None


def _report(acted: Acted, *, as_json: bool) -> None:
    if as_json:
        print_json(dataclasses.asdict(acted))
        return
    letter = acted.letter
    click.echo(f"{letter.id} ({letter.category}) of run {letter.run_id}: {letter.resolution}")
    click.echo(f"run {acted.run_id}: {acted.action} ({acted.reason})")
    if acted.action == "skip":
        click.echo("It is recorded; a worker's next recovery does it.")


def _stuck(stuck: StuckUndo, *, values: bool) -> str:
    """Say which undo failed for good, in words."""
    said = f": {stuck.message}" if values and stuck.message else ""
    return (
        f"Step {stuck.step} ({stuck.name}) is not undone: {stuck.undo} was tried {stuck.attempts} times,"
        f" the last error was {stuck.error or 'not recorded'}{said}.\n"
        "Mend it, then retry; or undo the step by hand and discard."
    )


def _commands(letter: DeadLetter, *, asks: bool) -> list[str]:
    """Return what may be asked for now."""
    retry, discard = f"dead retry {letter.id}", f"dead discard {letter.id} --reason TEXT"
    if not letter.is_open:
        return [retry] if letter.may_be_retried else []
    if asks:
        answers = ("--did-happen RESULT", "--did-not-happen", "--abort")
        return [f"{retry} {answer}" for answer in answers]
    if letter.category in PARKED:
        return [retry, f"{retry} --abort"]
    return [retry, discard]


def _row(letter: DeadLetter) -> Sequence[Any]:
    end = letter.resolved_at and (
        f"{letter.resolution} {utc(letter.resolved_at)}"
        + (f" by {letter.resolved_by}" if letter.resolved_by else "")
        + (f" as {letter.retried_as}" if letter.retried_as else "")
    )
    names = (letter.id, letter.category, letter.task, letter.run_id)
    return (*names, letter.created_at, letter.reason, end)
