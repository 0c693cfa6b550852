"""Know whether greenlets share this thread, without depending on gevent."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Protocol


class Threadpool(Protocol):
    """Be gevent's pool of native threads."""

    def apply(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Run a function in a native thread; other greenlets run until it returns."""


def hub_threadpool() -> Threadpool | None:
    """Return the native threads of the hub that runs here; None where threads are threads.

    gevent is never imported: who has patched the process has.
    """
    monkey = sys.modules.get("gevent.monkey")
    if monkey is None or not monkey.is_module_patched("threading"):
        return None
    pool: Threadpool = sys.modules["gevent"].get_hub().threadpool
    return pool
