"""Run a real Flower over an app, and ask it as a browser, a probe or curl would."""

from __future__ import annotations

import base64
import json
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import Any

from .group import Group, process_group
from .servers import free_port
from .waiting import wait_until
from .workers import python_environment


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server said."""

    status: int
    headers: Message
    text: str

    def json(self) -> Any:
        """Return the text as the JSON document that it is."""
        return json.loads(self.text)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


# No proxy: what is asked lies on this machine.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirects)


@dataclass(slots=True)
class Flower:
    """A running Flower. `url` ends without a slash and holds the prefix, if there is one."""

    group: Group
    url: str

    def get(
        self,
        path: str,
        *,
        user: str | None = None,
        cookie: str | None = None,
        method: str = "GET",
    ) -> Answer:
        """Ask for a page; redirects are answers. `user` is `name:password`."""
        request = urllib.request.Request(self.url + path, method=method)
        if user is not None:
            request.add_header("Authorization", f"Basic {base64.b64encode(user.encode()).decode()}")
        if cookie is not None:
            request.add_header("Cookie", cookie)
        try:
            with _OPENER.open(request, timeout=30) as answer:
                return Answer(answer.status, answer.headers, answer.read().decode())
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, error.headers, error.read().decode())


@contextmanager
def celery_flower(
    app: str,
    directory: Path,
    *,
    env: Mapping[str, str] | None = None,
    options: Sequence[str] = (),
    prefix: str = "",
) -> Iterator[Flower]:
    """Run ``celery -A app flower`` on a free port until the block ends."""
    port = free_port()
    command = [
        *(sys.executable, "-m", "celery", "-A", app, "flower"),
        *("--address=127.0.0.1", f"--port={port}", *options),
        *([f"--url_prefix={prefix}"] if prefix else []),
    ]
    environment = python_environment(env)
    with process_group(command, directory, name="flower", env=environment) as group:
        flower = Flower(group, f"http://127.0.0.1:{port}" + (f"/{prefix}" if prefix else ""))
        wait_until(lambda: _answers(flower), what=lambda: f"Flower to answer:\n{group.tail()}")
        yield flower


def _answers(flower: Flower) -> bool:
    if not flower.group.running:
        raise RuntimeError(f"Flower ended instead of starting:\n{flower.group.tail()}")
    try:
        return flower.get("/healthcheck").status == 200
    except (urllib.error.URLError, ConnectionError):
        return False
