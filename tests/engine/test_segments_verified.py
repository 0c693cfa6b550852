"""Verification holds every file of a log against its neighbours, against anchors, and against compactions."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from celery_commander.engine import Anchor, IntegrityReport, Status, Verified, verify_log
from celery_commander.engine.wal.layout import Layout

from .logs import active, add, cut, flip, lines_of, open_log

AT = datetime(2026, 1, 2, tzinfo=UTC)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A closed log of four files, which begin at 1, 5, 8 and 11, and end at 12."""
    with open_log(tmp_path) as log:
        for index in range(8):
            log.append("note", {"i": index}, run_id=f"r-{index % 2}")
            if index % 2 and index < 6:
                assert log.seal()
    return active(tmp_path)


def segment(path: Path, first_seq: int) -> Path:
    return Layout.of(path).segment(first_seq)


def hash_at(path: Path, first_seq: int, index: int) -> str:
    """Return the hash of the `index`-th event of a file; 0 is the first."""
    file = path if first_seq == 11 else segment(path, first_seq)
    return lines_of(file)[1 + index][:64].decode()


def with_header(file: Path, **claims: str | int) -> None:
    """Write other claims into a file's header."""
    header, *lines = lines_of(file)
    names = ("format", "log_id", "segment", "first_seq", "base_hash", "previous_sha256")
    fields = dict(zip(names, header.decode().rstrip().split("|"), strict=True))
    fields |= {name: str(value) for name, value in claims.items()}
    file.write_bytes(("|".join(fields.values()) + "\n").encode() + b"".join(lines))


def place(report: IntegrityReport) -> tuple[int, str, int]:
    assert report.broken_at is not None
    return report.broken_at.seq, Path(report.broken_at.path).name, report.broken_at.offset


def test_a_good_log_of_many_files_says_how_far_it_is_good(path: Path) -> None:
    report = verify_log(path)
    assert (report.status, report.events, report.first_seq) == (Status.OK_UNANCHORED, 12, 1)
    assert report.head == hash_at(path, 11, 1)
    assert report.verified == Verified(12, report.head, 11, path.stat().st_size, 1)


@pytest.mark.parametrize(
    "attack,status,seq",
    [
        pytest.param(lambda path: segment(path, 1).unlink(), Status.GAP, None, id="drop the first"),
        pytest.param(lambda path: segment(path, 5).unlink(), Status.GAP, 8, id="drop one"),
        pytest.param(lambda path: segment(path, 8).unlink(), Status.GAP, 11, id="drop the last"),
        pytest.param(
            lambda path: cut(segment(path, 5), sum(map(len, lines_of(segment(path, 5))[:-1]))),
            Status.GAP,
            8,
            id="cut one at a line",
        ),
        pytest.param(
            lambda path: cut(segment(path, 5), segment(path, 5).stat().st_size - 9),
            Status.CORRUPT,
            7,
            id="cut one in a line",
        ),
        pytest.param(lambda path: flip(segment(path, 5), 300), Status.CORRUPT, 5, id="edit one"),
        pytest.param(lambda path: add(segment(path, 5), b"more\n"), Status.CORRUPT, 8, id="add"),
        pytest.param(
            lambda path: segment(path, 5).write_bytes(b"nothing of ours\n"),
            Status.CORRUPT,
            5,
            id="replace one",
        ),
        pytest.param(
            lambda path: segment(path, 1).rename(segment(path, 2)), Status.CORRUPT, 2, id="rename"
        ),
    ],
)
def test_an_attack_on_a_sealed_file_is_named_with_its_place(
    path: Path, attack: Callable[[Path], object], status: Status, seq: int | None
) -> None:
    with open_log(path.parents[1]) as log:
        attack(path)
        for report in (log.verify_integrity(), verify_log(path)):
            assert report.status is status, report
            assert (report.broken_at.seq if report.broken_at else None) == seq
            assert report.verified is None


def test_two_swapped_files_are_corruption(path: Path) -> None:
    one, other, aside = segment(path, 5), segment(path, 8), path.parent / "aside"
    one.rename(aside)
    other.rename(one)
    aside.rename(other)
    report = verify_log(path)
    assert (report.status, report.events, place(report)) == (Status.CORRUPT, 4, (5, one.name, 0))


@pytest.mark.parametrize("first_seq", [1, 5, 11])
@pytest.mark.parametrize(
    "claim", [{"segment": 7}, {"base_hash": "0" * 64}, {"previous_sha256": "f" * 64}], ids=str
)
def test_a_changed_header_is_corruption_although_it_is_outside_the_chain(
    path: Path, first_seq: int, claim: dict[str, str | int]
) -> None:
    file = path if first_seq == 11 else segment(path, first_seq)
    with_header(file, **claim)
    report = verify_log(path)
    assert (report.status, place(report)) == (Status.CORRUPT, (first_seq, file.name, 0))
    assert report.events == first_seq - 1


def test_a_header_that_names_another_beginning_or_log_is_found(path: Path) -> None:
    file = segment(path, 5)
    before = file.read_bytes()
    with_header(file, first_seq=6)
    assert verify_log(path).status is Status.CORRUPT
    file.write_bytes(before)
    with_header(file, log_id="0b9d2c8e-1f2a-4c3d-9e4f-5a6b7c8d9e0f")
    assert verify_log(path).status is Status.FOREIGN


def test_every_flipped_byte_of_every_header_is_found(path: Path) -> None:
    for file in (segment(path, 5), path):
        for offset in range(len(lines_of(file)[0])):
            flip(file, offset)
            assert verify_log(path).exit_code >= 30, (file.name, offset)
            flip(file, offset)
    assert verify_log(path).status is Status.OK_UNANCHORED


def test_an_old_active_file_put_back_is_not_the_published_log(path: Path) -> None:
    with open_log(path.parents[1]) as log:
        log.append("note", {})
        path.write_bytes(segment(path, 5).read_bytes())
        assert log.verify_integrity().status is Status.TRUNCATED


def test_a_log_is_verified_while_it_is_sealed_again_and_again(tmp_path: Path) -> None:
    import threading

    with open_log(tmp_path) as log, open_log(tmp_path) as writer:
        ended = threading.Event()

        def write() -> None:
            for index in range(60):
                writer.append("note", {"i": index}, wait=False)
                writer.seal()
            ended.set()

        thread = threading.Thread(target=write)
        thread.start()
        rounds = 0
        while not ended.is_set() or not rounds:
            assert log.verify_integrity().status is Status.OK_UNANCHORED
            rounds += 1
        thread.join()
        assert log.verify_integrity().events == 121


# --- going on from an earlier verification


def test_verification_goes_on_where_it_ended(path: Path) -> None:
    first = verify_log(path).verified
    assert first is not None
    with open_log(path.parents[1]) as log:
        assert log.verify_integrity(after=first).events == 12
        log.append("note", {})
        log.seal()
        log.append("note", {})
        later = log.verify_integrity(after=first)
        assert (later.status, later.events) == (Status.OK_UNANCHORED, 15)
        assert later.verified == log.verify_integrity().verified
        flip(segment(path, 5), 300)  # what was verified before is not read again
        assert log.verify_integrity(after=first).status is Status.OK_UNANCHORED
        offset = path.stat().st_size - 20
        flip(path, offset)
        assert log.verify_integrity(after=first).status is Status.CORRUPT


def test_verification_goes_on_from_a_file_without_events(path: Path) -> None:
    with open_log(path.parents[1]) as log:
        log.seal()
        after = log.verify_integrity().verified
        assert after is not None
        assert (after.seq, after.file) == (13, 14)
        log.append("note", {})
        assert log.verify_integrity(after=after).events == 14


@pytest.mark.parametrize(
    "attack,status",
    [
        (lambda path: segment(path, 1).unlink(), Status.GAP),
        (lambda path: segment(path, 5).unlink(), Status.GAP),
        (lambda path: cut(path, path.stat().st_size - 5), Status.TRUNCATED),
        (lambda path: with_header(path, first_seq=12), Status.GAP),
    ],
)
def test_what_became_of_the_part_that_was_verified_is_noticed(
    path: Path, attack: Callable[[Path], object], status: Status
) -> None:
    after = verify_log(path).verified
    attack(path)
    assert verify_log(path, after=after).status is status


def test_a_rewritten_event_at_the_place_of_going_on_is_a_fork(path: Path) -> None:
    after = verify_log(path).verified
    assert after is not None
    report = verify_log(path, after=replace(after, hash="0" * 64))
    assert (report.status, report.broken_at and report.broken_at.seq) == (Status.FORKED, 12)


# --- anchors


def anchor(path: Path, seq: int, hash_: str) -> Anchor:
    log_id = lines_of(path)[0].decode().split("|")[1]
    return Anchor(log_id, seq, hash_, AT)


def test_anchors_that_are_in_the_chain_make_the_answer_anchored(path: Path) -> None:
    anchors = [
        anchor(path, 4, hash_at(path, 1, 3)),
        anchor(path, 9, hash_at(path, 8, 1)),
        anchor(path, 5, hash_at(path, 5, 0)),
    ]
    report = verify_log(path, anchors=anchors)
    assert (report.status, report.exit_code) == (Status.OK_ANCHORED, 0)
    assert report.anchored_to == str(anchors[1])
    assert "9" in report.anchored_to


def test_an_anchor_of_another_hash_is_a_fork(path: Path) -> None:
    good, bad = anchor(path, 4, hash_at(path, 1, 3)), anchor(path, 9, "0" * 64)
    report = verify_log(path, anchors=[good, bad])
    assert (report.status, report.anchored_to) == (Status.FORKED, None)


def test_an_anchor_beyond_the_end_proves_that_the_tail_was_cut(path: Path) -> None:
    anchors = [anchor(path, 12, hash_at(path, 11, 1))]
    assert verify_log(path, anchors=anchors).status is Status.OK_ANCHORED
    cut(path, path.stat().st_size - len(lines_of(path)[-1]))
    assert verify_log(path).status is Status.OK_UNANCHORED
    assert verify_log(path, anchors=anchors).status is Status.TRUNCATED
    add(path, b"half a line")  # torn, for who does not know that event 12 was there
    assert verify_log(path).status is Status.TORN_TAIL
    assert verify_log(path, anchors=anchors).status is Status.CORRUPT


def test_an_anchor_of_another_log_is_foreign(path: Path) -> None:
    other = replace(anchor(path, 4, hash_at(path, 1, 3)), log_id="another")
    assert verify_log(path, anchors=[other]).status is Status.FOREIGN


def test_an_anchor_before_the_place_of_going_on_vouches_for_nothing(path: Path) -> None:
    report = verify_log(path)
    early, late = anchor(path, 4, hash_at(path, 1, 3)), anchor(path, 12, report.head)
    assert verify_log(path, after=report.verified, anchors=[early]).status is Status.OK_UNANCHORED
    assert (
        verify_log(path, after=report.verified, anchors=[early, late]).status is Status.OK_ANCHORED
    )


# --- compaction


def compacted(path: Path, *, through: int = 7, lies: Mapping[str, object] | None = None) -> None:
    """Remove the first two files, and say so in the log."""
    facts: list[dict[str, object]] = [
        {"first_seq": first, "last_seq": last, "sha256": _sha256(segment(path, first))}
        for first, last in ((1, 4), (5, 7))
    ]
    facts[-1] |= lies or {}
    with open_log(path.parents[1]) as log:
        log.append("wal.compacted", {"through": through, "removed": facts})
    for first in (1, 5):
        segment(path, first).unlink()


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def test_a_compaction_that_the_chain_tells_of_is_good(path: Path) -> None:
    compacted(path)
    report = verify_log(path)
    assert (report.status, report.first_seq, report.events) == (Status.OK_UNANCHORED, 8, 6)
    assert verify_log(path, after=report.verified).status is Status.OK_UNANCHORED
    assert report.verified is not None
    assert report.verified.first_seq == 8
    gone = Verified(3, "0" * 64, 1, 900)
    assert verify_log(path, after=gone).status is Status.OK_UNANCHORED


def test_a_removed_beginning_must_be_authorised_before_verification_goes_on(path: Path) -> None:
    before = verify_log(path).verified
    compacted(path, lies={"sha256": "0" * 64})
    assert verify_log(path, after=before).status is Status.UNAUTHORISED_COMPACTION


@pytest.mark.parametrize(
    "lies", [{"sha256": "0" * 64}, {"last_seq": 6}, {"last_seq": "7"}], ids=str
)
def test_a_compaction_that_does_not_fit_authorises_nothing(
    path: Path, lies: dict[str, object]
) -> None:
    compacted(path, lies=lies)
    assert verify_log(path).status is Status.UNAUTHORISED_COMPACTION


def test_more_than_what_a_compaction_covers_is_a_gap(path: Path) -> None:
    compacted(path, through=4)
    assert verify_log(path).status is Status.GAP
    segment(path, 8).unlink()
    assert verify_log(path).status is Status.GAP


def test_a_lone_sealed_file_is_a_gap(path: Path) -> None:
    assert verify_log(segment(path, 1)).status is Status.OK_UNANCHORED
    assert verify_log(segment(path, 8)).status is Status.GAP
