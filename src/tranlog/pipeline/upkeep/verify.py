"""Comparison of the target with the source, both as they are now, one table after the other.

Owns the order of the comparison and its verdicts; `filters.comparison` defines equality, and the rows come from the
source's TableReader and from the Target.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from tranlog.change import TableMap
from tranlog.errors import ConfigError, TargetTableError
from tranlog.pipeline.filters.comparison import (
    NOT_MADE,
    Comparison,
    RowDifference,
    TableSum,
    compare_shown,
    row_differences,
    rows_in,
)
from tranlog.pipeline.filters.filter_chain import Chain
from tranlog.pipeline.filters.filters import Filter
from tranlog.row_blocks import RowBlock, encoded
from tranlog.source.source import TableReader
from tranlog.target.target import TargetRows

REPORT_EVERY_ROWS: Final = 20_000

Report = Callable[[str, int], None]
"""Called now and then with a table's name and the rows read of it so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableVerdict:
    """What the comparison of one table found. `differences` only as many as were asked for.

    `problem` tells why the target could not be read (a missing table or column); then its rows count 0.
    """

    table: str
    equal: bool
    source_rows: int
    target_rows: int
    source_checksum: str
    target_checksum: str
    problem: str = ""
    differences: tuple[RowDifference, ...] = ()
    notes: tuple[str, ...] = ()
    """What was not compared, since filters stand between."""
    waits: str = ""
    """That the table waits for a load; as `rules.loading` words it."""


def select_tables(tables: Sequence[TableMap], wanted: Sequence[str], *, option: str = "--table") -> list[TableMap]:
    """Return the tables that are wanted, all of them for none. Raises ConfigError for a table that does not exist."""
    known = {table.name: table for table in tables}
    for name in wanted:
        if name not in known:
            there = f"; it has {', '.join(known)}" if known else ""  # a reader of these tables alone knows no others
            raise ConfigError(option=option, value=name, why=f"the source has no such table{there}")
    return [known[name] for name in dict.fromkeys(wanted)] if wanted else list(tables)


def verify_tables(
    reader: TableReader,
    target: TargetRows,
    *,
    tables: Sequence[TableMap],
    differences: int,
    report: Report,
    filters: Sequence[Filter] = (),
    waiting: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[TableVerdict]:
    """Compare tables one after the other, the source's after `filters`; name up to `differences` keys of each that
    differs. `waiting`: what is said of those that wait for a load.

    Shape: one verdict per table that the filters leave, in order. A source that is written meanwhile may differ from a
    target that follows.

    Raises SourceError, TargetError, FilterError; a table or column that the target lacks is a verdict.
    """
    chain = Chain(filters)
    for table in tables:
        comparison = compare_shown(chain, table)
        if comparison is not None:
            verdict = _verify_table(reader, target, comparison, differences, report)
            yield replace(verdict, waits=waiting.get(comparison.source.name, ""))


def _verify_table(
    reader: TableReader, target: TargetRows, comparison: Comparison, differences: int, report: Report
) -> TableVerdict:
    table = comparison.compared
    here, there = f"{comparison.source.name} at the source", f"{table.name} at the target"
    ours = _sum_up(table, encoded(comparison.shown(reader.rows(comparison.source))), here, report)
    theirs = TableSum(table)
    try:
        theirs = _sum_up(table, target.blocks(table), there, report)
    except TargetTableError as exc:
        if not ours.rows and target.keys((table.schema, table.table)) is None:
            unmade = replace(comparison, notes=(*comparison.notes, NOT_MADE))
            return _verdict(unmade, ours, theirs, equal=True)
        return _verdict(comparison, ours, theirs, problem=exc.why)
    buckets = ours.differing(theirs)
    if not buckets or not differences:
        return _verdict(comparison, ours, theirs, equal=not buckets)
    chosen = frozenset(buckets[:differences])  # each of them holds one difference at least
    found = row_differences(
        table,
        rows_in(table, comparison.shown(reader.rows(comparison.source)), chosen),
        rows_in(table, target.read(table), chosen),
    )
    return _verdict(comparison, ours, theirs, differences=tuple(found[:differences]))


def _verdict(
    comparison: Comparison,
    ours: TableSum,
    theirs: TableSum,
    *,
    equal: bool = False,
    problem: str = "",
    differences: tuple[RowDifference, ...] = (),
) -> TableVerdict:
    return TableVerdict(
        table=comparison.compared.name,
        equal=equal,
        source_rows=ours.rows,
        target_rows=theirs.rows,
        source_checksum=ours.checksum(),
        target_checksum=theirs.checksum(),
        problem=problem,
        differences=differences,
        notes=comparison.notes,
    )


def _sum_up(table: TableMap, blocks: Iterator[RowBlock], where: str, report: Report) -> TableSum:
    total = TableSum(table)
    count = 0
    for block in blocks:
        total.add(block)
        before, count = count, count + len(block)
        if count // REPORT_EVERY_ROWS > before // REPORT_EVERY_ROWS:
            report(where, count)
    report(where, count)
    return total
