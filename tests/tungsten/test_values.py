"""What the cells of a Tungsten log mean as values of ours: conformance/tungsten.md B3; data-model.md, "Values"."""

from __future__ import annotations

import random
from decimal import Decimal

import pytest

from fix_tungsten import any_cell, golden_segments
from tranlog.tungsten.records import values
from tranlog.tungsten.records.codec import scan
from tranlog.tungsten.records.event import Event, RowChanges
from tranlog.tungsten.records.payload import decode
from tranlog.tungsten.records.record import EventRecord
from tranlog.tungsten.records.values import Flag, Long, Moment, Unscaled, decimal_of, to_value, unscaled_of
from tranlog.types import F32, Bit, CharsetBytes, Date, Datetime, Instant, Other, Time, Value, ZeroDate, canonical


def value(
    cell: values.Cell, sql_type: int = 4, *, signed: bool = True, length: int = 4, description: str = ""
) -> Value:
    return to_value(cell, sql_type=sql_type, signed=signed, length=length, description=description)


def test_the_golden_row() -> None:
    """All 45 variants, by column."""
    raw = golden_segments("rows-crc")[1]
    record = next(iter(scan(raw, checked=True)))
    assert isinstance(record, EventRecord)
    event = decode(raw[record.payload_offset : record.payload_offset + record.payload_length])
    assert isinstance(event, Event)
    rows = event.changes[0]
    assert isinstance(rows, RowChanges)
    table = rows.tables[0]
    found = {
        spec.name: to_value(
            cell,
            sql_type=spec.sql_type,
            signed=spec.signed,
            length=spec.length,
            description=spec.description or "",
        )
        for spec, cell in zip(table.column_specs, table.rows[0], strict=True)
    }
    assert len(found) == 45
    expected: dict[str, Value] = {
        "i_tiny": -128,
        "i_big_u": (1 << 63) - 1,
        "i_len0_long": 4_200_000_000,
        "dec_pos": Decimal("12345678.90"),
        "dec_negscale": Decimal("17E+5"),
        "flt": F32(-1.5000000417233803e-10),
        "dbl_ninf": float("-inf"),
        "bit": Bit(1, 1),
        "ts_nanos": Instant(1_309_533_324_883_123),
        "ts_pre1970": Instant(-1_500_000),
        "ts_zero": ZeroDate("0000-00-00 00:00:00"),
        "time_old": Time(45_296_000_000),
        "time_micro": Time(45_296_123_456),
        "date": Date(15156),
        "datetime": Datetime(1_309_533_324_000_000),
        "datetime_us": Datetime(1_309_533_324_123_456),
        "date_zero": ZeroDate("0000-00-00"),
        "enum_other": Other("ENUM", "3"),
        "blob_empty": b"",
        "vchr_bytes": CharsetBytes("binary", b"\xe9\0A\xff"),
        "nvchr": "\0nul\0",
        "null_val_int": None,
    }
    for name, wanted in expected.items():
        assert canonical(found[name]) == canonical(wanted), name


@pytest.mark.parametrize(
    ("length", "stored", "meant"),
    [(1, -1, 255), (2, -2, 65534), (3, -1, (1 << 24) - 1), (4, -1, (1 << 32) - 1), (4, 7, 7)],
)
def test_unsigned_integers(length: int, stored: int, meant: int) -> None:
    """B3: what does not fit the signed form arrives negative, with the column's unsigned flag."""
    assert value(stored, signed=False, length=length) == meant
    assert value(stored, length=length) == stored


def test_unsigned_longs() -> None:
    assert value(Long(-1), signed=False, length=8) == (1 << 64) - 1
    assert value(Long(-1), length=8) == -1


def test_decimals_there_and_back() -> None:
    for text in ("0", "-0.05", "12345678.90", "1.7E+6", "0.000", "-1", "127", "128", "-128", "-129", "9" * 65, "1E-30"):
        number = Decimal(text)
        cell = unscaled_of(number)
        again = decimal_of(cell)
        assert again is not None and str(again) == str(number)
        assert len(cell.raw) == len(
            int.from_bytes(cell.raw, "big", signed=True).to_bytes(len(cell.raw), "big", signed=True)
        )
    assert unscaled_of(Decimal("0")).raw == b"\0"
    assert unscaled_of(Decimal("128")).raw == b"\0\x80"
    with pytest.raises(ValueError, match="NaN"):
        unscaled_of(Decimal("NaN"))


def test_a_decimal_of_no_database() -> None:
    """Bounded: a megabyte of digits is not made into a number."""
    assert decimal_of(Unscaled(b"\x01" * 1_000_000, 0)) is None
    assert isinstance(value(Unscaled(b"\x01" * 5000, 0), 3), Other)


def test_any_cell_means_something() -> None:
    for seed in range(500):
        rng = random.Random(seed)
        cell = any_cell(rng)
        meant = value(cell, rng.choice((4, 1111, -7, 12)), signed=rng.random() < 0.5, length=rng.choice((0, 1, 8, -3)))
        canonical(meant)
    assert value(Flag(-1), -7) == Bit(32, 0xFFFF_FFFF)
    assert value(Moment(values.TIME, None, 0), 92) == ZeroDate("00:00:00")
