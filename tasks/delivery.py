"""Keep outcome and delivery apart: a run has an outcome when the log says so, and is delivered when Celery was told.

Celery publishes callbacks and the next link of a chain and stores the result after the body has returned. A worker that
dies in between leaves a finished run that nobody was told of; recovery publishes it again, and the taker tells.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from celery_commander.engine import LogError, State, StoreUnavailable

from .errors import UNRECORDED
from .ownership import owned

if TYPE_CHECKING:
    from .install import Commander

FINISHED = (State.COMMITTED, State.COMPENSATED, State.STUCK)

logger = logging.getLogger(__name__)


def told(commander: Commander, run_id: str, *, failure: BaseException | None = None) -> None:
    """Note that Celery has published and stored a run's outcome; then start what undoes it, if it failed.

    Called from Celery's own hooks, which must not fail for it: what cannot be written now is found by recovery.
    """
    ownership = commander.live.pop(run_id, None)
    if ownership is None:
        return
    try:
        if _outcome_was_told(ownership.outcome, failure):
            ownership.append("run.delivered", {"outcome": str(ownership.outcome)}, wait=False)
    except (*UNRECORDED, LogError, StoreUnavailable) as error:
        logger.warning(
            "The delivery of run %s could not be written down, it will be repeated: %s",
            run_id,
            error,
        )
    finally:
        ownership.release()
    if ownership.outcome is State.ABORTED:
        commander.compensation.start(run_id)


def _outcome_was_told(outcome: State | None, failure: BaseException | None) -> bool:
    """Return whether what Celery told is what the run came to; a committed run that it called failed was not told."""
    return outcome is not None and (outcome is not State.COMMITTED or failure is None)


def note_told(commander: Commander, run_id: str) -> None:
    """Note that Celery itself has told the end of a run that is over, as it does for a revoked one."""
    with owned(commander, run_id) as ownership:
        state = ownership.history.state if ownership else None
        if ownership and state and state.state in FINISHED and not state.delivered:
            ownership.take_and_append(("run.delivered", {"outcome": str(state.state)}))


def forget(commander: Commander, run_id: str) -> None:
    """Let go of a run whose hooks Celery never called, because its result backend failed; recovery tells later.

    Another thread of this pool may be executing the run, while this one only refused a duplicate of its message.
    """
    ownership = commander.live.get(run_id)
    if ownership is not None and ownership.thread_id == threading.get_ident():
        del commander.live[run_id]
        logger.warning(
            "Celery could not tell the outcome of run %s; it will be told again.", run_id
        )
        ownership.release()
