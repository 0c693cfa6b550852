"""Keep what a body logs on its way through records that are replayed out of the log files."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from celery import signals

from .execution import current_execution

if TYPE_CHECKING:
    from .install import Commander

_NEVER_QUIET = ("celery_commander", "celery.")


class QuietReplay(logging.Filter):
    """Pass no record that a body makes while its next step or input is answered from the log.

    `commander_silence_replay` puts it on the handlers that Celery sets up; add it to handlers of your own:
    `handler.addFilter(QuietReplay())`. What Celery and the commander log is passed.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the record is to be written."""
        execution = current_execution.get()
        return (
            execution is None
            or not execution.replaying
            or record.name.startswith(_NEVER_QUIET)
            or record.name == "celery"
        )


def install_quiet(commander: Commander) -> None:
    """Put the filter on Celery's handlers when they are set up, if that is asked for."""

    def set_up(logger: logging.Logger | None = None, **_: Any) -> None:
        if logger is not None and commander.settings.silence_replay:
            for handler in logger.handlers:
                if not any(isinstance(each, QuietReplay) for each in handler.filters):
                    handler.addFilter(QuietReplay())

    uid = f"celery_commander.{id(commander)}.quiet"
    signals.after_setup_logger.connect(set_up, weak=False, dispatch_uid=uid)
    signals.after_setup_task_logger.connect(set_up, weak=False, dispatch_uid=uid)
