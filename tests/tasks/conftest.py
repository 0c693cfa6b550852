from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from celery_commander.tasks import install
from tests.tasks.bench import Bench, make_bench


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return make_bench(tmp_path)


@pytest.fixture(autouse=True)
def _stores_are_closed() -> Iterator[None]:
    """Close what the apps of a test opened in this process: their descriptors add up."""
    yield
    for commander in list(install._commanders):
        commander.close()
