"""Answer probes: `/health` tells whether the log takes events, `/health/detailed` how everything is.

Both answer without a login, because probes have none, and then with numbers only: no ids, no names, no reasons. The
reasons are for users that Flower has authenticated; where it runs without `--basic-auth` and `--auth` nobody is one.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from celery_commander.engine import CommanderError, Health, HealthReport, LogUnreadable, unopened

from ..health import document
from .base import Handler
from .reader import may_write

if TYPE_CHECKING:
    from ..install import Commander

logger = logging.getLogger(__name__)


class Liveness(Handler):
    """`/health`: 200 unless the log is poisoned, broken or not writable; then 503.

    A backlog, a dead letter or a missing worker does not make it fail: a restart would mend none of them.
    """

    async def get(self) -> None:
        """Answer with a status alone."""
        commander = self.commander
        failing = await self.reader.ask(lambda: _why_failing(commander))
        self.say({"status": "failing" if failing else "ok"}, failing=failing is not None)

    head = get


class DetailedHealth(Handler):
    """`/health/detailed`: the whole report as JSON; 503 when it is unhealthy."""

    async def get(self) -> None:
        """Answer with numbers, and for an authenticated user with the reasons."""
        anonymous = not self.is_known_user()
        commander = self.commander
        report = await self.reader.ask(lambda: _report(commander))
        self.say(document(report, anonymous=anonymous), failing=report.status is Health.UNHEALTHY)

    head = get


def _why_failing(commander: Commander) -> str | None:
    try:
        if not may_write(commander):
            return None  # whether its owner can write is not for this user to find out
    except LogUnreadable:
        return None  # no log is no broken log
    failing = commander.health.problem()
    if failing is not None:
        logger.warning("/health fails: %s", failing)
    return failing


def _report(commander: Commander) -> HealthReport:
    """Return the report, without making a log where there is none."""
    try:
        if may_write(commander):
            return commander.health.report()
        path = commander.engine_settings.event_sourcing_wal
        return unopened(LogUnreadable(path, "it belongs to another user: run Flower as that one"))
    except CommanderError as error:
        return unopened(error)
