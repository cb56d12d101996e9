"""Filters over random transactions, then apply, equals apply, then rename and drop on the rows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tranlog.change import Change, Column, Op, RowChange, TableMap
from tranlog.errors import ConfigError, FilterError, TargetTableError
from tranlog.ids import Seqno
from tranlog.pipeline.filters.filter_chain import Chain, ChangePlace
from tranlog.pipeline.filters.filters import (
    DropColumns,
    EachBatch,
    EachTransaction,
    Exclude,
    Filter,
    Include,
    MaskBy,
    MaskColumns,
    Rename,
    rename,
)
from tranlog.types import LogicalType

TABLES = tuple(
    TableMap(
        schema=schema,
        table=table,
        columns=tuple(
            Column(name=name, source_type="int", logical=LogicalType.INTEGER, nullable=name != "id")
            for name in ("a", "id", "b", "c")
        ),
        primary_key=(1,),
    )
    for schema in ("s", "t")
    for table in ("one", "two", "three")
)
NAMES = ("s", "t", "u", "v")
PATTERNS = ("s.*", "t.*", "*.one", "u.t*", "?.two", "v.*", "s.three")
Tables = dict[tuple[str, str], dict[Any, dict[str, Any]]]

filters = st.lists(
    st.one_of(
        st.builds(Include, tables=st.lists(st.sampled_from(PATTERNS), min_size=3, unique=True).map(tuple)),
        st.builds(Exclude, tables=st.tuples(st.sampled_from(PATTERNS))),
        st.builds(Rename, schema=st.sampled_from(NAMES), to=st.sampled_from(NAMES)).filter(lambda f: f.to != f.schema),
        st.builds(Rename, table=st.sampled_from(("s.one", "u.two", "t.three")), to=st.sampled_from(("four", "w.one"))),
        st.builds(Rename, table=st.sampled_from(PATTERNS[:6]), column=st.sampled_from("abc"), to=st.just("d")),
        st.builds(DropColumns, table=st.sampled_from(PATTERNS[:6]), columns=st.tuples(st.sampled_from("abcd"))),
        st.builds(
            MaskColumns,
            table=st.sampled_from(PATTERNS[:6]),
            columns=st.tuples(st.sampled_from("abcd")),
            by=st.just(MaskBy.VALUE),
            value=st.just(-1),
        ),
        st.just(EachTransaction(function=list)),
        st.just(EachBatch(function=lambda batch: batch.slice(0), rows=3)),
    ),
    max_size=5,
)
steps = st.lists(
    st.tuples(st.sampled_from(TABLES), st.integers(0, 4), st.tuples(*[st.integers(0, 9) | st.none()] * 3)), max_size=40
)


def transactions(wanted: Iterable[Any]) -> list[list[Change]]:
    """Changes that fit the rows as they are: a key that is there is updated or deleted, another inserted."""
    rows: dict[tuple[str, int], tuple[Any, ...]] = {}
    made: list[list[Change]] = [[]]
    for table, key, (a, b, c) in wanted:
        before = rows.get((table.name, key))
        if a is None:
            made.append([])
        if before is None:
            rows[table.name, key] = after = (a, key, b, c)
            made[-1].append(RowChange(table, Op.INSERT, None, after))
        elif b is None:
            made[-1].append(RowChange(table, Op.DELETE, rows.pop((table.name, key)), None))
        else:
            rows[table.name, key] = after = (a, key, b, c)
            made[-1].append(RowChange(table, Op.UPDATE, before, after))
    return made


def apply(tables: Tables, changes: Iterable[Change]) -> None:
    """A target in memory: rows by name of table and key, values by name of column."""
    for change in changes:
        assert isinstance(change, RowChange)
        table = change.table
        rows = tables.setdefault((table.schema, table.table), {})
        names = [column.name for column in table.columns]
        if change.before is not None:
            assert rows.pop(table.key_of(change.before)) == dict(zip(names, change.before, strict=True))
        if change.after is not None:
            assert table.key_of(change.after) not in rows
            rows[table.key_of(change.after)] = dict(zip(names, change.after, strict=True))


def behind(given: Iterable[Filter], tables: Tables) -> Tables:
    """The same on rows that are there, filter by filter, as a person would say it."""
    for one in given:
        made: Tables = {}
        for name, rows in tables.items():
            match one:
                case Include() | Exclude():
                    if rename(one, name) is None:
                        continue
                case Rename(column="", to=to, schema=schema, table=table):
                    if schema == name[0]:
                        name = (to, name[1])
                    elif table == ".".join(name):
                        name = (name[0], to) if "." not in to else (to.split(".")[0], to.split(".")[1])
                case Rename(table=pattern, column=column, to=to) if fits(pattern, name):
                    rows = {k: {to if n == column else n: v for n, v in row.items()} for k, row in rows.items()}
                case DropColumns(table=pattern, columns=columns) if fits(pattern, name):
                    rows = {k: {n: v for n, v in row.items() if n not in columns} for k, row in rows.items()}
                case MaskColumns(table=pattern, columns=columns) if fits(pattern, name):
                    rows = {
                        k: {n: -1 if n in columns and v is not None else v for n, v in row.items()}
                        for k, row in rows.items()
                    }
            made[name] = rows
        tables = made
    return tables


def fits(pattern: str, name: tuple[str, str]) -> bool:
    schema, table = pattern.split(".")
    return (schema in ("*", "?") or schema == name[0]) and (
        table == "*" or (table == "t*" and name[1].startswith("t")) or table == name[1]
    )


@given(filters, steps)
def test_filter_then_apply_is_apply_then_filter(given_filters: list[Filter], wanted: list[Any]) -> None:
    source: Tables = {}
    target: Tables = {}
    try:
        chain = Chain(given_filters)
    except ConfigError as config_error:
        if "their rows would mix" not in config_error.why:  # two tables that are given one name
            raise
        return
    refused = ""
    for number, changes in enumerate(transactions(wanted)):
        apply(source, changes)
        try:
            left = list(chain.stream(changes, ChangePlace(Seqno(number), f"event {number}")))
        except (FilterError, TargetTableError) as exc:
            refused = exc.why
            break
        tables = {(c.table.schema, c.table.table): None for c in changes if isinstance(c, RowChange)}
        if chain.drops(tuple(tables), "s"):
            assert left == []
        apply(target, left)
    if refused:
        assert any(why in refused for why in ("their rows would mix", "has a column d already", "has no column"))
    else:
        expected = {name: rows for name, rows in behind(given_filters, source).items() if rows}
        assert {name: rows for name, rows in target.items() if rows} == expected
