"""`commander runs`: which runs there are, and where each stands."""

from __future__ import annotations

import dataclasses

import click

from celery_commander.engine import RunState, State

from .output import as_json, find_commander, find_log, print_json, print_table

HEADS = ("run", "task", "state", "told", "attempt", "deaths", "changed", "note")


@click.command(short_help="List runs by state.")
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice([state.value for state in State], case_sensitive=False),
    help="Only runs in this state; may be given more than once.",
)
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 10_000))
@as_json
@click.pass_context
def runs(ctx: click.Context, states: tuple[str, ...], limit: int, as_json: bool) -> None:
    """List the latest runs and count all of them by state.

    "told" says whether Celery was told the outcome; an ended run that was not is delivered by the
    next recovery.
    """
    commander = find_commander(ctx)
    find_log(commander)
    commander.ledger.catch_up()
    counts = {state.value: number for state, number in commander.ledger.counts().items()}
    found: list[RunState] = []
    chosen: list[State | None] = [State(state.upper()) for state in states]
    for state in chosen or [None]:
        found += commander.ledger.runs(state=state, limit=limit)
    found = found[:limit]
    if as_json:
        print_json({"counts": counts, "runs": [dataclasses.asdict(run) for run in found]})
        return
    if found:
        print_table(HEADS, [_row(run) for run in found])
        click.echo()
    click.echo(", ".join(f"{number} {state}" for state, number in counts.items()) or "no runs")


def _row(run: RunState) -> tuple[object, ...]:
    told = run.delivered
    return (
        run.run_id,
        run.task,
        run.state,
        told,
        run.attempt,
        run.deaths,
        run.changed_at,
        _note(run),
    )


def _note(run: RunState) -> str:
    notes = [
        run.paused_kind and f"paused: {run.paused_kind}",
        run.due_at and f"due {run.due_at:%Y-%m-%d %H:%M:%S}",
        run.cancel_requested and f"cancel asked: {run.cancel_requested}",
        run.degraded and "ran unrecorded",
        run.open_steps and f"open steps {_numbers(run.open_steps)}",
        run.owed and run.state in (State.ABORTED, State.STUCK) and f"owes {_numbers(run.owed)}",
    ]
    return "; ".join(note for note in notes if note)


def _numbers(steps: tuple[int, ...]) -> str:
    return ", ".join(str(step) for step in steps)
