"""Values as text and back, for columns that are text at the target: pure."""

from __future__ import annotations

import math
from decimal import Decimal
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fix_target import column
from tranlog.text_forms import TEXT_OF, round_f32, text_reader
from tranlog.types import (
    F32,
    Bit,
    Date,
    Datetime,
    EnumLabel,
    InfiniteDate,
    Instant,
    Json,
    LogicalType,
    Other,
    SetLabels,
    Time,
    Value,
    canonical,
)

MICROS = st.integers(-(1 << 56), 1 << 57)
VALUES = {
    LogicalType.BOOL: st.booleans(),
    LogicalType.INTEGER: st.integers(-(1 << 63), (1 << 64) - 1),
    LogicalType.F32: st.floats(width=32, allow_nan=False).map(F32) | st.just(F32(math.nan)),
    LogicalType.F64: st.floats(allow_nan=False) | st.just(math.nan),
    LogicalType.DECIMAL: st.decimals(allow_nan=False),
    LogicalType.TEXT: st.text(),
    LogicalType.DATE: st.integers(-1_000_000, 3_000_000).map(Date) | st.booleans().map(InfiniteDate),
    LogicalType.TIME: st.integers(-(1 << 43), 1 << 43).map(Time),
    LogicalType.DATETIME: MICROS.map(Datetime) | st.booleans().map(InfiniteDate),
    LogicalType.INSTANT: MICROS.map(Instant) | st.booleans().map(InfiniteDate),
    LogicalType.BIT: st.integers(0, 70).flatmap(lambda w: st.integers(0, (1 << w) - 1).map(lambda v: Bit(w, v))),
    LogicalType.ENUM: st.text().map(EnumLabel),
    LogicalType.SET: st.lists(st.text(alphabet="abcé", min_size=1), unique=True).map(lambda x: SetLabels(tuple(x))),
    LogicalType.JSON: st.text().map(Json),
    LogicalType.UUID: st.uuids(),
    LogicalType.OTHER: st.text().map(lambda text: Other("inet6", text)),
}


@given(st.sampled_from(sorted(VALUES)).flatmap(lambda logical: st.tuples(st.just(logical), VALUES[logical])))
def test_what_is_written_reads_back(case: tuple[LogicalType, Value]) -> None:
    logical, value = case
    col = column("v", logical, "inet6")
    assert canonical(text_reader(col)(TEXT_OF[type(value)](value))) == canonical(value)


@pytest.mark.parametrize(
    ("logical", "text"),
    [
        (LogicalType.INTEGER, "x"),
        (LogicalType.INTEGER, "1.5"),
        (LogicalType.F64, "one"),
        (LogicalType.DECIMAL, "1,5"),
        (LogicalType.DATE, "yesterday"),
        (LogicalType.TIME, "1 day"),
        (LogicalType.DATETIME, "2024-01-01 00:00:00+00"),
        (LogicalType.INSTANT, "2024-01-01 00:00:00"),
        (LogicalType.BIT, "012"),
        (LogicalType.UUID, "12"),
        (LogicalType.BOOL, "2"),
    ],
)
def test_what_no_source_sent_is_equal_to_nothing(logical: LogicalType, text: str) -> None:
    assert text_reader(column("v", logical, "its type"))(text) == Other("its type", text)


@pytest.mark.parametrize(
    ("text", "value"), [("1", 1), ("t", 1), ("f", 0), ("7.000", 7), ("18446744073709551615", (1 << 64) - 1)]
)
def test_integers_out_of_columns_of_other_types(text: str, value: int) -> None:
    assert text_reader(column("v", LogicalType.INTEGER, "tinyint"))(text) == value


def test_a_float_beyond_four_bytes_is_infinite() -> None:
    assert round_f32(1e39) == F32(math.inf)
    assert round_f32(-1e39) == F32(-math.inf)
    assert round_f32(3.4028235e38).value == 3.4028234663852886e38


def test_texts_are_the_usual_ones() -> None:
    values: list[Value] = [Time(-1), Datetime(0), Instant(1), Date(-719_529), UUID(int=5), Decimal("1.50"), Bit(3, 1)]
    assert [TEXT_OF[type(value)](value) for value in values] == [
        "-00:00:00.000001",
        "1970-01-01 00:00:00",
        "1970-01-01 00:00:00.000001+00",
        "0002-12-31 BC",
        "00000000-0000-0000-0000-000000000005",
        "1.50",
        "001",
    ]
