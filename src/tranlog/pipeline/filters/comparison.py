"""When two tables are equal: sums that do not depend on order, the columns compared, and the rows that differ.

Pure. The hard idea: two tables of any size are compared in one pass each and constant memory. Every row goes by its key
into one of a few thousand buckets, each with a count and a sum of row hashes; only rows of buckets that differ are
held, and only when they are asked for. Rows are equal when all their values are by `types.canonical`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import dataclass
from struct import Struct
from typing import Final

import msgspec

from tranlog.change import Op, Payload, RowChange, TableMap
from tranlog.payload import decode, encode
from tranlog.pipeline.filters.filter_chain import Chain, RowFunction, row_function
from tranlog.pipeline.filters.filter_text import parse_filters
from tranlog.row_blocks import RowBlock, decoded, encoded
from tranlog.row_bytes import decode_row, encode_row
from tranlog.types import Tag, Value, canonical, value_text
from tranlog.value_ends import key_in
from tranlog.verification import VerifySum

BUCKETS: Final = 4096
SHOWN_VALUE_CHARS: Final = 60
SENT_ROWS_BYTES: Final = 512 << 10
"""So much of the rows of differing buckets goes through the log; more is not shown."""
_SUM: Final = Struct(">HQ24s")
"""A bucket that is not empty: its number, rows, sum of hashes."""

Row = tuple[Value, ...]


class TableSum:
    """Count and checksum of a table's rows, per bucket. Two are equal if and only if the tables' rows are.

    "Only if" holds but for a chance of about 2**-128 per comparison. Pure; not for threads.
    """

    __slots__ = ("_counts", "_sums", "_table")

    def __init__(self, table: TableMap) -> None:
        self._table = table
        self._counts = [0] * BUCKETS
        self._sums = [0] * BUCKETS

    def add(self, rows: Iterable[bytes]) -> None:
        """Take encoded rows in; the order of rows makes no difference, their number does."""
        key, counts, sums = self._table.primary_key, self._counts, self._sums
        for raw in rows:
            bucket = bucket_of(key, raw)
            counts[bucket] += 1
            sums[bucket] += int.from_bytes(hashlib.blake2b(raw, digest_size=16).digest(), "big")

    @property
    def rows(self) -> int:
        """The number of rows taken in."""
        return sum(self._counts)

    def checksum(self) -> str:
        """Return the whole table's sum as 32 hex digits, for people to compare."""
        return f"{sum(self._sums) & ((1 << 128) - 1):032x}"

    def packed(self) -> bytes:
        """Return it as bytes, for `unpack`: those of the buckets that are not empty."""
        filled = zip(range(BUCKETS), self._counts, self._sums, strict=True)
        return b"".join([_SUM.pack(at, count, total.to_bytes(24, "big")) for at, count, total in filled if count])

    @classmethod
    def unpack(cls, table: TableMap, raw: bytes) -> TableSum:
        """Return what was packed. Raises ValueError."""
        if len(raw) % _SUM.size:
            raise ValueError("the sum of a table is cut off")
        found = cls(table)
        for bucket, count, total in _SUM.iter_unpack(raw):
            if bucket >= BUCKETS:
                raise ValueError(f"the sum of a table has no bucket {bucket}")
            found._counts[bucket], found._sums[bucket] = count, int.from_bytes(total, "big")
        return found

    def differing(self, other: TableSum) -> list[int]:
        """Return the buckets in which the two disagree; empty: the tables are equal."""
        return [
            bucket
            for bucket in range(BUCKETS)
            if self._counts[bucket] != other._counts[bucket] or self._sums[bucket] != other._sums[bucket]
        ]


def bucket_of(key: tuple[int, ...], raw: bytes) -> int:
    """Return the bucket of an encoded row: by its primary key, or by all of it where the table has none."""
    return zlib.crc32(key_in(raw, key) if key else raw) % BUCKETS


@dataclass(frozen=True, slots=True, kw_only=True)
class RowDifference:
    """One key at which the tables differ: `what` says how, in words."""

    key: str
    what: str


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

    @property
    def changes_rows(self) -> bool:
        """Whether rows are not compared as they are."""
        return self.row is not None or self.keeps is not None

    def shown(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yield rows of the source as they are compared."""
        left = iter(rows) if self.keeps is None else filter(self.keeps, rows)
        return left if self.row is None else map(self.row, left)


def compare_shown(chain: Chain, table: TableMap) -> Comparison | None:
    """Return how a table is compared, None where filters leave it out. Raises FilterError, TargetTableError."""
    found = chain.table(table)
    if found is None:
        return None
    shown = found.table
    notes = []
    key = {shown.columns[index].name for index in shown.primary_key}
    skipped = [column.name for column in shown.columns if column.name in found.masked and column.name not in key]
    if skipped and len(skipped) == len(shown.columns):
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


NOT_MADE: Final = "it has no rows at the source, and is not at the target yet"
"""The note of a table that is equal without being there: `ddl = "follow"` makes one with its first row."""


class SplitSum:
    """A table's sum, and the rows of some of its buckets, of one pass. `rows`: None where they are too many.

    `is_there`: whether there is such a table; without one the sum is that of no rows.
    """

    def __init__(self, table: TableMap, buckets: Set[int], *, is_there: bool = True) -> None:
        self.table = table
        self.is_there = is_there
        self.total = TableSum(table)
        self.rows: list[Row] | None = []
        self._buckets = buckets
        self._bytes = 0

    def take(self, blocks: Iterable[RowBlock]) -> SplitSum:
        """Take rows in, and return this."""
        key, columns = self.table.primary_key, len(self.table.columns)
        for block in blocks:
            self.total.add(block)
            for raw in block if self._buckets else ():
                if self.rows is not None and bucket_of(key, raw) in self._buckets:
                    self._bytes += len(raw)
                    self.rows.append(decode_row(raw, columns))
                    if self._bytes > SENT_ROWS_BYTES:
                        self.rows = None
        return self


def summed(filters: str, table: TableMap, rows: Iterable[RowBlock], buckets: Set[int]) -> VerifySum:
    """Return what rows of a source's table are after filters, for the log; see `capture.verifying.Summing`."""
    name = (table.schema, table.table)
    comparison = compare_shown(Chain(parse_filters(filters)), table)
    if comparison is None:
        return VerifySum(table=name, why="the pipeline's filters leave it out")
    if comparison.changes_rows:
        rows = encoded(comparison.shown(decoded(rows, table)))
    found = SplitSum(comparison.compared, buckets).take(rows)
    sent = None
    if buckets and found.rows is not None:
        sent = encode(Payload(changes=tuple([RowChange(found.table, Op.INSERT, None, row) for row in found.rows])))
    return VerifySum(table=name, sums=found.total.packed(), rows=sent)


def sent_rows(raw: bytes) -> list[Row]:
    """Return the rows that `summed` put into the log. Raises PayloadError."""
    return [one.after for one in decode(raw).changes if isinstance(one, RowChange) and one.after is not None]


def rows_in(table: TableMap, rows: Iterator[Row], buckets: Set[int]) -> Iterator[Row]:
    """Yield the rows that lie in some buckets."""
    return (row for row in rows if bucket_of(table.primary_key, encode_row(row)) in buckets)


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
