"""What is sent arrives as it was and replays as it was; what cannot is refused by its place.

See celery/celery issue 3610 and celery/kombu pull request 1575: types changed on their way.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest

from celery_commander.engine import InvalidEvent, State, UnrecordableValue
from celery_commander.tasks import step
from tests.tasks.bench import Bench, make_bench

ID = UUID("0b9d2c8e-1f2a-4c3d-9e4f-5a6b7c8d9e0f")

ARRIVES = {
    "nothing": None,
    "truth": True,
    "number": 42,
    "large number": 2**80,
    "fraction": 0.1,
    "text": "a|b\0\n\u2028 é 😀",
    "naive moment": datetime(2026, 1, 2, 3, 4, 5, 6),  # noqa: DTZ001  # a naive one is the point
    "aware moment": datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
    "moment of a zone": datetime(2026, 7, 2, tzinfo=ZoneInfo("Europe/Berlin")),
    "date": date(2026, 1, 2),
    "time": time(3, 4, 5),
    "decimal": Decimal("1.10"),
    "id": ID,
    "bytes": b"\x00\xff",
    "list": [1, [2, {"a": ID}]],
    "mapping": {"k": Decimal("1.10"), "$": 1, "n": {"m": b"x"}},
    "deep": [[[[[[[[[[1]]]]]]]]]],
}


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


REFUSED = {
    "a set": ({1, 2}, "args[0]"),
    "a frozen set": ({"x": [frozenset([1])]}, "args[0]['x'][0]"),
    "a duration": ([timedelta(days=1)], "args[0][0]"),
    "not a number": ({"rate": float("nan")}, "args[0]['rate']"),
    "infinity": (float("-inf"), "args[0]"),
    "a number as key": ({"prices": {1: "a"}}, "args[0]['prices']"),
    "nothing as key": ({None: 1}, "args[0]"),
    "half a character": (["ok", "\ud800"], "args[0][1]"),
    "half a character as key": ({"\ud800": 1}, "args[0]"),
    "200 levels": (nested(200), "args[0]" + "[0]" * 99),
    "10,000 levels": (nested(10_000), "args[0]" + "[0]" * 99),
    "a marking": ({"__type__": "uuid", "__value__": "x"}, "args[0]"),
    "marked bytes": ([{"bytes": "eA==", "__bytes__": True}], "args[0][0]"),
}


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return make_bench(tmp_path)


@pytest.mark.parametrize("value", ARRIVES.values(), ids=ARRIVES)
def test_what_is_sent_is_what_arrives_and_what_a_replay_compares(bench: Bench, value: Any) -> None:
    store = bench.app.commander.store
    sent = store.digest([value])

    @step(retry_in_doubt=True)
    def take(taken: Any) -> Any:
        if len(bench.calls) == 1:
            raise KeyboardInterrupt  # the process ends inside the step
        return taken

    def work(taken: Any) -> Any:
        bench.calls.append((store.digest([taken]), type(taken)))
        return take(taken)

    with pytest.raises(KeyboardInterrupt):
        bench.run(work, value)
    bench.app.commander.bootstrapper.bootstrap(force_abort=False)
    bench.app.commander.close()
    told = bench.deliver(bench.run_id)

    assert bench.state() is State.COMMITTED
    assert told == ("SUCCESS", value)
    assert type(told[1]) is type(value)
    # A zone arrives as its offset: the same moment under another name.
    named = getattr(getattr(value, "tzinfo", None), "key", None)
    assert {digest for digest, _ in bench.calls} == {sent} or named
    assert {kind for _, kind in bench.calls} == {type(value)}
    assert len(bench.calls) == 2


def test_a_tuple_arrives_as_a_list(bench: Bench) -> None:
    def work(taken: Any) -> Any:
        bench.calls.append(taken)
        return taken

    assert bench.run(work, (1, (2,))) == ("SUCCESS", [1, [2]])
    assert bench.calls == [[1, [2]]]


@pytest.mark.parametrize("value, place", REFUSED.values(), ids=REFUSED)
def test_what_would_arrive_as_something_else_is_refused_by_its_place(
    bench: Bench, value: Any, place: str
) -> None:
    def work(taken: Any) -> Any:
        return taken

    bench.task(work)

    with pytest.raises(UnrecordableValue) as refused:
        bench.send("work", value)

    assert refused.value.path == place
    assert [event.type for event in bench.app.commander.engine.read_from(None)] == ["wal.created"]


def test_a_named_argument_is_refused_by_its_name(bench: Bench) -> None:
    def work(**given: Any) -> Any:
        return given

    task = bench.task(work)

    with pytest.raises(UnrecordableValue) as refused:
        task.apply_async(kwargs={"order": {"tags": {1, 2}}})

    assert refused.value.path == "kwargs['order']['tags']"


def test_an_argument_of_megabytes_is_refused_before_it_is_sent_and_nothing_of_it_is_kept(
    bench: Bench,
) -> None:
    """See celery/celery#5000: messages of many megabytes, and workers that ran out of memory."""
    task = bench.task(echo, name="echo")
    size = bench.app.commander.engine.path.stat().st_size
    with pytest.raises(InvalidEvent, match="bytes"):
        task.delay("x" * (5 * 1024 * 1024))
    assert bench.app.commander.engine.path.stat().st_size == size
    run_id = task.delay("y" * 500_000).id  # it fits: it stands in the log once
    lines = bench.app.commander.engine.path.read_bytes()
    assert lines.count(b"y" * 400_000) == 1
    assert bench.deliver(run_id)[0] == "SUCCESS"


def echo(text: str) -> int:
    return len(text)
