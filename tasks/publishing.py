"""Stand where every message of a durable task leaves: register its run, then publish, then say so.

Celery has one place through which all publications go, whoever asks (delay, canvas, beat, send_task, retry);
its signals cannot stop anything, so the sender itself is wrapped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from celery import Celery, Signature, Task, chord, group
from celery.app.amqp import AMQP, task_message
from kombu import Exchange, Queue
from kombu.utils.imports import symbol_by_name

from celery_commander.engine import CommanderError, NewEvent, RunHistory, new_event_id

from .errors import KeyConflict, ReplaceNotSupported
from .execution import Execution, current_execution
from .message import HEADER, KEY_HEADER, Message, created_data, of_publish, travelling_call
from .travel import check_travels

if TYPE_CHECKING:
    from .install import Commander

logger = logging.getLogger(__name__)

_again: ContextVar[bool] = ContextVar("commander_publishing_again", default=False)

Send = Callable[..., Any]


class CommanderAMQP(AMQP):
    """Wrap the app's task sender."""

    def _create_task_sender(self) -> Send:
        send: Send = super()._create_task_sender()
        app = self.app

        def send_task_message(producer: Any, name: str, message: Any, **options: Any) -> Any:
            _warn_of_effect(name, message)
            if _again.get():
                return send(producer, name, message, **options)
            if not is_durable(app, name):
                result = send(producer, name, message, **options)
                app.commander.subscriber.sent(name, message[0], options)
                return result
            return _send_durable(
                app.commander, lambda m: send(producer, name, m, **options), message, options
            )

        return send_task_message


def install_sender(app: Celery) -> None:
    """Put the wrapped sender on an app; an AMQP object that was made before is changed in place."""
    below = symbol_by_name(app.amqp_cls)
    wrapped = type("AMQP", (CommanderAMQP, below), {}) if below is not AMQP else CommanderAMQP
    app.amqp_cls = wrapped
    made = app.__dict__.get("amqp")
    if made is not None:
        made.__class__ = wrapped
        made.__dict__.pop("send_task_message", None)


def is_durable(app: Celery, name: str) -> bool:
    """Return whether this process knows a durable task of that name."""
    known = app.tasks if app.finalized or app.autofinalize else app._tasks
    return hasattr(known.get(name), "_commander_body")


def refuse_replacement(task: Task, sig: Signature) -> None:
    """Return if a task may be replaced by a signature, whose last member then gets the task's own id.

    Raises:
        ReplaceNotSupported: that is a durable task; there is a run of this id already, and there is one only.

    """
    last = sig
    while (inner := _last_of(last)) is not None:
        last = inner
    if is_durable(task.app, last.task):
        raise ReplaceNotSupported(task.request.id, last.task)


def _last_of(sig: Signature) -> Signature | None:
    """Return the member of a canvas that is to give its result; None for one task, and for a group, which has none."""
    if isinstance(sig, chord):
        return sig.body
    tasks = getattr(sig, "tasks", None)
    return tasks[-1] if tasks and not isinstance(sig, group) else None


def publish_again(commander: Commander, message: Message) -> None:
    """Publish a registered run's message once more: same id, no expiry, no delay, nothing counted.

    Raises:
        kombu.exceptions.OperationalError: the broker did not take it; a later sweep tries again.

    """
    headers = {**message.headers, "expires": None, "eta": None, HEADER: _stamp(commander)}
    _publish(commander.app, message, headers)


def publish_as_it_was(app: Celery, message: Message) -> None:
    """Publish a received message once more, unchanged; nothing is registered and nothing opened."""
    _publish(app, message, message.headers)


def _publish(app: Celery, message: Message, headers: Mapping[str, Any]) -> None:
    body = (list(message.body[0]), dict(message.body[1]), message.body[2])
    options: dict[str, Any] = dict(message.options)
    if message.queue:
        options["queue"] = _queue(app, message.queue)
    else:
        options |= {
            "exchange": message.exchange or "",
            "routing_key": message.routing_key or message.queue,
        }
    token = _again.set(True)
    try:
        with app.producer_pool.acquire(block=True) as producer:
            sent = task_message(dict(headers), dict(message.properties), body, None)
            app.amqp.send_task_message(producer, message.task, sent, **options)
    finally:
        _again.reset(token)


def _queue(app: Celery, name: str) -> Queue:
    try:
        known: Queue = app.amqp.queues[name]
        return known
    except KeyError:  # the app makes no queue that it does not name itself
        return Queue(name, Exchange(""), routing_key=name)


def _send_durable(
    commander: Commander, send: Callable[[Any], Any], message: Any, options: Mapping[str, Any]
) -> Any:
    headers, properties, body, sent_event = message
    check_travels(body[0], "args")
    check_travels(body[1], "kwargs")
    headers = {**headers, **(options.get("headers") or {})}  # Celery lays the caller's own on top
    run_id = headers["id"]
    execution = current_execution.get()
    headers = {**headers, HEADER: _stamp(commander)} if _registers(commander) else headers
    stamped = task_message(headers, properties, body, sent_event)
    if execution is not None and execution.run_id == run_id:
        _pause_for_retry(execution, headers)
        return send(stamped)
    if not _registers(commander):
        return send(stamped)
    data = created_data(commander, of_publish(headers, properties, body, options))
    event_id = new_event_id(datetime.now(UTC))
    created = NewEvent("run.created", data, run_id, id=event_id)
    try:
        commander.engine.append_many([created], wait=True)  # before the broker has it
        if KEY_HEADER in headers and not _is_first(commander, run_id, event_id):
            # Another process asked for the same key at the same moment, and sends.
            call = travelling_call(body[0], body[1])
            refuse_other_call(
                commander, commander.history(run_id), headers[KEY_HEADER]["key"], call
            )
            return None
        result = send(stamped)
    except BaseException as error:
        _note_not_sent(commander, run_id, event_id, error, awaited=KEY_HEADER in headers)
        raise
    commander.engine.append("task.sent", {"task": headers["task"]}, run_id=run_id, wait=False)
    return result


def refuse_other_call(commander: Commander, history: RunHistory, key: str, call: list[Any]) -> None:
    """Return if the run that has a key was sent with these arguments, or was compacted away and nobody can tell.

    Raises:
        KeyConflict: it was sent with others; one of the two callers means another thing by the key.

    """
    body = history.message.get("body")
    if body is None or list(body[:2]) == call:
        return
    digests = (commander.store.digest(list(body[:2])), commander.store.digest(call))
    task, run_id = history.created["task"], history.message["headers"]["id"]
    raise KeyConflict(task, key, run_id, digests)


def _is_first(commander: Commander, run_id: str, event_id: str) -> bool:
    """Tell whether a run was made by this `run.created`, and not by an earlier one."""
    first = next(iter(commander.engine.history(run_id)), None)
    return first is not None and first.id == event_id


def _warn_of_effect(name: str, message: Any) -> None:
    """Tell the log file of a message that leaves a body outside its steps: a replay sends it once more."""
    execution = current_execution.get()
    if (
        execution is None
        or execution.step_key is not None
        or message[0].get("id") == execution.run_id
    ):
        return
    logger.warning(
        "Run %s sent %s outside a step: a replay sends it again.", execution.run_id, name
    )


def _registers(commander: Commander) -> bool:
    return commander.settings.register_on_publish != "never"


def _stamp(commander: Commander) -> dict[str, Any]:
    return {"log_id": commander.engine.log_id}


def _note_not_sent(
    commander: Commander, run_id: str, event_id: str, error: BaseException, *, awaited: bool
) -> None:
    """Cancel a run whose message did not leave, so that a caller who tries again does not get two.

    That its registration raised does not say that it was not written: the wait for the disk may have failed. A
    second publication under an id that is taken made no run, and so cancels none. `awaited` says that others may have
    been given the run's result, because they asked for its key meanwhile: they are told.
    """
    reason = f"not sent: {type(error).__name__}"
    data = {"reason": reason, "sent": False, "awaited": awaited}
    try:
        history = commander.engine.history(run_id)
        first = next((event for event in history if event.type == "run.created"), None)
        if first is None or first.id != event_id:
            return
        commander.engine.append("run.cancelled", data, run_id=run_id, wait=False)
    except CommanderError as unrecorded:
        logger.error(
            "Run %s was not sent, and that could not be written down yet; it is as soon as the log takes it,"
            " should this process live until then: %s",
            *(run_id, unrecorded),
        )
        commander.note_owed(run_id, "run.cancelled", data)


def _pause_for_retry(execution: Execution, headers: Mapping[str, Any]) -> None:
    """Write the pause and give the lease back before the message can reach another worker."""
    if headers["task"] != execution.task_name:
        raise ReplaceNotSupported(execution.run_id, headers["task"])
    due = headers.get("eta") or execution.commander.app.now().isoformat()
    again = execution.raised.again(execution.state)
    told = {"kind": "retry", "due": due, "reason": None, "again": again}
    execution.append("run.paused", told, wait=True)
    execution.paused = True
    execution.release()
