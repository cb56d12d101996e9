"""The bytes of a serialized event: the ancestor's protobuf header and body, read and written.

Owns both directions, for every message that the replicator writes. What a cell means is `values`'s; what stands
around the payload is `codec`'s. No protobuf library: a generated class per cell costs ten times as much, and is the
tests' oracle. The hard idea: what is read and written again must be the same bytes, so optional fields keep whether
they were there (None), and nothing is normalized on the way in. A message is a table of its fields, for reading and for
writing; cells, of which there are many, are read and written by hand.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar, cast

from tranlog.change import Op, Options
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

_T = TypeVar("_T")

JAVA_STREAM: Final = b"\xac\xed\x00\x05"
"""What a Java object stream begins with; no protobuf writer begins a message so (a varint that ends in a zero byte)."""


_F32: Final = struct.Struct("<f")
_F64: Final = struct.Struct("<d")
_U64: Final = (1 << 64) - 1
_OPS: Final = {int(op): op for op in Op}


class _Malformed(Exception):
    """The bytes are no message of the ancestor's; turned into PayloadError where decoding began."""


# --- reading ---------------------------------------------------------------------------------------------

_Found: TypeAlias = tuple[int, int, int]
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


def _fields(raw: bytes, at: int, end: int) -> list[_Found]:
    """Split a message into its fields. Raises _Malformed, and IndexError past the end of `raw`."""
    out: list[_Found] = []
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


def _int32(number: int) -> int:
    number &= 0xFFFF_FFFF
    return number - (1 << 32) if number >> 31 else number


def _sint32(number: int) -> int:
    number &= 0xFFFF_FFFF
    return number >> 1 ^ -(number & 1)


def _sint64(number: int) -> int:
    return number >> 1 ^ -(number & 1)


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


def _sized(raw: bytes) -> bytes:
    return _write_varint(len(raw)) + raw


def _text(text: str) -> bytes:
    return _sized(text.encode())


def _check(what: str, number: int, bits: int) -> int:
    if not -1 << bits - 1 <= number < 1 << bits - 1:
        raise ValueError(f"{what} {number} does not fit {bits} bits")
    return number


def _write_option(option: tuple[str, str]) -> bytes:
    return _sized(b"\x0a" + _text(option[0]) + b"\x12" + _text(option[1]))


def _write_cell(cell: Cell) -> bytes:
    match cell:
        case None:
            return b"\x08\x0b"
        case str():
            return b"\x08\x05" + b"\x32" + _text(cell)
        case int():
            return b"\x08\x01\x10" + _write_sint(_check("an INT", cell, 32))
        case Long(value=number):
            return b"\x08\x02\x18" + _write_sint(_check("a LONG", number, 64))
        case float():
            return b"\x08\x04\x29" + _F64.pack(cell)
        case F32(value=number):
            return b"\x08\x03\x25" + _F32.pack(number)
        case bytes():
            return b"\x08\x0a" + b"\x3a" + _sized(cell)
        case Unscaled(raw=raw, scale=scale):
            return b"\x08\x0c\x10" + _write_sint(_check("a scale", scale, 32)) + b"\x3a" + _sized(raw)
        case Flag(value=number):
            return b"\x08\x07\x10" + _write_sint(_check("a BIT", number, 32))
        case BinaryText(raw=raw):
            return b"\x08\x0d" + b"\x3a" + _sized(raw)
        case Moment(kind=kind, millis=millis, nanos=nanos, zone=zone):
            out = b"\x08" + _ONE_BYTE[kind]
            if nanos is not None:
                out += b"\x10" + _write_sint(_check("nanoseconds", nanos, 32))
            if millis is not None:
                out += b"\x18" + _write_sint(_check("milliseconds", millis, 64))
            return out if zone is None else out + b"\x32" + _text(zone)


def _write_row(row: Row) -> bytes:
    return _sized(b"".join([b"\x0a" + _sized(_write_cell(cell)) for cell in row]))


# --- messages, in both directions ------------------------------------------------------------------------


class _Form(NamedTuple):
    """How a field stands in bytes: its wire type, the value from what `_fields` found, and its bytes after the tag.

    `bits`: those that a number has to fit.
    """

    wire: int
    read: Callable[[bytes, int, int], Any]
    write: Callable[[Any], bytes]
    bits: int = 0


def _op(_: bytes, number: int, __: int) -> Op:
    if number not in _OPS:
        raise _Malformed(f"a row change of the unknown action {number}")
    return _OPS[number]


_BOOL: Final = _Form(0, lambda _, number, __: number != 0, lambda value: _ONE_BYTE[value])
_INT32: Final = _Form(0, lambda _, number, __: _int32(number), _write_int, 32)
_INT64: Final = _Form(0, lambda _, number, __: number - (1 << 64) if number >> 63 else number, _write_int, 64)
_SINT64: Final = _Form(0, lambda _, number, __: _sint64(number), _write_sint, 64)
_OP: Final = _Form(0, _op, lambda op: _ONE_BYTE[op])
_BYTES: Final = _Form(2, lambda raw, at, end: raw[at:end], _sized)
_TEXT: Final = _Form(2, lambda raw, at, end: raw[at:end].decode(), _text)
_OPTION: Final = _Form(2, _option, _write_option)
_ROW: Final = _Form(2, _row, _write_row)


class _Field(NamedTuple):
    """A field of a message, under its name in our type. Neither `required` nor `repeated`: None where it is missing."""

    number: int
    name: str
    form: _Form
    required: bool = False
    repeated: bool = False


def _needed(number: int, name: str, form: _Form) -> _Field:
    return _Field(number, name, form, required=True)


def _many(number: int, name: str, form: _Form) -> _Field:
    return _Field(number, name, form, repeated=True)


class _Message(Generic[_T]):
    """A kind of message: its type of ours, and its fields in the order in which they are written."""

    def __init__(self, what: str, kind: Callable[..., _T], *fields: _Field) -> None:
        self.form = _Form(2, self.read, lambda value: _sized(self.write(value)))
        self._what = what
        self._kind = kind
        self._by_tag = {one.number << 3 | one.form.wire: (one.name, one.form.read, one.repeated) for one in fields}
        self._required = dict.fromkeys(one.name for one in fields if one.required).keys()
        self._repeated = [one.name for one in fields if one.repeated]
        self._fields = [
            (bytes((one.number << 3 | one.form.wire,)), attrgetter(one.name), one.form.write, one.repeated, one)
            for one in fields
        ]

    def read(self, raw: bytes, at: int, end: int) -> _T:
        """Read the message that stands there. Raises _Malformed, IndexError, UnicodeDecodeError."""
        found: dict[str, Any] = {}
        by_tag = self._by_tag
        for tag, first, stop in _fields(raw, at, end):
            if tag in by_tag:
                name, read, repeated = by_tag[tag]
                value = read(raw, first, stop)
                if not repeated:
                    found[name] = value
                elif name in found:
                    found[name].append(value)
                else:
                    found[name] = [value]
        if not self._required <= found.keys():
            missing = next(name for name in self._required if name not in found)
            raise _Malformed(f"{self._what}'s {missing} is missing")
        for name in self._repeated:
            found[name] = tuple(found.get(name, ()))
        return self._kind(**found)

    def write(self, value: _T) -> bytes:
        """Return the message's bytes. Raises ValueError, OverflowError, struct.error."""
        out = b""
        for tag, item_of, write, repeated, field in self._fields:
            item = item_of(value)
            if repeated:
                for one in item:
                    out += tag + write(one)
            elif item is not None:
                bits = field.form.bits
                if bits and not -1 << bits - 1 <= item < 1 << bits - 1:
                    raise ValueError(f"{self._what}'s {field.name} {item} does not fit {bits} bits")
                out += tag + write(item)
        return out


_HEADER: Final = _Message(
    "the header",
    EventHeader,
    _needed(1, "seqno", _INT64),
    _needed(2, "fragno", _INT32),
    _needed(3, "last_frag", _BOOL),
    _needed(4, "tstamp", _INT64),
    _needed(5, "serialized", _INT64),
    _needed(6, "source_id", _TEXT),
    _needed(7, "epoch", _INT64),
    _needed(8, "event_id", _TEXT),
    _needed(9, "shard_id", _TEXT),
    _needed(10, "filtered", _BOOL),
    _Field(11, "seqno_end", _INT64),
    _Field(12, "fragno_end", _INT32),
)
_STATEMENT: Final = _Message(
    "a statement",
    StatementChange,
    _Field(1, "schema", _TEXT),
    _Field(2, "timestamp", _INT64),
    _Field(3, "query", _TEXT),
    _many(4, "options", _OPTION),
    _needed(5, "error_code", _INT32),
    _Field(6, "raw_query", _BYTES),
)
_SPEC: Final = _Message(
    "a column",
    ColumnSpec,
    _needed(1, "index", _INT32),
    _Field(2, "name", _TEXT),
    _needed(3, "sql_type", _INT32),
    _needed(4, "signed", _BOOL),
    _needed(5, "length", _INT32),
    _needed(6, "not_null", _BOOL),
    _Field(7, "description", _TEXT),
)
_read_spec: Final = lru_cache(maxsize=4096)(lambda raw: _SPEC.read(raw, 0, len(raw)))
_SPECS: Final = _Form(
    2, lambda raw, at, end: _read_spec(raw[at:end]), lru_cache(maxsize=4096)(lambda spec: _sized(_SPEC.write(spec)))
)
"""Columns, which are the same in each event of a table."""
_TABLE: Final = _Message(
    "a row change",
    TableChange,
    _needed(1, "schema", _TEXT),
    _needed(2, "table", _TEXT),
    _needed(3, "op", _OP),
    _many(4, "key_specs", _SPECS),
    _many(5, "column_specs", _SPECS),
    _many(6, "keys", _ROW),
    _many(7, "rows", _ROW),
    _Field(8, "table_id", _SINT64),
)
_FILE_ID: Final = _needed(1, "file_id", _INT32)
_CHANGES: Final[tuple[_Message[Any], ...]] = (
    _Message("row changes", RowChanges, _many(1, "tables", _TABLE.form), _many(2, "options", _OPTION)),
    _STATEMENT,
    _Message("a row id", RowId, _needed(1, "number", _INT64), _Field(2, "kind", _INT32)),
    _Message("a file fragment", FileFragment, _FILE_ID, _needed(2, "raw", _BYTES), _Field(3, "schema", _TEXT)),
    _Message(
        "a LOAD DATA",
        FileQuery,
        _needed(1, "statement", _STATEMENT.form),
        _needed(2, "file_id", _INT32),
        _needed(3, "name_start", _INT32),
        _needed(4, "name_end", _INT32),
    ),
    _Message("a file's end", FileDelete, _FILE_ID),
)
"""What a change may be, by its type from 1 on; its content is the field with the number after."""
_TYPE_OF_CHANGE: Final = {
    kind: number
    for number, kind in enumerate((RowChanges, StatementChange, RowId, FileFragment, FileQuery, FileDelete), start=1)
}


def _change(raw: bytes, at: int, end: int) -> EventChange:
    kind = 0
    content: dict[int, tuple[int, int]] = {}
    for tag, first, stop in _fields(raw, at, end):
        if tag == 0x08:
            kind = first
        else:
            content[tag] = (first, stop)
    if not 1 <= kind <= len(_CHANGES):
        raise _Malformed(f"a change of the unknown type {kind}")
    place = content.get(kind + 1 << 3 | 2)
    if place is None:
        raise _Malformed("a change without its content")
    return cast(EventChange, _CHANGES[kind - 1].read(raw, *place))


def _write_change(change: EventChange) -> bytes:
    kind = _TYPE_OF_CHANGE[type(change)]
    return _sized(bytes((0x08, kind, kind + 1 << 3 | 2)) + _sized(_CHANGES[kind - 1].write(change)))


class _Body(NamedTuple):
    """What stands in a payload after the header."""

    changes: tuple[EventChange, ...]
    metadata: Options
    options: Options


_BODY: Final = _Message(
    "the body",
    _Body,
    _many(1, "changes", _Form(2, _change, _write_change)),
    _many(2, "metadata", _OPTION),
    _many(3, "options", _OPTION),
)


# --- payloads --------------------------------------------------------------------------------------------


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
        header = _HEADER.read(raw, at, end)
        at, end = _delimited(raw, end)
        if end != len(raw):
            raise _Malformed(f"{len(raw) - end} bytes after its end")
        body = _BODY.read(raw, at, end)
    except (_Malformed, IndexError, UnicodeDecodeError) as exc:
        raise PayloadError(why=_why(exc)) from exc
    return Event(header=header, changes=body.changes, metadata=body.metadata, options=body.options)


def decode_header(raw: bytes) -> EventHeader | None:
    """Read only the header inside a payload, or what there is of the payload; None for a Java object.

    Raises PayloadError, also where `raw` ends before the header does.
    """
    if raw.startswith(JAVA_STREAM):
        return None
    try:
        at, end = _delimited(raw, 0)
        return _HEADER.read(raw, at, end)
    except (_Malformed, IndexError, UnicodeDecodeError) as exc:
        raise PayloadError(why=_why(exc)) from exc


def _why(exc: Exception) -> str:
    if isinstance(exc, UnicodeDecodeError):
        return f"text that is not UTF-8 ({exc.reason})"
    return "it ends in the middle of a field" if isinstance(exc, IndexError) else str(exc)


def encode(event: Event | JavaObject) -> bytes:
    """Write a payload: what `decode` read, byte for byte, the writer's wall clock in it included.

    Raises RecordLimitError for a number or text that the form cannot hold.
    """
    if isinstance(event, JavaObject):
        return event.raw
    try:
        body = _BODY.write(_Body(event.changes, event.metadata, event.options))
        return _sized(_HEADER.write(event.header)) + _sized(body)
    except UnicodeEncodeError as exc:
        raise RecordLimitError(event_id=event.header.event_id, why="text with half a surrogate pair") from exc
    except (ValueError, OverflowError, struct.error) as exc:
        raise RecordLimitError(event_id=event.header.event_id, why=str(exc)) from exc
