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
from typing import Any, Final, TypeAlias, cast
from uuid import UUID

from librt.strings import BytesWriter, read_f64_be, write_f64_be
from mypy_extensions import i64, u8

from tranlog.change import Change, Column, ForeignKey, Op, Options, RowChange, Statement, TableMap
from tranlog.change import Payload as Payload
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
from tranlog.varint import (
    MalformedError,
    read_sized,
    read_sized_text,
    read_varint,
    read_zigzag,
    sized,
    sized_text,
    varint,
    write_varint,
    zigzag,
)

PACKED_VERSION: Final = 1
PACKED_FIELD: Final = 100
_INSERT: Final = Op.INSERT  # names of this module: looking a member up in its class costs more than the comparison
_DELETE: Final = Op.DELETE
_UPDATE: Final = Op.UPDATE
_INSERT_CODE: Final = 1
_DELETE_CODE: Final = 2
_UPDATE_CODE: Final = 3
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
_TAGGED_F64: Final = struct.Struct(">Bd")
_TYPE_STATEMENT: Final = 2  # OneChange.type STATEMENT_DATA
_COLUMN_UNSIGNED, _COLUMN_NULLABLE, _COLUMN_CHARSET = 1, 2, 4
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
    """Return the bytes of a row's values, one behind the other, without a count.

    Raises ValueError for a value that no tag can carry: an integer beyond 64 bits, a float beyond its four bytes,
    bits beyond their width, text that has no UTF-8, a foreign type.
    """
    out = BytesWriter()
    _write_row(out, tuple(row))
    return out.getvalue()


def _write_row(out: BytesWriter, row: tuple[object, ...]) -> None:
    """Write what `encode_row` returns. The frequent tags stand here in line: this loop is the writer's cost.

    Objects, since compiled code holds each value against each member of a union; casts, since it calls `append`
    directly for nothing but a byte.
    """
    for value in row:
        kind = type(value)
        if kind is int:
            number = cast(int, value)
            if -_PLAIN_INT <= number < _PLAIN_INT:
                rest: i64 = number
                out.append(4)
                rest = rest << 1 ^ rest >> 63
                while rest >= 0x80:
                    out.append(cast(u8, rest & 0x7F | 0x80))
                    rest >>= 7
                out.append(cast(u8, rest))
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
                out.append(cast(u8, size & 0x7F | 0x80))
                size >>= 7
            out.append(cast(u8, size))
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


@lru_cache(maxsize=4096)
def encode_table_map(table: TableMap) -> bytes:
    """Return a table map's bytes, without their length in front.

    Raises ValueError for what could not be read back: a key's column that is not there, a length below zero, text
    that has no UTF-8.
    """
    columns = len(table.columns)
    out = [sized_text(table.schema), sized_text(table.table), varint(columns)]
    for column in table.columns:
        flags = (
            (_COLUMN_UNSIGNED if column.unsigned else 0)
            | (_COLUMN_NULLABLE if column.nullable else 0)
            | (_COLUMN_CHARSET if column.charset is not None else 0)
        )
        out += [sized_text(column.name), sized_text(column.source_type), bytes((column.logical, flags))]
        if column.charset is not None:
            out.append(sized_text(column.charset))
        if not 0 <= column.length <= _U64_MAX:
            raise ValueError(f"column {column.name} of table {table.name} has the length {column.length}")
        out.append(varint(column.length))
    for key in (table.primary_key, *table.unique_keys, *[key.columns for key in table.foreign_keys]):
        if not all(0 <= index < columns for index in key):
            raise ValueError(f"a key of table {table.name} names the columns {key} of {columns}, counted from 0")
    out.append(_indexes(table.primary_key))
    out.append(varint(len(table.unique_keys)))
    out += map(_indexes, table.unique_keys)
    out.append(varint(len(table.foreign_keys)))
    for foreign in table.foreign_keys:
        out += [
            _indexes(foreign.columns),
            sized_text(foreign.ref_schema),
            sized_text(foreign.ref_table),
            varint(len(foreign.ref_columns)),
        ]
        out += map(sized_text, foreign.ref_columns)
    return b"".join(out)


@lru_cache(maxsize=256)
def _packed_head(tables: tuple[TableMap, ...]) -> bytes:
    """Return what stands before the number of changes: the version and the tables."""
    maps = b"".join([sized(encode_table_map(table)) for table in tables])
    return b"%c" % PACKED_VERSION + varint(len(tables)) + maps


def _indexes(indexes: tuple[int, ...]) -> bytes:
    return varint(len(indexes)) + b"".join(map(varint, indexes))


@lru_cache(maxsize=4096)
def fingerprint(table: TableMap) -> str:
    """Return 16 hex digits that two table maps share if and only if they are equal (64-bit BLAKE2b)."""
    return hashlib.blake2b(encode_table_map(table), digest_size=8).hexdigest()


class PayloadBuilder:
    """Collects changes and encodes them; `size` lets the caller cut a large transaction into fragments.

    Shape: changes come out of `decode` in the order in which they went in. After `take` the builder is empty.
    Threads: one at a time.
    """

    __slots__ = ("_changes", "_columns", "_count", "_number", "_size", "_statements", "_table", "_tables")

    def __init__(self) -> None:
        self._tables: dict[TableMap, int] = {}
        self._changes = BytesWriter()
        self._count = 0
        self._statements: list[bytes] = []
        self._size = 0
        self._table: TableMap | None = None  # of the last change, with its number here and of its columns
        self._number = 0
        self._columns = 0

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
        if type(change) is not RowChange:  # ten times as fast as asking for an instance of Statement
            self.add_statement(cast(Statement, change))
            return
        table, op, before, after = change.table, change.op, change.before, change.after
        known, size = len(self._tables), self._size
        if table is not self._table:
            self._use(table)
        columns = self._columns
        out = self._changes
        start = len(out)
        try:
            if (
                (before is None) is not (op is _INSERT)
                or (after is None) is not (op is _DELETE)
                or (before is not None and len(before) != columns)
                or (after is not None and len(after) != columns)
            ):
                raise ValueError(f"the images of an {op.name} do not fit table {table.name} of {columns} columns")
            code = _INSERT_CODE if before is None else _DELETE_CODE if after is None else _UPDATE_CODE
            out.append(cast(u8, code))
            write_varint(out, self._number)
            if before is not None:
                _write_row(out, before)
            if after is not None:
                _write_row(out, after)
        except BaseException:
            out.truncate(start)
            if len(self._tables) > known:
                self._tables.popitem()
                self._size = size
                self._table = None
            raise
        self._count += 1

    def _use(self, table: TableMap) -> None:
        """Make a table that of the next changes, and give it a number at its first use."""
        number = self._tables.get(table)
        if number is None:
            self._size += len(encode_table_map(table)) + 4
            number = self._tables[table] = len(self._tables)
        self._table, self._number, self._columns = table, number, len(table.columns)

    def add_encoded(self, table: TableMap, op: Op, images: bytes) -> None:
        """Add a row change whose images are already `encode_row` bytes: before, then after, as `op` has them."""
        if table is not self._table:
            self._use(table)
        out = self._changes
        code = _INSERT_CODE if op is _INSERT else _DELETE_CODE if op is _DELETE else _UPDATE_CODE
        out.append(cast(u8, code))
        write_varint(out, self._number)
        out.write(images)
        self._count += 1

    def add_encoded_rows(self, table: TableMap, op: Op, rows: Sequence[bytes], *, start: int, limit: int) -> int:
        """Add a row change for each of `rows` from `start` on, each as in `add_encoded`, until `size` reaches `limit`.

        Return the index behind the last one added; at least one is, so `start` must be one of theirs.
        """
        if table is not self._table:
            self._use(table)
        head = bytes((op,)) + varint(self._number)
        changes = self._changes
        room = limit - self._size
        at = start
        for images in rows[start:] if start else rows:
            changes.write(head)
            changes.write(images)
            at += 1
            if len(changes) >= room:
                break
        self._count += at - start
        return at

    def add_statement(self, statement: Statement) -> None:
        """Add a statement at its place. Raises ValueError for one that could not be read back."""
        raw = _encode_statement(statement)
        self._changes.append(OP_STATEMENT)
        write_varint(self._changes, len(self._statements))
        self._count += 1
        self._statements.append(raw)
        self._size += len(raw)

    def tables(self) -> tuple[TableMap, ...]:
        """The table maps of the row changes collected, in order of first use."""
        return tuple(self._tables)

    def take(self, *, metadata: Options = (), options: Options = ()) -> bytes:
        """Return the payload of all that was collected, and start anew."""
        out = [*self._statements, *[_delimited_option(2, *one) for one in metadata]]
        if options:
            out += [_delimited_option(3, *one) for one in options]
        head = _packed_head(tuple(self._tables)) if self._tables else b""
        count, changes = varint(self._count), self._changes.getvalue()
        self.drop()  # a row may have 1 GB: no more than two copies at a time
        if head:
            out += (_TAG_PACKED, varint(len(head) + len(count) + len(changes)), head, count, changes)
        return b"".join(out)

    def drop(self) -> None:
        """Forget all that was collected."""
        self._tables, self._changes, self._count, self._statements, self._size = {}, BytesWriter(), 0, [], 0
        self._table = None


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
    return varint(field << 3 | 2) + varint(len(body)) + body


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
        body.append(b"\x10" + varint(timestamp & _U64_MAX))
    if isinstance(statement.sql, str):
        body.append(_delimited(3, statement.sql.encode()))
    options = statement.options + (((DDL_OPTION, "true"),) if statement.ddl else ())
    body += [_delimited(4, _option(name, value)) for name, value in options]
    body.append(b"\x28" + varint(error_code & _U64_MAX))
    if isinstance(statement.sql, bytes):
        body.append(_delimited(6, statement.sql))
    return _delimited(1, b"\x08" + varint(_TYPE_STATEMENT) + _delimited(3, b"".join(body)))


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
"""The tags that `_read_row` does not read in line."""


def _read_unknown(tag: int, raw: bytes, at: int) -> tuple[Other, int]:
    if tag < FIRST_UNKNOWN_TAG:
        raise MalformedError(f"value tag {tag} at offset {at - 1}; a newer release may have written it")
    chunk, at = read_sized(raw, at)
    return Other(f"tag {tag}", chunk.hex()), at


def _read_size(raw: bytes, at: i64) -> tuple[i64, i64]:
    """Read a length and hold it against what is left, so that an offset behind it fits a machine word."""
    size, behind = read_varint(raw, at)
    if size > len(raw) - behind:
        raise MalformedError(f"{size} bytes announced at offset {behind}, {len(raw) - behind} there")
    return size, behind


def _read_row(raw: bytes, at: i64, columns: i64) -> tuple[tuple[Any, ...], i64]:
    """Read a row. Numbers of up to four groups of bits are read in line: this loop is the reader's cost."""
    row: list[object] = []
    for _ in range(columns):
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
                value, at = read_zigzag(raw, at - 4)
                row.append(value)
            else:
                row.append(number >> 1 ^ -(number & 1))
        elif tag == 9 or tag == 10:  # TEXT, BYTES
            size: i64 = raw[at]
            at += 1
            if size >= 0x80:
                size, at = _read_size(raw, at - 1)
            end = at + size
            if end > len(raw):
                raise MalformedError(f"{size} bytes announced at offset {at}, {len(raw) - at} there")
            if tag == 9:
                row.append(raw[at:end].decode("utf-8"))
            else:
                row.append(raw[at:end])
            at = end
        elif tag == 0:
            row.append(None)
        elif tag == 7:  # F64
            row.append(read_f64_be(raw, at))
            at += 8
        elif tag == 2 or tag == 3:
            row.append(tag == 3)
        elif tag == 1:
            row.append(UNCHANGED)
        else:
            reader = _READERS.get(tag)
            other, at = _read_unknown(tag, raw, at) if reader is None else reader(raw, at)
            row.append(other)
    return tuple(row), at


@lru_cache(maxsize=4096)
def decode_table_map(raw: bytes) -> TableMap:
    """Read what `encode_table_map` wrote; equal bytes give the same object. Raises ValueError, IndexError."""
    schema, at = read_sized_text(raw, 0)
    table, at = read_sized_text(raw, at)
    count, at = read_varint(raw, at)
    columns = []
    for _ in range(count):
        name, at = read_sized_text(raw, at)
        source_type, at = read_sized_text(raw, at)
        logical, flags = raw[at], raw[at + 1]
        at += 2
        charset = None
        if flags & _COLUMN_CHARSET:
            charset, at = read_sized_text(raw, at)
        length, at = read_varint(raw, at)
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
    number, at = read_varint(raw, at)
    unique_keys = []
    for _ in range(number):
        key, at = _read_indexes(raw, at, count)
        unique_keys.append(key)
    number, at = read_varint(raw, at)
    foreign_keys = []
    for _ in range(number):
        key, at = _read_indexes(raw, at, count)
        ref_schema, at = read_sized_text(raw, at)
        ref_table, at = read_sized_text(raw, at)
        ref_count, at = read_varint(raw, at)
        ref_columns = []
        for _ in range(ref_count):
            name, at = read_sized_text(raw, at)
            ref_columns.append(name)
        foreign_keys.append(
            ForeignKey(columns=key, ref_schema=ref_schema, ref_table=ref_table, ref_columns=tuple(ref_columns))
        )
    if at != len(raw):
        raise MalformedError("bytes behind the end of a table map")
    return TableMap(
        schema=schema,
        table=table,
        columns=tuple(columns),
        primary_key=primary_key,
        unique_keys=tuple(unique_keys),
        foreign_keys=tuple(foreign_keys),
    )


def _read_indexes(raw: bytes, at: int, columns: int) -> tuple[tuple[int, ...], int]:
    count, at = read_varint(raw, at)
    indexes = []
    for _ in range(count):
        index, at = read_varint(raw, at)
        if index >= columns:
            raise MalformedError(f"column index {index} in a table of {columns} columns")
        indexes.append(index)
    return tuple(indexes), at


def _read_packed(raw: bytes, statements: list[Statement]) -> list[Change]:
    if raw[0] != PACKED_VERSION:
        raise MalformedError(f"packed form version {raw[0]}; this release reads version {PACKED_VERSION}")
    count, start = read_varint(raw, 1)
    tables: list[TableMap] = []
    for _ in range(count):
        chunk, start = read_sized(raw, start)
        tables.append(decode_table_map(chunk))
    count, start = read_varint(raw, start)
    at: i64 = start
    end: i64 = len(raw)
    changes: list[Change] = []
    placed = 0
    table: TableMap | None = None
    its_number = -1
    columns: i64 = 0
    for _ in range(count):
        op: i64 = raw[at]
        number, at = read_varint(raw, at + 1)
        if op == OP_STATEMENT:
            if number != placed or number >= len(statements):
                raise MalformedError(f"statement {number} is out of place")
            changes.append(statements[number])
            placed += 1
            continue
        if number != its_number or table is None:
            if number >= len(tables):
                raise MalformedError(f"table number {number} of {len(tables)}")
            its_number, table = number, tables[number]
            columns = len(table.columns)
        if op == _INSERT_CODE:
            after, at = _read_row(raw, at, columns)
            changes.append(RowChange(table, _INSERT, None, after))
        elif op == _UPDATE_CODE:
            before, at = _read_row(raw, at, columns)
            after, at = _read_row(raw, at, columns)
            changes.append(RowChange(table, _UPDATE, before, after))
        elif op == _DELETE_CODE:
            before, at = _read_row(raw, at, columns)
            changes.append(RowChange(table, _DELETE, before, None))
        else:
            raise MalformedError(f"operation {op}")
    if at != end or placed != len(statements):
        raise MalformedError("the packed changes and the envelope disagree on where they end")
    return changes


def _fields(raw: bytes) -> list[tuple[int, int | bytes]]:
    """Return a message's fields in wire order as (number, varint or bytes); fixed-width ones are passed over."""
    fields: list[tuple[int, int | bytes]] = []
    at = 0
    while at < len(raw):
        key, at = read_varint(raw, at)
        wire = key & 7
        if wire == 0:
            number, at = read_varint(raw, at)
            fields.append((key >> 3, number))
        elif wire == 2:
            chunk, at = read_sized(raw, at)
            fields.append((key >> 3, chunk))
        elif wire in (1, 5):
            at += 8 if wire == 1 else 4
            if at > len(raw):
                raise MalformedError("a fixed-width field passes the end")
        else:
            raise MalformedError(f"wire type {wire}")
    return fields


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


def _read_option(raw: bytes | int) -> tuple[str, str]:
    name = value = b""
    if isinstance(raw, int):
        raise MalformedError("an option that is a number")
    for field, chunk in _fields(raw):
        if isinstance(chunk, bytes):
            if field == 1:
                name = chunk
            elif field == 2:
                value = chunk
    return name.decode(), value.decode()


def _read_one_change(raw: bytes | int) -> Statement:
    if isinstance(raw, int):
        raise MalformedError("a change that is a number")
    kind = 0
    body: bytes | None = None
    for field, chunk in _fields(raw):
        if field == 1 and isinstance(chunk, int):
            kind = chunk
        elif field == 3 and isinstance(chunk, bytes):
            body = chunk
    if kind != _TYPE_STATEMENT or body is None:
        raise MalformedError(f"change type {kind} in the envelope; only statements stand there")
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
                raise MalformedError(f"an error code {error_code} of more than 32 bits")
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
