"""Our values as cells of the ancestor's row changes, and back, by a column of ours.

Owns this one direction and its inverse; cells of columns that the ancestor declared are `values`'s. The hard idea: a
cell has thirteen kinds and a value has more, so the column says which of several values a kind stands for. What does
not come back as it was is not guessed at: `cell_of` says so, by the value's tag.

Source: docs/format.md.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final
from uuid import UUID

from tranlog.change import Column
from tranlog.tungsten.records import values
from tranlog.tungsten.records.event import ColumnSpec
from tranlog.tungsten.records.values import (
    BinaryText,
    Cell,
    Flag,
    Long,
    Moment,
    Unscaled,
    decimal_value,
    moment_value,
    unscaled_of,
)
from tranlog.types import (
    F32,
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
    Unchanged,
    Value,
    ZeroDate,
    canonical,
    value_text,
)

_DAY_MS: Final = 86_400_000
_INT_BYTES: Final = {"tinyint": 1, "smallint": 2, "mediumint": 3, "int": 4, "integer": 4, "year": 2, "bigint": 8}
_WORD: Final = re.compile(r"[a-z]+")
_BIT_MAX: Final = 31
_I64_MIN: Final = -(1 << 63)

# java.sql.Types
_SQL_TYPES: Final = {
    LogicalType.BOOL: 4,
    LogicalType.INTEGER: 4,
    LogicalType.F32: 6,
    LogicalType.F64: 8,
    LogicalType.DECIMAL: 3,
    LogicalType.BYTES: 2004,
    LogicalType.DATE: 91,
    LogicalType.TIME: 92,
    LogicalType.DATETIME: 91,
    LogicalType.INSTANT: 93,
    LogicalType.BIT: -7,
}
_VARCHAR: Final = 12
_ZERO_TEXT: Final = {
    LogicalType.DATE: "0000-00-00",
    LogicalType.DATETIME: "0000-00-00 00:00:00",
    LogicalType.INSTANT: "0000-00-00 00:00:00",
    LogicalType.TIME: "00:00:00",
}
_ZERO_KIND: Final = {
    LogicalType.DATE: (values.DATE, None),
    LogicalType.DATETIME: (values.DATE, "GMT"),
    LogicalType.INSTANT: (values.TIMESTAMP, None),
    LogicalType.TIME: (values.TIME, None),
}


def spec_of(column: Column, index: int) -> ColumnSpec:
    """Return a column in the ancestor's form; `index` counts from 1."""
    size = _int_bytes(column) if column.logical in (LogicalType.INTEGER, LogicalType.BOOL) else column.length
    return ColumnSpec(
        index=index,
        name=column.name,
        sql_type=_SQL_TYPES.get(column.logical, _VARCHAR),
        signed=not column.unsigned,
        length=min(size, (1 << 31) - 1),
        not_null=not column.nullable,
        description=column.source_type,
    )


def _int_bytes(column: Column) -> int:
    if column.logical is LogicalType.BOOL:
        return 1
    word = _WORD.match(column.source_type.lower())
    return 8 if word is None else _INT_BYTES.get(word[0], 8)


def cell_of(value: Value, column: Column) -> tuple[Cell, Tag | None]:
    """Return the cell for a value, and its tag where `value_of` would not give the same value back."""
    kind = type(value)
    if value is None:
        return None, None
    logical = column.logical
    if kind is str and (logical is LogicalType.TEXT or logical is LogicalType.ANY):
        return value, None  # type: ignore[return-value]
    cell = _cell(value, column)
    tag, _ = canonical(value)
    return cell, None if canonical(value_of(cell, column)) == canonical(value) else Tag(tag)


def _cell(value: Value, column: Column) -> Cell:
    match value:
        case None | Unchanged():
            return None
        case bool():
            return int(value) if column.logical is LogicalType.BOOL else Flag(int(value))
        case int():
            return _int_cell(value, column)
        case float() | F32() | str() | bytes():
            return value
        case Decimal():
            return unscaled_of(value) if value.is_finite() else str(value)
        case CharsetBytes(raw=raw):
            return BinaryText(raw)
        case Date(days=days):
            return Moment(values.DATE, days * _DAY_MS)
        case Datetime(micros=micros):
            return _moment(values.DATE, micros, zone="GMT")
        case Instant(micros=micros):
            return _moment(values.TIMESTAMP, micros)
        case Time(micros=micros):
            return Moment(values.TIME, micros // 1000, micros % 1000 * 1000)
        case ZeroDate():
            sort, zone = _ZERO_KIND.get(column.logical, (values.DATE, None))
            return Moment(sort, None, 0, zone)
        case Bit(width=width, value=bits):
            if width <= _BIT_MAX:
                return Flag(bits)
            return bits.to_bytes((width + 7) // 8, "big")
        case SetLabels(labels=labels):
            return ",".join(labels)
        case UUID():
            return str(value)
        case EnumLabel(label=text) | Json(text=text) | Other(text=text):
            return text
        case InfiniteDate():
            return value_text(value)


def _moment(kind: int, micros: int, zone: str | None = None) -> Moment:
    millis, rest = divmod(micros, 1000)
    return Moment(kind, millis, rest * 1000 if rest else None, zone)


def _int_cell(number: int, column: Column) -> Cell:
    if column.logical is LogicalType.INTEGER:
        size = _int_bytes(column)
        bound = 1 << 8 * size
        if column.unsigned and bound >> 1 <= number < bound:
            return number - bound if size <= 4 else Long(number - bound)
        if size <= 4 and -(bound >> 1) <= number < bound >> 1:
            return number
    if number >> 63 > 0:
        return Unscaled(number.to_bytes(9, "big"), 0)
    return Long(number)


def value_of(cell: Cell, column: Column) -> Value:
    """Return the value that a cell stands for in a column of ours."""
    logical = column.logical
    match cell:
        case None | float() | F32():
            return cell
        case int():
            if logical is LogicalType.BOOL:
                return cell != 0
            return cell if cell >= 0 or not column.unsigned else cell + (1 << 8 * _int_bytes(column))
        case Long(value=number):
            return number if number >= 0 or not column.unsigned else number + (1 << 64)
        case bytes():
            if logical is LogicalType.BIT:
                return Bit(column.length, int.from_bytes(cell, "big"))
            return cell
        case str():
            return _text_value(cell, column)
        case Flag(value=bits):
            return Bit(column.length, bits) if logical is LogicalType.BIT else bits != 0
        case Unscaled(raw=raw, scale=scale):
            if logical in (LogicalType.INTEGER, LogicalType.ANY) and scale == 0 and len(raw) == 9:
                return int.from_bytes(raw, "big")
            return decimal_value(cell)
        case BinaryText(raw=raw):
            return CharsetBytes("binary" if column.charset is None else column.charset, raw)
        case Moment():
            return moment_value(cell, ZeroDate(_ZERO_TEXT.get(logical, "0000-00-00")))


def _text_value(text: str, column: Column) -> Value:
    match column.logical:
        case LogicalType.ENUM:
            return EnumLabel(text)
        case LogicalType.SET:
            return SetLabels(tuple(text.split(",")) if text else ())
        case LogicalType.JSON:
            return Json(text)
        case LogicalType.OTHER:
            return Other(column.source_type, text)
        case LogicalType.UUID:
            try:
                return UUID(text)
            except ValueError:
                return text
    return text


def recell(value: Value, spec: ColumnSpec) -> Cell:
    """Return the cell that `values.to_value` most likely made a value from, by the ancestor's own column.

    It may differ in what a value does not say: which of two integer sizes, whether zero nanoseconds were written.
    """
    match value:
        case int() if not isinstance(value, bool):
            size = spec.length if 0 < spec.length <= 4 else 8 if spec.length == 8 else 4
            if not spec.signed and size <= 4 and value >= 1 << 8 * size - 1:
                value -= 1 << 8 * size
            elif not spec.signed and value > (1 << 63) - 1:
                value -= 1 << 64
            return value if size <= 4 and -(1 << 31) <= value < 1 << 31 else Long(value)
        case Other(text=text) if spec.sql_type == values.SQL_OTHER and re.fullmatch(r"-?[0-9]{1,10}", text):
            return int(text)
        case Bit(value=bits):
            return Flag(bits if bits < 1 << 31 else bits - (1 << 32))
        case ZeroDate():
            kind = {93: values.TIMESTAMP, 92: values.TIME}.get(spec.sql_type, values.DATE)
            return Moment(kind, None, 0)
        case Decimal() if not value.is_finite():
            return None
        case None | str() | bytes() | float() | F32() | Decimal() | CharsetBytes() | Date() | Datetime() | Instant():
            return _cell(value, _ANY)
        case Time():
            return _cell(value, _ANY)
    return None


_ANY: Final = Column(name="", source_type="", logical=LogicalType.ANY)
