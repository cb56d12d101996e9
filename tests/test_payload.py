"""`payload`: each value's bytes, the ancestor's envelope, and what is refused.

Proves design/data-model.md, "The payload, in bytes". The envelope's oracle is a real protobuf library with the
messages of the shipped event.proto (conformance/tungsten.md, B2). Round trips over random values
and random damage are in property/test_payload_bytes.py.
"""

from __future__ import annotations

import decimal
import math
import pickle
import struct
import subprocess
import sys
import tracemalloc
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from msgspec.structs import replace

from fix_proto import NATIVE, messages_of
from tranlog import row_bytes, table_map
from tranlog.change import (
    HEARTBEAT,
    NOOP,
    Change,
    Column,
    ForeignKey,
    Op,
    RowChange,
    Statement,
    TableMap,
)
from tranlog.errors import PayloadError
from tranlog.payload import (
    Payload,
    PayloadBuilder,
    count_changes,
    decode,
    decode_table_map,
    encode,
    encode_table_map,
    fingerprint,
)
from tranlog.row_bytes import FIRST_UNKNOWN_TAG, decode_row, encode_row
from tranlog.types import (
    F32,
    UNCHANGED,
    Bit,
    CharsetBytes,
    Date,
    Datetime,
    EnumLabel,
    InfiniteDate,
    Instant,
    Json,
    LogicalType,
    Other,
    SetLabels,
    Tag,
    Time,
    Value,
    ZeroDate,
    canonical,
)


def column(name: str, logical: LogicalType = LogicalType.ANY, **more: Any) -> Column:
    return Column(name=name, source_type="any", logical=logical, **more)


ONE = TableMap(schema="s", table="one", columns=(column("v"),))
TWO = TableMap(schema="s", table="two", columns=(column("id"), column("v")), primary_key=(0,))
NONE = TableMap(schema="s", table="none", columns=())


def inserted(value: Value) -> RowChange:
    return RowChange(ONE, Op.INSERT, None, (value,))


def from_row_bytes(images: bytes, *, table: TableMap = ONE, op: Op = Op.INSERT) -> Payload:
    """Decode a payload whose one change has exactly these bytes for images."""
    builder = PayloadBuilder()
    builder.add_encoded(table, op, images)
    return decode(builder.take())


def read_back(value: Value) -> Value:
    (change,) = from_row_bytes(encode_row((value,))).changes
    assert isinstance(change, RowChange)
    assert change.after is not None
    return change.after[0]


# --- values ----------------------------------------------------------------------------------------------

MICROS = 253_402_300_799_999_999  # 9999-12-31 23:59:59.999999

VALUES: list[tuple[Value, str]] = [
    (None, "00"),
    (UNCHANGED, "01"),
    (False, "02"),
    (True, "03"),
    (0, "04 00"),
    (-1, "04 01"),
    (1, "04 02"),
    (-64, "04 7f"),
    (64, "04 8001"),
    (2**63 - 1, "04 feffffffffffffffff01"),
    (-(2**63), "04 ffffffffffffffffff01"),
    (2**63, "05 80808080808080808001"),
    (2**64 - 1, "05 ffffffffffffffffff01"),
    (F32(1.5), "06 3fc00000"),
    (F32(-0.0), "06 80000000"),
    (F32(-math.inf), "06 ff800000"),
    (F32(3.4028234663852886e38), "06 7f7fffff"),
    (F32(struct.unpack(">f", bytes.fromhex("7fc00001"))[0]), "06 7fc00001"),
    (1.5, "07 3ff8000000000000"),
    (-0.0, "07 8000000000000000"),
    (5e-324, "07 0000000000000001"),
    (math.inf, "07 7ff0000000000000"),
    (struct.unpack(">d", bytes.fromhex("fff8000000000abc"))[0], "07 fff8000000000abc"),
    (Decimal("-1.50"), "08 05 2d312e3530"),
    (Decimal("NaN"), "08 03 4e614e"),
    (Decimal("-Infinity"), "08 09 2d496e66696e697479"),
    ("", "09 00"),
    ("é\0", "09 03 c3a900"),
    ("x" * 128, "09 8001" + "78" * 128),
    (b"", "0a 00"),
    (b"a\0\0", "0a 03 610000"),
    (b"\xff" * 300, "0a ac02" + "ff" * 300),
    (CharsetBytes("latin1", b"\xe9"), "0b 06 6c6174696e31 01 e9"),
    (Date(0), "0c 00"),
    (Date(-719528), "0c cfea57"),
    (Time(-1), "0d 01"),
    (Datetime(MICROS), "0e feff9ac79983a28407"),
    (Instant(1), "0f 02"),
    (ZeroDate("0000-00-00"), "10 0a 303030302d30302d3030"),
    (InfiniteDate(False), "11 00"),
    (InfiniteDate(True), "11 01"),
    (Bit(0, 0), "12 00"),
    (Bit(1, 1), "12 01 01"),
    (Bit(9, 0x101), "12 09 0101"),
    (Bit(64, 2**64 - 1), "12 40 ffffffffffffffff"),
    (EnumLabel(""), "13 00"),
    (EnumLabel("red"), "13 03 726564"),
    (SetLabels(()), "14 00"),
    (SetLabels(("a", "", "b")), "14 03 01 61 00 01 62"),
    (Json('{"a": 1}'), "15 08 7b2261223a20317d"),
    (UUID("00112233-4455-6677-8899-aabbccddeeff"), "16 00112233445566778899aabbccddeeff"),
    (Other("inet", "::1"), "17 04 696e6574 03 3a3a31"),
]


@pytest.mark.parametrize(("value", "raw"), VALUES, ids=[raw[:24] for _, raw in VALUES])
def test_each_value_has_its_bytes_and_reads_back(value: Value, raw: str) -> None:
    assert encode_row((value,)).hex() == raw.replace(" ", "")
    back = read_back(value)
    assert type(back) is type(value)
    assert canonical(back) == canonical(value)


def test_the_values_above_have_every_tag() -> None:
    assert {bytes.fromhex(raw)[0] for _, raw in VALUES} == set(Tag)


@pytest.mark.parametrize(
    "text",
    ["0", "-0", "0.000", "1E+400000000", "1E-400000000", "-1.000000000000000000000000000000000000000000001"]
    + ["sNaN", "NaN123", "-sNaN99", "Infinity", "9" * 5000],
)
def test_a_decimal_is_exact_whatever_the_callers_context_is(text: str) -> None:
    """ "exact text with scale kept": neither precision nor traps of the thread's context matter."""
    value = Decimal(text)
    with decimal.localcontext(decimal.Context(prec=3, Emax=9, Emin=-9, traps=[])):
        assert str(read_back(value)) == str(value)
    with decimal.localcontext(decimal.Context(prec=3, traps=[decimal.Inexact, decimal.Rounded])):
        assert str(read_back(value)) == str(value)
    assert len(encode_row((value,))) < 5010


@pytest.mark.parametrize("text", ["", "x", "1,5", "1E", "--1", "1E+9999999999999999999999"])
def test_a_text_that_is_no_decimal_is_refused_in_any_context(text: str) -> None:
    raw = b"\x08" + bytes([len(text)]) + text.encode()
    for traps in ([], [decimal.InvalidOperation]):
        with decimal.localcontext(decimal.Context(traps=traps)):
            with pytest.raises(PayloadError, match="is no decimal number"):
                from_row_bytes(raw)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (2**64, "does not fit 64 bits"),
        (-(2**63) - 1, "does not fit 64 bits"),
        (Date(2**63), "does not fit 64 bits"),
        (Time(-(2**63) - 1), "does not fit 64 bits"),
        (Datetime(2**80), "does not fit 64 bits"),
        (Instant(2**80), "does not fit 64 bits"),
        (F32(1e300), "float too large"),
        (Bit(3, 8), "do not fit a width of 3"),
        (Bit(8, 256), "do not fit a width of 8"),
        (Bit(0, 1), "do not fit a width of 0"),
        (Bit(8, -1), "do not fit a width of 8"),
        (Bit(-1, 0), "do not fit a width of -1"),
        ("a\ud800", "surrogates not allowed"),
        (Json("\udfff"), "surrogates not allowed"),
        (EnumLabel("\udfff"), "surrogates not allowed"),
        (SetLabels(("a", "\udfff")), "surrogates not allowed"),
        (Other("t", "\udfff"), "surrogates not allowed"),
        (ZeroDate("\udfff"), "surrogates not allowed"),
        (CharsetBytes("\udfff", b""), "surrogates not allowed"),
    ],
)
def test_a_value_that_no_tag_can_carry_is_refused(value: Value, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        encode_row((1, value))


@pytest.mark.parametrize("value", [[], 1j, bytearray(b"x"), Op.INSERT, object()], ids=lambda v: type(v).__name__)
def test_a_foreign_type_is_refused_by_name(value: Any) -> None:
    with pytest.raises(ValueError, match=f"no value tag carries the type {type(value).__name__}"):
        encode_row((value,))


# --- what a reader does with what it does not know -------------------------------------------------------


@pytest.mark.parametrize("tag", [FIRST_UNKNOWN_TAG, 0x7F, 0x80, 0xFF])
def test_an_unknown_tag_that_says_its_length_becomes_other(tag: int) -> None:
    unknown = bytes([tag]) + b"\x03abc"
    decoded = from_row_bytes(unknown + b"\x04\x02", table=TWO)
    assert decoded.changes == (RowChange(TWO, Op.INSERT, None, (Other(f"tag {tag}", "616263"), 1)),)


@pytest.mark.parametrize("tag", [max(Tag) + 1, FIRST_UNKNOWN_TAG - 1])
def test_an_unknown_tag_below_is_refused_since_its_length_is_not_known(tag: int) -> None:
    with pytest.raises(PayloadError, match=f"value tag {tag} at offset"):
        from_row_bytes(bytes([tag]) + b"\x03abc")


def test_an_unknown_logical_type_becomes_other() -> None:
    raw = bytearray(encode_table_map(ONE))
    at = raw.index(b"any") + 3
    raw[at] = max(LogicalType) + 1
    assert decode_table_map(bytes(raw)).columns[0].logical == LogicalType.OTHER


def test_an_unknown_version_of_the_packed_form_is_refused() -> None:
    raw = encode(Payload(changes=(inserted(1),)))
    assert raw[:4] == b"\xa2\x06" + bytes([len(raw) - 3]) + b"\x01"
    with pytest.raises(PayloadError, match="version 2; this release reads version 1"):
        decode(raw[:3] + b"\x02" + raw[4:])


# --- table maps ------------------------------------------------------------------------------------------

FULL = TableMap(
    schema="shop",
    table="items",
    columns=(
        Column(name="id", source_type="bigint unsigned", logical=LogicalType.INTEGER, unsigned=True, nullable=False),
        Column(name="name", source_type="varchar(20)", logical=LogicalType.TEXT, charset="utf8mb4", length=20),
        Column(name="order", source_type="bigint", logical=LogicalType.INTEGER),
        Column(name="", source_type="", logical=LogicalType.ANY, charset=""),
    ),
    primary_key=(0,),
    unique_keys=((1, 2), (2,)),
    foreign_keys=(
        ForeignKey(columns=(2,), ref_schema="shop", ref_table="orders", ref_columns=("id",)),
        ForeignKey(columns=(), ref_schema="", ref_table="implied", ref_columns=()),
    ),
)


def test_a_table_map_reads_back_and_equal_bytes_give_one_object() -> None:
    raw = encode_table_map(FULL)
    assert decode_table_map(raw) == FULL
    assert decode_table_map(bytes(bytearray(raw))) is decode_table_map(raw)


def test_a_fingerprint_tells_any_difference() -> None:
    others = [
        FULL,
        TableMap(schema="shop", table="items", columns=FULL.columns, primary_key=(0,)),
        TableMap(schema="shop", table="item", columns=FULL.columns, primary_key=(0,)),
        TableMap(schema="shopi", table="tem", columns=FULL.columns, primary_key=(0,)),
        TableMap(schema="shop", table="items", columns=FULL.columns, primary_key=(0, 1)),
        TableMap(schema="shop", table="items", columns=FULL.columns[:3], primary_key=(0,)),
        TableMap(schema="shop", table="items", columns=FULL.columns),
        TableMap(schema="shop", table="items", columns=FULL.columns, sequence=True),
    ]
    assert len({fingerprint(table) for table in others}) == len(others)
    assert all(len(fingerprint(table)) == 16 and int(fingerprint(table), 16) >= 0 for table in others)
    assert fingerprint(decode_table_map(encode_table_map(FULL))) == fingerprint(FULL)


def test_a_table_map_keeps_its_hash_to_its_own_process() -> None:
    """Its cached hash rests on the process's random seed; Spark carries pickles from one process to another."""
    hash(FULL)
    program = (
        "import pickle, sys; from tranlog.payload import decode_table_map, encode_table_map\n"
        "table = pickle.loads(sys.stdin.buffer.read())\n"
        "assert {decode_table_map(encode_table_map(table)): 1}[table] == 1\n"
    )
    subprocess.run([sys.executable, "-c", program], input=pickle.dumps(FULL), check=True)


@pytest.mark.parametrize(
    ("table", "why"),
    [
        (TableMap(schema="s", table="t", columns=(column("a"),), primary_key=(1,)), r"names the columns \(1,\) of 1"),
        (TableMap(schema="s", table="t", columns=(column("a"),), primary_key=(-1,)), "names the columns"),
        (TableMap(schema="s", table="t", columns=(column("a"),), unique_keys=((0,), (0, 7))), "names the columns"),
        (
            TableMap(
                schema="s",
                table="t",
                columns=(column("a"),),
                foreign_keys=(ForeignKey(columns=(2,), ref_schema="", ref_table="u", ref_columns=("x",)),),
            ),
            "names the columns",
        ),
        (TableMap(schema="s", table="t", columns=(column("a", length=-1),)), "has the length -1"),
        (TableMap(schema="s", table="t", columns=(column("\ud800"),)), "surrogates not allowed"),
        (TableMap(schema="\ud800", table="t", columns=(column("a"),)), "surrogates not allowed"),
    ],
)
def test_a_table_map_that_could_not_be_read_back_is_refused(table: TableMap, why: str) -> None:
    builder = PayloadBuilder()
    for _ in range(2):
        with pytest.raises(ValueError, match=why):
            builder.add(RowChange(table, Op.INSERT, None, (1,)))
    assert (builder.take(), builder.tables()) == (b"", ())


@pytest.mark.parametrize(
    "raw",
    [
        "",
        "0173 0174 ffffffffffffffffff01",
        "0173 0174 00 01 00",  # a primary key of column 0 in a table of none
        "0173 0174 00 00 00 00 00",  # a byte too many
        "0173 01ff 00 00 00 00",  # no UTF-8
    ],
)
def test_a_damaged_table_map_is_an_error_each_time(raw: str) -> None:
    """The cache keeps results, never failures."""
    for _ in range(2):
        with pytest.raises((ValueError, IndexError)):
            decode_table_map(bytes.fromhex(raw))


# --- changes in their order ------------------------------------------------------------------------------

DDL = Statement(schema="s", sql="create table t (a int)", ddl=True, timestamp=1_700_000_000_000)
MIXED: tuple[Change, ...] = (
    RowChange(TWO, Op.INSERT, None, (1, "a")),
    DDL,
    RowChange(ONE, Op.DELETE, (b"x",), None),
    RowChange(TWO, Op.UPDATE, (1, "a"), (2, UNCHANGED)),
    Statement(schema="", sql=b"insert \xff", ddl=False, error_code=-7, options=(("sql_mode", ""), ("a", "é"))),
    RowChange(NONE, Op.INSERT, None, ()),
    RowChange(NONE, Op.UPDATE, (), ()),
)


def test_changes_and_statements_keep_their_order() -> None:
    """ "recorded as statements ... at their place among the row changes" """
    whole = Payload(metadata=(("service", "a"), ("service", "b")), options=(("x", ""),), changes=MIXED)
    assert decode(encode(whole)) == whole


@pytest.mark.parametrize(
    "empty_or_not",
    [
        Payload(),
        Payload(metadata=((NOOP, ""),)),
        Payload(metadata=((HEARTBEAT, "name"),)),
        Payload(changes=(DDL, DDL)),
        Payload(changes=(Statement(schema="", sql="", ddl=False),)),
        Payload(changes=(Statement(schema="", sql=b"", ddl=True, timestamp=-1),)),
        Payload(changes=(inserted(1),)),
    ],
)
def test_what_is_not_there_takes_no_bytes(empty_or_not: Payload) -> None:
    raw = encode(empty_or_not)
    assert decode(raw) == empty_or_not
    assert (raw == b"") == (empty_or_not == Payload())


@pytest.mark.parametrize(
    "whole", [Payload(), Payload(metadata=((NOOP, ""),)), Payload(changes=(DDL, DDL)), Payload(changes=MIXED)]
)
def test_changes_are_counted_without_reading_them(whole: Payload) -> None:
    raw = encode(whole)
    assert count_changes(raw) == len(whole.changes)
    for end in range(len(raw)):
        assert count_changes(raw[:end]) <= len(whole.changes)
    assert count_changes(b"\xff" * 40) == 0


def test_a_noop_has_a_name_and_no_changes() -> None:
    assert Payload(metadata=((NOOP, ""),)).is_noop()
    assert not Payload().is_noop()
    assert not Payload(metadata=((NOOP, ""),), changes=(inserted(1),)).is_noop()


def test_equal_tables_are_written_once() -> None:
    again = TableMap(schema="s", table="one", columns=(column("v"),))
    assert again is not ONE
    builder = PayloadBuilder()
    for table in (ONE, again, TWO, ONE):
        builder.add(RowChange(table, Op.INSERT, None, (1,) * len(table.columns)))
    assert builder.tables() == (ONE, TWO)
    assert len(builder) == 4
    raw = builder.take()
    assert raw.count(encode_table_map(ONE)) == 1
    assert len(decode(raw).changes) == 4


def test_the_size_is_about_what_comes_out() -> None:
    builder = PayloadBuilder()
    for change in MIXED * 20:
        builder.add(change)
    size = builder.size
    raw = builder.take()
    assert abs(len(raw) - size) < 20
    assert (builder.size, len(builder), builder.tables(), builder.take()) == (0, 0, (), b"")


@pytest.mark.parametrize(
    "change",
    [
        RowChange(TWO, Op.INSERT, None, (1,)),
        RowChange(TWO, Op.INSERT, None, (1, 2, 3)),
        RowChange(TWO, Op.INSERT, (1, 2), (1, 2)),
        RowChange(TWO, Op.INSERT, None, None),
        RowChange(TWO, Op.DELETE, (1, 2), (1, 2)),
        RowChange(TWO, Op.DELETE, None, (1, 2)),
        RowChange(TWO, Op.DELETE, (1,), None),
        RowChange(TWO, Op.UPDATE, (1, 2), None),
        RowChange(TWO, Op.UPDATE, None, (1, 2)),
        RowChange(TWO, Op.UPDATE, (1, 2), (1,)),
        RowChange(TWO, Op.UPDATE, (1, 2), (1, 2**70)),
        RowChange(TWO, Op.INSERT, None, (1, "\ud800")),
        Statement(schema="s", sql="\ud800", ddl=False),
        Statement(schema="s", sql="x", ddl=False, timestamp=2**63),
        Statement(schema="s", sql="x", ddl=False, error_code=2**31),
        Statement(schema="s", sql="x", ddl=False, options=(("schema_change", "true"),)),
    ],
)
def test_a_refused_change_leaves_nothing_behind(change: Change) -> None:
    """What is in the log must be readable: a row that does not fit its table would spoil all behind it."""
    builder = PayloadBuilder()
    builder.add(MIXED[0])
    before = builder.size, len(builder)
    with pytest.raises(ValueError, match=r"\w"):
        builder.add(change)
    assert (builder.size, len(builder)) == before
    assert decode(builder.take()).changes == MIXED[:1]


def test_options_without_utf8_are_refused_and_lose_nothing() -> None:
    builder = PayloadBuilder()
    builder.add(MIXED[0])
    with pytest.raises(ValueError, match="surrogates not allowed"):
        builder.take(metadata=(("a", "\ud800"),))
    assert decode(builder.take()).changes == MIXED[:1]


def test_dropped_changes_are_gone() -> None:
    builder = PayloadBuilder()
    for change in MIXED:
        builder.add(change)
    builder.drop()
    assert (builder.size, len(builder), builder.tables(), builder.take()) == (0, 0, (), b"")


# --- damage ----------------------------------------------------------------------------------------------


def test_a_payload_cut_anywhere_is_refused_or_shorter() -> None:
    """A cut between two fields of the envelope leaves a message that is whole; anywhere else it is an error."""
    raw = encode(Payload(metadata=(("a", "b"),), changes=(*MIXED, *[inserted(value) for value, _ in VALUES])))
    whole = []
    for size in range(len(raw)):
        try:
            decode(raw[:size])
        except PayloadError:
            continue
        whole.append(size)
    statements = len(encode(Payload(changes=(DDL,))))
    assert whole[:2] == [0, statements]
    assert len(whole) == 4  # nothing; one statement; both; both and the metadata


@pytest.mark.parametrize(("value", "raw"), VALUES, ids=[raw[:24] for _, raw in VALUES])
def test_a_value_cut_anywhere_is_refused(value: Value, raw: str) -> None:
    whole = bytes.fromhex(raw)
    for size in range(len(whole)):
        with pytest.raises(PayloadError):
            from_row_bytes(whole[:size])


def varint(number: int) -> bytes:
    out = b""
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


def packed(body: bytes) -> bytes:
    return b"\xa2\x06" + varint(len(body)) + body


def sized(body: bytes) -> bytes:
    return varint(len(body)) + body


HUGE = varint(2**60)
ONE_MAP = sized(encode_table_map(ONE))
NONE_MAP = sized(encode_table_map(NONE))
START = b"\x01\x01" + ONE_MAP + b"\x01\x01\x00"  # version, one table, one change: an INSERT into table 0

HOSTILE = {
    "field": b"\x12" + HUGE,
    "packed": b"\xa2\x06" + HUGE,
    "tables": packed(b"\x01" + HUGE),
    "table map": packed(b"\x01\x01" + HUGE),
    "columns": packed(b"\x01\x01" + sized(b"\x01s\x01t" + HUGE + bytes(1000))),
    "primary key": packed(b"\x01\x01" + sized(b"\x01s\x01t\x01\x01a\x01b\x00\x00\x00" + HUGE + bytes(1000))),
    "unique keys": packed(b"\x01\x01" + sized(b"\x01s\x01t\x00\x00" + HUGE + bytes(1000))),
    "foreign keys": packed(b"\x01\x01" + sized(b"\x01s\x01t\x00\x00\x00" + HUGE + bytes(1000))),
    "referred columns": packed(b"\x01\x01" + sized(b"\x01s\x01t\x00\x00\x00\x01\x00\x00\x00" + HUGE + bytes(1000))),
    "changes": packed(b"\x01\x01" + ONE_MAP + HUGE),
    "changes of no columns": packed(b"\x01\x01" + NONE_MAP + HUGE + b"\x01\x00" * 1000),
    "statements": packed(b"\x01\x00" + HUGE + b"\x04\x00" * 1000),
    "table number": packed(b"\x01\x01" + ONE_MAP + b"\x01\x01" + HUGE),
    "text": packed(START + b"\x09" + HUGE),
    "bytes": packed(START + b"\x0a" + HUGE),
    "decimal": packed(START + b"\x08" + HUGE),
    "charset bytes": packed(START + b"\x0b" + HUGE),
    "bit": packed(START + b"\x12" + HUGE),
    "bit, not quite so wide": packed(START + b"\x12" + varint(2**35)),
    "labels": packed(START + b"\x14" + HUGE + bytes(1000)),
    "other": packed(START + b"\x17" + HUGE),
    "unknown tag": packed(START + b"\x40" + HUGE),
    "u64 of 70 bits": packed(START + b"\x05" + b"\xff" * 9 + b"\x7f"),
    "i64 of 70 bits": packed(START + b"\x04" + b"\xff" * 9 + b"\x7f"),
    "endless varint": packed(START + b"\x04" + b"\xff" * 5000),
    "decimal with a huge exponent": packed(START + b"\x08\x181E+99999999999999999999"),
}


@pytest.mark.parametrize("raw", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_count_that_the_bytes_cannot_hold_costs_nothing(raw: bytes) -> None:
    """ "time and memory are proportional to `raw`": neither a loop of 2**60 rounds nor an allocation for it."""
    tracemalloc.start()
    try:
        with pytest.raises(PayloadError):
            decode(raw)
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "body",
    [
        b"\x01\x01" + NONE_MAP + varint(10_000) + b"\x01\x00" * 10_000,
        b"\x01\x01" + ONE_MAP + varint(8_000) + b"\x01\x00\x00" * 8_000,
        START + b"\x14" + varint(20_000) + bytes(20_000),
        b"\x01\x01" + sized(b"\x01s\x01t\x00\x00" + varint(20_000) + bytes(20_001)) + b"\x00",
        b"\x01" + varint(5_000) + NONE_MAP * 5_000 + b"\x00",
    ],
    ids=["changes of no columns", "null rows", "labels", "unique keys", "table maps"],
)
def test_the_densest_payloads_take_memory_in_proportion(body: bytes) -> None:
    raw = packed(body)
    table_map._table_maps.clear()
    table_map._last_table_map.clear()
    tracemalloc.start()
    try:
        decode(raw)
        assert tracemalloc.get_traced_memory()[1] < 100 * len(raw)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"\x0b", "wire type 3"),
        (b"\x0f", "wire type 7"),
        (b"\x09\x00", "a fixed-width field passes the end"),
        (b"\x08\x01", "a change that is a number"),
        (b"\x10\x01", "an option that is a number"),
        (b"\x0a\x02\x08\x01", "change type 1 in the envelope"),
        (b"\x0a\x02\x08\x02", "change type 2 in the envelope"),  # a statement without its data
        (b"\x0a\x0a\x08\x02\x1a\x06\x28\xff\xff\xff\xff\x0f", "an error code 4294967295 of more than 32 bits"),
        (packed(START + b"\x04\x02\x00"), "disagree on where they end"),
        (packed(b"\x01\x00\x01\x04\x00"), "statement 0 is out of place"),
        (packed(b"\x01\x00\x01\x05\x00"), "table number 0 of 0"),
        (packed(b"\x01\x01" + ONE_MAP + b"\x01\x05\x00"), "operation 5"),
        (packed(b"\x01\x01" + ONE_MAP + b"\x01\x00\x00"), "operation 0"),
        (encode(Payload(changes=(DDL,))) + packed(b"\x01\x00\x00"), "disagree on where they end"),
        (packed(b"\x01\x01" + ONE_MAP + b"\x05\x01\x00\x00"), "5 changes announced"),
        (packed(b"\x01\x00" + varint(1 << 63)), f"the count {1 << 63}"),
        (packed(START) + b"\x12\x00", "disagree on where they end"),  # the row is read from what follows
        (packed(b"") + packed(b"\x01\x00\x00")[:-3], "it ends in the middle|announced"),
        (packed(START + b"\x12\x03\x08"), "a bit string of 3 bits has 4"),
        (packed(START + b"\x16" + bytes(15)), "a UUID passes the end"),
        (packed(START + b"\x09\x01\xff"), "can't decode byte 0xff"),
        (packed(START + b"\x09\x03\xed\xa0\x80"), "can't decode byte 0xed"),  # a surrogate
    ],
)
def test_damage_is_named(raw: bytes, why: str) -> None:
    with pytest.raises(PayloadError, match=why):
        decode(raw)


def test_a_key_in_more_bytes_than_it_needs_is_the_same_key() -> None:
    """Protobuf permits varints with groups of zeros at their end."""
    raw = packed(START + b"\x00")
    assert raw[:2] == b"\xa2\x06"
    assert decode(b"\xa2\x86\x00" + raw[2:]) == decode(raw)


def test_more_tables_than_a_byte_counts() -> None:
    """Numbers of tables are varints; a table that comes again keeps its number."""
    tables = [TableMap(schema="s", table=f"t{n}", columns=ONE.columns) for n in range(300)]
    changes = tuple([RowChange(table, Op.INSERT, None, (n,)) for n, table in enumerate(tables + tables[::-1])])
    raw = encode(Payload(changes=changes))
    assert decode(raw).changes == changes
    builder = PayloadBuilder()
    for change in changes:
        builder.add(change)
    assert builder.tables() == tuple(tables)
    assert abs(builder.size - len(raw)) < 5 * len(tables)
    assert builder.take() == raw


@pytest.mark.parametrize("before", [0, 1, 2])
def test_what_is_refused_takes_its_table_back(before: int) -> None:
    """`extend` keeps the changes before the one that it refuses, and nothing of that one."""
    tables = [TableMap(schema="s", table=f"t{n}", columns=ONE.columns) for n in range(before + 1)]
    good = tuple([RowChange(table, Op.INSERT, None, (1,)) for table in tables[:before]])
    builder = PayloadBuilder()
    for bad in (RowChange(tables[before], Op.DELETE, None, (1,)), RowChange(tables[before], Op.INSERT, None, (1, 2))):
        with pytest.raises(ValueError, match=f"do not fit table s.t{before} of 1 columns"):
            builder.extend((*good, bad, *good))
        assert len(builder) == before and builder.tables() == tuple(tables[:before])
        assert decode(builder.take()).changes == good
    with pytest.raises(ValueError, match="does not fit 64 bits"):
        builder.extend((*good, RowChange(tables[before], Op.INSERT, None, (1 << 64,))))
    builder.add(RowChange(tables[before], Op.INSERT, None, (7,)))
    assert decode(builder.take()).changes == (*good, RowChange(tables[before], Op.INSERT, None, (7,)))


# --- the envelope, against a real protobuf library -------------------------------------------------------


FUTURE = """
  optional string futureText = 102;
  optional fixed32 futureFixed32 = 103;
  optional fixed64 futureFixed64 = 104;
  optional int64 futureNumber = 105;
"""
"""Fields that a later release might add."""
Event = messages_of(NATIVE, more=FUTURE)["ReplDBMSEvent"]
STATEMENT_DATA = 2


def pairs(options: Any) -> tuple[tuple[str, str], ...]:
    return tuple((option.name, option.value) for option in options)


ENVELOPES = [
    Payload(),
    Payload(metadata=((NOOP, ""),)),
    Payload(metadata=(("a", "1"), ("a", "2"), ("é", "x" * 300)), options=(("o", ""),)),
    Payload(changes=MIXED),
    Payload(changes=(DDL, Statement(schema="é" * 200, sql="s" * 70_000, ddl=False, error_code=2**31 - 1))),
    Payload(changes=(Statement(schema="s", sql=b"\xff\0", ddl=False, timestamp=-(2**63), error_code=-(2**31)),)),
    Payload(changes=(Statement(schema="s", sql="x", ddl=False, timestamp=2**63 - 1, error_code=1),)),
]


@pytest.mark.parametrize("ours", ENVELOPES)
def test_protobuf_reads_what_we_write(ours: Payload) -> None:
    raw = encode(ours)
    event = Event.FromString(raw)
    assert event.IsInitialized()
    assert pairs(event.metadata) == ours.metadata
    assert pairs(event.options) == ours.options
    statements = [change for change in ours.changes if isinstance(change, Statement)]
    assert len(event.change) == len(statements)
    for change, statement in zip(event.change, statements, strict=True):
        assert change.type == STATEMENT_DATA
        got = change.statement
        assert (got.defaultSchema, got.timestamp, got.errorCode) == (
            statement.schema,
            statement.timestamp,
            statement.error_code,
        )
        assert (got.queryAsBytes if isinstance(statement.sql, bytes) else got.query) == statement.sql
        assert got.HasField("query") != got.HasField("queryAsBytes")
        assert pairs(got.options) == statement.options + ((("schema_change", "true"),) if statement.ddl else ())
    rows = any(isinstance(change, RowChange) for change in ours.changes)
    assert event.HasField("packed") == rows
    if rows:
        assert raw.endswith(packed(event.packed))
    assert event.SerializeToString(deterministic=True) == raw  # byte for byte, as the ancestor would write it


@pytest.mark.parametrize("wanted", ENVELOPES)
def test_we_read_what_protobuf_writes(wanted: Payload) -> None:
    event = Event()
    for change in wanted.changes:
        if isinstance(change, Statement):
            body = event.change.add(type=STATEMENT_DATA).statement
            body.defaultSchema, body.timestamp, body.errorCode = change.schema, change.timestamp, change.error_code
            if isinstance(change.sql, bytes):
                body.queryAsBytes = change.sql
            else:
                body.query = change.sql
            if change.ddl:
                body.options.add(name="schema_change", value="true")
            for name, value in change.options:
                body.options.add(name=name, value=value)
    for target, given in ((event.metadata, wanted.metadata), (event.options, wanted.options)):
        for name, value in given:
            target.add(name=name, value=value)
    if any(isinstance(change, RowChange) for change in wanted.changes):
        event.packed = Event.FromString(encode(wanted)).packed
    assert decode(event.SerializeToString()) == wanted


@pytest.mark.parametrize("wanted", ENVELOPES)
def test_unknown_fields_are_passed_over(wanted: Payload) -> None:
    """A later release may add fields to the envelope; protobuf writes them in any order of parts."""
    future = Event(futureNumber=-1, futureText="x" * 200, futureFixed32=7, futureFixed64=8).SerializeToString()
    assert len(future) > 200
    raw = encode(wanted)
    assert decode(future + raw) == decode(raw + future) == decode(future + raw + future) == wanted


def test_unknown_fields_inside_a_statement_are_passed_over() -> None:
    body = b"\x0a\x01s" + b"\x1a\x01q" + b"\x28\x00" + b"\x3a\x02xy" + b"\x40\x05" + b"\x4d\x00\x00\x00\x00"
    raw = b"\x0a" + sized(b"\x08\x02" + b"\x1a" + sized(body) + b"\x4a\x01z")
    assert decode(raw).changes == (Statement(schema="s", sql="q", ddl=False),)
    assert Event.FromString(raw).change[0].statement.query == "q"


def test_a_negative_error_code_has_protobufs_ten_bytes() -> None:
    raw = encode(Payload(changes=(Statement(schema="", sql="", ddl=False, error_code=-1),)))
    assert b"\x28" + b"\xff" * 9 + b"\x01" in raw


def test_the_tables_of_readers_and_writers_are_whole() -> None:
    """Each tag that is not handled in the loops has a reader; each type that is not, a writer."""
    in_line = {Tag.NULL, Tag.UNCHANGED, Tag.FALSE, Tag.TRUE, Tag.I64, Tag.F64, Tag.TEXT, Tag.BYTES}
    assert set(row_bytes._READERS) == set(Tag) - in_line


def test_rows_of_a_session_with_checks_off() -> None:
    """docs/format.md, "Options of a fragment": they stand in the envelope, and reach each row's table map."""
    table = TableMap(schema="s", table="t", columns=(Column(name="a", source_type="int", logical=LogicalType.INTEGER),))
    options = (("foreign_key_checks", "0"), ("check_constraint_checks", "0"), ("unique_checks", "1"))
    raw = encode(Payload(options=options, changes=(RowChange(table, Op.INSERT, None, (1,)),)))
    (change,) = decode(raw).changes
    assert isinstance(change, RowChange)
    assert change.table == replace(table, unchecked=("foreign_key_checks", "check_constraint_checks"))
    assert encode(decode(raw)) == raw


def test_what_older_rows_hold_reaches_its_tables_map() -> None:
    """docs/format.md, "Options of a fragment": of the tables that are named, and of no other."""
    columns = (Column(name="a", source_type="int", logical=LogicalType.INTEGER),)
    one, other = [TableMap(schema="s", table=name, columns=columns) for name in ("t", "u")]
    told = replace(one, older=(("a", ""), ("b", "'it''s'")))
    rows = [RowChange(table, Op.INSERT, None, (1,)) for table in (one, other)]
    for changes in (rows, rows[:1], rows[1:]):
        raw = encode(Payload(options=(table_map.older_option([told]),), changes=tuple(changes)))
        tables = [change.table for change in decode(raw).changes if isinstance(change, RowChange)]
        assert tables == [told if change.table is one else other for change in changes]
        assert encode(decode(raw)) == raw
    for rubbish in ("", "{}", '[["s","t"]]', '[["s","t",[["a",1]]]]'):
        with pytest.raises(PayloadError):
            decode(encode(Payload(options=((table_map.OLDER, rubbish),), changes=tuple(rows))))


def test_a_letter_beyond_ascii_is_found_wherever_it_stands() -> None:
    texts = ["a" * size for size in range(40)]
    texts += ["a" * at + "é" + "a" * (size - at) for size in range(40) for at in range(size + 1)]
    assert decode_row(encode_row(texts), len(texts)) == tuple(texts)
    for text in texts:
        assert decode_row(encode_row((text,)), 1) == (text,)


@pytest.mark.parametrize("size", range(1, 20))
def test_a_text_that_is_no_utf_8_is_refused_wherever_it_breaks(size: int) -> None:
    raw = encode_row(("a" * size,))
    for at in range(2, len(raw)):
        broken = raw[:at] + b"\xe9" + raw[at + 1 :]
        with pytest.raises(PayloadError):
            decode_row(broken, 1)
