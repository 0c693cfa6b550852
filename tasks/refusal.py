"""Answer a delivery whose run cannot be recorded now: hand the message back, or run it unrecorded if so chosen."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from celery import Task
from celery.exceptions import Ignore, Reject
from kombu.exceptions import OperationalError

from celery_commander.engine import CommanderError

from .errors import ForeignStore
from .message import of_context
from .publishing import publish_as_it_was

if TYPE_CHECKING:
    from .install import Commander

logger = logging.getLogger(__name__)

PAUSE_SECONDS = 1.0
"""How long a pool process keeps a message before it is handed back, so that an outage does not become a storm."""


def unavailable(
    task: Task, error: CommanderError, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Do what `commander_on_log_unavailable` says; by default the body is not started and the message goes back."""
    commander: Commander = task.app.commander
    if commander.settings.on_log_unavailable == "degrade" and not isinstance(error, ForeignStore):
        return _run_unrecorded(task, error, args, kwargs)
    logger.error("Run %s was not started and is handed back: %s", task.request.id, error)
    time.sleep(PAUSE_SECONDS)
    try:
        publish_as_it_was(task.app, of_context(task.name, task.request))
    except OperationalError as refused:
        if task.acks_late:
            raise Reject(str(error), requeue=True) from refused
        raise error from refused
    raise Ignore(str(error))


def _run_unrecorded(
    task: Task, error: CommanderError, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    commander: Commander = task.app.commander
    logger.error("Run %s runs unrecorded and will not be replayed: %s", task.request.id, error)
    try:
        return task._commander_body(*args, **kwargs)
    finally:
        commander.note_owed(
            task.request.id, "run.degraded", {"task": task.name, "reason": str(error)}
        )
