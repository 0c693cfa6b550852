"""The two pages of durable runs: all of them, and one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from flower.utils.tasks import get_task_by_id
from tornado.web import HTTPError, authenticated

from celery_commander.engine import (
    Event,
    HistoryArchived,
    LeaseStatus,
    RunHistory,
    RunQuery,
    RunState,
    State,
)

from .base import Handler
from .paging import Page
from .reader import Books
from .rows import EventRow, StepRow, badge, last_holder, note, undos_of, utc

MOST_SEARCHED = 255


@dataclass(frozen=True, slots=True)
class Found:
    """What the list shows: how many there are of each state, one page, and what is to be said about it."""

    counts: Mapping[State, int]
    page: Page
    runs: Sequence[RunState]
    notice: str | None


@dataclass(frozen=True, slots=True)
class Story:
    """What one run's page shows."""

    events: Sequence[Event]
    history: RunHistory
    lease: LeaseStatus | None


class RunsPage(Handler):
    """`/durable-runs`: runs by state and task, newest first; `q` is an id or its beginning."""

    @authenticated
    async def get(self) -> None:
        """Show a page of the list, or go to the only run that is meant."""
        asked = self._asked()
        size = self.commander.settings.flower_rows
        number = self.query("page")

        def question(books: Books) -> Found:
            return find(books, asked, size=size, page=number)

        found = await self.reader.look(self.commander, question)
        if asked.id_prefix and found.page.total == 1:
            self.redirect(self.address("commander-run", found.runs[0].run_id))
            return
        self.render(
            "commander-runs.html",
            found=found,
            asked=asked,
            states=list(State),
            link=self._link,
            badge=badge,
            note=note,
            utc=utc,
        )

    def _asked(self) -> RunQuery:
        state, task, prefix = self.query("state"), self.query("task"), self.query("q")
        if state and state not in list(State):
            raise HTTPError(404, f"No run is ever in state {state}.")
        return RunQuery(
            State(state) if state else None,
            task[:MOST_SEARCHED] or None,
            prefix[:MOST_SEARCHED] or None,
        )

    def _link(self, asked: RunQuery, state: State | None, page: int = 1) -> str:
        return self.address(
            "commander-runs",
            state=state and state.value,
            task=asked.task,
            q=asked.id_prefix,
            page=page if page > 1 else None,
        )


class RunPage(Handler):
    """`/durable-run/ID`: where one run stands and everything that the log holds of it.

    What went in and came out (arguments, results, exceptions, recorded inputs, the business key) is shown only if it is
    asked for and Flower authenticates its users, and never when Flower has a `format_task`: what that hides, we cannot.
    """

    @authenticated
    async def get(self, run_id: str) -> None:
        """Show the run's state, its steps and its events, both in pages."""

        def question(books: Books) -> Story:
            return read(books, run_id)

        story = await self.reader.look(self.commander, question)
        run = story.history.state
        if run is None:
            raise HTTPError(404, f"The log has no durable run '{run_id}'")
        size = self.commander.settings.flower_rows
        steps = Page.of(self.query("steps"), size=size, total=len(story.history.entries))
        events = Page.of(self.query("events"), size=size, total=len(story.events))
        values = self._may_show_values() and self.query("values") == "1"
        voided = {event.seq: reason for event, reason in story.history.voided}
        undos = undos_of(story.history, story.events)
        entries = [story.history.entries[step] for step in sorted(story.history.entries)]
        kept: dict[str, str | int | None] = {
            "steps": steps.number, "events": events.number, "values": 1 if values else None,
        }  # fmt: skip
        self.render(
            "commander-run.html",
            run=run,
            story=story,
            claimed_by=last_holder(story.events),
            badge=badge,
            note=note,
            utc=utc,
            seen=get_task_by_id(self.application.events, run_id),
            steps=steps,
            step_rows=[StepRow.of(each, undos, values=values) for each in steps.cut(entries)],
            events=events,
            event_rows=[
                EventRow.of(each, voided.get(each.seq), values=values)
                for each in events.cut(story.events)
            ],
            values=values,
            may_show_values=self._may_show_values(),
            link=lambda **query: self.address("commander-run", run_id, **(kept | query)),
        )

    def _may_show_values(self) -> bool:
        return self.secured and not self.application.options.format_task


def find(books: Books, asked: RunQuery, *, size: int, page: str) -> Found:
    """Return one page of the runs that are looked for, after reading what is new."""
    notice = books.catch_up()
    # Of all states, so that each filter can say how many it would show.
    counts = books.ledger.counts(replace(asked, state=None))
    total = sum(counts.values()) if asked.state is None else counts[asked.state]
    cut = Page.of(page, size=size, total=total)
    return Found(counts, cut, books.ledger.find(asked, limit=size, offset=cut.offset), notice)


def read(books: Books, run_id: str) -> Story:
    """Return one run's story, from the log itself, and who holds it now if that can be known.

    Of a run that is over and was compacted away only its state is left here, and no events.
    """
    lease = books.leases.status(run_id) if books.leases is not None else None
    try:
        events = books.engine.history(run_id)
    except HistoryArchived:
        settled = books.engine.settled_state(run_id)
        return Story((), RunHistory(state=settled[0] if settled else None), lease)
    return Story(events, RunHistory.of(events), lease)
