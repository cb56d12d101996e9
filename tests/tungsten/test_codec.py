"""Records of the Tungsten codec: conformance/tungsten.md B1; part D, thl/log/LogRecordTest."""

from __future__ import annotations

import random
import struct
from zlib import crc32

import pytest

from fix_tungsten import golden_cases, golden_segments
from tranlog.errors import RecordLimitError
from tranlog.ids import segment_name
from tranlog.log.records.format import is_tungsten
from tranlog.tungsten.records.codec import (
    FILE_HEADER,
    encode_event,
    encode_file_header,
    encode_rotate,
    is_native,
    next_number,
    parse_file_header,
    parse_record,
    pass_plain,
    read_utf,
    scan,
    segment_number,
    skip_events,
    write_utf,
)
from tranlog.tungsten.records.record import (
    BadLength,
    Damaged,
    EventRecord,
    FileHeader,
    ImpossibleEvent,
    Outcome,
    PartialEvent,
    Short,
    TungstenRotate,
    UnknownRecord,
)


def make(
    seqno: int = 0, fragno: int = 0, *, last: bool = True, payload: bytes = b"payload", checksum: bool = True
) -> bytes:
    return encode_event(
        seqno=seqno,
        fragno=fragno,
        last_frag=last,
        epoch=3,
        source_id="logos",
        event_id="000868:1025;193351",
        shard_id="db0",
        tstamp=1_309_560_000_000,
        payload=payload,
        checksum=checksum,
    )


def parse(raw: bytes, *, checked: bool = True) -> Outcome:
    return parse_record(raw, 0, 16, checked=checked)


def test_the_annotated_record() -> None:
    """B1, "Annotated record": seqno 0 of a plain log, byte by byte."""
    raw = golden_segments("simple-100")[1]
    assert raw[:16].hex() == "c001cafe00010001ffffffffffffffff"
    assert raw[16:40].hex() == "0000012c010000000000000000000001" + "0000000000000000"
    assert raw[40:47] == b"\0\5logos"
    assert raw[316 - 9 : 316].hex() == "01000000000708d97d"
    record = parse_record(raw, 16, 16, checked=True)
    assert isinstance(record, EventRecord)
    assert (record.offset, record.length, record.end) == (16, 300, 316)
    assert (record.seqno, record.fragno, record.last_frag, record.epoch) == (0, 0, True, 0)
    assert (record.source_id, record.event_id) == ("logos", "000868:0000000000001025;193351")
    assert (record.shard_id, record.tstamp, record.crc) == ("db0", 1_309_560_000_000, 118_020_477)
    assert record.payload_length == 1 + 0x49 + 2 + 0x8B


@pytest.mark.parametrize("case", golden_cases())
def test_golden_records_again(case: str) -> None:
    """What was read and is written again is the same bytes."""
    events = 0
    for raw in golden_segments(case).values():
        for record in scan(raw, checked=True):
            if isinstance(record, EventRecord):
                events += 1
                start = record.payload_offset
                again = encode_event(
                    seqno=record.seqno,
                    fragno=record.fragno,
                    last_frag=record.last_frag,
                    epoch=record.epoch,
                    source_id=record.source_id,
                    event_id=record.event_id,
                    shard_id=record.shard_id,
                    tstamp=record.tstamp,
                    payload=raw[start : start + record.payload_length],
                    checksum=record.crc_type == 1,
                )
                assert again == raw[record.offset : record.end]
            elif isinstance(record, TungstenRotate):
                again = encode_rotate(record.next_segment, checksum=record.crc_type == 1)
                assert again == raw[record.offset : record.offset + record.length]
                assert len(again) == 22
    assert events or case in ("empty", "fail-bad-magic", "fail-major-version") or case.startswith("recover")


@pytest.mark.parametrize("checksum", [True, False])
def test_an_event_there_and_back(checksum: bool) -> None:
    """D, testReplicationEvents: with checksum on and off; a reader that checks takes both (B1)."""
    raw = make(7, 2, last=False, checksum=checksum)
    for checked in (True, False):
        record = parse(raw, checked=checked)
        assert isinstance(record, EventRecord)
        assert (record.seqno, record.fragno, record.last_frag, record.epoch) == (7, 2, False, 3)
        assert raw[record.payload_offset - 16 :][: record.payload_length] == b"payload"
        assert record.crc_type == int(checksum)


def test_a_rotate_record_there_and_back() -> None:
    """D, testRotationEvents: it holds a number, not a file name (B6-6)."""
    record = parse(encode_rotate(12, checksum=True))
    assert isinstance(record, TungstenRotate)
    assert record.next_segment == 12


def test_the_checksum_is_of_the_data_alone() -> None:
    """B1, "Record frame"; B6-5: neither length nor checksum type is in it; eight bytes hold it (B6-4)."""
    raw = make()
    assert struct.unpack(">BQ", raw[-9:]) == (1, crc32(raw[4:-9]))


def test_every_flipped_bit_is_found() -> None:
    """D, testChecksumFailure, testChecksumTypeFailure, testChecksumValueMismatch."""
    raw = make()
    for at in range(4, len(raw)):
        for bit in range(8):
            bad = raw[:at] + bytes([raw[at] ^ 1 << bit]) + raw[at + 1 :]
            assert isinstance(parse(bad), Damaged), f"byte {at} bit {bit}"


def test_without_checking_a_wrong_checksum_is_passed_over() -> None:
    """D, the same three: readable with checksums off; an unknown type too."""
    raw = make()
    for bad in (raw[:-1] + b"x", raw[:-9] + b"\7" + raw[-8:]):
        assert isinstance(parse(bad), Damaged)
        assert isinstance(parse(bad, checked=False), EventRecord)


def test_type_0_needs_a_zero() -> None:
    """B1: with checking on, a record of type 0 passes only if its checksum is 0."""
    raw = make(checksum=False)
    assert isinstance(parse(raw), EventRecord)
    assert isinstance(parse(raw[:-1] + b"\1"), Damaged)


@pytest.mark.parametrize("length", [0, 1, 12, 1_000_000_001, 0x7FFFFFFF, 0xFFFFFFFF])
def test_impossible_lengths(length: int) -> None:
    """B1: valid are 13 to 1,000,000,000."""
    assert parse(struct.pack(">I", length) + bytes(100)) == BadLength(length)


def test_every_cut_of_a_record_is_short() -> None:
    raw = make()
    for size in range(len(raw)):
        outcome = parse(raw[:size])
        assert outcome == Short(4 if size < 4 else len(raw))


def test_an_unknown_type_is_no_damage_of_the_frame() -> None:
    """B4 6."""
    record = parse(struct.pack(">I", 18) + b"\7abcd" + struct.pack(">BQ", 0, 0))
    assert isinstance(record, UnknownRecord)
    assert record.record_type == 7


def test_strings_are_modified_utf8() -> None:
    """B1, head: NUL in two bytes, characters above U+FFFF as two surrogates of three."""
    assert write_utf("a\0b") == b"a\xc0\x80b"
    assert write_utf("😀") == b"\xed\xa0\xbd\xed\xb8\x80"
    rng = random.Random(6)
    for _ in range(300):
        text = "".join(rng.choice("a\0é日\ud7ff\ue000\uffff😀\U0010ffff") for _ in range(rng.randrange(12)))
        assert read_utf(write_utf(text)) == text


@pytest.mark.parametrize("raw", ["ff", "c3", "f09f9880", "eda0bd", "edb880", "edb880eda0bd", "c080c3"])
def test_what_java_does_not_write_is_refused(raw: str) -> None:
    with pytest.raises(ValueError):
        read_utf(bytes.fromhex(raw))


def test_limits_of_a_record() -> None:
    """B1: strings up to 65535 bytes, fragments up to a short's 32767."""
    wide = {"seqno": 1, "fragno": 0, "last_frag": True, "epoch": 0, "tstamp": 0, "payload": b"", "checksum": True}
    with pytest.raises(RecordLimitError, match="event id has more than 65535"):
        encode_event(**wide, source_id="", event_id="x" * 65536, shard_id="")  # type: ignore[arg-type]
    with pytest.raises(RecordLimitError, match="half a surrogate"):
        encode_event(**wide, source_id="\ud800", event_id="x", shard_id="")  # type: ignore[arg-type]
    with pytest.raises(RecordLimitError, match="fragment 32768"):
        make(1, 32768)
    with pytest.raises(RecordLimitError, match="64 bits"):
        make(1 << 63)


def test_file_headers() -> None:
    """B1, "File header"; golden fail-bad-magic, fail-major-version, warn-minor-version."""
    assert parse_file_header(encode_file_header(-1)) == FileHeader(major=1, minor=1, base_seqno=-1)
    assert parse_file_header(encode_file_header(54)[:15]) == PartialEvent(15)
    assert parse_file_header(b"") == PartialEvent(0)
    for case, word in (("fail-bad-magic", "magic"), ("fail-major-version", "major version 2")):
        found = parse_file_header(golden_segments(case)[1])
        assert isinstance(found, ImpossibleEvent)
        assert word in found.why
    minor = parse_file_header(golden_segments("warn-minor-version")[1])
    assert isinstance(minor, FileHeader)
    assert minor.minor == 9


def test_names() -> None:
    """A1: decimal, ten digits, from 1, modulo 2^31 - 1."""
    assert segment_name(7) == "thl.data.0000000007"
    assert segment_number("thl.data.0000000007") == 7
    assert next_number((1 << 31) - 2) == 0
    for name in ("thl.data.7", "thl.data.0000000007.old", "thl.data.00000000a7", "disklog.lck", "thl.data.9999999999"):
        assert segment_number(name) is None


def test_a_native_log_is_told_apart() -> None:
    """docs/format.md: a sync record stands first in every native segment. One wrong bit makes neither of the other."""
    header = encode_file_header(-1)
    native = header + struct.pack(">IBQQqQ16sBI", 58, 3, 1, 1, 0, 0, bytes(16), 1, 1)
    assert is_native(native) and not is_tungsten(native)
    assert not is_native(header)
    for case in golden_cases():
        for raw in golden_segments(case).values():
            assert not is_native(raw), case
            for bit in range(16 * 8, min(len(raw), 64) * 8):
                assert not is_native(flipped(raw, bit)), (case, bit)
    for bit in range(16 * 8, len(native) * 8):
        assert not is_tungsten(flipped(native, bit)), bit


def flipped(raw: bytes, bit: int) -> bytes:
    changed = bytearray(raw)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def test_the_quick_ways_stop_where_the_whole_way_does() -> None:
    """`skip_events` and `pass_plain` stop at damage, at a half record, at their seqno, at what may be a range."""
    whole = b"".join(make(seqno) for seqno in range(5))
    one = len(make(0))
    assert skip_events(whole, 0, 3, checked=True) == (3 * one, 2 * one)
    assert skip_events(whole, 0, 0, checked=True) == (0, -1)
    assert pass_plain(whole, 0, 0) == (5 * one, 4 * one, 5)
    assert pass_plain(whole, 0, 1) == (0, -1, 0)
    for bad in (whole[: 2 * one + 30], whole[: 2 * one + 60] + b"?" + whole[2 * one + 61 :]):
        assert skip_events(bad, 0, 9, checked=True) == (2 * one, one)
        assert pass_plain(bad, 0, 0) == (2 * one, one, 2)
    for odd in (make(1, payload=b"range\0"), make(1, last=False), make(2), make(1, 1), make(1, checksum=False)):
        assert pass_plain(make(0) + odd, 0, 0)[2] == 1


def test_scan_ends_with_its_reason() -> None:
    raw = golden_segments("recover-zero-tail")[1]
    assert list(scan(raw, checked=True))[-1] == BadLength(0)
    raw = golden_segments("simple-100")[1]
    assert len(list(scan(raw, FILE_HEADER.size, checked=True))) == 100
