"""What a body saved is handed out as it was, or not at all."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from celery_commander.engine.checkpoints import (
    CheckpointInvalid,
    CheckpointStore,
    CheckpointTooLarge,
    SavedContent,
)
from celery_commander.engine.database import Database
from celery_commander.engine.errors import (
    StoreUnavailable,
    UnreadableValue,
    UnrecordableValue,
)
from celery_commander.engine.states import Checkpoint
from tests.engine.ledgers import change


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints.sqlite"


@pytest.fixture
def store(path: Path) -> Iterator[CheckpointStore]:
    database = Database(path, durable=True)
    yield CheckpointStore(database, max_bytes=2048, kept=2)
    database.close()


def in_log(saved: SavedContent, **other: Any) -> Checkpoint:
    """Return what the log says of a content."""
    told = {"step": 3, "version": 1, "restorable": True, "seq": 9, **other}
    return Checkpoint(id=saved.id, sha256=saved.sha256, bytes=saved.bytes, **told)


def test_a_state_comes_back_as_it_went_in(store: CheckpointStore) -> None:
    state = {
        "list": [1, [2, (3, {4})], {"deep": {"deeper": [None, True, 1.5, 2**70]}}],
        "when": datetime(2026, 1, 2, tzinfo=UTC),
        7: Decimal("1.10"),
        "bytes": b"\x00\xff",
        "id": UUID(int=5),
        "$": "not a tag",
        "text": "naïve \U0001f980",
    }

    saved = store.save("r-1", state, token=1)

    assert store.load("r-1", in_log(saved)) == state
    assert store.faults("r-1", [in_log(saved)]) == {}


@pytest.mark.parametrize("state", [None, 0, "", [], {}])
def test_an_empty_state_is_a_state(store: CheckpointStore, state: Any) -> None:
    assert store.load("r-1", in_log(store.save("r-1", state, token=1))) == state


def test_what_cannot_come_back_is_refused_by_its_path(store: CheckpointStore) -> None:
    with pytest.raises(UnrecordableValue, match=r"checkpoint\['a'\]\[0\]"):
        store.save("r-1", {"a": [object()]}, token=1)

    assert store.run_ids() == []


def test_a_state_above_the_bound_is_refused_with_both_sizes(store: CheckpointStore) -> None:
    assert store.save("r-1", "x" * 2046, token=1).bytes == 2048
    with pytest.raises(CheckpointTooLarge, match="2049 bytes; 2048 are allowed") as caught:
        store.save("r-2", "x" * 2047, token=1)

    assert (caught.value.run_id, caught.value.size_bytes) == ("r-2", 2049)
    assert store.run_ids() == ["r-1"]


def test_every_changed_byte_of_a_content_is_noticed(store: CheckpointStore, path: Path) -> None:
    saved = store.save("r-1", [1, "ab"], token=1)
    whole = _content(path)

    for i in range(len(whole)):
        for bit in range(8):
            _put(path, whole[:i] + bytes([whole[i] ^ 1 << bit]) + whole[i + 1 :])
            assert "checksum differs" in store.faults("r-1", [in_log(saved)])[saved.id]
    for length in range(len(whole)):
        _put(path, whole[:length])
        assert "length differs" in store.faults("r-1", [in_log(saved)])[saved.id]
    _put(path, whole)
    assert store.load("r-1", in_log(saved)) == [1, "ab"]


@pytest.mark.parametrize(
    "damage, why",
    [
        ("DELETE FROM checkpoints", "is not in the store"),
        ("UPDATE checkpoints SET run_id = 'r-2'", "is not in the store"),
        ("UPDATE checkpoints SET content = '[1]'", "length differs"),  # text, not bytes
        ("UPDATE checkpoints SET content = x'5b325d'", "checksum differs"),
    ],
)
def test_a_content_that_is_not_what_the_log_says_is_never_handed_out(
    store: CheckpointStore, path: Path, caplog: pytest.LogCaptureFixture, damage: str, why: str
) -> None:
    checkpoint = in_log(store.save("r-1", [1], token=1))
    change(path, damage)

    with pytest.raises(CheckpointInvalid, match=why) as caught:
        store.load("r-1", checkpoint)
    assert (caught.value.run_id, caught.value.checkpoint) == ("r-1", checkpoint.id)
    assert why in store.faults("r-1", [checkpoint])[checkpoint.id]
    assert (checkpoint.id in caplog.text) == ("differs" in why)


def test_another_content_of_the_store_cannot_stand_in(store: CheckpointStore, path: Path) -> None:
    older, newer = (in_log(store.save("r-1", [i], token=1, named=[])) for i in (1, 2))
    change(path, f"UPDATE checkpoints SET id = '{older.id}'")

    assert set(store.faults("r-1", [older, newer])) == {older.id, newer.id}


def test_a_type_that_this_process_lacks_is_no_damage(store: CheckpointStore, path: Path) -> None:
    import hashlib

    content = b'{"$":"shop.Order","v":1}'
    saved = store.save("r-1", 0, token=1)
    _put(path, content)
    known = SavedContent(saved.id, hashlib.sha256(content).hexdigest(), len(content))

    assert store.faults("r-1", [in_log(known)]) == {}
    with pytest.raises(UnreadableValue):
        store.load("r-1", in_log(known))


def test_only_so_many_of_a_run_stay_and_the_most_wanted_do(store: CheckpointStore) -> None:
    named: list[Checkpoint] = []
    for i in range(6):
        order = [one.id for one in (named[:1] + named[:0:-1])]  # the first is wanted most
        named.append(in_log(store.save("r-1", i, token=1, named=order)))
    other = in_log(store.save("r-2", "other", token=1))

    left = [one for one in named if one.id not in store.faults("r-1", named)]

    assert [store.load("r-1", one) for one in left] == [0, 4, 5]
    assert store.load("r-2", other) == "other"


def test_contents_that_no_event_names_do_not_add_up(store: CheckpointStore, path: Path) -> None:
    for i in range(5):  # each time the process died before the event
        store.save("r-1", i, token=i)

    assert _count(path) == 1


def test_an_older_owner_drops_nothing_of_a_newer_one(store: CheckpointStore) -> None:
    newer = in_log(store.save("r-1", "newer", token=8))

    store.save("r-1", "of one who was fenced", token=7)

    assert store.load("r-1", newer) == "newer"


def test_runs_that_are_over_are_forgotten(store: CheckpointStore, path: Path) -> None:
    for run_id in ("r-1", "r-2", "r-3"):
        store.save(run_id, run_id, token=1)

    assert store.run_ids(limit=2) == ["r-1", "r-2"]
    assert store.run_ids(after="r-2") == ["r-3"]
    store.forget(["r-1", "r-3", "unknown"])
    assert store.run_ids() == ["r-2"]
    store.forget([])


def test_asking_for_what_is_kept_makes_no_database(store: CheckpointStore, path: Path) -> None:
    assert store.run_ids() == []
    assert not path.exists()


def test_a_content_is_synced_before_it_can_be_named(store: CheckpointStore, path: Path) -> None:
    store.save("r-1", 1, token=1)

    with store._database.read() as connection:
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2  # FULL
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_broken_database_is_not_taken_for_a_lost_content(
    store: CheckpointStore, path: Path
) -> None:
    checkpoint = in_log(store.save("r-1", 1, token=1))
    store._database.close()
    for name in (path, f"{path}-wal"):
        if os.path.exists(name):
            Path(name).write_bytes(b"no database at all, " * 400)

    with pytest.raises(StoreUnavailable):
        store.faults("r-1", [checkpoint])
    with pytest.raises(StoreUnavailable):
        store.load("r-1", checkpoint)


def _content(path: Path) -> bytes:
    connection = sqlite3.connect(path)
    (content,) = connection.execute("SELECT content FROM checkpoints").fetchone()
    connection.close()
    return bytes(content)


def _put(path: Path, content: bytes) -> None:
    change(path, f"UPDATE checkpoints SET content = x'{content.hex()}'")


def _count(path: Path) -> int:
    connection = sqlite3.connect(path)
    (count,) = connection.execute("SELECT count(*) FROM checkpoints").fetchone()
    connection.close()
    return int(count)
