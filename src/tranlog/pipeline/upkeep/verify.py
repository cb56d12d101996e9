"""Is the target equal to the source? Counts, checksums that no order changes, and the keys that differ.

Owns the comparison; the rows come from the source's TableReader and from the Target. The hard idea: two tables of any
size are compared in one pass each and constant memory. Every row goes by its key into one of a few thousand buckets,
each with a count and a sum of row hashes; only rows of buckets that differ are held, and only when their keys are
asked for. Rows are equal when all their values are by `types.canonical`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Final

import msgspec

from tranlog.change import TableMap
from tranlog.errors import ConfigError, TargetTableError
from tranlog.payload import encode_row
from tranlog.pipeline.filters.filter_chain import Chain, RowFunction, row_function
from tranlog.pipeline.filters.filters import Filter
from tranlog.source.source import TableReader
from tranlog.target.target import TargetRows
from tranlog.types import Tag, Value, canonical, value_text

BUCKETS: Final = 4096
REPORT_EVERY_ROWS: Final = 20_000
SHOWN_VALUE_CHARS: Final = 60

Row = tuple[Value, ...]
Report = Callable[[str, int], None]
"""Called now and then with a table's name and the rows read of it so far."""


class TableSum:
    """Count and checksum of a table's rows, per bucket. Two are equal if and only if the tables' rows are.

    "Only if" holds but for a chance of about 2**-128 per comparison. Pure; not for threads.
    """

    __slots__ = ("_counts", "_sums", "_table")

    def __init__(self, table: TableMap) -> None:
        self._table = table
        self._counts = [0] * BUCKETS
        self._sums = [0] * BUCKETS

    def add(self, row: Row) -> None:
        """Take a row in; the order of rows makes no difference, their number does."""
        raw = encode_row(row)
        bucket = bucket_of(self._table, row, raw)
        self._counts[bucket] += 1
        self._sums[bucket] += int.from_bytes(hashlib.blake2b(raw, digest_size=16).digest(), "big")

    @property
    def rows(self) -> int:
        """The number of rows taken in."""
        return sum(self._counts)

    def checksum(self) -> str:
        """Return the whole table's sum as 32 hex digits, for people to compare."""
        return f"{sum(self._sums) & ((1 << 128) - 1):032x}"

    def differing(self, other: TableSum) -> list[int]:
        """Return the buckets in which the two disagree; empty: the tables are equal."""
        return [
            bucket
            for bucket in range(BUCKETS)
            if self._counts[bucket] != other._counts[bucket] or self._sums[bucket] != other._sums[bucket]
        ]


def bucket_of(table: TableMap, row: Row, raw: bytes) -> int:
    """Return the bucket of a row: by its primary key, or by all of it (`raw`) where the table has none."""
    return zlib.crc32(encode_row(table.key_of(row)) if table.primary_key else raw) % BUCKETS


@dataclass(frozen=True, slots=True, kw_only=True)
class RowDifference:
    """One key at which the tables differ: `what` says how, in words."""

    key: str
    what: str


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


def select_tables(tables: Sequence[TableMap], wanted: Sequence[str], *, option: str = "--table") -> list[TableMap]:
    """Return the tables that are wanted, all of them for none. Raises ConfigError for a table that does not exist."""
    known = {table.name: table for table in tables}
    for name in wanted:
        if name not in known:
            raise ConfigError(
                option=option, value=name, why=f"the source has no such table; it has {', '.join(known) or 'none'}"
            )
    return [known[name] for name in dict.fromkeys(wanted)] if wanted else list(tables)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What of a table is compared: its map at the source, and on both sides after the filters.

    Masked columns are left out, those of the key apart, whose masks are the same for the same value.
    """

    source: TableMap
    compared: TableMap
    row: RowFunction | None
    keeps: Callable[[Row], bool] | None = None
    notes: tuple[str, ...] = ()


def compare_shown(chain: Chain, table: TableMap) -> Comparison | None:
    """Return how a table is compared, None where filters leave it out. Raises FilterError, TargetTableError."""
    found = chain.table(table)
    if found is None:
        return None
    shown = found.table
    notes = []
    key = {shown.columns[index].name for index in shown.primary_key}
    skipped = [column.name for column in shown.columns if column.name in found.masked and column.name not in key]
    if len(skipped) == len(shown.columns):
        notes.append("all columns are masked: what they are masked by is compared")
        skipped = []
    elif skipped:
        notes.append(f"masked, not compared: {', '.join(skipped)}")
    if skipped:
        kept = [index for index, column in enumerate(shown.columns) if column.name not in skipped]
        at = {old: new for new, old in enumerate(kept)}
        shown = msgspec.structs.replace(
            shown,
            columns=tuple([shown.columns[index] for index in kept]),
            primary_key=tuple([at[index] for index in shown.primary_key]),
            unique_keys=(),
            foreign_keys=(),
        )
        picks = tuple([found.picks[index] for index in kept])
        found = dataclasses.replace(found, table=shown, picks=picks)
    notes += [f"compared as if there were no {name}, which may change its rows" for name in chain.functions]
    row = row_function(found, len(table.columns))
    return Comparison(source=table, compared=shown, row=row, keeps=found.keeps, notes=tuple(notes))


def verify_tables(
    reader: TableReader,
    target: TargetRows,
    *,
    tables: Sequence[TableMap],
    differences: int,
    report: Report,
    filters: Sequence[Filter] = (),
) -> Iterator[TableVerdict]:
    """Compare tables one after the other, the source's after `filters`; name up to `differences` keys of each that
    differs.

    Shape: one verdict per table that the filters leave, in order. A source that is written meanwhile may differ from a
    target that follows.

    Raises SourceError, TargetError, FilterError; a table or column that the target lacks is a verdict.
    """
    chain = Chain(filters)
    for table in tables:
        comparison = compare_shown(chain, table)
        if comparison is not None:
            yield _verify_table(reader, target, comparison, differences, report)


def _verify_table(
    reader: TableReader, target: TargetRows, comparison: Comparison, differences: int, report: Report
) -> TableVerdict:
    table = comparison.compared
    here, there = f"{comparison.source.name} at the source", f"{table.name} at the target"
    ours = _sum_up(table, _source_rows(reader, comparison), here, report)
    theirs = TableSum(table)
    try:
        theirs = _sum_up(table, target.read(table), there, report)
    except TargetTableError as exc:
        return _verdict(comparison, ours, theirs, problem=exc.why)
    buckets = ours.differing(theirs)
    if not buckets or not differences:
        return _verdict(comparison, ours, theirs, equal=not buckets)
    chosen = frozenset(buckets[:differences])  # each of them holds one difference at least
    found = row_differences(
        table,
        _rows_in(table, _source_rows(reader, comparison), chosen),
        _rows_in(table, target.read(table), chosen),
    )
    return _verdict(comparison, ours, theirs, differences=tuple(found[:differences]))


def _source_rows(reader: TableReader, comparison: Comparison) -> Iterator[Row]:
    rows = iter(reader.rows(comparison.source))
    if comparison.keeps is not None:
        rows = filter(comparison.keeps, rows)
    return rows if comparison.row is None else map(comparison.row, rows)


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


def _sum_up(table: TableMap, rows: Iterator[Row], where: str, report: Report) -> TableSum:
    total = TableSum(table)
    add = total.add
    count = 0
    for count, row in enumerate(rows, start=1):
        add(row)
        if not count % REPORT_EVERY_ROWS:
            report(where, count)
    report(where, count)
    return total


def _rows_in(table: TableMap, rows: Iterator[Row], buckets: Set[int]) -> Iterator[Row]:
    return (row for row in rows if bucket_of(table, row, encode_row(row)) in buckets)


def row_differences(table: TableMap, ours: Iterable[Row], theirs: Iterable[Row]) -> list[RowDifference]:
    """Compare rows by key and say how they differ, in the order of the keys' text. Pure; holds all rows."""
    at_source = _by_key(table, ours)
    at_target = _by_key(table, theirs)
    found: list[RowDifference] = []
    for raw_key in at_source.keys() | at_target.keys():
        here, there = at_source.get(raw_key), at_target.get(raw_key)
        key = _key_text(table, next(iter((here or there or {}).values()))[0])
        if here is None:
            found.append(RowDifference(key=key, what="only at the target"))
        elif there is None:
            found.append(RowDifference(key=key, what="missing at the target"))
        elif Counter({raw: n for raw, (_, n) in here.items()}) != Counter({raw: n for raw, (_, n) in there.items()}):
            found.append(RowDifference(key=key, what=_contrast(table, list(here.values()), list(there.values()))))
    return sorted(found, key=lambda one: one.key)


_Rows = dict[bytes, tuple[Row, int]]


def _by_key(table: TableMap, rows: Iterable[Row]) -> dict[bytes, _Rows]:
    keyed: dict[bytes, _Rows] = {}
    for row in rows:
        raw = encode_row(row)
        same = keyed.setdefault(encode_row(table.key_of(row)), {})
        same[raw] = (row, same.get(raw, (row, 0))[1] + 1)
    return keyed


def _contrast(table: TableMap, here: list[tuple[Row, int]], there: list[tuple[Row, int]]) -> str:
    (ours, count), (theirs, other_count) = here[0], there[0]
    if not (table.primary_key and len(here) == len(there) == count == other_count == 1):
        return f"{sum(n for _, n in here)} rows at the source, {sum(n for _, n in there)} at the target"
    return ", ".join(
        f"{column.name}: {_told_apart(mine, other)}"
        for column, mine, other in zip(table.columns, ours, theirs, strict=True)
        if canonical(mine) != canonical(other)
    )


def _told_apart(ours: Value, theirs: Value) -> str:
    here, there = _shown(ours), _shown(theirs)
    if here == there:  # 1 and '1', or two long texts with one beginning
        here, there = (f"{text} ({Tag(canonical(v)[0]).name})" for text, v in ((here, ours), (there, theirs)))
    return f"{here} at the source, {there} at the target"


def _key_text(table: TableMap, row: Row) -> str:
    names = [table.columns[i].name for i in table.primary_key] or [column.name for column in table.columns]
    return ", ".join(f"{name}={_shown(value)}" for name, value in zip(names, table.key_of(row), strict=True))


def _shown(value: Value) -> str:
    text = value_text(value)
    return text if len(text) <= SHOWN_VALUE_CHARS else f"{text[:SHOWN_VALUE_CHARS]}... ({len(text)} characters)"
