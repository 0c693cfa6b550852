"""Two stores behind one broker are noticed by those who share it, and forgotten once they no longer do."""

from __future__ import annotations

from typing import Any

import pytest

from celery_commander.tasks import neighbours
from celery_commander.tasks.broker import BrokerSilent
from celery_commander.tasks.neighbours import FORGET_SECONDS, TELL_SECONDS, Neighbours
from tests.tasks.bench import Bench

US = "attempts"


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    moment = [1_000.0]
    monkeypatch.setattr("celery_commander.tasks.neighbours.time.monotonic", lambda: moment[0])
    return moment


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    names: list[Any] = []

    def tell(app: object, command: str, arguments: dict[str, Any], whom: Any) -> None:
        names.append(whom)

    monkeypatch.setattr(neighbours, "tell_workers", tell)
    return names


@pytest.fixture
def known(bench: Bench, now: list[float], told: list[Any]) -> Neighbours:
    return Neighbours(bench.app.commander, "us@here")


def test_all_are_told_once_and_strangers_again(
    known: Neighbours, now: list[float], told: list[Any]
) -> None:
    known.tell()
    now[0] += 10 * TELL_SECONDS
    known.tell()
    assert told == [None]

    known.heard("them@there", "another log", US)
    known.tell()  # at once: they do not know us yet
    known.tell()
    now[0] += TELL_SECONDS
    known.tell()

    assert told == [None, ["them@there"], ["them@there"]]


def test_only_another_log_of_the_same_namespace_is_strange(bench: Bench, known: Neighbours) -> None:
    known.heard("them@there", "another log", US)
    known.heard("friend@there", bench.app.commander.engine.log_id, US)
    known.heard("bank@there", "another log", "bank")
    known.heard("us@here", bench.app.commander.engine.log_id, US)

    assert known.others() == {"them@there": "another log"}


def test_one_of_our_name_with_another_log_is_strange(bench: Bench, known: Neighbours) -> None:
    """Two workers without -n on one host are both celery@host."""
    known.heard("us@here", "another log", US, where="/their/state")
    known.heard("us@here", bench.app.commander.engine.log_id, US)  # our own word, come back

    assert known.others() == {"us@here": "another log in /their/state"}


def test_who_is_sent_our_messages_is_strange_whatever_its_namespace(
    bench: Bench, known: Neighbours, now: list[float], told: list[Any]
) -> None:
    known.heard("bank@there", "another log", "bank", refuses=["a third log"])
    assert known.others() == {}
    known.heard("bank@there", "another log", "bank", refuses=[bench.app.commander.engine.log_id])
    assert known.others() == {"bank@there": "another log"}

    known.tell()
    now[0] += TELL_SECONDS
    known.tell(refuses=["another log"])

    assert told == [None, None]  # whoever has that log is unknown, so all are told


def test_who_came_to_reason_or_fell_silent_is_forgotten(
    bench: Bench, known: Neighbours, now: list[float]
) -> None:
    known.heard("them@there", "another log", US)
    known.heard("them@there", bench.app.commander.engine.log_id, US)
    assert known.others() == {}

    known.heard("them@there", "another log", US)
    now[0] += FORGET_SECONDS
    assert known.others() != {}
    now[0] += 1
    assert known.others() == {}


def test_a_silent_broker_is_told_again_later(
    known: Neighbours, told: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise BrokerSilent("refused")

    with monkeypatch.context() as patch:
        patch.setattr(neighbours, "tell_workers", refuse)
        known.tell()
    known.tell()

    assert told == [None]
