"""A free lock proves a death; everything that only looks like one is told apart."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from celery_commander.engine import Liveness, LivenessLock, LivenessRef, StoreUnavailable, probe
from celery_commander.engine.liveness import sweep
from tests.kit import wait_until

from .forked import Forked

BOOT = "00000000-0000-4000-8000-000000000001"
pytestmark = [
    pytest.mark.crash,
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux keeps a lock with a mapping"),
]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "liveness"


def hold(directory: Path) -> Forked:
    """Start a process that takes a lock, tells its name, and answers `check` until it is killed."""

    def run(child: Forked) -> None:
        lock = LivenessLock.take(directory, boot_id=BOOT)
        child.say(lock.ref)
        while child.hear() == "check":
            child.say(lock.check())

    return Forked(run)


def ask(directory: Path, ref: LivenessRef) -> Liveness:
    return probe(directory, ref, BOOT)


def test_a_living_process_holds_its_lock_and_a_killed_one_does_not(directory: Path) -> None:
    with hold(directory) as owner:
        ref = owner.hear()
        assert ask(directory, ref) is Liveness.HELD

        owner.send_signal(signal.SIGKILL)

        wait_until(lambda: ask(directory, ref) is Liveness.FREE, seconds=5, what="a free lock")


def test_a_process_that_ended_by_itself_is_dead_too(directory: Path) -> None:
    with hold(directory) as owner:
        ref = owner.hear()
        owner.say("end")
        owner.result()

    assert ask(directory, ref) is Liveness.FREE


def test_a_stopped_process_is_alive(directory: Path) -> None:
    with hold(directory) as owner:
        ref = owner.hear()
        owner.send_signal(signal.SIGSTOP)
        wait_until(lambda: "T" in state_of(owner.pid), what="a stopped process")

        assert ask(directory, ref) is Liveness.HELD

        owner.send_signal(signal.SIGCONT)
        owner.say("check")
        assert owner.hear() == ref


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.parametrize("how", ["fork", "fork without hooks", "exec"])
def test_a_helper_that_outlives_its_owner_does_not_keep_it_alive(directory: Path, how: str) -> None:
    def run(child: Forked) -> None:
        lock = LivenessLock.take(directory, boot_id=BOOT)
        if how == "exec":
            helper = subprocess.Popen(["sleep", "30"], close_fds=False).pid
        else:
            helper = os.fork() if how == "fork" else ctypes.CDLL(None).fork()
            if helper == 0:
                signal.pause()
        child.say((lock.ref, helper))
        signal.pause()

    with Forked(run) as owner:
        ref, helper = owner.hear()
        try:
            assert ask(directory, ref) is Liveness.HELD
            owner.end()
            assert state_of(helper) in "SDR"
            assert ask(directory, ref) is Liveness.FREE
        finally:
            os.kill(helper, signal.SIGKILL)


def test_a_forked_child_neither_ends_nor_takes_its_parents_lock(directory: Path) -> None:
    lock = LivenessLock.take(directory, boot_id=BOOT)

    own = Forked(lambda _: (lock.check(), lock.check())).result()

    assert own[0] == own[1] != lock.ref
    assert ask(directory, own[0]) is Liveness.FREE
    assert ask(directory, lock.ref) is Liveness.HELD
    assert lock.check() == lock.ref
    lock.release()


def test_a_child_that_releases_what_it_inherited_changes_nothing(directory: Path) -> None:
    lock = LivenessLock.take(directory, boot_id=BOOT)

    Forked(lambda _: lock.release()).result()

    assert ask(directory, lock.ref) is Liveness.HELD
    lock.release()


def test_descriptors_closed_in_a_living_owner_do_not_make_it_look_dead(directory: Path) -> None:
    def run(child: Forked) -> None:
        lock = LivenessLock.take(directory, boot_id=BOOT)
        keep = {child._read, child._write}
        for descriptor in range(3, 256):  # as a daemon library does
            if descriptor not in keep:
                try:
                    os.close(descriptor)
                except OSError:
                    pass
        strangers = [socket.socket() for _ in range(20)]  # the numbers belong to somebody else now
        child.say(lock.ref)
        child.hear()
        child.say(lock.check())
        child.hear()
        for stranger in strangers:
            stranger.getsockname()  # raises when we closed it

    with Forked(run) as owner:
        ref = owner.hear()
        assert ask(directory, ref) is Liveness.HELD
        owner.say("check")
        assert owner.hear() == ref
        assert ask(directory, ref) is Liveness.HELD
        owner.say("end")
        owner.result()


@pytest.mark.parametrize("again", [False, True], ids=["unlinked", "made again"])
def test_an_owner_whose_file_went_away_takes_a_new_lock(directory: Path, again: bool) -> None:
    with hold(directory) as owner:
        ref = owner.hear()
        path = directory / ref.name
        path.rename(directory / "aside")  # so that its inode is not given out again at once
        if again:
            path.write_text("")

        assert ask(directory, ref) is Liveness.UNKNOWN
        owner.say("check")
        new = owner.hear()

        assert new.name != ref.name
        assert ask(directory, new) is Liveness.HELD
        assert ask(directory, ref) is Liveness.UNKNOWN

        (directory / "aside").rename(path)
        assert ask(directory, ref) is Liveness.HELD  # it comes back: and still says nothing wrong


def test_another_boot_says_nothing(directory: Path) -> None:
    with hold(directory) as owner:
        ref = owner.hear()
    assert ask(directory, ref) is Liveness.FREE

    assert probe(directory, ref, "another boot") is Liveness.UNKNOWN


@pytest.mark.parametrize("instead", ["nothing", "a link", "a pipe", "a folder", "another file"])
def test_what_is_not_the_very_file_says_nothing_and_is_left_alone(
    directory: Path, instead: str
) -> None:
    with hold(directory) as owner:
        ref = owner.hear()
    path = directory / ref.name
    path.rename(directory / "aside")
    if instead == "a link":
        path.symlink_to(directory / "aside")
    elif instead == "a pipe":
        os.mkfifo(path)
    elif instead == "a folder":
        path.mkdir()
    elif instead == "another file":
        path.write_text("")
    before = sorted(os.listdir(directory))

    assert ask(directory, ref) is Liveness.UNKNOWN
    assert sorted(os.listdir(directory)) == before


def test_a_missing_folder_says_nothing(directory: Path) -> None:
    assert ask(directory, LivenessRef("1-ab.alive", 1, 2, BOOT)) is Liveness.UNKNOWN
    assert not directory.exists()


def test_names_are_never_used_twice(directory: Path) -> None:
    refs = []
    for _ in range(50):
        lock = LivenessLock.take(directory, boot_id=BOOT)
        refs.append(lock.ref)
        lock.release()

    assert len({ref.name for ref in refs}) == 50
    assert {ask(directory, ref) for ref in refs} == {Liveness.UNKNOWN}
    assert os.listdir(directory) == []


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")

    with pytest.raises(StoreUnavailable) as caught:
        LivenessLock.take(tmp_path / "file", boot_id=BOOT)
    assert caught.value.path == str(tmp_path / "file")


def test_an_owner_keeps_its_lock_when_it_runs_out_of_descriptors(directory: Path) -> None:
    def run(_: Forked) -> bool:
        lock = LivenessLock.take(directory, boot_id=BOOT)
        used = max(int(name) for name in os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + 100, used + 100))
        taken = []
        try:
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            pass
        return lock.check() == lock.ref

    assert Forked(run).result()


def test_a_sweep_removes_only_dead_files_that_no_lease_names(directory: Path) -> None:
    with hold(directory) as living, hold(directory) as dead, hold(directory) as named:
        refs = [living.hear(), dead.hear(), named.hear()]
        dead.end()
        named.end()
        (directory / "somebody's note").write_text("stays")

        assert sweep(directory, frozenset({refs[2].name})) == 1

        assert sorted(os.listdir(directory)) == sorted(
            [refs[0].name, refs[2].name, "somebody's note"]
        )
        assert ask(directory, refs[0]) is Liveness.HELD
        assert ask(directory, refs[2]) is Liveness.FREE


def test_a_sweep_never_takes_the_file_of_a_process_that_is_just_starting(directory: Path) -> None:
    directory.mkdir()
    stop = threading.Event()

    def sweep_on() -> None:
        while not stop.is_set():
            sweep(directory, frozenset())

    def start(_: Forked) -> int:
        threading.Thread(target=sweep_on, daemon=True).start()
        wrong = 0
        for _turn in range(400):
            lock = LivenessLock.take(directory, boot_id=BOOT)
            wrong += ask(directory, lock.ref) is not Liveness.HELD
            lock.release()
        return wrong

    with Forked(start) as one, Forked(start) as two:
        assert (one.result(), two.result()) == (0, 0)
