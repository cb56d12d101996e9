"""The comparison of source and target, `verify`."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from decimal import Decimal
from itertools import islice
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tranlog.change import Column, TableMap, TableName
from tranlog.errors import ConfigError, TargetTableError
from tranlog.pipeline.filters.comparison import (
    BUCKETS,
    NOT_MADE,
    RowDifference,
    TableSum,
    compare_shown,
    row_differences,
)
from tranlog.pipeline.filters.filter_chain import Chain
from tranlog.pipeline.filters.filters import Filter, PresentRows
from tranlog.pipeline.upkeep.verify import select_tables, verify_tables
from tranlog.row_blocks import RowBlock, encoded
from tranlog.row_bytes import encode_row
from tranlog.target.target import TargetKeys
from tranlog.types import (
    F32,
    Bit,
    CharsetBytes,
    Date,
    Datetime,
    EnumLabel,
    InfiniteDate,
    Instant,
    Json,
    LogicalType,
    Other,
    SetLabels,
    Time,
    Value,
    ZeroDate,
    canonical,
)


def table_of(name: str, *columns: str, key: tuple[int, ...] = (0,)) -> TableMap:
    return TableMap(
        schema="shop",
        table=name,
        columns=tuple(Column(name=column, source_type="any", logical=LogicalType.ANY) for column in columns),
        primary_key=key,
    )


ITEM = table_of("item", "id", "name")
LINE = table_of("line", "id", "name", key=())
Row = tuple[Value, ...]


class Tables:
    """Tables in memory, readable as a source's and as a target's."""

    def __init__(self, content: dict[TableMap, list[Row]]) -> None:
        self.content = content

    def tables(self) -> list[TableMap]:
        return list(self.content)

    def rows(self, table: TableMap, limit: int | None = None) -> Iterator[Row]:
        if table not in self.content:
            raise TargetTableError(table=table.name, why="is missing")
        return islice(self.content[table], limit)

    read = rows

    def keys(self, table: TableName) -> TargetKeys | None:
        here = any((one.schema, one.table) == table for one in self.content)
        return TargetKeys(name=table) if here else None

    def blocks(self, table: TableMap) -> Iterator[RowBlock]:
        return encoded(self.rows(table))

    def estimate(self, table: TableMap) -> int:
        return len(self.content[table])

    def beside(self) -> dict[str, str]:
        return {}

    def close(self) -> None:
        pass


def verify(
    ours: dict[TableMap, list[Row]],
    theirs: dict[TableMap, list[Row]],
    differences: int = 10,
    filters: Sequence[Filter] = (),
) -> list:
    source, target = Tables(ours), Tables(theirs)
    reported: list[tuple[str, int]] = []
    return list(
        verify_tables(
            source,
            target,  # type: ignore[arg-type]  # it is only read
            tables=source.tables(),
            differences=differences,
            report=lambda where, rows: reported.append((where, rows)),
            filters=filters,
        )
    )


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(),
    st.decimals(allow_nan=False),
    st.text(),
    st.binary(),
    st.floats(width=32).map(F32),
    st.builds(CharsetBytes, st.text(), st.binary()),
    st.builds(Date, st.integers(-(2**31), 2**31)),
    st.builds(Time, st.integers(-(2**40), 2**40)),
    st.builds(Datetime, st.integers(-(2**60), 2**60)),
    st.builds(Instant, st.integers(-(2**60), 2**60)),
    st.builds(ZeroDate, st.text()),
    st.builds(InfiniteDate, st.booleans()),
    st.integers(1, 64).flatmap(lambda width: st.builds(Bit, st.just(width), st.integers(0, 2**width - 1))),
    st.builds(EnumLabel, st.text()),
    st.builds(SetLabels, st.lists(st.text()).map(tuple)),
    st.builds(Json, st.text()),
    st.uuids(),
    st.builds(Other, st.text(), st.text()),
)
CONFUSABLE: list[Value] = [
    *(1, 1.0, True, Decimal("1"), Decimal("1.0"), "1", b"1", F32(1.0), Json("1"), EnumLabel("1")),
    *(0, 0.0, -0.0, False, None, "", b"", Date(0), Time(0), Datetime(0), Instant(0), Bit(8, 0), Bit(1, 0)),
    *(UUID(int=0), SetLabels(()), SetLabels(("",)), ZeroDate(""), Other("", ""), InfiniteDate(False)),
    *(float("nan"), float("inf"), F32(float("nan")), Decimal("NaN"), 2**63, -(2**63)),
]


@given(VALUES, VALUES)
def test_a_rows_bytes_are_its_canonical_values(one: Value, other: Value) -> None:
    """The checksum goes by `encode_row`: equal bytes if and only if equal by `types.canonical`."""
    assert (encode_row((one,)) == encode_row((other,))) == (canonical(one) == canonical(other))
    assert encode_row((one,)) == encode_row((one,)) and canonical(one) == canonical(one)


def test_no_two_confusable_values_are_equal() -> None:
    for i, one in enumerate(CONFUSABLE):
        for j, other in enumerate(CONFUSABLE):
            same = encode_row((one,)) == encode_row((other,))
            assert same == (canonical(one) == canonical(other)) == (i == j), (one, other)


def test_order_makes_no_difference_and_number_does() -> None:
    seed = random.randrange(2**32)
    print(f"replay: seed={seed}")
    chance = random.Random(seed)
    rows: list[Row] = [(n, chance.choice("abc")) for n in range(500)]
    shuffled = chance.sample(rows, len(rows))
    assert [verdict.equal for verdict in verify({ITEM: rows}, {ITEM: shuffled})] == [True]
    assert [verdict.equal for verdict in verify({ITEM: rows}, {ITEM: [*shuffled, rows[0]]})] == [False]
    assert [verdict.equal for verdict in verify({LINE: [*rows, rows[0]]}, {LINE: [*shuffled, rows[1]]})] == [False]


def test_what_differs_is_named() -> None:
    """A changed, a missing and a surplus row, each by its key and with what is different."""
    ours: list[Row] = [(n, f"name {n}") for n in range(3 * BUCKETS)]
    theirs = [row for row in ours if row[0] != 11]
    theirs[7] = (7, "another")
    theirs.append((-1, "new"))
    (verdict,) = verify({ITEM: ours}, {ITEM: theirs})
    assert not verdict.equal
    assert (verdict.source_rows, verdict.target_rows) == (3 * BUCKETS, 3 * BUCKETS)
    assert verdict.source_checksum != verdict.target_checksum
    assert set(verdict.differences) == {
        RowDifference(key="id=11", what="missing at the target"),
        RowDifference(key="id=-1", what="only at the target"),
        RowDifference(key="id=7", what="name: name 7 at the source, another at the target"),
    }
    (verdict,) = verify({ITEM: ours}, {ITEM: theirs}, differences=1)
    assert len(verdict.differences) == 1
    (verdict,) = verify({ITEM: ours}, {ITEM: theirs}, differences=0)
    assert verdict.differences == () and not verdict.equal


def test_a_type_that_differs_is_told_where_the_text_does_not() -> None:
    found = row_differences(ITEM, [(1, "5")], [(1, 5)])
    assert found == [RowDifference(key="id=1", what="name: 5 (TEXT) at the source, 5 (I64) at the target")]


def test_a_table_without_key_goes_by_whole_rows() -> None:
    found = row_differences(LINE, [(1, "a"), (1, "a"), (2, "b")], [(1, "a"), (3, "c")])
    assert found == [
        RowDifference(key="id=1, name=a", what="2 rows at the source, 1 at the target"),
        RowDifference(key="id=2, name=b", what="missing at the target"),
        RowDifference(key="id=3, name=c", what="only at the target"),
    ]


def test_old_versions_of_rows_are_not_compared() -> None:
    price = table_of("price", "id", "name", "row_start", "row_end", key=(0, 3))
    present: Row = (1, "new", Instant(2), Instant(2_147_483_647_999_999))
    old: Row = (1, "old", Instant(1), Instant(2))
    here = {price: [old, present]}
    filters = [PresentRows(tables=("shop.*",))]
    (verdict,) = verify(here, {table_of("price", "id", "name"): [(1, "new")]}, filters=filters)
    assert verdict.equal and verdict.source_rows == 1
    (verdict,) = verify(here, {table_of("price", "id", "name"): [(1, "old")]}, filters=filters)
    assert not verdict.equal


def test_a_missing_table_is_a_difference() -> None:
    missing, present = verify({LINE: [(1, "a")], ITEM: []}, {ITEM: []})
    assert (missing.equal, missing.problem, missing.source_rows) == (False, "is missing", 1)
    assert present.equal and not present.notes


def test_a_table_without_rows_that_is_not_made_yet_is_equal() -> None:
    """`ddl = "follow"` makes it with its first row: docs/following.md."""
    (verdict,) = verify({LINE: []}, {})
    assert (verdict.equal, verdict.problem, verdict.notes) == (True, "", (NOT_MADE,))


def test_empty_tables_are_equal() -> None:
    assert TableSum(ITEM).differing(TableSum(ITEM)) == []
    assert TableSum(ITEM).checksum() == "0" * 32


def test_a_table_without_columns_has_none_that_are_masked() -> None:
    found = compare_shown(Chain(()), TableMap(schema="s", table="t", columns=()))
    assert found is not None and found.notes == ()


def test_a_table_that_the_source_has_not_is_refused() -> None:
    assert select_tables([ITEM, LINE], ["shop.line"]) == [LINE]
    assert select_tables([ITEM, LINE], []) == [ITEM, LINE]
    with pytest.raises(ConfigError, match=r"shop\.lime.*it has shop\.item, shop\.line"):
        select_tables([ITEM, LINE], ["shop.lime"])
