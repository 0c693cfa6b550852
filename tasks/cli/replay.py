"""`commander replay`: run bodies over what is recorded, without any effect, and say where the code has changed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from celery_commander.engine import (
    RunHistory,
    RunQuery,
    RunState,
    State,
    StoreUnavailable,
    UnknownTask,
)

from ..kept_history import imported, read_document
from ..replaying import Replayed, Verdict, rehearse
from .output import as_json, fail, find_commander, find_log, print_json

if TYPE_CHECKING:
    from ..install import Commander

DIVERGED = 3
NOT_REPLAYABLE = 4

UNFINISHED = (State.PENDING, State.EXECUTING, State.VERIFYING, State.PAUSED)

_EXIT = {Verdict.SAME: 0, Verdict.DIVERGED: DIVERGED, Verdict.NOT_REPLAYABLE: NOT_REPLAYABLE}
_PAGE = 100


@dataclass(frozen=True, slots=True)
class Chosen:
    """Say which of all runs are meant: by default the unfinished ones of this namespace."""

    states: tuple[State, ...] = ()
    task: str | None = None

    def of(self, commander: Commander) -> Iterator[RunState]:
        """Yield them, a page at a time."""
        for state in self._unfinished(commander) if not self.states else self._named(commander):
            if state.namespace == commander.namespace and self.task in (None, state.task):
                yield state

    def _unfinished(self, commander: Commander) -> Iterator[RunState]:
        after: str | None = None
        while page := commander.ledger.candidates(commander.namespace, limit=_PAGE, after=after):
            yield from (state for state in page if state.state in UNFINISHED)
            after = page[-1].run_id

    def _named(self, commander: Commander) -> Iterator[RunState]:
        for state in sorted(self.states, key=lambda state: state not in UNFINISHED):
            query, offset = RunQuery(state, self.task), 0
            while page := commander.ledger.find(query, limit=_PAGE, offset=offset):
                yield from page
                offset += len(page)


@click.command(short_help="Run a body over its records, without effects.")
@click.argument("run_id", metavar="RUN", required=False)
@click.option("--file", "path", type=click.Path(path_type=Path), help="An exported history.")
@click.option("--all", "every", is_flag=True, help="Every unfinished run, one after another.")
@click.option("--check", is_flag=True, help="With --all: fail when any of them would diverge.")
@click.option("--task", help="With --all: only runs of this task.")
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice([state.value for state in State], case_sensitive=False),
    help="With --all: runs in this state, finished ones too; may be given more than once.",
)
@as_json
@click.pass_context
def replay(
    ctx: click.Context,
    run_id: str | None,
    *,
    path: Path | None,
    every: bool,
    check: bool,
    task: str | None,
    states: tuple[str, ...],
    as_json: bool,
) -> None:
    """Run the body of a run over what is recorded of it, and show the first difference.

    Nothing is written, claimed, called or sent; steps and inputs answer from the log, and what is not
    recorded ends it. Code between the steps runs; of what that sends by Celery nothing leaves. `replay
    --all --check` belongs into a deployment: with the new code it tells, before any worker runs it, which
    unfinished runs it could not go on with.

    Exit status: 0 the same code · 3 it diverges · 4 it cannot be replayed here: its task is unknown, its
    history is archived or cannot be read. With --all it is 0 unless --check is given; then a divergence
    goes before what cannot be told.
    """
    if [run_id is not None, path is not None, every].count(True) != 1:
        raise click.UsageError("name one RUN, or --file FILE, or --all")
    commander = find_commander(ctx)
    if (states or task or check) and not every:
        raise click.UsageError("--check, --task and --state go with --all")
    if every:
        chosen = tuple(State(state) for state in states)
        _replay_all(ctx, commander, Chosen(chosen, task), check=check, as_json=as_json)
        return
    if path is not None:
        found = _rehearsed(commander, imported(read_document(path)), has_secret=False)
    else:
        assert run_id is not None
        found = _replayed(commander, run_id)
    if as_json:
        print_json(_document(found))
    else:
        _say(found)
    ctx.exit(_EXIT[found.verdict])


def _replayed(commander: Commander, run_id: str) -> Replayed:
    path = find_log(commander)
    history = commander.history(run_id)
    if history.state is None:
        fail(f"no run {run_id} in {path}; `celery -A APP commander runs` lists those that it has")
    return _rehearsed(commander, history)


def _rehearsed(commander: Commander, history: RunHistory, *, has_secret: bool = True) -> Replayed:
    """Replay one; what this app cannot even begin is an answer too."""
    try:
        return rehearse(commander, history, has_secret=has_secret)
    except UnknownTask as error:
        assert history.state is not None
        return _not_replayable(history.state, error)


def _replay_all(
    ctx: click.Context, commander: Commander, chosen: Chosen, *, check: bool, as_json: bool
) -> None:
    find_log(commander)
    commander.ledger.catch_up()
    counts = dict.fromkeys(Verdict, 0)
    told = []
    for state in chosen.of(commander):
        found = _one_of_all(commander, state)
        counts[found.verdict] += 1
        if as_json and found.verdict is not Verdict.SAME:
            told.append(_document(found))
        elif found.verdict is not Verdict.SAME:
            _say(found)
    if as_json:
        print_json({"counts": {each.value: n for each, n in counts.items()}, "runs": told})
    else:
        click.echo(", ".join(f"{number} {verdict.value}" for verdict, number in counts.items()))
    worst = next((v for v in (Verdict.DIVERGED, Verdict.NOT_REPLAYABLE) if counts[v]), Verdict.SAME)
    ctx.exit(_EXIT[worst] if check else 0)


def _one_of_all(commander: Commander, state: RunState) -> Replayed:
    """Replay one of many: what is wrong with it is said, and stops none of the others."""
    try:
        return rehearse(commander, commander.history(state.run_id))
    except StoreUnavailable:
        raise
    except Exception as error:  # noqa: BLE001  # a broken line, a message that nobody can read
        return _not_replayable(state, error)


def _not_replayable(state: RunState, error: Exception) -> Replayed:
    why = str(error) or type(error).__name__
    return Replayed(state.run_id, state.task, state.state, Verdict.NOT_REPLAYABLE, 0, why)


def _document(found: Replayed) -> dict[str, object]:
    return dataclasses.asdict(found) | {"verdict": found.verdict.value}


def _say(found: Replayed) -> None:
    state = found.state.value if found.state else "unknown"
    click.echo(f"{found.verdict.value:<15} {found.run_id}  {found.task}  {state}")
    if found.verdict is Verdict.DIVERGED:
        click.echo(f"  place {found.index}: recorded {found.recorded}, found {found.found}")
    else:
        click.echo(f"  {found.steps} records met as they are, then: {found.end}")
