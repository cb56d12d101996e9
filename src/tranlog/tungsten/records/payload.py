"""The bytes of a serialized event: the ancestor's protobuf header and body, read and written.

Owns both directions, for every message that the replicator writes. What a cell means is `values`'s; what stands
around the payload is `codec`'s. No protobuf library: a generated class per cell costs ten times as much, and is the
tests' oracle. The hard idea: what is read and written again must be the same bytes, so optional fields keep whether
they were there (None), and nothing is normalized on the way in. The event's own types stand in `event`, so that
this module can be compiled.

Source: conformance/tungsten.md B2, B3.
"""

from __future__ import annotations

import struct
from typing import Final, TypeAlias

from tranlog.change import Op
from tranlog.errors import PayloadError, RecordLimitError
from tranlog.tungsten.records import values
from tranlog.tungsten.records.event import (
    ColumnSpec,
    Event,
    EventChange,
    EventHeader,
    FileDelete,
    FileFragment,
    FileQuery,
    JavaObject,
    Row,
    RowChanges,
    RowId,
    StatementChange,
    TableChange,
)
from tranlog.tungsten.records.values import BinaryText, Cell, Flag, Long, Moment, Unscaled
from tranlog.types import F32

JAVA_STREAM: Final = b"\xac\xed\x00\x05"
"""What a Java object stream begins with; no protobuf writer begins a message so (a varint that ends in a zero byte)."""


_F32: Final = struct.Struct("<f")
_F64: Final = struct.Struct("<d")
_U64: Final = (1 << 64) - 1
_OPS: Final = {int(op): op for op in Op}


class _Malformed(Exception):
    """The bytes are no message of the ancestor's; turned into PayloadError where decoding began."""


# --- reading ---------------------------------------------------------------------------------------------

_Field: TypeAlias = tuple[int, int, int]
"""(tag, value, 0) of a varint, (tag, first byte, end) of anything else; the tag is field number and wire type."""


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    """Read a varint of up to 64 bits; return it and where the next byte stands."""
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
            return number & _U64, at
        shift += 7
        if shift > 63:
            raise _Malformed("a varint of more than ten bytes")


def _fields(raw: bytes, at: int, end: int) -> list[_Field]:
    """Split a message into its fields. Raises _Malformed, and IndexError past the end of `raw`."""
    out: list[_Field] = []
    add = out.append
    while at < end:
        tag = raw[at]
        at += 1
        if tag > 0x7F:
            tag, at = _varint(raw, at - 1)
        wire = tag & 7
        if wire == 2:
            size = raw[at]
            at += 1
            if size > 0x7F:
                size, at = _varint(raw, at - 1)
            stop = at + size
            add((tag, at, stop))
            at = stop
        elif wire == 0:
            number = raw[at]
            at += 1
            if number > 0x7F:
                number, at = _varint(raw, at - 1)
            add((tag, number, 0))
        elif wire == 5:
            add((tag, at, at + 4))
            at += 4
        elif wire == 1:
            add((tag, at, at + 8))
            at += 8
        else:
            raise _Malformed(f"wire type {wire} of a field")
        if tag < 8:
            raise _Malformed("field number 0")
    if at != end:
        raise _Malformed("a field runs past the end of its message")
    return out


def _int64(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


def _int32(number: int) -> int:
    number &= 0xFFFF_FFFF
    return number - (1 << 32) if number >> 31 else number


def _sint32(number: int) -> int:
    number &= 0xFFFF_FFFF
    return number >> 1 ^ -(number & 1)


def _sint64(number: int) -> int:
    return number >> 1 ^ -(number & 1)


def _required(what: str, value: int | None) -> int:
    if value is None:
        raise _Malformed(f"{what} is missing")
    return value


def _required_text(what: str, value: str | None) -> str:
    if value is None:
        raise _Malformed(f"{what} is missing")
    return value


def _option(raw: bytes, at: int, end: int) -> tuple[str, str]:
    name: str | None = None
    value: str | None = None
    for tag, a, b in _fields(raw, at, end):
        if tag == 0x0A:
            name = raw[a:b].decode()
        elif tag == 0x12:
            value = raw[a:b].decode()
    if name is None or value is None:
        raise _Malformed("an option without a name or a value")
    return name, value


def _header(raw: bytes, at: int, end: int) -> EventHeader:
    seqno: int | None = None
    fragno: int | None = None
    last_frag: int | None = None
    tstamp: int | None = None
    serialized: int | None = None
    epoch: int | None = None
    filtered: int | None = None
    seqno_end: int | None = None
    fragno_end: int | None = None
    source_id: str | None = None
    event_id: str | None = None
    shard_id: str | None = None
    for tag, a, b in _fields(raw, at, end):
        if tag == 0x08:
            seqno = _int64(a)
        elif tag == 0x10:
            fragno = _int32(a)
        elif tag == 0x18:
            last_frag = a
        elif tag == 0x20:
            tstamp = _int64(a)
        elif tag == 0x28:
            serialized = _int64(a)
        elif tag == 0x32:
            source_id = raw[a:b].decode()
        elif tag == 0x38:
            epoch = _int64(a)
        elif tag == 0x42:
            event_id = raw[a:b].decode()
        elif tag == 0x4A:
            shard_id = raw[a:b].decode()
        elif tag == 0x50:
            filtered = a
        elif tag == 0x58:
            seqno_end = _int64(a)
        elif tag == 0x60:
            fragno_end = _int32(a)
    return EventHeader(
        seqno=_required("the header's seqno", seqno),
        fragno=_required("the header's fragno", fragno),
        last_frag=_required("the header's lastFrag", last_frag) != 0,
        tstamp=_required("the header's sourceTstamp", tstamp),
        serialized=_required("the header's extractedTstamp", serialized),
        source_id=_required_text("the header's sourceId", source_id),
        epoch=_required("the header's epochNumber", epoch),
        event_id=_required_text("the header's eventId", event_id),
        shard_id=_required_text("the header's shardId", shard_id),
        filtered=_required("the header's filteredEvent", filtered) != 0,
        seqno_end=seqno_end,
        fragno_end=fragno_end,
    )


def _statement(raw: bytes, at: int, end: int) -> StatementChange:
    schema: str | None = None
    timestamp: int | None = None
    query: str | None = None
    raw_query: bytes | None = None
    error_code: int | None = None
    options: list[tuple[str, str]] = []
    for tag, a, b in _fields(raw, at, end):
        if tag == 0x0A:
            schema = raw[a:b].decode()
        elif tag == 0x10:
            timestamp = _int64(a)
        elif tag == 0x1A:
            query = raw[a:b].decode()
        elif tag == 0x22:
            options.append(_option(raw, a, b))
        elif tag == 0x28:
            error_code = _int32(a)
        elif tag == 0x32:
            raw_query = raw[a:b]
    return StatementChange(
        schema=schema,
        timestamp=timestamp,
        query=query,
        options=tuple(options),
        error_code=_required("a statement's errorCode", error_code),
        raw_query=raw_query,
    )


def _spec(raw: bytes, at: int, end: int) -> ColumnSpec:
    index: int | None = None
    sql_type: int | None = None
    signed: int | None = None
    length: int | None = None
    not_null: int | None = None
    name: str | None = None
    description: str | None = None
    for tag, a, b in _fields(raw, at, end):
        if tag == 0x08:
            index = _int32(a)
        elif tag == 0x12:
            name = raw[a:b].decode()
        elif tag == 0x18:
            sql_type = _int32(a)
        elif tag == 0x20:
            signed = a
        elif tag == 0x28:
            length = _int32(a)
        elif tag == 0x30:
            not_null = a
        elif tag == 0x3A:
            description = raw[a:b].decode()
    return ColumnSpec(
        index=_required("a column's index", index),
        name=name,
        sql_type=_required("a column's type", sql_type),
        signed=_required("a column's signed", signed) != 0,
        length=_required("a column's length", length),
        not_null=_required("a column's notNull", not_null) != 0,
        description=description,
    )


def _cell(raw: bytes, at: int, end: int) -> Cell:
    kind = 0
    number: int | None = None
    long: int | None = None
    text: str | None = None
    first = stop = float_at = double_at = 0
    for tag, a, b in _fields(raw, at, end):
        if tag == 0x08:
            kind = a
        elif tag == 0x10:
            number = _sint32(a)
        elif tag == 0x18:
            long = _sint64(a)
        elif tag == 0x32:
            text = raw[a:b].decode()
        elif tag == 0x3A:
            first, stop = a, b
        elif tag == 0x29:
            double_at = a
        elif tag == 0x25:
            float_at = a
    if kind == values.STRING:
        return text or ""
    if kind == values.INT:
        return number or 0
    if kind == values.LONG:
        return Long(long or 0)
    if kind == values.NULL:
        return None
    if kind == values.TIMESTAMP or kind == values.DATE or kind == values.TIME:
        return Moment(kind, long, number, text)
    if kind == values.DECIMAL:
        return Unscaled(raw[first:stop], number or 0)
    if kind == values.BLOB:
        return raw[first:stop]
    if kind == values.DOUBLE:
        return float(_F64.unpack_from(raw, double_at)[0]) if double_at else 0.0
    if kind == values.FLOAT:
        return F32(_F32.unpack_from(raw, float_at)[0] if float_at else 0.0)
    if kind == values.BIT:
        return Flag(number or 0)
    if kind == values.BINARYSTRING:
        return BinaryText(raw[first:stop])
    raise _Malformed(f"a value of the unknown type {kind}")


def _row(raw: bytes, at: int, end: int) -> Row:
    return tuple([_cell(raw, a, b) for tag, a, b in _fields(raw, at, end) if tag == 0x0A])


def _table(raw: bytes, at: int, end: int) -> TableChange:
    schema: str | None = None
    table: str | None = None
    op: Op | None = None
    table_id: int | None = None
    key_specs: list[ColumnSpec] = []
    column_specs: list[ColumnSpec] = []
    keys: list[Row] = []
    rows: list[Row] = []
    for tag, a, b in _fields(raw, at, end):
        if tag == 0x3A:
            rows.append(_row(raw, a, b))
        elif tag == 0x32:
            keys.append(_row(raw, a, b))
        elif tag == 0x2A:
            column_specs.append(_spec(raw, a, b))
        elif tag == 0x22:
            key_specs.append(_spec(raw, a, b))
        elif tag == 0x0A:
            schema = raw[a:b].decode()
        elif tag == 0x12:
            table = raw[a:b].decode()
        elif tag == 0x18:
            op = _OPS.get(a)
        elif tag == 0x40:
            table_id = _sint64(a)
    if op is None:
        raise _Malformed("a row change without an action, or with an unknown one")
    return TableChange(
        schema=_required_text("a row change's schema", schema),
        table=_required_text("a row change's table", table),
        op=op,
        key_specs=tuple(key_specs),
        column_specs=tuple(column_specs),
        keys=tuple(keys),
        rows=tuple(rows),
        table_id=table_id,
    )


def _rows(raw: bytes, at: int, end: int) -> RowChanges:
    tables: list[TableChange] = []
    options: list[tuple[str, str]] = []
    for tag, a, b in _fields(raw, at, end):
        if tag == 0x0A:
            tables.append(_table(raw, a, b))
        elif tag == 0x12:
            options.append(_option(raw, a, b))
    return RowChanges(tables=tuple(tables), options=tuple(options))


def _row_id(raw: bytes, at: int, end: int) -> RowId:
    number: int | None = None
    kind: int | None = None
    for tag, a, _ in _fields(raw, at, end):
        if tag == 0x08:
            number = _int64(a)
        elif tag == 0x10:
            kind = _int32(a)
    return RowId(number=_required("a row id's number", number), kind=kind)


def _file_fragment(raw: bytes, at: int, end: int) -> FileFragment:
    file_id: int | None = None
    content: bytes | None = None
    schema: str | None = None
    for tag, a, b in _fields(raw, at, end):
        if tag == 0x08:
            file_id = _int32(a)
        elif tag == 0x12:
            content = raw[a:b]
        elif tag == 0x1A:
            schema = raw[a:b].decode()
    if content is None:
        raise _Malformed("a file fragment without its bytes")
    return FileFragment(file_id=_required("a file fragment's fileId", file_id), raw=content, schema=schema)


def _file_query(raw: bytes, at: int, end: int) -> FileQuery:
    statement: StatementChange | None = None
    numbers: list[int | None] = [None, None, None]
    for tag, a, b in _fields(raw, at, end):
        if tag == 0x0A:
            statement = _statement(raw, a, b)
        elif tag in (0x10, 0x18, 0x20):
            numbers[(tag >> 3) - 2] = _int32(a)
    if statement is None:
        raise _Malformed("a LOAD DATA without its statement")
    return FileQuery(
        statement=statement,
        file_id=_required("a LOAD DATA's fileId", numbers[0]),
        name_start=_required("a LOAD DATA's filenameStartPos", numbers[1]),
        name_end=_required("a LOAD DATA's filenameEndPos", numbers[2]),
    )


def _file_delete(raw: bytes, at: int, end: int) -> FileDelete:
    file_id: int | None = None
    for tag, a, _ in _fields(raw, at, end):
        if tag == 0x08:
            file_id = _int32(a)
    return FileDelete(file_id=_required("a file's fileId", file_id))


def _change(raw: bytes, at: int, end: int) -> EventChange:
    kind = 0
    content: dict[int, tuple[int, int]] = {}
    for tag, a, b in _fields(raw, at, end):
        if tag == 0x08:
            kind = a
        else:
            content[tag] = (a, b)
    match kind:
        case 1:
            return _rows(raw, *_content(content, 0x12))
        case 2:
            return _statement(raw, *_content(content, 0x1A))
        case 3:
            return _row_id(raw, *_content(content, 0x22))
        case 4:
            return _file_fragment(raw, *_content(content, 0x2A))
        case 5:
            return _file_query(raw, *_content(content, 0x32))
        case 6:
            return _file_delete(raw, *_content(content, 0x3A))
    raise _Malformed(f"a change of the unknown type {kind}")


def _content(content: dict[int, tuple[int, int]], tag: int) -> tuple[int, int]:
    found = content.get(tag)
    if found is None:
        raise _Malformed("a change without its content")
    return found


def _delimited(raw: bytes, at: int) -> tuple[int, int]:
    """Return where the message whose length stands at `at` begins and ends."""
    size, at = _varint(raw, at)
    if at + size > len(raw):
        raise _Malformed(f"{len(raw) - at} of its {size} bytes are there")
    return at, at + size


def decode(raw: bytes) -> Event | JavaObject:
    """Read a record's payload.

    Raises PayloadError for what neither of the ancestor's serializers wrote. Fields that are not known are passed
    over, as any reader of protobuf does.
    """
    if raw.startswith(JAVA_STREAM):
        return JavaObject(raw)
    try:
        at, end = _delimited(raw, 0)
        header = _header(raw, at, end)
        at, end = _delimited(raw, end)
        if end != len(raw):
            raise _Malformed(f"{len(raw) - end} bytes behind its end")
        changes: list[EventChange] = []
        metadata: list[tuple[str, str]] = []
        options: list[tuple[str, str]] = []
        for tag, a, b in _fields(raw, at, end):
            if tag == 0x0A:
                changes.append(_change(raw, a, b))
            elif tag == 0x12:
                metadata.append(_option(raw, a, b))
            elif tag == 0x1A:
                options.append(_option(raw, a, b))
    except (_Malformed, IndexError, UnicodeDecodeError) as exc:
        raise PayloadError(why=_why(exc)) from exc
    return Event(header=header, changes=tuple(changes), metadata=tuple(metadata), options=tuple(options))


def decode_header(raw: bytes) -> EventHeader | None:
    """Read only the header inside a payload, or what there is of the payload; None for a Java object.

    Raises PayloadError, also where `raw` ends before the header does.
    """
    if raw.startswith(JAVA_STREAM):
        return None
    try:
        at, end = _delimited(raw, 0)
        return _header(raw, at, end)
    except (_Malformed, IndexError, UnicodeDecodeError) as exc:
        raise PayloadError(why=_why(exc)) from exc


def _why(exc: Exception) -> str:
    if isinstance(exc, UnicodeDecodeError):
        return f"text that is not UTF-8 ({exc.reason})"
    return "it ends in the middle of a field" if isinstance(exc, IndexError) else str(exc)


# --- writing ---------------------------------------------------------------------------------------------

_ONE_BYTE: Final = tuple([bytes((n,)) for n in range(0x80)])


def _write_varint(number: int) -> bytes:
    if 0 <= number < 0x80:
        return _ONE_BYTE[number]
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _write_int(number: int) -> bytes:
    """Write an int32 or int64: below 0 as 64 bits of two's complement, which takes ten bytes."""
    return _write_varint(number if number >= 0 else number + (1 << 64))


def _write_sint(number: int) -> bytes:
    return _write_varint(number << 1 if number >= 0 else ~(number << 1))


def _sized(tag: bytes, raw: bytes) -> bytes:
    return tag + _write_varint(len(raw)) + raw


def _text(tag: bytes, text: str) -> bytes:
    raw = text.encode()
    return tag + _write_varint(len(raw)) + raw


def _check(what: str, number: int, bits: int) -> int:
    if not -1 << bits - 1 <= number < 1 << bits - 1:
        raise ValueError(f"{what} {number} does not fit {bits} bits")
    return number


def _write_option(tag: bytes, option: tuple[str, str]) -> bytes:
    return _sized(tag, _text(b"\x0a", option[0]) + _text(b"\x12", option[1]))


def _write_header(header: EventHeader) -> bytes:
    parts = [
        b"\x08" + _write_int(_check("the seqno", header.seqno, 64)),
        b"\x10" + _write_int(_check("the fragno", header.fragno, 32)),
        b"\x18\x01" if header.last_frag else b"\x18\x00",
        b"\x20" + _write_int(_check("the commit time", header.tstamp, 64)),
        b"\x28" + _write_int(_check("the time", header.serialized, 64)),
        _text(b"\x32", header.source_id),
        b"\x38" + _write_int(_check("the epoch", header.epoch, 64)),
        _text(b"\x42", header.event_id),
        _text(b"\x4a", header.shard_id),
        b"\x50\x01" if header.filtered else b"\x50\x00",
    ]
    if header.seqno_end is not None:
        parts.append(b"\x58" + _write_int(_check("the end seqno", header.seqno_end, 64)))
    if header.fragno_end is not None:
        parts.append(b"\x60" + _write_int(_check("the end fragno", header.fragno_end, 32)))
    return b"".join(parts)


def _write_statement(change: StatementChange) -> bytes:
    parts = []
    if change.schema is not None:
        parts.append(_text(b"\x0a", change.schema))
    if change.timestamp is not None:
        parts.append(b"\x10" + _write_int(_check("a statement's time", change.timestamp, 64)))
    if change.query is not None:
        parts.append(_text(b"\x1a", change.query))
    parts += [_write_option(b"\x22", option) for option in change.options]
    parts.append(b"\x28" + _write_int(_check("an error code", change.error_code, 32)))
    if change.raw_query is not None:
        parts.append(_sized(b"\x32", change.raw_query))
    return b"".join(parts)


def _write_spec(tag: bytes, spec: ColumnSpec) -> bytes:
    parts = [b"\x08" + _write_int(_check("a column's index", spec.index, 32))]
    if spec.name is not None:
        parts.append(_text(b"\x12", spec.name))
    parts += [
        b"\x18" + _write_int(_check("a column's type", spec.sql_type, 32)),
        b"\x20\x01" if spec.signed else b"\x20\x00",
        b"\x28" + _write_int(_check("a column's length", spec.length, 32)),
        b"\x30\x01" if spec.not_null else b"\x30\x00",
    ]
    if spec.description is not None:
        parts.append(_text(b"\x3a", spec.description))
    return _sized(tag, b"".join(parts))


def _write_cell(cell: Cell) -> bytes:
    match cell:
        case None:
            return b"\x08\x0b"
        case str():
            return b"\x08\x05" + _text(b"\x32", cell)
        case int():
            return b"\x08\x01\x10" + _write_sint(_check("an INT", cell, 32))
        case Long(value=number):
            return b"\x08\x02\x18" + _write_sint(_check("a LONG", number, 64))
        case float():
            return b"\x08\x04\x29" + _F64.pack(cell)
        case F32(value=number):
            return b"\x08\x03\x25" + _F32.pack(number)
        case bytes():
            return b"\x08\x0a" + _sized(b"\x3a", cell)
        case Unscaled(raw=raw, scale=scale):
            return b"\x08\x0c\x10" + _write_sint(_check("a scale", scale, 32)) + _sized(b"\x3a", raw)
        case Flag(value=number):
            return b"\x08\x07\x10" + _write_sint(_check("a BIT", number, 32))
        case BinaryText(raw=raw):
            return b"\x08\x0d" + _sized(b"\x3a", raw)
        case Moment(kind=kind, millis=millis, nanos=nanos, zone=zone):
            out = b"\x08" + _ONE_BYTE[kind]
            if nanos is not None:
                out += b"\x10" + _write_sint(_check("nanoseconds", nanos, 32))
            if millis is not None:
                out += b"\x18" + _write_sint(_check("milliseconds", millis, 64))
            return out if zone is None else out + _text(b"\x32", zone)


def _write_row(tag: bytes, row: Row) -> bytes:
    return _sized(tag, b"".join([_sized(b"\x0a", _write_cell(cell)) for cell in row]))


def _write_table(change: TableChange) -> bytes:
    parts = [_text(b"\x0a", change.schema), _text(b"\x12", change.table), b"\x18" + _ONE_BYTE[change.op]]
    parts += [_write_spec(b"\x22", spec) for spec in change.key_specs]
    parts += [_write_spec(b"\x2a", spec) for spec in change.column_specs]
    parts += [_write_row(b"\x32", row) for row in change.keys]
    parts += [_write_row(b"\x3a", row) for row in change.rows]
    if change.table_id is not None:
        parts.append(b"\x40" + _write_sint(_check("a table's id", change.table_id, 64)))
    return b"".join(parts)


def _write_change(change: EventChange) -> bytes:
    match change:
        case StatementChange():
            return b"\x08\x02" + _sized(b"\x1a", _write_statement(change))
        case RowChanges(tables=tables, options=options):
            parts = [_sized(b"\x0a", _write_table(table)) for table in tables]
            parts += [_write_option(b"\x12", option) for option in options]
            return b"\x08\x01" + _sized(b"\x12", b"".join(parts))
        case RowId(number=number, kind=kind):
            out = b"\x08" + _write_int(_check("a row id", number, 64))
            return b"\x08\x03" + _sized(
                b"\x22", out if kind is None else out + b"\x10" + _write_int(_check("a row id's type", kind, 32))
            )
        case FileFragment(file_id=file_id, raw=raw, schema=schema):
            out = b"\x08" + _write_int(_check("a file's id", file_id, 32)) + _sized(b"\x12", raw)
            return b"\x08\x04" + _sized(b"\x2a", out if schema is None else out + _text(b"\x1a", schema))
        case FileQuery(statement=statement, file_id=file_id, name_start=start, name_end=end):
            out = (
                _sized(b"\x0a", _write_statement(statement)) + b"\x10" + _write_int(_check("a file's id", file_id, 32))
            )
            out += b"\x18" + _write_int(_check("a place", start, 32)) + b"\x20" + _write_int(_check("a place", end, 32))
            return b"\x08\x05" + _sized(b"\x32", out)
        case FileDelete(file_id=file_id):
            return b"\x08\x06" + _sized(b"\x3a", b"\x08" + _write_int(_check("a file's id", file_id, 32)))


def encode(event: Event | JavaObject) -> bytes:
    """Write a payload: what `decode` read, byte for byte, the writer's wall clock in it included.

    Raises RecordLimitError for a number or text that the form cannot hold.
    """
    if isinstance(event, JavaObject):
        return event.raw
    try:
        header = _write_header(event.header)
        parts = [_sized(b"\x0a", _write_change(change)) for change in event.changes]
        parts += [_write_option(b"\x12", option) for option in event.metadata]
        parts += [_write_option(b"\x1a", option) for option in event.options]
    except UnicodeEncodeError as exc:
        raise RecordLimitError(event_id=event.header.event_id, why="text with half a surrogate pair") from exc
    except (ValueError, OverflowError, struct.error) as exc:
        raise RecordLimitError(event_id=event.header.event_id, why=str(exc)) from exc
    body = b"".join(parts)
    return _write_varint(len(header)) + header + _write_varint(len(body)) + body
