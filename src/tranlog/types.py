"""What a value is, in every database: one closed union of Python types, one tag each.

Owns the tags and the Python type behind each. The hard idea: a value keeps what the source stored, not what a
client library would make of it, so that any source's value survives the log and reaches any target unchanged or
is refused by name. Plain Python types stand for the frequent tags, small frozen structs for the rest.

Source: docs/format.md.
"""

from __future__ import annotations

import enum
import math
import struct
from decimal import Decimal
from typing import Final, TypeAlias
from uuid import UUID

import msgspec


class Tag(enum.IntEnum):
    """The tag of a value in the payload. Part of the format: numbers never change; see docs/format.md."""

    NULL = 0
    UNCHANGED = 1
    FALSE = 2
    TRUE = 3
    I64 = 4
    U64 = 5
    F32 = 6
    F64 = 7
    DECIMAL = 8
    TEXT = 9
    BYTES = 10
    CHARSET_BYTES = 11
    DATE = 12
    TIME = 13
    DATETIME = 14
    INSTANT = 15
    ZERO_DATE = 16
    INFINITE_DATE = 17
    BIT = 18
    ENUM = 19
    SET = 20
    JSON = 21
    UUID = 22
    OTHER = 23


class Unchanged(enum.Enum):
    """The one value of the tag UNCHANGED: the source did not send it. Never NULL, never written."""

    UNCHANGED = "UNCHANGED"


UNCHANGED: Final = Unchanged.UNCHANGED


class F32(msgspec.Struct, frozen=True):
    """A four-byte float, by its bits: quiet NaN payloads, infinities and -0 survive."""

    value: float

    def __eq__(self, other: object) -> bool:
        return isinstance(other, F32) and struct.pack(">f", self.value) == struct.pack(">f", other.value)

    def __hash__(self) -> int:
        return hash(struct.pack(">f", self.value))


class CharsetBytes(msgspec.Struct, frozen=True):
    """Text whose bytes do not decode in its charset; they travel as they are, with the charset's name."""

    charset: str
    raw: bytes


class Date(msgspec.Struct, frozen=True):
    """Days since 1970-01-01, proleptic Gregorian, negative before."""

    days: int


class Time(msgspec.Struct, frozen=True):
    """Signed microseconds; MariaDB's TIME reaches 838 hours and goes below zero."""

    micros: int


class Datetime(msgspec.Struct, frozen=True):
    """Microseconds since 1970-01-01 00:00 of a wall clock without a zone."""

    micros: int


class Instant(msgspec.Struct, frozen=True):
    """Microseconds since 1970-01-01 00:00 UTC."""

    micros: int


class ZeroDate(msgspec.Struct, frozen=True):
    """A date that no calendar has, as the source's text: `0000-00-00`, `2024-00-15 00:00:00`."""

    text: str


class InfiniteDate(msgspec.Struct, frozen=True):
    """PostgreSQL's `infinity` and `-infinity` of a date or timestamp."""

    negative: bool


class Bit(msgspec.Struct, frozen=True):
    """A bit string of `width` bits, most significant first in `value`."""

    width: int
    value: int


ENUM_ERROR: Final = "enum error"
"""The type name of an `Other` that is MariaDB's error value of an ENUM which has an empty label too."""


class EnumLabel(msgspec.Struct, frozen=True):
    """The label of an ENUM value; one that its ENUM does not have, the empty one, is MariaDB's error value."""

    label: str


class SetLabels(msgspec.Struct, frozen=True):
    """The labels of a SET value, in the column's order."""

    labels: tuple[str, ...]


class Json(msgspec.Struct, frozen=True):
    """JSON as the source's own text."""

    text: str


class Other(msgspec.Struct, frozen=True):
    """A value of a type that we do not know: its type's name and the source's text. Nothing is dropped."""

    type_name: str
    text: str


Value: TypeAlias = (
    None
    | Unchanged
    | bool
    | int
    | float
    | Decimal
    | str
    | bytes
    | F32
    | CharsetBytes
    | Date
    | Time
    | Datetime
    | Instant
    | ZeroDate
    | InfiniteDate
    | Bit
    | EnumLabel
    | SetLabels
    | Json
    | UUID
    | Other
)
"""Any value of a row. `int` is I64 below 2**63 and U64 from there up to 2**64 - 1; `float` is F64, by its bits."""


def canonical(value: Value) -> tuple[int, object]:
    """Return (tag, comparable form): equal for two values if and only if they are the same value.

    Python's own equality is too wide here: 1 == 1.0 == True == Decimal(1), and NaN differs from itself.
    """
    match value:
        case None:
            return (Tag.NULL, None)
        case Unchanged():
            return (Tag.UNCHANGED, None)
        case bool():
            return (Tag.TRUE if value else Tag.FALSE, None)
        case int():
            return (Tag.I64, value)
        case float():
            return (Tag.F64, struct.pack(">d", value))
        case Decimal():
            return (Tag.DECIMAL, str(value))
        case str():
            return (Tag.TEXT, value)
        case bytes():
            return (Tag.BYTES, value)
        case F32():
            return (Tag.F32, struct.pack(">f", value.value))
        case UUID():
            return (Tag.UUID, value.bytes)
        case _:
            return (STRUCT_TAGS[type(value)], value)


STRUCT_TAGS: Final[dict[type, Tag]] = {
    CharsetBytes: Tag.CHARSET_BYTES,
    Date: Tag.DATE,
    Time: Tag.TIME,
    Datetime: Tag.DATETIME,
    Instant: Tag.INSTANT,
    ZeroDate: Tag.ZERO_DATE,
    InfiniteDate: Tag.INFINITE_DATE,
    Bit: Tag.BIT,
    EnumLabel: Tag.ENUM,
    SetLabels: Tag.SET,
    Json: Tag.JSON,
    Other: Tag.OTHER,
}
"""The tag of each struct type."""


def date_from_civil(year: int, month: int, day: int) -> Date:
    """Return the Date of a proleptic Gregorian year (0 and below: BC, astronomical), month 1-12, day."""
    y = year - (month <= 2)
    era = y // 400
    yoe = y - era * 400
    doy = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    doe = yoe * 365 + yoe // 4 - yoe // 100 + doy
    return Date(era * 146097 + doe - 719468)


def civil_from_date(date: Date) -> tuple[int, int, int]:
    """Return (year, month, day) of a Date, the inverse of `date_from_civil`."""
    z = date.days + 719468
    era = z // 146097
    doe = z - era * 146097
    yoe = (doe - doe // 1460 + doe // 36524 - doe // 146096) // 365
    doy = doe - (365 * yoe + yoe // 4 - yoe // 100)
    mp = (5 * doy + 2) // 153
    day = doy - (153 * mp + 2) // 5 + 1
    month = mp + (3 if mp < 10 else -9)
    return (yoe + era * 400 + (month <= 2), month, day)


_DAY_MICROS = 86_400_000_000


def date_text(date: Date) -> str:
    """Return `YYYY-MM-DD`, with ` BC` after years before 1."""
    year, month, day = civil_from_date(date)
    return f"{year:04d}-{month:02d}-{day:02d}" if year > 0 else f"{1 - year:04d}-{month:02d}-{day:02d} BC"


def _clock_text(micros: int) -> str:
    seconds, fraction = divmod(micros, 1_000_000)
    text = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return f"{text}.{fraction:06d}" if fraction else text


def time_text(time: Time) -> str:
    """Return `[-]HH:MM:SS[.ffffff]`, hours without an upper bound."""
    return "-" + _clock_text(-time.micros) if time.micros < 0 else _clock_text(time.micros)


def datetime_text(value: Datetime | Instant) -> str:
    """Return `YYYY-MM-DD HH:MM:SS[.ffffff]`; an Instant ends in `+00`; ` BC` after years before 1."""
    days, micros = divmod(value.micros, _DAY_MICROS)
    date = date_text(Date(days))
    zone = "+00" if isinstance(value, Instant) else ""
    if date.endswith(" BC"):
        return f"{date[:-3]} {_clock_text(micros)}{zone} BC"
    return f"{date} {_clock_text(micros)}{zone}"


def float_text(value: float) -> str:
    """Return the shortest text that reads back to the same float; `NaN`, `Infinity`, `-Infinity`."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return repr(value)


def value_text(value: Value) -> str:
    """Return a value as `thl list` and messages print it. For people: not meant to be read back."""
    match value:
        case None:
            return "NULL"
        case Unchanged():
            return "UNCHANGED"
        case bool():
            return "true" if value else "false"
        case int() | Decimal():
            return str(value)
        case float():
            return float_text(value)
        case F32(value=number):
            return float_text(number)
        case str():
            return value
        case bytes():
            return "0x" + value.hex()
        case CharsetBytes(charset=charset, raw=raw):
            return f"_{charset} 0x{raw.hex()}"
        case Date():
            return date_text(value)
        case Time():
            return time_text(value)
        case Datetime() | Instant():
            return datetime_text(value)
        case ZeroDate(text=text) | Json(text=text):
            return text
        case InfiniteDate(negative=negative):
            return "-infinity" if negative else "infinity"
        case Bit(width=width, value=bits):
            return f"b'{bits:0{width}b}'" if width else "b''"
        case EnumLabel(label=label):
            return label
        case SetLabels(labels=labels):
            return ",".join(labels)
        case UUID():
            return str(value)
        case Other(type_name=type_name, text=text):
            return f"{type_name} {text}"


class LogicalType(enum.IntEnum):
    """What kind of values a column holds, whatever its source calls the type. Part of the format."""

    ANY = 0
    """The tag follows each stored value (SQLite)."""
    BOOL = 1
    INTEGER = 2
    F32 = 3
    F64 = 4
    DECIMAL = 5
    TEXT = 6
    BYTES = 7
    DATE = 8
    TIME = 9
    DATETIME = 10
    INSTANT = 11
    BIT = 12
    ENUM = 13
    SET = 14
    JSON = 15
    UUID = 16
    OTHER = 17


VALUE_TYPES: Final[dict[LogicalType, frozenset[type]]] = {
    LogicalType.BOOL: frozenset({bool}),
    LogicalType.INTEGER: frozenset({int}),
    LogicalType.F32: frozenset({F32}),
    LogicalType.F64: frozenset({float}),
    LogicalType.DECIMAL: frozenset({Decimal}),
    LogicalType.TEXT: frozenset({str, CharsetBytes}),
    LogicalType.BYTES: frozenset({bytes}),
    LogicalType.DATE: frozenset({Date, ZeroDate, InfiniteDate}),
    LogicalType.TIME: frozenset({Time}),
    LogicalType.DATETIME: frozenset({Datetime, ZeroDate, InfiniteDate}),
    LogicalType.INSTANT: frozenset({Instant, ZeroDate, InfiniteDate}),
    LogicalType.BIT: frozenset({Bit}),
    LogicalType.ENUM: frozenset({EnumLabel}),
    LogicalType.SET: frozenset({SetLabels}),
    LogicalType.JSON: frozenset({Json}),
    LogicalType.UUID: frozenset({UUID}),
    LogicalType.OTHER: frozenset({Other}),
}
"""The types of a column's values beside None and Unchanged; ANY, which is not here, takes every Value."""
