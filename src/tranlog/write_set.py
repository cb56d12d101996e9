"""What a transaction touched, as far as others may have to wait for it: its write set, and the bytes of one.

Owns these values, what a key is called, and what item 02 of a header means; its bytes are `write_item`'s. What counts
as touched is `row_touches`'s, who waits for whom `pipeline/rules/write_order`'s.

Source: docs/format.md, "Write sets".
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from tranlog.change import TableName
from tranlog.checksum import crc32
from tranlog.varint import read_varint
from tranlog.write_item import Touches, pass_tables, read_numbers, read_touches

TOUCHES_MAX: Final = 2_000
"""A write set that would hold more uses than this tells none."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenTable:
    """A table that a transaction touched. `keys`: ids of those whose values are among its `touches`."""

    table: TableName
    keys: frozenset[int]
    operations: Operations


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteSet:
    """What a transaction touched; `changes` counts its row changes. `touches`: hashes of key values, by their `Use`."""

    changes: int
    tables: tuple[WrittenTable, ...] = ()
    touches: Touches = ((), (), ())
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


def text_id(key: int, columns: Iterable[str]) -> int:
    """Return the id under which a key is told of whose columns these hold texts, given its `key_id` or `reference_id`.

    Its texts count in the hashes as far as they differ in more than the case of ASCII letters and spaces at the end.
    """
    return crc32("\0".join(["", "text", *sorted([name.lower() for name in columns])]).encode(), key)


def ascii_id(told: int) -> int:
    """Return the id that stands beside a `text_id` where all these texts are of printable ASCII characters."""
    return crc32(b"\0ascii", told)


# --- bytes -----------------------------------------------------------------------------------------------


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
        end = pass_tables(item, at)
        written = _written(tuple(tables), item[at:end])
        return WriteSet(changes=changes, tables=written, touches=read_touches(item, end))
    except IndexError as exc:
        raise ValueError("a write set ends in the middle") from exc


@lru_cache(maxsize=4096)
def _written(tables: tuple[TableName, ...], raw: bytes) -> tuple[WrittenTable, ...]:
    """Return what an item says of the tables; few such bytes differ, and reading them is most of reading an item."""
    count, at = read_varint(raw, 0)
    if count != len(tables):
        raise ValueError(f"{count} tables in it, {len(tables)} in the header")
    written = []
    for table in tables:
        operations = Operations(raw[at] & ANYTHING)
        keys, at = read_numbers(raw, at + 1)
        written.append(WrittenTable(table=table, keys=frozenset(keys), operations=operations))
    return tuple(written)


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
    for use, hashes in zip(Use, found.touches, strict=True):
        text += f" {use.name}={len(hashes)}"
    for one in found.tables:
        done = "|".join([operation.name or "" for operation in Operations if operation in one.operations])
        text += f" {'.'.join(one.table)}:{done}:{len(one.keys)}"
    return text
