"""Say which tests stay in one process where pytest-xdist spreads them over several.

Every test goes wherever there is room, but for those that share what is dear to make: a server, or a
fixture that lives as long as its module. They go by their names, for a name is all that the process which
hands them out knows of a test. pytest-xdist has a mark and ``--dist loadgroup`` for this, which with
pytest 9.2 spread the marked tests like all others, and say nothing (pytest-xdist#1386).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import pytest
from xdist.scheduler import LoadScopeScheduling

# The first one that is found in the test's name keeps it with all others of the kind.
TOGETHER = {
    "servers that are slow to start": re.compile(
        r"tests/celery/test_compose\.py|rabbitmq|postgres|test_redis_answers"
    ),
    "what Flower refuses": re.compile(r"tests/flower/test_access\.py"),
    "what Flower shows": re.compile(r"tests/flower/test_pages\.py"),
}
# The fixtures that are dear, each made once in a process or a module.
DEAR = frozenset({"_rabbitmq_server", "_postgres_server", "past", "_browser"})


class Spread(LoadScopeScheduling):
    """Hand out tests one by one, and those that stay together all to one process."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid) or nodeid


def group_of(nodeid: str) -> str | None:
    """Return the name of the group that a test stays in."""
    return next((name for name, form in TOGETHER.items() if form.search(nodeid)), None)


def scattered(items: Iterable[pytest.Item]) -> list[str]:
    """Return the names of tests that want what is dear and stay in no group: each process would make it."""
    return [
        item.nodeid
        for item in items
        if isinstance(item, pytest.Function)
        and not DEAR.isdisjoint(item.fixturenames)
        and group_of(item.nodeid) is None
    ]
