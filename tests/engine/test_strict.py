"""A strict log: nothing is cut before a person has looked, and no place is used that forgets."""

from __future__ import annotations

from pathlib import Path

import pytest

from celery_commander.engine import (
    EventSourcingEngine,
    LogTorn,
    LogUnavailable,
    Settings,
    SettingsError,
    Status,
)
from celery_commander.engine.files import Files

from .logs import BOOT, NEXT_BOOT, active, add, made_log, open_log, quarantined, types_of


class Disk(Files):
    """A machine on which everything lies on a file system of one kind."""

    def __init__(self, kind: str = "ext4") -> None:
        self._kind = kind

    def mounts(self) -> list[str]:
        return [f"1 1 0:1 / / rw - {self._kind} none rw"]


def strict(directory: Path, boot_id: str = BOOT, kind: str = "ext4") -> EventSourcingEngine:
    settings = Settings(state_directory=directory / "state", strict=True)
    return EventSourcingEngine.open(settings, boot_id=boot_id, files=Disk(kind))


@pytest.mark.parametrize("boot", [BOOT, NEXT_BOOT], ids=["this boot", "after a reboot"])
def test_a_torn_tail_is_cut_at_a_persons_word_alone(tmp_path: Path, boot: str) -> None:
    path = made_log(tmp_path)
    add(path, b"half a line")
    before = path.read_bytes()
    for _ in range(2):
        with strict(tmp_path, boot) as log:
            with pytest.raises(LogTorn, match=r"byte \d+: the line has no end.*commander repair"):
                log.append("note", {})
            assert log.verify_integrity().status is Status.TORN_TAIL
            assert len(list(log.read_from(None))) == 6
            assert path.read_bytes() == before
    with strict(tmp_path, boot) as log:
        assert log.repair("Ada") is None
        assert [kept.read_bytes() for kept in quarantined(path)] == [b"half a line"]
        log.append("note", {})
        notes = [event for event in log.read_from(None) if event.type == "wal.repaired"]
        assert [note.payload["by"] for note in notes] == ["Ada"]
        add(path, b"torn again")
        with pytest.raises(LogTorn):
            log.append("note", {})


def test_what_a_killed_writer_wrote_whole_is_still_taken_up(tmp_path: Path) -> None:
    path = made_log(tmp_path)
    control = Path(f"{path}.d/control")
    published = control.read_bytes()
    with open_log(tmp_path) as log:
        log.append("more", {})
    control.write_bytes(published)  # as if it had been killed before it told
    with strict(tmp_path) as log:
        log.append("note", {})
        assert types_of(log)[-2:] == ["more", "note"]


@pytest.mark.parametrize("kind", ["tmpfs", "overlay"])
def test_a_place_that_forgets_is_refused(tmp_path: Path, kind: str) -> None:
    with pytest.raises(LogUnavailable, match="strict refuses"):
        strict(tmp_path, kind=kind)
    assert not active(tmp_path).exists()
    made_log(tmp_path)
    with pytest.raises(LogUnavailable, match="strict refuses"):
        strict(tmp_path, kind=kind)


@pytest.mark.parametrize("is_strict", [True, False])
def test_who_only_reads_repairs_nothing(tmp_path: Path, is_strict: bool) -> None:
    path = made_log(tmp_path)
    add(path, b"half a line")
    Path(f"{path}.d/control").unlink()
    before = {each: each.read_bytes() for each in path.parent.rglob("*") if each.is_file()}
    settings = Settings(state_directory=path.parent, strict=is_strict)
    with EventSourcingEngine.open(settings, create=False, boot_id=NEXT_BOOT) as log:
        assert len(list(log.read_from(None))) == 6
        assert log.verify_integrity().status is Status.TORN_TAIL
        assert len(log.history("r-0")) == 3
        assert log.head()[0] == 6
    assert {each: each.read_bytes() for each in path.parent.rglob("*") if each.is_file()} == before


@pytest.mark.parametrize("text,means", [("1", True), ("on", True), ("False", False), ("no", False)])
def test_it_may_be_given_as_text(text: str, means: bool) -> None:
    assert Settings.of({"strict": text}).strict is means


@pytest.mark.parametrize("value", ["maybe", 1, None])
def test_another_value_is_refused(value: object) -> None:
    with pytest.raises(SettingsError, match="strict"):
        Settings.of({"strict": value})
