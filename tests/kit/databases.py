"""Give each test a PostgreSQL database of its own."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import psycopg
from psycopg import sql


@contextmanager
def fresh_database(server_url: str) -> Iterator[str]:
    """Create a database on a server, yield its URL, and drop it, sessions and all."""
    name = f"commander_test_{secrets.token_hex(6)}"
    identifier = sql.Identifier(name)
    with psycopg.connect(server_url, autocommit=True) as server:
        server.execute(sql.SQL("CREATE DATABASE {}").format(identifier))
        try:
            yield urlsplit(server_url)._replace(path=f"/{name}").geturl()
        finally:
            server.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(identifier))
