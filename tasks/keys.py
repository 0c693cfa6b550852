"""Give a run a business key: who asks for a second run of a key that is taken gets the first one.

It takes no lock and no table. The id of a key's n-th run follows from the log, the namespace, the task, the key and n;
there is an n-th one only where the one before it has given its key back. So whoever asks at one moment asks for one id,
and of several `run.created` with one id the log counts the first.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID, uuid5

from celery import Celery
from celery.result import AsyncResult
from celery.states import PENDING, SUCCESS

from celery_commander.engine import RunHistory, RunState, State, decode

from .errors import KeyRefused
from .message import KEY_HEADER, travelling_call
from .publishing import is_durable, refuse_other_call

if TYPE_CHECKING:
    from .install import Commander

logger = logging.getLogger(__name__)

LONGEST_KEY: Final = 200

_IDS: Final = UUID("6f0c4f39-5a0e-4c0e-9d0b-0a4a3a6c1f5e")


@dataclass(frozen=True, slots=True)
class Place:
    """Say which run a key stands for; `history` is None where that one is to be made."""

    number: int
    run_id: str
    previous: str | None
    history: RunHistory | None


def id_of(commander: Commander, task: str, key: str, number: int) -> str:
    """Return the id of a key's run of that number, from 0: a UUIDv5 (RFC 9562, section 5.5).

    Another log gives another one: results of an earlier life, which a backend still holds, are not its own.

    Raises:
        LogError: the log cannot be opened.

    """
    told = [commander.engine.log_id, commander.namespace, task, key, number]
    return str(uuid5(_IDS, json.dumps(told)))


def find(commander: Commander, task: str, key: str) -> Place:
    """Look for the run that has a key, by as many looks as the number of its runs has digits in base 2, doubled.

    "Unbounded searching": J. L. Bentley, A. C. Yao, Information Processing Letters 5 (3), 1976.

    Raises:
        LogError, StoreUnavailable: it cannot be told.

    """

    def look(number: int) -> Place:
        run_id = id_of(commander, task, key, number)
        previous = id_of(commander, task, key, number - 1) if number else None
        history = commander.history(run_id)
        return Place(number, run_id, previous, history if history.state is not None else None)

    there, place = -1, look(0)
    while place.history is not None:
        if _has_it(place):
            return place
        there = place.number
        place = look(2 * there + 1)
    while place.number - there > 1:  # runs are there up to the one, and from the other on none is
        middle = look((there + place.number) // 2)
        if middle.history is None:
            place = middle
        elif _has_it(middle):
            return middle
        else:
            there = middle.number
    return place


def follower_of(commander: Commander, task: str, key: str, run_id: str) -> tuple[str, bool]:
    """Return the id of the run that follows a key's last one, `run_id`, and True; or of what came after it, and False.

    Raises:
        LogError, StoreUnavailable: it cannot be told.

    """
    place = find(commander, task, key)
    if place.run_id == run_id:
        return id_of(commander, task, key, place.number + 1), True
    if place.history is None and place.previous is not None:
        return (place.run_id, True) if place.previous == run_id else (place.previous, False)
    return place.run_id, False


def _has_it(place: Place) -> bool:
    return (
        place.history is not None and place.history.state is not None and holds(place.history.state)
    )


def holds(state: RunState) -> bool:
    """Tell whether a run has its key: while it is live, once it has committed, and until its rollback is over."""
    match state.state:
        case State.COMPENSATED:
            return False
        case State.ABORTED:
            return bool(state.owed)
        case State.STUCK:
            return state.letter is not None  # nobody has given its undo up
    return True


def install_keys(app: Celery) -> None:
    """Let every way of sending a task take `key=`: apply_async, signatures, beat entries, send_task."""
    below = app.send_task

    def send_task(name: str, *args: Any, **options: Any) -> AsyncResult:
        key = options.pop("key", None)
        if key is None:
            return below(name, *args, **options)
        key = _checked(app, name, key, options)
        commander: Commander = app.commander
        place = find(commander, name, key)
        if place.history is not None:
            call = travelling_call(*_call_of(args, options))
            refuse_other_call(commander, place.history, key, call)
            return _taken(commander, place.run_id, place.history, options)
        carried = {KEY_HEADER: {"key": key, "previous": place.previous}}
        options["headers"] = {**(options.get("headers") or {}), **carried}
        options["task_id"] = place.run_id
        return below(name, *args, **options)

    app.send_task = send_task


def _checked(app: Celery, name: str, key: object, options: Mapping[str, Any]) -> str:
    if not is_durable(app, name):
        raise KeyRefused(name, key, "only a durable task that this process knows can have a key")
    if app.commander.settings.register_on_publish == "never":
        raise KeyRefused(
            name,
            key,
            "this process registers no runs (register_on_publish is 'never') and does not look who has the key",
        )
    if options.get("task_id") is not None:
        raise KeyRefused(
            name,
            key,
            "its task id is given already, by you or by the chain, group or chord it is in; a key makes the id",
        )
    if isinstance(key, bool) or not isinstance(key, str | int | UUID):
        raise KeyRefused(name, key, "a key is text, a whole number or a UUID")
    text = str(key)
    if not 1 <= len(text) <= LONGEST_KEY:
        raise KeyRefused(name, key, f"a key has 1 to {LONGEST_KEY} characters")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise KeyRefused(name, key, "a character of it is half of a surrogate pair") from error
    return text


def _call_of(args: tuple[Any, ...], options: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return what was given to `send_task(name, args, kwargs, ...)`, by place or by name."""
    given = (*args[:2], *(options.get(name) for name in ("args", "kwargs")[len(args) :]))
    return given[0], given[1]


def _taken(
    commander: Commander, run_id: str, history: RunHistory, options: Mapping[str, Any]
) -> AsyncResult:
    logger.info("Run %s has that key already; nothing is sent.", run_id)
    result: AsyncResult = (options.get("result_cls") or commander.app.AsyncResult)(run_id)
    state = history.state
    if state is not None and state.state is State.COMMITTED and state.delivered:
        _tell_again(history, result)
    return result


def _tell_again(history: RunHistory, result: AsyncResult) -> None:
    """Store a recorded result once more where the backend has let go of it: nobody waits for ever."""
    try:
        backend = result.backend
        if backend.get_task_meta(result.id, cache=False)["status"] != PENDING:
            return
        if history.outcome is not None:
            backend.store_result(result.id, decode(history.outcome[1]), SUCCESS)
            return
        logger.warning(
            "Run %s has committed, and nobody has its result any more: neither the backend, nor the log, from which"
            " it was compacted away. Who waits for it waits in vain.",
            result.id,
        )
    except Exception as error:  # noqa: BLE001  # a backend that is away costs the answer, not the call
        logger.warning("The result of run %s was not stored again: %s", result.id, error)
