"""Say how each server is run in a directory of its own, and how it answers when it is up.

Pure description; services.py carries it out. Ports are asked from the kernel and kept from everybody
but the server (see ``free_port``).
"""

from __future__ import annotations

import os
import pwd
import secrets
import signal
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Site:
    """Where a server is to live, and the full paths of its programs."""

    directory: Path
    programs: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run. ``prepare`` runs to its end; ``helper`` and then ``command`` run until stopped.

    The helper is waited for at ``helper_port``; the service is up when ``answers()``.
    """

    url: str
    command: list[str]
    answers: Callable[[], bool]
    prepare: list[str] | None = None
    helper: list[str] | None = None
    helper_port: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)
    user: str | None = None
    stop_signal: signal.Signals = signal.SIGTERM


def free_port() -> int:
    """Return a loopback port that is nobody's but the caller's, for as long as this process lives.

    Test runs beside this one ask for ports too, and every connection takes one. A socket that is bound
    and never listens keeps the kernel from giving the port to any of them; a server that sets
    SO_REUSEADDR, as all of ours do, may still listen on it, also again after a stop. The socket is left
    to the end of the process: one descriptor a port.
    """
    probe = socket.socket()
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    probe.bind((HOST, 0))
    port: int = probe.getsockname()[1]
    probe.detach()
    return port


def listens(port: int) -> bool:
    """Tell whether somebody accepts connections on a loopback port."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((HOST, port)) == 0


def redis(site: Site) -> Plan:
    """Run Redis without persistence."""
    port = free_port()
    url = f"redis://{HOST}:{port}/0"
    return Plan(
        url=url,
        command=[
            *(site.programs["redis-server"], "--bind", HOST, "--port", str(port)),
            *("--save", "", "--appendonly", "no", "--dir", str(site.directory)),
        ],
        answers=lambda: _redis_answers(url),
    )


def rabbitmq(site: Site) -> Plan:
    """Run RabbitMQ with a node name and an epmd of its own, so that it meets no other node.

    epmd is started here, in the foreground: the one that Erlang starts by itself is a daemon that
    nobody ends.
    """
    amqp, distribution, epmd = free_port(), free_port(), free_port()
    url = f"amqp://guest:guest@{HOST}:{amqp}//"
    directory = site.directory
    (directory / "enabled_plugins").write_text("[].\n", encoding="ascii")
    (directory / "rabbitmq.conf").write_text(
        f"listeners.tcp.1 = {HOST}:{amqp}\nlog.console = true\nlog.file = false\n", encoding="ascii"
    )
    cookie = directory / ".erlang.cookie"
    cookie.write_text(secrets.token_hex(20), encoding="ascii")
    cookie.chmod(0o400)
    return Plan(
        url=url,
        helper=[site.programs["epmd"], "-port", str(epmd), "-address", HOST],
        helper_port=epmd,
        command=[site.programs["rabbitmq-server"]],
        answers=lambda: _amqp_answers(url),
        environment={
            "ERL_EPMD_PORT": str(epmd),
            "ERL_EPMD_ADDRESS": HOST,
            "RABBITMQ_NODENAME": f"commander-{os.getpid()}-{amqp}@localhost",
            "RABBITMQ_DIST_PORT": str(distribution),
            "RABBITMQ_MNESIA_BASE": str(directory / "mnesia"),
            "RABBITMQ_LOG_BASE": str(directory / "log"),
            "RABBITMQ_PID_FILE": str(directory / "pid"),
            "RABBITMQ_CONFIG_FILE": str(directory / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "enabled_plugins"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
                "-start_epmd false -kernel inet_dist_use_interface {127,0,0,1} +sbwt none"
            ),
            # Makes the start script become the server, so that the pid we know is the pid to end.
            "RUNNING_UNDER_SYSTEMD": "true",
        },
    )


def postgres(site: Site) -> Plan:
    """Run PostgreSQL with a password of its own; it refuses root, so root runs it as somebody else.

    fsync is off: these tests kill processes, and nothing here outlives the machine.
    """
    port = free_port()
    password = secrets.token_hex(12)
    data = site.directory / "data"
    secret = site.directory / "password"
    secret.write_text(password, encoding="ascii")
    secret.chmod(0o644)  # inside a directory that only the server's user may enter
    url = f"postgresql://commander:{password}@{HOST}:{port}/postgres"
    return Plan(
        url=url,
        prepare=[
            *(site.programs["initdb"], "--pgdata", str(data), "--username", "commander"),
            *("--auth", "scram-sha-256", "--pwfile", str(secret)),
            *("--encoding", "UTF8", "--locale", "C", "--no-sync"),
        ],
        command=[
            *(site.programs["postgres"], "-D", str(data), "-p", str(port)),
            *("-c", f"listen_addresses={HOST}", "-c", "unix_socket_directories="),
            *("-c", "fsync=off", "-c", "max_connections=60"),
        ],
        answers=lambda: _postgres_answers(url),
        user=_unprivileged() if os.geteuid() == 0 else None,
        stop_signal=signal.SIGINT,  # its fast shutdown: open sessions are ended, not waited for
    )


def _unprivileged() -> str:
    known = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in known else "nobody"


def _redis_answers(url: str) -> bool:
    from redis import Redis
    from redis.exceptions import RedisError

    try:
        with Redis.from_url(url, socket_connect_timeout=2) as client:
            return bool(client.ping())
    except (RedisError, OSError):
        return False


def _amqp_answers(url: str) -> bool:
    from kombu import Connection

    connection: Any = Connection(url, connect_timeout=2)
    try:
        connection.connect()
        return True
    except (*connection.connection_errors, *connection.channel_errors):
        return False
    finally:
        connection.release()


def _postgres_answers(url: str) -> bool:
    import psycopg

    try:
        with psycopg.connect(url, connect_timeout=2) as connection:
            return connection.execute("SELECT 1").fetchone() == (1,)
    except psycopg.Error:
        return False
