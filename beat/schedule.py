"""Say which maintenance tasks a beat sends, and how often."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from celery_commander.engine import Settings
from celery_commander.tasks import Commander, TaskSettings

_PREFIX = "celery_commander."


def schedule_entries(
    settings: Commander | TaskSettings, engine: Settings | None = None
) -> dict[str, dict[str, Any]]:
    """Return entries for `app.conf.beat_schedule`, by the tasks' own names.

    A commander's plain `celery beat` has them by itself; this is for schedulers that are filled by hand. Given
    `TaskSettings`, the engine's settings come second (they say whether there are anchors to write).

    An entry's message expires after one interval, so that a worker which comes back after a night meets one of each
    kind and not a backlog. What a task answers is not stored.
    """
    if isinstance(settings, Commander):
        return schedule_entries(settings.settings, settings.engine_settings)
    if not settings.schedule:
        return {}
    return {
        _PREFIX + name: _entry(_PREFIX + name, seconds, settings.queue)
        for name, seconds in _intervals(settings, engine)
        if seconds
    }


def _intervals(
    settings: TaskSettings, engine: Settings | None
) -> Iterator[tuple[str, float | None]]:
    yield "check_health", settings.health_check_seconds
    yield "take_snapshot", settings.snapshot_seconds
    yield "compact_log", settings.compaction_seconds
    yield "verify_log", settings.verify_seconds
    yield "sweep", settings.beat_sweep_seconds
    if engine is not None and engine.anchor_directory is not None:
        yield "write_anchor", settings.anchor_seconds


def _entry(task: str, seconds: float, queue: str | None) -> dict[str, Any]:
    options: dict[str, Any] = {"expires": seconds, "ignore_result": True}
    if queue:
        options["queue"] = queue
    return {"task": task, "schedule": timedelta(seconds=seconds), "options": options}
