"""What is to outlast a power cut has its bytes and its name synced, in this order, before anybody counts on it."""

from __future__ import annotations

import errno
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from celery_commander.engine import Anchor, AnchorDirectory, LogUnavailable
from celery_commander.engine.files import Files
from celery_commander.engine.secret import keep_secret


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Return what was synced, by name, as it happens."""
    found: list[Path] = []
    real = os.fsync

    def sync(fd: int) -> None:
        found.append(Path(os.readlink(f"/proc/self/fd/{fd}")))
        real(fd)

    monkeypatch.setattr(os, "fsync", sync)
    return found


def test_a_new_name_is_on_disk_when_renaming_returns(tmp_path: Path, synced: list[Path]) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    (tmp_path / "here" / "file").write_text("x")
    Files().rename(tmp_path / "here" / "file", tmp_path / "there" / "file")
    assert synced == [tmp_path / "there", tmp_path / "here"]
    Files().link(tmp_path / "there" / "file", tmp_path / "here" / "second")
    assert synced[2:] == [tmp_path / "here"]


def test_a_directory_is_on_disk_with_all_that_lead_to_it_whoever_made_them(
    tmp_path: Path, synced: list[Path]
) -> None:
    Files().make_directory(tmp_path / "one" / "two" / "three")
    assert synced == [tmp_path, tmp_path / "one", tmp_path / "one" / "two"]
    Files().make_directory(tmp_path / "one" / "two" / "three")
    assert synced[3:] == [tmp_path / "one" / "two"]
    Files().sync_way(tmp_path / "one" / "two" / "three")
    assert synced[4:7] == [tmp_path / "one" / "two", tmp_path / "one", tmp_path]


def test_a_way_that_may_not_be_read_is_passed_over_and_one_that_fails_is_told(
    tmp_path: Path,
) -> None:
    class Refusing(Files):
        error = errno.EACCES

        def sync_directory(self, path: Path) -> None:
            raise OSError(self.error, os.strerror(self.error))

    files = Refusing()
    files.sync_way(tmp_path / "file")
    files.error = errno.EIO
    with pytest.raises(OSError, match="Input/output"):
        files.sync_way(tmp_path / "file")


def test_a_directory_that_another_makes_in_that_moment_is_taken(tmp_path: Path) -> None:
    class Raced(Files):
        def _mkdir(self, path: Path) -> None:
            if not path.parent.exists():
                os.makedirs(path, 0o700)
                raise FileNotFoundError(path)
            super()._mkdir(path)

    Raced().make_directory(tmp_path / "one" / "two")
    (tmp_path / "file").touch()
    with pytest.raises(LogUnavailable, match="cannot be made"):
        Files().make_directory(tmp_path / "file" / "two")


def test_an_anchor_is_on_disk_with_its_files_name(tmp_path: Path, synced: list[Path]) -> None:
    anchor = Anchor("log", 1, "0" * 64, datetime.now(UTC))
    assert AnchorDirectory(tmp_path / "anchors").write(anchor)
    *_, file, directory = synced
    assert file.parent == directory == tmp_path / "anchors"


def test_a_secret_is_on_disk_before_anything_is_digested_under_it(
    tmp_path: Path, synced: list[Path]
) -> None:
    secret = keep_secret(tmp_path / "secret")
    *_, file, directory = synced
    assert (file.parent, directory) == (tmp_path, tmp_path)
    assert keep_secret(tmp_path / "secret") == secret
    assert len(synced) == 2
