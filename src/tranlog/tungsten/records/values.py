"""The cells of a row change as the ancestor's protobuf form carries them: one Python type per kind.

Owns the types, and what they mean as values of ours. Their bytes are `payload`'s, their text is `text`'s. The hard
idea: what a cell means depends on its column too (a DATE with a zone is a MySQL DATETIME, an integer may be
unsigned), so a cell keeps exactly which fields were written and `to_value` decides with the column beside it.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Final, TypeAlias

import msgspec

from tranlog.types import F32, Bit, CharsetBytes, Date, Datetime, Instant, Other, Time, Value, ZeroDate

# ColumnVal.type
INT: Final = 1
LONG: Final = 2
FLOAT: Final = 3
DOUBLE: Final = 4
STRING: Final = 5
TIMESTAMP: Final = 6
BIT: Final = 7
TIME: Final = 8
DATE: Final = 9
BLOB: Final = 10
NULL: Final = 11
DECIMAL: Final = 12
BINARYSTRING: Final = 13

# java.sql.Types, of those that the ancestor writes
SQL_OTHER: Final = 1111

_ZERO: Final = {TIME: "00:00:00", TIMESTAMP: "0000-00-00 00:00:00", DATE: "0000-00-00"}

UNSCALED_BYTES_MAX: Final = 4096
"""A decimal longer than this is shown and converted as its raw bytes: no database has one, and making digits of
them costs time with the square of their number."""


class Long(msgspec.Struct, frozen=True):
    """An eight-byte integer; a plain `int` is the four-byte one."""

    value: int


class Flag(msgspec.Struct, frozen=True):
    """A value of a BIT column."""

    value: int


class Moment(msgspec.Struct, frozen=True):
    """A TIMESTAMP, TIME or DATE, by the fields that were written.

    `millis` since 1970 in UTC, absent in a zero date; `nanos` below the millisecond; `zone` is `GMT` for a DATE
    that is a MySQL DATETIME.
    """

    kind: int
    millis: int | None
    nanos: int | None = None
    zone: str | None = None


class Unscaled(msgspec.Struct, frozen=True):
    """A decimal: the unscaled number in big-endian two's complement, and how many of its digits are decimals."""

    raw: bytes
    scale: int


class BinaryText(msgspec.Struct, frozen=True):
    """Text whose bytes the source did not decode."""

    raw: bytes


Cell: TypeAlias = None | int | Long | F32 | float | str | bytes | Flag | Moment | Unscaled | BinaryText
"""One value of a row: None is NULL, `int` an INT, `float` a DOUBLE, F32 a FLOAT, `str` a STRING, `bytes` a BLOB."""


def decimal_of(cell: Unscaled) -> Decimal | None:
    """Return the decimal, or None for one that is too long to be any database's."""
    if len(cell.raw) > UNSCALED_BYTES_MAX:
        return None
    unscaled = int.from_bytes(cell.raw, "big", signed=True)
    digits = Decimal(abs(unscaled)).as_tuple().digits
    return Decimal((1 if unscaled < 0 else 0, digits, -cell.scale))


def decimal_value(cell: Unscaled) -> Decimal | Other:
    """Return the decimal as a value of ours; one with too many bytes becomes its bytes in hex."""
    exact = decimal_of(cell)
    return Other("DECIMAL", f"0x{cell.raw.hex()} scale {cell.scale}") if exact is None else exact


def moment_value(moment: Moment, zero: ZeroDate) -> Value:
    """Return a date or a time as a value of ours; `zero` where it has no milliseconds."""
    if moment.millis is None:
        return zero
    micros = moment.millis * 1000 + (moment.nanos or 0) // 1000
    if moment.kind == TIMESTAMP:
        return Instant(micros)
    if moment.kind == TIME:
        return Time(micros)
    return Date(moment.millis // 86_400_000) if moment.zone is None else Datetime(micros)


def unscaled_of(number: Decimal) -> Unscaled:
    """Return a finite decimal in the ancestor's form, its scale kept. Raises ValueError for NaN and infinities."""
    sign, digits, exponent = number.as_tuple()
    if not isinstance(exponent, int):
        raise ValueError(f"{number} is not a number that a decimal column of the replicator can hold")
    unscaled = int(Decimal((0, digits, 0)))
    if sign:
        unscaled = -unscaled
    size = ((unscaled if unscaled >= 0 else ~unscaled).bit_length() + 8) // 8
    return Unscaled(unscaled.to_bytes(size, "big", signed=True), -exponent)


def to_value(cell: Cell, *, sql_type: int, signed: bool, length: int, description: str) -> Value:
    """Return what a cell means, as a value of ours.

    `signed`, `length` (bytes) and `description` (the source's spelling, or empty) are the column's. What the
    replicator does not say is not guessed: an ENUM stays its ordinal as `other`, text that was not decoded stays bytes.
    """
    match cell:
        case None | str() | float() | F32() | bytes():
            return cell
        case int():
            if sql_type == SQL_OTHER:
                return Other(description or "OTHER", str(cell))
            return cell if signed or cell >= 0 else cell + (1 << 8 * (length if 0 < length <= 4 else 4))
        case Long(value=number):
            return number if signed or number >= 0 else number + (1 << 64)
        case Flag(value=bits):
            return Bit(max(length, bits.bit_length(), 1), bits) if bits >= 0 else Bit(32, bits & 0xFFFF_FFFF)
        case Unscaled():
            return decimal_value(cell)
        case BinaryText(raw=raw):
            return CharsetBytes("binary", raw)
        case Moment():
            return moment_value(cell, ZeroDate(_ZERO[cell.kind]))
