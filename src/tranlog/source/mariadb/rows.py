"""Row images of the binary log: an encoder written for each table, and compiled.

Owns the bytes of rows; what a value is worth is `values`'s. Pure. The hard idea: a loop over columns that asks
each for its type costs several times what the values cost, so the encoder of a table is Python text with the columns
written out one after the other, neighbours of fixed size read by one `struct` call. A row without NULLs takes that
path; a row with NULLs, or with text that does not decode, takes a second one, column by column. It gives
`row_bytes.encode_row` of the values without making most of them: text that is ASCII is copied, a label is looked up
with its tag.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final, cast
from uuid import UUID

from tranlog.charsets import is_utf8, text_decoder
from tranlog.row_bytes import (
    encode_bytes,
    encode_datetime,
    encode_decimal,
    encode_float,
    encode_int,
    encode_other,
    encode_utf8,
    encode_value,
)
from tranlog.servers.mariadb_values import enum_values, set_value
from tranlog.source.mariadb.events import BinlogTable, EventFormatError, FieldType
from tranlog.source.mariadb.types import Family, MariadbType
from tranlog.source.mariadb.values import (
    FromBytes,
    Memo,
    bit_bytes,
    date3,
    datetime2,
    decimal_bytes,
    decimal_text,
    inet_value,
    old_datetime,
    old_time,
    old_timestamp,
    time2,
    timestamp2,
    uncompressed,
    year_value,
)
from tranlog.types import F32, CharsetBytes

RowsEncoder = Callable[[bytes, int], list[bytes]]
"""Takes a rows event and the offset of its first image; returns all images in order, as `row_bytes.encode_row` writes
them. Raises EventFormatError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Piece:
    """How one column is read.

    Of fixed size: `code` for struct, and `size`. Else `prefix` bytes of length in front. `coded` is an expression
    over `{}`, the number or the bytes read, for the value's bytes in a payload; `safe` is the one that never raises
    for bad text, where it differs.
    """

    code: str = ""
    size: int = 0
    prefix: int = 0
    coded: str
    safe: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    """All that an encoder depends on: tables of equal shapes share one."""

    columns: tuple[tuple[FieldType, int, MariadbType], ...]
    carried: tuple[int, ...]


def rows_encoder(
    table: BinlogTable, types: Sequence[MariadbType], *, carried: Sequence[int] | None = None
) -> RowsEncoder:
    """Return the encoder of a table's rows; compiled once per shape.

    Shape: full images only; the caller has looked at the event's column bits. `carried`: the places of the columns
    that are of use, all by default; what the rows hold in others is left out.
    """
    columns = tuple((column.kind, column.length, kind) for column, kind in zip(table.columns, types, strict=True))
    places = tuple(range(len(columns)) if carried is None else carried)
    encode = _compile(_Shape(columns=columns, carried=places))
    name = f"{table.schema}.{table.table}"

    def checked(event: bytes, at: int) -> list[bytes]:
        try:
            return encode(event, at)
        except (IndexError, ValueError, struct.error, OverflowError, KeyError) as exc:
            raise EventFormatError(why=f"a row of {name}: {exc or type(exc).__name__}") from exc

    return checked


def encoder_of_present(
    table: BinlogTable, types: Sequence[MariadbType], carried: Sequence[int], present: int
) -> RowsEncoder:
    """Return the encoder of images that hold some columns alone, those of `carried` among them.

    `present`: a bit for each column that they hold, the first's lowest.
    """
    held = [at for at in range(len(types)) if present >> at & 1]
    part = replace(table, columns=tuple([table.columns[at] for at in held]))
    return rows_encoder(part, [types[at] for at in held], carried=[held.index(at) for at in carried])


@lru_cache(maxsize=1024)
def _compile(shape: _Shape) -> RowsEncoder:
    scope: dict[str, Any] = dict(_ENCODERS)
    exec(compile(_source(shape, scope), "<rows encoder>", "exec"), scope)
    return cast(RowsEncoder, scope["encode"])


_ENCODERS: Final = {
    one.__name__: one for one in (encode_bytes, encode_float, encode_int, encode_other, encode_utf8, encode_value)
}


def _source(shape: _Shape, scope: dict[str, Any]) -> str:
    """Return the text of an encoder, and put what it names into `scope`."""
    pieces = [_piece(at, kind, length, typed, scope) for at, (kind, length, typed) in enumerate(shape.columns)]
    count = len(pieces)
    null_bytes = (count + 7) // 8
    scope["from_bytes"] = int.from_bytes
    nulls = "raw[at]" if null_bytes == 1 else f"from_bytes(raw[at : at + {null_bytes}], 'little')"
    scope["join"] = b"".join
    row = "join((" + ", ".join(f"c{at}" for at in shape.carried) + ",))"
    fast = _fast_path(pieces, scope)
    slow = _slow_path(pieces, scope)
    return "\n".join(
        [
            "def encode(raw, at):",
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
            f"                append({row})",
            "                continue",
            "            except UnicodeDecodeError:",
            "                at = start",
            *(f"        {line}" for line in slow),
            f"        append({row})",
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
        lines.extend(f"c{at} = {pieces[at].coded.format(f'c{at}')}" for at in run)
        run.clear()

    for at, piece in enumerate(pieces):
        if piece.code:
            run.append(at)
        else:
            close_run()
            lines += _variable(at, piece, piece.coded)
    close_run()
    return lines


def _slow_path(pieces: Sequence[_Piece], scope: dict[str, Any]) -> list[str]:
    """Return the lines for a row with NULLs or with text that does not decode."""
    lines: list[str] = []
    for at, piece in enumerate(pieces):
        lines.append(f"if nulls & {1 << at:#x}:")
        lines.append(f"    c{at} = {encode_value(None)!r}")
        lines.append("else:")
        if piece.code:
            name = f"one{at}"
            scope[name] = struct.Struct("<" + piece.code).unpack_from
            inner = [f"c{at}, = {name}(raw, at)", f"at += {piece.size}", f"c{at} = {piece.coded.format(f'c{at}')}"]
        else:
            inner = _variable(at, piece, piece.safe or piece.coded)
        lines += [f"    {line}" for line in inner]
    return lines


_LENGTHS: Final = (
    "",
    "raw[at]",
    "raw[at] | raw[at + 1] << 8",
    "raw[at] | raw[at + 1] << 8 | raw[at + 2] << 16",
    "raw[at] | raw[at + 1] << 8 | raw[at + 2] << 16 | raw[at + 3] << 24",
)


def _variable(at: int, piece: _Piece, coded: str) -> list[str]:
    # A slice that passes the end is short, not an error: the end is compared when all rows are read.
    return [
        f"stop = at + {piece.prefix} + ({_LENGTHS[piece.prefix]})",
        f"c{at} = {coded.format(f'raw[at + {piece.prefix} : stop]')}",
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
    FieldType.TIMESTAMP2: timestamp2,
}


def _piece(at: int, kind: FieldType, length: int, typed: MariadbType, scope: dict[str, Any]) -> _Piece:
    name = f"f{at}"
    match kind:
        case FieldType.TINY | FieldType.SHORT | FieldType.LONG | FieldType.LONGLONG:
            code = _INTEGER_CODES[kind]
            return _Piece(
                code=code.upper() if typed.unsigned else code, size=_INTEGER_SIZES[code], coded="encode_int({})"
            )
        case FieldType.INT24:
            signed = "" if typed.unsigned else ", signed=True"
            return _Piece(code="3s", size=3, coded="encode_int(from_bytes({}, 'little'" + signed + "))")
        case FieldType.FLOAT:
            scope["F32"] = F32
            return _Piece(code="f", size=4, coded="encode_other(F32({}))")
        case FieldType.DOUBLE:
            return _Piece(code="d", size=8, coded="encode_float({})")
        case FieldType.YEAR:
            scope["year_value"] = year_value
            return _Piece(code="B", size=1, coded="encode_int(year_value({}))")
        case FieldType.DATE | FieldType.NEWDATE:
            scope["dates"] = _DATES
            return _Piece(code="3s", size=3, coded="dates[{}]")
        case FieldType.TIME | FieldType.DATETIME | FieldType.TIMESTAMP:
            return _converted(name, *_OLD_TIMES[kind](typed.decimals), scope=scope)
        case FieldType.DATETIME2:
            size, scope[name] = datetime2(typed.decimals, encode_datetime, encode_other)
            return _Piece(code=f"{size}s", size=size, coded=name + "({})")
        case FieldType.TIME2 | FieldType.TIMESTAMP2:
            return _converted(name, *_TIMES[kind](typed.decimals), scope=scope)
        case FieldType.NEWDECIMAL:
            if typed.decimals > _PLAIN_DECIMALS:
                return _converted(name, *decimal_bytes(typed.precision, typed.decimals), scope=scope)
            size, scope[name] = decimal_text(typed.precision, typed.decimals)
            scope["encode_decimal"] = encode_decimal
            return _Piece(code=f"{size}s", size=size, coded=f"encode_decimal({name}({{}}))")
        case FieldType.BIT:
            return _converted(name, *bit_bytes(typed.length), scope=scope)
        case FieldType.ENUM | FieldType.SET if length not in range(1, 9) or (kind == FieldType.ENUM and length > 2):
            raise EventFormatError(why=f"a {kind.name} of {length} bytes")
        case FieldType.ENUM:
            scope[name] = tuple(map(encode_other, enum_values(typed.labels)))
            return _Piece(code="B" if length == 1 else "H", size=length, coded=name + "[{}]")
        case FieldType.SET:
            names = typed.labels
            scope[name] = Memo(lambda raw: encode_other(set_value(names, int.from_bytes(raw, "little"))))
            return _Piece(code=f"{length}s", size=length, coded=name + "[{}]")
        case FieldType.GEOMETRY:
            return _Piece(prefix=length, coded="encode_bytes({})")
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


_PLAIN_DECIMALS: Final = 6
"""With more decimals a small number's text has an exponent, as Decimal writes it."""


def _converted(name: str, size: int, convert: FromBytes, *, scope: dict[str, Any]) -> _Piece:
    scope[name] = convert
    return _Piece(code=f"{size}s", size=size, coded=f"encode_other({name}({{}}))")


def _string(name: str, prefix: int, typed: MariadbType, scope: dict[str, Any], *, packed: bool) -> _Piece:
    content = "{}"
    if packed:
        scope["uncompressed"] = uncompressed
        content = "uncompressed({})"
    match typed.family:
        case Family.TEXT if is_utf8(typed.charset or ""):
            scope[name] = _safe_utf8(typed.charset or "")
            return _Piece(prefix=prefix, coded=f"encode_utf8({content})", safe=f"encode_value({name}({content}))")
        case Family.TEXT:
            scope[name] = text_decoder(typed.charset or "")
            return _Piece(prefix=prefix, coded=f"encode_value({name}({content}))")
        case Family.UUID:
            scope["uuid"] = _uuid
            return _Piece(prefix=prefix, coded=f"encode_other(uuid({content}))")
        case Family.INET:
            size = 4 if typed.name == "inet4" else 16
            scope[name] = lambda raw: inet_value(typed.name, raw.ljust(size, b"\0"))
            return _Piece(prefix=prefix, coded=f"encode_other({name}({content}))")
        case _ if typed.fixed:
            # The binlog drops the zeros at the end of a BINARY.
            return _Piece(prefix=prefix, coded=f"encode_bytes({content}.ljust({typed.length}, b'\\0'))")
        case _:
            return _Piece(prefix=prefix, coded=f"encode_bytes({content})")


_DATES: Final = Memo(lambda raw: encode_other(date3(raw)))


def _uuid(raw: bytes) -> UUID:
    return UUID(bytes=raw.ljust(16, b"\0"))


def _safe_utf8(charset: str) -> Callable[[bytes], str | CharsetBytes]:
    def decode(raw: bytes) -> str | CharsetBytes:
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return CharsetBytes(charset, raw)

    return decode
