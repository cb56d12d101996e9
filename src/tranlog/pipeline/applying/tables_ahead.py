"""The tables that a log's next transactions go to, looked at before any of them is applied.

Owns which tables a pipeline concerns: those that headers name, after its filters. Whether a table takes rows is the
target's to say. The hard idea: a start reads a bounded part of the log, up to the first statement, which may change
what the target has; what only comes after that is left to the first row of a table.

Source: docs/operations.md, "What each database needs".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from tranlog.change import Statement, TableName
from tranlog.ids import Seqno
from tranlog.log.reading.readable import ReadableLog
from tranlog.pipeline.filters.filters import Filter, TableFilter, renamed
from tranlog.shard import UNKNOWN_SHARD
from tranlog.target.target import Target

HEADERS_MOST: Final = 20_000
"""So many transactions after the position are looked at."""
HEADERS_LEAST: Final = 500
"""So many at the log's end are, where fewer are still to be applied."""


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
