"""What a disk may leave behind, and what somebody who knows the format may write: named, in bounded memory.

Verification takes no payload apart: a line that is chained and stands in the envelope's form is good to it, even where
its data is nested too deep or is no JSON. Whoever reads such a line is told that the log is corrupt there.
"""

from __future__ import annotations

import random
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from celery_commander.engine import EventSourcingEngine, LogCorrupt, Status
from celery_commander.engine.chain import GENESIS, link
from celery_commander.engine.verify import verify_log

from .forked import Forked
from .logs import (
    NEXT_BOOT,
    everything,
    flip,
    lines_of,
    made_log,
    open_log,
    quarantined,
    segmented,
    types_of,
)

SECTOR = 512
ID = b"018f3a5e-7c00-7000-8000-0000000000%02d"
STAMP = b"2031-01-02T03:04:05.000006Z"
GOOD = b'{"d":%d,"data":{},"n":null,"run":null,"token":null,"v":1}'


def tails(whole: bytes, seed: int) -> Iterator[tuple[int, bytes]]:
    """Yield the file with its tail lost in zeros or in noise, from every sector on."""
    chance = random.Random(seed)
    for start in range(0, len(whole), SECTOR):
        rest = len(whole) - start
        yield start, whole[:start] + bytes(rest)
        yield start, whole[:start] + chance.randbytes(rest)
        if start + SECTOR < len(whole):  # the first lost sector only: what follows is there
            yield start, whole[:start] + bytes(SECTOR) + whole[start + SECTOR :]


def test_a_tail_lost_from_any_sector_on_is_cut_there_or_was_durable(tmp_path: Path) -> None:
    made = tmp_path / "made"
    with open_log(made) as log:
        log.append("note", {"i": 0})
        durable = log.head()[0]
        for index in range(1, 13):  # not waited for: a power cut may take any of them
            log.append("note", {"i": index, "x": "y" * 90}, wait=False)
        path = log.path
        whole = path.read_bytes()
    ends = [0]
    for line in whole.splitlines(keepends=True):
        ends.append(ends[-1] + len(line))
    header, promised = ends[1], ends[durable + 1]
    outcomes = set()
    for start, image in tails(whole, seed=20_260_102):
        if start < header:
            continue  # without its header it is no log: the test below
        directory = tmp_path / "log"
        shutil.rmtree(directory, ignore_errors=True)
        shutil.copytree(made, directory)
        (directory / "state" / path.name).write_bytes(image)
        kept = max(number for number, end in enumerate(ends) if end <= start) - 1
        with open_log(directory, boot_id=NEXT_BOOT) as log:
            report = log.verify_integrity()
            if report.status is Status.CORRUPT:
                # A line survived behind the loss that says that what was lost had been durable.
                assert start < promised
                with pytest.raises(LogCorrupt):
                    log.append("after", {})
                assert (directory / "state" / path.name).read_bytes() == image
            else:
                assert report.status is Status.OK_UNANCHORED
                assert types_of(log)[kept:] == ["wal.repaired"]
                (aside,) = quarantined(log.path)
                assert image.endswith(aside.read_bytes())
                log.append("after", {})
                everything(log)
            outcomes.add(report.status)
    assert outcomes == {Status.OK_UNANCHORED, Status.CORRUPT}


def test_every_bit_of_every_file_of_a_log_flipped_is_never_called_good(tmp_path: Path) -> None:
    path = segmented(tmp_path, seals=1)
    files = [path, *Path(f"{path}.d/segments").iterdir()]
    assert len(files) == 2
    bits = 0
    for file in files:
        for offset in range(file.stat().st_size):
            mask = 1 << (offset % 8)
            flip(file, offset, mask)
            status = verify_log(path).status
            assert not status.is_good, (file.name, offset, mask, status)
            flip(file, offset, mask)
            bits += 1
    assert verify_log(path).status is Status.OK_UNANCHORED
    assert bits > 1_000


DEEP = b"[" * 200_000 + b"]" * 200_000
ONLY_READ = ("depth without end", "data that is no JSON")
HOSTILE = {
    "a NUL": b'{"d":1,"data":{"x":"\x00"},"n":null,"run":null,"token":null,"v":1}',
    "a raw CR": b'{"d":1,"data":{"x":"\r"},"n":null,"run":null,"token":null,"v":1}',
    "no UTF-8": b'{"d":1,"data":{"x":"\xff\xfe"},"n":null,"run":null,"token":null,"v":1}',
    "a lone surrogate": b'{"d":1,"data":{"x":"\xed\xa0\x80"},"n":null,"run":null,"token":null,"v":1}',
    ONLY_READ[0]: b'{"d":1,"data":{"x":' + DEEP + b'},"n":null,"run":null,"token":null,"v":1}',
    ONLY_READ[1]: b'{"d":1,"data":{hello},"n":null,"run":null,"token":null,"v":1}',
    "no object": b"[1]",
    "no JSON": b"hello",
    "nothing": b"",
    "another d": b'{"d":"1","data":{},"n":null,"run":null,"token":null,"v":1}',
    "100 MB": b'{"d":1,"data":{"x":"'
    + b"y" * 100_000_000
    + b'"},"n":null,"run":null,"token":null,"v":1}',
}


def chained(previous: bytes, number: int, payload: bytes, type_: bytes = b"note") -> bytes:
    """Return a line whose hash follows, as anybody can make one who knows the format."""
    rest = b"|".join([b"", type_, ID % number, STAMP, payload])
    return link(previous, rest) + rest + b"\n"


def look_at(path: Path) -> tuple[Status, int, str, int]:
    """Verify, read and try to append in a process of its own; return what was said, and what it took in KiB."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    report = verify_log(path)
    seen: list[str] = []
    with EventSourcingEngine.open(path) as log:
        try:
            seen.extend(event.type for event in log.read_from(None))
        except LogCorrupt:
            seen.append("corrupt")
        try:
            log.append("after", {})
            seen.append("appended")
        except LogCorrupt:
            seen.append("refused")
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    seq = report.broken_at.seq if report.broken_at else 0
    return report.status, seq, " ".join(seen), used


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_line_with_a_right_hash_is_named_in_bounded_memory(
    tmp_path: Path, name: str
) -> None:
    path = made_log(tmp_path, 2)
    lines = lines_of(path)
    previous = lines[-1][:64]
    bad = chained(previous, 1, HOSTILE[name])
    after = chained(bad[:64], 2, GOOD % 4)  # says that the hostile line was on disk
    with path.open("ab") as file:
        file.write(bad + after)
    del bad
    Path(f"{path}.d/control").write_bytes(b"")  # as after a restart of the host
    with Forked(lambda _: look_at(path)) as child:
        status, seq, seen, used = child.result()
    if name in ONLY_READ:
        assert (status, seen) == (Status.OK_UNANCHORED, "wal.created note note corrupt appended")
    else:
        assert (status, seq) == (Status.CORRUPT, len(lines))  # the header is no event
        assert seen == "wal.created note note corrupt refused"
    assert used < 64 * 1024


def test_a_log_without_its_header_is_no_log_and_stays_as_it_is(tmp_path: Path) -> None:
    path = made_log(tmp_path)
    whole = path.read_bytes()
    assert len(whole) > SECTOR
    image = bytes(SECTOR) + whole[SECTOR:]
    path.write_bytes(image)
    assert verify_log(path).status is Status.FOREIGN
    assert path.read_bytes() == image
    assert GENESIS.decode() == verify_log(path).head
