"""Reading a log for its critical path, and naming the key values that are hot on it.

Owns which transactions are read, and finding the row of a hash: a header has hashes only, so the rows of one
transaction that touched it are decoded, and each of their keys is hashed alone.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from decimal import Decimal
from typing import Final

import msgspec

from tranlog.change import Op, RowChange, TableMap, TableName
from tranlog.header import TransactionHeader
from tranlog.ids import Seqno
from tranlog.log.reading.readable import ReadableLog
from tranlog.pipeline.rules.by_writes import Writes
from tranlog.pipeline.rules.critical_path import CriticalPath, PathFinder
from tranlog.row_bytes import encode_row
from tranlog.row_touches import RowTouches
from tranlog.types import Value, value_text
from tranlog.write_set import parse_write_set

CHANNELS: Final = (4, 16, 64)
_REPORT_EVERY: Final = 8_192
_HASHED: Final = (int, float, Decimal, bytes, str, uuid.UUID)
"""Python types of values that count in a hash; any other value of its column has the same one."""


def critical_path(log: ReadableLog, first: Seqno, last: Seqno, report: Callable[[str], object]) -> CriticalPath:
    """Return what the headers of a log tell, `first` and `last` included; both must be in it.

    Raises CorruptRecordError, PurgedError, SegmentGoneError.
    """
    tables: set[TableName] = set()
    for header in _headers(log, first, last):
        tables.update(header.tables or ())
    finder = PathFinder(tables, CHANNELS)
    for header in _headers(log, first, last):
        finder.add(header.seqno, _writes(header))
        if not header.seqno % _REPORT_EVERY:
            report(f"info: seqno {header.seqno} of {last}")
    return finder.found()


def _headers(log: ReadableLog, first: Seqno, last: Seqno) -> Iterator[TransactionHeader]:
    with closing(log.cursor()) as cursor:
        cursor.seek(first)
        while (header := cursor.next_header(0.0)) is not None and header.seqno <= last:
            yield header


def _writes(header: TransactionHeader) -> Writes:
    try:
        return parse_write_set(header.write_set, header.tables or ()) if header.write_set else None
    except ValueError:
        return None


def name_of(log: ReadableLog, value: int, seqno: Seqno) -> str:
    """Return the table and the key of a hash, empty where that transaction's rows do not tell.

    `any` stands for the values of a column that counts in no hash: all of them wait for each other.
    """
    header = log.header(seqno)
    if header is None or header.fragno or header.spilled:
        return ""  # a large one, of which only its last fragment could be had at once
    referred = ""
    for change in log.payload(seqno).changes:
        if not isinstance(change, RowChange):
            continue
        table = change.table
        for columns in (table.primary_key, *table.unique_keys):
            for row in (change.before, change.after):
                if columns and row is not None and value in _hashes(_only(table, columns), row):
                    return _told(table.name, [table.columns[at].name for at in columns], [row[at] for at in columns])
        for foreign in table.foreign_keys:
            for row in (change.before, change.after):
                if row is not None and value in _hashes(table, row):
                    to = f"{foreign.ref_schema}.{foreign.ref_table}"
                    referred = referred or _told(to, foreign.ref_columns, [row[at] for at in foreign.columns])
    return referred


def _only(table: TableMap, columns: tuple[int, ...]) -> TableMap:
    return msgspec.structs.replace(table, primary_key=columns, unique_keys=(), foreign_keys=())


def _hashes(table: TableMap, row: tuple[Value, ...]) -> set[int]:
    touches = RowTouches()
    touches.rows(table, Op.INSERT, (encode_row(row),))
    names = ((table.schema, table.table),)
    found = parse_write_set(touches.take(names), names)
    return set() if found is None else {one for hashes in found.touches for one in hashes}


def _told(table: str, columns: Sequence[str], values: Sequence[Value]) -> str:
    pairs = [
        f"{name}={value_text(value) if isinstance(value, _HASHED) else 'any'}"
        for name, value in zip(columns, values, strict=True)
    ]
    return f"{table} ({', '.join(pairs)})"
