"""Values as text and back: how a database spells a value, and how a target stores what it has no type of its own for.

Owns one text per value and its inverse. Leaves to the dialects which column takes text at all. The hard idea: a text
says nothing of its tag, so it is read back by the logical type of its column; what that column's source could not
have sent comes back as `Other`, and so never compares equal to anything by chance. Pure.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from functools import partial
from typing import Final
from uuid import UUID

from tranlog.change import Column
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
    ZeroDate,
    civil_from_date,
    date_from_civil,
    date_text,
    datetime_text,
    float_text,
    time_text,
)

_F32: Final = struct.Struct(">f")
_DAY_MICROS: Final = 86_400_000_000
_MICROS_MAX: Final = (1 << 63) - 1
_DATE: Final = re.compile(r"(\d{4,})-(\d\d)-(\d\d)( BC)?")
_DATETIME: Final = re.compile(r"(\d{4,})-(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)(\.\d{1,6})?(\+00)?( BC)?")
_TIME: Final = re.compile(r"(-?)(\d+):(\d\d):(\d\d)(\.\d{1,6})?")
_INFINITE: Final = {"infinity": InfiniteDate(False), "-infinity": InfiniteDate(True)}


def bits_text(value: Bit) -> str:
    """Return the bits as zeros and ones, most significant first."""
    return f"{value.value:0{value.width}b}" if value.width else ""


TEXT_OF: Final[dict[type, Callable[..., str]]] = {
    bool: lambda value: "true" if value else "false",
    int: str,
    float: float_text,
    F32: lambda value: float_text(value.value),
    Decimal: str,
    str: str,
    Date: date_text,
    Time: time_text,
    Datetime: datetime_text,
    Instant: datetime_text,
    ZeroDate: lambda value: value.text,
    InfiniteDate: lambda value: "-infinity" if value.negative else "infinity",
    Bit: bits_text,
    EnumLabel: lambda value: value.label,
    SetLabels: lambda value: ",".join(value.labels),
    Json: lambda value: value.text,
    UUID: str,
    Other: lambda value: value.text,
}
"""The text of each type of value that has one: all but NULL, UNCHANGED and bytes of either kind."""


def _micros(fraction: str | None) -> int:
    return int(fraction[1:].ljust(6, "0")) if fraction else 0


def _days(year: int, month: int, day: int) -> int | None:
    """Return the days since 1970, None for a date that no calendar has."""
    if not 1 <= month <= 12 or not 1 <= day <= 31:
        return None
    date = date_from_civil(year, month, day)
    return date.days if civil_from_date(date) == (year, month, day) else None


def _read_date(text: str) -> Value | None:
    found = _DATE.fullmatch(text)
    if found is None:
        return _INFINITE.get(text)
    year = int(found[1])
    # No calendar has a year 0, and none of our texts either: 1 BC is written as such.
    days = _days(1 - year if found[4] else year, int(found[2]), int(found[3])) if year else None
    return ZeroDate(text) if days is None else Date(days)


def _read_moment(text: str, *, zone: bool) -> Value | None:
    found = _DATETIME.fullmatch(text)
    if found is None:
        return _INFINITE.get(text)
    year = int(found[1])
    days = _days(1 - year if found[9] else year, int(found[2]), int(found[3])) if year else None
    if days is None:
        return ZeroDate(text)
    if bool(found[8]) != zone:
        return None
    seconds = int(found[4]) * 3600 + int(found[5]) * 60 + int(found[6])
    micros = days * _DAY_MICROS + seconds * 1_000_000 + _micros(found[7])
    if micros > _MICROS_MAX:  # PostgreSQL counts from 2000, and so gets 29 years further
        return None
    return Instant(micros) if zone else Datetime(micros)


def _read_time(text: str) -> Value | None:
    found = _TIME.fullmatch(text)
    if found is None:
        return None
    micros = (int(found[2]) * 3600 + int(found[3]) * 60 + int(found[4])) * 1_000_000 + _micros(found[5])
    return Time(-micros if found[1] else micros)


def _read_bool(text: str) -> Value | None:
    return {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}.get(text)


def _read_integer(text: str) -> Value | None:
    if text in ("t", "f"):  # a boolean column for a one-digit integer
        return int(text == "t")
    whole, _, fraction = text.partition(".")
    return None if fraction.strip("0") else int(whole)


def _read_f32(text: str) -> Value | None:
    return round_f32(float(text))


def _read_set(text: str) -> Value | None:
    return SetLabels(tuple(text.split(",")) if text else ())


def _read_bit(text: str) -> Value | None:
    return Bit(len(text), int(text, 2)) if text else Bit(0, 0)


_READ: Final[dict[LogicalType, Callable[[str], Value | None]]] = {
    LogicalType.BOOL: _read_bool,
    LogicalType.INTEGER: _read_integer,
    LogicalType.F32: _read_f32,
    LogicalType.F64: float,
    LogicalType.DECIMAL: Decimal,
    LogicalType.DATE: _read_date,
    LogicalType.TIME: _read_time,
    LogicalType.DATETIME: partial(_read_moment, zone=False),
    LogicalType.INSTANT: partial(_read_moment, zone=True),
    LogicalType.BIT: _read_bit,
    LogicalType.ENUM: EnumLabel,
    LogicalType.SET: _read_set,
    LogicalType.JSON: Json,
    LogicalType.UUID: UUID,
}


def round_f32(value: float) -> F32:
    """Return the four-byte float nearest to `value`; beyond their range, infinity."""
    try:
        return F32(_F32.unpack(_F32.pack(value))[0])
    except OverflowError:
        return F32(float("inf") if value > 0 else float("-inf"))


def fraction_digits(text: str) -> str:
    """Return the digits after the point of a number's or a time's text, without zeros at the end."""
    if "E" in text or "e" in text:
        text = format(Decimal(text), "f")
    digits = text.partition(".")[2]
    return digits.partition("+")[0].partition(" ")[0].rstrip("0")


def with_digits(value: Decimal, digits: int) -> Decimal:
    """Return a decimal with so many digits after the point, if that changes no digit but zeros."""
    if not value.is_finite():
        return value
    sign, numbers, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    surplus = -exponent - digits
    if surplus > 0 and any(numbers[-surplus:]):
        return value
    kept = numbers[:-surplus] if surplus > 0 else numbers + (0,) * -surplus
    return Decimal((sign, kept or (0,), -digits))


def text_reader(column: Column) -> Callable[[str], Value]:
    """Return what reads a column's texts back: the inverse of `TEXT_OF` for the values that the column can hold.

    A text that none of those values has comes back as `Other` with the column's source type. ANY and TEXT are text.
    """
    source_type = column.source_type
    if column.logical in (LogicalType.ANY, LogicalType.TEXT):
        return str
    read = _READ.get(column.logical)
    if read is None:
        return lambda text: Other(source_type, text)

    def read_back(text: str) -> Value:
        try:
            value = read(text)
        except (ValueError, InvalidOperation):
            value = None
        return Other(source_type, text) if value is None else value

    return read_back
