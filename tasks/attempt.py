"""Perform one delivery of a durable task: claim its run, execute the body or answer with what is recorded.

What leaves here is what Celery acts on: a value or an exception is the run's outcome and is on disk before Celery hears
of it; Ignore says that this delivery has nothing to tell.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any, NoReturn

from celery import Task
from celery.exceptions import Ignore, Reject, Retry

from celery_commander.engine import (
    InvalidEvent,
    LogError,
    NonDeterministic,
    RunAborted,
    RunHistory,
    State,
    StepInDoubt,
    StoreUnavailable,
    UnreadableValue,
    UnrecordableValue,
    decode,
    decode_exception,
    encode,
)

from . import delivery, refusal
from .canvas_values import as_result
from .checkpoints import named, restart_of
from .claims import Claimed, Finished, Refused, claim
from .ends import check_storable
from .errors import (
    UNRECORDED,
    BodyExited,
    ForeignStore,
    StopRun,
    VerificationFailed,
    is_recordable_end,
    is_termination,
    record_exception,
)
from .execution import Execution, current_execution
from .lost import running_threads
from .message import of_context, of_history
from .ownership import Ownership
from .publishing import publish_again
from .verifying import conclude

if TYPE_CHECKING:
    from .install import Commander

logger = logging.getLogger(__name__)


def perform(task: Task, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Perform the delivery that Celery's tracer has put on the task's request stack."""
    commander: Commander = task.app.commander
    request = task.request
    try:
        answer = claim(commander, request.id, of_context(task.name, request), request.hostname)
    except InvalidEvent:
        raise  # it would be refused again and again
    except (LogError, StoreUnavailable, ForeignStore) as error:
        return refusal.unavailable(task, error, args, kwargs)
    match answer:
        case Refused(reason=reason):
            logger.info("Run %s: this delivery is ignored: %s.", request.id, reason)
            raise Ignore(reason)
        case Finished(lease=lease, history=history):
            ownership = commander.live[request.id] = Ownership(commander, lease, history)
            ownership.outcome = history.state.state if history.state else None
            return _recorded_outcome(history)
        case Claimed(execution=execution):
            return _execute(task, execution, args, kwargs)


def is_in_step() -> bool:
    """Return whether a step of some run is being called here."""
    execution = current_execution.get()
    return execution is not None and execution.step_key is not None


def is_inside(run_id: str) -> bool:
    """Return whether this very run goes on here: its body calls its own task as a function."""
    execution = current_execution.get()
    return execution is not None and execution.run_id == run_id


def _recorded_outcome(history: RunHistory) -> Any:
    """Return or raise what a finished run came to; one that was cancelled unstarted has no more than a reason."""
    state = history.state
    assert state is not None
    if history.outcome is None:
        raise RunAborted(state.run_id, state.cancel_requested or "cancelled")
    kind, value = history.outcome
    if kind == "exception":
        raise decode_exception(value)
    return decode(value)


def _execute(
    task: Task, execution: Execution, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    execution.commander.live[execution.run_id] = execution
    token = current_execution.set(execution)
    running_threads[threading.get_ident()] = execution.run_id
    try:
        result = as_result(task._commander_body(*args, **kwargs))
        return _commit(task, execution, conclude(task, execution, result))
    except StopRun as stop:
        _end_stopped(execution, stop.error)
    except (Retry, Ignore, Reject) as control:
        _end_controlled(execution, control)
        raise
    except Exception as error:  # noqa: BLE001  # raised again there, unless the run has its end already
        return _after_error(execution, error)
    except BaseException as error:
        if is_termination(error):
            raise  # the process ends, the run does not: recovery decides
        code = error.code if isinstance(error, SystemExit) else repr(error)
        exited = BodyExited(execution.run_id, code)
        _abort(execution, exited, "exception")
        raise exited from error
    finally:
        running_threads.pop(threading.get_ident(), None)
        current_execution.reset(token)


def _after_error(execution: Execution, error: Exception) -> Any:
    """Follow an exception that left the body; a limit may have fallen just behind the body's recorded end."""
    state = execution.state
    if state is not None and state.state is State.COMMITTED:
        execution.outcome = State.COMMITTED
        return _recorded_outcome(execution.commander.history(execution.run_id))
    if execution.stopped is not None or execution.paused:
        _end_stopped(execution, execution.stopped or error)
    if execution.has_more_recorded and is_recordable_end(error):
        found = f"the body raised {type(error).__name__}: {error}"
        recorded = "more steps or inputs"
        _end_stopped(
            execution, NonDeterministic(execution.run_id, execution.position, recorded, found)
        )
    _abort(
        execution, error, "verification" if isinstance(error, VerificationFailed) else "exception"
    )
    raise error


def _commit(task: Task, execution: Execution, result: Any) -> Any:
    """Write the result down and wait for it; what Celery then stores is what was recorded."""
    encoded = encode(result, path="result")
    recorded = decode(encoded)
    check_storable(task, recorded)
    try:
        execution.append("run.committed", {"result": encoded}, wait=True)
    except UNRECORDED as error:
        raise execution.stop(error) from error
    execution.outcome = State.COMMITTED
    return recorded


def _abort(execution: Execution, error: BaseException, reason: str) -> None:
    """Write down that the run failed, before Celery hears of it; what is owed is undone once Celery was told."""
    in_doubt = list(execution.state.open_steps) if execution.state else []
    data = {"reason": reason, "in_doubt": in_doubt, "generation": 1}
    record_exception(error, lambda it: _append_abort(execution, data | {"exception": it}))
    execution.outcome = State.ABORTED
    _announce(execution, "run.aborted", {"reason": reason, "in_doubt": in_doubt})


def _announce(execution: Execution, key: str, data: dict[str, Any]) -> None:
    told = {"task": execution.task_name, "by": "attempt", **data}
    execution.commander.bus.publish(key, told, run_id=execution.run_id)


def _append_abort(execution: Execution, data: dict[str, Any]) -> None:
    try:
        execution.append("run.aborted", data, wait=True)
    except UNRECORDED as unrecorded:
        _end_stopped(execution, unrecorded)
    except InvalidEvent:
        raise
    except Exception:  # noqa: BLE001  # a limit, in the middle of it; what stands decides
        if execution.state is None or execution.state.state is not State.ABORTED:
            execution.append("run.aborted", data, wait=True)  # a limit struck before it was written
            return
        logger.warning("Run %s: a limit struck while its abort was written.", execution.run_id)


def _end_stopped(execution: Execution, error: Exception) -> NoReturn:
    """End an attempt that may not go on; the run waits for its new owner, for recovery, or for a person."""
    match error:
        case StepInDoubt():
            if not execution.parks(error.step):
                _abort(execution, error, "in doubt")
                raise error
            _park(execution, "doubt", str(error))
        case NonDeterministic() | UnreadableValue():
            _restart_or_park(execution, error)
        case UnrecordableValue() | InvalidEvent():
            _abort(execution, error, "exception")
            raise error
        case _:
            logger.warning("Run %s stops here: %s", execution.run_id, error)
            _let_go(execution)
    raise Ignore(str(error))


def _restart_or_park(execution: Execution, error: NonDeterministic | UnreadableValue) -> None:
    """Begin at a checkpoint what cannot be replayed; without one a person must look. Nothing is undone for it."""
    checkpoint, why_none = restart_of(execution)
    if checkpoint is None:
        _park(execution, "version", f"{error} No restart: {why_none}.")
        return
    logger.warning("Run %s begins at checkpoint %s: %s", execution.run_id, checkpoint.id, error)
    place = named(checkpoint, conflict=True)
    data = {"reason": "checkpoint", "death": False, "due": None, "checkpoint": place}
    try:
        execution.append("run.requeued", data | {"why": str(error)}, wait=True)
    except UNRECORDED as unrecorded:
        logger.warning("Run %s could not be requeued: %s", execution.run_id, unrecorded)
        _let_go(execution)
        return
    _let_go(execution)
    try:
        publish_again(execution.commander, of_history(execution.history))
    except Exception as unsent:  # noqa: BLE001  # whatever the broker raises, the decision stands in the log
        logger.error(
            "The message of run %s was not sent, recovery will: %s", execution.run_id, unsent
        )


def _park(execution: Execution, kind: str, reason: str) -> None:
    logger.error("Run %s is parked (%s): %s", execution.run_id, kind, reason)
    try:
        execution.append("run.paused", {"kind": kind, "due": None, "reason": reason}, wait=True)
        _announce(execution, "run.parked", {"reason": kind})
    except UNRECORDED as error:
        logger.warning("Run %s could not be parked: %s", execution.run_id, error)
    _let_go(execution)


def _end_controlled(execution: Execution, control: Exception) -> None:
    """Follow a body that told Celery to retry, ignore or reject its message."""
    if execution.paused:
        _let_go(execution)  # the pause was written when the body called retry()
        if not isinstance(control, Retry):
            # Its message did not leave; recovery sends it when it is due.
            raise Ignore("the retry goes on from the log") from control
    elif isinstance(control, Reject) and control.requeue:
        data = {"reason": "rejected", "death": False, "due": None}
        _append_or_stop(execution, "run.requeued", data)
        _let_go(execution)
    elif isinstance(control, Ignore):
        _append_or_stop(execution, "run.committed", {"result": encode(None)})
        execution.outcome = State.COMMITTED
        delivery.told(execution.commander, execution.run_id)
    else:
        _abort(execution, control, "exception")
        delivery.told(
            execution.commander, execution.run_id, failure=control
        )  # Celery's main process tells it


def _append_or_stop(execution: Execution, event_type: str, data: dict[str, Any]) -> None:
    if execution.stopped is not None:
        _end_stopped(execution, execution.stopped)
    try:
        execution.append(event_type, data, wait=True)
    except UNRECORDED as unrecorded:
        _end_stopped(execution, unrecorded)


def _let_go(execution: Execution) -> None:
    execution.commander.live.pop(execution.run_id, None)
    execution.release()
