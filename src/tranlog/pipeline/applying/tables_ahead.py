"""A check of the tables of the log's next transactions, before any of them is applied.

Owns which tables a pipeline concerns: those that headers name, after its filters. The target decides whether a table
takes rows. The hard idea: a start reads a bounded part of the log, up to the first statement, which may change the
target's tables. Tables that come only after that are checked with their first row.

Source: docs/operations.md, "What each database needs".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from tranlog.change import RowChange, Statement, TableMap, TableName
from tranlog.errors import TargetTableError
from tranlog.ids import Seqno
from tranlog.loads import mark_of
from tranlog.log.reading.readable import ReadableLog
from tranlog.pipeline.applying.group import last_metadata
from tranlog.pipeline.filters.filter_chain import Chain
from tranlog.pipeline.filters.filters import EachBatch, EachTransaction, Filter, PresentRows, TableFilter, renamed
from tranlog.pipeline.rules.loading import LoadMoved, read_stored, step
from tranlog.shard import UNKNOWN_SHARD
from tranlog.target.target import Target

HEADERS_MOST: Final = 20_000
"""So many transactions after the position are looked at."""
HEADERS_LEAST: Final = 500
"""So many at the log's end are, where fewer are still to be applied."""
CHANGES_MOST: Final = 100
"""So many changes of a transaction are looked at for tables that no one before it has."""
_FOR_A_LOAD: Final = (
    'Make all tables of the load: tranlog tables create --from source; or have them made: [target] ddl = "follow"'
)


def check_tables(target: Target, reader: ReadableLog, filters: Sequence[Filter], restart: Seqno) -> None:
    """Refuse tables that cannot take rows once, all in one error. Raises TargetTableError."""
    target.rows.check_tables(lambda: _tables(reader, filters, restart))


def _tables(reader: ReadableLog, filters: Sequence[Filter], restart: Seqno) -> Iterator[TableName]:
    held = reader.range()
    seen: set[TableName] = set()
    of_tables = [one for one in filters if isinstance(one, TableFilter)]
    with reader.cursor(committed_only=True) as cursor:
        cursor.seek(Seqno(max(held.first_seqno, min(restart + 1, held.committed_seqno - HEADERS_LEAST + 1))))
        for header in islice(iter(cursor.next_header, None), HEADERS_MOST):
            if header.seqno > restart and header.shard_id == UNKNOWN_SHARD:
                if isinstance(next(iter(cursor.current().changes()), None), Statement):
                    return  # which may give any table another engine
            for name in header.tables or ():
                if name not in seen:
                    seen.add(name)
                    if (there := renamed(of_tables, name)) is not None:
                        yield there


def wanting(
    target: Target,
    reader: ReadableLog,
    filters: Sequence[Filter],
    restart: Seqno,
    *,
    pipeline: str,
    until: Seqno | None,
    left_out: Sequence[tuple[int, int]],
) -> Iterator[TargetTableError]:
    """Yield why a table of the next transactions would not take its first row, one error for each such table.

    Transactions after `until`, inclusive, and those `left_out`, ranges with both ends, are none of them. Of the serial
    ones only the rows of loads are that are for this pipeline and begin here; and nothing is asked where a filter may
    leave a row out.
    """
    if any(isinstance(one, PresentRows | EachTransaction | EachBatch) for one in filters):
        return
    chain, seen = Chain(filters), set[TableName]()
    loads = read_stored(target.positions.read_loads(pipeline))
    with reader.cursor(committed_only=True) as cursor:
        cursor.seek(Seqno(restart + 1))
        for header in islice(iter(cursor.next_header, None), HEADERS_MOST):
            if until is not None and header.seqno > until:
                return
            serial = header.shard_id == UNKNOWN_SHARD
            if not serial and seen.issuperset(header.tables or ()):
                continue
            if any(first <= header.seqno <= last for first, last in left_out):
                continue
            transaction = cursor.current()
            if serial:
                first = next(iter(transaction.changes()), None)
                if isinstance(first, Statement):
                    return  # which may make any table
                if first is not None and _name(first) in seen:
                    continue
                mark = mark_of(last_metadata(transaction))
                if mark is not None:
                    loads, verdict = step(loads, mark, pipeline)
                    if first is not None and isinstance(verdict, LoadMoved) and not first.table.sequence:
                        seen.add(_name(first))
                        yield from _wanting(target, chain, first.table, header.seqno, of_load=True)
                continue
            for change in islice(transaction.changes(), CHANGES_MOST):
                if isinstance(change, Statement):
                    return
                if _name(change) not in seen and not change.table.sequence:
                    seen.add(_name(change))
                    yield from _wanting(target, chain, change.table, header.seqno)
            seen.update(header.tables or ())


def _name(change: RowChange) -> TableName:
    return change.table.schema, change.table.table


def _wanting(
    target: Target, chain: Chain, table: TableMap, seqno: Seqno, *, of_load: bool = False
) -> Iterator[TargetTableError]:
    if (there := chain.table(table)) is not None:
        try:
            target.rows.check_table(there.table)
        except TargetTableError as exc:
            exc.seqno = seqno
            if of_load and exc.remedy == TargetTableError.remedy:
                exc.remedy = _FOR_A_LOAD
            yield exc
