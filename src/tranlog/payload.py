"""The bytes of a fragment's content: the ancestor's protobuf envelope with our packed row changes inside.

Owns encoding and decoding. Metadata, options and statements use the field numbers of the ancestor's
ReplDBMSEvent; row changes travel in one field of our own (100) in a packed form. No protobuf library: one object
per value costs ten times as much. docs/format.md has the byte tables; a protobuf library is the tests' oracle.

Source: design/data-model.md, "The payload, in bytes"; conformance/tungsten.md B2 for the field numbers.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Sequence
from decimal import Context, Decimal, InvalidOperation
from functools import lru_cache
from typing import Final, TypeAlias
from uuid import UUID

import msgspec

from tranlog.change import NOOP, Change, Column, ForeignKey, Op, Options, RowChange, Statement, TableMap
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
    LogicalType,
    Other,
    SetLabels,
    Tag,
    Time,
    Unchanged,
    Value,
    ZeroDate,
)

PACKED_VERSION: Final = 1
PACKED_FIELD: Final = 100
_INSERT: Final = Op.INSERT  # names of this module: looking a member up in its class costs more than the comparison
_DELETE: Final = Op.DELETE
_UPDATE: Final = Op.UPDATE
KEPT_FIELD: Final = 101
"""Of a transaction that came from another codec: what it said there and cannot be said here, for the way back."""
OP_STATEMENT: Final = 4
"""In a packed list of changes: here stands the statement with the given index of field 1."""
FIRST_UNKNOWN_TAG: Final = 0x40
"""From this tag on a value is a varint length and that many bytes, so that readers can pass what they do not know."""
DDL_OPTION: Final = "schema_change"
"""Per-statement option that marks DDL, the ancestor's name for it."""

_TAG_PACKED: Final = b"\xa2\x06"  # field 100, length-delimited
_F32: Final = struct.Struct(">f")
_F64: Final = struct.Struct(">d")
_TAGGED_F64: Final = struct.Struct(">Bd")
_TYPE_STATEMENT: Final = 2  # OneChange.type STATEMENT_DATA
_COLUMN_UNSIGNED, _COLUMN_NULLABLE, _COLUMN_CHARSET = 1, 2, 4
_U64_MAX: Final = (1 << 64) - 1
_EXACT: Final = Context(traps=[InvalidOperation])  # a caller's own context may not trap, and then reads junk as NaN


class Payload(msgspec.Struct, frozen=True, kw_only=True):
    """A fragment's content: what `decode` returns."""

    metadata: Options = ()
    options: Options = ()
    changes: tuple[Change, ...] = ()

    def is_noop(self) -> bool:
        """Whether this is a no-op: a transaction that only has a seqno."""
        return not self.changes and any(name == NOOP for name, _ in self.metadata)


# --- encoding --------------------------------------------------------------------------------------------


_LOW: Final = [bytes((low,)) for low in range(0x80, 0x100)]
_ENDS: Final = tuple([bytes((n,)) for n in range(0x80)] + [low + bytes((n,)) for n in range(1, 0x80) for low in _LOW])
"""The varints of the numbers below 2^14, by number."""
_STARTS: Final = tuple([low + high for high in _LOW for low in _LOW])
"""What 14 bits of a varint are that go on. Two tables, since a step per seven bits costs several times as much."""


def _varint(number: int) -> bytes:
    """Return the varint of a number from 0."""
    if 0 <= number < 0x4000:
        return _ENDS[number]
    if number < 0:
        raise ValueError(f"{number} is below 0")
    out = _STARTS[number & 0x3FFF]
    number >>= 14
    while number >= 0x4000:
        out += _STARTS[number & 0x3FFF]
        number >>= 14
    return out + _ENDS[number]


def _sized(raw: bytes) -> bytes:
    return _varint(len(raw)) + raw


def _text(text: str) -> bytes:
    return _sized(text.encode())


def _zigzag(number: int) -> bytes:
    folded = number << 1 if number >= 0 else ~(number << 1)
    if folded < 0x4000:
        return _ENDS[folded]
    if folded < 0x1000_0000:
        return _STARTS[folded & 0x3FFF] + _ENDS[folded >> 14]
    if folded > _U64_MAX:
        raise ValueError(f"{number} does not fit 64 bits")
    return _varint(folded)


def _encode_bit(value: Bit) -> bytes:
    width, bits = value.width, value.value
    if not 0 <= width <= _U64_MAX or bits < 0 or bits.bit_length() > width:
        raise ValueError(f"the bits {bits:#x} do not fit a width of {width}")
    return b"\x12" + _varint(width) + bits.to_bytes((width + 7) // 8, "big")


_ENCODERS: Final[dict[type, Callable[..., bytes]]] = {
    bool: lambda value: b"\x03" if value else b"\x02",
    float: lambda value: _TAGGED_F64.pack(7, value),
    Unchanged: lambda value: b"\x01",
    F32: lambda value: b"\x06" + _F32.pack(value.value),
    Decimal: lambda value: b"\x08" + _text(str(value)),
    CharsetBytes: lambda value: b"\x0b" + _text(value.charset) + _sized(value.raw),
    Date: lambda value: b"\x0c" + _zigzag(value.days),
    Time: lambda value: b"\x0d" + _zigzag(value.micros),
    Datetime: lambda value: encode_datetime(value.micros),
    Instant: lambda value: b"\x0f" + _zigzag(value.micros),
    ZeroDate: lambda value: b"\x10" + _text(value.text),
    InfiniteDate: lambda value: b"\x11\x01" if value.negative else b"\x11\x00",
    Bit: _encode_bit,
    EnumLabel: lambda value: b"\x13" + _text(value.label),
    SetLabels: lambda value: b"\x14" + _varint(len(value.labels)) + b"".join(map(_text, value.labels)),
    Json: lambda value: b"\x15" + _text(value.text),
    UUID: lambda value: b"\x16" + value.bytes,
    Other: lambda value: b"\x17" + _text(value.type_name) + _text(value.text),
}
"""The values that `encode_row` does not write in line."""


def encode_row(row: Iterable[Value]) -> bytes:
    """Return the bytes of a row's values, one behind the other, without a count.

    Raises ValueError for a value that no tag can carry: an integer beyond 64 bits, a float beyond its four bytes,
    bits beyond their width, text that has no UTF-8, a foreign type.
    """
    parts: list[bytes] = []
    push = parts.append
    ends = _ENDS
    pack_float = _TAGGED_F64.pack
    # The frequent tags stand here as bytes, in line: this loop is the writer's cost.
    for value in row:
        kind = type(value)
        if kind is int:
            if 0 <= value < 0x2000:  # type: ignore[operator]
                push(b"\x04" + ends[value << 1])  # type: ignore[operator]
            else:
                push(encode_int(value))  # type: ignore[arg-type]
        elif kind is str or kind is bytes:
            if kind is str:
                tag = b"\x09"
                raw: bytes = value.encode()  # type: ignore[union-attr]
            else:
                tag = b"\x0a"
                raw = value  # type: ignore[assignment]
            size = len(raw)
            push(tag + (ends[size] if size < 0x4000 else _varint(size)) + raw)
        elif value is None:
            push(b"\0")
        elif kind is float:
            push(pack_float(7, value))
        else:
            push(encode_other(value))
    return b"".join(parts)


def encode_int(number: int) -> bytes:
    """Return an integer's tag and bytes. Raises ValueError for one beyond 64 bits."""
    folded = number << 1 if number >= 0 else ~(number << 1)
    if folded < 0x4000:
        return b"\x04" + _ENDS[folded]
    if folded < 0x1000_0000:
        return b"\x04" + _STARTS[folded & 0x3FFF] + _ENDS[folded >> 14]
    if folded <= _U64_MAX:
        return b"\x04" + _varint(folded)
    if 0 <= number <= _U64_MAX:
        return b"\x05" + _varint(number)
    raise ValueError(f"integer {number} does not fit 64 bits")


def encode_float(number: float) -> bytes:
    """Return the tag and the bytes of a float of eight bytes."""
    return _TAGGED_F64.pack(7, number)


def encode_decimal(text: str) -> bytes:
    """Return the tag and the bytes of a decimal, given as `str` of a Decimal writes it."""
    raw = text.encode()
    return b"\x08" + _ENDS[len(raw)] + raw


def encode_datetime(micros: int) -> bytes:
    """Return the tag and the bytes of a Datetime, given its microseconds."""
    return b"\x0e" + _zigzag(micros)


def encode_utf8(raw: bytes) -> bytes:
    """Return the tag and the bytes of a text in UTF-8. Raises UnicodeDecodeError for what is none."""
    if not raw.isascii():
        raw.decode()
    size = len(raw)
    return b"\x09" + (_ENDS[size] if size < 0x4000 else _varint(size)) + raw


def encode_bytes(raw: bytes) -> bytes:
    """Return the tag and the bytes of binary content."""
    size = len(raw)
    return b"\x0a" + (_ENDS[size] if size < 0x4000 else _varint(size)) + raw


def encode_value(value: Value) -> bytes:
    """Return the tag and the bytes of any value. Raises as `encode_row`."""
    return encode_row((value,))


def encode_other(value: Value) -> bytes:
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


@lru_cache(maxsize=4096)
def encode_table_map(table: TableMap) -> bytes:
    """Return a table map's bytes, without their length in front.

    Raises ValueError for what could not be read back: a key's column that is not there, a length below zero, text
    that has no UTF-8.
    """
    columns = len(table.columns)
    out = [_text(table.schema), _text(table.table), _varint(columns)]
    for column in table.columns:
        flags = (
            (_COLUMN_UNSIGNED if column.unsigned else 0)
            | (_COLUMN_NULLABLE if column.nullable else 0)
            | (_COLUMN_CHARSET if column.charset is not None else 0)
        )
        out += [_text(column.name), _text(column.source_type), bytes((column.logical, flags))]
        if column.charset is not None:
            out.append(_text(column.charset))
        if not 0 <= column.length <= _U64_MAX:
            raise ValueError(f"column {column.name} of table {table.name} has the length {column.length}")
        out.append(_varint(column.length))
    for key in (table.primary_key, *table.unique_keys, *[key.columns for key in table.foreign_keys]):
        if not all(0 <= index < columns for index in key):
            raise ValueError(f"a key of table {table.name} names the columns {key} of {columns}, counted from 0")
    out.append(_indexes(table.primary_key))
    out.append(_varint(len(table.unique_keys)))
    out += map(_indexes, table.unique_keys)
    out.append(_varint(len(table.foreign_keys)))
    for foreign in table.foreign_keys:
        out += [
            _indexes(foreign.columns),
            _text(foreign.ref_schema),
            _text(foreign.ref_table),
            _varint(len(foreign.ref_columns)),
        ]
        out += map(_text, foreign.ref_columns)
    return b"".join(out)


@lru_cache(maxsize=256)
def _packed_head(tables: tuple[TableMap, ...]) -> bytes:
    """Return what stands before the number of changes: the version and the tables."""
    maps = b"".join([_sized(encode_table_map(table)) for table in tables])
    return b"%c" % PACKED_VERSION + _varint(len(tables)) + maps


def _indexes(indexes: tuple[int, ...]) -> bytes:
    return _varint(len(indexes)) + b"".join(map(_varint, indexes))


@lru_cache(maxsize=4096)
def fingerprint(table: TableMap) -> str:
    """Return 16 hex digits that two table maps share if and only if they are equal (64-bit BLAKE2b)."""
    return hashlib.blake2b(encode_table_map(table), digest_size=8).hexdigest()


class PayloadBuilder:
    """Collects changes and encodes them; `size` lets the caller cut a large transaction into fragments.

    Shape: changes come out of `decode` in the order in which they went in. After `take` the builder is empty.
    Threads: one at a time.
    """

    __slots__ = ("_changes", "_count", "_size", "_statements", "_tables")

    def __init__(self) -> None:
        self._tables: dict[TableMap, int] = {}
        self._changes = bytearray()
        self._count = 0
        self._statements: list[bytes] = []
        self._size = 0

    @property
    def size(self) -> int:
        """Bytes collected so far, about what `take` will return."""
        return self._size + len(self._changes)

    def __len__(self) -> int:
        """The number of changes collected."""
        return self._count

    def add(self, change: Change) -> None:
        """Add a row change or a statement.

        Raises ValueError for what could not be read back: what `encode_row` or `encode_table_map` refuse, images
        that do not fit the operation or the table; and then has taken nothing.
        """
        if isinstance(change, Statement):
            self.add_statement(change)
            return
        table, op, before, after = change.table, change.op, change.before, change.after
        columns = len(table.columns)
        if (
            (before is None) is not (op is _INSERT)
            or (after is None) is not (op is _DELETE)
            or (before is not None and len(before) != columns)
            or (after is not None and len(after) != columns)
        ):
            raise ValueError(f"the images of an {op.name} do not fit table {table.name} of {columns} columns")
        images = b"" if before is None else encode_row(before)
        if after is not None:
            images += encode_row(after)
        self.add_encoded(table, op, images)

    def add_encoded(self, table: TableMap, op: Op, images: bytes) -> None:
        """Add a row change whose images are already `encode_row` bytes: before, then after, as `op` has them."""
        number = self._tables.get(table)
        if number is None:
            self._size += len(encode_table_map(table)) + 4
            number = self._tables[table] = len(self._tables)
        changes = self._changes
        changes.append(op)
        changes += _varint(number)
        changes += images
        self._count += 1

    def add_encoded_rows(self, table: TableMap, op: Op, rows: Sequence[bytes], *, start: int, limit: int) -> int:
        """Add a row change for each of `rows` from `start` on, each as in `add_encoded`, until `size` reaches `limit`.

        Return the index behind the last one added; at least one is, so `start` must be one of theirs.
        """
        number = self._tables.get(table)
        if number is None:
            self._size += len(encode_table_map(table)) + 4
            number = self._tables[table] = len(self._tables)
        head = b"%c" % op + _varint(number)
        changes = self._changes
        room = limit - self._size
        at = start
        for images in rows[start:] if start else rows:
            changes += head
            changes += images
            at += 1
            if len(changes) >= room:
                break
        self._count += at - start
        return at

    def add_statement(self, statement: Statement) -> None:
        """Add a statement at its place. Raises ValueError for one that could not be read back."""
        raw = _encode_statement(statement)
        self._changes.append(OP_STATEMENT)
        self._changes += _varint(len(self._statements))
        self._count += 1
        self._statements.append(raw)
        self._size += len(raw)

    def tables(self) -> tuple[TableMap, ...]:
        """The table maps of the row changes collected, in order of first use."""
        return tuple(self._tables)

    def take(self, *, metadata: Options = (), options: Options = ()) -> bytes:
        """Return the payload of all that was collected, and start anew."""
        out: list[bytes | bytearray] = [*self._statements, *[_delimited_option(2, *one) for one in metadata]]
        if options:
            out += [_delimited_option(3, *one) for one in options]
        if self._tables:
            head, count, changes = _packed_head(tuple(self._tables)), _varint(self._count), self._changes
            size = len(head) + len(count) + len(changes)
            out += (_TAG_PACKED, _varint(size), head, count, changes)  # joined once: a row may have 1 GB
        self.drop()
        return b"".join(out)

    def drop(self) -> None:
        """Forget all that was collected."""
        self._tables, self._changes, self._count, self._statements, self._size = {}, bytearray(), 0, [], 0


def encode(payload: Payload) -> bytes:
    """Return a payload's bytes; `decode` gives the payload back. Raises what `PayloadBuilder.add` raises."""
    builder = PayloadBuilder()
    for change in payload.changes:
        builder.add(change)
    return builder.take(metadata=payload.metadata, options=payload.options)


def with_kept(payload: bytes, kept: bytes) -> bytes:
    """Return a payload with what another codec said beside it; `decode` passes that over."""
    return payload + _delimited(KEPT_FIELD, kept)


def kept_of(payload: bytes) -> bytes | None:
    """Return what `with_kept` put there, None without. Raises PayloadError."""
    try:
        for field, body in _fields(payload):
            if field == KEPT_FIELD and isinstance(body, bytes):
                return body
    except (ValueError, IndexError) as exc:
        raise PayloadError(why="it ends in the middle" if isinstance(exc, IndexError) else str(exc)) from exc
    return None


def _delimited(field: int, body: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(body)) + body


@lru_cache(maxsize=4096)
def _delimited_option(field: int, name: str, value: str) -> bytes:
    return _delimited(field, _option(name, value))


def _option(name: str, value: str) -> bytes:
    return _delimited(1, name.encode()) + _delimited(2, value.encode())


def _encode_statement(statement: Statement) -> bytes:
    """Return one OneChange of type STATEMENT_DATA, as a field 1 of the envelope."""
    timestamp, error_code = statement.timestamp, statement.error_code
    if not -(1 << 63) <= timestamp < 1 << 63 or not -(1 << 31) <= error_code < 1 << 31:
        raise ValueError(f"timestamp {timestamp} or error code {error_code} does not fit its 64 or 32 bits")
    if (DDL_OPTION, "true") in statement.options:
        raise ValueError(f"the option {DDL_OPTION} is what `ddl` writes: it must not stand among a statement's options")
    body = [_delimited(1, statement.schema.encode())]
    if timestamp:
        body.append(b"\x10" + _varint(timestamp & _U64_MAX))
    if isinstance(statement.sql, str):
        body.append(_delimited(3, statement.sql.encode()))
    options = statement.options + (((DDL_OPTION, "true"),) if statement.ddl else ())
    body += [_delimited(4, _option(name, value)) for name, value in options]
    body.append(b"\x28" + _varint(error_code & _U64_MAX))
    if isinstance(statement.sql, bytes):
        body.append(_delimited(6, statement.sql))
    return _delimited(1, b"\x08" + _varint(_TYPE_STATEMENT) + _delimited(3, b"".join(body)))


# --- decoding --------------------------------------------------------------------------------------------


class _Malformed(ValueError):
    """Raised inside this module; callers see PayloadError."""


def _read_varint(raw: bytes, at: int) -> tuple[int, int]:
    byte = raw[at]
    at += 1
    if byte < 0x80:
        return byte, at
    number = byte & 0x7F
    shift = 7
    while True:
        byte = raw[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            if number > _U64_MAX:
                raise _Malformed("a varint of more than 64 bits")
            return number, at
        shift += 7
        if shift > 63:
            raise _Malformed("a varint of more than ten bytes")


def _read_bytes(raw: bytes, at: int) -> tuple[bytes, int]:
    size, at = _read_varint(raw, at)
    end = at + size
    if end > len(raw):
        raise _Malformed(f"{size} bytes announced at offset {at}, {len(raw) - at} there")
    return raw[at:end], end


def _read_text(raw: bytes, at: int) -> tuple[str, int]:
    chunk, at = _read_bytes(raw, at)
    return chunk.decode(), at


def _read_zigzag(raw: bytes, at: int) -> tuple[int, int]:
    number, at = _read_varint(raw, at)
    return number >> 1 ^ -(number & 1), at


_Reader: TypeAlias = Callable[[bytes, int], tuple[Value, int]]


def _reads_number(kind: Callable[[int], Value]) -> _Reader:
    def read(raw: bytes, at: int) -> tuple[Value, int]:
        number, at = _read_zigzag(raw, at)
        return kind(number), at

    return read


def _reads_text(kind: Callable[[str], Value]) -> _Reader:
    def read(raw: bytes, at: int) -> tuple[Value, int]:
        text, at = _read_text(raw, at)
        return kind(text), at

    return read


def _decimal(text: str) -> Decimal:
    try:
        return Decimal(text, _EXACT)
    except InvalidOperation as exc:
        raise _Malformed(f"{text[:40]!r} is no decimal number") from exc


def _read_f32(raw: bytes, at: int) -> tuple[F32, int]:
    (number,) = _F32.unpack_from(raw, at)
    return F32(number), at + 4


def _read_charset_bytes(raw: bytes, at: int) -> tuple[CharsetBytes, int]:
    charset, at = _read_text(raw, at)
    chunk, at = _read_bytes(raw, at)
    return CharsetBytes(charset, chunk), at


def _read_infinite_date(raw: bytes, at: int) -> tuple[InfiniteDate, int]:
    return InfiniteDate(raw[at] != 0), at + 1


def _read_bit(raw: bytes, at: int) -> tuple[Bit, int]:
    width, at = _read_varint(raw, at)
    end = at + (width + 7) // 8
    if end > len(raw):
        raise _Malformed(f"a bit string of {width} bits passes the end")
    bits = int.from_bytes(raw[at:end], "big")
    if bits.bit_length() > width:
        raise _Malformed(f"a bit string of {width} bits has {bits.bit_length()}")
    return Bit(width, bits), end


def _read_set(raw: bytes, at: int) -> tuple[SetLabels, int]:
    count, at = _read_varint(raw, at)
    labels = []
    for _ in range(count):
        label, at = _read_text(raw, at)
        labels.append(label)
    return SetLabels(tuple(labels)), at


def _read_uuid(raw: bytes, at: int) -> tuple[UUID, int]:
    end = at + 16
    if end > len(raw):
        raise _Malformed("a UUID passes the end")
    return UUID(bytes=raw[at:end]), end


def _read_other(raw: bytes, at: int) -> tuple[Other, int]:
    name, at = _read_text(raw, at)
    text, at = _read_text(raw, at)
    return Other(name, text), at


_READERS: Final[dict[int, _Reader]] = {
    Tag.U64: _read_varint,
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
"""The tags that `_read_row` does not read in line."""


def _read_unknown(tag: int, raw: bytes, at: int) -> tuple[Other, int]:
    if tag < FIRST_UNKNOWN_TAG:
        raise _Malformed(f"value tag {tag} at offset {at - 1}; a newer release may have written it")
    chunk, at = _read_bytes(raw, at)
    return Other(f"tag {tag}", chunk.hex()), at


def _read_row(raw: bytes, at: int, columns: int) -> tuple[tuple[Value, ...], int]:
    row: list[Value] = []
    append = row.append
    readers = _READERS
    for _ in range(columns):
        tag = raw[at]
        at += 1
        if tag == 4:  # I64
            number = raw[at]
            at += 1
            if number >= 0x80:
                number, at = _read_varint(raw, at - 1)
            append(number >> 1 ^ -(number & 1))
        elif tag == 9:  # TEXT
            size = raw[at]
            at += 1
            if size >= 0x80:
                size, at = _read_varint(raw, at - 1)
            end = at + size
            if end > len(raw):
                raise _Malformed(f"text of {size} bytes passes the end")
            append(raw[at:end].decode())
            at = end
        elif tag == 0:
            append(None)
        elif tag == 7:  # F64
            append(_F64.unpack_from(raw, at)[0])
            at += 8
        elif tag == 10:  # BYTES
            chunk, at = _read_bytes(raw, at)
            append(chunk)
        elif tag == 2 or tag == 3:
            append(tag == 3)
        elif tag == 1:
            append(UNCHANGED)
        else:
            reader = readers.get(tag)
            value, at = _read_unknown(tag, raw, at) if reader is None else reader(raw, at)
            append(value)
    return tuple(row), at


@lru_cache(maxsize=4096)
def decode_table_map(raw: bytes) -> TableMap:
    """Read what `encode_table_map` wrote; equal bytes give the same object. Raises ValueError, IndexError."""
    schema, at = _read_text(raw, 0)
    table, at = _read_text(raw, at)
    count, at = _read_varint(raw, at)
    columns = []
    for _ in range(count):
        name, at = _read_text(raw, at)
        source_type, at = _read_text(raw, at)
        logical, flags = raw[at], raw[at + 1]
        at += 2
        charset = None
        if flags & _COLUMN_CHARSET:
            charset, at = _read_text(raw, at)
        length, at = _read_varint(raw, at)
        columns.append(
            Column(
                name=name,
                source_type=source_type,
                logical=LogicalType(logical) if logical <= LogicalType.OTHER else LogicalType.OTHER,
                unsigned=bool(flags & _COLUMN_UNSIGNED),
                nullable=bool(flags & _COLUMN_NULLABLE),
                charset=charset,
                length=length,
            )
        )
    primary_key, at = _read_indexes(raw, at, count)
    number, at = _read_varint(raw, at)
    unique_keys = []
    for _ in range(number):
        key, at = _read_indexes(raw, at, count)
        unique_keys.append(key)
    number, at = _read_varint(raw, at)
    foreign_keys = []
    for _ in range(number):
        key, at = _read_indexes(raw, at, count)
        ref_schema, at = _read_text(raw, at)
        ref_table, at = _read_text(raw, at)
        ref_count, at = _read_varint(raw, at)
        ref_columns = []
        for _ in range(ref_count):
            name, at = _read_text(raw, at)
            ref_columns.append(name)
        foreign_keys.append(
            ForeignKey(columns=key, ref_schema=ref_schema, ref_table=ref_table, ref_columns=tuple(ref_columns))
        )
    if at != len(raw):
        raise _Malformed("bytes behind the end of a table map")
    return TableMap(
        schema=schema,
        table=table,
        columns=tuple(columns),
        primary_key=primary_key,
        unique_keys=tuple(unique_keys),
        foreign_keys=tuple(foreign_keys),
    )


def _read_indexes(raw: bytes, at: int, columns: int) -> tuple[tuple[int, ...], int]:
    count, at = _read_varint(raw, at)
    indexes = []
    for _ in range(count):
        index, at = _read_varint(raw, at)
        if index >= columns:
            raise _Malformed(f"column index {index} in a table of {columns} columns")
        indexes.append(index)
    return tuple(indexes), at


def _read_packed(raw: bytes, statements: list[Statement]) -> list[Change]:
    if raw[0] != PACKED_VERSION:
        raise _Malformed(f"packed form version {raw[0]}; this release reads version {PACKED_VERSION}")
    count, at = _read_varint(raw, 1)
    tables = []
    for _ in range(count):
        chunk, at = _read_bytes(raw, at)
        tables.append(decode_table_map(chunk))
    count, at = _read_varint(raw, at)
    changes: list[Change] = []
    placed = 0
    for _ in range(count):
        op = raw[at]
        number, at = _read_varint(raw, at + 1)
        if op == OP_STATEMENT:
            if number != placed or number >= len(statements):
                raise _Malformed(f"statement {number} is out of place")
            changes.append(statements[number])
            placed += 1
            continue
        if number >= len(tables):
            raise _Malformed(f"table number {number} of {len(tables)}")
        table = tables[number]
        columns = len(table.columns)
        if op == _INSERT:
            after, at = _read_row(raw, at, columns)
            changes.append(RowChange(table, _INSERT, None, after))
        elif op == _UPDATE:
            before, at = _read_row(raw, at, columns)
            after, at = _read_row(raw, at, columns)
            changes.append(RowChange(table, _UPDATE, before, after))
        elif op == _DELETE:
            before, at = _read_row(raw, at, columns)
            changes.append(RowChange(table, _DELETE, before, None))
        else:
            raise _Malformed(f"operation {op}")
    if at != len(raw) or placed != len(statements):
        raise _Malformed("the packed changes and the envelope disagree on where they end")
    return changes


def _fields(raw: bytes) -> list[tuple[int, int | bytes]]:
    """Return a message's fields in wire order as (number, varint or bytes); fixed-width ones are passed over."""
    fields: list[tuple[int, int | bytes]] = []
    at = 0
    while at < len(raw):
        key, at = _read_varint(raw, at)
        wire = key & 7
        if wire == 0:
            number, at = _read_varint(raw, at)
            fields.append((key >> 3, number))
        elif wire == 2:
            chunk, at = _read_bytes(raw, at)
            fields.append((key >> 3, chunk))
        elif wire in (1, 5):
            at += 8 if wire == 1 else 4
            if at > len(raw):
                raise _Malformed("a fixed-width field passes the end")
        else:
            raise _Malformed(f"wire type {wire}")
    return fields


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


def _read_option(raw: bytes | int) -> tuple[str, str]:
    name = value = b""
    if isinstance(raw, int):
        raise _Malformed("an option that is a number")
    for field, chunk in _fields(raw):
        if isinstance(chunk, bytes):
            if field == 1:
                name = chunk
            elif field == 2:
                value = chunk
    return name.decode(), value.decode()


def _read_one_change(raw: bytes | int) -> Statement:
    if isinstance(raw, int):
        raise _Malformed("a change that is a number")
    kind = 0
    body: bytes | None = None
    for field, chunk in _fields(raw):
        if field == 1 and isinstance(chunk, int):
            kind = chunk
        elif field == 3 and isinstance(chunk, bytes):
            body = chunk
    if kind != _TYPE_STATEMENT or body is None:
        raise _Malformed(f"change type {kind} in the envelope; only statements stand there")
    schema, timestamp, error_code = "", 0, 0
    sql: str | bytes = ""
    options: list[tuple[str, str]] = []
    ddl = False
    for field, item in _fields(body):
        if isinstance(item, bytes):
            if field == 1:
                schema = item.decode()
            elif field == 3:
                sql = item.decode()
            elif field == 4:
                option = _read_option(item)
                if option == (DDL_OPTION, "true"):
                    ddl = True
                else:
                    options.append(option)
            elif field == 6:
                sql = item
        elif field == 2:
            timestamp = _signed(item)
        elif field == 5:
            error_code = _signed(item)
            if not -(1 << 31) <= error_code < 1 << 31:
                raise _Malformed(f"an error code {error_code} of more than 32 bits")
    return Statement(
        schema=schema, sql=sql, ddl=ddl, timestamp=timestamp, error_code=error_code, options=tuple(options)
    )


def decode(raw: bytes) -> Payload:
    """Read a payload. Raises PayloadError for bytes that `encode` cannot have written.

    Shape: time and memory are proportional to `raw`; unknown envelope fields are passed over, unknown value tags
    become `Other`.
    """
    try:
        metadata: list[tuple[str, str]] = []
        options: list[tuple[str, str]] = []
        statements: list[Statement] = []
        packed: bytes | None = None
        for field, body in _fields(raw):
            if field == PACKED_FIELD and isinstance(body, bytes):
                packed = body
            elif field == 2:
                metadata.append(_read_option(body))
            elif field == 3:
                options.append(_read_option(body))
            elif field == 1:
                statements.append(_read_one_change(body))
        changes: list[Change] = list(statements) if packed is None else _read_packed(packed, statements)
    except (ValueError, IndexError, struct.error, ArithmeticError) as exc:
        reason = "it ends in the middle" if isinstance(exc, IndexError) else str(exc)
        raise PayloadError(why=reason) from exc
    return Payload(metadata=tuple(metadata), options=tuple(options), changes=tuple(changes))
