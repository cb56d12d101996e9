"""source/postgres/rows and values, on what a real server sent: every kind of type, and each kind of before image."""

from __future__ import annotations

import itertools
import math
import struct
from decimal import Decimal
from fractions import Fraction
from uuid import UUID

import pytest

from fix_pgoutput import Tables, messages, with_streaming
from tranlog.change import Op, RowChange, TableMap
from tranlog.payload import PayloadBuilder, decode
from tranlog.row_bytes import encode_value
from tranlog.source.postgres.messages import MessageFormatError, RowMessage, parse_message
from tranlog.source.postgres.rows import NoBeforeImageError, PostgresTableLayout, encode_change, encode_run
from tranlog.source.postgres.values import PostgresType, column_of, value_encoder, value_reader
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
    Time,
    canonical,
)


def changes(name: str, table: str, *, by_key: bool = True) -> list[RowChange]:
    """Decode the changes of one table of a recording, there and back through a payload."""
    tables, builder = Tables(by_key=by_key), PayloadBuilder()
    for raw, inside in with_streaming(messages(name)):
        if raw[:1] in (b"R", b"Y"):
            tables.note(raw, streamed=inside)
        if raw[:1] in (b"I", b"U", b"D"):
            row = parse_message(raw, streamed=inside)
            assert isinstance(row, RowMessage)
            layout = tables.layouts[row.relation]
            if layout.table.table == table:
                builder.add_encoded(layout.table, *encode_change(layout, raw, row.at))
    found = decode(builder.take()).changes
    return [one for one in found if isinstance(one, RowChange)]


def test_values_of_every_type() -> None:
    first, second, update, delete = changes("plain", "types")
    assert first.after is not None and update.after is not None
    row = dict(zip([column.name for column in first.table.columns], first.after, strict=True))
    assert math.isnan(row.pop("f4").value)  # type: ignore[union-attr]
    assert row.pop("n").is_nan()  # type: ignore[union-attr]
    assert row == {
        **{"id": 1, "b": True, "i2": -32768, "i4": 2147483647, "f8": -math.inf, "nd": Decimal("0.000")},
        **{"t": "a\n\"'é😀", "v": "v", "c": "c", "by": b"\x00\xff", "d": InfiniteDate(False)},
        **{"ti": Time(86_400_000_000), "ts": Datetime(-63_517_780_800_000_000)},
        **{"tz": Instant(1_709_243_999_999_000), "iv": Other("interval", "1 year -2 days +00:00:01.5")},
        **{"bi": Bit(3, 5), "vb": Bit(1, 1), "js": Json('{"b": 1,  "a": 1}'), "jb": Json('{"a": 1, "b": 1}')},
        **{"u": UUID("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"), "ip": Other("inet", "127.0.0.1/8")},
        **{"ar": Other("integer[]", "{1,NULL,3}"), "ra": Other("int4range", "[1,5)"), "m": EnumLabel("so so")},
        **{"p": Decimal("1.50"), "co": Other("public.pair", '(1,"a b")'), "x": Other("xml", "<a/>")},
    }
    assert second.after == (-(1 << 63), *[None] * 28)
    assert update.op is Op.UPDATE and update.before is not None and delete.before == second.after
    assert [canonical(one) for one in update.before] == [canonical(one) for one in first.after]
    assert update.after[4:7:2] == (F32(3.4028234663852886e38), Decimal("123456789012345678901234567890.123456789"))
    logical = {column.name: column.logical for column in first.table.columns}
    assert logical["m"] is LogicalType.ENUM and logical["iv"] is logical["ar"] is LogicalType.OTHER


def test_by_key_the_before_image_is_the_key() -> None:
    inserted, _, update, moved, *deleted = changes("plain", "by_key")[:6]
    assert inserted.before is None and update.before == (1, "a", UNCHANGED) and update.after == (1, "a", "y")
    assert moved.before == (2, "b", UNCHANGED) and moved.after == (3, "b", None)
    assert [one.before for one in deleted] == [(1, "a", UNCHANGED), (3, "b", UNCHANGED)]


def test_where_before_images_are_wanted_their_lack_is_told() -> None:
    with pytest.raises(NoBeforeImageError):
        changes("plain", "by_key", by_key=False)


def test_unchanged_toast_is_filled_from_the_before_image() -> None:
    _, update, _ = changes("plain", "wide", by_key=False)
    assert update.before == (1, "x" * 4000, 1) and update.after == (1, "x" * 4000, 2)
    raws = [raw for raw in messages("plain") if raw[:1] == b"U" and b"xxxx" in raw]
    assert len(raws) == 1 and raws[0].count(b"x" * 4000) == 1  # it came once


def test_a_row_of_another_shape_is_one_error() -> None:
    tables = Tables()
    raw = next(raw for raw in messages("plain") if raw[:1] == b"R")
    tables.note(raw, streamed=False)
    (layout,) = tables.layouts.values()
    for rest in (b"N\0\1n", b"N\0\x1d" + b"n" * 28, b"X", b"N\0\x1dt\0\0\0\x09x", b"N\0\x1dt\0\0\0\1x" + b"n" * 28):
        row = b"I" + raw[1:5] + rest
        message = parse_message(row)
        assert isinstance(message, RowMessage)
        with pytest.raises(MessageFormatError):
            encode_change(layout, row, message.at)


def typed(
    name: str, *, typmod: int = -1, declared: str = "", kind: str = "b", schema: str = "pg_catalog"
) -> PostgresType:
    return PostgresType(schema=schema, name=name, kind=kind, typmod=typmod, declared=declared or name)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (typed("numeric"), "0.0000001", Decimal("1E-7")),
        (typed("numeric"), "-0.00000000", Decimal("-0E-8")),
        (typed("numeric"), "1000000000000000000000", Decimal("1000000000000000000000")),
        (typed("numeric"), "-Infinity", Decimal("-Infinity")),
        (typed("float8"), "-0", -0.0),
        (typed("float4"), "1e-45", F32(1.401298464324817e-45)),
        (typed("date"), "10000-01-01", Date(2932897)),
        (typed("date"), "0001-01-01 BC", Date(-719528)),
        (typed("timestamp"), "infinity", InfiniteDate(False)),
        (typed("timestamp"), "294247-01-10 04:00:54.775807", Datetime((1 << 63) - 1)),
        (typed("timestamp"), "294276-12-31 23:59:59.999999", Other("timestamp", "294276-12-31 23:59:59.999999")),
        (typed("timestamptz"), "4714-11-24 00:00:00+00 BC", Instant(-210866803200000000)),
        (typed("timestamptz"), "2024-01-01 00:00:00.5+00", Instant(1704067200500000)),
        (typed("time"), "23:59:59.000001", Time(86_399_000_001)),
        (typed("timetz"), "23:59:59+02", Other("timetz", "23:59:59+02")),
        (typed("bpchar", typmod=9, declared="character(5)"), "ab   ", "ab"),
        (typed("bpchar", declared="bpchar"), "ab ", "ab "),
        (typed("citext", schema="public", declared="public.citext"), "A", "A"),
        (typed("hstore", schema="public", declared="public.hstore"), '"a"=>"1"', Other("public.hstore", '"a"=>"1"')),
        (typed("varbit", declared="bit varying"), "", Bit(0, 0)),
        (typed("date"), "nonsense", Other("date", "nonsense")),
    ],
)
def test_texts_at_the_edges(kind: PostgresType, text: str, value: object) -> None:
    column = column_of("c", kind, nullable=True)
    read = value_reader(column)(text.encode())
    assert canonical(read) == canonical(value)  # type: ignore[arg-type]
    assert value_encoder(column)(text.encode()) == encode_value(read)


def one_row(kind: PostgresType, text: bytes) -> bytes:
    """Return a row of one column, encoded on the way that rows of a stream go."""
    column = column_of("c", kind, nullable=True)
    layout = PostgresTableLayout(
        table=TableMap(schema="s", table="t", columns=(column,), primary_key=()),
        encoders=(value_encoder(column),),
        keys=(True,),
        by_key=False,
    )
    row = b"I" + struct.pack(">IcHcI", 7, b"N", 1, b"t", len(text)) + text
    found, op, images, end = encode_run([row, row], 0, {7: layout}, streamed=False)
    assert found is layout and op is Op.INSERT and end == 2 and images[0] == images[1]
    return images[0]


INTEGERS = ["0", "-1", "63", "-64", "64", "-65", str(1 << 62), str(-(1 << 63)), "9" * 18, "-" + "9" * 18, str(10**18)]
NUMERICS = ["0", "-0.5", "12.50", "0.000001", "0.0000010", "-0.0000001", "10.0000001", "NaN", "-Infinity", "9" * 40]
MOMENTS = [
    *("0001-01-01 00:00:00", "1969-12-31 23:59:59.999999", "2000-02-29 12:00:00", "2100-02-28 00:00:00.1"),
    *("9999-12-31 23:59:59.999999", "10000-01-01 00:00:00", "0044-03-15 00:00:00 BC", "infinity", "-infinity"),
    *(f"{year}-{month:02}-{day:02} 01:02:03" for year in (1900, 2024) for month in range(1, 13) for day in (1, 28)),
]


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("int8", INTEGERS),
        ("numeric", NUMERICS),
        ("text", ["", "a", "é" * 100, "x" * 127, "x" * 128, "x" * 20_000]),
        ("timestamp", MOMENTS),
        ("timestamptz", [text.replace(" BC", "") + "+00" for text in MOMENTS if "inf" not in text]),
        ("timestamptz", ["infinity", "0044-03-15 00:00:00+00 BC"]),
        ("bool", ["t", "f"]),
        ("uuid", ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"]),
    ],
)
def test_a_stream_s_rows_have_the_bytes_of_their_values(name: str, texts: list[str]) -> None:
    """The ways that make no value write what `encode_value` writes of the value."""
    kind = typed(name)
    read = value_reader(column_of("c", kind, nullable=True))
    for text in texts:
        assert one_row(kind, text.encode()) == encode_value(read(text.encode())), text


def test_text_of_a_stream_that_is_no_utf_8_keeps_its_bytes() -> None:
    assert one_row(typed("text"), b"\xe9") == encode_value(CharsetBytes("SQL_ASCII", b"\xe9"))
    assert one_row(typed("bpchar", typmod=9, declared="character(5)"), b"ab   ") == encode_value("ab")


def test_a_run_ends_where_another_table_or_kind_of_change_begins() -> None:
    tables = Tables()
    runs: list[tuple[str, Op, int]] = []
    waiting: list[bytes] = []
    for raw in messages("plain"):
        if raw[:1] in (b"R", b"Y"):
            tables.note(raw, streamed=False)
        elif raw[:1] in (b"I", b"U", b"D"):
            waiting.append(raw)
    at = 0
    while at < len(waiting):
        start = at
        layout, op, images, at = encode_run(waiting, at, tables.layouts, streamed=False)
        assert len(images) == at - start > 0
        runs.append((layout.table.table, op, at))
        for raw, image in zip(waiting[start:at], images, strict=True):
            message = parse_message(raw)
            assert isinstance(message, RowMessage)
            assert encode_change(tables.layouts[message.relation], raw, message.at) == (op, image)
    assert any(op is Op.UPDATE for _, op, _ in runs)
    assert all(one[:2] != other[:2] for one, other in itertools.pairwise(runs))
    with pytest.raises(MessageFormatError, match="not defined"):
        encode_run(waiting, 0, {}, streamed=False)


def test_text_that_is_no_utf_8_keeps_its_bytes() -> None:
    column = column_of("c", typed("text"), nullable=True)
    assert value_reader(column)(b"\xe9") == CharsetBytes("SQL_ASCII", b"\xe9")
    assert value_encoder(column)(b"\xe9") == encode_value(CharsetBytes("SQL_ASCII", b"\xe9"))


def test_a_float_of_four_bytes_is_rounded_once() -> None:
    """A text close to the middle between two of them, where a rounding to eight bytes first lands in the middle."""
    column = column_of("c", typed("float4"), nullable=True)
    low = struct.unpack(">f", bytes.fromhex("3f800000"))[0]
    high = struct.unpack(">f", bytes.fromhex("3f800001"))[0]
    middle = (Fraction(low) + Fraction(high)) / 2
    digits = str(Decimal(middle.numerator) / Decimal(middle.denominator))
    read = value_reader(column)
    assert read(digits.encode()) == F32(low)  # the even one
    assert read((digits + "0000000001").encode()) == F32(high)


def test_declared_forms() -> None:
    """What targets read out of a declaration: digits after the second, lengths, and no name that means another type."""
    assert column_of("c", typed("varchar", typmod=24), nullable=True).length == 20
    assert column_of("c", typed("bit", typmod=3), nullable=True).length == 3
    stamp = column_of("c", typed("timestamptz", typmod=3, declared="timestamp(3) with time zone"), nullable=True)
    assert stamp.source_type == "timestamptz(3)"
