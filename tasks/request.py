"""See a durable task's message as the worker's main process does: register it at receipt, and judge nothing.

When a pool process is lost or ended by a limit, the main process only notes it. The verdict on a run is recovery's
alone; two verdicts would fire the success path and the errbacks of one run.
"""

from __future__ import annotations

import logging
from typing import Any

from billiard.einfo import ExceptionWithTraceback
from billiard.exceptions import Terminated, TimeLimitExceeded, WorkerLostError
from celery.worker.request import Request
from celery.worker.state import task_ready

from celery_commander.engine import CommanderError

from .delivery import note_told
from .losses import note_of_loss
from .message import HEADER, created_data, of_context

logger = logging.getLogger(__name__)


class DurableRequest(Request):
    """Replace Celery's verdicts on lost and limited processes by notes for recovery."""

    def __init__(self, message: Any, **options: Any) -> None:
        super().__init__(message, **options)
        if HEADER not in self._request_dict:
            self._register()

    def on_timeout(self, soft: bool, timeout: float) -> Any:
        """Note a hard limit as a decision: the run is aborted and undone, once its process is gone."""
        if soft:
            return super().on_timeout(soft, timeout)
        task_ready(self)
        logger.error(
            "Hard time limit (%ss) exceeded for run %s; it is aborted and undone.", timeout, self.id
        )
        self._note("run.cancelled", {"reason": "time limit", "sent": True})
        self._leave_to_recovery()
        return None

    def on_failure(
        self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False
    ) -> Any:
        """Leave a lost process to recovery; everything else is Celery's to handle."""
        error = exc_info.exception
        if isinstance(error, ExceptionWithTraceback):
            error = error.exc
        if not _is_loss(error):
            return super().on_failure(
                exc_info, send_failed_event=send_failed_event, return_ok=return_ok
            )
        task_ready(self)
        logger.warning(
            "The process of run %s was lost (%s); recovery decides what becomes of it.",
            self.id,
            error,
        )
        self._note("task.failed", note_of_loss(error))
        self._leave_to_recovery()
        return None

    def _announce_revoked(self, reason: str, terminated: bool, signum: Any, expired: bool) -> None:
        self._note("run.cancelled", {"reason": reason, "sent": True})
        super()._announce_revoked(reason, terminated, signum, expired)
        try:
            note_told(self._app.commander, self.id)
        except CommanderError as error:
            logger.error("That Celery was told of run %s was not written down: %s", self.id, error)

    def _register(self) -> None:
        commander = self._app.commander
        try:
            _, _, embed = self._payload
            known = {**self._request_dict, **(embed or {})}
            message = of_context(self._type, known)
            if commander.history(self.id).state is None:
                data = created_data(commander, message)
                commander.engine.append("run.created", data, run_id=self.id, wait=True)
        except CommanderError as error:
            logger.error(
                "Run %s could not be registered at receipt, its process will try: %s",
                self.id,
                error,
            )

    def _note(self, event_type: str, data: dict[str, Any]) -> None:
        try:
            self._app.commander.engine.append(
                event_type, data, run_id=self.id, wait=event_type.startswith("run.")
            )
        except CommanderError as error:
            logger.error("%s of run %s could not be written down: %s", event_type, self.id, error)

    def _leave_to_recovery(self) -> None:
        if self.task.acks_late:
            self.acknowledge()
        self._app.commander.nudge()


def _is_loss(error: BaseException) -> bool:
    return isinstance(
        error, WorkerLostError | TimeLimitExceeded | Terminated | SystemExit | KeyboardInterrupt
    )
