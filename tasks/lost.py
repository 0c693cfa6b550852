"""Notice a step that is called where its run cannot be seen."""

from __future__ import annotations

import threading

from celery import current_task

from .errors import RunStopped

running_threads: dict[int, str] = {}
"""The threads of this process in which a body goes on, with its run."""


def refuse_lost_thread(name: str) -> None:
    """Return when a step may be a plain call here.

    A thread that a body started does not see the body's run: its effect would happen unrecorded, and again at a replay.
    Celery's own worker threads have a current task and are not meant.

    Raises:
        RunStopped: a run goes on in this process, and this thread belongs to no task.

    """
    others = [
        run_id for ident, run_id in list(running_threads.items()) if ident != threading.get_ident()
    ]
    if others and not current_task:
        raise RunStopped(
            others[0], f"{name} was called in a thread of its own; call it from the body"
        )
