"""The bytes of a row: its values one after the other, each with a tag before it.

Owns encoding and decoding them, for whoever packs rows and whoever reads a few of them; the payload around them is
`payload`'s. Compiled, see `tranlog.compiled`.

Source: docs/format.md, the byte tables.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from decimal import Context, Decimal, InvalidOperation
from typing import Final, TypeAlias, cast
from uuid import UUID

from librt.strings import BytesWriter, read_f64_be, write_f64_be
from mypy_extensions import i64

from tranlog.errors import PayloadError
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
    Other,
    SetLabels,
    Tag,
    Time,
    Unchanged,
    Value,
    ZeroDate,
)
from tranlog.varint import (
    BYTES,
    MalformedError,
    read_sized,
    read_sized_text,
    read_varint,
    read_zigzag,
    sized,
    sized_text,
    varint,
    zigzag,
)

FIRST_UNKNOWN_TAG: Final = 0x40
"""From this tag on a value is a varint length and that many bytes, so that readers can pass what they do not know."""

_F32: Final = struct.Struct(">f")
_TAGGED_F64: Final = struct.Struct(">Bd")
_U64_MAX: Final = (1 << 64) - 1
_PLAIN_INT: Final = 1 << 61
"""Below it, and down to its negative, an integer and its zigzag form fit a machine word."""
_EXACT: Final = Context(traps=[InvalidOperation])  # a caller's own context may not trap, and then reads junk as NaN


# --- encoding --------------------------------------------------------------------------------------------


def _encode_bit(value: Bit) -> bytes:
    width, bits = value.width, value.value
    if not 0 <= width <= _U64_MAX or bits < 0 or bits.bit_length() > width:
        raise ValueError(f"the bits {bits:#x} do not fit a width of {width}")
    return b"\x12" + varint(width) + bits.to_bytes((width + 7) // 8, "big")


_ENCODERS: Final[dict[type, Callable[..., bytes]]] = {
    bool: lambda value: b"\x03" if value else b"\x02",
    float: lambda value: _TAGGED_F64.pack(7, value),
    Unchanged: lambda value: b"\x01",
    F32: lambda value: b"\x06" + _F32.pack(value.value),
    Decimal: lambda value: b"\x08" + sized_text(str(value)),
    CharsetBytes: lambda value: b"\x0b" + sized_text(value.charset) + sized(value.raw),
    Date: lambda value: b"\x0c" + zigzag(value.days),
    Time: lambda value: b"\x0d" + zigzag(value.micros),
    Datetime: lambda value: encode_datetime(value.micros),
    Instant: lambda value: b"\x0f" + zigzag(value.micros),
    ZeroDate: lambda value: b"\x10" + sized_text(value.text),
    InfiniteDate: lambda value: b"\x11\x01" if value.negative else b"\x11\x00",
    Bit: _encode_bit,
    EnumLabel: lambda value: b"\x13" + sized_text(value.label),
    SetLabels: lambda value: b"\x14" + varint(len(value.labels)) + b"".join(map(sized_text, value.labels)),
    Json: lambda value: b"\x15" + sized_text(value.text),
    UUID: lambda value: b"\x16" + value.bytes,
    Other: lambda value: b"\x17" + sized_text(value.type_name) + sized_text(value.text),
}
"""The values that `encode_row` does not write in line."""


def encode_row(row: Iterable[Value]) -> bytes:
    """Return the bytes of a row's values, one after the other, without a count.

    Raises ValueError for a value that no tag can carry: an integer beyond 64 bits, a float beyond its four bytes,
    bits beyond their width, text that has no UTF-8, a foreign type.
    """
    out = BytesWriter()
    write_row(out, tuple(row))
    return out.getvalue()


def write_row(out: BytesWriter, row: tuple[object, ...]) -> None:
    """Write what `encode_row` returns. The frequent tags stand here in line: this loop is the writer's cost.

    Objects, since compiled code holds each value against each member of a union; bytes by way of `BYTES`, since it
    takes a `cast` from a word to a byte through an object of Python's.
    """
    byte = BYTES
    for value in row:
        kind = type(value)
        if kind is int:
            number = cast(int, value)
            if -_PLAIN_INT <= number < _PLAIN_INT:
                rest: i64 = number
                out.append(4)
                rest = rest << 1 ^ rest >> 63
                while rest >= 0x80:
                    out.append(byte[rest & 0x7F | 0x80])
                    rest >>= 7
                out.append(byte[rest])
            else:
                out.write(encode_int(number))
        elif kind is str or kind is bytes:
            if kind is str:
                raw = cast(str, value).encode("utf-8")
                out.append(9)
            else:
                raw = cast(bytes, value)
                out.append(10)
            size: i64 = len(raw)
            while size >= 0x80:
                out.append(byte[size & 0x7F | 0x80])
                size >>= 7
            out.append(byte[size])
            out.write(raw)
        elif value is None:
            out.append(0)
        elif kind is float:
            out.append(7)
            write_f64_be(out, cast(float, value))
        else:
            out.write(encode_other(value))


def encode_int(number: int) -> bytes:
    """Return an integer's tag and bytes. Raises ValueError for one beyond 64 bits."""
    folded = number << 1 if number >= 0 else ~(number << 1)
    if folded <= _U64_MAX:
        return b"\x04" + varint(folded)
    if 0 <= number <= _U64_MAX:
        return b"\x05" + varint(number)
    raise ValueError(f"integer {number} does not fit 64 bits")


def encode_float(number: float) -> bytes:
    """Return the tag and the bytes of a float of eight bytes."""
    return _TAGGED_F64.pack(7, number)


def encode_decimal(text: str) -> bytes:
    """Return the tag and the bytes of a decimal, given as `str` of a Decimal writes it."""
    return b"\x08" + sized_text(text)


def encode_datetime(micros: int) -> bytes:
    """Return the tag and the bytes of a Datetime, given its microseconds."""
    return b"\x0e" + zigzag(micros)


def encode_utf8(raw: bytes) -> bytes:
    """Return the tag and the bytes of a text in UTF-8. Raises UnicodeDecodeError for what is none."""
    if not raw.isascii():
        raw.decode()
    return b"\x09" + sized(raw)


def encode_bytes(raw: bytes) -> bytes:
    """Return the tag and the bytes of binary content."""
    return b"\x0a" + sized(raw)


def encode_value(value: Value) -> bytes:
    """Return the tag and the bytes of any value. Raises as `encode_row`."""
    return encode_row((value,))


def encode_other(value: object) -> bytes:
    """Return the tag and the bytes of a value that is no integer, text, bytes or NULL. Raises as `encode_row`."""
    kind = type(value)
    try:
        encode = _ENCODERS[kind]
    except KeyError:
        raise ValueError(f"no value tag carries the type {kind.__name__}") from None
    try:
        return encode(value)
    except OverflowError as exc:
        raise ValueError(str(exc)) from exc


# --- decoding --------------------------------------------------------------------------------------------


_Reader: TypeAlias = Callable[[bytes, int], tuple[object, int]]


def _reads_number(kind: Callable[[int], Value]) -> _Reader:
    def read(raw: bytes, at: int) -> tuple[Value, int]:
        number, at = read_zigzag(raw, at)
        return kind(number), at

    return read


def _reads_text(kind: Callable[[str], Value]) -> _Reader:
    def read(raw: bytes, at: int) -> tuple[Value, int]:
        text, at = read_sized_text(raw, at)
        return kind(text), at

    return read


def _decimal(text: str) -> Decimal:
    try:
        return Decimal(text, _EXACT)
    except InvalidOperation as exc:
        raise MalformedError(f"{text[:40]!r} is no decimal number") from exc


def _read_f32(raw: bytes, at: int) -> tuple[F32, int]:
    (number,) = _F32.unpack_from(raw, at)
    return F32(number), at + 4


def _read_charset_bytes(raw: bytes, at: int) -> tuple[CharsetBytes, int]:
    charset, at = read_sized_text(raw, at)
    chunk, at = read_sized(raw, at)
    return CharsetBytes(charset, chunk), at


def _read_infinite_date(raw: bytes, at: int) -> tuple[InfiniteDate, int]:
    return InfiniteDate(raw[at] != 0), at + 1


def _read_bit(raw: bytes, at: int) -> tuple[Bit, int]:
    width, at = read_varint(raw, at)
    end = at + (width + 7) // 8
    if end > len(raw):
        raise MalformedError(f"a bit string of {width} bits passes the end")
    bits = int.from_bytes(raw[at:end], "big")
    if bits.bit_length() > width:
        raise MalformedError(f"a bit string of {width} bits has {bits.bit_length()}")
    return Bit(width, bits), end


def _read_set(raw: bytes, at: int) -> tuple[SetLabels, int]:
    count, at = read_varint(raw, at)
    labels = []
    for _ in range(count):
        label, at = read_sized_text(raw, at)
        labels.append(label)
    return SetLabels(tuple(labels)), at


def _read_uuid(raw: bytes, at: int) -> tuple[UUID, int]:
    end = at + 16
    if end > len(raw):
        raise MalformedError("a UUID passes the end")
    return UUID(bytes=raw[at:end]), end


def _read_other(raw: bytes, at: int) -> tuple[Other, int]:
    name, at = read_sized_text(raw, at)
    text, at = read_sized_text(raw, at)
    return Other(name, text), at


_READERS: Final[dict[int, _Reader]] = {
    Tag.U64: read_varint,
    Tag.F32: _read_f32,
    Tag.DECIMAL: _reads_text(_decimal),
    Tag.CHARSET_BYTES: _read_charset_bytes,
    Tag.DATE: _reads_number(Date),
    Tag.TIME: _reads_number(Time),
    Tag.DATETIME: _reads_number(Datetime),
    Tag.INSTANT: _reads_number(Instant),
    Tag.ZERO_DATE: _reads_text(ZeroDate),
    Tag.INFINITE_DATE: _read_infinite_date,
    Tag.BIT: _read_bit,
    Tag.ENUM: _reads_text(EnumLabel),
    Tag.SET: _read_set,
    Tag.JSON: _reads_text(Json),
    Tag.UUID: _read_uuid,
    Tag.OTHER: _read_other,
}
"""The tags that `read_row` does not read in line."""


def _read_unknown(tag: int, raw: bytes, at: int) -> tuple[Other, int]:
    if tag < FIRST_UNKNOWN_TAG:
        raise MalformedError(f"value tag {tag} at offset {at - 1}; a newer release may have written it")
    chunk, at = read_sized(raw, at)
    return Other(f"tag {tag}", chunk.hex()), at


def read_size(raw: bytes, at: i64) -> tuple[i64, i64]:
    """Read a length and hold it against what is left, so that an offset after it fits a machine word."""
    size: i64 = raw[at]
    at += 1
    if size >= 0x80:
        high: i64 = raw[at]
        if high < 0x80:
            size += (high - 1) << 7
            at += 1
        else:
            number, behind = read_varint(raw, at - 1)
            if number > len(raw) - behind:
                raise MalformedError(f"{number} bytes announced at offset {behind}, {len(raw) - behind} there")
            return number, behind
    if size > len(raw) - at:
        raise MalformedError(f"{size} bytes announced at offset {at}, {len(raw) - at} there")
    return size, at


def read_row(raw: bytes, at: i64, row: list[object]) -> i64:
    """Read a row into a list of its length, and return the place after it.

    Numbers of up to four groups of bits are read in line: this loop is the reader's cost. The list is the caller's to
    use again, since one that grows costs more than the values in it.
    """
    columns: i64 = len(row)
    index: i64 = 0
    while index < columns:
        tag: i64 = raw[at]
        at += 1
        if tag == 4:  # I64
            number: i64 = raw[at]
            at += 1
            shift: i64 = 7
            while number >> shift and shift < 28:  # its highest bit says that it goes on
                group: i64 = raw[at]
                at += 1
                number += (group - 1) << shift
                shift += 7
            if number >> shift:
                row[index], at = read_zigzag(raw, at - 4)
            else:
                row[index] = number >> 1 ^ -(number & 1)
        elif tag == 9 or tag == 10:  # TEXT, BYTES
            size: i64 = raw[at]
            at += 1
            if size >= 0x80 or at + size > len(raw):
                size, at = read_size(raw, at - 1)
            end = at + size
            row[index] = raw[at:end].decode("utf-8") if tag == 9 else raw[at:end]
            at = end
        elif tag == 0:
            row[index] = None
        elif tag == 7:  # F64
            row[index] = read_f64_be(raw, at)
            at += 8
        elif tag == 2 or tag == 3:
            row[index] = tag == 3
        elif tag == 1:
            row[index] = UNCHANGED
        else:
            reader = _READERS.get(tag)
            row[index], at = _read_unknown(tag, raw, at) if reader is None else reader(raw, at)
        index += 1
    return at


def decode_row(raw: bytes, columns: int) -> tuple[Value, ...]:
    """Return the values of a row that `encode_row` wrote. Raises PayloadError for what it did not."""
    row: list[object] = [None] * columns
    try:
        end = read_row(raw, 0, row)
    except (ValueError, IndexError, struct.error, ArithmeticError) as exc:
        raise PayloadError(why=f"a row of {columns} columns: {exc}") from exc
    if end != len(raw):
        raise PayloadError(why=f"a row of {columns} columns that ends at {end} of {len(raw)} bytes")
    return cast(tuple[Value, ...], tuple(row))
