"""The bytes of the message store: what is written is read back, and anything else has a name.

docs/format.md, "Records of a store".
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tranlog.ids import Lsn
from tranlog.lsn import lsn
from tranlog.queues.rules import records
from tranlog.queues.rules.encoding import encode
from tranlog.queues.rules.records import (
    BODIES,
    CHECKPOINT,
    DELETE,
    HEADER_BYTES,
    OVERHEAD,
    SYNC,
    WHOLE,
    ContainerHeader,
    NamedPosition,
    QueueRecord,
    Stopped,
    encode_checkpoint,
    encode_header,
    encode_position,
    end_before_zeros,
    find_proofs,
    parse,
    parse_header,
    parse_positions,
)

NUMBER = 7


def at(offset: int, raw: bytes, epoch: int = 3) -> QueueRecord | Stopped:
    return parse(memoryview(bytes(offset) + raw), offset, NUMBER, epoch)


def body_of(record_type: int) -> bytes:
    return bytes(records._LENGTHS[record_type][0])


@pytest.mark.parametrize("record_type", BODIES)
def test_each_record_is_read_back(record_type: int) -> None:
    raw = encode(record_type, WHOLE, 3, lsn(NUMBER, 99), Lsn(5), body_of(record_type))
    found = at(99, raw)
    assert found == QueueRecord(record_type, WHOLE, 3, lsn(NUMBER, 99), Lsn(5), memoryview(body_of(record_type)))
    assert isinstance(found, QueueRecord) and found.length == len(raw)
    assert BODIES[record_type][0] in records.record_text(found)


def test_each_flipped_bit_of_a_record_is_found() -> None:
    raw = encode(DELETE, WHOLE, 3, lsn(NUMBER, 99), Lsn(5), b"")
    for bit in range(len(raw) * 8):
        torn = bytearray(raw)
        torn[bit // 8] ^= 1 << bit % 8
        found = at(99, bytes(torn))
        assert isinstance(found, Stopped) and found.bad


def test_each_flipped_bit_of_a_header_is_found() -> None:
    header = ContainerHeader(8192, bytes(range(16)), 7, 3, lsn(6, HEADER_BYTES), 99)
    raw = encode_header(header)
    assert parse_header(raw) == header
    for bit in range(60 * 8):
        torn = bytearray(raw)
        torn[bit // 8] ^= 1 << bit % 8
        assert isinstance(parse_header(bytes(torn)), str)
    assert isinstance(parse_header(raw[:59]), str)


@pytest.mark.parametrize(
    ("raw", "bad"),
    [
        (bytes(40), False),
        (encode(DELETE, WHOLE, 3, lsn(NUMBER - 1, 99), Lsn(5), b""), False),
        (encode(DELETE, WHOLE, 3, lsn(NUMBER, 98), Lsn(5), b""), False),
        (encode(DELETE, WHOLE, 2, lsn(NUMBER, 99), Lsn(5), b""), False),
        (encode(DELETE, WHOLE, 3, lsn(NUMBER, 99), Lsn(5), b"")[:-1], True),
        (encode(DELETE, WHOLE, 3, lsn(NUMBER, 99), Lsn(5), b"x"), True),
        (encode(0x30, WHOLE, 3, lsn(NUMBER, 99), Lsn(5), b""), True),
        (bytes(10), False),
        (b"\1" * 10, True),
    ],
    ids=["zeros", "former use", "elsewhere", "lower epoch", "cut", "length", "type", "no room, zeros", "no room"],
)
def test_an_end_is_told_from_what_is_bad(raw: bytes, bad: bool) -> None:
    found = at(99, raw)
    assert isinstance(found, Stopped) and found.bad is bad


def test_proofs_are_found_behind_anything() -> None:
    """docs/format.md: a proof counts at its own place alone; one in a message's content is none."""
    proof = encode(SYNC, 0, 3, lsn(NUMBER, 250), Lsn(0), records.PROOF_BODY.pack(lsn(NUMBER, 200), 1, 1))
    raw = bytearray(b"\xa5" * 600)
    raw[250 : 250 + len(proof)] = proof
    raw[400 : 400 + len(proof)] = proof
    assert list(find_proofs(bytes(raw), 0, NUMBER)) == [(lsn(NUMBER, 250), lsn(NUMBER, 200))]
    assert list(find_proofs(bytes(raw), 251, NUMBER)) == []
    assert list(find_proofs(bytes(raw), 0, NUMBER + 1)) == []


def test_an_end_before_zeros_is_where_it_is() -> None:
    """Also at and beside the ends of the pieces in which zeros are passed over, and where there is nothing else."""
    for size in (0, 1, 65_535, 65_536, 65_537, 200_000):
        for behind in (0, 1, 65_535, 65_536, 65_537, 131_072):
            assert end_before_zeros(b"\0" * (size // 2) + b"x" * (size - size // 2) + bytes(behind)) == size


@given(
    st.dictionaries(
        st.binary(max_size=20),
        st.builds(NamedPosition, st.integers(0, 1 << 63), st.integers(0, 9), st.integers(0, 9)),
        max_size=5,
    )
)
def test_positions_are_read_back(positions: dict[bytes, NamedPosition]) -> None:
    body = memoryview(encode_checkpoint(lsn(1, 5), 1, 2, positions))
    assert parse_positions(body, CHECKPOINT) == positions
    for name, position in positions.items():
        assert parse_positions(memoryview(encode_position(name, position)), records.POSITION) == {name: position}
    for torn in (body[:-1], memoryview(bytes(body) + b"x")):
        if positions or len(torn) > len(body):
            with pytest.raises(ValueError, match="positions"):
                parse_positions(torn, CHECKPOINT)


@given(st.binary(min_size=0, max_size=200), st.integers(0, 100))
def test_rubbish_is_a_value(raw: bytes, offset: int) -> None:
    found = parse(memoryview(raw), min(offset, len(raw)), NUMBER, 0)
    assert isinstance(found, Stopped)
    list(find_proofs(raw, min(offset, len(raw)), NUMBER))
    assert len(raw) < OVERHEAD or isinstance(parse_header(raw), str)
