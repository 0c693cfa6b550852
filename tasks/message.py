"""Keep a task's whole message, so that it can be published again when the broker has lost it.

The body is kept as the JSON that travels, not as Python values: what comes back out of the log is byte for byte what
a worker would have received.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from celery.utils.time import maybe_make_aware
from kombu.exceptions import EncodeError
from kombu.utils import json as kombu_json

from celery_commander.engine import RunHistory, UnrecordableValue, encode

if TYPE_CHECKING:
    from .install import Commander

KEY_HEADER = "commander_key"
"""The header that carries a run's business key, and the run that had it before."""

HEADER = "commander"
"""The header that says in which log a message's run is registered."""

KEPT_OPTIONS = ("priority", "serializer", "compression", "delivery_mode", "exchange_type")
"""Publishing options that are plain values and still right at a second publication; an expiry is not."""

_HEADERS = (
    "lang", "task", "id", "shadow", "eta", "expires", "group", "group_index", "retries", "timelimit", "root_id",
    "parent_id", "argsrepr", "kwargsrepr", "origin", "ignore_result", "replaced_task_nesting", "stamped_headers",
    "stamps", HEADER, KEY_HEADER,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Message:
    """Hold one task message; `body` is (args, kwargs, embed) as Celery's protocol 2 has it."""

    headers: Mapping[str, Any]
    properties: Mapping[str, Any]
    body: tuple[Any, Any, Any]
    exchange: str | None = None
    routing_key: str | None = None
    queue: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def task(self) -> str:
        """Return the task's name."""
        return str(self.headers["task"])

    @property
    def run_id(self) -> str:
        """Return the run's id."""
        return str(self.headers["id"])


def of_publish(
    headers: Mapping[str, Any], properties: Mapping[str, Any], body: Any, options: Mapping[str, Any]
) -> Message:
    """Return the message that is about to be published with these options."""
    queue, exchange = options.get("queue"), options.get("exchange")
    return Message(
        headers=headers,
        properties=properties,
        body=tuple(body),
        exchange=getattr(exchange, "name", exchange) or None,
        routing_key=options.get("routing_key"),
        queue=getattr(queue, "name", queue),
        options={key: options[key] for key in KEPT_OPTIONS if options.get(key) is not None},
    )


def of_context(task: str, context: Any) -> Message:
    """Return the message behind a request, as far as the request still knows it."""
    known: Mapping[str, Any] = context if isinstance(context, Mapping) else vars(context)
    headers = {key: known.get(key) for key in _HEADERS if key in known} | (
        known.get("headers") or {}
    )
    headers |= {"task": task, "id": known["id"], "lang": "py"}
    delivery = known.get("delivery_info") or {}
    embed = {key: known.get(key) for key in ("callbacks", "errbacks", "chain", "chord")}
    priority = delivery.get("priority")
    return Message(
        headers=headers,
        properties={
            "correlation_id": known.get("correlation_id") or known["id"],
            "reply_to": known.get("reply_to") or "",
        },
        body=(list(known.get("args") or ()), dict(known.get("kwargs") or {}), embed),
        exchange=delivery.get("exchange") or None,
        routing_key=delivery.get("routing_key"),
        # Without an exchange a routing key is the name of the queue.
        queue=None if delivery.get("exchange") else delivery.get("routing_key"),
        options={} if priority is None else {"priority": priority},
    )


def created_data(commander: Commander, message: Message) -> dict[str, Any]:
    """Return what `run.created` records of a message.

    Raises:
        UnrecordableValue: an argument that JSON cannot carry; it is named.

    """
    keyed = message.headers.get(KEY_HEADER) or {}
    kept = {
        "headers": _travelling(dict(message.headers), "headers"),
        "properties": _travelling(dict(message.properties), "properties"),
        "body": _body(message),
        "exchange": message.exchange,
        "routing_key": message.routing_key,
        "queue": message.queue,
        "options": dict(message.options),
    }
    return {
        "task": message.task,
        "message": kept,
        "namespace": commander.namespace,
        "due": _due(commander, message.headers.get("eta")),
        "key": keyed.get("key"),
        "previous": keyed.get("previous"),
    }


def travelling_call(args: Any, kwargs: Any) -> list[Any]:
    """Return the arguments of a call as its message carries them: plain JSON, comparable.

    Raises:
        UnrecordableValue: an argument that JSON cannot carry.

    """
    call: list[Any] = _travelling([list(args or ()), dict(kwargs or {})], "the message")
    return call


def _due(commander: Commander, eta: str | None) -> str | None:
    """Return an ETA as a moment in UTC; one without a zone is UTC, as Celery's workers read it."""
    if eta is None:
        return None
    moment = maybe_make_aware(datetime.fromisoformat(eta), commander.app.timezone)
    return str(moment.astimezone(UTC).isoformat())


def as_new_run(message: Message, run_id: str) -> Message:
    """Return the message of a run that goes once more under a fresh id.

    Its callbacks and the rest of its chain go along. A chord or group that the first run was counted in has had its
    answer from that one, and is not counted again.
    """
    old_id = message.run_id
    headers = {**message.headers, "id": run_id, "retries": 0, "eta": None, "expires": None}
    headers |= {"group": None, "group_index": None}
    if headers.get("root_id") in (None, old_id):
        headers["root_id"] = run_id
    if headers.get(KEY_HEADER):
        headers[KEY_HEADER] = {**headers[KEY_HEADER], "previous": old_id}
    args, kwargs, embed = message.body
    return dataclasses.replace(
        message,
        headers=headers,
        properties={**message.properties, "correlation_id": run_id},
        body=(args, kwargs, {**(embed or {}), "chord": None}),
    )


def of_created(created: Mapping[str, Any]) -> Message:
    """Return the message that `run.created` recorded: the opposite of created_data."""
    kept = created["message"]
    return Message(
        headers=_arrived(kept["headers"]),
        properties=_arrived(kept["properties"]),
        body=tuple(_arrived(kept["body"])),
        exchange=kept["exchange"],
        routing_key=kept["routing_key"],
        queue=kept["queue"],
        options=kept["options"],
    )


def of_history(history: RunHistory) -> Message:
    """Return a run's message as it is sent once more: it counts the retries that its body has asked for."""
    message = of_created(history.created)
    return dataclasses.replace(message, headers={**message.headers, "retries": history.retries})


def _body(message: Message) -> Any:
    args, kwargs, _ = message.body
    try:
        return _travelling(list(message.body), "the message")
    except UnrecordableValue:
        encode(list(args), path="args")  # names the argument
        encode(dict(kwargs), path="kwargs")
        raise


def _travelling(value: Any, what: str) -> Any:
    try:
        return json.loads(kombu_json.dumps(value), parse_constant=_refuse_constant)
    except (EncodeError, TypeError, ValueError, RecursionError) as error:
        raise UnrecordableValue(
            what, type(value).__name__, f"its message cannot travel as JSON ({error})"
        ) from error


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _arrived(value: Any) -> Any:
    return kombu_json.loads(json.dumps(value))
