"""What goes into the log comes back as it was."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_commander.engine import (
    UnreadableValue,
    decode,
    digest,
    encode,
)

from .own_types import Colour, Level, Money, Point, Rights, Temperature

SECRET = b"secret of a test"


def through_the_log(value: object) -> Any:
    """Return the value after the way that the log takes: sorted, as UTF-8, parsed again."""
    line = json.dumps(encode(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return decode(json.loads(line.encode("utf-8")))


def same(left: Any, right: Any) -> bool:
    """Compare with types, order and NaN: 1, True and 1.0 are three things here."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return len(left) == len(right) and all(
            same(a, b) for a, b in zip(left.items(), right.items(), strict=True)
        )
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, set | frozenset):
        return left == right and sorted(map(repr, left)) == sorted(map(repr, right))
    if isinstance(left, float | Decimal) and math.isnan(left):
        return math.isnan(right)
    if isinstance(left, float):
        return left == right and math.copysign(1, left) == math.copysign(1, right)
    return bool(left == right)


text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


tag_like = st.sampled_from(["$", "v", "keys", "tuple", "ordered", "@test.money", "dict", "int"])


leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**200), 2**200)
    | st.floats()
    | text
    | tag_like
    | st.binary(max_size=8)
    | st.datetimes(timezones=st.none() | st.just(UTC) | st.timezones())
    | st.dates()
    | st.times(timezones=st.none() | st.just(UTC))
    | st.timedeltas()
    | st.decimals(allow_nan=False)
    | st.uuids()
    | st.sampled_from([Colour.RED, Level.LOW, Rights.READ | Rights.WRITE, Rights(0)])
    | st.builds(Point, st.integers(), st.integers())
)


hashable = leaves.filter(lambda value: value == value) | st.tuples(leaves.filter(lambda v: v == v))


values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(text | tag_like, inner, max_size=4)
        | st.dictionaries(hashable, inner, max_size=3)
        | st.sets(hashable, max_size=3)
        | st.frozensets(hashable, max_size=3)
    ),
    max_leaves=12,
)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | text | tag_like,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text | tag_like, inner, max_size=4),
    max_leaves=15,
)


@settings(max_examples=400, deadline=None)
@given(values)
def test_every_value_comes_back_as_it_was(value: object) -> None:
    assert same(through_the_log(value), value)
    assert same(decode(encode(value)), value)


@settings(max_examples=300, deadline=None)
@given(json_values)
def test_plain_data_that_looks_like_ours_comes_back_as_it_was(value: object) -> None:
    assert same(through_the_log(value), value)


@settings(max_examples=300, deadline=None)
@given(json_values)
def test_what_was_never_encoded_is_refused_or_read_but_breaks_nothing(recorded: object) -> None:
    with suppress(UnreadableValue):
        decode(recorded)


@settings(max_examples=200, deadline=None)
@given(values)
def test_a_recorded_value_is_recorded_the_same_the_next_time(value: object) -> None:
    assert encode(through_the_log(value)) == encode(value)
    assert digest(through_the_log(value), SECRET) == digest(value, SECRET)


@pytest.mark.parametrize(
    "value",
    [
        2**53 - 1,
        2**53,
        -(2**80),
        10**6000,
        -0.0,
        float("inf"),
        float("nan"),
        5e-324,
        "",
        "a|b\nc\0é\u2028😀",
        b"\0\xff",
        [],
        (),
        {},
        set(),
        {"$": "tuple", "v": []},
        {"$": {"$": 1}},
        {"b": 1, "a": 2},
        {1: "one", "1": "text", 2.5: "two and a half", (1, 2): "pair", None: 0},
        {True: 1, "True": 2},
        datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin")),
        datetime(2026, 1, 2, fold=1),  # noqa: DTZ001 - naive ones come back naive
        datetime(2026, 1, 2, tzinfo=timezone(timedelta(hours=-3, minutes=-30))),
        datetime.max,  # noqa: DTZ901
        time(1, 2, 3, 4, tzinfo=ZoneInfo("Asia/Kathmandu"), fold=1),
        date.min,
        timedelta(days=-1, microseconds=1),
        Decimal("-0E+3"),
        Decimal("1.10"),
        Decimal("NaN"),
        UUID(int=5),
        Colour.ALSO_RED,
        Level.LOW,
        Rights.READ | Rights.WRITE,
        Money(Decimal("12.50"), "EUR"),
        [Point(1, 2), (1, 2)],
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_difficult_ones_come_back_as_they_were(value: object) -> None:
    assert same(through_the_log(value), value)


def test_a_repeated_moment_keeps_which_of_the_two_it_is() -> None:
    moment = datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin"))

    back = through_the_log(moment)

    assert (back.fold, back.utcoffset(), back.tzinfo.key) == (
        1,
        timedelta(hours=1),
        "Europe/Berlin",
    )


def test_plain_data_is_recorded_as_plain_json() -> None:
    plain = {"id": "x", "items": [1, 2.5, None, True], "total": 3}

    assert encode(plain) == plain
    assert encode({"total": 3, "id": "x"}) == {
        "$": "ordered",
        "keys": ["total", "id"],
        "v": {"id": "x", "total": 3},
    }


def test_an_own_class_comes_back_by_its_registered_name() -> None:
    assert encode(Money(Decimal(1), "EUR"))["$"] == "@test.money"
    assert through_the_log({"t": Temperature(273.15)})["t"].kelvin == 273.15


def test_the_same_object_twice_is_no_cycle() -> None:
    shared = [1]

    assert through_the_log({"a": shared, "b": [shared, shared]}) == {"a": [1], "b": [[1], [1]]}


def test_what_is_decoded_is_new_each_time() -> None:
    recorded = encode({"a": [1]})
    decode(recorded)["a"].append(2)

    assert decode(recorded) == {"a": [1]}


DISTINCT = [
    0,
    False,
    0.0,
    -0.0,
    "0",
    None,
    (),
    [],
    {},
    set(),
    frozenset(),
    "",
    b"",
    {0: 1},
    {"0": 1},
]


def test_what_is_different_has_another_digest() -> None:
    assert len({digest(value, SECRET) for value in DISTINCT}) == len(DISTINCT)
    assert digest(1, SECRET) != digest(1, b"another secret")


def test_what_is_equal_has_one_digest_in_whatever_order_it_came() -> None:
    assert digest({"b": 1, "a": (2,)}, SECRET) == digest({"a": (2,), "b": 1}, SECRET)
    assert digest({2: 1, 1: [{"b", "a"}]}, SECRET) == digest({1: [{"a", "b"}], 2: 1}, SECRET)
    assert digest({"a": [1, 2]}, SECRET) != digest({"a": [2, 1]}, SECRET)
    assert len(digest(1, SECRET)) == 64


def test_forms_and_digests_are_the_same_in_every_process() -> None:
    program = (
        "import json; from celery_commander.engine import digest, encode;"
        "v = {'x': {'a', 'b', 'c', ('d', 1)}, 'y': {frozenset({'p', 'q'}): 1}};"
        "print(json.dumps(encode(v)), digest(v, b's'))"
    )

    def run(seed: str) -> str:
        environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        return subprocess.check_output(
            [sys.executable, "-c", program], env=environment, text=True, cwd=Path(__file__).parent
        )

    assert len({run(seed) for seed in ("1", "2", "3")}) == 1
