"""The raw form: a transaction's changes as a writer stores them in the outbox, and as capture reads them. Pure.

Owns those bytes, both ways. A writer pays inside its transaction, so it stores what the preupdate hook gives, some
rows in one call of MessagePack's; what can be said later is capture's to say: the images' bytes, the key that a row
lacks, the shard. The hard idea is what later cannot be known: which map a table had at that moment, and which shard
its foreign keys gave it. Each piece holds both for every table that it may touch, so it is read without a look at any
schema, whoever wrote it and however long ago. The database file may be damaged: whatever the bytes, `read_piece`
answers with changes or with ChangesDamagedError.

Source: docs/format.md, "The outbox of a SQLite source".
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
from msgspec.msgpack import Ext

from tranlog.affinity import Affinity, affinity
from tranlog.change import Op, Statement, TableMap
from tranlog.errors import SourceError
from tranlog.payload import decode_table_map
from tranlog.row_bytes import encode_row
from tranlog.types import CharsetBytes, Value

Place: TypeAlias = int | tuple[Value, ...]
"""Where a row stands: its rowid, or its key in a table WITHOUT ROWID."""

RawRow: TypeAlias = Sequence[Value | Ext]
"""A row as it is stored: text that is not UTF-8 stands as `Ext`."""

RawTable: TypeAlias = tuple[int, bytes, str]
"""A table's number in a piece, its map by `payload.encode_table_map`, its shard by the rule `table` of that moment."""

encode_value: Final[Callable[[object], bytes]] = msgspec.msgpack.Encoder().encode
"""Return MessagePack's bytes of a value."""
encode_change: Final[Callable[[tuple[Any, ...]], bytes]] = encode_value
"""Return the bytes of one change. A row change is (table's number, before, after, old place, new place), with None for
the image and the place that an INSERT or a DELETE lacks; a statement is (SQL, None, None, None, ms since 1970); many
new rows are (table's number, None, rows, order, first rowid or None), see `encode_rows`."""

TEXT_BYTES: Final = 1
"""MessagePack extension: the bytes of a text that is not UTF-8."""
SCHEMA: Final = "main"
OUTBOX_TABLE: Final = "_tranlog_outbox"
_PIECE: Final = b"\x92"  # MessagePack: an array of two, the tables and the changes
_MANY: Final = struct.Struct(">BI")
_FIVE_WITHOUT_OLD: Final = b"\x95%b\xc0"  # MessagePack: an array of five, a number of a table, nil
_ROWID_MOST: Final = (1 << 63) - 1
_WHOLE_FLOATS: Final = 2.0**63  # neither this nor its negative becomes an integer
_ARRAY: Final = 0xDD  # MessagePack: an array whose length follows in four bytes


@dataclass(eq=False, kw_only=True)
class ChangesDamagedError(SourceError):
    """What stands in the outbox is not what a writer stored there."""

    why: str
    path: str = ""
    outbox_id: int | None = None

    def __str__(self) -> str:
        return (
            f"the changes with the id {self.outbox_id} in the outbox of {self.path} are damaged: {self.why}. "
            "Restore the database from a copy"
        )


class RawChange(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """A change as it is stored; see `encode_change`."""

    table: int | str
    before: list[Any] | None
    after: list[Any] | None
    old_place: Any
    new_place: Any


_decode_entry: Final = msgspec.msgpack.Decoder(list[RawChange]).decode
_decode_piece: Final = msgspec.msgpack.Decoder(tuple[list[RawTable], list[RawChange]]).decode


def encode_statement(sql: str, timestamp: int) -> bytes:
    """Return the bytes of a statement at its place among the row changes."""
    return encode_change((sql, None, None, None, timestamp))


def encode_rows(number: int, rows: bytes, order: bytes, first_rowid: int | None) -> bytes:
    """Return the bytes of many new rows of a table, given as what was bound, in the bindings' order.

    `rows` is the MessagePack of an array of arrays, `order` of an array: for each value of a row the index of its
    column. SQLite stores what it has converted to the columns' affinities, and so does `read_piece`; what it would
    convert between text and numbers must not be among them. `first_rowid`: the column of the key is the rowid, which
    counts up from there, whatever the rows hold for it; they may then lack it.
    """
    return b"".join((_FIVE_WITHOUT_OLD % encode_value(number), rows, order, encode_value(first_rowid)))


def encode_head(tables: Sequence[RawTable]) -> bytes:
    """Return how a piece begins: the tables that its changes may touch."""
    return _PIECE + encode_change(tuple(tables))


def encode_piece(head: bytes, entries: Sequence[bytes]) -> bytes:
    """Return the content of one row of the outbox; each entry is an array of up to 15 changes."""
    count = sum([entry[0] & 15 for entry in entries])
    return b"".join((head, _MANY.pack(_ARRAY, count), *[entry[1:] for entry in entries]))


def raw_row(row: Sequence[Value]) -> RawRow:
    """Return a row in the form in which it is stored."""
    if CharsetBytes in map(type, row):
        return [Ext(TEXT_BYTES, value.raw) if type(value) is CharsetBytes else value for value in row]
    return row


def decode_entry(raw: bytes) -> list[RawChange]:
    """Return changes of this very connection's; what another wrote is `read_piece`'s to judge."""
    return _decode_entry(raw)


def image_of(row: RawRow, reals: Sequence[int]) -> bytes:
    """Return a row's image; `reals` are its columns of REAL affinity.

    SQLite reports the default of a REAL column that was added later as an integer. Raises ValueError for an extension
    that is not ours.
    """
    for at in reals:
        if type(row[at]) is int:
            row = [float(value) if i in reals and type(value) is int else value for i, value in enumerate(row)]
            break
    if Ext in map(type, row):
        row = [_text(value) if type(value) is Ext else value for value in row]
    return encode_row(row)  # type: ignore[arg-type]


def _text(value: Ext) -> CharsetBytes:
    if value.code != TEXT_BYTES:
        raise ValueError(f"a value of the unknown kind {value.code}")
    return CharsetBytes("utf8", bytes(value.data))


def real_columns(table: TableMap) -> tuple[int, ...]:
    """Return the indexes of a table's columns of REAL affinity."""
    return tuple([at for at, column in enumerate(table.columns) if affinity(column.source_type) is Affinity.REAL])


class PieceTable(NamedTuple):
    """A table of a piece.

    `null_key` is the map for a row with NULL in a declared key, which SQLite permits any number of times: such a row
    has no key. None where the key cannot be NULL.
    """

    map: TableMap
    null_key: TableMap | None
    reals: tuple[int, ...]
    integers: tuple[int, ...]
    """Its columns of INTEGER and NUMERIC affinity."""
    shard: str

    def change(self, before: RawRow | None, after: RawRow | None) -> tuple[TableMap, Op, bytes]:
        """Return a row change from its images, of which one may be None. Raises ValueError as `image_of`."""
        table_map, null_key, reals = self.map, self.null_key, self.reals
        if null_key is not None:
            for at in table_map.primary_key:
                if (before is not None and before[at] is None) or (after is not None and after[at] is None):
                    table_map = null_key
                    break
        if before is None:
            assert after is not None
            return table_map, Op.INSERT, image_of(after, reals)
        if after is None:
            return table_map, Op.DELETE, image_of(before, reals)
        return table_map, Op.UPDATE, image_of(before, reals) + image_of(after, reals)


class RawPiece(NamedTuple):
    """A piece as it was read. `changes` is to be gone through once; the images are `row_bytes.encode_row` bytes."""

    tables: list[PieceTable]
    changes: Iterator[tuple[TableMap, Op, bytes] | Statement]


def read_piece(raw: bytes) -> RawPiece:
    """Read what `encode_piece` wrote. Raises ChangesDamagedError, also while `changes` is gone through.

    Shape: time and memory are proportional to `raw`.
    """
    try:
        listed, changes = _decode_piece(raw)
        tables = {number: piece_table(encoded, shard) for number, encoded, shard in listed}
    except (ValueError, IndexError, RecursionError) as exc:
        raise ChangesDamagedError(why=_reason(exc)) from exc
    return RawPiece(list(tables.values()), _changes(tables, changes))


def _reason(exc: Exception) -> str:
    return "they end in the middle" if isinstance(exc, IndexError) else str(exc)


@lru_cache(maxsize=4096)
def piece_table(encoded: bytes, shard: str) -> PieceTable:
    """Return a table from its map's bytes. Raises ValueError, IndexError, RecursionError for damaged ones."""
    table = decode_table_map(encoded)
    null_key = None
    if any(table.columns[at].nullable for at in table.primary_key):
        null_key = msgspec.structs.replace(table, primary_key=())
    whole = (Affinity.INTEGER, Affinity.NUMERIC)
    integers = tuple([at for at, column in enumerate(table.columns) if affinity(column.source_type) in whole])
    return PieceTable(table, null_key, real_columns(table), integers, shard)


def _changes(
    tables: dict[int, PieceTable], changes: list[RawChange]
) -> Iterator[tuple[TableMap, Op, bytes] | Statement]:
    changes.reverse()
    try:
        while changes:
            change = changes.pop()  # let go of as it is read: a row may have 1 GB
            number, before, after = change.table, change.before, change.after
            if type(number) is str:
                timestamp = change.new_place
                if (
                    before is not None
                    or after is not None
                    or type(timestamp) is not int
                    or timestamp >> 63 not in (0, -1)
                ):
                    raise ValueError("a statement that has rows, or no time")
                yield Statement(schema=SCHEMA, sql=number, ddl=True, timestamp=timestamp)
                continue
            change_place, first = change.old_place, change.new_place
            del change
            table = tables.get(number)  # type: ignore[arg-type]
            if table is None:
                raise ValueError(f"the table number {number} is not among those listed")
            if before is None and change_place is not None:
                yield from _new_rows(table, after, change_place, first)
                continue
            table_map, columns = table.map, len(table.map.columns)
            if (before is not None and len(before) != columns) or (after is not None and len(after) != columns):
                raise ValueError(f"a row of table {table_map.name} does not have its {columns} columns")
            if before is None and after is None:
                raise ValueError(f"a change of table {table_map.name} without a row")
            yield table.change(before, after)
    except ValueError as exc:
        raise ChangesDamagedError(why=str(exc)) from exc


def _new_rows(
    table: PieceTable, rows: list[Any] | None, order: object, first_rowid: object
) -> Iterator[tuple[TableMap, Op, bytes]]:
    """Yield the rows that `encode_rows` wrote, each as SQLite has stored it."""
    table_map, null_key, reals, integers, _ = table
    columns = len(table_map.columns)
    given = sorted(order) if type(order) is list and all(type(at) is int for at in order) else None
    expected = list(range(columns))
    counted: int | None = None
    rowid = 0
    if first_rowid is not None:
        if (
            type(first_rowid) is not int
            or len(table_map.primary_key) != 1
            or not -_ROWID_MOST <= first_rowid <= _ROWID_MOST + 1 - len(rows or ())
        ):
            raise ValueError(f"rows of table {table_map.name} count a rowid that it does not have")
        (counted,) = table_map.primary_key
        rowid = first_rowid
        if given is not None and counted not in given:
            expected.remove(counted)
    if rows is None or not given or given != expected:
        raise ValueError(f"rows of table {table_map.name} do not give each of its {columns} columns once")
    assert type(order) is list
    width = len(order)
    # Where each column's value stands in a row; None where all stand as the table has them.
    places = None if order == list(range(columns)) else [order.index(at) if at in order else 0 for at in range(columns)]
    for raw in rows:
        if type(raw) is not list or len(raw) != width:
            raise ValueError(f"a row of table {table_map.name} does not have the {width} values of those beside it")
        row = raw if places is None else [raw[at] for at in places]
        if counted is not None:
            row[counted] = rowid
            rowid += 1
        _store(row, integers, reals)
        table_of_row = table_map
        if null_key is not None and any(row[at] is None for at in table_map.primary_key):
            table_of_row = null_key
        yield table_of_row, Op.INSERT, image_of(row, reals)


def _store(row: list[Any], integers: Sequence[int], reals: Sequence[int]) -> None:
    """Make of a bound row the stored one, in its place.

    A truth value is a number and NaN is NULL. A float that is a whole number becomes an integer where the affinity is
    INTEGER or NUMERIC; in a REAL column it is stored as one, too, which costs a zero its sign.
    """
    kinds = set(map(type, row))
    if bool in kinds:
        row[:] = [int(value) if type(value) is bool else value for value in row]
    if float not in kinds:
        return
    for at, value in enumerate(row):
        if type(value) is not float:
            continue
        if value != value:
            row[at] = None
        elif at in integers:
            if value.is_integer() and -_WHOLE_FLOATS < value < _WHOLE_FLOATS:
                row[at] = int(value)
        elif at in reals:
            row[at] = value + 0.0
