"""A snapshot may come to hold the only copy of a run's lines: none is taken without them, none is thrown away."""

from __future__ import annotations

from pathlib import Path

import pytest

from celery_commander.engine import (
    Event,
    SnapshotMismatch,
)
from tests.engine.histories import LIVE, opened, stored, tell
from tests.engine.ledgers import write


@pytest.mark.parametrize("harmed", ["log_id", "position", "fold_version"])
def test_a_snapshot_with_a_harmed_first_line_is_not_thrown_away(
    tmp_path: Path, harmed: str
) -> None:
    with opened(tmp_path) as engine:
        tell(engine)
        before = stored(engine, LIVE)
        path = engine.snapshot("s").path
        engine.compact("s")
        engine.append("note", {})
    good = path.read_bytes()
    at = good.index(b'"%b":' % harmed.encode()) + len(harmed) + 4
    while chr(good[at]) not in "0123456789abcdef":
        at += 1
    path.write_bytes(good[:at] + (b"1" if good[at : at + 1] == b"2" else b"2") + good[at + 1 :])
    assert path.read_bytes() != good
    with opened(tmp_path) as engine:
        with pytest.raises(SnapshotMismatch):
            engine.snapshot("next")
        assert path.exists()
        assert engine.verify_integrity().exit_code == 38
    path.write_bytes(good)
    with opened(tmp_path) as engine:
        assert stored(engine, LIVE) == before
        engine.snapshot("next")
        assert stored(engine, LIVE) == before


def test_what_a_killed_one_left_is_removed_though_others_count(tmp_path: Path) -> None:
    def killed(*_: object, **__: object) -> list[Event]:
        raise KeyboardInterrupt

    with opened(tmp_path) as engine:
        tell(engine)
        first = engine.snapshot("s")
        write(engine, "more")
        engine._log.append = killed  # type: ignore[method-assign]  # its file stands, nothing is told
        with pytest.raises(KeyboardInterrupt):
            engine.snapshot("left")
        assert len(list(first.path.parent.iterdir())) == 2
    with opened(tmp_path) as engine:
        last = engine.snapshot("t")
        assert set(first.path.parent.iterdir()) == {first.path, last.path}
