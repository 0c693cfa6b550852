"""Our pages are loaded where Flower runs and nowhere else, and Flower starts whatever becomes of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from flower import urls
from tornado.template import Loader
from tornado.web import url

from celery_commander.tasks import pages
from celery_commander.tasks.flower import mount
from celery_commander.tasks.flower.loader import Templates
from celery_commander.tasks.flower.mount import RUNS
from tests.kit import kill, wait_until
from tests.kit.flower import celery_flower
from tests.kit.group import process_group
from tests.kit.workers import python_environment

APP = "tests.flower.loaded"
OURS = "celery_commander.tasks.flower"
COMMANDS = {
    "worker": ["--pool", "solo", "--without-mingle", "--without-gossip"],
    "beat": ["--max-interval=1"],
}


@pytest.fixture
def flowers(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Give Flower's list of pages as it is before anybody adds to it."""
    ours = "commander-"
    untouched = [each for each in urls.handlers if ours not in str(getattr(each, "name", None))]
    monkeypatch.setattr(urls, "handlers", untouched)
    monkeypatch.setattr(urls, "settings", dict(urls.settings))
    return untouched


@pytest.mark.celery
@pytest.mark.parametrize("command", COMMANDS)
def test_a_worker_or_beat_never_loads_the_pages(tmp_path: Path, command: str) -> None:
    arguments = [sys.executable, "-m", "celery", "-A", APP, command, *COMMANDS[command]]
    environment = python_environment({"LOADED_DIRECTORY": str(tmp_path)})
    loaded = tmp_path / "loaded"
    with process_group(arguments, tmp_path, name=command, env=environment) as group:
        wait_until(loaded.exists, what=group.tail)
        kill(group.process.pid)  # it has told all it knows
    assert "flower.urls" in loaded.read_text().split()  # Celery loads its plug-ins everywhere
    assert OURS not in loaded.read_text()


def test_a_script_loads_neither_flower_nor_tornado() -> None:
    code = (
        "import sys, celery_commander.tasks as tasks; from celery import Celery\n"
        "tasks.Commander(Celery('script'))\n"
        "print([name for name in sys.modules if {'flower', 'tornado'} & set(name.split('.'))])"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        env=python_environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout == "[]\n"


@pytest.mark.parametrize(
    "arguments, loads", [(["flower"], True), (["worker"], False), (["other"], False)]
)
def test_the_command_that_is_run_decides(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], loads: bool
) -> None:
    """As `celery` does: the app is imported before the command itself begins."""
    seen: list[bool] = []

    @click.group()
    def celery() -> None:
        seen.append(pages._runs_flower())

    for name in ("flower", "worker", "other"):
        celery.command(name)(lambda: seen.append(pages._runs_flower()))
    celery.main(arguments, standalone_mode=False)
    assert seen == [loads, loads]
    assert not pages._runs_flower()


def test_pages_come_before_the_one_for_unknown_addresses_and_only_once(flowers: list[Any]) -> None:
    length = len(flowers)
    mount()
    mount()
    assert [handler.name for handler in flowers[length - 1 : -1]] == [
        RUNS,
        "commander-run",
        "commander-health",
        "commander-health-detailed",
    ]
    assert all(
        isinstance(each, url) for each in flowers[length - 1 : -1]
    )  # so a prefix is put before
    assert len(flowers) == length + 4
    assert isinstance(urls.settings["template_loader"], Templates)


@pytest.mark.celery
def test_a_flower_that_we_do_not_know_runs_without_our_pages(tmp_path: Path) -> None:
    strange = tmp_path / "sitecustomize.py"
    strange.write_text("import flower.urls\ndel flower.urls.settings['template_path']\n")
    environment = {"LOADED_DIRECTORY": str(tmp_path), "PYTHONPATH": _before_ours(tmp_path)}
    with celery_flower(APP, tmp_path, env=environment) as flower:
        assert flower.get("/durable-runs").status in (404, 500)
        assert "runs without the pages of celery-commander" in flower.group.log()


def _before_ours(directory: Path) -> str:
    return f"{directory}:{python_environment()['PYTHONPATH']}"


def test_every_other_template_is_flowers_own() -> None:
    root = urls.settings["template_path"]
    for name in ("base.html", "workers.html", "tasks.html", "404.html"):
        assert Templates(root).load(name).code == Loader(root).load(name).code


def test_a_navigation_that_is_drawn_otherwise_is_left_as_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "navbar.html").write_text("<nav>none</nav>")
    assert Templates(str(tmp_path)).load("navbar.html").generate() == b"<nav>none</nav>"
    assert "has no list" in caplog.text
