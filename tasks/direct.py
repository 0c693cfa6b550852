"""Say that a durable task was called as a function where no run goes on: Celery's convention, and easily an oversight.

Such a call is a plain call. Inside a durable body it is part of that body: its steps and inputs are recorded as the
outer run's own, in the order in which they come, and a replay hands them out again; there is no second run. Eager calls
(`.apply()`, `task_always_eager`) are Celery's way to run a task in the caller, for tests; they are recorded no more and
no less than a call, and nothing is said of them.
"""

from __future__ import annotations

import logging

from celery import Task, current_task

from .execution import current_execution

logger = logging.getLogger(__name__)

OWN_PREFIX = "celery_commander."


def note_direct_call(task: Task) -> None:
    """Warn of a call that records nothing, once a task and process."""
    if task.name in task.app.commander.called_plainly or current_execution.get() is not None:
        return
    if (current_task.name or "").startswith(OWN_PREFIX) if current_task else False:
        return  # an undo that is durable itself is called by its link
    task.app.commander.called_plainly.add(task.name)
    logger.warning(
        "Durable task %s was called as a function: nothing of this call is recorded, and a crash loses it."
        " Send it by .delay() or .apply_async(); where a plain call is meant, call .run().",
        task.name,
    )
