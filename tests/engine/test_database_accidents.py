"""Forks, kills, closed descriptors and exceptions at any moment."""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert

from celery_commander.engine import Database, StoreUnavailable
from tests.kit import wait_until

from .forked import Forked, together
from .notes import SCHEMA, notes, texts, write


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(tmp_path / "state" / "notes.sqlite", SCHEMA)


def test_children_forked_from_an_open_database_write_and_the_parent_goes_on(
    database: Database,
) -> None:
    write(database)

    def child(number: int) -> None:
        for _ in range(50):
            write(database, f"child {number}")

    together(4, child)
    write(database, "parent")

    assert len(texts(database)) == 1 + 4 * 50 + 1
    assert check(database.path) == "ok"


def check(path: Path) -> str:
    connection = sqlite3.connect(path)
    try:
        return str(connection.execute("PRAGMA integrity_check").fetchone()[0])
    finally:
        connection.close()


def test_no_descriptor_of_the_database_reaches_a_forked_child(database: Database) -> None:
    write(database)

    def inherited(_: Forked) -> list[str]:
        names = (
            os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if live(fd)
        )
        return [name for name in names if name.startswith(str(database.path))]

    assert Forked(inherited).result() == []


def live(descriptor: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{descriptor}")


def test_a_fork_waits_for_the_transaction_of_another_thread(database: Database) -> None:
    entered, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with database.begin() as connection:
            connection.execute(insert(notes).values(text="thread"))
            entered.set()
            leave.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    entered.wait(10)
    threading.Timer(0.2, leave.set).start()

    # Without the wait, the child would inherit SQLite's note that the write lock is taken, for ever.
    Forked(lambda _: write(database, "child")).result()
    thread.join()

    assert texts(database) == ["thread", "child"]


def test_a_fork_inside_a_transaction_leaves_the_parents_transaction_whole(
    database: Database,
) -> None:
    with database.begin() as connection:
        connection.execute(insert(notes).values(text="before"))
        blocked = Forked(lambda _: signal.pthread_sigmask(signal.SIG_BLOCK, ())).result()
        connection.execute(insert(notes).values(text="after"))

    assert signal.SIGTERM not in blocked

    assert texts(database) == ["before", "after"]


def test_a_killed_writer_leaves_neither_a_lock_nor_half_a_transaction(database: Database) -> None:
    def die(child: Forked) -> None:
        with database.begin() as connection:
            connection.execute(insert(notes).values(text="half"))
            child.say("in it")
            child.hear()

    with Forked(die) as victim:
        victim.hear()
        victim.send_signal(signal.SIGKILL)
        write(database, "whole")

    assert texts(database) == ["whole"]


def close_descriptors(path: Path) -> list[int]:
    numbers = [int(fd) for fd in os.listdir("/proc/self/fd") if live(fd)]
    ours = [fd for fd in numbers if os.readlink(f"/proc/self/fd/{fd}").startswith(str(path))]
    for fd in ours:
        os.close(fd)
    return ours


def test_it_goes_on_after_its_descriptors_were_closed(database: Database) -> None:
    def child(_: Forked) -> list[str]:
        write(database, "before")
        assert close_descriptors(database.path)
        write(database, "after")
        return texts(database)

    assert Forked(child).result() == ["before", "after"]
    assert texts(database) == ["before", "after"]


def test_not_one_byte_goes_to_a_stranger_who_got_its_descriptors(
    tmp_path: Path, database: Database
) -> None:
    def child(_: Forked) -> None:
        write(database, "before")
        closed = close_descriptors(database.path)
        strangers = [
            os.open(tmp_path / f"stranger-{n}", os.O_RDWR | os.O_CREAT) for n in range(len(closed))
        ]
        assert set(strangers) == set(closed)
        for _turn in range(2):
            with pytest.raises(StoreUnavailable, match="restart this process"):
                write(database, "after")
        assert [os.fstat(fd).st_size for fd in strangers] == [0] * len(strangers)

    Forked(child).result()

    assert texts(database) == ["before"]


def test_who_held_a_deleted_file_does_no_harm_to_the_one_in_its_place(database: Database) -> None:
    def other(child: Forked) -> None:
        for text in ("first", "second"):
            child.hear()
            write(database, text)
            child.say("written")
        child.hear()

    with Forked(other) as process:
        write(database, "lost")
        for path in database.path.parent.iterdir():
            path.unlink()
        process.say("make a new file")
        process.hear()
        # The write-ahead log at the old file's path is the other's by now, and must stay.
        write(database, "mine")
        process.say("write again")
        process.hear()

        assert texts(Database(database.path, SCHEMA)) == ["first", "mine", "second"]
        assert texts(database) == ["first", "mine", "second"]
    assert check(database.path) == "ok"


class Interrupted(BaseException):
    """What a soft time limit raises, wherever the main thread happens to be."""


def test_a_connection_whose_closing_was_cut_short_does_not_keep_the_write_lock(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exception struck in a transaction, and another one while the connection was given up for it."""
    write(database, "first")
    connection = database._connection  # kept alive, as by the cycle that it is part of
    assert connection is not None
    driver: Any = connection.connection.dbapi_connection
    rows = driver.execute("select 1 union select 2")  # a statement that is not over
    next(rows)
    driver.execute("BEGIN IMMEDIATE")

    def cut_short() -> None:
        raise Interrupted

    monkeypatch.setattr(connection, "close", cut_short)
    with pytest.raises(Interrupted):
        write(database, "second")

    write(database, "third")
    write(Database(database.path, SCHEMA, busy_seconds=0.1), "another's")
    assert texts(database) == ["first", "third", "another's"]


@pytest.mark.crash
@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # fell into a destructor
@pytest.mark.parametrize(
    "deferred", [True, False], ids=["deferred", "let through by another thread"]
)
def test_an_exception_at_any_moment_keeps_it_usable(database: Database, deferred: bool) -> None:
    def interrupt(*_: object) -> None:
        raise Interrupted

    done = threading.Event()
    if (
        not deferred
    ):  # the kernel gives the signal to a thread that takes it; the handler runs in ours
        threading.Thread(target=done.wait, daemon=True).start()
    old = signal.signal(signal.SIGALRM, interrupt)
    hit = committed = 0
    try:
        for turn in range(500):
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.00001 + (turn % 150) * 0.00001)
                write(database, str(turn))
                committed += 1
                signal.sigtimedwait([], 0.01)  # the signal comes, or was swallowed by a destructor
            except Interrupted:
                hit += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)

    assert signal.SIGALRM not in signal.pthread_sigmask(signal.SIG_BLOCK, ())

    def write_and_tell() -> None:
        write(database, "other")
        done.set()

    other = threading.Thread(target=write_and_tell)
    other.start()
    wait_until(done.is_set, seconds=5, what="a write of another thread")
    other.join()
    kept = texts(database)
    assert hit > 300
    assert committed + 1 <= len(kept) <= 501
    assert kept[-1] == "other"
    assert len(set(kept)) == len(kept)
