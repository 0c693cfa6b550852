"""The demo proves something only if each of its checks can fail, so each is made to fail here."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from kombu import Connection, Queue

from examples.demo_screen import Screen
from examples.demo_stage import draw_plan, read_orders
from examples.demo_witness import FORWARD, Finding, by_kind, judge, went_on_at
from examples.services import CardDeclined, Effect, NoAnswer, OutOfReach, Town
from tests.kit.workers import ROOT, python_environment

COMMITTED = {"o": "COMMITTED"}
COMPENSATED = {"o": "COMPENSATED"}


def row(kind: str, *, key: str = "", pid: int = 1, at: float = 0.0) -> Effect:
    return Effect(key or f"k:{kind}", kind, "o", 1, pid, at)


def rows(*kinds: str) -> list[Effect]:
    return [row(kind) for kind in kinds]


def broken(effects: list[Effect], ends: dict[str, str]) -> list[str]:
    return [finding.name for finding in judge(effects, ends) if not finding.holds]


@pytest.fixture
def town(tmp_path: Path) -> Town:
    return Town.open(tmp_path / "books", pause_seconds=0.0)


# -- the judgement -----------------------------------------------------------------------------


def test_a_committed_order_with_all_its_effects_holds() -> None:
    assert broken(rows(*FORWARD), COMMITTED) == []


def test_a_compensated_order_with_everything_undone_holds() -> None:
    effects = rows(*FORWARD, "recall", "refund", "unreserve")

    assert broken(effects, COMPENSATED) == []


def test_a_compensated_order_that_never_did_anything_holds() -> None:
    assert broken([], COMPENSATED) == []


@pytest.mark.parametrize("kind", FORWARD)
@pytest.mark.parametrize("second_key", ["", "another run's key"])
def test_an_effect_done_twice_is_found_whatever_its_key(kind: str, second_key: str) -> None:
    effects = [*rows(*FORWARD), row(kind, key=second_key)]

    assert "effects done twice" in broken(effects, COMMITTED)


def test_an_undo_done_twice_is_found() -> None:
    effects = [*rows("reserve", "unreserve"), row("unreserve", key="other")]

    assert "effects done twice" in broken(effects, COMPENSATED)


def test_a_charged_order_that_was_neither_shipped_nor_refunded_is_found() -> None:
    assert "orders charged, neither shipped nor refunded" in broken(
        rows("reserve", "charge", "unreserve"), COMPENSATED
    )


def test_a_recalled_order_that_was_not_refunded_is_found() -> None:
    assert "orders charged, neither shipped nor refunded" in broken(
        rows(*FORWARD, "recall", "unreserve"), COMPENSATED
    )


def test_a_reserved_order_that_was_neither_shipped_nor_released_is_found() -> None:
    assert "orders reserved, neither shipped nor released" in broken(
        rows("reserve", "charge", "refund"), COMPENSATED
    )


def test_a_shipped_order_that_was_not_charged_is_found() -> None:
    assert "orders shipped, not charged" in broken(rows("reserve", "ship"), COMMITTED)


@pytest.mark.parametrize(
    "effects,ends",
    [
        pytest.param(rows(*FORWARD), COMPENSATED, id="all there, though undone"),
        pytest.param([], COMMITTED, id="nothing there, though committed"),
        pytest.param(rows("reserve", "charge"), COMMITTED, id="a part"),
        pytest.param(rows(*FORWARD), {"o": "ABORTED"}, id="not at its end"),
        pytest.param(rows(*FORWARD), {}, id="no run"),
    ],
)
def test_books_that_deny_the_end_of_a_run_are_found(
    effects: list[Effect], ends: dict[str, str]
) -> None:
    assert "orders whose books deny their run's end" in broken(effects, ends)


def test_a_finding_holds_only_when_it_is_empty() -> None:
    assert Finding("x", ()).holds
    assert not Finding("x", ("o",)).holds


def test_effects_are_counted_by_kind() -> None:
    counted = by_kind(rows("reserve", "reserve", "refund"))

    assert (counted["reserve"], counted["refund"], counted["ship"]) == (2, 1, 0)


def test_work_went_on_with_the_first_effect_of_a_process_born_after_the_kill() -> None:
    effects = [
        row("reserve", pid=1, at=1.0),
        row("charge", pid=1, at=2.1),  # written while it was dying
        row("charge", pid=2, at=3.5),
        row("ship", pid=2, at=3.0),
    ]

    assert went_on_at(effects, killed_at=2.0) == 3.0
    assert went_on_at(effects[:2], killed_at=2.0) is None


# -- the services ------------------------------------------------------------------------------


def test_a_service_that_is_called_twice_does_it_twice(town: Town) -> None:
    town.bank.charge("o", 100, "visa", key="k")
    town.bank.charge("o", 100, "visa", key="k")

    assert by_kind(town.effects())["charge"] == 2


def test_an_undo_is_done_once_a_key(town: Town) -> None:
    town.stock.reserve("o", 1, key="k")

    assert town.stock.release_if_reserved("k", key="u")
    assert town.stock.release_if_reserved("k", key="u")
    assert by_kind(town.effects())["unreserve"] == 1


def test_an_undo_of_what_never_happened_does_nothing(town: Town) -> None:
    assert not town.carrier.recall_if_shipped("k", key="u")
    assert town.effects() == []


def test_a_declined_card_is_not_charged(town: Town) -> None:
    with pytest.raises(CardDeclined):
        town.bank.charge("o", 100, "declined-1", key="k")

    assert town.bank.find_charge("k") is None


def test_a_place_out_of_reach_gets_no_parcel_and_a_lost_answer_does(town: Town) -> None:
    with pytest.raises(OutOfReach):
        town.carrier.ship("a", "Atlantis", 1, key="k1")
    with pytest.raises(NoAnswer):
        town.carrier.ship("b", "Skerries", 1, key="k2")

    assert [effect.order_id for effect in town.effects()] == ["b"]


def test_the_bank_finds_the_receipt_that_it_gave(town: Town) -> None:
    receipt = town.bank.charge("o", 100, "visa", key="k")

    assert town.bank.find_charge("k") == receipt


# -- the plan, the orders, the messages --------------------------------------------------------


def test_a_seed_repeats_its_plan_and_another_gives_another() -> None:
    assert draw_plan("7", 200, 3) == draw_plan("7", 200, 3)
    assert draw_plan("7", 200, 3) != draw_plan("8", 200, 3)


def test_there_are_200_orders_and_some_are_made_to_fail() -> None:
    orders = read_orders(200)

    assert len({order["id"] for order in orders}) == 200
    assert sum(order["card"].startswith("declined") for order in orders) >= 5
    assert sum(order["address"] == "Atlantis" for order in orders) >= 5
    assert sum(order["address"] == "Skerries" for order in orders) >= 1


@pytest.fixture
def mailbox(tmp_path: Path) -> Iterator[Connection]:
    folders = {"data_folder_in": tmp_path, "data_folder_out": tmp_path}
    options = {"control_folder": str(tmp_path / "control")} | {
        k: str(v) for k, v in folders.items()
    }
    with Connection(transport="examples.broker:Transport", transport_options=options) as connection:
        yield connection


def test_a_message_that_a_killed_publisher_left_half_written_is_never_read(
    mailbox: Connection, tmp_path: Path
) -> None:
    queue = mailbox.SimpleQueue(Queue("q", routing_key="q"))
    (tmp_path / "unfinished-1").write_text("{", encoding="utf-8")
    queue.put({"n": 1})

    assert queue.get(timeout=2).payload == {"n": 1}
    with pytest.raises(queue.Empty):
        queue.get(timeout=0.1)
    queue.close()


def test_progress_is_plain_lines_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    screen = Screen()

    screen.progress(1, 4, "a")
    screen.progress(2, 4, "b")  # within two seconds of the first
    screen.say("done")

    assert capsys.readouterr().out.splitlines() == [f"  [{'#' * 6}{'.' * 18}] 1/4 a", "done"]


# -- the demo itself ---------------------------------------------------------------------------


def play(tmp_path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "examples.demo", *options],
        cwd=ROOT,
        env=python_environment({"TMPDIR": str(tmp_path)}),
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


@pytest.mark.celery
@pytest.mark.crash
@pytest.mark.slow
def test_the_demo_holds_and_leaves_nothing_behind(tmp_path: Path) -> None:
    played = play(tmp_path, "--orders", "40", "--kills", "2", "--seed", "11")

    assert played.returncode == 0, played.stdout + played.stderr
    assert "effects done twice: 0" in played.stdout
    assert (
        ": nothing\n" not in played.stdout
    )  # a kill that met no run leaves "nothing to take over"
    assert "verify names a changed byte" in played.stdout
    assert "CORRUPT" in played.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.celery
@pytest.mark.crash
@pytest.mark.slow
def test_the_demo_holds_on_redis_and_leaves_no_key_behind(tmp_path: Path, redis_url: str) -> None:
    from redis import Redis

    played = play(tmp_path, "--orders", "40", "--kills", "1", "--seed", "12", "--broker", redis_url)

    assert played.returncode == 0, played.stdout + played.stderr
    with Redis.from_url(redis_url) as client:
        assert client.keys() == []


def test_the_demo_says_that_there_is_no_broker_and_fails(tmp_path: Path) -> None:
    played = play(tmp_path, "--orders", "1", "--broker", "redis://127.0.0.1:1/0")

    assert played.returncode == 1
    assert "no broker at redis://127.0.0.1:1/0" in played.stdout
    assert "Traceback" not in played.stdout + played.stderr
