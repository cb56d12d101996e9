"""Row images of the binary log: a decoder written for each table, and compiled.

Owns the bytes of rows; what a value is worth is `values`'s. Pure. The hard idea: a loop over columns that asks
each for its type costs several times what the values cost, so the decoder of a table is Python text with the columns
written out one after the other, neighbours of fixed size read by one `struct` call. A row without NULLs takes that
path; a row with NULLs, or with text that does not decode, takes a second one, column by column.

Source: design/sources.md, "Decoders generated per table map".
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, cast
from uuid import UUID

from tranlog.source.mariadb.charsets import is_utf8, text_decoder
from tranlog.source.mariadb.events import BinlogTable, EventFormatError, FieldType
from tranlog.source.mariadb.types import Family, MariadbType
from tranlog.source.mariadb.values import (
    FromBytes,
    Memo,
    bit_bytes,
    date3,
    datetime2,
    decimal_bytes,
    inet_value,
    old_datetime,
    old_time,
    old_timestamp,
    set_value,
    time2,
    timestamp2,
    uncompressed,
    year_value,
)
from tranlog.types import F32, CharsetBytes, EnumLabel, Value

Row = tuple[Value, ...]
RowsDecoder = Callable[[bytes, int], list[Row]]
"""Takes a rows event and the offset of its first image; returns all images in order. Raises EventFormatError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Piece:
    """How one column is read.

    Of fixed size: `code` for struct, and `size`. Else `prefix` bytes of length in front. `value` is an expression
    over `{}`, the number or the bytes read; `safe` is the one that never raises for bad text, where it differs.
    """

    code: str = ""
    size: int = 0
    prefix: int = 0
    value: str = "{}"
    safe: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    """All that a decoder depends on: tables of equal shapes share one."""

    columns: tuple[tuple[FieldType, int, MariadbType], ...]


def rows_decoder(table: BinlogTable, types: Sequence[MariadbType]) -> RowsDecoder:
    """Return the decoder of a table's rows; compiled once per shape.

    Shape: full images only; the caller has looked at the event's column bits.
    """
    columns = tuple((column.kind, column.length, kind) for column, kind in zip(table.columns, types, strict=True))
    decode = _compile(_Shape(columns=columns))
    name = f"{table.schema}.{table.table}"

    def checked(event: bytes, at: int) -> list[Row]:
        try:
            return decode(event, at)
        except (IndexError, ValueError, struct.error, OverflowError, KeyError) as exc:
            raise EventFormatError(why=f"a row of {name}: {exc or type(exc).__name__}") from exc

    return checked


@lru_cache(maxsize=1024)
def _compile(shape: _Shape) -> RowsDecoder:
    scope: dict[str, Any] = {}
    source = rows_decoder_source(shape, scope)
    exec(compile(source, "<rows decoder>", "exec"), scope)
    return cast(RowsDecoder, scope["decode"])


def rows_decoder_source(shape: _Shape, scope: dict[str, Any]) -> str:
    """Return the text of a decoder, and put what it names into `scope`."""
    pieces = [_piece(at, kind, length, typed, scope) for at, (kind, length, typed) in enumerate(shape.columns)]
    count = len(pieces)
    null_bytes = (count + 7) // 8
    scope["from_bytes"] = int.from_bytes
    nulls = "raw[at]" if null_bytes == 1 else f"from_bytes(raw[at : at + {null_bytes}], 'little')"
    row = ", ".join(f"c{at}" for at in range(count)) + ","
    fast = _fast_path(pieces, scope)
    slow = _slow_path(pieces, scope)
    return "\n".join(
        [
            "def decode(raw, at):",
            "    end = len(raw)",
            "    rows = []",
            "    append = rows.append",
            "    while at < end:",
            f"        nulls = {nulls} & {(1 << count) - 1:#x}",
            f"        at += {null_bytes}",
            "        start = at",
            "        if not nulls:",
            "            try:",
            *(f"                {line}" for line in fast),
            f"                append(({row}))",
            "                continue",
            "            except UnicodeDecodeError:",
            "                at = start",
            *(f"        {line}" for line in slow),
            f"        append(({row}))",
            "    if at != end:",
            "        raise ValueError(f'it passes the end of the event by {at - end} bytes')",
            "    return rows",
        ]
    )


def _fast_path(pieces: Sequence[_Piece], scope: dict[str, Any]) -> list[str]:
    """Return the lines for a row without NULLs: runs of fixed size in one call."""
    lines: list[str] = []
    run: list[int] = []

    def close_run() -> None:
        if not run:
            return
        reader = struct.Struct("<" + "".join(pieces[at].code for at in run))
        name = f"read{run[0]}"
        scope[name] = reader.unpack_from
        lines.append(", ".join(f"c{at}" for at in run) + f", = {name}(raw, at)")
        lines.append(f"at += {reader.size}")
        for at in run:
            if pieces[at].value != "{}":
                lines.append(f"c{at} = {pieces[at].value.format(f'c{at}')}")
        run.clear()

    for at, piece in enumerate(pieces):
        if piece.code:
            run.append(at)
        else:
            close_run()
            lines += _variable(at, piece, piece.value)
    close_run()
    return lines


def _slow_path(pieces: Sequence[_Piece], scope: dict[str, Any]) -> list[str]:
    """Return the lines for a row with NULLs or with text that does not decode."""
    lines: list[str] = []
    for at, piece in enumerate(pieces):
        lines.append(f"if nulls & {1 << at:#x}:")
        lines.append(f"    c{at} = None")
        lines.append("else:")
        if piece.code:
            name = f"one{at}"
            scope[name] = struct.Struct("<" + piece.code).unpack_from
            inner = [f"c{at}, = {name}(raw, at)", f"at += {piece.size}"]
            if piece.value != "{}":
                inner.append(f"c{at} = {piece.value.format(f'c{at}')}")
        else:
            inner = _variable(at, piece, piece.safe or piece.value)
        lines += [f"    {line}" for line in inner]
    return lines


_LENGTHS: Final = (
    "",
    "raw[at]",
    "raw[at] | raw[at + 1] << 8",
    "raw[at] | raw[at + 1] << 8 | raw[at + 2] << 16",
    "raw[at] | raw[at + 1] << 8 | raw[at + 2] << 16 | raw[at + 3] << 24",
)


def _variable(at: int, piece: _Piece, value: str) -> list[str]:
    # A slice that passes the end is short, not an error: the end is compared when all rows are read.
    return [
        f"stop = at + {piece.prefix} + ({_LENGTHS[piece.prefix]})",
        f"c{at} = {value.format(f'raw[at + {piece.prefix} : stop]')}",
        "at = stop",
    ]


_INTEGER_CODES: Final = {
    FieldType.TINY: "b",
    FieldType.SHORT: "h",
    FieldType.LONG: "i",
    FieldType.LONGLONG: "q",
}
_INTEGER_SIZES: Final = {"b": 1, "h": 2, "i": 4, "q": 8}
_OLD_TIMES: Final[Mapping[FieldType, Callable[[int], tuple[int, FromBytes]]]] = {
    FieldType.TIME: old_time,
    FieldType.DATETIME: old_datetime,
    FieldType.TIMESTAMP: old_timestamp,
}
_TIMES: Final[Mapping[FieldType, Callable[[int], tuple[int, FromBytes]]]] = {
    FieldType.TIME2: time2,
    FieldType.DATETIME2: datetime2,
    FieldType.TIMESTAMP2: timestamp2,
}


def _piece(at: int, kind: FieldType, length: int, typed: MariadbType, scope: dict[str, Any]) -> _Piece:
    name = f"f{at}"
    match kind:
        case FieldType.TINY | FieldType.SHORT | FieldType.LONG | FieldType.LONGLONG:
            code = _INTEGER_CODES[kind]
            return _Piece(code=code.upper() if typed.unsigned else code, size=_INTEGER_SIZES[code])
        case FieldType.INT24:
            signed = "" if typed.unsigned else ", signed=True"
            return _Piece(code="3s", size=3, value="from_bytes({}, 'little'" + signed + ")")
        case FieldType.FLOAT:
            scope["F32"] = F32
            return _Piece(code="f", size=4, value="F32({})")
        case FieldType.DOUBLE:
            return _Piece(code="d", size=8)
        case FieldType.YEAR:
            scope["year_value"] = year_value
            return _Piece(code="B", size=1, value="year_value({})")
        case FieldType.DATE | FieldType.NEWDATE:
            scope["dates"] = _DATES
            return _Piece(code="3s", size=3, value="dates[{}]")
        case FieldType.TIME | FieldType.DATETIME | FieldType.TIMESTAMP:
            return _converted(name, *_OLD_TIMES[kind](typed.decimals), scope=scope)
        case FieldType.TIME2 | FieldType.DATETIME2 | FieldType.TIMESTAMP2:
            return _converted(name, *_TIMES[kind](typed.decimals), scope=scope)
        case FieldType.NEWDECIMAL:
            return _converted(name, *decimal_bytes(typed.precision, typed.decimals), scope=scope)
        case FieldType.BIT:
            return _converted(name, *bit_bytes(typed.length), scope=scope)
        case FieldType.ENUM | FieldType.SET if length not in range(1, 9) or (kind == FieldType.ENUM and length > 2):
            raise EventFormatError(why=f"a {kind.name} of {length} bytes")
        case FieldType.ENUM:
            # 0 is the server's error value, which it shows as an empty label.
            scope[name] = (EnumLabel(""), *map(EnumLabel, typed.labels))
            return _Piece(code="B" if length == 1 else "H", size=length, value=name + "[{}]")
        case FieldType.SET:
            labels = typed.labels
            scope[name] = Memo(lambda raw: set_value(labels, int.from_bytes(raw, "little")))
            return _Piece(code=f"{length}s", size=length, value=name + "[{}]")
        case FieldType.GEOMETRY:
            return _Piece(prefix=length)
        case FieldType.BLOB | FieldType.TINY_BLOB | FieldType.MEDIUM_BLOB | FieldType.LONG_BLOB:
            return _string(name, length, typed, scope, packed=False)
        case FieldType.BLOB_COMPRESSED:
            return _string(name, length, typed, scope, packed=True)
        case FieldType.STRING | FieldType.VARCHAR | FieldType.VAR_STRING:
            return _string(name, 1 if length < 256 else 2, typed, scope, packed=False)
        case FieldType.VARCHAR_COMPRESSED:
            return _string(name, 1 if length < 256 else 2, typed, scope, packed=True)
        case _:
            raise AssertionError(f"types_in_binlog let {kind.name} pass")


def _converted(name: str, size: int, convert: FromBytes, *, scope: dict[str, Any]) -> _Piece:
    scope[name] = convert
    return _Piece(code=f"{size}s", size=size, value=name + "({})")


def _string(name: str, prefix: int, typed: MariadbType, scope: dict[str, Any], *, packed: bool) -> _Piece:
    content = "{}"
    if packed:
        scope["uncompressed"] = uncompressed
        content = "uncompressed({})"
    match typed.family:
        case Family.TEXT if is_utf8(typed.charset or ""):
            scope[name] = _safe_utf8(typed.charset or "")
            return _Piece(prefix=prefix, value=content + ".decode()", safe=f"{name}({content})")
        case Family.TEXT:
            scope[name] = text_decoder(typed.charset or "")
            return _Piece(prefix=prefix, value=f"{name}({content})")
        case Family.UUID:
            scope["uuid"] = _uuid
            return _Piece(prefix=prefix, value=f"uuid({content})")
        case Family.INET:
            size = 4 if typed.name == "inet4" else 16
            scope[name] = lambda raw: inet_value(typed.name, raw.ljust(size, b"\0"))
            return _Piece(prefix=prefix, value=f"{name}({content})")
        case _ if typed.fixed:
            # The binlog drops the zeros at the end of a BINARY.
            return _Piece(prefix=prefix, value=content + f".ljust({typed.length}, b'\\0')")
        case _:
            return _Piece(prefix=prefix, value=content)


_DATES: Final = Memo(date3)


def _uuid(raw: bytes) -> UUID:
    return UUID(bytes=raw.ljust(16, b"\0"))


def _safe_utf8(charset: str) -> Callable[[bytes], str | CharsetBytes]:
    def decode(raw: bytes) -> str | CharsetBytes:
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return CharsetBytes(charset, raw)

    return decode
