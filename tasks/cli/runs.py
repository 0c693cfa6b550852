"""`commander runs`: which runs there are, and where each stands."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from celery_commander.engine import (
    EventSourcingEngine,
    LogUnavailable,
    RunState,
    State,
    StoreUnavailable,
)

from .output import (
    as_json,
    belongs_to_us,
    find_commander,
    find_log,
    print_json,
    print_table,
    utc,
)

if TYPE_CHECKING:
    from ..install import Commander

Found = tuple[Mapping[State, int], list[RunState]]
"""How many runs there are of each state, and those that were asked for."""

HEADS = ("run", "task", "state", "delivered", "attempt", "deaths", "changed (UTC)", "note")


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

    "delivered" says whether Celery was told the outcome; an ended run that was not is delivered by
    the next recovery. Where nothing may be written, the log is read whole instead.
    """
    commander = find_commander(ctx)
    path = find_log(commander)
    chosen = [State(state.upper()) for state in states]
    numbers, found = _look(commander, path, chosen, limit)
    counts = {state.value: number for state, number in numbers.items()}
    if as_json:
        print_json({"counts": counts, "runs": [dataclasses.asdict(run) for run in found]})
        return
    if found:
        print_table(HEADS, [_row(run) for run in found])
        click.echo()
    click.echo(", ".join(f"{number} {state}" for state, number in counts.items()) or "no runs")


def _look(commander: Commander, path: Path, chosen: Sequence[State], limit: int) -> Found:
    if belongs_to_us(path):
        try:
            return _ask_ledger(commander, chosen, limit)
        except (LogUnavailable, StoreUnavailable):
            pass  # what cannot be written may still be read
    return _read_log(commander, chosen, limit)


def _ask_ledger(commander: Commander, chosen: Sequence[State], limit: int) -> Found:
    """Bring the ledger up to date and ask it."""
    ledger, found = commander.ledger, list[RunState]()
    ledger.catch_up()
    for state in chosen or (None,):
        found += ledger.runs(state=state, limit=limit)
    return ledger.counts(), found[:limit]


def _read_log(commander: Commander, chosen: Sequence[State], limit: int) -> Found:
    """Answer the same from the log alone, without writing anything."""
    with EventSourcingEngine.open(commander.engine_settings, create=False) as engine:
        runs = sorted(engine.replay().values(), key=_newest_first, reverse=True)
    counted = Counter(run.state for run in runs)
    by_state = [[run for run in runs if run.state is state] for state in chosen] or [runs]
    found = [run for group in by_state for run in group[:limit]]
    return {state: counted[state] for state in State}, found[:limit]


def _newest_first(run: RunState) -> tuple[datetime, str]:
    return run.created_at, run.run_id


def _row(run: RunState) -> tuple[object, ...]:
    return (
        run.run_id,
        run.task,
        run.state,
        run.delivered,
        run.attempt,
        run.deaths,
        run.changed_at,
        _note(run),
    )


def _note(run: RunState) -> str:
    notes = [
        run.paused_kind and f"paused: {run.paused_kind}",
        run.due_at and f"due {utc(run.due_at)} UTC",
        run.cancel_requested and f"cancel asked: {run.cancel_requested}",
        run.degraded and "ran unrecorded",
        run.open_steps and f"open steps {_numbers(run.open_steps)}",
        run.owed
        and run.state in (State.ABORTED, State.STUCK)
        and f"owes undo of {_numbers(run.owed)}",
    ]
    return "; ".join(note for note in notes if note)


def _numbers(steps: tuple[int, ...]) -> str:
    return ", ".join(str(step) for step in steps)
