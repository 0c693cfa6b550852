"""Put our pages among Flower's: the only place that touches what is Flower's own."""

from __future__ import annotations

from typing import Any, Final

from flower import urls
from tornado.web import url

from .handlers import RunPage, RunsPage
from .health import DetailedHealth, Liveness
from .loader import Templates
from .reader import Reader

RUNS: Final = "commander-runs"


def mount() -> None:
    """Insert our pages before Flower's answer to unknown ones; a second call changes nothing.

    Flower reads both the list and the settings once, when it starts; an address prefix is put before ours as before
    its own, because they are `url` values too.
    """
    if any(getattr(handler, "name", None) == RUNS for handler in urls.handlers):
        return
    urls.settings.setdefault("template_loader", Templates(urls.settings["template_path"]))
    urls.handlers[-1:-1] = pages(Reader())


def pages(reader: Reader) -> list[Any]:
    """Return our pages, all reading through one `reader`."""
    shared = {"reader": reader}
    return [
        url(r"/durable-runs", RunsPage, shared, name=RUNS),
        url(r"/durable-run/(.+)", RunPage, shared, name="commander-run"),
        url(r"/health", Liveness, shared, name="commander-health"),
        url(r"/health/detailed", DetailedHealth, shared, name="commander-health-detailed"),
    ]
