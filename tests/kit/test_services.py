import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from kombu import Connection
from redis import Redis

from tests.kit import SERVICES, ServiceMissing, kill, running_service, wait_until
from tests.kit.provision import autostart_forbidden, missing_packages
from tests.kit.servers import HOST, free_port, listens
from tests.kit.workers import python_environment


@pytest.mark.parametrize("_time", [1, 2])
def test_redis_answers_and_is_empty_for_every_test(redis_url: str, _time: int) -> None:
    with Redis.from_url(redis_url) as client:
        assert client.ping()
        assert client.dbsize() == 0
        client.set("left over", "by the test before")


def test_rabbitmq_takes_a_message_and_gives_it_back(rabbitmq_url: str) -> None:
    with Connection(rabbitmq_url) as connection:
        queue = connection.SimpleQueue("kit-round-trip")
        queue.put({"order": 42})
        message = queue.get(timeout=10)
        message.ack()
        assert message.payload == {"order": 42}
        queue.close()
        queue.queue.delete()


@pytest.mark.parametrize("_time", [1, 2])
def test_postgres_answers_with_a_database_of_the_tests_own(postgres_url: str, _time: int) -> None:
    with psycopg.connect(postgres_url) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
        connection.execute("CREATE TABLE left_over (by_the_test_before int)")


def test_a_port_that_was_given_is_kept_from_everybody_but_its_server() -> None:
    port = free_port()
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind((HOST, port))
    assert not listens(port)
    for _ in range(2):
        with socket.create_server((HOST, port)):  # it sets SO_REUSEADDR, as servers do
            assert listens(port)


def test_a_service_ends_with_its_block_and_leaves_no_directory(tmp_path: Path) -> None:
    if SERVICES["redis"].find() is None:
        pytest.skip(SERVICES["redis"].hint)
    with running_service_without_url("redis") as url:
        port = int(url.rsplit(":", 1)[1].split("/")[0])
        with Redis.from_url(url) as client:
            directory = Path(client.config_get("dir")["dir"])
        assert listens(port)
        assert directory.exists()
    assert not listens(port)
    assert not directory.exists()


def test_a_service_does_not_outlive_a_killed_test_run(tmp_path: Path) -> None:
    if SERVICES["redis"].find() is None:
        pytest.skip(SERVICES["redis"].hint)
    code = (
        "import time; from tests.kit import running_service\n"
        "with running_service('redis') as url: print(url, flush=True); time.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        env=python_environment({"TMPDIR": str(tmp_path)}),  # nobody is left to tidy up
        stdout=subprocess.PIPE,
        text=True,
    ) as run:
        assert run.stdout is not None
        port = int(run.stdout.readline().rsplit(":", 1)[1].split("/")[0])
        assert listens(port)
        kill(run.pid)
    wait_until(lambda: not listens(port), what="the end of the orphaned server")


def test_a_missing_service_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("COMMANDER_TEST_REDIS_URL", raising=False)
    with (
        pytest.raises(ServiceMissing, match="apt-get install redis-server"),
        running_service("redis"),
    ):
        pass


def test_a_missing_browser_is_among_what_is_to_be_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert missing_packages()[-2:] == ["chromium", "chromium-driver"]
    monkeypatch.setenv("COMMANDER_TEST_CHROMIUM", "/some/where")
    monkeypatch.setenv("COMMANDER_TEST_CHROMEDRIVER", "/some/where/else")
    assert "chromium" not in " ".join(missing_packages())


def test_a_server_that_runs_already_is_used_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMMANDER_TEST_POSTGRES_URL", "postgresql://somewhere/else")
    with running_service("postgres") as url:
        assert url == "postgresql://somewhere/else"


@pytest.mark.parametrize("testers", ["0", "2"], ids=["in one process", "in two"])
@pytest.mark.parametrize("ci", [True, False], ids=["in CI", "at home"])
def test_a_test_without_its_service_is_skipped_at_home_and_fails_in_ci(
    tmp_path: Path, ci: bool, testers: str
) -> None:
    asking = tmp_path / "test_asking.py"
    asking.write_text("def test_one(redis_url): pass\ndef test_two(redis_url): pass\n")
    shutil.copy(Path(__file__).parents[1] / "conftest.py", tmp_path / "conftest.py")
    environment = python_environment({"PATH": "/nowhere", "CI": "true" if ci else ""})
    run = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--import-mode=importlib"),
            *("-n", testers, "."),
        ],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    if ci:
        assert "2 errors" in run.stdout
        assert run.returncode == 1
    else:
        assert "2 skipped" in run.stdout
        assert "2 tests were skipped for want of redis: sudo apt-get install" in run.stdout
        assert run.returncode == 0


@pytest.mark.parametrize("before", ["#!/bin/sh\nexit 0\n", None], ids=["a policy", "no policy"])
def test_the_policy_on_autostart_is_put_back_even_after_a_failure(
    tmp_path: Path, before: str | None
) -> None:
    policy = tmp_path / "policy-rc.d"
    if before is not None:
        policy.write_text(before)

    def install() -> None:
        with autostart_forbidden(policy):
            assert subprocess.run([policy], check=False).returncode == 101
            raise OSError("no network")

    with pytest.raises(OSError, match="no network"):
        install()
    assert (policy.read_text() if policy.exists() else None) == before
    assert len(os.listdir(tmp_path)) == (before is not None)


@contextmanager
def running_service_without_url(name: str) -> Iterator[str]:
    """Start a server although the developer named one that runs already."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(SERVICES[name].variable, raising=False)
        with running_service(name) as url:
            yield url
