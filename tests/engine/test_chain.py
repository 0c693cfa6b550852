"""The chain is what a third party checks: fixed vectors, one reading of every line, no byte unprotected."""

import hashlib

import pytest

from celery_commander.engine import InvalidEvent
from celery_commander.engine.chain import (
    GENESIS,
    Header,
    check_id,
    check_type,
    first_header,
    follow_block,
    follows,
    link,
    split_line,
)
from celery_commander.engine.events import NewEvent, encode_payload

ID = "018f3a5e-7c00-7000-8000-00000000000"
V3_PAYLOAD = bytes.fromhex(
    "7b2264223a312c2264617461223a7b226b696e64223a2276616c7565222c226e6f6e65223a6e756c6c2c226f6b22"
    "3a747275652c22726174696f223a302e312c2274657874223a22617c625c6e6320c3a9e280a820f09f9880227d2c"
    "226e223a322c2272756e223a22722d3432222c22746f6b656e223a372c2276223a317d"
)
CREATED = {"format": "celery-wal/1", "log_id": "0b9d2c8e-1f2a-4c3d-9e4f-5a6b7c8d9e0f"}
VECTORS = [
    (
        NewEvent("wal.created", CREATED),
        0,
        b"2026-01-02T03:04:05.000006Z",
        "eb8611a3b5bb30fe34294b604d1bc0d7c235e3f7b0f7097a235d43a21248e1f3",
        269,
    ),
    (
        NewEvent("run.started", {"task": "billing.charge", "args": [1250, "EUR"]}, "r-42", 7, 1),
        1,
        b"2026-01-02T03:04:05.000007Z",
        "332588a62f33b2de90c5487d3074f1f93923a811c7a791f39677c0fcb641244f",
        237,
    ),
    (
        NewEvent(
            "input.recorded",
            {
                "text": "a|b\nc é\u2028 😀",
                "ratio": 0.1,
                "ok": True,
                "none": None,
                "kind": "value",
            },
            "r-42",
            7,
            2,
        ),
        1,
        b"2026-01-02T03:04:05.999999Z",
        "8c620a9040a4be5d2a5670e1ae2e393960937ff5e72de2701d4457688aa67359",
        272,
    ),
]


def rest_of(number: int) -> bytes:
    new, durable, stamp, _, _ = VECTORS[number]
    payload, _ = encode_payload(new, durable=durable, bytes_max=1024 * 1024)
    return b"|".join([b"", new.type.encode(), f"{ID}{number + 1}".encode(), stamp, payload])


def vector_lines() -> list[bytes]:
    previous, lines = GENESIS, []
    for number in range(3):
        rest = rest_of(number)
        previous = link(previous, rest)
        lines.append(previous + rest)
    return lines


def test_the_genesis_value_is_the_hash_of_nothing() -> None:
    assert hashlib.sha256(b"").hexdigest().encode() == GENESIS


def test_the_three_vectors_hash_as_the_format_says() -> None:
    for number, line in enumerate(vector_lines()):
        _, _, _, expected, hashed_bytes = VECTORS[number]
        assert line[:64].decode() == expected
        assert len(line) == hashed_bytes  # the previous hash is as long as the line's own
    whole = b"".join(line + b"\n" for line in vector_lines())
    assert len(whole) == 781
    assert (
        hashlib.sha256(whole).hexdigest()
        == "6d119e6c91862cb9467f70583509d30604f6ecb51d019e8cf1391422e7d68c7f"
    )


def test_the_third_payload_has_exactly_the_bytes_of_the_format() -> None:
    assert rest_of(2).endswith(b"|" + V3_PAYLOAD)


def test_a_type_or_id_that_could_be_read_twice_is_refused() -> None:
    # With previous = 64 zeros, type "a|b" and id "c" would hash like type "a" and id "b|c".
    assert link(b"0" * 64, b"|a|b|c|t|p") == link(b"0" * 64, b"|a|b|c|t|p")
    with pytest.raises(InvalidEvent):
        check_type("a|b")
    with pytest.raises(InvalidEvent):
        check_id("b|c")


@pytest.mark.parametrize("bad", ["", "1a", "a b", "a\n", "é", "a" * 129, None, 3, "a\0"])
def test_a_type_outside_the_grammar_is_refused(bad: object) -> None:
    with pytest.raises(InvalidEvent):
        check_type(bad)


@pytest.mark.parametrize("bad", ["", "a.b", "a\n", "é", "a" * 65, None, 3])
def test_an_id_outside_the_grammar_is_refused(bad: object) -> None:
    with pytest.raises(InvalidEvent):
        check_id(bad)


def test_every_flipped_bit_of_every_line_is_noticed() -> None:
    lines = vector_lines()
    block = b"".join(line + b"\n" for line in lines)
    assert follow_block(GENESIS, b"", block) is not None
    for at in range(len(block)):
        for bit in range(8):
            flipped = block[:at] + bytes([block[at] ^ (1 << bit)]) + block[at + 1 :]
            assert follow_block(GENESIS, b"", flipped) is None, (at, bit)


def test_a_block_and_its_lines_are_judged_alike() -> None:
    lines = vector_lines()
    reached = follow_block(GENESIS, b"", b"".join(line + b"\n" for line in lines))
    assert reached is not None
    assert (reached.hash, reached.lines) == (lines[-1][:64], 3)
    assert reached.timestamp == b"2026-01-02T03:04:05.999999Z"
    previous = GENESIS
    for line in lines:
        assert follows(previous, line)
        assert split_line(line) is not None
        previous = line[:64]


def test_a_block_whose_time_runs_backwards_is_refused() -> None:
    block = vector_lines()[0] + b"\n"
    assert follow_block(GENESIS, b"2026-01-02T03:04:05.000006Z", block) is not None
    assert follow_block(GENESIS, b"2026-01-02T03:04:05.000007Z", block) is None


def test_fences_are_counted_by_their_type_and_not_by_their_text() -> None:
    rests = [
        b'|run.fenced|i1|2026-01-02T03:04:05.000006Z|{"d":0,"data":{},"n":null,"run":"r","token":2,"v":1}',
        b'|x|i2|2026-01-02T03:04:05.000006Z|{"d":0,"data":{"a":"|run.fenced|"},"n":null,"run":null,"token":null,"v":1}',
    ]
    previous, block = GENESIS, b""
    for rest in rests:
        previous = link(previous, rest)
        block += previous + rest + b"\n"
    reached = follow_block(GENESIS, b"", block)
    assert reached is not None
    assert reached.fences == 1


@pytest.mark.parametrize(
    "payload",
    [
        b"{}",
        b'{"d":0,"data":{},"v":1}\r',
        b'{"d":01,"data":{},"v":1}',
        b'{"d":0,"data":{"\xff":1},"v":1}',
    ],
    ids=["no envelope", "carriage return", "number", "not utf-8"],
)
def test_a_payload_that_no_writer_makes_is_refused_although_it_is_chained(payload: bytes) -> None:
    rest = b"|x|i|2026-01-02T03:04:05.000006Z|" + payload
    line = link(GENESIS, rest) + rest
    assert split_line(line) is None
    assert follow_block(GENESIS, b"", line + b"\n") is None


def test_a_header_reads_back_as_it_was_written() -> None:
    header = first_header(CREATED["log_id"])
    line = header.format()
    assert line.endswith(b"\n")
    assert Header.parse(line[:-1]) == header


@pytest.mark.parametrize(
    "bad", [b"", b"#celery-wal/2|x", b"hello", b"\xff" * 20, b"#celery-wal/1|a|1|1|b|c"]
)
def test_what_is_no_header_is_not_read_as_one(bad: bytes) -> None:
    assert Header.parse(bad) is None
