"""The bytes of a table map: what a payload says of each table whose rows changed.

Owns this one form, what a payload's options say of a table, and what equal tables share: their bytes, the object read
from them, a fingerprint. The hard idea: nearly every payload has a map that was seen before, so that finding it again
is what has to be fast.

Source: docs/format.md, the byte tables.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

import msgspec
from msgspec.structs import replace

from tranlog.change import CHECKS, Column, ForeignKey, Options, TableMap
from tranlog.types import LogicalType
from tranlog.varint import MalformedError, read_sized_text, read_varint, sized_text, varint

_COLUMN_UNSIGNED, _COLUMN_NULLABLE, _COLUMN_CHARSET, _COLUMN_OF_SEQUENCE = 1, 2, 4, 8
_U64_MAX: Final = (1 << 64) - 1
OLDER: Final = "older"
"""Option name; its value is JSON, for each table its schema, its name, and what `TableMap.older` says."""
_OLDER_FORM: Final = list[tuple[str, str, tuple[tuple[str, str], ...]]]
TABLES_KEPT: Final = 4096
"""How many tables a cache of them holds, before it is emptied."""
_table_maps: Final[dict[bytes, TableMap]] = {}
"""What `decode_table_map` read. A dict, since a call of what `lru_cache` makes costs several times a look at one."""
_last_table_map: Final[list[tuple[bytes, TableMap, int]]] = []


@lru_cache(maxsize=4096)
def encode_table_map(table: TableMap) -> bytes:
    """Return a table map's bytes, without their length before them.

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
            | (_COLUMN_OF_SEQUENCE if table.sequence else 0)
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


def _indexes(indexes: tuple[int, ...]) -> bytes:
    return varint(len(indexes)) + b"".join(map(varint, indexes))


@lru_cache(maxsize=4096)
def fingerprint(table: TableMap) -> str:
    """Return 16 hex digits that two table maps share if and only if they are equal (64-bit BLAKE2b)."""
    return hashlib.blake2b(encode_table_map(table), digest_size=8).hexdigest()


def decode_table_map(raw: bytes) -> TableMap:
    """Read what `encode_table_map` wrote; equal bytes give the same object. Raises ValueError, IndexError."""
    return decode_table_map_and_width(raw)[0]


def decode_table_map_and_width(raw: bytes) -> tuple[TableMap, int]:
    """As `decode_table_map`, with the number of columns, which costs more to ask the table for.

    The last one is looked at first: comparing the bytes costs a fraction of their hash.
    """
    if _last_table_map:
        last, table, width = _last_table_map[0]
        if last == raw:
            return table, width
    known = _table_maps.get(raw)
    if known is None:
        known = _read_table_map(raw)
        if len(_table_maps) >= TABLES_KEPT:
            _table_maps.clear()
        _table_maps[raw] = known
    width = len(known.columns)
    _last_table_map[:1] = ((raw, known, width),)
    return known, width


def _read_table_map(raw: bytes) -> TableMap:
    schema, at = read_sized_text(raw, 0)
    table, at = read_sized_text(raw, at)
    count, at = read_varint(raw, at)
    columns = []
    sequence = False
    for _ in range(count):
        name, at = read_sized_text(raw, at)
        source_type, at = read_sized_text(raw, at)
        logical, flags = raw[at], raw[at + 1]
        at += 2
        sequence = bool(flags & _COLUMN_OF_SEQUENCE)
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
        raise MalformedError("bytes after the end of a table map")
    return TableMap(
        schema=schema,
        table=table,
        columns=tuple(columns),
        primary_key=primary_key,
        unique_keys=tuple(unique_keys),
        foreign_keys=tuple(foreign_keys),
        sequence=sequence,
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


def older_option(tables: Iterable[TableMap]) -> tuple[str, str]:
    """Return the option of a payload that says of tables what `TableMap.older` does."""
    told = [(table.schema, table.table, table.older) for table in tables]
    return OLDER, msgspec.json.encode(told).decode()


def told(table: TableMap, options: Options) -> TableMap:
    """Return a table with what a payload's options say: which checks were off for its rows, what older ones hold.

    Raises ValueError for an option that cannot be read.
    """
    unchecked = tuple([name for name in CHECKS if (name, "0") in options])
    older: tuple[tuple[str, str], ...] = ()
    for name, text in options:
        if name == OLDER:
            try:
                named = msgspec.json.decode(text, type=_OLDER_FORM)
            except msgspec.DecodeError as exc:
                raise ValueError(f"what older rows hold cannot be read: {exc}") from exc
            older = next((columns for schema, of, columns in named if (schema, of) == (table.schema, table.table)), ())
            break
    return replace(table, unchecked=unchecked, older=older) if unchecked or older else table
