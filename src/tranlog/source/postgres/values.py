"""What PostgreSQL's types are to us, and the values that their texts are.

Owns the mapping from a type to a column, and for each column what reads a text and what writes it as a payload has it.
Pure. The hard idea: the text form loses nothing, as the session sets it, so a type that we do not know is carried as
its name and its text, and no type needs to be refused.

Source: PostgreSQL's manual, "Data Types".
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import Final

import msgspec

from tranlog.change import Column, TableMap
from tranlog.row_bytes import (
    encode_bytes,
    encode_datetime,
    encode_decimal,
    encode_int,
    encode_utf8,
    encode_value,
)
from tranlog.text_forms import text_reader
from tranlog.text_rows import AS_BOOL, AS_DATETIME, AS_DECIMAL, AS_INSTANT, AS_INTEGER, AS_REAL, AS_TEXT
from tranlog.types import F32, CharsetBytes, Instant, LogicalType, Value

_DOUBLE: Final = struct.Struct(">d")
_TIE_BITS: Final = (1 << 29) - 1
_TIE: Final = 1 << 28


class PostgresType(msgspec.Struct, frozen=True, kw_only=True):
    """A type of the catalogue. `kind` is pg_type.typtype, `base` the OID below a domain, `declared` the full name."""

    schema: str
    name: str
    kind: str = "b"
    base: int = 0
    typmod: int = -1
    declared: str = ""


_LOGICAL: Final = {
    "bool": LogicalType.BOOL,
    "int2": LogicalType.INTEGER,
    "int4": LogicalType.INTEGER,
    "int8": LogicalType.INTEGER,
    "float4": LogicalType.F32,
    "float8": LogicalType.F64,
    "numeric": LogicalType.DECIMAL,
    "text": LogicalType.TEXT,
    "varchar": LogicalType.TEXT,
    "bpchar": LogicalType.TEXT,
    "name": LogicalType.TEXT,
    "char": LogicalType.TEXT,
    "bytea": LogicalType.BYTES,
    "date": LogicalType.DATE,
    "time": LogicalType.TIME,
    "timestamp": LogicalType.DATETIME,
    "timestamptz": LogicalType.INSTANT,
    "bit": LogicalType.BIT,
    "varbit": LogicalType.BIT,
    "json": LogicalType.JSON,
    "jsonb": LogicalType.JSON,
    "uuid": LogicalType.UUID,
}
"""By the names of the built-in types. Whatever is not here is ENUM by its kind, or OTHER."""
_VARLENA_HEADER: Final = 4


def column_of(name: str, kind: PostgresType, *, nullable: bool) -> Column:
    """Return a column of a type, which is no domain."""
    logical = LogicalType.OTHER
    declared = kind.declared or f"{kind.schema}.{kind.name}"
    length = 0
    if kind.kind == "e":
        logical = LogicalType.ENUM
    elif kind.name == "citext":
        logical = LogicalType.TEXT
    elif kind.schema == "pg_catalog":
        logical = _LOGICAL.get(kind.name, logical)
        if kind.name in ("varchar", "bpchar") and kind.typmod > _VARLENA_HEADER:
            length = kind.typmod - _VARLENA_HEADER
        elif kind.name == "bit" and kind.typmod > 0:
            length = kind.typmod
        elif kind.name == "timestamptz":
            # The other spelling puts its digits in the midst of the words.
            declared = "timestamptz" if kind.typmod < 0 else f"timestamptz({kind.typmod})"
    return Column(name=name, source_type=declared, logical=logical, nullable=nullable, length=length)


def value_reader(column: Column) -> Callable[[bytes], Value]:
    """Return what makes a value of a column's text.

    It raises ValueError or UnicodeDecodeError for a text that the type does not have.
    """
    match column.logical:
        case LogicalType.TEXT:
            padded = pads(column)
            return lambda raw: _text(raw.rstrip(b" ") if padded else raw)
        case LogicalType.BYTES:
            return _bytes
        case LogicalType.BOOL:
            return lambda raw: _BOOLEANS[raw]
        case LogicalType.INTEGER:
            return int
        case LogicalType.F32:
            return lambda raw: _single(raw.decode())
        case LogicalType.F64:
            return float
        case LogicalType.DECIMAL:
            return lambda raw: _decimal(raw.decode())
    read = text_reader(column)
    return lambda raw: read(raw.decode())


def value_encoder(column: Column) -> Callable[[bytes], bytes]:
    """Return what makes `row_bytes.encode_value` of what `value_reader` reads, mostly without making the value."""
    read = value_reader(column)
    match column.logical:
        case LogicalType.TEXT if not pads(column):
            return _encode_text
        case LogicalType.INTEGER:
            return _encode_integer
        case LogicalType.DECIMAL:
            return _encode_decimal
        case LogicalType.BYTES:
            return lambda raw: encode_bytes(_bytes(raw))
        case LogicalType.BOOL:
            coded = {raw: encode_value(value) for raw, value in _BOOLEANS.items()}
            return lambda raw: coded[raw]
        case LogicalType.DATETIME | LogicalType.INSTANT:
            return _moment_encoder(read, utc=column.logical is LogicalType.INSTANT)
    return lambda raw: encode_value(read(raw))


_FORMS: Final = {
    LogicalType.INTEGER: AS_INTEGER,
    LogicalType.TEXT: AS_TEXT,
    LogicalType.F64: AS_REAL,
    LogicalType.DECIMAL: AS_DECIMAL,
    LogicalType.DATETIME: AS_DATETIME,
    LogicalType.INSTANT: AS_INSTANT,
    LogicalType.BOOL: AS_BOOL,
}


def text_forms(table: TableMap) -> bytes:
    """Return the form of each column's texts; see `text_rows.put_text`."""
    return bytes([0 if pads(one) else _FORMS.get(one.logical, 0) for one in table.columns])


_BOOLEANS: Final = {b"t": True, b"f": False}


def pads(column: Column) -> bool:
    """Whether the server fills a column's texts up with spaces, which mean nothing: of char(n)."""
    return column.source_type.startswith("character(")


def _text(raw: bytes) -> Value:
    try:
        return raw.decode()
    except UnicodeDecodeError:  # of a database whose encoding is SQL_ASCII
        return CharsetBytes("SQL_ASCII", raw)


def _encode_integer(raw: bytes) -> bytes:
    return encode_int(int(raw))


def _encode_text(raw: bytes) -> bytes:
    try:
        return encode_utf8(raw)
    except UnicodeDecodeError:
        return encode_value(_text(raw))


def _bytes(raw: bytes) -> bytes:
    if raw[:2] != b"\\x":
        raise ValueError("a bytea that is not hexadecimal")
    return bytes.fromhex(raw[2:].decode())


def _single(text: str) -> F32:
    """Return the float of four bytes that a text is, rounded once.

    A text is first read as eight bytes. Where those lie in the middle between two floats of four, the text itself
    says which one is nearer.
    """
    wide = float(text)
    bits = int.from_bytes(_DOUBLE.pack(wide))
    if bits & _TIE_BITS == _TIE and (exact := Decimal(text)) != Decimal(wide):
        away = 1 if exact.copy_abs() > Decimal(wide).copy_abs() else -1  # not abs, which rounds
        wide = _DOUBLE.unpack((bits + away).to_bytes(8))[0]
    return F32(struct.unpack(">f", struct.pack(">f", wide))[0])


def _decimal(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation as exc:
        raise ValueError(f"not a number: {text[:40]!r}") from exc


_SMALL: Final = (b"0.000000", b"-0.000000")
"""So begin the numbers whose text differs from the one that `str` of a Decimal has."""


def _encode_decimal(raw: bytes) -> bytes:
    text = raw.decode()
    value = _decimal(text)
    return encode_decimal(str(value) if raw.startswith(_SMALL) or not value.is_finite() else text)


_EPOCH: Final = datetime(1970, 1, 1)
_EPOCH_UTC: Final = datetime.fromisoformat("1970-01-01T00:00:00+00:00")
_MOMENT_BYTES: Final = len("2024-01-01 00:00:00")


def _moment_encoder(read: Callable[[bytes], Value], *, utc: bool) -> Callable[[bytes], bytes]:
    """Return a quick way for the years that Python's calendar has, which leaves all others to `read`."""
    epoch = _EPOCH_UTC if utc else _EPOCH

    def encode(raw: bytes) -> bytes:
        if len(raw) < _MOMENT_BYTES:
            return encode_value(read(raw))
        try:
            since = datetime.fromisoformat(raw.decode()) - epoch
        except (ValueError, TypeError):
            return encode_value(read(raw))
        micros = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
        return encode_value(Instant(micros)) if utc else encode_datetime(micros)

    return encode
