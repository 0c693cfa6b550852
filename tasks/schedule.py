"""Put the maintenance tasks into an app's schedule at the moment its beat starts, and not before.

That moment is after everything is imported and before the scheduler reads `beat_schedule`, so the app may set its own
schedule wherever it likes. Of two entries of one name the app's wins: `beat_schedule["celery_commander.sweep"]` there
replaces ours. A `beat.Service` that is started by hand, by neither command, is filled by hand as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery import Celery, bootsteps
from kombu.utils.imports import symbol_by_name

if TYPE_CHECKING:
    from .install import Commander

ENTRIES = "celery_commander.beat:schedule_entries"
"""By name: beat stands above this room."""


class BeatMixin:
    """Complete the schedule of `celery beat`."""

    app: Celery

    def init_loader(self) -> None:
        """Import the app's modules as Celery does, then add what they do not schedule themselves."""
        super().init_loader()  # type: ignore[misc]  # of Celery's Beat, over which this is put
        complete_schedule(self.app)


class ScheduleStep(bootsteps.Step):
    """Complete the schedule of `celery worker -B` before its beat is started."""

    def __init__(self, worker: Any, beat: bool = False, **kwargs: Any) -> None:
        super().__init__(worker, **kwargs)
        if beat:
            complete_schedule(worker.app)


def install_schedule(app: Celery) -> None:
    """Hook the schedule of an app into both of Celery's ways to run a beat."""
    app.steps["worker"].add(ScheduleStep)
    app.Beat = type("Beat", (BeatMixin, app.Beat), {})


def complete_schedule(app: Celery) -> None:
    """Add the commander's entries to an app's schedule, beside and below its own."""
    app.conf.beat_schedule = {**entries_of(app.commander), **(app.conf.beat_schedule or {})}


def entries_of(commander: Commander) -> dict[str, Any]:
    """Return the commander's own entries."""
    entries: dict[str, Any] = symbol_by_name(ENTRIES)(commander)
    return entries
