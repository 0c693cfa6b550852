"""One SQLite file for many processes and threads."""

from __future__ import annotations

import os
import stat
import threading
import time
from pathlib import Path

import pytest
from sqlalchemy import insert, select
from sqlalchemy.exc import IntegrityError

from celery_commander.engine import Database, StoreBusy, StoreUnavailable

from .forked import Forked, together
from .notes import SCHEMA, notes, texts, write


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(tmp_path / "state" / "notes.sqlite", SCHEMA)


def test_nothing_is_touched_before_the_first_use(tmp_path: Path) -> None:
    Database(tmp_path / "state" / "notes.sqlite", SCHEMA)

    assert list(tmp_path.iterdir()) == []


def test_the_file_and_its_folder_are_for_their_owner_only(database: Database) -> None:
    old = os.umask(0)
    try:
        write(database)
    finally:
        os.umask(old)

    for path in [database.path, *database.path.parent.glob("*-wal")]:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(database.path.parent.stat().st_mode) == 0o700


def test_a_transaction_is_kept_whole_or_not_at_all(database: Database) -> None:
    with pytest.raises(ZeroDivisionError), database.begin() as connection:  # noqa: PT012
        connection.execute(insert(notes).values(text="half"))
        raise ZeroDivisionError
    write(database, "whole")

    assert texts(database) == ["whole"]


def test_a_read_inside_a_write_sees_what_was_written(database: Database) -> None:
    with database.begin() as connection:
        connection.execute(insert(notes).values(text="mine"))
        assert texts(database) == ["mine"]
    assert texts(database) == ["mine"]


def test_a_write_inside_a_write_is_a_bug_that_is_told(database: Database) -> None:
    with database.begin(), pytest.raises(AssertionError, match="same thread"), database.begin():
        pass
    write(database)

    assert texts(database) == ["note"]


def test_two_processes_see_each_others_commits_at_once(database: Database) -> None:
    write(database, "parent")

    def child(_: Forked) -> list[str]:
        seen = texts(database)
        write(database, "child")
        return seen

    assert Forked(child).result() == ["parent"]
    assert texts(database) == ["parent", "child"]


def test_twenty_processes_may_be_the_first_to_open_it(tmp_path: Path) -> None:
    fresh = [Database(tmp_path / f"fresh-{turn}.sqlite", SCHEMA) for turn in range(25)]

    def open_all(number: int) -> None:
        for database in fresh:
            write(database, str(number))
            database.close()

    together(20, open_all)

    for database in fresh:
        assert sorted(texts(database), key=int) == [str(number) for number in range(20)]


def test_threads_of_a_process_take_turns(database: Database) -> None:
    def count() -> None:
        for _ in range(50):
            with database.begin() as connection:
                seen = len(connection.execute(select(notes.c.id)).all())
                connection.execute(insert(notes).values(id=seen + 1, text="x"))

    threads = [threading.Thread(target=count) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(texts(database)) == 400


def test_a_lock_held_elsewhere_is_an_error_within_the_bound(tmp_path: Path) -> None:
    patient = Database(tmp_path / "notes.sqlite", SCHEMA)
    hasty = Database(tmp_path / "notes.sqlite", SCHEMA, busy_seconds=0.3)

    def hold(child: Forked) -> None:
        with patient.begin():
            child.say("held")
            child.hear()

    with Forked(hold) as holder:
        assert holder.hear() == "held"
        began = time.monotonic()
        with pytest.raises(StoreBusy) as caught:
            write(hasty)
        assert 0.2 < time.monotonic() - began < patient.busy_seconds
        holder.say("let go")
        holder.result()
    write(hasty, "later")

    assert (caught.value.path, caught.value.seconds) == (str(hasty.path), 0.3)
    assert texts(hasty) == ["later"]


def test_readers_do_not_wait_for_a_writer_in_another_process(database: Database) -> None:
    write(database, "old")

    def hold(child: Forked) -> None:
        with database.begin() as connection:
            connection.execute(insert(notes).values(text="new"))
            child.say("held")
            child.hear()

    with Forked(hold) as holder:
        assert holder.hear() == "held"
        assert texts(database) == ["old"]
        holder.say("let go")
        holder.result()

    assert texts(database) == ["old", "new"]


def test_a_process_that_opens_it_to_read_does_not_wait_for_a_writer(database: Database) -> None:
    write(database, "old")

    with database.begin() as connection:
        connection.execute(insert(notes).values(text="new"))
        assert Forked(
            lambda _: texts(Database(database.path, SCHEMA, busy_seconds=0.1))
        ).result() == ["old"]


def test_a_thread_that_holds_too_long_is_an_error_for_the_others(tmp_path: Path) -> None:
    database = Database(tmp_path / "notes.sqlite", SCHEMA, busy_seconds=0.2)
    caught: list[BaseException] = []

    def other() -> None:
        try:
            write(database)
        except StoreBusy as error:
            caught.append(error)

    with database.begin():
        thread = threading.Thread(target=other)
        thread.start()
        thread.join(10)
    write(database, "later")

    assert len(caught) == 1
    assert texts(database) == ["later"]


def test_a_file_that_was_deleted_is_made_again_for_everybody(database: Database) -> None:
    write(database, "lost")
    for path in database.path.parent.iterdir():
        path.unlink()

    write(database, "new")

    assert texts(Database(database.path, SCHEMA)) == ["new"]


@pytest.mark.parametrize(
    "content", [b"not a database, and long enough to be looked at" * 50, b"\0" * 4096]
)
def test_a_file_that_is_no_database_is_named_and_left_as_it_is(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "notes.sqlite"
    path.write_bytes(content)

    with pytest.raises(StoreUnavailable) as caught:
        write(Database(path, SCHEMA))

    assert caught.value.path == str(path)
    assert path.read_bytes() == content


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_what_is_no_plain_file_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "notes.sqlite"
    if kind == "link":
        path.symlink_to(tmp_path / "elsewhere")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()

    with pytest.raises(StoreUnavailable, match="not a plain file"):
        write(Database(path, SCHEMA))
    assert not (tmp_path / "elsewhere").exists()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")

    with pytest.raises(StoreUnavailable, match=r"file/notes\.sqlite cannot be used now"):
        write(Database(tmp_path / "file" / "notes.sqlite", SCHEMA))


def test_a_broken_constraint_is_the_callers_and_not_the_files(database: Database) -> None:
    with pytest.raises(IntegrityError), database.begin() as connection:  # noqa: PT012
        connection.execute(insert(notes).values(id=1))
        connection.execute(insert(notes).values(id=1))
    write(database, "next")

    assert texts(database) == ["next"]


def test_it_goes_on_after_a_full_disk(database: Database) -> None:
    write(database, "before")
    with database.read() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")  # SQLite's own ENOSPC

    with pytest.raises(StoreUnavailable, match="full"):
        write(database, "x" * 100_000)
    write(database, "after")

    assert texts(database) == ["before", "after"]
