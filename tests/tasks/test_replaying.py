"""A body is run over its records without an effect; what has changed in it is named by its place."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from celery_commander.engine import NonDeterministic, UnknownTask
from celery_commander.tasks import (
    Commander,
    HistoryUnreadable,
    Verdict,
    current_run,
    replay_history,
    step,
)
from celery_commander.tasks.kept_history import exported
from celery_commander.tasks.replaying import Replayed, rehearse
from tests.tasks.bench import Bench
from tests.tasks.cli_kit import answer, invoke


class Shop:
    """A body whose code a test changes, and what it did to the world."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.calls: list[str] = []

        @step
        def charge(cents: int) -> str:
            self.calls.append(f"charge {cents}")
            return f"receipt {cents}"

        @step
        def ship(where: str) -> str:
            self.calls.append(f"ship {where}")
            return f"parcel {where}"

        self.charge, self.ship = charge, ship

    def note(self, text: str) -> str:
        self.calls.append(f"note {text}")
        return text.upper()

    def original(self, task: Any) -> list[Any]:
        receipt = self.charge(7)
        note = current_run.record(self.note, "hello")
        if task.request.retries == 0:
            raise task.retry(countdown=0)
        return [receipt, note, self.ship("here"), str(current_run.now())]

    def deploy(self, body: Callable[..., Any]) -> None:
        def order(task: Any) -> Any:
            return body(task)

        self.bench.app.tasks.pop("order", None)
        self.bench.task(order, bind=True)

    def start(self) -> str:
        self.deploy(self.original)
        self.bench.run_id = self.bench.send("order")
        self.bench.deliver(self.bench.run_id)
        return self.bench.run_id

    def finish(self) -> None:
        assert self.bench.deliver(self.bench.run_id, retries=1)[0] == "SUCCESS"

    def rehearsed(self) -> Replayed:
        return rehearse(self.bench.app.commander, self.bench.history(self.bench.run_id))


@pytest.fixture
def shop(bench: Bench) -> Shop:
    return Shop(bench)


def everything(bench: Bench) -> list[tuple[int, str]]:
    return [(e.seq, e.type) for e in bench.app.commander.engine.read_from(None)]


def test_the_same_body_meets_its_records_and_ends_where_they_end(shop: Shop) -> None:
    shop.start()
    before, calls = everything(shop.bench), list(shop.calls)
    found = shop.rehearsed()
    assert (found.verdict, found.steps) == (Verdict.SAME, 2)
    assert "step Shop.__init__.<locals>.ship" in found.end
    assert (everything(shop.bench), shop.calls) == (before, calls)
    shop.finish()
    found = shop.rehearsed()
    assert (found.verdict, found.steps, found.end) == (Verdict.SAME, 4, "it returns")


def charges_more(shop: Shop) -> Callable[..., Any]:
    return lambda _: shop.charge(8)


def ships_first(shop: Shop) -> Callable[..., Any]:
    return lambda _: [shop.ship("here"), shop.charge(7)]


def asks_less(shop: Shop) -> Callable[..., Any]:
    return lambda _: shop.charge(7)


def notes_else(shop: Shop) -> Callable[..., Any]:
    return lambda _: [shop.charge(7), current_run.record(shop.note, "bye")]


def raises(shop: Shop) -> Callable[..., Any]:
    def body(_: Any) -> None:
        shop.charge(7)
        raise LookupError("new")

    return body


@pytest.mark.parametrize(
    "change, index, recorded, found",
    [
        (charges_more, 0, "charge", "with other arguments"),
        (ships_first, 0, "charge", "ship"),
        (asks_less, 1, "note", "the body returned"),
        (notes_else, 1, "note", "with other arguments"),
        (raises, 1, "more steps", "LookupError: new"),
    ],
)
def test_a_changed_body_is_named_with_its_place_and_both_sides_before_any_effect(
    shop: Shop, change: Any, index: int, recorded: str, found: str
) -> None:
    shop.start()
    before, calls = everything(shop.bench), list(shop.calls)
    shop.deploy(change(shop))
    told = shop.rehearsed()
    assert (told.verdict, told.index) == (Verdict.DIVERGED, index)
    assert recorded in str(told.recorded)
    assert found in str(told.found)
    assert (everything(shop.bench), shop.calls) == (before, calls)
    with pytest.raises(NonDeterministic):
        told.check()


def test_a_committed_run_must_come_to_its_end_and_its_result(shop: Shop) -> None:
    shop.start()
    shop.finish()

    def other_result(_: Any) -> list[Any]:
        shop.charge(7)
        current_run.record(shop.note, "hello")
        shop.ship("here")
        current_run.now()
        return ["something else"]

    shop.deploy(other_result)
    assert shop.rehearsed().found == "another result"

    def one_more(task: Any) -> Any:
        result = shop.original(task)
        shop.ship("there")
        return result

    shop.deploy(one_more)
    told = shop.rehearsed()
    assert (told.verdict, told.recorded) == (Verdict.DIVERGED, "the run's end")
    assert "ship there" not in shop.calls


def test_a_body_that_raised_must_raise_the_same(bench: Bench) -> None:
    words = ["no"]

    def body() -> None:
        raise LookupError(words[0])

    assert bench.run(body)[0] == "FAILURE"
    commander, history = bench.app.commander, bench.history(bench.run_id)
    assert rehearse(commander, history).verdict is Verdict.SAME
    words[0] = "yes"
    told = rehearse(commander, history)
    assert (told.recorded, told.found) == ("LookupError: no", "LookupError: yes")


def test_nothing_is_sent_and_no_checkpoint_is_saved(bench: Bench) -> None:
    other = bench.task(lambda_free, name="other")

    def body() -> str:
        current_run.checkpoint({"a": 1})
        result = other.delay()
        current_run.checkpoint({"a": 2})
        return str(type(result).__name__)

    assert bench.run(body)[0] == "SUCCESS"
    before = everything(bench)
    assert rehearse(bench.app.commander, bench.history(bench.run_id)).verdict is Verdict.SAME
    assert everything(bench) == before


def lambda_free() -> None: ...


def test_a_task_that_the_app_does_not_know_is_said_so(shop: Shop) -> None:
    shop.start()
    shop.bench.app.tasks.pop("order")
    with pytest.raises(UnknownTask):
        shop.rehearsed()


# --- histories outside a log ----------------------------------------------------------------------


@pytest.fixture
def kept(shop: Shop, tmp_path: Path) -> Path:
    run_id = shop.start()
    shop.finish()
    path = tmp_path / "order.json"
    path.write_text(json.dumps(exported(shop.bench.app.commander, run_id)), encoding="utf-8")
    return path


def elsewhere(tmp_path: Path, body: Callable[..., Any]) -> Celery:
    """An app of a test suite, without a log or a broker."""
    app = Celery("suite", broker="redis://127.0.0.1:1", backend="cache+memory://")
    Commander(app, state_directory=tmp_path / "never made")

    def order(task: Any) -> Any:
        return body(task)

    app.task(name="order", durable=True, shared=False, bind=True)(order)
    return app


def test_an_exported_history_is_replayed_without_log_and_broker(
    shop: Shop, kept: Path, tmp_path: Path
) -> None:
    app = elsewhere(tmp_path, shop.original)
    assert replay_history(app, kept).end == "it returns"
    assert replay_history(app, json.loads(kept.read_text())).verdict is Verdict.SAME
    with pytest.raises(NonDeterministic, match="ship"):
        replay_history(elsewhere(tmp_path, ships_first(shop)), kept)
    assert not (tmp_path / "never made").exists()


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"format": "x", "run_id": "r", "events": []}', "[[[", '{"format": 1}', "\0"],
)
def test_what_is_no_exported_history_is_refused(shop: Shop, tmp_path: Path, text: str) -> None:
    path = tmp_path / "not one.json"
    path.write_text(text)
    with pytest.raises(HistoryUnreadable):
        replay_history(elsewhere(tmp_path, shop.original), path)
    with pytest.raises(HistoryUnreadable):
        replay_history(elsewhere(tmp_path, shop.original), tmp_path / "missing.json")


# --- the commands ---------------------------------------------------------------------------------


def test_the_command_replays_a_run_a_file_and_all_that_are_unfinished(
    shop: Shop, tmp_path: Path
) -> None:
    app, run_id = shop.bench.app, shop.start()
    document = answer(app, "history", run_id)
    path = tmp_path / "kept.json"
    path.write_text(json.dumps(document))
    assert answer(app, "replay", run_id)["verdict"] == "same"
    assert answer(app, "replay", "--file", str(path))["steps"] == 2
    assert answer(app, "replay", "--all", "--check")["counts"]["same"] == 1

    shop.deploy(ships_first(shop))
    told = invoke(app, "replay", run_id)
    assert told.exit_code == 3
    assert "place 0: recorded step Shop.__init__.<locals>.charge, found" in told.output
    assert invoke(app, "replay", "--file", str(path)).exit_code == 3
    assert invoke(app, "replay", "--all").exit_code == 0
    told = invoke(app, "replay", "--all", "--check")
    assert told.exit_code == 3
    assert "0 same, 1 diverged" in told.output
    assert invoke(app, "replay", "--all", "--check", "--task", "another").exit_code == 0

    app.tasks.pop("order")
    assert invoke(app, "replay", "--all", "--check").exit_code == 4
    for asked in ((run_id,), ("--file", str(path))):
        told = invoke(app, "replay", *asked)
        assert told.exit_code == 4
        assert "order" in told.output


def test_one_that_cannot_be_told_stops_none_of_the_others(shop: Shop) -> None:
    app, first = shop.bench.app, shop.start()
    engine = app.commander.engine
    life = engine.history(first)[0].payload
    broken = life | {"message": life["message"] | {"body": "no arguments"}}
    engine.append("run.created", broken, run_id="0 before the other")
    told = answer(app, "replay", "--all")
    assert told["counts"] == {"same": 1, "diverged": 0, "not replayable": 1}
    assert [run["run_id"] for run in told["runs"]] == ["0 before the other"]
    assert invoke(app, "replay", "--all", "--check").exit_code == 4


def test_finished_runs_are_replayed_where_their_state_is_asked_for(shop: Shop) -> None:
    app = shop.bench.app
    shop.start()
    shop.finish()
    shop.start()
    assert answer(app, "replay", "--all")["counts"]["same"] == 1
    assert answer(app, "replay", "--all", "--state", "committed")["counts"]["same"] == 1
    both = ("--state", "COMMITTED", "--state", "PAUSED")
    assert answer(app, "replay", "--all", *both)["counts"]["same"] == 2
    assert answer(app, "replay", "--all", *both, "--task", "another")["counts"]["same"] == 0
    shop.deploy(ships_first(shop))
    told = invoke(app, "replay", "--all", "--check", *both)
    assert told.exit_code == 3
    assert told.output.index("PAUSED") < told.output.index("COMMITTED")
    assert invoke(app, "replay", shop.bench.run_id, "--check").exit_code == 2


def test_the_commands_say_what_is_wrong_with_the_question(shop: Shop, tmp_path: Path) -> None:
    app = shop.bench.app
    shop.start()
    for asked in ([], ["x", "--all"], ["--all", "--file", "x"]):
        assert invoke(app, "replay", *asked).exit_code == 2
    for asked in (["replay", "nobody"], ["history", "nobody"], ["history", "nobody", "--json"]):
        told = invoke(app, *asked)
        assert told.exit_code == 1
        assert "nobody" in told.output
    told = invoke(app, "replay", "--file", str(tmp_path / "missing"))
    assert told.exit_code == 1
    assert "missing" in told.output
    assert "charge" in invoke(app, "history", shop.bench.run_id).output
