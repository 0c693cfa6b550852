"""Wait between two tries of a step, for as long as the run may go on here at all."""

from __future__ import annotations

import mmap
import time
from typing import TYPE_CHECKING, Any, Final

from celery import Celery, signals
from celery.bootsteps import StartStopStep

from .errors import RunStopped, WorkerStops

if TYPE_CHECKING:
    from .execution import Execution

LOOK_SECONDS: Final = 0.5
"""How long a wait may go on before it is looked whether the run may still go on here."""

_page: mmap.mmap | None = None
"""One byte, shared by a worker's main process with the pool processes that it forks; not 0 once the worker stops."""


def wait(execution: Execution, seconds: float) -> None:
    """Return after that time.

    Raises:
        StopRun: the worker stops, the run is to be cancelled, or somebody else has taken it.

    """
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        _look(execution)
        time.sleep(min(left, LOOK_SECONDS))
    if seconds > 0:
        _look(execution)


def _look(execution: Execution) -> None:
    if is_stopping():
        raise execution.stop(WorkerStops(execution.run_id))
    execution.last_look_or_stop()
    state = execution.commander.history(execution.run_id).state
    if state is not None and state.cancel_requested is not None:
        reason = f"its end was asked for ({state.cancel_requested})"
        raise execution.stop(RunStopped(execution.run_id, reason))


def is_stopping() -> bool:
    """Return whether the worker that this process belongs to has been told to stop."""
    return _page is not None and _page[0] != 0


class StopStep(StartStopStep):
    """Make the shared byte before the pool is, and set it whichever way the worker is stopped."""

    def __init__(self, parent: Any, **options: Any) -> None:
        global _page  # one worker a process; forked children inherit it
        _page = mmap.mmap(-1, 1)
        super().__init__(parent, **options)

    def close(self, parent: Any) -> None:
        """Set the byte: the worker begins to stop, and its pool may still work."""
        _set()

    def terminate(self, parent: Any) -> None:
        """Set the byte: the worker is torn down."""
        _set()


def install_waiting(app: Celery) -> None:
    """Let the waits of an app's workers hear that the worker stops."""
    app.steps["worker"].add(StopStep)
    signals.worker_shutting_down.connect(_asked, weak=False, dispatch_uid="celery_commander.waits")


def _asked(**_: Any) -> None:
    """Set the byte at once; this is called inside a signal handler."""
    _set()


def _set() -> None:
    if _page is not None:
        _page[0] = 1
