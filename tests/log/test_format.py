"""log/records/format.py: the bytes, the limits, and what bytes can turn out to be."""

from __future__ import annotations

import struct
from typing import Any
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tranlog.errors import RecordLimitError
from tranlog.ids import Gtid, segment_name, segment_number
from tranlog.log.records import format as log_format
from tranlog.log.records.format import (
    END,
    BadChecksum,
    End,
    Impossible,
    Outcome,
    Partial,
    RecordHeader,
    RotateRecord,
    SegmentHeader,
    SyncRecord,
    encode_event,
    encode_header,
    encode_rotate,
    encode_sync,
    encode_tables,
    is_tungsten,
    parse_event,
    parse_header,
    parse_record,
    pass_events,
    skip_events,
)
from tranlog.lsn import lsn


def event(**changed: Any) -> bytes:
    """Return an event record's bytes."""
    fields: dict[str, Any] = {
        "seqno": 7,
        "fragno": 0,
        "last_frag": True,
        "epoch": 3,
        "source_id": "db1",
        "event_id": "bin.000001:0042",
        "shard_id": "shop",
        "tstamp": 1_700_000_000_123,
        "tables": (),
        "payload": b"content",
        "checksum": True,
    }
    fields |= changed
    head, trailer = encode_event(**fields)
    return head + fields["payload"] + trailer


def by_hand(extension: bytes = b"") -> bytes:
    """Return the same record, put together field by field from the table in log-format.md."""
    header = struct.pack(">QHBQ", 7, 0, 1, 3) + b"db1\0bin.000001:0042\0shop\0" + struct.pack(">Q", 1_700_000_000_123)
    header += extension
    body = b"\x01" + struct.pack(">I", len(header)) + header + struct.pack(">I", 7) + b"content"
    record = struct.pack(">I", 4 + len(body) + 5) + body + b"\x01"
    return record + struct.pack(">I", crc32(record))


# --- the bytes -------------------------------------------------------------------------------------------


def test_header_record_is_the_documents() -> None:
    assert encode_header(-1) == bytes.fromhex("c001cafe 0001 0001 ffffffffffffffff")
    assert encode_header(258) == bytes.fromhex("c001cafe 0001 0001 0000000000000102")


def test_event_record_is_the_documents() -> None:
    """Without items in the header extension the record is exactly the document's."""
    assert event() == by_hand()


def test_event_without_checksum_ends_in_zeros() -> None:
    assert event(checksum=False) == by_hand()[:-5] + bytes(5)


def test_header_extension_is_the_data_models() -> None:
    """data-model.md, "Header extension": type, length, bytes; 1 = one table, 3 = too many."""
    one = b"\x01\x00\x0e" + b"\x00\x04shop" + b"\x00\x06orders"
    assert event(tables=(("shop", "orders"),)) == by_hand(one)
    other = b"\x01\x00\x06" + b"\x00\x00" + b"\x00\x02\xc3\xa4"
    assert event(tables=(("shop", "orders"), ("", "ä"))) == by_hand(one + other)
    assert event(tables=None) == by_hand(b"\x03\x00\x00")


def test_rotate_record_is_the_documents() -> None:
    body = struct.pack(">IB", 30, 2) + b"thl.data.0000000002\0" + b"\x01"
    assert encode_rotate("thl.data.0000000002") == body + struct.pack(">I", crc32(body))


def test_sync_record_is_the_documents() -> None:
    body = struct.pack(">IBIIQqQB", 42, 3, 5, 1_000, 1_700_000_000_000, 17, 1 << 63, 1)
    assert encode_sync(lsn(5, 1_026), lsn(5, 1_000), 1_700_000_000_000, seqno=17, h=1 << 63) == body + struct.pack(
        ">I", crc32(body + struct.pack(">Q", lsn(5, 1_026)))
    )


@pytest.mark.parametrize(
    ("fields", "packed"),
    [
        (log_format.HEADER_FIELDS, log_format.HEADER.size),
        (log_format.SYNC_FIELDS, log_format.SYNC_BYTES),
        (log_format.EVENT_FIELDS[:7], log_format.EVENT_START.size),
        (log_format.EVENT_FIELDS[-2:], log_format.TRAILER.size),
        (log_format.ROTATE_FIELDS, log_format.ROTATE_MIN - 1),
        (log_format.EXTENSION_ITEM_FIELDS, log_format.EXTENSION_ITEM.size),
    ],
)
def test_field_tables_agree_with_the_packing(fields: tuple[tuple[str, int], ...], packed: int) -> None:
    assert sum(size for _, size in fields) == packed


def test_segment_names_have_ten_digits() -> None:
    assert segment_name(1) == "thl.data.0000000001"
    assert segment_number("thl.data.0000000001") == 1
    assert segment_number(segment_name(4_294_967_295)) == 4_294_967_295
    for other in ("thl.data.1", "thl.data.0000000000", "thl.data.9999999999", "thl.data.00000000011", "positions", ""):
        assert segment_number(other) is None


# --- reading them back -----------------------------------------------------------------------------------


def test_event_reads_back() -> None:
    """conformance D: LogRecordTest.testReplicationEvents."""
    raw = b"before" + event(tables=(("shop", "orders"), ("shop", "items")), last_frag=False, fragno=9)
    position = lsn(2, 100)
    header = parse_record(raw, 6, position)
    assert isinstance(header, RecordHeader)
    assert header.gtid == Gtid(header.epoch, header.seqno)
    assert (header.seqno, header.fragno, header.last_frag, header.epoch) == (7, 9, False, 3)
    assert (header.source_id, header.event_id, header.shard_id) == ("db1", "bin.000001:0042", "shop")
    assert header.tstamp == 1_700_000_000_123
    assert header.tables == (("shop", "orders"), ("shop", "items"))
    assert (header.lsn, header.record_length, header.data_length) == (position, len(raw) - 6, 7)
    assert (header.crc_method, header.crc) == (1, struct.unpack(">I", raw[-4:])[0])


def test_tables_that_were_left_out_read_as_none() -> None:
    header = parse_record(event(tables=None), 0, 0)
    assert isinstance(header, RecordHeader)
    assert header.tables is None


def test_unknown_extension_items_are_skipped() -> None:
    """data-model.md: unknown types are skipped, wherever they stand."""
    known = encode_tables((("s", "t"),))
    for extension in (b"\xc9\x00\x03abc" + known + b"\xc8\x00\x00", known + b"\xc9\x00\x03abc\xff\x00\x01\x00"):
        header = parse_record(by_hand(extension), 0, 0)
        assert isinstance(header, RecordHeader)
        assert (header.tables, header.write_set) == ((("s", "t"),), b"")


def test_the_write_set_stands_behind_the_tables() -> None:
    known = encode_tables((("s", "t"),))
    raw = by_hand(known + b"\x02\x00\x03abc" + b"\xff\x00\x02\x00\x00")
    assert event(tables=(("s", "t"),), write_set=b"abc", padding=5) == raw
    header = parse_record(raw, 0, 0)
    assert isinstance(header, RecordHeader)
    assert (header.tables, header.write_set) == ((("s", "t"),), b"abc")
    for tables in ((), None):
        header = parse_record(event(tables=tables, write_set=b"x"), 0, 0)
        assert isinstance(header, RecordHeader) and (header.tables, header.write_set) == (tables, b"x")


def test_rotate_and_sync_read_back() -> None:
    """conformance D: LogRecordTest.testRotationEvents."""
    assert parse_record(encode_rotate("thl.data.0000000002"), 0, 0) == RotateRecord("thl.data.0000000002", 30)
    assert parse_record(encode_sync(lsn(3, 4), lsn(3, 4), 5), 0, lsn(3, 4)) == SyncRecord(lsn(3, 4), 5)


def test_segment_header_reads_back() -> None:
    assert parse_header(encode_header(41) + b"more") == SegmentHeader(prev_seqno=41)  # type: ignore[arg-type]
    assert parse_header(encode_header(-1)[:15]) == Partial(16)
    assert parse_header(b"") == Partial(16)
    assert parse_header(bytes(100)) == Partial(16)
    for at, why in ((0, "magic"), (5, "version"), (7, "version"), (8, "prev_seqno")):
        raw = bytearray(encode_header(1))
        raw[at] ^= 0x80
        outcome = parse_header(bytes(raw))
        assert isinstance(outcome, Impossible)
        assert why in outcome.why


def test_payload_is_not_needed_for_the_header() -> None:
    """log-format.md: header fields are readable without touching the payload."""
    raw = event(payload=bytes(1_000_000))
    header_end = len(raw) - 1_000_000 - 5
    header = parse_event(raw[:header_end], 0, 0, raw[-5:])
    assert header is not None
    assert header == parse_record(raw, 0, 0)
    assert parse_event(raw[:header_end], 0, 0) is None


# --- what bytes can turn out to be -----------------------------------------------------------------------


@pytest.mark.parametrize("raw", [b"", bytes(1), bytes(3), bytes(4), bytes(500)])
def test_nothing_or_zeros_are_the_end(raw: bytes) -> None:
    assert parse_record(raw, 0, 0) == END
    assert parse_record(b"xy" + raw, 2, 0) == END


@pytest.mark.parametrize(
    "record", [event(), event(tables=(("a", "b"),)), encode_rotate("thl.data.0000000009"), encode_sync(0, 9, 9)]
)
def test_every_cut_of_a_record_is_partial(record: bytes) -> None:
    for length in range(1, len(record)):
        outcome = parse_record(record[:length], 0, 0)
        first_bytes_are_zero = not any(record[: min(length, 4)])
        assert outcome == END if first_bytes_are_zero else isinstance(outcome, Partial)
        if isinstance(outcome, Partial):
            assert outcome.needed in (5, len(record))


def test_every_flipped_bit_of_a_record_is_found() -> None:
    """log-format.md: with checksums on, any flipped bit in a record is found. LogRecordTest.testChecksum*."""
    for record in (
        event(),
        event(tables=(("shop", "orders"),), event_id="", last_frag=False),
        encode_rotate("thl.data.0000000009"),
        encode_sync(0, lsn(1, 2), 1_700_000_000_000),
    ):
        good = parse_record(record + b"more", 0, 0)
        assert isinstance(good, RecordHeader | RotateRecord | SyncRecord)
        for bit in range(len(record) * 8):
            raw = bytearray(record + b"more")
            raw[bit // 8] ^= 1 << bit % 8
            outcome = parse_record(bytes(raw), 0, 0)
            assert isinstance(outcome, Partial | BadChecksum | Impossible | End), f"bit {bit}"


def test_checksum_errors_are_passed_over_when_told() -> None:
    """LogRecordTest.testChecksumTypeFailure, testChecksumValueMismatch: readable with checksums off."""
    for at in (-1, -5, -7):
        raw = bytearray(event())
        raw[at] ^= 0x10
        assert isinstance(parse_record(bytes(raw), 0, 0, True), BadChecksum)
        assert isinstance(parse_record(bytes(raw), 0, 0, False), RecordHeader)


def test_a_checksum_without_its_method_is_found() -> None:
    """The one bit that would turn checking off: method 00 goes with crc 0 and no other."""
    raw = bytearray(event())
    raw[-5] = 0
    assert isinstance(parse_record(bytes(raw), 0, 0), BadChecksum)
    assert isinstance(parse_record(event(checksum=False), 0, 0), RecordHeader)


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (struct.pack(">IB", 47, 1) + bytes(60), "event record of 47"),
        (struct.pack(">IB", 9, 2) + bytes(60), "rotate record of 9"),
        (struct.pack(">IB", 4_000, 2) + bytes(5_000), "rotate record of 4000"),
        (struct.pack(">IB", 27, 3) + bytes(60), "sync record of 27"),
        (struct.pack(">IB", 27, 4) + bytes(60), "rollback mark of 27"),
        (struct.pack(">IB", 27, 5) + bytes(60), "event record of 27"),
        (struct.pack(">IB", 100, 6) + bytes(100), "type 6"),
        (struct.pack(">IB", 27, 7) + bytes(60), "type 7"),
        (struct.pack(">IB", 27, 0) + bytes(60), "type 0"),
    ],
)
def test_impossible_records_are_named(raw: bytes, why: str) -> None:
    outcome = parse_record(raw, 0, 0)
    assert isinstance(outcome, Impossible)
    assert why in outcome.why


def signed(record: bytes) -> bytes:
    """Give changed bytes a right checksum."""
    return record[:-4] + struct.pack(">I", crc32(record[:-4]))


@pytest.mark.parametrize(
    ("at", "value"),
    [(5, 0xFF), (8, 0), (8, 29), (8, 200), (19, 2), (28, 0), (28, 0xFF)],
    ids=["header_length huge", "zero", "short", "long", "last_frag 2", "empty source_id", "not UTF-8"],
)
def test_contradicting_lengths_are_impossible_though_signed(at: int, value: int) -> None:
    raw = bytearray(event())
    raw[at] = value
    assert isinstance(parse_record(signed(bytes(raw)), 0, 0), Impossible)


def test_broken_extensions_are_impossible() -> None:
    for extension in (
        b"\x01",
        b"\x01\x00",
        b"\x01\x00\x05\x00",
        b"\x01\x00\x05\x00\x01a\x00\x01",
        b"\x09\x00\x07abc",
        b"\x02\x00\x04abc",
    ):
        assert isinstance(parse_record(by_hand(extension), 0, 0), Impossible), extension


def test_rotate_record_without_a_name_is_impossible() -> None:
    for name in (b"thl.data.0000000002", b"a\0b\0"):
        body = struct.pack(">IB", 10 + len(name), 2) + name + b"\x01"
        assert isinstance(parse_record(body + struct.pack(">I", crc32(body)), 0, 0), Impossible)


@given(st.binary(max_size=200), st.integers(0, 20), st.booleans())
def test_any_bytes_end_in_a_value(raw: bytes, at: int, checksum: bool) -> None:
    """conventions.md: a decoder on arbitrary bytes ends in a value."""
    outcome: Outcome = parse_record(raw, at, 0, checksum)
    assert isinstance(outcome, Outcome)
    parse_event(raw, at, 0)
    parse_header(raw)
    is_tungsten(raw)
    assert skip_events(raw, at, 1 << 62) >= at
    assert pass_events(raw, at, 1, 1 << 62, {b"shop", b""}) == (at, 1, -1), "no room for a whole record"


@given(st.integers(0, 400), st.binary(min_size=1, max_size=6), st.booleans())
def test_damaged_records_end_in_a_value(at: int, damage: bytes, resign: bool) -> None:
    """The same from near misses, which reach deeper than random bytes do."""
    record = event(tables=(("shop", "orders"), ("shop", "items")), payload=b"p" * 50)
    at %= len(record)
    raw = record[:at] + damage + record[at + len(damage) :]
    outcome = parse_record(signed(raw) if resign else raw, 0, 0)
    assert isinstance(outcome, Outcome)


@given(st.lists(st.sampled_from(("shop", "depot", "a\u00e9", "")), max_size=12), st.integers(0, 12), st.integers(0, 60))
def test_a_run_of_others_transactions_is_passed(shards: list[str], upto: int, cut: int) -> None:
    """Up to the first of another shard, the last seqno wanted, or the end of the bytes, whichever comes first."""
    records = [event(seqno=number, shard_id=shard) for number, shard in enumerate(shards)]
    raw = b"".join(records)
    raw = raw[: len(raw) - cut]
    passed = 0
    while (
        passed < len(shards)
        and shards[passed] in ("shop", "a\u00e9")
        and passed <= upto
        and sum(map(len, records[: passed + 1])) <= len(raw)
    ):
        passed += 1
    at, last = sum(map(len, records[:passed])), sum(map(len, records[: max(passed - 1, 0)]))
    wanted = {b"shop", "a\u00e9".encode()}
    assert pass_events(raw, 0, 0, upto, wanted) == (at, passed, last if passed else -1)


def test_who_passes_over_transactions_is_told_their_shard_tables_and_write_set() -> None:
    """One after the other, until one is not to be passed."""
    tables = (("shop", "orders"), ("shop", "items"))
    given: list[dict[str, Any]] = [{"tables": tables, "write_set": b"w"}, {"tables": ()}, {"tables": None}, {}]
    records = [event(seqno=number, shard_id=f"s{number}", **one) for number, one in enumerate(given, 4)]
    asked: list[object] = []

    def passes(*told: object) -> bool:
        asked.append(told)
        return len(asked) < 4

    at, last = len(b"".join(records[:3])), len(b"".join(records[:2]))
    assert pass_events(b"".join(records), 0, 4, 99, (), passes) == (at, 7, last)
    assert asked[:3] == [(4, b"s4", tables, b"w"), (5, b"s5", (), b""), (6, b"s6", None, b"")]


@pytest.mark.parametrize("changed", [{"fragno": 1}, {"last_frag": False}, {"seqno": 8}])
def test_what_is_no_whole_transaction_is_not_passed(changed: dict[str, Any]) -> None:
    """Only a transaction of one fragment, and the one that belongs there, can be passed by its start alone."""
    assert pass_events(event(**changed), 0, 7, 9, {b"shop"}) == (0, 7, -1)
    record = event()
    assert pass_events(record[:4] + b"\x03" + record[5:], 0, 7, 9, {b"shop"}) == (0, 7, -1)


texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40)


@given(
    seqno=st.integers(0, (1 << 63) - 1),
    fragno=st.integers(0, 65_535),
    last_frag=st.booleans(),
    epoch=st.integers(0, (1 << 63) - 1),
    source_id=texts,
    event_id=texts,
    shard_id=texts,
    tstamp=st.integers(0, (1 << 63) - 1),
    tables=st.none() | st.lists(st.tuples(texts, texts), max_size=5).map(tuple),
    payload=st.binary(max_size=100),
    checksum=st.booleans(),
    write_set=st.binary(max_size=50),
)
def test_any_event_reads_back(**fields: Any) -> None:
    """Round trip, and the fast path agrees with the careful one."""
    head, trailer = encode_event(**fields)
    raw = head + fields["payload"] + trailer
    header = parse_record(raw, 0, 5)
    assert isinstance(header, RecordHeader)
    for name in fields.keys() - {"payload", "checksum"}:
        assert getattr(header, name) == fields[name], name
    assert raw[len(raw) - 5 - header.data_length : -5] == fields["payload"]
    assert parse_event(raw, 0, 5) == header


# --- limits ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"source_id": "a\0b"}, "source_id holds a NUL"),
        ({"event_id": "\0"}, "event_id holds a NUL"),
        ({"shard_id": "a\0"}, "shard_id holds a NUL"),
        ({"event_id": "\ud800"}, "surrogates"),
        ({"fragno": 65_536}, "more than 65536 fragments"),
        ({"event_id": "x" * (1 << 20)}, "ids and tables take"),
        ({"tstamp": -1}, "commit time -1"),
        ({"tables": (("s", "t" * 65_533),)}, "65533 bytes"),
        ({"write_set": bytes(65_536)}, "write set has 65536 bytes"),
        ({"tables": tuple(("schema", f"table{n:06}") for n in range(4_000))}, "list of tables"),
    ],
)
def test_what_the_format_cannot_hold_is_refused(changed: dict[str, Any], why: str) -> None:
    """log-format.md, "Limits, each checked at append with a clear error"."""
    with pytest.raises(RecordLimitError, match=why) as caught:
        event(**changed)
    assert caught.value.event_id == changed.get("event_id", "bin.000001:0042")


def test_a_payload_of_four_gib_is_refused() -> None:
    with pytest.raises(RecordLimitError, match="a fragment of"):
        event(payload=bytes((1 << 32) - 60))  # zeros that nobody looks at take no memory


def test_limits_themselves_are_allowed() -> None:
    header = parse_record(event(fragno=65_535, event_id="x" * 1_000_000), 0, 0)
    assert isinstance(header, RecordHeader)
    assert header.fragno == 65_535


# --- skipping, and the other codec -----------------------------------------------------------------------


def test_skipping_stops_at_what_is_wanted() -> None:
    records = [event(seqno=n, payload=bytes(n)) for n in range(10)]
    raw = b"".join(records)
    assert skip_events(raw, 0, 4) == sum(map(len, records[:4]))
    assert skip_events(raw, 0, 0) == 0
    assert skip_events(raw[:-1], 0, 99) == len(raw), "it may land behind the end"
    behind = raw + encode_sync(0, 1, 1) + records[0]
    assert skip_events(behind, 0, 99) == len(raw), "a sync record is not an event"


def test_the_other_codec_is_told_by_its_first_record() -> None:
    """log-format.md, first paragraph: bytes 5-8 of an event record, byte 5 of a rotate record, type 03 and above."""
    start = encode_header(-1)
    assert not is_tungsten(start)
    assert not is_tungsten(start + event())
    assert not is_tungsten(start + encode_sync(0, 1, 1))
    assert not is_tungsten(start + encode_rotate("thl.data.0000000002"))
    tungsten_event = struct.pack(">IBQHBQ", 300, 1, 0, 0, 1, 0) + bytes(200)
    assert is_tungsten(start + tungsten_event)
    tungsten_rotate = struct.pack(">IBQBQ", 22, 2, 2, 1, 0)
    assert is_tungsten(start + tungsten_rotate)
