"""Payloads of the Tungsten codec: conformance/tungsten.md B2, B3, against a real protobuf library and real files."""

from __future__ import annotations

import random

import msgspec
import pytest

from fix_proto import TUNGSTEN, messages_of
from fix_tungsten import any_event, golden_cases, golden_segments, make_event
from tranlog.errors import PayloadError, RecordLimitError
from tranlog.tungsten.records.codec import scan
from tranlog.tungsten.records.event import Event, FileDelete, JavaObject, RowChanges, StatementChange
from tranlog.tungsten.records.payload import decode, decode_header, encode
from tranlog.tungsten.records.record import EventRecord
from tranlog.tungsten.records.values import Long

ORACLE = messages_of(TUNGSTEN)
"""B2's table."""


def split(raw: bytes) -> tuple[bytes, bytes]:
    """Return header and body of a payload, by a varint reader of the test's own."""
    parts = []
    at = 0
    for _ in range(2):
        size = shift = 0
        while True:
            byte = raw[at]
            at += 1
            size |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        parts.append(raw[at : at + size])
        at += size
    assert at == len(raw)
    return parts[0], parts[1]


def golden_payloads(case: str) -> list[bytes]:
    return [
        raw[record.payload_offset : record.payload_offset + record.payload_length]
        for raw in golden_segments(case).values()
        for record in scan(raw, checked=True)
        if isinstance(record, EventRecord)
    ]


@pytest.mark.parametrize("case", [case for case in golden_cases() if golden_payloads(case)])
def test_golden_payloads_again(case: str) -> None:
    """The same bytes, the writer's wall clock in them included."""
    for raw in golden_payloads(case):
        assert encode(decode(raw)) == raw


@pytest.mark.parametrize("case", ["statements-crc", "rows-crc", "filtered", "metadata-shards"])
def test_the_oracle_reads_the_golden_payloads(case: str) -> None:
    """That the oracle is one: B2's table reads and writes the ancestor's own bytes."""
    for raw in golden_payloads(case):
        header, body = split(raw)
        assert ORACLE["Header"].FromString(header).SerializeToString() == header
        assert ORACLE["ReplDBMSEvent"].FromString(body).SerializeToString() == body


def test_any_event_is_what_protobuf_writes() -> None:
    """B2: every message, every field there and absent."""
    for seed in range(400):
        event = any_event(random.Random(seed))
        raw = encode(event)
        assert decode(raw) == event, f"any_event(random.Random({seed}))"
        assert decode_header(raw) == event.header
        header, body = split(raw)
        for kind, part in (("Header", header), ("ReplDBMSEvent", body)):
            message = ORACLE[kind].FromString(part)
            assert message.IsInitialized()
            assert message.SerializeToString() == part, f"{kind} of any_event(random.Random({seed}))"


def test_the_end_of_a_file_is_not_lost() -> None:
    """B2, "Lost or changed": the ancestor's writer drops LoadDataFileDelete; ours keeps it."""
    event = msgspec.structs.replace(make_event(1), changes=(FileDelete(file_id=3),))
    assert decode(encode(event)) == event


def test_a_filtered_event_has_an_empty_body() -> None:
    """B2: the second message is there, of length 0; the range's end stands in the header."""
    event = make_event(1, end=(5, 2))
    raw = encode(event)
    assert raw[-1] == 0
    assert decode(raw) == event
    assert event.shard_id == "#UNKNOWN"


def test_the_shard_is_the_first_in_the_metadata() -> None:
    """B2, "Reading"; golden metadata-shards."""
    shards = [event.shard_id for raw in golden_payloads("metadata-shards") if isinstance(event := decode(raw), Event)]
    assert shards[2:5] == ["#UNKNOWN", "#UNKNOWN", ""]
    assert shards[10] == "first"


def test_a_java_object_is_kept() -> None:
    """Header shown, payload kept raw, one clear sentence."""
    for raw in golden_payloads("java-serializer"):
        found = decode(raw)
        assert isinstance(found, JavaObject)
        assert encode(found) == raw
        assert decode_header(raw) is None
        assert found.sentence() == (
            f"The payload is a serialized Java object of {len(raw)} bytes, written by the replicator's JavaSerializer: "
            "kept as it is, not decoded."
        )


def test_fields_that_are_not_known_are_passed_over() -> None:
    """A later release's fields do not hinder reading."""
    header, body = split(encode(make_event(1)))
    extra = b"\xf8\x07\x05" + b"\xfa\x07\x03abc" + b"\xfd\x07\0\0\0\0" + b"\xf9\x07" + bytes(8)
    raw = bytes([len(header)]) + header + bytes([(len(body) + len(extra)) & 0x7F | 0x80, len(body) + len(extra) >> 7])
    assert decode(raw + body + extra) == make_event(1)


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"", "ends in the middle"),
        (b"\x05\x08", "of its 5 bytes"),
        (b"\x02\x08\x01\x00", "fragno is missing"),
        (b"\xff" * 12, "more than ten bytes"),
        (b"\x02\x0b\x0c\x00", "wire type 3"),
        (b"\x02\x02\x00\x00", "field number 0"),
        (b"\x02\x0a\x7f\x00", "runs past the end"),
    ],
)
def test_bytes_that_are_no_event(raw: bytes, why: str) -> None:
    with pytest.raises(PayloadError, match=why):
        decode(raw)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"\x0a\x02\x08\x09", "change of the unknown type 9"),
        (b"\x0a\x02\x08\x02", "change without its content"),
        (b"\x0a\x04\x08\x02\x1a\x00", "error_code is missing"),
        (b"\x12\x03\x0a\x01k", "option without a name or a value"),
        (b"\x12\x06\x0a\x01\xff\x12\x01v", "not UTF-8"),
    ],
)
def test_bodies_that_are_none(body: bytes, why: str) -> None:
    header, _ = split(encode(make_event(1)))
    with pytest.raises(PayloadError, match=why):
        decode(bytes([len(header)]) + header + bytes([len(body)]) + body)


def test_bytes_behind_the_end() -> None:
    with pytest.raises(PayloadError, match="after its end"):
        decode(encode(make_event(1)) + b"x")


def test_what_does_not_fit_is_refused() -> None:
    """The event's id is named, nothing is cut to fit."""
    event = make_event(1)
    for header in (
        msgspec.structs.replace(event.header, seqno=1 << 63),
        msgspec.structs.replace(event.header, fragno=1 << 31),
        msgspec.structs.replace(event.header, source_id="\ud800"),
    ):
        with pytest.raises(RecordLimitError, match="'000001'"):
            encode(msgspec.structs.replace(event, header=header))
    wide = StatementChange(query="x", error_code=1 << 31)
    with pytest.raises(RecordLimitError, match="32 bits"):
        encode(msgspec.structs.replace(event, changes=(wide,)))


def test_all_value_variants_of_the_golden_rows() -> None:
    """45 variants in one row; NULL, numbers, and what only looks alike."""
    first = decode(golden_payloads("rows-crc")[0])
    assert isinstance(first, Event)
    rows = first.changes[0]
    assert isinstance(rows, RowChanges)
    (row,) = rows.tables[0].rows
    assert len(row) == 45
    assert row[6] == Long(-(1 << 63)) and row[8] == 42 and row[9] == Long(4_200_000_000)
    kinds = {type(cell).__name__ for cell in row}
    assert kinds == {
        *("NoneType", "int", "Long", "F32", "float", "str", "bytes"),
        *("Flag", "Moment", "Unscaled", "BinaryText"),
    }
