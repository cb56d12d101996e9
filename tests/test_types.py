"""`types`: what a value is, when two are the same, how it is printed."""

from __future__ import annotations

import datetime
import math
import struct
from decimal import Decimal
from typing import get_args
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tranlog.types import (
    F32,
    STRUCT_TAGS,
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
    civil_from_date,
    date_from_civil,
    date_text,
    datetime_text,
    float_text,
    time_text,
    value_text,
)

EPOCH = datetime.date(1970, 1, 1)

# One value of each kind and its neighbours: no two of them are the same value.
ALL_DIFFERENT: list[Value] = [
    None,
    UNCHANGED,
    False,
    True,
    0,
    1,
    -1,
    2**63,
    0.0,
    -0.0,
    1.0,
    math.inf,
    -math.inf,
    math.nan,
    struct.unpack(">d", bytes.fromhex("7ff8000000000001"))[0],
    F32(0.0),
    F32(-0.0),
    F32(1.0),
    F32(math.nan),
    Decimal("0"),
    Decimal("-0"),
    Decimal("1"),
    Decimal("1.0"),
    Decimal("1.00"),
    Decimal("1E+2"),
    Decimal("100"),
    Decimal("NaN"),
    Decimal("sNaN"),
    Decimal("Infinity"),
    "",
    "1",
    "0",
    "é",
    "e\u0301",
    b"",
    b"1",
    b"1\0",
    CharsetBytes("latin1", b"1"),
    CharsetBytes("cp1251", b"1"),
    Date(0),
    Time(0),
    Datetime(0),
    Instant(0),
    Date(1),
    Time(1),
    Datetime(1),
    Instant(1),
    ZeroDate("0000-00-00"),
    ZeroDate("0000-00-00 00:00:00"),
    InfiniteDate(False),
    InfiniteDate(True),
    Bit(1, 1),
    Bit(2, 1),
    Bit(2, 2),
    EnumLabel(""),
    EnumLabel("1"),
    SetLabels(()),
    SetLabels(("",)),
    SetLabels(("1",)),
    SetLabels(("1", "2")),
    SetLabels(("2", "1")),
    Json("1"),
    Json("1 "),
    UUID(int=1),
    Other("inet", "1"),
    Other("cidr", "1"),
]


def test_only_the_same_value_is_the_same() -> None:
    """Python says 1 == 1.0 == True == Decimal(1), 0.0 == -0.0 and nan != nan."""
    forms = [canonical(value) for value in ALL_DIFFERENT]
    assert len(set(forms)) == len(forms)
    assert forms == [canonical(value) for value in ALL_DIFFERENT]


def test_equal_values_are_the_same() -> None:
    assert canonical(float("nan")) == canonical(math.nan)
    assert canonical(F32(math.nan)) == canonical(F32(float("nan")))
    assert canonical(F32(0.1)) == canonical(F32(struct.unpack(">f", struct.pack(">f", 0.1))[0]))
    assert canonical(Decimal("1.50")) == canonical(Decimal((0, (1, 5, 0), -2)))
    assert canonical(2**63) == canonical(2**64 - 2**63)
    assert canonical(SetLabels(("a",))) == canonical(SetLabels(("a",)))


def test_every_kind_of_value_has_its_own_tag() -> None:
    tags = {canonical(value)[0] for value in ALL_DIFFERENT}
    assert tags == set(Tag) - {Tag.U64}  # an int is one kind; which of the two tags it gets is a matter of size
    assert set(STRUCT_TAGS) < set(get_args(Value))


def test_a_four_byte_float_is_equal_by_its_bits() -> None:
    assert F32(math.nan) == F32(math.nan)
    assert F32(0.0) != F32(-0.0)
    assert F32(0.1) == F32(struct.unpack(">f", struct.pack(">f", 0.1))[0])
    assert len({F32(math.nan), F32(math.nan), F32(0.0), F32(-0.0), F32(0.1), F32(float("0.1"))}) == 4
    assert F32(1.0) != 1.0


def test_unchanged_is_one_and_never_null() -> None:
    assert canonical(UNCHANGED) != canonical(None)
    assert value_text(UNCHANGED) != value_text(None)


# Days and the proleptic Gregorian calendar.


@given(st.dates())
def test_a_date_is_what_the_standard_library_says(day: datetime.date) -> None:
    date = date_from_civil(day.year, day.month, day.day)
    assert date == Date((day - EPOCH).days)
    assert civil_from_date(date) == (day.year, day.month, day.day)
    assert date_text(date) == day.isoformat()


def test_every_month_of_the_standard_librarys_range() -> None:
    for year in [*range(1, 9999, 83), 1582, 1600, 1700, 1900, 1970, 2000, 2024, 2100, 9998]:
        for month in range(1, 13):
            first = datetime.date(year, month, 1)
            last = (first + datetime.timedelta(days=32)).replace(day=1) - datetime.timedelta(days=1)
            for day in (first, last):
                assert date_from_civil(day.year, day.month, day.day).days == (day - EPOCH).days
                assert civil_from_date(Date((day - EPOCH).days)) == (day.year, day.month, day.day)


# 400 years are the same number of days everywhere: what holds in the library's range holds beyond, moved by eras.
@given(st.dates(min_value=datetime.date(1, 1, 1), max_value=datetime.date(9599, 12, 31)), st.integers(-(10**6), 10**6))
def test_the_calendar_goes_on_beyond_the_standard_librarys_range(day: datetime.date, eras: int) -> None:
    date = Date((day - EPOCH).days + 146_097 * eras)
    assert civil_from_date(date) == (day.year + 400 * eras, day.month, day.day)
    assert date_from_civil(day.year + 400 * eras, day.month, day.day) == date


@given(st.integers(min_value=-(2**63), max_value=2**63 - 1))
def test_any_number_of_days_is_a_date(days: int) -> None:
    year, month, day = civil_from_date(Date(days))
    assert 1 <= month <= 12
    assert 1 <= day <= 31
    assert date_from_civil(year, month, day) == Date(days)


@pytest.mark.parametrize(
    ("civil", "text"),
    [
        ((1, 1, 1), "0001-01-01"),
        ((0, 12, 31), "0001-12-31 BC"),
        ((-43, 3, 15), "0044-03-15 BC"),
        ((-4713, 11, 24), "4714-11-24 BC"),
        ((5874897, 12, 31), "5874897-12-31"),
        ((2024, 2, 29), "2024-02-29"),
    ],
)
def test_a_dates_text(civil: tuple[int, int, int], text: str) -> None:
    assert date_text(date_from_civil(*civil)) == text


def test_the_day_before_our_era_is_the_last_of_the_year_before() -> None:
    assert date_from_civil(1, 1, 1).days - date_from_civil(0, 12, 31).days == 1
    assert date_from_civil(0, 3, 1).days - date_from_civil(0, 2, 29).days == 1  # 1 BC is a leap year


SECOND = 1_000_000


@pytest.mark.parametrize(
    ("micros", "text"),
    [
        (0, "00:00:00"),
        (1, "00:00:00.000001"),
        (-1, "-00:00:00.000001"),
        (3600 * SECOND + 500_000, "01:00:00.500000"),
        ((838 * 3600 + 59 * 60 + 59) * SECOND, "838:59:59"),
        (-((838 * 3600 + 59 * 60 + 59) * SECOND + 999_999), "-838:59:59.999999"),
    ],
)
def test_a_times_text(micros: int, text: str) -> None:
    assert time_text(Time(micros)) == text


@given(st.datetimes())
def test_a_datetimes_text_is_what_the_standard_library_says(moment: datetime.datetime) -> None:
    micros = (moment - datetime.datetime(1970, 1, 1)) // datetime.timedelta(microseconds=1)
    assert datetime_text(Datetime(micros)) == moment.isoformat(" ")
    assert datetime_text(Instant(micros)) == moment.isoformat(" ") + "+00"


def test_a_datetime_before_our_era() -> None:
    micros = date_from_civil(-43, 3, 15).days * 86_400 * SECOND + 12 * 3600 * SECOND
    assert datetime_text(Datetime(micros)) == "0044-03-15 12:00:00 BC"
    assert datetime_text(Instant(micros)) == "0044-03-15 12:00:00+00 BC"


@given(st.floats())
def test_a_floats_text_reads_back(number: float) -> None:
    back = float(float_text(number))
    assert back == number or (math.isnan(back) and math.isnan(number))
    assert math.copysign(1, back) == math.copysign(1, number) or math.isnan(number)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "NULL"),
        (UNCHANGED, "UNCHANGED"),
        (True, "true"),
        (False, "false"),
        (-5, "-5"),
        (2**64 - 1, "18446744073709551615"),
        (1.5, "1.5"),
        (-math.inf, "-Infinity"),
        (F32(math.nan), "NaN"),
        (F32(0.5), "0.5"),
        (Decimal("1.50"), "1.50"),
        (Decimal("-0"), "-0"),
        ("a text", "a text"),
        (b"\x00\xff", "0x00ff"),
        (b"", "0x"),
        (CharsetBytes("latin1", b"\xe9"), "_latin1 0xe9"),
        (Date(0), "1970-01-01"),
        (Time(-SECOND), "-00:00:01"),
        (Datetime(0), "1970-01-01 00:00:00"),
        (Instant(1), "1970-01-01 00:00:00.000001+00"),
        (ZeroDate("2024-00-15"), "2024-00-15"),
        (InfiniteDate(False), "infinity"),
        (InfiniteDate(True), "-infinity"),
        (Bit(5, 5), "b'00101'"),
        (Bit(0, 0), "b''"),
        (EnumLabel("red"), "red"),
        (SetLabels(("a", "b")), "a,b"),
        (Json('{"a": 1}'), '{"a": 1}'),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (Other("inet", "127.0.0.1"), "inet 127.0.0.1"),
    ],
)
def test_a_values_text(value: Value, text: str) -> None:
    assert value_text(value) == text


def test_a_huge_exponent_is_not_written_out() -> None:
    """Nine bytes in a log must not become 400 MB on a screen."""
    assert value_text(Decimal("1E+400000000")) == "1E+400000000"
    assert value_text(Decimal("1E-400000000")) == "1E-400000000"


def test_every_different_value_has_a_text() -> None:
    for value in ALL_DIFFERENT:
        assert isinstance(value_text(value), str)


def test_the_numbers_of_the_format_do_not_change() -> None:
    """A log outlives the program that wrote it: a new member gets a new number, an old one keeps its own."""
    tags = """NULL UNCHANGED FALSE TRUE I64 U64 F32 F64 DECIMAL TEXT BYTES CHARSET_BYTES DATE TIME DATETIME
        INSTANT ZERO_DATE INFINITE_DATE BIT ENUM SET JSON UUID OTHER"""
    kinds = """ANY BOOL INTEGER F32 F64 DECIMAL TEXT BYTES DATE TIME DATETIME INSTANT BIT ENUM SET JSON UUID OTHER"""
    assert [(number, tag.name) for number, tag in enumerate(Tag)] == list(enumerate(tags.split()))
    assert [(number, kind.name) for number, kind in enumerate(LogicalType)] == list(enumerate(kinds.split()))
    assert [tag.value for tag in Tag] == list(range(len(Tag)))
    assert [kind.value for kind in LogicalType] == list(range(len(LogicalType)))
