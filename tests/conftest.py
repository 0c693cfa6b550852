"""Fixtures for everybody: a clock, and real services that one test session shares."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import HealthCheck, settings

from tests.kit import SERVICES, ManualClock, ServiceMissing, running_service
from tests.kit.provision import in_ci

# How fast examples are drawn, and how long one takes, says something of the machine and its load only.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

_MISSED = pytest.StashKey[Counter[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_MISSED] = Counter()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(scope="session")
def _redis_server(pytestconfig: pytest.Config) -> Iterator[str | None]:
    with _service("redis") as url:
        yield url


@pytest.fixture(scope="session")
def _rabbitmq_server(pytestconfig: pytest.Config) -> Iterator[str | None]:
    with _service("rabbitmq") as url:
        yield url


@pytest.fixture(scope="session")
def _postgres_server(pytestconfig: pytest.Config) -> Iterator[str | None]:
    with _service("postgres") as url:
        yield url


@pytest.fixture
def redis_url(_redis_server: str | None, pytestconfig: pytest.Config) -> str:
    """Give a Redis that every test finds empty."""
    url = _needed("redis", _redis_server, pytestconfig)
    from redis import Redis

    with Redis.from_url(url) as client:
        client.flushall()
    return url


@pytest.fixture
def rabbitmq_url(_rabbitmq_server: str | None, pytestconfig: pytest.Config) -> str:
    """Give a RabbitMQ; its queues outlive a test, so use names of your own."""
    return _needed("rabbitmq", _rabbitmq_server, pytestconfig)


@pytest.fixture
def postgres_url(_postgres_server: str | None, pytestconfig: pytest.Config) -> Iterator[str]:
    """Give a database of the test's own, dropped afterwards; the URL is libpq's (postgresql://)."""
    server = _needed("postgres", _postgres_server, pytestconfig)
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


def _needed(name: str, url: str | None, config: pytest.Config) -> str:
    if url is not None:
        return url
    reason = f"{name} is not installed: {SERVICES[name].hint}"
    if in_ci():
        pytest.fail(f"{reason}; in CI a missing service is a failure", pytrace=False)
    config.stash[_MISSED][name] += 1
    pytest.skip(reason)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    for name, count in sorted(config.stash[_MISSED].items()):
        terminalreporter.write_line(
            f"{count} tests were skipped for want of {name}: {SERVICES[name].hint}", yellow=True
        )
