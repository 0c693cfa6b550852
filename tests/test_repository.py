"""What stands around the code: the make targets, CI, the packaging, the compose file, the papers."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import stat
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any, get_type_hints

import pytest
import yaml

from celery_commander.tasks import Undo
from tests import settings_page
from tests.source_tree import ROOMS, ROOT, sources

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]
ENTRY_POINTS = [
    *PROJECT["project"]["scripts"].values(),
    *PROJECT["project"]["entry-points"]["celery.commands"].values(),
]


def make(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {
        key: value for key, value in os.environ.items() if key not in ("MAKEFLAGS", "CI")
    }
    return subprocess.run(
        ["make", *arguments], cwd=cwd, env=environment, capture_output=True, text=True
    )


@pytest.fixture
def bare_copy(tmp_path: Path) -> Path:
    """Give what `make install` reads, without anything installed."""
    for name in ("Makefile", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    for room in ROOMS:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / room, tmp_path / room, ignore=ignored)
    return tmp_path


def test_help_names_every_target() -> None:
    told = make("help", cwd=ROOT).stdout
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    phony = re.search(r"^\.PHONY: (.*)$", text, re.MULTILINE)
    assert phony is not None
    documented = set(re.findall(r"^  make (\S+)", told, re.MULTILINE))
    assert documented == set(phony[1].split())


def test_a_python_that_cannot_make_environments_is_told_the_line_that_mends_it(
    bare_copy: Path,
) -> None:
    python = bare_copy / "python3"
    python.write_text('#!/bin/sh\nmkdir -p "$4"; echo ensurepip is not available; exit 1\n')
    python.chmod(0o755)
    done = make("demo", f"PYTHON={python}", cwd=bare_copy)
    assert done.returncode != 0
    assert "sudo apt-get install python3-venv" in done.stdout
    assert not (bare_copy / ".venv").exists()


def test_a_machine_without_a_new_enough_python_is_told_so(bare_copy: Path) -> None:
    done = make("demo", "PYTHON=", cwd=bare_copy)
    assert done.returncode != 0
    assert "Python 3.11 or newer is needed" in done.stdout


def test_ci_runs_the_same_command_as_everybody() -> None:
    script = ROOT / ".ci" / "run"
    text = script.read_text(encoding="utf-8")
    assert script.stat().st_mode & stat.S_IXUSR
    assert "set -euo pipefail" in text
    assert text.rstrip().endswith("exec make test")


def test_the_floors_are_those_of_the_dependencies() -> None:
    project = PROJECT["project"]
    extras = project["optional-dependencies"]
    declared = [*project["dependencies"], *extras["redis"], *extras["postgres"], *extras["signing"]]
    # Of the tools the one without which no test of `make test-floors` runs as it should.
    declared += [each for each in extras["dev"] if each.startswith("pytest-xdist")]
    floors = {
        line.replace("==", ">=")
        for line in (ROOT / "tests" / "floors.txt").read_text(encoding="utf-8").splitlines()
        if line and not line.startswith("#")
    }
    assert {re.sub(r"\[.*?\]", "", each) for each in declared} == floors


def test_the_redis_extra_is_celerys_own_which_brings_what_the_transport_imports() -> None:
    asked = PROJECT["project"]["optional-dependencies"]["redis"]
    assert any(each.startswith("celery[redis]") for each in asked)


@pytest.mark.parametrize("target", ENTRY_POINTS)
def test_an_entry_point_leads_to_something_callable(target: str) -> None:
    module, _, name = target.partition(":")
    assert callable(getattr(importlib.import_module(module), name))


@pytest.mark.slow
def test_a_wheel_holds_every_file_of_the_rooms(bare_copy: Path) -> None:
    options = ["--quiet", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", "wheels"]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, "."], check=True, cwd=bare_copy)
    (wheel,) = (bare_copy / "wheels").iterdir()
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    written = {f"celery_commander/{source}" for source in sources(*ROOMS)}
    typed = {f"celery_commander/{room}/py.typed" for room in ROOMS}
    drawn = {
        f"celery_commander/{path.relative_to(ROOT).as_posix()}"
        for path in (ROOT / "tasks" / "flower" / "templates").iterdir()
    }
    assert drawn
    assert packed == written | typed | drawn


def test_our_test_folders_do_not_stand_in_front_of_what_they_test() -> None:
    import celery
    import sqlalchemy

    assert not Path(celery.__file__).is_relative_to(ROOT / "tests")
    assert not Path(sqlalchemy.__file__).is_relative_to(ROOT / "tests")
    assert not any(Path(entry).resolve().is_relative_to(ROOT / "tests") for entry in sys.path)


def test_the_compose_file_describes_services_that_say_when_they_are_ready() -> None:
    composed = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
    services = composed["services"]
    assert {"redis", "rabbitmq", "postgres", "worker", "beat", "flower"} == set(services)
    for service in services.values():
        assert service["healthcheck"]["test"][0] == "CMD"
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
        for volume in service["volumes"]:
            assert volume.split(":")[0] in composed["volumes"]


def test_the_image_is_made_of_files_that_are_there_and_runs_what_compose_runs() -> None:
    lines = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
    copied = [line.split() for line in lines if line.startswith("COPY") and "--from" not in line]
    sources_ = [word for words in copied for word in words[1:-1] if not word.startswith("--")]
    assert {"engine", "tasks", "beat", "pyproject.toml"} <= set(sources_)
    assert all((ROOT / source).exists() for source in sources_)
    assert "USER commander" in lines
    command = next(line for line in lines if line.startswith("CMD"))
    assert "examples.service" in command


def test_the_changelog_speaks_of_this_version() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## [{PROJECT['project']['version']}]" in changelog


def test_the_readme_is_short_and_names_the_two_commands() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) < 200
    assert any("make demo" in line for line in lines)
    assert any("make test" in line for line in lines)


def test_the_readmes_example_can_be_pasted_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    example = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)[0]
    services = ModuleType("my_shop")
    vars(services).update(CardDeclined=ValueError, bank=object(), carrier=object())
    monkeypatch.setitem(sys.modules, "my_shop", services)
    pasted: dict[str, Any] = {"__name__": "pasted"}

    exec(example, pasted)

    assert pasted["fulfil"].durable
    assert pasted["app"].tasks["pasted.refund"] is not None
    assert ".delay(" not in example  # an import would publish it


def test_the_readme_names_every_key_of_an_undo() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert ", ".join(get_type_hints(Undo)) in text


def test_the_page_of_settings_says_what_the_code_says() -> None:
    assert (ROOT / "docs" / "settings.md").read_text(encoding="utf-8") == settings_page.page()


def test_the_settings_that_the_readme_names_have_its_defaults() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    named = dict(re.findall(r"^\| `(\w+)` \| (.+?) \|", text, re.MULTILINE))
    rows = [row for kind in settings_page.PARTS.values() for row in settings_page.rows(kind)]
    defaults = {row.split("`")[1]: row.split(" | ")[1] for row in rows}
    assert len(named) > 8
    assert {name: defaults[name] for name in named} == named


@pytest.mark.parametrize("page", sorted(str(p.relative_to(ROOT)) for p in PAGES))
def test_a_link_between_our_pages_leads_somewhere(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    targets = re.findall(r"\]\((?!https?:)([^)#]+)\)", text)
    assert all(((ROOT / page).parent / target).exists() for target in targets)
