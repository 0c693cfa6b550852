"""Not one byte goes to a stranger, and nothing is appended to a file that is not the log any more."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import time
from pathlib import Path

import pytest

from celery_commander.engine import (
    EventSourcingEngine,
    ForeignLog,
    LockTimeout,
    LogMoved,
    LogUnavailable,
    Settings,
    Status,
)
from tests.kit import wait_until

from .forked import Forked
from .logs import active, lines_of, made_log, open_log


def close_everything_above_two() -> None:
    os.closerange(3, 256)


def test_closed_and_reused_descriptors_get_not_one_byte(tmp_path: Path) -> None:
    """See celery/celery#3029: daemonising closed every descriptor, and the next write went to a stranger."""

    def daemonised(child: Forked) -> list[bytes]:
        with open_log(tmp_path) as log:
            log.append("note", {"i": "before"})
            log.history("r-0")
            keep = {
                child._read: os.dup2(child._read, 300),
                child._write: os.dup2(child._write, 301),
            }
            close_everything_above_two()
            child._read, child._write = keep[child._read], keep[child._write]
            pairs = [socket.socketpair() for _ in range(12)]  # they take the numbers that were free
            log.append("note", {"i": "after"})
            log.append("note", {"i": "unwaited"}, wait=False)
            log.sync()
            assert [event.payload for event in log.history("r-0")] == [{"i": 0}, {"i": 2}]
            strangers = []
            for one, other in pairs:
                for end in (one, other):
                    end.setblocking(False)
                    try:
                        strangers.append(end.recv(100))
                    except BlockingIOError:
                        pass
            return strangers

    path = made_log(tmp_path, 3)
    child = Forked(daemonised)
    fine, strangers = child.hear()
    assert fine, strangers
    assert strangers == []
    assert len(lines_of(path)) == 1 + 4 + 3


def test_a_forked_child_uses_files_of_its_own(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.append("note", {"from": "parent"})

        def in_child(child: Forked) -> int:
            return log.append("note", {"from": "child"}).seq

        assert Forked(in_child).hear() == (True, 3)
        assert log.append("note", {"from": "parent"}).seq == 4
        assert log.verify_integrity().status is Status.OK_UNANCHORED


def test_a_fork_that_ran_no_hooks_shares_no_lock_with_its_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "register_at_fork", lambda **hooks: None)

    def in_child(child: Forked) -> str:
        with pytest.raises(LockTimeout):
            log.append("note", {})
        return "waited in vain"

    settings = Settings(state_directory=tmp_path / "state", lock_seconds=0.2)
    with EventSourcingEngine.open(settings) as log:
        log.append("note", {})
        heard = log._log._appender.under_lock(lambda handles: Forked(in_child).hear())
        assert heard == (True, "waited in vain")
        assert Forked(lambda child: log.append("note", {}, wait=False).seq).hear() == (True, 3)
        assert log.append("note", {}).seq == 4


def test_a_fork_in_the_middle_of_a_flush_hangs_no_child(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.append("note", {}, wait=False)
        wait_until(lambda: not log._log._flusher._wake.is_set())
        with log._log._flusher._wake._cond:  # type: ignore[attr-defined]  # as the flusher holds it
            child = Forked(lambda child: log.append("note", {}, wait=False).seq)
            assert child.hear() == (True, 3)


def test_descriptors_closed_between_a_write_and_its_sync_are_opened_again(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        written = log.append("note", {}, wait=False)
        handles = log._log._session.current()
        assert handles is not None
        for opened in (handles.log, handles.sync_lock):
            os.close(opened.fd)
        strangers = [os.open("/dev/null", os.O_RDWR) for _ in range(2)]
        log._log._durability.wait(written.seq, handles)
        assert log.durable_seq >= written.seq
        assert log.append("note", {}).seq == written.seq + 1
        for fd in strangers:
            os.close(fd)


def test_one_sync_serves_all_processes_that_wait(tmp_path: Path) -> None:
    def slow_disk(child: Forked) -> int:
        files, syncs = log._log._session.files, 0
        sync = files.sync

        def slow(fd: int) -> None:
            nonlocal syncs
            syncs += 1
            time.sleep(0.02)  # a slow disk, not a wait for anything
            sync(fd)

        files.sync = slow  # type: ignore[method-assign]  # the seam is there for this
        child.say("ready")
        child.hear()
        for index in range(10):
            log.append("note", {"i": index})
        return syncs

    with open_log(tmp_path) as log:
        crowd = [Forked(slow_disk) for _ in range(4)]
        assert [child.hear() for child in crowd] == ["ready"] * 4
        for child in crowd:
            child.say("go")
        results = [child.hear() for child in crowd]
        assert all(fine for fine, _ in results), results
        assert sum(syncs for _, syncs in results) < 30  # forty, if each synced for itself
        assert log.head()[0] == 41


def test_a_child_that_ends_does_not_give_back_its_parents_lock(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        appender = log._log._appender

        def in_parent(handles: object) -> None:
            assert Forked(lambda child: "ended").hear() == (True, "ended")
            other = Forked(lambda child: _is_locked(tmp_path))
            assert other.hear() == (True, True)

        appender.under_lock(in_parent)
        assert Forked(lambda child: _is_locked(tmp_path)).hear() == (True, False)


def _is_locked(directory: Path) -> bool:
    import fcntl

    fd = os.open(f"{active(directory)}.d/append.lock", os.O_RDWR)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


@pytest.mark.parametrize("what", ["rename", "remove", "replace", "directory", "control"])
def test_a_log_that_lost_its_place_stops_loudly(tmp_path: Path, what: str) -> None:
    path = active(tmp_path)
    with open_log(tmp_path) as log:
        log.append("note", {})
        content = path.read_bytes()
        if what == "rename":
            path.rename(f"{path}.1")
        elif what == "remove":
            path.unlink()
        elif what == "replace":
            shutil.copy(path, f"{path}.copy")
            os.replace(f"{path}.copy", path)
        elif what == "directory":
            Path(f"{path}.d").rename(f"{path}.gone")
        else:
            Path(f"{path}.d/control").unlink()
        for _ in range(2):
            with pytest.raises(LogMoved):
                log.append("note", {})
        if what == "rename":
            assert Path(f"{path}.1").read_bytes() == content


def test_a_log_whose_file_is_gone_is_not_made_anew(tmp_path: Path) -> None:
    made_log(tmp_path).unlink()
    with pytest.raises(LogMoved):
        open_log(tmp_path)
    assert not active(tmp_path).exists()


def test_a_log_put_back_is_appended_to_again(tmp_path: Path) -> None:
    path = active(tmp_path)
    with open_log(tmp_path) as log:
        path.rename(f"{path}.1")
        with pytest.raises(LogMoved):
            log.append("note", {})
        Path(f"{path}.1").rename(path)
        assert log.append("note", {}).seq == 2


def test_files_and_directories_are_for_their_owner_alone(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        path = made_log(tmp_path)
    finally:
        os.umask(old)
    for file in [path, *Path(f"{path}.d").iterdir()]:
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
    assert stat.S_IMODE(Path(f"{path}.d").stat().st_mode) == 0o700


@pytest.mark.parametrize("name", ["", ".d/control", ".d/append.lock", ".d/sync.lock", ".d"])
def test_a_symbolic_link_is_refused_wherever_it_stands(tmp_path: Path, name: str) -> None:
    path = Path(f"{made_log(tmp_path)}{name}")
    path.rename(tmp_path / "real")
    path.symlink_to(tmp_path / "real")
    with pytest.raises(LogUnavailable):
        open_log(tmp_path).append("note", {})


def test_a_linked_state_directory_is_refused(tmp_path: Path) -> None:
    path = made_log(tmp_path)
    (tmp_path / "alias").symlink_to(path.parent)
    with pytest.raises(LogUnavailable):
        EventSourcingEngine.open(tmp_path / "alias" / path.name)


@pytest.mark.parametrize("kind", ["pipe", "directory", "second name", "others may write"])
def test_a_file_that_is_not_safe_to_use_is_refused(tmp_path: Path, kind: str) -> None:
    path = made_log(tmp_path)
    if kind == "second name":
        os.link(path, tmp_path / "second")
    elif kind == "others may write":
        path.chmod(0o666)
    else:
        path.unlink()
        if kind == "pipe":
            os.mkfifo(path, 0o600)
        else:
            path.mkdir()
    with pytest.raises(LogUnavailable):
        open_log(tmp_path)


def test_a_directory_that_others_may_write_is_refused(tmp_path: Path) -> None:
    path = made_log(tmp_path)
    Path(f"{path}.d").chmod(0o777)
    with pytest.raises(LogUnavailable, match="chmod"):
        open_log(tmp_path)


def test_a_file_of_another_kind_is_foreign_and_stays_as_it_is(tmp_path: Path) -> None:
    path = active(tmp_path)
    path.parent.mkdir()
    path.write_bytes(b"my notes\n")
    path.chmod(0o600)
    with pytest.raises(ForeignLog):
        open_log(tmp_path)
    assert path.read_bytes() == b"my notes\n"


def test_a_number_that_means_the_log_again_but_only_to_be_read_is_not_written_through(
    tmp_path: Path,
) -> None:
    """Whoever closes all descriptors leaves the numbers to the next open, which may be a reader's of the same file."""
    with open_log(tmp_path) as log:
        log.append("note", {"i": 0})
        handles = log._log._session.current()
        assert handles is not None
        for opened in (handles.log, handles.control_file):
            number = os.open(opened.path, os.O_RDONLY)
            os.dup2(number, opened.fd)
            os.close(number)
        log.append("note", {"i": 1})
        log.append("note", {"i": 2}, wait=False)
        log.sync()
        assert [event.type for event in log.read_from(None)] == ["wal.created", *["note"] * 3]
