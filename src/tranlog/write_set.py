"""What a transaction touched, as far as others may have to wait for it: its write set, and the bytes of one.

Owns these values, what a key is called, and item 02 of a header. What counts as touched is `row_touches`'s, who waits
for whom `pipeline/rules/by_writes`'s.

Source: docs/format.md, "Write sets".
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from tranlog.change import TableName
from tranlog.checksum import crc32
from tranlog.varint import read_varint, varint

TOUCHES_MAX: Final = 2_000
"""A write set that would hold more uses than this tells none."""
ITEM_BYTES_MAX: Final = 60_000
_NUMBER_BYTES: Final = 4
_BYTES: Final = [bytes((number,)) for number in range(256)]


class Use(enum.IntEnum):
    """How a transaction touches a value of a key."""

    KEY = 1
    """A row with it came or went. After the last KEY and ROW of the value, and the last REFERENCE on each channel."""
    ROW = 2
    """A row was updated and kept it. After the last KEY and ROW."""
    REFERENCE = 3
    """A row that refers to it came or went. After the last KEY; REFERENCE and ROW do not wait for each other."""


class Operations(enum.IntFlag):
    """What a transaction did to the rows of a table."""

    INSERT = 1
    UPDATE = 2
    DELETE = 4
    REKEY = 8
    """An update of a key's value."""


ANYTHING: Final = Operations.INSERT | Operations.UPDATE | Operations.DELETE | Operations.REKEY


class WriteKind(enum.IntEnum):
    """Of what a transaction consists."""

    ROWS = 1
    STATEMENT = 2
    STEP = 3
    """A step of a load, or of a verification."""
    MANY = 4
    """Row changes with more than TOUCHES_MAX uses, which are not told."""


_ROWS: Final = int(WriteKind.ROWS)  # a member of an enum costs several times as much to compare


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenTable:
    """A table that a transaction touched. `keys`: ids of those whose values are among its `touches`."""

    table: TableName
    keys: frozenset[int]
    operations: Operations


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteSet:
    """What a transaction touched; `changes` counts its row changes. `touches`: uses of hashes of key values."""

    changes: int
    tables: tuple[WrittenTable, ...] = ()
    touches: tuple[tuple[Use, int], ...] = ()
    kind: WriteKind = WriteKind.ROWS


# --- keys ------------------------------------------------------------------------------------------------


def key_id(table: TableName, columns: Iterable[str]) -> int:
    """Return the id of a unique key, the primary one too: a hash of the table and its columns in any order.

    Ends: 0 to 2**32 - 1. Upper and lower case are one, as in the names of some databases.
    """
    return crc32("\0".join([part.lower() for part in table] + sorted([name.lower() for name in columns])).encode())


def reference_id(table: TableName, columns: Sequence[str], to: TableName, to_columns: Sequence[str]) -> int:
    """Return the id of a reference: the table, its columns, and what they refer to, in any order of the pairs."""
    pairs = sorted([f"{one}\0{other}".lower() for one, other in zip(to_columns, columns, strict=True)])
    return crc32("\0".join([*[part.lower() for part in (*table, "", *to)], *pairs]).encode())


# --- bytes -----------------------------------------------------------------------------------------------


def encode_write_set(
    kind: int, changes: int, tables: Sequence[tuple[int, frozenset[int]]], touches: Sequence[Sequence[int]]
) -> bytes:
    """Return the bytes of a write set.

    Shape: of each table, in the order of the header's, `Operations` and the ids of its keys; of each `Use`, in its
    order, the hashes.
    """
    pieces = [_BYTES[kind], varint(changes)]
    if kind == _ROWS:
        pieces.append(varint(len(tables)))
        for operations, keys in tables:
            pieces += (_BYTES[operations], _ids(keys))
        pieces += [_numbers(hashes) for hashes in touches]
    item = b"".join(pieces)
    return item if len(item) <= ITEM_BYTES_MAX else encode_write_set(WriteKind.MANY, changes, (), ())


def parse_write_set(item: bytes, tables: Sequence[TableName]) -> WriteSet | None:
    """Read a write set, given the header's tables; None for one of a kind that this release does not know.

    Raises ValueError for bytes that are none.
    """
    try:
        number = item[0]
        if number not in WriteKind._value2member_map_:
            return None
        kind = WriteKind(number)
        changes, at = read_varint(item, 1)
        if kind is not WriteKind.ROWS:
            return WriteSet(changes=changes, kind=kind)
        count, at = read_varint(item, at)
        if count != len(tables):
            raise ValueError(f"{count} tables in it, {len(tables)} in the header")
        written = []
        for table in tables:
            operations = Operations(item[at] & ANYTHING)
            keys, at = _read_numbers(item, at + 1)
            written.append(WrittenTable(table=table, keys=frozenset(keys), operations=operations))
        touches: list[tuple[Use, int]] = []
        for use in Use:
            hashes, at = _read_numbers(item, at)
            touches += [(use, one) for one in hashes]
    except (IndexError, struct.error) as exc:
        raise ValueError("a write set ends in the middle") from exc
    return WriteSet(changes=changes, tables=tuple(written), touches=tuple(touches))


def write_set_text(item: bytes, tables: Sequence[TableName]) -> str:
    """Return a write set for people, empty where there is none; `write set damaged` for bytes that are none.

    Of each table what was done to it and how many of its keys are told; how many values of keys by their use.
    """
    try:
        found = parse_write_set(item, tables) if item else None
    except ValueError:
        return "write set damaged"
    if found is None:
        return "write set of a later release" if item else ""
    text = f"writes {found.kind.name} changes={found.changes}"
    if found.kind is not WriteKind.ROWS:
        return text
    for use in Use:
        text += f" {use.name}={sum(one is use for one, _ in found.touches)}"
    for one in found.tables:
        done = "|".join([operation.name or "" for operation in Operations if operation in one.operations])
        text += f" {'.'.join(one.table)}:{done}:{len(one.keys)}"
    return text


@lru_cache(maxsize=4096)
def _ids(keys: frozenset[int]) -> bytes:
    return _numbers(sorted(keys))


def _numbers(numbers: Sequence[int]) -> bytes:
    return varint(len(numbers)) + _packing(len(numbers)).pack(*numbers)


@lru_cache(maxsize=TOUCHES_MAX)
def _packing(count: int) -> struct.Struct:
    return struct.Struct(f">{count}I")


def _read_numbers(raw: bytes, at: int) -> tuple[tuple[int, ...], int]:
    count, at = read_varint(raw, at)
    if count > (len(raw) - at) // _NUMBER_BYTES:
        raise ValueError(f"{count} numbers announced in a write set of {len(raw)} bytes")
    found: tuple[int, ...] = struct.unpack_from(f">{count}I", raw, at)
    return found, at + count * _NUMBER_BYTES
