"""Write down what a step raised, so that a replay raises it again and the same ``except`` catches it.

An exception is rebuilt without running its class's own ``__init__``: that one often composes a message, and would
compose it a second time. Python's own part of it is filled in from ``args``, the rest from its attributes. Only a
class that says by ``__reduce__`` how it wants to be rebuilt is called, with what it said. Classes are looked up in
modules that are imported already, and only subclasses of Exception are taken; for all others there is
:class:`RecordedException`. Tracebacks, causes and contexts are not kept.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

from .errors import RecordedException, UnrecordableValue
from .values import decode, encode, find_class

TEXT_MAX = 10_000
"""How many characters of a message, or of the repr that stands for something unrecordable, are kept."""


def encode_exception(error: BaseException) -> dict[str, Any]:
    """Return the JSON form of an exception; never refuses one.

    What cannot be recorded in its arguments is replaced by its repr, in its attributes it is left out.
    """
    cls = type(error)
    call, arguments, state = _parts(error)
    return {
        "type": f"{cls.__module__}:{cls.__qualname__}",
        "message": _safely(str, error),
        "args": [_encode_or_repr(item) for item in arguments],
        "call": call,
        "state": _encode_state(state),
    }


def decode_exception(recorded: Any) -> Exception:
    """Return the exception that `encode_exception` wrote, or a RecordedException if that cannot be rebuilt here."""
    if not isinstance(recorded, dict) or "type" not in recorded:
        return RecordedException("unreadable", _cut(_safely(repr, recorded)))
    name, message = str(recorded["type"]), str(recorded.get("message"))
    cls = find_class(name)
    if cls is None or not issubclass(cls, Exception):
        return RecordedException(name, message)
    try:
        arguments = [decode(item) for item in recorded["args"]]
        state = {key: decode(item) for key, item in recorded["state"].items()}
        return _rebuilt(cls, arguments, state, call=recorded["call"])
    except Exception as error:  # noqa: BLE001 - whatever a stranger's class does, the caller is told what was raised
        return RecordedException(name, f"{message} (its class could not rebuild it: {error!r})")


def _parts(error: BaseException) -> tuple[bool, tuple[Any, ...], dict[str, Any]]:
    """Return by what the exception would be pickled, and whether its class itself says so."""
    cls = type(error)
    attributes = getattr(error, "__dict__", {})
    try:
        made = error.__reduce_ex__(4)
    except Exception:  # noqa: BLE001 - a class that cannot say how is taken apart like one that does not say
        return False, error.args, attributes
    if not isinstance(made, tuple) or made[0] is not cls or not isinstance(made[1], tuple):
        return (
            False,
            error.args,
            attributes,
        )  # made by a function of its own, which nobody will call here
    state = made[2] if len(made) > 2 and isinstance(made[2], dict) else attributes
    reduces = (_found(cls, name) for name in ("__reduce__", "__reduce_ex__"))
    return any(isinstance(reduce, FunctionType) for reduce in reduces), made[1], state


def _rebuilt(
    cls: type[Exception], arguments: list[Any], state: dict[str, Any], *, call: bool
) -> Exception:
    if call:
        error = cls(*arguments)
    else:
        base: Any = next(known for known in cls.__mro__ if known.__module__ == "builtins")
        error = base.__new__(cls, *arguments)
        base.__init__(error, *arguments)
    if not isinstance(error, Exception):
        raise TypeError(f"{cls.__qualname__} made something that is no exception")
    for key, value in state.items():
        setattr(error, key, value)
    return error


def _found(cls: type, name: str) -> object:
    return next((vars(known)[name] for known in cls.__mro__ if name in vars(known)), None)


def _encode_state(attributes: dict[str, Any]) -> dict[str, Any]:
    state = {}
    for key, value in attributes.items():
        try:
            encode(key)
            state[key] = encode(value)
        except UnrecordableValue:
            continue  # a response, a socket: what the handler of the error can do without, or could not have kept
    return state


def _encode_or_repr(value: object) -> Any:
    try:
        return encode(value)
    except UnrecordableValue:
        return encode(_cut(_safely(repr, value)))


def _safely(show: Callable[[object], str], value: object) -> str:
    try:
        text = show(value)
    except Exception:  # noqa: BLE001 - somebody's __str__ must not hide the error it is asked for
        text = f"<{type(value).__qualname__} that cannot be shown>"
    return _cut(text.encode("utf-8", "backslashreplace").decode("utf-8"))


def _cut(text: str) -> str:
    return text if len(text) <= TEXT_MAX else text[:TEXT_MAX] + "..."
