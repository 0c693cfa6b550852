"""Undo what an aborted run did: a Celery chain with one link a step, the last step first.

Each link claims the run, writes that it starts, calls the undo and writes that it is done. A link that finds its step
undone already does nothing, so a chain may be published again whenever its fate is unclear; an undo that was cut short
is repeated under the same key.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from celery import Celery, Task, chain
from celery.exceptions import Ignore

from celery_commander.engine import (
    Entry,
    RunAborted,
    RunHistory,
    State,
    decode,
    encode_exception,
)

from .damaged import park_damaged
from .errors import UndoNotFound, is_termination, record_exception
from .message import of_created
from .ownership import Ownership, owned
from .publishing import publish_again
from .steps import Undo

if TYPE_CHECKING:
    from .install import Commander

logger = logging.getLogger(__name__)

LINKS_AT_ONCE = 50
"""The most links of one chain; finish_compensation starts the next."""

COMPENSATE_STEP = "celery_commander.compensate_step"
FINISH_COMPENSATION = "celery_commander.finish_compensation"

BUSY_SECONDS = 1.0
"""How long a link waits when somebody else holds its run."""

LONGEST_BACKOFF_SECONDS = 60.0

ALLOWED_DEATHS = 3
"""How many tries of an undo may end with its process, beside those that fail, before its run is stuck."""


class CompensationBridge:
    """Turn what an aborted run owes into a Celery chain, the last step first: `app.commander.compensation`."""

    def __init__(self, commander: Commander) -> None:
        self._commander = commander

    def owed(self, run_id: str) -> tuple[Entry, ...]:
        """Return the steps of which the undo would run if the run were rolled back now, newest first."""
        owed: tuple[Entry, ...] = self._commander.history(run_id).owed
        return owed

    def chain(self, run_id: str) -> Any:
        """Return the chain that `start` would publish, or None where there is nothing to undo."""
        history = self._commander.history(run_id)
        if history.state is None or history.state.state is not State.ABORTED or not history.owed:
            return None
        return undo_chain(self._commander.app, history)

    def start(self, run_id: str) -> None:
        """Publish the chain that undoes what a run still owes; a run that owes nothing is settled here.

        Nothing happens to a run that is not ABORTED, and nothing is raised when the broker is away: then the run stays
        ABORTED with its undos owed, and recovery comes back to it. So it may be called again whenever a chain's fate
        is unclear: a link that finds its step undone does nothing.
        """
        history = self._commander.history(run_id)
        if history.state is None or history.state.state is not State.ABORTED:
            return
        try:
            if history.owed:
                undo_chain(self._commander.app, history).apply_async()
            else:
                _settle(self._commander, run_id)
        except Exception as error:  # noqa: BLE001  # whatever the broker raises; recovery comes back to the run
            logger.warning(
                "The undo of run %s could not be started, recovery will: %s", run_id, error
            )


def undo_chain(app: Celery, history: RunHistory) -> Any:
    """Return the chain of links for what is still owed, newest first, at most LINKS_AT_ONCE of them."""
    assert history.state is not None
    run_id, generation = history.state.run_id, history.state.generation
    links = [
        app.tasks[COMPENSATE_STEP].si(run_id, entry.step, generation).set(**_routed_as(app, entry))
        for entry in history.owed[:LINKS_AT_ONCE]
    ]
    finish = app.tasks[FINISH_COMPENSATION].si(run_id, generation)
    queue = app.commander.settings.queue
    return chain(*links, finish.set(queue=queue) if queue else finish)


def _routed_as(app: Celery, entry: Entry) -> dict[str, Any]:
    """Return the undo task's own queue and limits, so that its link runs where the undo would."""
    undo = app.tasks.get(entry.undo)
    options = app.amqp.router.route({}, entry.undo)
    queue = options.get("queue")
    routed: dict[str, Any] = {"queue": getattr(queue, "name", queue)} if queue is not None else {}
    for limit in ("time_limit", "soft_time_limit"):
        if getattr(undo, limit, None):
            routed[limit] = getattr(undo, limit)
    return routed


def register_tasks(app: Celery) -> None:
    """Register the commander's own tasks of this room on an app."""

    @app.task(name=COMPENSATE_STEP, bind=True, shared=False, ignore_result=True, max_retries=None)
    def compensate_step(self: Task, run_id: str, step: int, generation: int) -> None:
        """Undo one step of an aborted run."""
        with owned(self.app.commander, run_id) as ownership:
            wait_seconds = (
                BUSY_SECONDS if ownership is None else _undo_one(self, ownership, step, generation)
            )
        if wait_seconds is not None:
            raise self.retry(countdown=wait_seconds, max_retries=None)

    @app.task(
        name=FINISH_COMPENSATION, bind=True, shared=False, ignore_result=True, max_retries=None
    )
    def finish_compensation(self: Task, run_id: str, generation: int) -> None:
        """Settle an aborted run once nothing is owed, or start the next chain."""
        history = self.app.commander.history(run_id)
        if history.state is not None and history.state.generation == generation:
            self.app.commander.compensation.start(run_id)


def _undo_one(link: Task, ownership: Ownership, step: int, generation: int) -> float | None:
    """Undo one step under its run's lease; return the seconds after which the link is to be tried again, if so."""
    history = ownership.history
    if (
        history.state is None
        or history.state.state is not State.ABORTED
        or history.state.generation != generation
    ):
        raise Ignore("a newer undo has taken over, or the run is settled")
    if history.damage is not None:
        ownership.take_and_append(park_damaged(history, history.damage))
        raise Ignore("events of the run may be lost; it needs a person")
    entry = next((entry for entry in history.owed if entry.step == step), None)
    if entry is None:
        return None
    tries = history.undo_attempts.get(step, 0) + 1
    place = {"step": step, "generation": generation, "attempt": tries}
    if tries > ownership.commander.settings.undo_retries + ALLOWED_DEATHS:
        died = RunAborted(ownership.run_id, f"the undo of step {step} died {tries - 1} times")
        stuck = _stuck_data(entry, place, encode_exception(died))
        ownership.take_and_append(("run.stuck", stuck))
        _announce_stuck(ownership, entry, place)
        raise Ignore(str(died))
    ownership.take_and_append(("compensation.started", place))  # before the undo
    try:
        _call_undo(link.app, ownership.run_id, entry)
    except Exception as error:  # noqa: BLE001  # recorded: an undo may raise anything
        return _undo_failed(ownership, entry, place, error)
    except SystemExit as error:
        if is_termination(error):
            raise
        return _undo_failed(ownership, entry, place, error)
    ownership.append("compensation.completed", place, wait=True)
    return None


def _call_undo(app: Celery, run_id: str, entry: Entry) -> None:
    task = app.tasks.get(entry.undo)
    if task is None:
        raise UndoNotFound(run_id, entry.name, str(entry.undo))
    task(undo_of(run_id, entry))


def undo_of(run_id: str, entry: Entry) -> Undo:
    """Return what an undo is told about the step that it undoes."""
    return Undo(
        run=run_id,
        step=entry.step,
        args=decode(entry.args) if entry.args is not None else [],
        kwargs=decode(entry.kwargs) if entry.kwargs is not None else {},
        result=decode(entry.value) if entry.status == "completed" else None,
        in_doubt=entry.status != "completed",
        step_key=entry.key or f"{run_id}:{entry.step}",
        key=f"{run_id}:{entry.step}:undo",
    )


def _undo_failed(
    ownership: Ownership, entry: Entry, place: dict[str, Any], error: BaseException
) -> float | None:
    """Write down a failed try; after the last one the run is stuck, and nothing behind it is skipped silently."""
    settings = ownership.commander.settings
    tries: int = place["attempt"]
    failed = {**place, "final": tries > settings.undo_retries}

    def append(exception: Any) -> None:
        ownership.append("compensation.failed", {**failed, "exception": exception}, wait=True)

    exception = record_exception(error, append)
    logger.warning(
        "Undo %s of step %s (%s) of run %s failed, try %s.",
        *(entry.undo, entry.step, entry.name, ownership.run_id, tries),
        exc_info=error,
    )
    if not failed["final"]:
        return _backoff_seconds(settings.undo_backoff_seconds, tries)
    ownership.append("run.stuck", _stuck_data(entry, place, exception), wait=True)
    _announce_stuck(ownership, entry, place)
    logger.error("Run %s is stuck: its undo %s failed for good.", ownership.run_id, entry.undo)
    raise Ignore("the undo failed for good; the run needs a person")


def _stuck_data(entry: Entry, place: dict[str, Any], exception: Any) -> dict[str, Any]:
    """Return what a person needs to know first: which undo, of which step, and why."""
    return {**place, "name": entry.name, "undo": entry.undo, "exception": exception}


def _announce_stuck(ownership: Ownership, entry: Entry, place: dict[str, Any]) -> None:
    state = ownership.history.state
    told = {"task": state.task if state else None, "undo": entry.undo, **place}
    ownership.commander.bus.publish("run.stuck", told, run_id=ownership.run_id)


def _backoff_seconds(first_seconds: float, tries: int) -> float:
    doublings = min(tries - 1, 16)
    return min(first_seconds * float(2**doublings), LONGEST_BACKOFF_SECONDS)


def _settle(commander: Commander, run_id: str) -> None:
    """Write down that nothing is owed any more, and have the outcome told if it was not."""
    with owned(commander, run_id) as ownership:
        if ownership is None:
            return
        state = ownership.history.state
        if state is None or state.state is not State.ABORTED or ownership.history.owed:
            return
        ownership.take_and_append(("run.compensated", {"generation": state.generation}))
    told = {"task": state.task, "generation": state.generation}
    commander.bus.publish("run.compensated", told, run_id=run_id)
    if not state.delivered:
        publish_again(commander, of_created({"message": ownership.history.message}))
