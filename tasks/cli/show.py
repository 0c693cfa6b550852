"""`commander show RUN`: one run's whole story, from the log itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import click

from celery_commander.engine import Entry, Event, EventSourcingEngine, RunHistory, RunState

from .output import as_json, fail, find_commander, find_log, print_json, print_table, utc

STEP_HEADS = ("step", "kind", "name", "status", "attempt", "undo", "note")
EVENT_HEADS = ("seq", "at (UTC)", "type", "token", "what")
VALUES = frozenset(("args", "kwargs", "result", "exception", "value", "message"))


@click.command(short_help="Tell one run's story.")
@click.argument("run_id", metavar="RUN")
@click.option("--values", is_flag=True, help="Show arguments and results too; they may be secret.")
@as_json
@click.pass_context
def show(ctx: click.Context, run_id: str, values: bool, as_json: bool) -> None:
    """Show where a run stands, its steps, and every event that the log holds of it."""
    commander = find_commander(ctx)
    path = find_log(commander)
    with EventSourcingEngine.open(commander.engine_settings, create=False) as engine:
        events = engine.history(run_id)
    history = RunHistory.of(events)
    if history.state is None:
        fail(f"no run {run_id} in {path}; `celery -A APP commander runs` lists those that it has")
    if as_json:
        print_json(document(history, events, values=values))
        return
    _say_run(history.state, history.created.get("previous"))
    if history.entries:
        click.echo()
        print_table(STEP_HEADS, [_step_row(entry) for entry in history.entries.values()])
    click.echo()
    print_table(EVENT_HEADS, _event_rows(events, history, values=values))


def document(history: RunHistory, events: Iterable[Event], *, values: bool) -> dict[str, Any]:
    """Return the story as JSON shows it; without `values` nothing of what went in or came out."""
    assert history.state is not None
    return {
        "run": dataclasses.asdict(history.state),
        "steps": [
            _without(dataclasses.asdict(entry), values) for entry in history.entries.values()
        ],
        "events": [
            {
                "seq": event.seq,
                "id": event.id,
                "type": event.type,
                "timestamp": event.timestamp,
                "token": event.token,
                "n": event.n,
                "hash": event.hash,
                "data": _without(event.payload, values),
            }
            for event in events
        ],
        "voided": [{"seq": event.seq, "reason": reason} for event, reason in history.voided],
    }


def _say_run(run: RunState, previous: str | None) -> None:
    told = "delivered" if run.delivered else "not delivered"
    click.echo(f"run      {run.run_id}")
    click.echo(f"task     {run.task} ({run.namespace})")
    click.echo(f"state    {run.state.value}, {told}")
    click.echo(f"owner    token {run.token}, attempt {run.attempt}, {run.deaths} deaths")
    for name, value in (
        ("key", run.key),
        ("follows", previous),
        ("paused", run.paused_kind),
        ("due", run.due_at and f"{utc(run.due_at)} UTC"),
        ("cancel", run.cancel_requested),
    ):
        if value is not None:
            click.echo(f"{name:<8} {value}")


def _step_row(entry: Entry) -> tuple[object, ...]:
    note = "in doubt" if entry.in_doubt else ""
    return (entry.step, entry.kind, entry.name, entry.status, entry.attempt, entry.undo, note)


def _event_rows(
    events: Iterable[Event], history: RunHistory, *, values: bool
) -> Iterable[tuple[object, ...]]:
    voided = {event.seq: reason for event, reason in history.voided}
    for event in events:
        what = _what(_without(event.payload, values))
        if event.seq in voided:
            what = f"VOID: {voided[event.seq]}" + (f" ({what})" if what else "")
        yield (event.seq, event.timestamp, event.type, event.token, what)


def _what(data: Mapping[str, Any]) -> str:
    """Say in one line what an event holds; what else is nested, and digests, are for --json."""
    return " ".join(
        f"{key}={value}"
        for key, value in data.items()
        if value not in (None, False, "", [])
        and (key in VALUES or not isinstance(value, Mapping))
        and key != "digest"
    )


def _without(data: Mapping[str, Any], values: bool) -> dict[str, Any]:
    return {key: value for key, value in data.items() if values or key not in VALUES}
