"""What people see: durable runs in a real Flower, in a real Chromium, over a real log."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from urllib.parse import quote

import pytest

from celery_commander.engine import EventSourcingEngine
from tests.flower.conftest import INJECTED, ROWS, USER, Past
from tests.kit import DeadlinePassed, wait_until
from tests.kit.browser import Browser
from tests.kit.flower import Flower

pytestmark = [pytest.mark.celery, pytest.mark.slow]

LIST, STEPS, EVENTS = "#durable-runs-table", "#durable-steps", "#durable-events"
Photograph = Callable[[str], None]


def column(rows: list[list[str]], number: int) -> list[str]:
    return [row[number] for row in rows]


def test_the_list_shows_every_run_with_its_state_page_by_page(
    past: Past, flower: Flower, browser: Browser, photograph: Photograph
) -> None:
    browser.open(f"{flower.url}/durable-runs")
    photograph("list")
    assert f"All {past.runs}" in browser.text(".task-state-filters")
    assert f"Committed {past.runs - 1}" in browser.text(".task-state-filters")
    assert "Compensated 1" in browser.text(".task-state-filters")
    assert "the log is right" in browser.text()

    seen = browser.table(LIST)
    while "Next" in browser.text("#durable-runs"):
        assert len(browser.table(LIST)) == ROWS
        browser.click("Next")
        seen += browser.table(LIST)

    states = dict(zip(column(seen, 0), column(seen, 2), strict=True))
    assert len(seen) == len(states) == past.runs
    assert states.pop(past.refused) == "COMPENSATED"
    assert set(states.values()) == {"COMMITTED"}
    assert set(column(seen, 3)) == {"yes"}


@pytest.mark.parametrize("asked", ["0", "-1", "999", "9" * 40, "x", "٣"])
def test_a_page_that_is_none_is_the_nearest_one(
    past: Past, flower: Flower, browser: Browser, asked: str
) -> None:
    browser.open(f"{flower.url}/durable-runs?page={quote(asked)}")
    assert 1 <= len(browser.table(LIST)) <= ROWS
    assert f"of {past.runs}" in browser.text("#durable-runs")


def test_runs_are_found_by_state_by_task_and_by_the_beginning_of_an_id(
    past: Past, flower: Flower, browser: Browser
) -> None:
    browser.open(f"{flower.url}/durable-runs")
    browser.click("Compensated 1")
    assert column(browser.table(LIST), 0) == [past.refused]
    assert "Runs: 1-1 of 1" in browser.text("#durable-runs")

    browser.open(f"{flower.url}/durable-runs?task=flow_safe")
    assert column(browser.table(LIST), 0) == [past.recovered]
    assert "Committed 1" in browser.text(".task-state-filters")

    browser.open(f"{flower.url}/durable-runs?q={past.recovered[:13]}")
    assert browser.text("#durable-run-id") == past.recovered

    browser.open(f"{flower.url}/durable-runs?q=zzz")
    assert browser.text(LIST).endswith("No durable runs here")


def test_a_run_that_was_taken_over_tells_its_whole_story(
    past: Past, flower: Flower, browser: Browser, photograph: Photograph
) -> None:
    browser.open(f"{flower.url}/durable-run/{past.recovered}")
    photograph("recovered run")
    assert browser.text("#durable-state") == "COMMITTED"
    assert browser.text("#durable-holder") == "nobody"
    assert "attempt 2" in browser.text()
    steps = browser.table(STEPS)
    assert column(steps, 3) == ["completed"] * 3
    assert column(steps, 4) == ["1", "2", "1"]  # the step that was cut off ran again

    events = browser.table(EVENTS)
    for number in range(2, 1 + _pages(browser)):
        browser.open(f"{flower.url}/durable-run/{past.recovered}?events={number}")
        events += browser.table(EVENTS)
    types = column(events, 2)
    assert types == past.deployment.types(past.recovered)
    assert {"run.created", "run.fenced", "run.requeued", "run.committed"} <= set(types)
    assert "death=True" in events[types.index("run.requeued")][4]


def test_a_rolled_back_run_shows_what_was_undone(
    past: Past, flower: Flower, browser: Browser, photograph: Photograph
) -> None:
    browser.open(f"{flower.url}/durable-run/{past.refused}")
    photograph("compensated run")
    steps = browser.table(STEPS)
    assert column(steps, 3) == ["completed", "completed", "failed"]
    assert column(steps, 6) == [
        "completed",
        "completed",
        "",
    ]  # the third said that nothing happened


def test_an_event_that_does_not_count_is_shown_as_void(
    past: Past, flower: Flower, browser: Browser
) -> None:
    with EventSourcingEngine.open(past.deployment.app.commander.engine_settings) as engine:
        late = engine.append("run.cancelled", {"reason": "late", "sent": True}, run_id=past.tiny[0])
    browser.open(f"{flower.url}/durable-run/{past.tiny[0]}?events=99")
    (row,) = [row for row in browser.table(EVENTS) if row[0] == str(late.seq)]
    assert row[4].startswith("VOID too late: the run is COMMITTED")


def test_a_restarted_flower_shows_the_same_although_it_has_seen_nothing(
    past: Past, flower: Flower, browser: Browser, photograph: Photograph
) -> None:
    """Flower's own list is what it saw; ours is what was written. See mher/flower issue 203."""

    def pages(of: Flower) -> list[list[list[str]]]:
        browser.open(f"{of.url}/durable-runs")
        shown = [browser.table(LIST)]
        browser.open(f"{of.url}/durable-run/{past.recovered}")
        return [*shown, browser.table(STEPS), browser.table(EVENTS)]

    before = pages(flower)
    with past.flower() as restarted:
        assert pages(restarted) == before
        assert "has seen no event of this task" in browser.text("#durable-seen")
        browser.open(f"{restarted.url}/tasks")
        photograph("flower's own list after a restart")
        wait_until(lambda: "No " in browser.text("#tasks-table"), what="Flower's empty list")


def test_a_run_leads_to_flowers_own_page_when_flower_saw_it(
    past: Past, flower: Flower, browser: Browser
) -> None:
    def seen() -> str | None:
        """Send a run and return it if Flower saw its end; one that came before Flower listened it never sees."""
        run_id = past.deployment.send("tiny", 1000)
        past.deployment.wait_ended(run_id)
        with suppress(DeadlinePassed):
            wait_until(
                lambda: "SUCCESS, as Flower saw it" in flower.get(f"/durable-run/{run_id}").text,
                seconds=5,
            )
            return run_id
        return None

    run_id = wait_until(seen, what="Flower to see the end of a task")
    browser.open(f"{flower.url}/durable-run/{run_id}")
    browser.click("SUCCESS, as Flower saw it")
    assert browser.script("return location.pathname") == f"/task/{run_id}"


def test_pages_stand_in_flowers_navigation_behind_its_prefix_and_password(
    past: Past, guarded: Flower, browser: Browser, photograph: Photograph
) -> None:
    browser.open(f"{guarded.url}/", user=USER)
    entries = browser.text(".navbar-nav").split("\n")
    assert (entries[:3], entries[-1]) == (["Workers", "Tasks", "Broker"], "Durable runs")
    browser.click("Durable runs")
    assert browser.script("return location.pathname") == "/ops/flower/durable-runs"
    assert browser.text(".navbar-nav a.active") == "Durable runs"
    browser.click("Compensated 1")
    browser.click(past.refused)
    assert browser.script("return location.pathname") == f"/ops/flower/durable-run/{past.refused}"
    browser.click("Show values")
    photograph("values")
    assert "one of bob" in browser.text(STEPS)
    browser.click("Hide values")
    assert "one of bob" not in browser.text()


@pytest.mark.parametrize("prefix", ["", "?page=2", "?page=3"])
def test_an_id_that_is_an_injection_is_only_text(
    flower: Flower, browser: Browser, prefix: str
) -> None:
    browser.open(f"{flower.url}/durable-runs{prefix}")
    if INJECTED in column(browser.table(LIST), 0):
        browser.click(INJECTED)
        assert browser.text("#durable-run-id") == INJECTED


def test_what_somebody_asks_for_or_names_a_task_is_only_text(
    past: Past, flower: Flower, browser: Browser
) -> None:
    script = '"></option></script><script>window.hacked=2</script>'
    created: dict[str, Any] = {
        "task": script,
        "namespace": script,
        "message": {},
        "due": None,
        "key": None,
    }
    started = {"task": script, "attempt": 1, "holder": script}
    with EventSourcingEngine.open(past.deployment.app.commander.engine_settings) as engine:
        engine.append("run.created", created, run_id="other/<b>")
        engine.append("run.started", started, run_id="other/<b>", token=1, n=1)
    try:
        for query in ("q", "task"):
            browser.open(f"{flower.url}/durable-runs?{query}={quote(script)}")
            assert (
                browser.script("return document.querySelectorAll('#durable-runs script').length")
                == 0
            )
        assert column(browser.table(LIST), 1) == [script]
        browser.open(f"{flower.url}/durable-runs?q=other")
        assert browser.text("#durable-run-id") == "other/<b>"
        assert column(browser.table(EVENTS), 4)[0] == f"task={script} namespace={script}"
        assert flower.get(f"/durable-run/{quote(script)}").status == 404
    finally:
        with EventSourcingEngine.open(past.deployment.app.commander.engine_settings) as engine:
            engine.append("run.degraded", {"task": script}, run_id="other/<b>")


def _pages(browser: Browser) -> int:
    found = re.search(r"Events \S+ of \S+, page \d+ of (\d+)", browser.text())
    assert found is not None
    return int(found[1])


def test_a_run_that_was_compacted_away_still_shows_how_it_ended(
    past: Past, flower: Flower, browser: Browser
) -> None:
    with EventSourcingEngine.open(past.deployment.app.commander.engine_settings) as engine:
        engine.snapshot("s")
        engine.compact("s")

    browser.open(f"{flower.url}/durable-run/{past.recovered}")

    assert browser.text("#durable-state") == "COMMITTED"
    assert "compacted away" in browser.text("#durable-archived")
    assert browser.text(EVENTS).count("run.created") == 0
