"""The bytes of a fragment's content: the ancestor's protobuf envelope with our packed row changes inside.

Owns encoding and decoding. Metadata, options and statements use the field numbers of the ancestor's
ReplDBMSEvent; row changes travel in one field of our own (100) in a packed form. No protobuf library: one object
per value costs ten times as much. docs/format.md has the byte tables; a protobuf library is the tests' oracle.

Source: docs/format.md.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final, cast

from librt.strings import BytesWriter
from msgspec.structs import astuple
from mypy_extensions import i64

from tranlog.change import Change, Op, Options, RowChange, Statement, TableMap
from tranlog.change import Payload as Payload
from tranlog.errors import PayloadError
from tranlog.row_bytes import read_row, read_size, write_row
from tranlog.table_map import TABLES_KEPT, decode_table_map_and_width, told
from tranlog.table_map import decode_table_map as decode_table_map
from tranlog.table_map import encode_table_map as encode_table_map
from tranlog.table_map import fingerprint as fingerprint
from tranlog.varint import BYTES, MalformedError, read_sized, read_varint, sized, sized_text, varint, write_varint

PACKED_VERSION: Final = 1
PACKED_FIELD: Final = 100
_INSERT: Final = Op.INSERT  # names of this module: looking a member up in its class costs more than the comparison
_DELETE: Final = Op.DELETE
_UPDATE: Final = Op.UPDATE
_ROW_CHANGE: Final = RowChange
_PAYLOAD: Final = Payload
_EMPTY: Final[list[object]] = [None]
"""What a list of a given length is made of; one that is written in line is made anew each time."""
_INSERT_CODE: Final = 1
_DELETE_CODE: Final = 2
_UPDATE_CODE: Final = 3
KEPT_FIELD: Final = 101
"""Of a transaction that came from another codec: what it said there and cannot be said here, for the way back."""
OP_STATEMENT: Final = 4
"""In a packed list of changes: here stands the statement with the given index of field 1."""
DDL_OPTION: Final = "schema_change"
"""Per-statement option that marks DDL, the ancestor's name for it."""

_fronts: Final[dict[TableMap, tuple[bytes, int]]] = {}
_last_front: Final[list[tuple[TableMap, bytes, int]]] = []
_LARGE: Final = 1 << 16
_VERSION: Final = bytes((PACKED_VERSION,))
_TAG_PACKED: Final = b"\xa2\x06"  # field 100, length-delimited
_TYPE_STATEMENT: Final = 2  # OneChange.type STATEMENT_DATA
_U64_MAX: Final = (1 << 64) - 1
_PLAIN_INT: Final = 1 << 61
"""Below it, and down to its negative, an integer and its zigzag form fit a machine word."""


# --- encoding --------------------------------------------------------------------------------------------


def _front_of(table: TableMap) -> tuple[bytes, int]:
    """Return what stands before the number of changes where there is one table, and how many columns it has.

    That is the version, 1, and its map with its length. The last table is looked at first, as in reading.
    """
    if _last_front:
        last, front, width = _last_front[0]
        if last is table:
            return front, width
    known = _fronts.get(table)
    if known is None:
        known = _VERSION + b"\x01" + sized(encode_table_map(table)), len(table.columns)
        if len(_fronts) >= TABLES_KEPT:
            _fronts.clear()
        _fronts[table] = known
    front, width = known
    _last_front[:1] = ((table, front, width),)
    return front, width


class PayloadBuilder:
    """Collects changes and encodes them; `size` lets the caller cut a large transaction into fragments.

    Shape: changes come out of `decode` in the order in which they went in. After `take` the builder is empty.
    Threads: one at a time.
    """

    __slots__ = (
        "_changes",
        "_columns",
        "_count",
        "_number",
        "_numbers",
        "_size",
        "_statements",
        "_table",
        "_tables",
    )

    def __init__(self) -> None:
        self._tables: list[TableMap] = []  # in order of first use
        self._numbers: dict[TableMap, int] | None = None  # of the second table on: most payloads have one
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
        self.extend((change,))

    def extend(self, changes: tuple[Change, ...]) -> None:
        """Add changes, one after the other. Raises as `add` does; the changes before the one refused are taken."""
        out = self._changes
        row_change, fields_of = _ROW_CHANGE, astuple
        for change in changes:
            if type(change) is not row_change:  # ten times as fast as asking for an instance of Statement
                self.add_statement(cast(Statement, change))
                continue
            fields = cast(tuple[object, ...], fields_of(change))  # at once: four times as fast as one by one
            table, op, before, after = fields[0], fields[1], fields[2], fields[3]
            known, size, start = len(self._tables), self._size, len(out)
            try:
                if table is not self._table:
                    self._use(cast(TableMap, table))
                if before is None:
                    if op is not _INSERT or after is None or len(cast(tuple[object, ...], after)) != self._columns:
                        raise self._misfit(change)
                    out.append(_INSERT_CODE)
                elif len(cast(tuple[object, ...], before)) != self._columns:
                    raise self._misfit(change)
                elif after is None:
                    if op is not _DELETE:
                        raise self._misfit(change)
                    out.append(_DELETE_CODE)
                else:
                    if op is not _UPDATE or len(cast(tuple[object, ...], after)) != self._columns:
                        raise self._misfit(change)
                    out.append(_UPDATE_CODE)
                number: i64 = self._number
                if number < 0x80:
                    out.append(BYTES[number])
                else:
                    write_varint(out, number)
                if before is not None:
                    write_row(out, cast(tuple[object, ...], before))
                if after is not None:
                    write_row(out, cast(tuple[object, ...], after))
            except BaseException:
                out.truncate(start)
                if len(self._tables) > known:
                    self._forget()
                    self._size = size
                raise
            self._count += 1

    def _misfit(self, change: RowChange) -> ValueError:
        """Say that a change's images do not fit its operation or its table."""
        table = change.table
        columns = len(table.columns)
        return ValueError(f"the images of an {change.op.name} do not fit table {table.name} of {columns} columns")

    def _use(self, table: TableMap) -> None:
        """Make a table that of the next changes, and give it a number at its first use."""
        tables = self._tables
        number = None
        front, width = _front_of(table)
        if tables:
            if self._numbers is None:
                self._numbers = {tables[0]: 0}
            number = self._numbers.get(table)
        if number is None:
            number = len(tables)
            self._size += len(front) + 1
            tables.append(table)
            if self._numbers is not None:
                self._numbers[table] = number
        self._table, self._number, self._columns = table, number, width

    def _forget(self) -> None:
        """Take back the last table."""
        table = self._tables.pop()
        if self._numbers is not None:
            del self._numbers[table]
        self._table = None

    def add_encoded(self, table: TableMap, op: Op, images: bytes) -> None:
        """Add a row change whose images are already `encode_row` bytes: before, then after, as `op` has them."""
        if table is not self._table:
            self._use(table)
        out = self._changes
        code = _INSERT_CODE if op is _INSERT else _DELETE_CODE if op is _DELETE else _UPDATE_CODE
        out.append(BYTES[code])
        write_varint(out, self._number)
        out.write(images)
        self._count += 1

    def add_encoded_rows(self, table: TableMap, op: Op, rows: Sequence[bytes], *, start: int, limit: int) -> int:
        """Add a row change for each of `rows` from `start` on, each as in `add_encoded`, until `size` reaches `limit`.

        Return the index after the last one added; at least one is, so `start` must be one of theirs.
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
        raw = self._payload(metadata, options)
        self.drop()
        return raw

    def _payload(self, metadata: Options, options: Options) -> bytes:
        """Return what `take` returns; what was collected is not to be used afterwards."""
        tables, head, changes = self._tables, b"", b""
        if tables:
            front = _front_of(tables[0])[0]
            if len(tables) > 1:
                front = _VERSION + varint(len(tables)) + b"".join([_front_of(table)[0][2:] for table in tables])
            front += varint(self._count)
            changes = self._changes.getvalue()
            if len(changes) > _LARGE:
                self._changes = BytesWriter()  # a row may have 1 GB: no more than two copies at a time
            head = _TAG_PACKED + varint(len(front) + len(changes)) + front
        if not self._statements and not metadata and not options:
            return head + changes
        out = [*self._statements, *[_delimited_option(2, *one) for one in metadata]]
        out += [_delimited_option(3, *one) for one in options]
        out += (head, changes)
        return b"".join(out)

    def drop(self) -> None:
        """Forget all that was collected."""
        self._tables, self._numbers, self._statements = [], None, []
        self._changes, self._count, self._size, self._table = BytesWriter(), 0, 0, None


def encode(payload: Payload) -> bytes:
    """Return a payload's bytes; `decode` gives the payload back. Raises what `PayloadBuilder.add` raises."""
    fields = cast(tuple[object, ...], astuple(payload))
    builder = PayloadBuilder()
    builder.extend(cast(tuple[Change, ...], fields[2]))
    return builder._payload(cast(Options, fields[0]), cast(Options, fields[1]))


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


def _delimited_option(field: int, name: str, value: str) -> bytes:
    return _delimited(field, _option(name, value))


def _option(name: str, value: str) -> bytes:
    return b"\x0a" + sized_text(name) + b"\x12" + sized_text(value)


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


def _read_packed(
    raw: bytes, start: i64, end: i64, statements: tuple[Statement, ...], options: Options
) -> tuple[Change, ...]:
    """Read the packed form that stands there in a payload; whatever reads past its end ends in an error at last."""
    version = raw[start]
    if version != PACKED_VERSION:
        raise MalformedError(f"packed form version {version}; this release reads version {PACKED_VERSION}")
    count, at = _read_count(raw, start + 1)
    table: TableMap | None = None
    tables: list[TableMap] | None = None
    width = 0
    if count == 1:
        chunk, at = _read_chunk(raw, at)
        table, width = decode_table_map_and_width(chunk)
        if options:
            table = told(table, options)
    else:
        tables = []
        while len(tables) < count:
            chunk, at = _read_chunk(raw, at)
            made = decode_table_map(chunk)
            tables.append(told(made, options) if options else made)
    its_number: i64 = 0
    row: list[object] = _EMPTY * width
    count, at = _read_count(raw, at)
    if count > end - at >> 1:
        raise MalformedError(f"{count} changes announced at offset {at}, {end - at} bytes there")
    changes: list[object] = _EMPTY * count
    place: i64 = 0
    placed: i64 = 0
    make = _ROW_CHANGE
    while place < count:
        op: i64 = raw[at]
        number: i64 = raw[at + 1]
        at += 2
        if number >= 0x80:
            number, at = _read_count(raw, at - 1)
        if op == OP_STATEMENT:
            if number != placed or number >= len(statements):
                raise MalformedError(f"statement {number} is out of place")
            changes[place] = statements[number]
            placed += 1
            place += 1
            continue
        if number != its_number or table is None:
            if tables is None or number >= len(tables):
                raise MalformedError(f"table number {number} of {1 if tables is None else len(tables)}")
            its_number, table = number, tables[number]
            row = _EMPTY * len(table.columns)
        if op == _INSERT_CODE:
            at = read_row(raw, at, row)
            changes[place] = make(table, _INSERT, None, cast(Any, tuple(row)))
        elif op == _UPDATE_CODE:
            at = read_row(raw, at, row)
            before = cast(Any, tuple(row))
            at = read_row(raw, at, row)
            changes[place] = make(table, _UPDATE, before, cast(Any, tuple(row)))
        elif op == _DELETE_CODE:
            at = read_row(raw, at, row)
            changes[place] = make(table, _DELETE, cast(Any, tuple(row)), None)
        else:
            raise MalformedError(f"operation {op}")
        place += 1
    if at != end or placed != len(statements):
        raise MalformedError("the packed changes and the envelope disagree on where they end")
    return cast(tuple[Change, ...], tuple(changes))


def _read_count(raw: bytes, at: i64) -> tuple[i64, i64]:
    """Read a varint that has to fit a machine word, as all that counts or numbers things does."""
    byte: i64 = raw[at]
    if byte < 0x80:
        return byte, at + 1
    number, behind = read_varint(raw, at)
    if number >= _PLAIN_INT:
        raise MalformedError(f"the count {number} at offset {at}")
    return number, behind


def _read_chunk(raw: bytes, at: i64) -> tuple[bytes, i64]:
    """Read a length and that many bytes."""
    size, at = read_size(raw, at)
    return raw[at : at + size], at + size


def _field(raw: bytes, at: int) -> tuple[int, int | bytes, int]:
    """Read a field: its number, a varint or bytes, and the place after it; number 0 for one of fixed width."""
    key, at = read_varint(raw, at)
    wire = key & 7
    if wire == 2:
        chunk, at = read_sized(raw, at)
        return key >> 3, chunk, at
    if wire == 0:
        number, at = read_varint(raw, at)
        return key >> 3, number, at
    if wire not in (1, 5):
        raise MalformedError(f"wire type {wire}")
    at += 8 if wire == 1 else 4
    if at > len(raw):
        raise MalformedError("a fixed-width field passes the end")
    return 0, 0, at


def _fields(raw: bytes) -> list[tuple[int, int | bytes]]:
    """Return a message's fields in wire order as (number, varint or bytes); fixed-width ones are passed over."""
    fields: list[tuple[int, int | bytes]] = []
    at = 0
    while at < len(raw):
        field, body, at = _field(raw, at)
        fields.append((field, body))
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
        raise MalformedError(f"change type {kind} in the envelope; only statements belong there")
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


def count_changes(raw: bytes) -> int:
    """Return how many changes a payload has, without reading them; 0 for bytes that are none."""
    statements = 0
    try:
        for field, body in _fields(raw):
            if field == PACKED_FIELD and isinstance(body, bytes):
                tables, at = _read_count(body, 1)
                for _ in range(tables):
                    _, at = _read_chunk(body, at)
                return _read_count(body, at)[0]
            statements += field == 1
    except (ValueError, IndexError):
        return 0
    return statements


def decode(raw: bytes) -> Payload:
    """Read a payload. Raises PayloadError for bytes that `encode` cannot have written.

    Shape: time and memory are proportional to `raw`; unknown envelope fields are passed over, unknown value tags
    become `Other`.
    """
    start: i64 = -1
    end: i64 = 0
    try:
        if len(raw) > 2 and raw[0] == 0xA2 and raw[1] == 6:  # nothing but the packed form, as nearly always
            size, begin = read_size(raw, 2)
            if begin + size == len(raw):
                return _PAYLOAD(changes=_read_packed(raw, begin, len(raw), (), ()))
        metadata: list[tuple[str, str]] = []
        options: list[tuple[str, str]] = []
        statements: list[Statement] = []
        at: i64 = 0
        while at < len(raw):
            if raw[at] == 0xA2 and raw[at + 1] == 6:  # _TAG_PACKED
                size, start = read_size(raw, at + 2)
                at = end = start + size
                continue
            field, body, at = _field(raw, at)
            if field == 2:
                metadata.append(_read_option(body))
            elif field == 3:
                options.append(_read_option(body))
            elif field == 1:
                statements.append(_read_one_change(body))
            elif field == PACKED_FIELD and isinstance(body, bytes):  # its key written in more bytes than it needs
                start, end = at - len(body), at
        changes: tuple[Change, ...] = tuple(statements)
        if start >= 0:
            changes = _read_packed(raw, start, end, tuple(statements), tuple(options))
    except (ValueError, IndexError, struct.error, ArithmeticError) as exc:
        reason = "it ends in the middle" if isinstance(exc, IndexError) else str(exc)
        raise PayloadError(why=reason) from exc
    return Payload(metadata=tuple(metadata), options=tuple(options), changes=changes)
