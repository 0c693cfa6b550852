"""What waits for a broker is bounded, in nobody's way, and told when the broker is back or the process ends."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from celery_commander.engine import SettingsError
from celery_commander.tasks import BusMessage, InvalidRoutingKey, bus_subscriber
from celery_commander.tasks.bus_message import matches
from celery_commander.tasks.errors import UnreadableMessage
from tests.kit import wait_until
from tests.kit.workers import python_environment
from tests.tasks.bus_kit import NOWHERE, drain, make_app


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bus_subscriber, "POLL_SECONDS", 0.1)


def test_a_broker_that_is_away_costs_the_publisher_nothing(tmp_path: Path) -> None:
    bus = make_app(tmp_path, NOWHERE, "shop", bus_outbox_messages=10).commander.bus

    for number in range(100):
        bus.publish("run.stuck", {"number": number})
    facts = wait_until(lambda: bus.facts() if bus.facts()["last_error"] else None)

    assert 88 <= facts["dropped"] <= 90  # one may be on its way
    assert 10 <= facts["undelivered"] <= 11
    assert "refused" in facts["last_error"]
    assert bus.flush(0.2) is False


def test_the_oldest_give_way_and_the_newest_are_told(tmp_path: Path, redis_url: str) -> None:
    app = make_app(tmp_path, redis_url, "shop", bus_outbox_messages=3)
    bus = app.commander.bus
    drain(bus, "#", "audit")
    real = app.conf.broker_url
    app.conf.broker_url = app.conf.broker_write_url = NOWHERE
    for number in range(20):
        bus.publish("run.stuck", {"number": number})
    wait_until(lambda: bus.facts()["last_error"])
    app.conf.broker_url = app.conf.broker_write_url = real

    assert bus.flush(30)
    heard = [message.data["number"] for message in drain(bus, "#", "audit")]

    assert heard[-3:] == [17, 18, 19]
    assert len(heard) + bus.facts()["dropped"] == 20
    assert bus.facts()["last_error"] is None


@pytest.mark.parametrize(
    "key, payload",
    [
        ("run.stuck", {"what": object()}),
        ("run.stuck", {"what": float("nan")}),
        ("run.stuck", {"what": "x" * 2_000}),
        ("run.stuck", None),
        ("run..stuck", {}),
        ("run.*", {}),
        ("", {}),
        ("x" * 300, {}),
    ],
)
def test_what_cannot_be_told_is_counted_and_raises_nothing(
    tmp_path: Path, key: str, payload: Any, caplog: pytest.LogCaptureFixture
) -> None:
    bus = make_app(tmp_path, "memory://", "shop", max_payload_bytes=1024).commander.bus

    bus.publish(key, payload)

    assert (bus.facts()["dropped"], bus.facts()["undelivered"]) == (1, 0)
    assert "was not put on the bus" in caplog.text


def test_a_bus_that_is_switched_off_tells_nothing(tmp_path: Path) -> None:
    bus = make_app(tmp_path, NOWHERE, "shop", bus=False).commander.bus

    bus.publish("run.stuck", {})

    assert bus.facts() == {"undelivered": 0, "dropped": 0, "last_error": None}


def test_one_message_that_the_broker_always_refuses_does_not_hold_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from celery_commander.tasks import bus_outbox

    sent: list[str] = []

    def send(key: str, body: str) -> None:
        if body == "poison":
            raise OSError("the broker closed the channel")
        sent.append(body)

    @contextmanager
    def post() -> Iterator[Callable[[str, str], None]]:
        yield send

    monkeypatch.setattr(bus_outbox, "LONGEST_PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(bus_outbox, "FIRST_PAUSE_SECONDS", 0.001)
    outbox = bus_outbox.Outbox(post)
    for body in ("one", "poison", "two"):
        outbox.put("run.stuck", body, limit=10)

    assert outbox.flush(30)
    assert sent == ["one", "two"]
    assert outbox.facts() == {"undelivered": 0, "dropped": 1, "last_error": None}


def test_a_forked_child_leaves_its_parents_messages_to_the_parent(tmp_path: Path) -> None:
    bus = make_app(tmp_path, NOWHERE, "shop").commander.bus
    bus.publish("run.stuck", {})
    wait_until(lambda: bus.facts()["last_error"])

    pid = os.fork()
    if pid == 0:
        clean = bus.facts() == {"undelivered": 0, "dropped": 0, "last_error": None}
        bus.publish("run.stuck", {})  # nothing of the parent's is locked here
        os._exit(0 if clean and bus.facts()["undelivered"] == 1 else 1)

    assert os.waitpid(pid, 0)[1] == 0
    assert bus.facts()["undelivered"] == 1


def test_the_delivering_thread_takes_no_signal_and_ends_when_all_is_told(tmp_path: Path) -> None:
    bus = make_app(tmp_path, NOWHERE, "shop").commander.bus
    bus.publish("run.stuck", {})
    thread = next(thread for thread in threading.enumerate() if thread.name == "commander-bus")

    status = Path(f"/proc/self/task/{thread.native_id}/status")

    def blocks_term() -> bool:
        (blocked,) = [line for line in status.read_text().splitlines() if line.startswith("SigBlk")]
        return bool(int(blocked.split()[1], 16) & 1 << 14)

    wait_until(blocks_term, what="SIGTERM to be blocked")
    bus._commander.app.conf.broker_write_url = "memory://"
    assert bus.flush(30)
    wait_until(lambda: not thread.is_alive(), what="the end of the thread")


SCRIPT = """
    from celery import Celery
    from celery_commander.tasks import Commander

    app = Celery("shop", broker={broker!r})
    Commander(app, state_directory={state!r})
    app.commander.bus.publish("run.stuck", {{}}, run_id="last words")
"""


def test_a_process_that_ends_tells_what_is_left(tmp_path: Path, redis_url: str) -> None:
    bus = make_app(tmp_path, redis_url, "shop").commander.bus
    drain(bus, "#", "audit")

    script = textwrap.dedent(SCRIPT).format(broker=redis_url, state=str(tmp_path / "other"))
    subprocess.run([sys.executable, "-c", script], check=True, env=python_environment(), timeout=60)

    assert [message.run_id for message in drain(bus, "#", "audit", count=1)] == ["last words"]


@pytest.mark.parametrize(
    "pattern, key, heard",
    [
        ("run.stuck", "run.stuck", True),
        ("run.*", "run.stuck", True),
        ("run.*", "run", False),
        ("run.*", "run.a.b", False),
        ("run.#", "run", True),
        ("run.#", "run.a.b", True),
        ("#", "run.a", True),
        ("#.b", "run.a.b", True),
        ("*.b", "run.a.b", False),
        ("run.#.b.#", "run.a.b", True),
        ("run.#.c", "run.a.b", False),
        ("ran.*", "run.a", False),
    ],
)
def test_patterns_are_those_of_topic_exchanges(pattern: str, key: str, heard: bool) -> None:
    assert matches(pattern, key) is heard


@pytest.mark.parametrize("pattern", ["", "run.", "run*", ".", "run stuck", "run.**", None, "ä"])
def test_a_pattern_that_cannot_be_is_refused_where_it_is_said(tmp_path: Path, pattern: Any) -> None:
    bus = make_app(tmp_path, "memory://", "shop").commander.bus

    with pytest.raises(InvalidRoutingKey):
        bus.subscribe(pattern, print)


@pytest.mark.parametrize("told", [b"", "[]", "{}", '{"type": "a b"}', 3, b"\xff"])
def test_what_is_no_message_of_ours_is_called_so(told: Any) -> None:
    with pytest.raises(UnreadableMessage):
        BusMessage.unpack(told)


@pytest.mark.parametrize(
    "settings",
    [{"bus_outbox_messages": 0}, {"bus_flush_seconds": -1}, {"bus_outbox_messages": 1.5}],
)
def test_bounds_that_cannot_work_are_refused(tmp_path: Path, settings: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=next(iter(settings))):
        _ = make_app(tmp_path, "memory://", "shop", **settings).commander.settings
