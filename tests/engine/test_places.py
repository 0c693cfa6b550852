"""A store lies where its locks mean something, or it is refused by the name of the place.

See Sonarr issue 1886: SQLite on a network mount that several containers wrote.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from celery_commander.engine import LogUnavailable, Settings, SettingsError
from celery_commander.engine.files import Files
from celery_commander.engine.places import IN_MEMORY, NETWORK, UNKNOWN, kind_of, unsafe_place
from celery_commander.engine.wal import FileLog
from tests.crash.logs import STRACE


def row(point: object, kind: str) -> str:
    return f"25 24 0:23 / {point} rw,relatime shared:1 - {kind} source rw"


class Mounted(Files):
    """The machine's files, under a mount table that a test makes up."""

    def __init__(self, *rows: str) -> None:
        self.rows = list(rows)

    def mounts(self) -> list[str]:
        return self.rows


def open_log(files: Files, path: Path, **settings: object) -> FileLog:
    told = Settings.of({"state_directory": path, **settings})
    return FileLog(told, files, now=lambda: datetime.now(UTC), boot_id="boot")


@pytest.mark.parametrize("kind", sorted(NETWORK))
def test_a_store_on_a_network_file_system_is_refused_and_nothing_is_made(
    tmp_path: Path, kind: str
) -> None:
    files = Mounted(row("/", "ext4"), row(tmp_path, kind))

    with pytest.raises(LogUnavailable, match=rf"network file system \({kind}\).*local disk"):
        open_log(files, tmp_path / "state")

    assert list(tmp_path.iterdir()) == []


def test_only_the_kind_that_was_asked_for_by_name_is_allowed(tmp_path: Path) -> None:
    files = Mounted(row("/", "ext4"), row(tmp_path, "nfs4"))

    open_log(files, tmp_path / "state", network_filesystem="nfs4").close()

    with pytest.raises(LogUnavailable, match="nfs4"):
        open_log(files, tmp_path / "other", network_filesystem="cifs")


def test_the_log_may_not_lie_on_the_network_when_only_its_state_is_local(tmp_path: Path) -> None:
    files = Mounted(row("/", "ext4"), row(tmp_path / "share", "cifs"))

    with pytest.raises(LogUnavailable, match="cifs"):
        open_log(files, tmp_path / "state", event_sourcing_wal=tmp_path / "share" / "a.wal")


def test_a_kind_that_is_none_is_refused_with_what_was_probably_meant() -> None:
    with pytest.raises(SettingsError, match=r"network_filesystem.*'nfs4'"):
        Settings(network_filesystem="nfsv4")


CONTAINER = """\
503 500 0:51 / /state/scratch rw - tmpfs tmpfs rw
500 400 0:50 / / rw,relatime - overlay overlay rw,lowerdir=/a
501 500 254:0 /data /state rw,relatime shared:1 - ext4 /dev/vda rw
502 500 254:0 /data /odd\\040name rw - ext4 /dev/vda rw
504 500 254:0 /data /state/twice rw - xfs /dev/vda rw
505 500 254:0 /data /state/twice rw - ceph x rw
a line that is none
""".splitlines()


@pytest.mark.parametrize(
    "path, kind",
    [
        ("/app/.commander_state", "overlay"),
        ("/state", "ext4"),
        ("/state/deep/er", "ext4"),
        ("/stateless", "overlay"),
        ("/state/scratch/x", "tmpfs"),
        ("/odd name/x", "ext4"),
        ("/state/twice/x", "ceph"),
    ],
)
def test_the_deepest_mount_point_decides_and_the_later_of_two(path: str, kind: str) -> None:
    assert kind_of(Path(path), CONTAINER) == kind


def test_a_system_that_tells_no_mounts_knows_no_kind() -> None:
    assert kind_of(Path("/anywhere"), []) == UNKNOWN


def test_a_place_that_goes_with_its_container_or_host_is_said_to(tmp_path: Path) -> None:
    assert "mount a volume" in str(unsafe_place(Path("/app/state"), CONTAINER))
    assert "lies in memory" in str(unsafe_place(Path("/state/scratch/s"), CONTAINER))
    assert unsafe_place(Path("/state/commander"), CONTAINER) is None


@pytest.mark.parametrize("name", ["site-packages", "dist-packages"])
def test_an_installation_is_no_place_for_state(tmp_path: Path, name: str) -> None:
    inside = tmp_path / name / "shop" / "state"
    inside.mkdir(parents=True)
    (tmp_path / "looks-fine").symlink_to(inside)

    assert name in str(unsafe_place(inside, []))
    assert name in str(unsafe_place(tmp_path / "looks-fine", []))
    assert unsafe_place(tmp_path, []) is None


def test_a_link_to_the_network_is_seen_through(tmp_path: Path) -> None:
    (tmp_path / "share").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "share")

    assert (
        kind_of(tmp_path / "link" / "s", [row("/", "ext4"), row(tmp_path / "share", "nfs")])
        == "nfs"
    )


@pytest.mark.skipif(not os.path.ismount("/dev/shm"), reason="needs /dev/shm")
def test_the_machines_own_table_is_read() -> None:
    assert kind_of(Path("/dev/shm/state"), Files().mounts()) in IN_MEMORY
    assert kind_of(Path("/proc/self"), Files().mounts()) == "proc"


@pytest.mark.crash
@pytest.mark.skipif(not Path(STRACE).exists(), reason="needs strace")
@pytest.mark.parametrize("error", ["ENOLCK", "EOPNOTSUPP"])
def test_a_place_where_files_cannot_be_locked_is_refused(tmp_path: Path, error: str) -> None:
    program = (
        "import sys; from celery_commander.engine import EventSourcingEngine, LogUnavailable\n"
        "try: EventSourcingEngine.open(sys.argv[1])\n"
        "except LogUnavailable as error: print(error)\n"
    )
    fault = [
        "-f",
        "-qq",
        "-e",
        "trace=flock",
        "-e",
        f"inject=flock:error={error}",
        "-o",
        "/dev/null",
    ]
    told = subprocess.run(
        [STRACE, *fault, sys.executable, "-c", program, str(tmp_path / "a.wal")],
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert "cannot lock files; put the state on a local disk" in told.stdout, told.stderr
    assert os.strerror(getattr(errno, error)) in told.stdout
    assert not (tmp_path / "a.wal").exists()
