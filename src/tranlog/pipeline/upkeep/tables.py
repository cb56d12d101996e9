"""The tables that a target needs, as the log or the source has them.

Owns finding the newest table map of each table in a log without decoding all of it. The hard idea: a table changes its
shape only by DDL, and DDL stands in the log, so after a table was seen its transactions can be passed over by their
headers until a serial one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tranlog.change import RowChange, Statement, TableMap, TableName
from tranlog.ids import NO_SEQNO
from tranlog.log.reading.readable import ReadableLog
from tranlog.pipeline.filters.filter_chain import Chain
from tranlog.pipeline.filters.filters import Filter
from tranlog.shard import UNKNOWN_SHARD
from tranlog.target.options import TargetKind, has_sequences

REPORT_EVERY = 5_000


def tables_in_log(reader: ReadableLog, *, report: Callable[[int, int], None]) -> list[TableMap]:
    """Return the newest map of each table that the committed part of a log changes rows of, by (schema, table).

    `report` is called now and then with the seqno reached and the last one. Raises LogError.
    """
    held = reader.range()
    if held.committed_seqno == NO_SEQNO:
        return []
    newest: dict[TableName, TableMap] = {}
    fresh: set[TableName] = set()  # tables whose newest map is known to be that of now
    with reader.cursor(committed_only=True) as cursor:
        while (header := cursor.next_header()) is not None:
            if not header.seqno % REPORT_EVERY:
                report(header.seqno, held.committed_seqno)
            serial = header.shard_id == UNKNOWN_SHARD
            if not serial and header.tables is not None and fresh.issuperset(header.tables):
                continue
            for change in cursor.current().changes():
                if isinstance(change, Statement):
                    fresh.clear()
                elif isinstance(change, RowChange):
                    name = (change.table.schema, change.table.table)
                    newest[name] = change.table
                    fresh.add(name)
            if header.seqno >= held.committed_seqno:
                break
    return [newest[name] for name in sorted(newest)]


def tables_behind(filters: Sequence[Filter], tables: Iterable[TableMap], kind: TargetKind) -> list[TableMap]:
    """Return tables as the target has them: those that filters leave, under their new names, without dropped columns.

    Sequences are among them at a kind that has any.
    Raises FilterError; TargetTableError where two would become one.
    """
    chain = Chain(filters)
    taken = [table for table in tables if not table.sequence or has_sequences(kind)]
    return [found.table for found in map(chain.table, taken) if found is not None]
