"""What would not come back is refused, with the place where it stands."""

from __future__ import annotations

import enum
import re
import sys
from collections import OrderedDict, defaultdict
from typing import Any

import pytest

from celery_commander.engine import (
    UnreadableValue,
    UnrecordableValue,
    decode,
    encode,
    register_type,
)

from .own_types import Money, Temperature


class Text(str):
    __slots__ = ()


@pytest.mark.parametrize(
    "value, path, type_name, reason",
    [
        ({"order": [1, 2, 3, object()]}, "result['order'][3]", "object", "no form"),
        ("\ud800", "result", "str", "surrogate"),
        ({"a": {"\ud800": 1}}, "result['a']['\\ud800']", "str", "surrogate"),
        ([{1: ({2},), 3: [{"x": lambda: 0}]}], "result[0][3][0]['x']", "function", "no form"),
        ({(1, object): 2}, "result[(1, <class 'object'>)][1]", "type", "no form"),
        ([Text("a")], "result[0]", "Text", "subclass of str"),
        (OrderedDict(a=1), "result", "OrderedDict", "subclass of dict"),
        (defaultdict(list), "result", "defaultdict", "subclass of dict"),
        (ValueError("x"), "result", "ValueError", "no form"),
        (Money(object(), "EUR"), "result['amount']", "object", "no form"),  # type: ignore[arg-type]
        (bytearray(b"x"), "result", "bytearray", "no form"),
        (iter([1]), "result", "list_iterator", "no form"),
    ],
    ids=lambda value: re.sub(r" at 0x.*", "", ascii(value))[:30],  # the same in every process
)
def test_what_would_not_come_back_is_refused_where_it_stands(
    value: object, path: str, type_name: str, reason: str
) -> None:
    with pytest.raises(UnrecordableValue) as caught:
        encode(value, path="result")

    assert caught.value.path == path
    assert caught.value.type_name.endswith(type_name)
    assert reason in caught.value.reason


def nested(depth: int, wrap: Any) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = wrap(value)
    return value


@pytest.mark.parametrize(
    "wrap",
    [
        lambda value: [value],
        lambda value: (value,),
        lambda value: {"k": value},
        lambda value: {1: value},
        lambda value: {"b": 0, "a": value},
        lambda value: Temperature(value),
    ],
    ids=["list", "tuple", "dict", "int keys", "unsorted dict", "own type"],
)
def test_what_is_nested_too_deep_is_refused_and_what_is_not_fits_the_log(wrap: Any) -> None:
    for depth in (200, 5_000, 100_000):
        with pytest.raises(UnrecordableValue, match="levels deep") as caught:
            encode(nested(depth, wrap), path="result")
        assert caught.value.path.startswith("result")

    deepest = max(d for d in range(1, 101) if recordable(nested(d, wrap)))
    assert deepest >= 33
    assert levels(encode(nested(deepest, wrap))) <= 103  # the log takes 128


def recordable(value: object) -> bool:
    try:
        encode(value)
    except UnrecordableValue:
        return False
    return True


def levels(form: Any) -> int:
    if isinstance(form, dict):
        form = list(form.values())
    return 1 + max(map(levels, form), default=0) if isinstance(form, list) else 0


def test_a_value_that_contains_itself_is_refused() -> None:
    looped: dict[str, Any] = {"a": [1]}
    looped["a"].append((looped,))

    with pytest.raises(UnrecordableValue, match="contains itself") as caught:
        encode(looped)
    assert caught.value.path == "value['a'][1][0]"


def test_an_enumeration_that_nobody_could_find_again_is_refused() -> None:
    class Hidden(enum.Enum):
        A = 1

    with pytest.raises(UnrecordableValue, match="cannot be found"):
        encode(Hidden.A)


@pytest.mark.parametrize(
    "recorded, reason",
    [
        ({"$": "nonsense", "v": 1}, "no such tag"),
        ({"$": 1}, "no such tag"),
        ({"$": "@nobody.registered", "v": 1}, "no type of that name"),
        ({"$": "@test.money", "v": {"amount": 1}}, "does not fit"),
        ({"$": "enum", "v": ["os:path", "x"]}, "not an enumeration"),
        ({"$": "enum", "v": ["builtins:object", "x"]}, "not an enumeration"),
        ({"$": "enum", "v": ["nobody.imported.this:X", "x"]}, "not an enumeration"),
        ({"$": "set", "v": [[1]]}, "does not fit"),
        ({"$": "ordered", "keys": ["a"], "v": {"a": 1, "b": 2}}, "does not fit"),
        ({"$": "datetime", "v": ["2026-01-01", "No/Where", 0]}, "does not fit"),
        ({"$": "bytes", "v": "***"}, "does not fit"),
        ({"$": "int"}, "does not fit"),
    ],
)
def test_what_cannot_be_rebuilt_is_named(recorded: Any, reason: str) -> None:
    with pytest.raises(UnreadableValue, match=reason) as caught:
        decode([recorded], path="result")
    assert caught.value.path == "result"


def test_reading_never_imports_anything() -> None:
    sys.modules.pop("this", None)

    with pytest.raises(UnreadableValue):
        decode({"$": "enum", "v": ["this:X", "A"]})
    assert "this" not in sys.modules


def test_recorded_data_that_is_nested_without_end_is_named() -> None:
    form: Any = 1
    for _ in range(100_000):
        form = [form]

    with pytest.raises(UnreadableValue, match="nested too deep"):
        decode(form)


class Wrong:
    pass


def test_a_pack_function_that_fails_is_named_with_its_error() -> None:
    register_type(Wrong, "test.wrong", lambda value: 1 / 0, lambda value: Wrong())

    with pytest.raises(UnrecordableValue, match="ZeroDivisionError") as caught:
        encode([Wrong()])
    assert caught.value.path == "value[0]"
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_name_belongs_to_one_class() -> None:
    with pytest.raises(ValueError, match="taken by"):
        register_type(Wrong, "test.money", str, lambda value: Wrong())
    with pytest.raises(ValueError, match="registered as"):
        register_type(Money, "test.other")
    with pytest.raises(ValueError, match="form of its own"):
        register_type(dict, "test.dict", dict, dict)
    with pytest.raises(ValueError, match="give both"):
        register_type(Text, "test.text")
    register_type(Money, "test.money")  # a module that is loaded twice
