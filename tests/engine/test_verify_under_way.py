"""What others do to a log while it is verified is no break: they seal, take snapshots and compact meanwhile."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from celery_commander.engine import EventSourcingEngine, Status, verify_log
from celery_commander.engine.files import Files
from tests.engine.histories import opened, tell
from tests.engine.ledgers import DELIVERS, write
from tests.engine.logs import flip


class Meddling(Files):
    """Let somebody else act once, right before a file is looked at."""

    def __init__(self, wanted: str, act: Callable[[], object]) -> None:
        self.wanted, self.act, self.acted = wanted, act, False

    def stat(self, path: str) -> os.stat_result:
        if self.wanted in path and not self.acted:
            self.acted = True
            self.act()
        return super().stat(path)


def sealing(engine: EventSourcingEngine) -> Callable[[], Any]:
    """Tell what is published as the engine does, and seal the log right after it was told once."""
    sealed: list[bool] = []

    def published() -> Any:
        told = engine._log.reader.published()
        if not sealed:
            sealed.append(engine.seal())
            engine.append("note", {"after": "the seal"})
        return told

    return published


@pytest.mark.parametrize("resumes", [True, False])
def test_a_seal_in_the_middle_of_a_verification_is_no_break(tmp_path: Path, resumes: bool) -> None:
    with opened(tmp_path) as engine:
        write(engine, "r", DELIVERS)
        after = engine.verify_integrity().verified
        engine.append("note", {})

        report = verify_log(
            engine.path, published=sealing(engine), after=after if resumes else None
        )

        assert report.status is Status.OK_UNANCHORED, report


def test_a_snapshot_that_is_retired_in_the_middle_of_a_verification_is_not_missing(
    tmp_path: Path,
) -> None:
    with opened(tmp_path) as other:
        tell(other)
        first = other.snapshot("s")

        def replace() -> None:
            write(other, "more", DELIVERS)
            other.snapshot("s")
            other.compact("s")

        files = Meddling(first.path.name, replace)
        with EventSourcingEngine.open(other.settings, files=files) as engine:
            report = engine.verify_integrity()

        assert files.acted
        assert not first.path.exists()
        assert report.status is Status.OK_UNANCHORED, report


def test_a_break_is_told_however_often_the_log_is_sealed_meanwhile(tmp_path: Path) -> None:
    with opened(tmp_path) as engine:
        write(engine, "r", DELIVERS)
        engine.seal()
        write(engine, "q", DELIVERS)
        flip(engine._log.layout.segment(1), 400)

        report = verify_log(engine.path, published=sealing(engine))

        assert report.status is Status.CORRUPT
        assert report.broken_at is not None
