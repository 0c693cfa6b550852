"""Fixtures for everybody: a clock, and real services that one test session shares."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import HealthCheck, settings

from tests.kit import SERVICES, ManualClock, ServiceMissing, running_service
from tests.kit.provision import in_ci

# How fast examples are drawn, and how long one takes, says something of the machine and its load only.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where several processes share the tests, begin with the long ones: none is left over at the end."""
    if _process_number(config) is not None:
        items.sort(key=_brevity)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Hand the tests out as spread.py says, unless another way was asked for with --dist."""
    if config.getoption("dist") != "load":
        return None
    from tests.kit.spread import Spread

    return Spread(config, log)


def _brevity(item: pytest.Item) -> int:
    names = {mark.name for mark in item.iter_markers()}
    return next((n for n, name in enumerate(("slow", "celery", "crash")) if name in names), 3)


def _process_number(config: pytest.Config) -> int | None:
    """Return which of the processes of ``pytest -n`` this is, from 0; None where there is one alone."""
    told: dict[str, str] | None = getattr(config, "workerinput", None)
    return None if told is None else int(told["workerid"].removeprefix("gw"))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(scope="session")
def _redis_server() -> Iterator[str | None]:
    with _service("redis") as url:
        yield url


@pytest.fixture(scope="session")
def _rabbitmq_server() -> Iterator[str | None]:
    with _service("rabbitmq") as url:
        yield url


@pytest.fixture(scope="session")
def _postgres_server() -> Iterator[str | None]:
    with _service("postgres") as url:
        yield url


@pytest.fixture
def redis_url(_redis_server: str | None, pytestconfig: pytest.Config) -> str:
    """Give a Redis that every test finds empty.

    Each process of ``pytest -n`` runs one of its own; of a server that was given it has a database.
    """
    url = _needed("redis", _redis_server)
    number = _process_number(pytestconfig)
    if number is not None and SERVICES["redis"].given:
        url = urlsplit(url)._replace(path=f"/{number}").geturl()
    from redis import Redis

    with Redis.from_url(url) as client:
        client.flushdb()
    return url


@pytest.fixture
def rabbitmq_url(_rabbitmq_server: str | None) -> str:
    """Give a RabbitMQ; its queues outlive a test, so use names of your own.

    It is slow to start: spread.py keeps the tests that want it in one process.
    """
    return _needed("rabbitmq", _rabbitmq_server)


@pytest.fixture
def postgres_url(_postgres_server: str | None) -> Iterator[str]:
    """Give a database of the test's own, dropped afterwards; the URL is libpq's (postgresql://)."""
    server = _needed("postgres", _postgres_server)
    from tests.kit.databases import fresh_database

    with fresh_database(server) as url:
        yield url


@contextmanager
def _service(name: str) -> Iterator[str | None]:
    # None, and no skip here: a missing service is told by every test that wants it, not once.
    try:
        with running_service(name) as url:
            yield url
    except ServiceMissing:
        yield None


def _needed(name: str, url: str | None) -> str:
    if url is not None:
        return url
    reason = _missing(name)
    if in_ci():
        pytest.fail(f"{reason}; in CI a missing service is a failure", pytrace=False)
    pytest.skip(reason)


def _missing(name: str) -> str:
    return f"{name} is not installed: {SERVICES[name].hint}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    # From the reports, which come together here from all processes of a run.
    skipped = [str(report.longrepr) for report in terminalreporter.getreports("skipped")]
    for name in sorted(SERVICES):
        count = sum(_missing(name) in reason for reason in skipped)
        if count:
            terminalreporter.write_line(
                f"{count} tests were skipped for want of {name}: {SERVICES[name].hint}", yellow=True
            )
