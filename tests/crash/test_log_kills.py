"""SIGKILL at every system call of an append, and writers killed in the middle of a crowd."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from celery_commander.engine import EventSourcingEngine, Status
from tests.kit import wait_until

from .logs import ROOT, STRACE, acknowledged, heard, writer

pytestmark = [
    pytest.mark.crash,
    pytest.mark.skipif(not Path(STRACE).exists(), reason="needs strace"),
]


def check(path: Path, acks: dict[str, dict[int, int]]) -> Counter[str]:
    """Check the invariants after a crash: acknowledged events are there, once, in order, verified."""
    with EventSourcingEngine.open(path) as log:
        assert log.verify_integrity().status is Status.OK_UNANCHORED
        log.append("after", {})
        events = list(log.read_from(None))
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        assert len({event.id for event in events}) == len(events)
        for name, by_index in acks.items():
            history = log.history(name)
            indexes = [event.payload["i"] for event in history]
            assert indexes == list(range(len(indexes)))
            assert (
                len(by_index) <= len(indexes) <= len(by_index) + 1
            )  # one may be written, not told
            assert {event.payload["i"]: event.seq for event in history}.items() >= by_index.items()
        assert log.verify_integrity().status is Status.OK_UNANCHORED
        return Counter(event.type for event in events)


def killed_at(path: Path, name: str, call: str, nth: int) -> bool:
    """Run a writer that is killed when it enters the n-th such call; tell whether it came that far."""
    process = writer(
        path,
        name,
        3,
        strace=["-e", f"trace={call}", "-e", f"inject={call}:signal=SIGKILL:when={nth}"],
    )
    acks = acknowledged(heard(process))
    types = check(path, {name: acks})
    assert types["wal.created"] == 1
    return process.returncode != 0


CALLS = {"write": 9, "pwrite64": 12, "fdatasync": 8, "flock": 16, "rename": 1}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.timeout(180)
def test_a_writer_killed_at_any_call_leaves_every_acknowledged_event(
    tmp_path: Path, call: str
) -> None:
    fresh_kills = 0
    for nth in range(1, CALLS[call] + 1):
        path = tmp_path / f"{nth}" / "events.wal"
        path.parent.mkdir()
        fresh_kills += killed_at(path, "r", call, nth)
        assert not list(Path(f"{path}.d").glob("newborn"))
        assert len(list(Path(f"{path}.d").glob("quarantine/*"))) <= 1
    assert fresh_kills >= (1 if call == "rename" else 3)


@pytest.mark.timeout(180)
def test_a_repair_killed_at_any_call_is_finished_by_the_next_opener(tmp_path: Path) -> None:
    for call in ("ftruncate", "fdatasync", "pwrite64", "write", "rename"):
        for nth in (1, 2, 3):
            path = tmp_path / f"{call}-{nth}" / "events.wal"
            path.parent.mkdir()
            with EventSourcingEngine.open(path) as log:
                log.append("note", {})
            with path.open("ab") as file:
                file.write(b"half a line")
            process = writer(
                path,
                "r",
                0,
                strace=["-e", f"trace={call}", "-e", f"inject={call}:signal=SIGKILL:when={nth}"],
            )
            heard(process)
            types = check(path, {})
            assert 1 <= types["wal.repaired"] <= 2, (call, nth)
            (aside,) = Path(f"{path}.d/quarantine").iterdir()
            assert aside.read_bytes() == b"half a line"
            assert not aside.name.endswith(".unfinished")


@pytest.mark.timeout(180)
def test_eight_writers_of_whom_some_are_killed_make_one_chain(tmp_path: Path) -> None:
    """See anthony-chaudhary/fak#5876: two writers read one head, and the chain became a tree."""
    path = tmp_path / "events.wal"
    seed = random.randrange(10**6)
    chance = random.Random(seed)
    print(f"seed {seed}")  # noqa: T201 - shown when the test fails
    processes = {f"r-{n}": writer(path, f"r-{n}", 500, wait=n % 4 != 3) for n in range(8)}
    for name in ("r-1", "r-3", "r-5"):
        victim = processes[name]
        assert victim.stdout is not None
        goal = chance.randrange(5, 200)
        for _ in range(goal):
            victim.stdout.readline()
        victim.send_signal(signal.SIGKILL)
    lines = {name: heard(process, 150) for name, process in processes.items()}
    acks = {
        name: acknowledged(told)
        for name, told in lines.items()
        if name not in ("r-1", "r-3", "r-5")
    }
    assert all(len(told) == 500 for told in acks.values())
    check(path, acks)


@pytest.mark.timeout(120)
def test_eight_processes_that_open_a_new_log_at_once_make_one(tmp_path: Path) -> None:
    for attempt in range(3):
        path = tmp_path / f"{attempt}" / "events.wal"
        processes = [writer(path, f"r-{n}", 2) for n in range(8)]
        acks = {f"r-{n}": acknowledged(heard(process)) for n, process in enumerate(processes)}
        assert all(len(told) == 2 for told in acks.values())
        types = check(path, acks)
        assert (types["wal.created"], types["note"]) == (1, 16)
        names = {entry.name for entry in Path(f"{path}.d").iterdir()}
        assert names - {"latency", "verified.json"} == {"append.lock", "sync.lock", "control"}


FORKER = """
import os, sys, threading
from celery_commander.engine import EventSourcingEngine
log = EventSourcingEngine.open(sys.argv[1])
ended = threading.Event()
def busy(wait):
    while not ended.is_set():
        log.append("busy", {}, wait=wait)
threads = [threading.Thread(target=busy, args=(wait,)) for wait in (True, False)]
[thread.start() for thread in threads]
for number in range(40):
    pid = os.fork()
    if pid == 0:
        log.append("child", {"number": number})
        log.append("child", {"number": number}, wait=False)
        log.sync()
        log.history("nobody")
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
ended.set()
[thread.join() for thread in threads]
log.close()
print("done")
"""


@pytest.mark.timeout(120)
def test_a_fork_while_other_threads_append_hangs_no_child(tmp_path: Path) -> None:
    path = tmp_path / "events.wal"
    command = [sys.executable, "-W", "ignore", "-c", FORKER, str(path)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=90, check=False
    )
    assert (done.stdout, done.returncode) == ("done\n", 0), done.stderr
    assert check(path, {})["child"] == 80


def test_a_stopped_holder_is_named_and_waited_for_no_longer_than_the_bound(tmp_path: Path) -> None:
    from celery_commander.engine import LockTimeout, Settings

    path = tmp_path / "events.wal"
    with EventSourcingEngine.open(path) as log:
        log.append("note", {})
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import fcntl,os,sys\nfd=os.open(sys.argv[1],os.O_RDWR)\nfcntl.flock(fd,fcntl.LOCK_EX)\n"
            "print('held',flush=True)\nsys.stdin.read()",
            f"{path}.d/append.lock",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        holder.send_signal(signal.SIGSTOP)
        settings = Settings(state_directory=tmp_path, event_sourcing_wal=path, lock_seconds=0.3)
        with EventSourcingEngine.open(settings, create=False) as log:
            with pytest.raises(LockTimeout) as raised:
                log.append("note", {})
            assert str(holder.pid) in raised.value.holder
    finally:
        holder.kill()
        holder.communicate()
    with EventSourcingEngine.open(path) as log:
        wait_until(lambda: log.append("note", {}).seq == 3, seconds=5)
