"""Write values down so that they come back as they went in, and refuse those that would not.

What a step returned is recorded here and read in a replay, perhaps by another process, years later. So a value
either round-trips, type and all, or is refused with the place where it stands; nothing is turned into something
similar. The result is plain JSON: what JSON knows stays as it is, everything else becomes ``{"$": tag, "v": ...}``,
and a dictionary that could be taken for that is tagged itself.

Nothing is ever pickled, and nothing is imported because a record says so. Own types are registered by name.
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import json
import math
import sys
from collections.abc import Callable, Iterable
from enum import Enum, Flag
from typing import Any, TypeVar

from .errors import UnreadableValue, UnrecordableValue
from .scalars import SCALARS, pack_int, unpack_int

T = TypeVar("T")

DEPTH_MAX = 100
"""How deep the JSON of a value may be nested; a tuple, a set and most other tagged values take two levels."""

_TAG = "$"
_OWN = "@"  # in front of registered names, so that no later tag of ours can be one of them
_EXACT_INT = 2**53  # beyond it, readers in other languages round
_NAMED_MAX = 60


@dataclasses.dataclass(frozen=True, slots=True)
class _Registered:
    cls: type
    name: str
    pack: Callable[[Any], Any]
    unpack: Callable[[Any], Any]


# A registry of types is the one thing here that a process has once: types are as global as modules are.
_BY_CLASS: dict[type, _Registered] = {}
_BY_NAME: dict[str, _Registered] = {}


def register_type(
    cls: type[T],
    name: str,
    pack: Callable[[T], Any] | None = None,
    unpack: Callable[[Any], T] | None = None,
) -> None:
    """Record instances of exactly `cls` under `name`, which must never change its meaning.

    `pack` returns something recordable, `unpack` makes the instance from it again. A dataclass or a NamedTuple
    needs neither: it is taken apart into its fields. Call it where the class is defined, so that every process
    that has the class can read it.

    Raises:
        ValueError: the name belongs to another class, or `pack` or `unpack` is missing.
    """
    if pack is None or unpack is None:
        pack, unpack = _by_fields(cls)
    known = _BY_NAME.get(name)
    if known is not None and _named(known.cls) != _named(cls):
        raise ValueError(f"the name {name!r} is taken by {_named(known.cls)}")
    if cls in SCALARS or cls in _CONTAINERS or cls in (type(None), bool, int, float, str):
        raise ValueError(f"{_named(cls)} has a form of its own")
    if cls in _BY_CLASS and _BY_CLASS[cls].name != name:
        raise ValueError(f"{_named(cls)} is registered as {_BY_CLASS[cls].name!r} already")
    _BY_NAME[name] = _BY_CLASS[cls] = _Registered(cls, name, pack, unpack)


def encode(value: object, *, path: str = "value") -> Any:
    """Return the JSON form of `value`; `decode` makes an equal value of equal types from it.

    `path` is what the value is called in an error.

    Raises:
        UnrecordableValue: it would not come back as it went in; the path leads to the culprit.
    """
    return _Encoder(canonical=False).run(value, path)


def decode(recorded: Any, *, path: str = "value") -> Any:
    """Return the value that `encode` wrote; containers are new ones at each call.

    Raises:
        UnreadableValue: it was not written by `encode`, or a type is not registered or imported here.
    """
    try:
        return _decode(recorded)
    except _Unreadable as error:
        raise UnreadableValue(path, error.tag, error.reason) from error.__cause__
    except RecursionError as error:
        raise UnreadableValue(path, "nesting", "it is nested too deep") from error


def digest(value: object, secret: bytes) -> str:
    """Return the HMAC-SHA-256 (RFC 2104) of a value under a log's secret, in hex.

    Equal values of equal types have one digest: the order of a dictionary's or a set's members does not matter,
    while 1, True and 1.0 differ.

    Raises:
        UnrecordableValue: the value has no recordable form.
    """
    form = _Encoder(canonical=True).run(value, "value")
    return hmac.new(secret, _as_json(form).encode("utf-8"), hashlib.sha256).hexdigest()


class _Refusal(Exception):  # it never leaves this file; the path is put together on its way up
    def __init__(self, value: object, reason: str) -> None:
        super().__init__(reason)
        self.type_name = _named(type(value))
        self.reason = reason
        self.places: list[str] = []


class _Unreadable(Exception):
    def __init__(self, tag: object, reason: str) -> None:
        super().__init__(reason)
        self.tag = _short(tag)
        self.reason = reason


class _Encoder:
    """Encode one value; `canonical` forgets the order of dictionaries."""

    def __init__(self, *, canonical: bool) -> None:
        self._canonical = canonical
        self._open: set[int] = set()  # the containers we are inside of

    def run(self, value: object, path: str) -> Any:
        try:
            return self.encode(value, 0)
        except _Refusal as error:
            full = path + "".join(reversed(error.places))
            raise UnrecordableValue(full, error.type_name, error.reason) from error.__cause__

    def encode(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if value is None or kind is bool:
            return value
        if kind is str:
            return _checked(value)
        if kind is int:
            return value if -_EXACT_INT < value < _EXACT_INT else _tagged("int", pack_int(value))
        if kind is float:
            return value if math.isfinite(value) else _tagged("float", repr(value))
        if kind in SCALARS:
            scalar = SCALARS[kind]
            return _tagged(scalar.tag, scalar.pack(value))
        if id(value) in self._open:
            raise _Refusal(value, "it contains itself")
        if depth >= DEPTH_MAX:
            raise _Refusal(value, f"it is nested more than {DEPTH_MAX} levels deep")
        self._open.add(id(value))
        try:
            return _CONTAINERS.get(kind, _Encoder._other)(self, value, depth)
        finally:
            self._open.discard(id(value))

    def _list(self, values: Iterable[Any], depth: int) -> list[Any]:
        encoded: list[Any] = []
        try:
            # One by one: how many there are is where the refused one stands.
            for value in values:
                encoded.append(self.encode(value, depth + 1))  # noqa: PERF401
        except _Refusal as error:
            error.places.append(f"[{len(encoded)}]")
            raise
        return encoded

    def _tuple(self, values: tuple[Any, ...], depth: int) -> Any:
        return _tagged("tuple", self._list(values, depth + 1))

    def _set(self, values: set[Any] | frozenset[Any], depth: int) -> Any:
        # Hashes of text differ between processes, so sets come in any order: written in one.
        encoded = sorted(self._list(values, depth + 1), key=_as_json)
        return _tagged(type(values).__name__, encoded)

    def _dict(self, values: dict[Any, Any], depth: int) -> Any:
        if any(type(key) is not str for key in values) or _TAG in values:
            return self._pairs(values, depth)
        keys = list(values)
        ordered = self._canonical or keys == sorted(keys)
        encoded = {}
        key = ""
        try:
            for key, value in values.items():
                encoded[_checked(key)] = self.encode(value, depth + (1 if ordered else 2))
        except _Refusal as error:
            error.places.append(f"[{_short(key)}]")
            raise
        # The log sorts an object's keys; one that had another order says so.
        return encoded if ordered else {_TAG: "ordered", "keys": keys, "v": encoded}

    def _pairs(self, values: dict[Any, Any], depth: int) -> Any:
        pairs = []
        key: Any = None
        try:
            for key, value in values.items():
                pairs.append([self.encode(key, depth + 3), self.encode(value, depth + 3)])
        except _Refusal as error:
            error.places.append(f"[{_short(key)}]")
            raise
        return _tagged("dict", sorted(pairs, key=_as_json) if self._canonical else pairs)

    def _other(self, value: Any, depth: int) -> Any:
        registered = _BY_CLASS.get(type(value))
        if registered is not None:
            try:
                packed = registered.pack(value)
            except Exception as error:
                raise _Refusal(value, f"its pack function raised {error!r}") from error
            return _tagged(_OWN + registered.name, self.encode(packed, depth + 1))
        if isinstance(value, Enum):
            return self._enum(value, depth)
        raise _Refusal(value, _why_not(value))

    def _enum(self, member: Enum, depth: int) -> Any:
        name = _named(type(member))
        if _find_enum(name) is not type(member):
            raise _Refusal(member, "its class cannot be found by its module and name")
        if isinstance(member, Flag):
            return _tagged("flag", [name, self.encode(member.value, depth + 2)])
        return _tagged("enum", [name, _checked(member.name)])


_CONTAINERS: dict[type, Callable[[_Encoder, Any, int], Any]] = {
    list: _Encoder._list,
    tuple: _Encoder._tuple,
    dict: _Encoder._dict,
    set: _Encoder._set,
    frozenset: _Encoder._set,
}


def _decode(form: Any) -> Any:
    if isinstance(form, list):
        return [_decode(item) for item in form]
    if not isinstance(form, dict):
        return form
    if _TAG not in form:
        return {key: _decode(value) for key, value in form.items()}
    tag = form[_TAG]
    reader = _READERS.get(tag) if isinstance(tag, str) else None
    try:
        if reader is not None:
            return reader(form)
        if isinstance(tag, str) and tag.startswith(_OWN):
            return _unpack_registered(tag, form["v"])
    except (_Unreadable, RecursionError):
        raise
    except Exception as error:
        raise _Unreadable(tag, f"what stands there does not fit ({error!r})") from error
    raise _Unreadable(tag, "there is no such tag")


def _unpack_registered(tag: str, packed: Any) -> Any:
    registered = _BY_NAME.get(tag.removeprefix(_OWN))
    if registered is None:
        raise _Unreadable(tag, "no type of that name is registered")
    return registered.unpack(_decode(packed))


def _unpack_ordered(form: dict[str, Any]) -> dict[str, Any]:
    values = form["v"]
    if sorted(form["keys"]) != sorted(values):
        raise ValueError("keys and values differ")
    return {key: _decode(values[key]) for key in form["keys"]}


def _unpack_enum(form: dict[str, Any]) -> Enum:
    name, member = form["v"]
    cls = _find_enum(name)
    if cls is None:
        raise _Unreadable(form[_TAG], f"{_short(name)} is not an enumeration of an imported module")
    return cls(_decode(member)) if issubclass(cls, Flag) else cls[member]


def _find_enum(name: str) -> type[Enum] | None:
    found = find_class(name)
    return found if found is not None and issubclass(found, Enum) else None


def find_class(name: str) -> type | None:
    """Return the class ``module:Outer.Inner`` if its module is imported already, else None."""
    module, _, qualified = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in qualified.split("."):
        found = vars(found).get(part) if found is not None and hasattr(found, "__dict__") else None
    return found if isinstance(found, type) else None


def _read_scalar(unpack: Callable[[Any], Any]) -> Callable[[dict[str, Any]], Any]:
    return lambda form: unpack(form["v"])


_READERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "int": lambda form: unpack_int(form["v"]),
    "float": lambda form: float(form["v"]),
    "tuple": lambda form: tuple(_decode(form["v"])),
    "set": lambda form: set(_decode(form["v"])),
    "frozenset": lambda form: frozenset(_decode(form["v"])),
    "dict": lambda form: {_decode(key): _decode(value) for key, value in form["v"]},
    "ordered": _unpack_ordered,
    "enum": _unpack_enum,
    "flag": _unpack_enum,
} | {scalar.tag: _read_scalar(scalar.unpack) for scalar in SCALARS.values()}


def _tagged(tag: str, form: Any) -> dict[str, Any]:
    return {_TAG: tag, "v": form}


def _checked(text: str) -> str:
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise _Refusal(text, f"character {error.start} is half of a surrogate pair") from error
    return text


def _by_fields(cls: type) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    if dataclasses.is_dataclass(cls):
        names = [field.name for field in dataclasses.fields(cls) if field.init]
    elif issubclass(cls, tuple) and hasattr(cls, "_fields"):
        names = list(cls._fields)
    else:
        raise ValueError(
            f"{_named(cls)} is no dataclass and no NamedTuple: give both pack and unpack"
        )
    return lambda value: {name: getattr(value, name) for name in names}, lambda fields: cls(
        **fields
    )


def _why_not(value: object) -> str:
    for base in (*SCALARS, *_CONTAINERS, bool, int, float, str):
        if isinstance(value, base):
            return f"it is a subclass of {base.__name__} and would come back as a plain one"
    return "there is no form for its type"


def _as_json(form: Any) -> str:
    return json.dumps(
        form, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )


def _named(cls: type) -> str:
    return (
        cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}:{cls.__qualname__}"
    )


def _short(value: object) -> str:
    try:
        text = ascii(value)
    except Exception:  # noqa: BLE001 - somebody's __repr__ must not hide the error it is asked for
        text = f"<{_named(type(value))}>"
    return text if len(text) <= _NAMED_MAX else text[:_NAMED_MAX] + "..."
