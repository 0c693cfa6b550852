"""Full disks and failing syncs: an error reaches the caller, and nothing false is ever acknowledged."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from celery_commander.engine import (
    EventSourcingEngine,
    LogPoisoned,
    LogUnavailable,
    NewEvent,
    Status,
)

from .logs import STRACE, acknowledged, heard, writer

pytestmark = [
    pytest.mark.crash,
    pytest.mark.skipif(not Path(STRACE).exists(), reason="needs strace"),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "events.wal"
    with EventSourcingEngine.open(path) as log:
        log.append("note", {})
    return path


def test_a_failed_sync_is_never_acknowledged_and_never_tried_again(path: Path) -> None:
    fault = ["-e", "trace=fdatasync", "-e", "inject=fdatasync:error=EIO:when=3"]
    lines = heard(writer(path, "r", 10, strace=fault))
    assert acknowledged(lines) == {0: 3, 1: 4}
    assert lines[-1][:2] == ["error", "LogPoisoned"]
    assert Path(f"{path}.d/POISONED").exists()
    for _ in range(2):  # those who come later are told, and the disk would now say yes
        with EventSourcingEngine.open(path) as late:
            with pytest.raises(LogPoisoned):
                late.append("note", {})
            assert len(list(late.read_from(None))) == 4  # nobody knows whether the fifth is on disk
            assert late.verify_integrity().status is Status.OK_UNANCHORED


def test_a_failed_sync_stops_writers_that_were_open_before_it(path: Path) -> None:
    with EventSourcingEngine.open(path) as log:
        unwaited = log.append("note", {}, wait=False)
        fault = ["-e", "trace=fdatasync", "-e", "inject=fdatasync:error=EIO:when=1"]
        assert heard(writer(path, "r", 1, strace=fault))[-1][:2] == ["error", "LogPoisoned"]
        with pytest.raises(LogPoisoned):
            log.append("note", {})
        if log.durable_seq < unwaited.seq:
            with pytest.raises(LogPoisoned):
                log.sync()


def test_the_mark_alone_stops_the_next_boot(path: Path) -> None:
    mark = Path(f"{path}.d/POISONED")
    mark.write_text("a sync failed\n")
    mark.chmod(0o600)
    with EventSourcingEngine.open(path, boot_id="another") as log, pytest.raises(LogPoisoned):
        log.append("note", {})


@pytest.mark.parametrize("error", ["ENOSPC", "EDQUOT", "EIO"])
def test_a_refused_write_reaches_the_caller_and_the_next_one_works(path: Path, error: str) -> None:
    size = path.stat().st_size
    inject = f"inject=write:error={error}:when=2"
    fault = ["-P", str(path), "-e", "trace=write", "-e", inject]
    lines = heard(writer(path, "r", 3, strace=fault))
    assert acknowledged(lines) == {0: 3}
    assert lines[-1][:2] == ["error", "LogUnavailable"]
    with EventSourcingEngine.open(path) as log:
        assert [event.payload["i"] for event in log.history("r")] == [0]
        assert log.append("note", {}).seq == 4
        assert log.verify_integrity().status is Status.OK_UNANCHORED
    assert path.stat().st_size > size
    assert not Path(f"{path}.d/quarantine").exists()


def test_a_write_cut_short_leaves_no_fragment_whatever_its_length(path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        with EventSourcingEngine.open(path) as log:
            for room in range(400):
                before = path.stat().st_size
                resource.setrlimit(resource.RLIMIT_FSIZE, (before + room, hard))
                try:
                    with pytest.raises(LogUnavailable):
                        log.append_many([NewEvent("note", {"x": "y" * 50})] * 3)
                finally:
                    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
                assert path.stat().st_size == before, room
            assert log.append("note", {}).seq == 3
            assert log.verify_integrity().status is Status.OK_UNANCHORED
    finally:
        signal.signal(signal.SIGXFSZ, old)


def test_a_fragment_that_could_not_be_cut_back_never_counts(path: Path) -> None:
    # The second write is short by a limit on the file's size, and the truncation that follows fails.
    with EventSourcingEngine.open(path) as log:
        files = log._log._session.files
        real = files.truncate

        def refused(fd: int, size: int) -> None:
            raise OSError(5, "Input/output error")

        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        files.truncate = refused  # type: ignore[method-assign]  # the seam is there for this
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 300, hard))
        try:
            with pytest.raises(LogUnavailable):
                log.append_many([NewEvent("note", {"i": 1}), NewEvent("note", {"x": "y" * 300})])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            signal.signal(signal.SIGXFSZ, old)
            files.truncate = real  # type: ignore[method-assign]  # as above
        assert [event.type for event in log.read_from(None)] == ["wal.created", "note"]
        log.append("after", {})
        types = [event.type for event in log.read_from(None)]
        assert types == ["wal.created", "note", "wal.repaired", "after"]
        assert log.verify_integrity().status is Status.OK_UNANCHORED


def test_a_full_disk_is_an_error_and_works_again_when_there_is_room(tmp_path: Path) -> None:
    script = """
import os, sys
from pathlib import Path
from celery_commander.engine import EventSourcingEngine, LogUnavailable
disk = Path(sys.argv[1])
with EventSourcingEngine.open(disk / "state" / "events.wal") as log:
    (disk / "filler").write_bytes(bytes(200 * 1024))
    count = 0
    try:
        while True:
            log.append("note", {"i": count, "x": "y" * 3000}); count += 1
    except LogUnavailable as error:
        print("full", count, flush=True)
    (disk / "filler").unlink()
    for _ in range(10):
        log.append("note", {"i": count, "x": "y" * 3000}); count += 1
    seen = [event.payload["i"] for event in log.read_from(None) if event.type == "note"]
    assert seen == list(range(count)), seen
    print(log.verify_integrity().status.name)
"""
    disk = tmp_path / "disk"
    disk.mkdir()
    import sys

    inside = f'mount -t tmpfs -o size=1m none "{disk}" && exec "$0" -c "$1" "{disk}"'
    command = ["unshare", "-Urm", "sh", "-c", inside, sys.executable, script]
    if shutil.which("unshare") is None:
        pytest.skip("needs unshare")
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, env=dict(os.environ)
    )
    if "Operation not permitted" in done.stderr:
        pytest.skip("this host gives no user namespaces")
    assert done.returncode == 0, done.stderr
    full, status = done.stdout.splitlines()
    assert full.startswith("full ")
    assert status == "OK_UNANCHORED"
