"""Who may see what, and what is answered when there is nothing to see: a real Flower, asked without a browser."""

from __future__ import annotations

import os
import shutil
import socket
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tornado.web import create_signed_value

from tests.celery.conftest import Deployment
from tests.flower.conftest import USER, MakeFlower, Past
from tests.kit.flower import Flower
from tests.tasks.cli_kit import snapshot

pytestmark = [pytest.mark.celery, pytest.mark.slow]


@pytest.mark.parametrize("page", ["/durable-runs", "/durable-run/nothing"])
def test_a_page_wants_the_password_that_flower_wants(guarded: Flower, page: str) -> None:
    assert guarded.get(page).status == 401
    assert guarded.get(page, user="ann:wrong").status == 401
    assert guarded.get(page, user=USER).status in (200, 404)


def test_a_page_sends_a_stranger_to_the_login_that_flower_has(past: Past) -> None:
    options = (
        "--auth=ann@example.com", "--auth_provider=flower.views.auth.GithubLoginHandler",
        "--oauth2_key=key", "--oauth2_secret=secret", "--cookie_secret=for a test",
        "--oauth2_redirect_uri=http://127.0.0.1/login",
    )  # fmt: skip
    with past.flower(*options) as flower:
        stranger = flower.get("/durable-runs")
        known = flower.get("/durable-runs", cookie=_cookie("ann@example.com"))
        other = flower.get("/durable-runs", cookie=_cookie("ann@example.org"))
        health = flower.get("/health/detailed", cookie=_cookie("ann@example.com"))
        anonymous = flower.get("/health/detailed")
    assert (stranger.status, known.status, other.status) == (302, 200, 302)
    assert str(stranger.headers["Location"]).startswith("/login?")
    assert "reasons" in health.json()
    assert "reasons" not in anonymous.json()


def test_without_authentication_nothing_is_shown_of_what_went_in_or_came_out(
    past: Past, flower: Flower, guarded: Flower
) -> None:
    page = f"/durable-run/{past.recovered}?values=1"
    assert "one of kim" not in flower.get(page).text
    assert "kim" in guarded.get(page, user=USER).text


def test_what_a_format_task_may_hide_is_hidden(past: Past, tmp_path: Path) -> None:
    conf = tmp_path / "flowerconfig.py"
    conf.write_text(f"basic_auth = [{USER!r}]\nformat_task = lambda task: task\n")
    with past.flower(f"--conf={conf}") as flower:
        shown = flower.get(f"/durable-run/{past.recovered}?values=1", user=USER)
    assert shown.status == 200
    assert "one of kim" not in shown.text


def test_detailed_health_has_only_numbers_for_whom_flower_does_not_know(
    past: Past, flower: Flower, guarded: Flower
) -> None:
    for answer in (flower.get("/health/detailed"), guarded.get("/health/detailed")):
        assert answer.status == 200
        assert answer.headers["Cache-Control"] == "no-store"
        assert set(answer.json()) == {"status", "metrics"}
        assert answer.json()["metrics"]["live_log_size"]["value"] > 0
        assert str(past.deployment.directory) not in answer.text
        assert past.recovered not in answer.text
    assert isinstance(guarded.get("/health/detailed", user=USER).json()["reasons"], list)
    assert guarded.get("/health/detailed", user="ann:wrong").status == 401


def test_health_fails_while_the_log_is_gone_and_mends_when_it_is_back(
    past: Past, flower: Flower, guarded: Flower
) -> None:
    log = past.deployment.app.commander.engine_settings.event_sourcing_wal
    assert flower.get("/health").json() == {"status": "ok"}
    with _moved_away(log):
        log.write_bytes(b"somebody else's file\n")
        failing = flower.get("/health")
        detailed = flower.get("/health/detailed")
        told = guarded.get("/health/detailed", user=USER)
    assert (failing.status, failing.json()) == (503, {"status": "failing"})
    assert (detailed.status, detailed.json()["status"]) == (503, "unhealthy")
    assert set(detailed.json()) == {"status", "metrics"}
    assert str(log) in " ".join(told.json()["reasons"])
    assert flower.get("/health").status == 200
    assert flower.get("/health/detailed").status == 200
    assert flower.get("/health", method="HEAD").status == 200


def test_a_log_that_is_gone_is_told_without_its_path_unless_flower_knows_who_asks(
    past: Past, flower: Flower, guarded: Flower
) -> None:
    log = past.deployment.app.commander.engine_settings.event_sourcing_wal
    with _moved_away(log):
        answer = flower.get("/durable-runs")
        told = guarded.get("/durable-runs", user=USER)
    assert (answer.status, told.status) == (503, 503)
    assert "The log cannot be read now" in answer.text
    assert str(log) not in answer.text
    assert str(log) in told.text
    assert flower.get("/durable-runs").status == 200


def test_flower_makes_no_log_where_there_is_none(
    flower_of: Callable[[Deployment], MakeFlower], untouched: Deployment
) -> None:
    # With this variable Flower itself lets every site read what it answers.
    with flower_of(untouched)(FLOWER_UNAUTHENTICATED_API="true") as flower:
        assert flower.get("/healthcheck").headers["Access-Control-Allow-Origin"] == "*"
        assert "Access-Control-Allow-Origin" not in flower.get("/health/detailed").headers
        assert flower.get("/durable-runs").status == 503
        assert flower.get("/health/detailed").status == 503
        assert flower.get("/health").status == 200
    assert not (untouched.directory / "state").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_a_log_of_another_user_is_read_and_nothing_is_written_beside_it(
    past: Past, flower: Flower, tmp_path: Path, flower_of: Callable[[Deployment], MakeFlower]
) -> None:
    state = past.deployment.directory / "state"
    copy = tmp_path / "state"
    shutil.copytree(state, copy)
    for path in (copy, *copy.rglob("*")):
        os.chown(path, 65534, 65534)
    before = snapshot(copy)
    with flower_of(past.deployment)(TEST_DIRECTORY=str(tmp_path)) as other:
        runs, run = other.get("/durable-runs"), other.get(f"/durable-run/{past.recovered}")
        health = other.get("/health/detailed")
    assert _table(runs.text) == _table(flower.get("/durable-runs").text)
    assert run.status == 200
    assert "only the user whose workers write the log" in run.text
    assert health.status == 503
    assert snapshot(copy) == before


def test_a_page_that_waits_for_the_ledger_stops_nobody_else(past: Past, flower: Flower) -> None:
    commander = past.deployment.app.commander
    assert (
        flower.get("/durable-runs").status == 200
    )  # everything is open; only the fold is left to wait for
    port = urlsplit(flower.url).port
    assert port is not None
    with (
        closing(sqlite3.connect(commander.engine_settings.ledger_path)) as ledger,
        socket.create_connection(("127.0.0.1", port), timeout=30) as asking,
    ):
        ledger.isolation_level = None
        ledger.execute("BEGIN IMMEDIATE")
        commander.engine.append("task.sent", {"task": "x"}, run_id=past.tiny[0])
        asking.sendall(b"GET /durable-runs HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert flower.get("/healthcheck").status == 200  # came later, is answered first
        asking.setblocking(False)
        with pytest.raises(BlockingIOError):
            asking.recv(1)
        ledger.execute("ROLLBACK")
        asking.settimeout(30)
        assert asking.recv(12) == b"HTTP/1.1 200"


@pytest.fixture
def untouched(tmp_path: Path) -> Deployment:
    """Give a deployment in which nothing ever ran."""
    directory = tmp_path / "empty"
    directory.mkdir()
    return Deployment(directory, None, ExitStack())


@contextmanager
def _moved_away(path: Path) -> Iterator[None]:
    away = path.with_name("away")
    path.rename(away)
    try:
        yield
    finally:
        away.rename(path)


def _cookie(user: str) -> str:
    return f"user={create_signed_value('for a test', 'user', user).decode()}"


def _table(page: str) -> str:
    return page[page.index('<table id="durable-runs-table"') : page.index("</table>")]
