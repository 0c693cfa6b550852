"""Give a deployment with a past, Flowers over it, and a browser; each is made once a module."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from tests.celery.conftest import MODULE, Deployment
from tests.kit.browser import Browser, chromium
from tests.kit.flower import Flower, celery_flower
from tests.kit.programs import HINT, missing_programs
from tests.kit.provision import in_ci

ROWS = 5
TINY = 8
INJECTED = '<img src=x onerror="window.hacked=1">'
USER = "ann:se<cret"

MakeFlower = Callable[..., AbstractContextManager[Flower]]


@dataclass(slots=True)
class Past:
    """What happened before anybody opened Flower: a worker was killed inside a step, and another went on."""

    deployment: Deployment
    recovered: str = ""
    refused: str = ""
    tiny: list[str] = field(default_factory=list)

    @property
    def runs(self) -> int:
        return 3 + len(self.tiny)

    def flower(self, *options: str, prefix: str = "") -> AbstractContextManager[Flower]:
        return flower_over(self.deployment, *options, prefix=prefix)


def flower_over(
    deployment: Deployment, *options: str, prefix: str = "", **env: str
) -> AbstractContextManager[Flower]:
    return celery_flower(
        MODULE,
        deployment.directory,
        env=deployment.environment() | env,
        options=options,
        prefix=prefix,
    )


@pytest.fixture(scope="module")
def past(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Past]:
    """Give a log with a recovered run, a compensated one, small ones, and one whose id is an injection."""
    with ExitStack() as stack:
        directory = tmp_path_factory.mktemp("flower") / "deployment"
        directory.mkdir()
        past = Past(Deployment(directory, None, stack, {"flower_rows": ROWS}))
        _live_through(past)
        yield past
        past.deployment.app.commander.close()


def _live_through(past: Past) -> None:
    deployment = past.deployment
    gate = deployment.witness.hold("two")
    first = deployment.worker("w1", concurrency=1)
    past.recovered = deployment.send("flow_safe", "kim")
    deployment.wait_mark("begin", "two", "kim")
    first.kill_group()
    gate.unlink()
    past.refused = deployment.send("flow_refused", "bob")
    past.tiny = [deployment.send("tiny", number) for number in range(TINY)]
    injected = deployment.send("tiny", 99, task_id=INJECTED)
    deployment.worker("w2")
    deployment.wait_ended(past.recovered, past.refused, *past.tiny, injected)


@pytest.fixture(scope="module")
def flower(past: Past) -> Iterator[Flower]:
    """Give a Flower as `celery -A app flower` starts it: no authentication, no prefix."""
    with past.flower() as flower:
        yield flower


@pytest.fixture(scope="module")
def guarded(past: Past) -> Iterator[Flower]:
    """Give a Flower with basic authentication, at an address of its own behind a prefix."""
    with past.flower(f"--basic_auth={USER}", prefix="ops/flower") as flower:
        yield flower


@pytest.fixture(scope="module")
def _browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    missing = missing_programs()
    if missing and in_ci():
        pytest.fail(f"{missing} not found: {HINT}; in CI that is a failure", pytrace=False)
    if missing:
        pytest.skip(f"{missing} not found: {HINT}")
    with chromium(tmp_path_factory.mktemp("browser")) as browser:
        yield browser


@pytest.fixture
def browser(_browser: Browser) -> Iterator[Browser]:
    """Give the browser, and see that no page of the test had anything to complain of."""
    yield _browser
    assert _browser.console() == []
    assert _browser.script("return window.hacked") is None


@pytest.fixture
def photograph(_browser: Browser, tmp_path: Path) -> Callable[[str], None]:
    """Give a camera; its pictures lie in the test's temporary folder, for people to look at."""
    return lambda name: _browser.photograph(tmp_path / f"{name}.png")


@pytest.fixture
def flower_of() -> Callable[[Deployment], MakeFlower]:
    """Give a way to run a Flower over any deployment."""
    return lambda deployment: partial(flower_over, deployment)
