"""What a pipeline leaves out, renames, hides or delays between the log and the target: filters, as values.

Owns the kinds of filters and what each does to a table. Leaves applying them to `filter_chain`, waiting to `channel`.
The hard idea: everything about a table is decided once, when its map is first seen, for the map and the rows: keys and
foreign keys follow the columns, and a filter that would break a key is refused then, by name, before any conflict.
Pure: they are sent to the tasks as they are.
"""

from __future__ import annotations

import enum
import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from decimal import Decimal, InvalidOperation
from fnmatch import fnmatchcase
from typing import Any, Final, TypeAlias, assert_never
from uuid import UUID

import msgspec

from tranlog.change import Change, Column, ForeignKey, TableMap, TableName
from tranlog.errors import ConfigError
from tranlog.option_kinds import check_kinds
from tranlog.row_bytes import encode_value
from tranlog.types import UNCHANGED, Instant, Json, LogicalType, Value

DELAY_MOST_S: Final = 366 * 86_400.0
HASH_BYTES: Final = 16
HASH_BYTES_LEAST: Final = 8
"""A shorter hash would make different values one too often."""
_FOR_EVER: Final = frozenset((Instant((1 << 31) * 1_000_000 - 1), Instant((1 << 32) * 1_000_000 - 1), (1 << 64) - 1))
"""Ends of a present row's period: the last instant of a MariaDB up to 11.4, of a later one; the last transaction."""
_PATTERN: Final = re.compile(r"[*?\[]")
_FUNCTION: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


class OnStatement(enum.StrEnum):
    """What a filter does with a recorded statement (DDL, TRUNCATE), whose text no filter reads or rewrites."""

    STOP = "stop"
    """The pipeline stops and names it."""
    PASS = "pass"
    """It goes on as it is, with the source's names in it."""
    DROP = "drop"
    """It is left out."""


class MaskBy(enum.StrEnum):
    """What stands in the place of a masked value. NULL stays NULL."""

    VALUE = "value"
    """A fixed value."""
    NULL = "null"
    HASH = "hash"
    """A keyed hash: equal values stay equal, and joins still join."""
    KEEP_LAST = "keep-last"
    """Stars, and the last few characters; a value that is no longer than these is stars altogether."""


class Refusal(Exception):
    """Why a filter cannot do its work on a table. Becomes a FilterError that names filter, table and transaction."""


Mask: TypeAlias = Callable[[Value], Value]
TransactionFunction: TypeAlias = Callable[[list[Change]], list[Change] | None]
BatchFunction: TypeAlias = Callable[[Any], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class FilteredTable:
    """A table after filters: its map there, and for each of its columns where it comes from and what masks it."""

    table: TableMap
    picks: tuple[tuple[int, Mask | None], ...]
    masked: frozenset[str] = frozenset()
    """Names of the columns that are masked, as they are called now."""
    keeps: Callable[[tuple[Value, ...]], bool] | None = None
    """Whether a row before the filters goes on; None: each does."""

    @classmethod
    def of(cls, table: TableMap) -> FilteredTable:
        """Return a table as it is before all filters."""
        return cls(table=table, picks=tuple([(index, None) for index in range(len(table.columns))]))


# --- the kinds -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Include:
    """Only tables that match one of `tables` go on. A pattern is `schema.table` with `*`, `?` and `[abc]`."""

    tables: tuple[str, ...]
    statements: OnStatement = OnStatement.STOP


@dataclass(frozen=True, slots=True, kw_only=True)
class Exclude:
    """Tables that match one of `tables` are left out."""

    tables: tuple[str, ...]
    statements: OnStatement = OnStatement.STOP


@dataclass(frozen=True, slots=True, kw_only=True)
class Rename:
    """Another name for a schema (`schema`), a table (`table`), or a column (`table` and `column`).

    `to`: the new name; of a table `schema.table`, or the table's alone. The table of a column may be a pattern.
    """

    to: str
    schema: str = ""
    table: str = ""
    column: str = ""
    statements: OnStatement = OnStatement.STOP


@dataclass(frozen=True, slots=True, kw_only=True)
class DropColumns:
    """Columns that do not go on; those of the primary key must. `table` may be a pattern."""

    table: str
    columns: tuple[str, ...]
    statements: OnStatement = OnStatement.STOP


@dataclass(frozen=True, slots=True, kw_only=True)
class PresentRows:
    """Of system-versioned tables the present rows alone: neither their old versions go on, nor the period's columns.

    `tables` are patterns; `row_start` and `row_end` the names of the period's columns, which are these where a table
    hides them. A table without such columns goes on as it is.
    """

    tables: tuple[str, ...]
    row_start: str = "row_start"
    row_end: str = "row_end"
    statements: OnStatement = OnStatement.PASS


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskColumns:
    """Columns that go on with something else in the place of each value. `table` may be a pattern.

    `value` is for MaskBy.VALUE, `keep` (characters) for KEEP_LAST, `salt`, a secret, for HASH.
    """

    table: str
    columns: tuple[str, ...]
    by: MaskBy
    value: str | int | float | bool | None = None
    keep: int = 4
    salt: str = field(default="", repr=False)
    statements: OnStatement = OnStatement.STOP


@dataclass(frozen=True, slots=True, kw_only=True)
class Delay:
    """No transaction is applied before its commit time at the source and so many seconds more."""

    delay_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EachTransaction:
    """A function from the list of a transaction's changes to the list that goes on; None leaves all of it out.

    `function` is callable, or its name, `package.module:function`, which each task imports. A transaction of more than
    `changes_max` changes stops the pipeline: the function needs it whole, in memory.
    """

    function: str | TransactionFunction
    changes_max: int = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class EachBatch:
    """A function from Arrow record batch to record batch: up to `rows` changes of one table that follow each other.

    It may take rows away and set other values in the columns; see `filter_batches`. Statements pass by.
    """

    function: str | BatchFunction
    rows: int = 4096


TableFilter: TypeAlias = Include | Exclude | Rename | DropColumns | PresentRows | MaskColumns
"""Filters that are decided once per table."""
Filter: TypeAlias = TableFilter | Delay | EachTransaction | EachBatch
KINDS: Final[Mapping[str, type[Filter]]] = {
    "include": Include,
    "exclude": Exclude,
    "rename": Rename,
    "drop": DropColumns,
    "present": PresentRows,
    "mask": MaskColumns,
    "delay": Delay,
    "transaction": EachTransaction,
    "batch": EachBatch,
}
"""What each is called as a table [[filter]] of the configuration."""


def describe(one: Filter) -> str:
    """Return a filter in a few words, for messages; no secret of it."""
    match one:
        case Include(tables=tables):
            return f"include {', '.join(tables)}"
        case Exclude(tables=tables):
            return f"exclude {', '.join(tables)}"
        case Rename(schema=schema, table=table, column=column, to=to):
            return f"rename {f'{table}.{column}' if column else schema or table} to {to}"
        case DropColumns(table=table, columns=columns):
            return f"drop {', '.join(columns)} of {table}"
        case PresentRows(tables=tables):
            return f"present rows of {', '.join(tables)}"
        case MaskColumns(table=table, columns=columns, by=by):
            return f"mask {', '.join(columns)} of {table} by {by.value}"
        case Delay(delay_s=seconds):
            return f"delay {seconds:g} s"
        case EachTransaction(function=function) | EachBatch(function=function):
            kind = "transaction" if isinstance(one, EachTransaction) else "batch"
            return f"{kind} {function if isinstance(function, str) else getattr(function, '__name__', repr(function))}"
        case _:
            assert_never(one)


# --- checks ----------------------------------------------------------------------------------------------


def check_filter(one: Filter) -> None:
    """Refuse what no table could make sense of. Raises ConfigError; its option is the field's name."""
    match one:
        case Include(tables=tables) | Exclude(tables=tables):
            for pattern in _check_names("tables", tables, 'patterns like "shop.*"'):
                _check_table("tables", pattern)
        case PresentRows(tables=tables):
            for pattern in _check_names("tables", tables, 'patterns like "shop.*"'):
                _check_table("tables", pattern)
            if not one.row_start or not one.row_end or one.row_start == one.row_end:
                raise _refuse("row_end", one.row_end, "row_start and row_end are two names of columns")
        case Rename():
            _check_rename(one)
        case DropColumns(table=table, columns=columns):
            _check_table("table", table)
            _check_columns(columns)
        case MaskColumns():
            _check_mask(one)
        case Delay(delay_s=seconds):
            if not 0 < seconds <= DELAY_MOST_S:
                raise _refuse("delay_s", seconds, "seconds, above 0 and at most a year")
        case EachTransaction(function=function, changes_max=number):
            _check_function(function)
            if number < 1:
                raise _refuse("changes_max", number, "must be 1 or more")
        case EachBatch(function=function, rows=rows):
            _check_function(function)
            if not 1 <= rows <= 1_000_000:
                raise _refuse("rows", rows, "must be 1 to 1000000")
        case _:
            assert_never(one)


def renames_tables(filters: Iterable[Filter]) -> bool:
    """Whether two tables might become one after these filters."""
    return any(isinstance(one, Rename) and not one.column for one in filters)


def check_filters(filters: Sequence[Filter]) -> None:
    """Check each filter, and what no two of them may do. Raises ConfigError that names the filter by its number."""
    delays = 0
    made: dict[str, str] = {}  # full name that a table is renamed to: the table
    for number, one in enumerate(filters, start=1):
        if not isinstance(one, tuple(KINDS.values())):
            raise _refuse(f"filter {number}", one, f"it is one of {', '.join(of.__name__ for of in KINDS.values())}")
        try:
            check_kinds(one)
            check_filter(one)
            if isinstance(one, Delay):
                delays += 1
                if delays > 1:
                    raise _refuse("delay_s", one.delay_s, "there is another delay; one is enough")
            if isinstance(one, Rename) and one.table and not one.column:
                made.pop(one.table, None)  # renamed again
                to = one.to if "." in one.to else f"{one.table.partition('.')[0]}.{one.to}"
                holder = made.setdefault(to, one.table)
                if holder != one.table:
                    raise _refuse("to", one.to, f"{holder} is renamed to {to} too, and their rows would mix")
        except ConfigError as exc:
            raise ConfigError(option=f"filter {number}.{exc.option}", value=exc.value, why=exc.why) from exc


def _refuse(option: str, value: object, why: str) -> ConfigError:
    return ConfigError(option=option, value=value, why=why)


def _check_table(option: str, name: str) -> None:
    schema, dot, table = name.partition(".")
    if not (schema and dot and table):
        raise _refuse(option, name, 'not schema.table; "shop.*" stands for all tables of a schema')


def _check_names(option: str, names: object, what: str) -> Sequence[str]:
    """Refuse what is no list of texts, a text by itself above all. Raises ConfigError."""
    if not isinstance(names, list | tuple) or not names or not all(isinstance(name, str) and name for name in names):
        raise _refuse(option, names, f"a list of one or more {what}")
    return names


def _check_columns(columns: tuple[str, ...]) -> None:
    _check_names("columns", columns, "names of columns")
    if len(set(columns)) < len(columns):
        raise _refuse("columns", columns, "a column is named twice")


def _check_rename(one: Rename) -> None:
    if bool(one.schema) == bool(one.table):
        raise _refuse("schema", one.schema or None, "give schema, or table, or table and column; one of the three")
    if not one.to:
        raise _refuse("to", one.to, "the new name is missing")
    if one.column:
        if one.schema:
            raise _refuse("column", one.column, "a column is named together with its table")
        _check_table("table", one.table)
        if one.to == one.column:
            raise _refuse("to", one.to, "the name that it has")
    elif one.table:
        _check_table("table", one.table)
        if _PATTERN.search(one.table):
            raise _refuse("table", one.table, "a pattern; several tables cannot have one name")
        table = one.table.partition(".")[2]
        if one.to.startswith(".") or one.to.endswith("."):
            raise _refuse("to", one.to, "neither table nor schema.table")
        if one.to in (one.table, table):
            raise _refuse("to", one.to, "the name that it has")
    else:
        if _PATTERN.search(one.schema):
            raise _refuse("schema", one.schema, "a pattern; give a rename for each schema")
        if one.to == one.schema:
            raise _refuse("to", one.to, "the name that it has")


def _check_mask(one: MaskColumns) -> None:
    _check_table("table", one.table)
    _check_columns(one.columns)
    match one.by:
        case MaskBy.VALUE:
            if one.value is None:
                raise _refuse("value", None, 'is missing; by = "null" puts NULL there')
        case MaskBy.HASH:
            if not one.salt:
                raise _refuse("salt", None, "is missing: without a secret a hash of a short value is soon guessed")
        case MaskBy.KEEP_LAST:
            if one.keep < 0:
                raise _refuse("keep", one.keep, "must be 0 or more")
        case MaskBy.NULL:
            pass
        case _:
            assert_never(one.by)
    if one.by is not MaskBy.VALUE and one.value is not None:
        raise _refuse("value", one.value, f'only by = "value" has one, and this is by = "{one.by}"')
    if one.by is not MaskBy.HASH and one.salt:
        raise _refuse("salt", None, f'only by = "hash" has one, and this is by = "{one.by}"')


def _check_function(function: object) -> None:
    if isinstance(function, str):
        if not _FUNCTION.fullmatch(function):
            raise _refuse("function", function, "not package.module:function")
    elif not callable(function):
        raise _refuse("function", function, "neither callable nor package.module:function")


# --- what a filter does to a table -----------------------------------------------------------------------


def matches(pattern: str, name: TableName) -> bool:
    """Whether a pattern of `schema.table` is for this table. Letters count as they are written."""
    return fnmatchcase(".".join(name), pattern)


def rename(one: TableFilter, name: TableName) -> TableName | None:
    """Return a table's name after a filter, None where the filter leaves the table out."""
    match one:
        case Include(tables=tables):
            return name if any(matches(pattern, name) for pattern in tables) else None
        case Exclude(tables=tables):
            return None if any(matches(pattern, name) for pattern in tables) else name
        case Rename(column=column) if column:
            return name
        case Rename(schema=schema, to=to) if schema:
            return (to, name[1]) if name[0] == schema else name
        case Rename(table=table, to=to):
            if ".".join(name) != table:
                return name
            there, dot, here = to.partition(".")
            return (there, here) if dot else (name[0], to)
        case DropColumns() | PresentRows() | MaskColumns():
            return name
        case _:
            assert_never(one)


def renamed(filters: Iterable[TableFilter], name: TableName) -> TableName | None:
    """Return the name that a table has after all of these filters; None where one leaves it out."""
    found: TableName | None = name
    for one in filters:
        if found is not None:
            found = rename(one, found)
    return found


def changes_columns(filters: Iterable[TableFilter], name: TableName, columns: Collection[str]) -> bool:
    """Whether any of these filters changes what stands in these columns of a table, or leaves rows of it out."""
    lowered = {column.lower() for column in columns}
    for one in filters:
        match one:
            case DropColumns(table=pattern, columns=hit) | MaskColumns(table=pattern, columns=hit) if matches(
                pattern, name
            ) and not lowered.isdisjoint([column.lower() for column in hit]):
                return True
            case Rename(table=pattern, column=column) if column and matches(pattern, name):
                return True
            case PresentRows(tables=patterns) if any(matches(pattern, name) for pattern in patterns):
                return True
            case _:
                after = rename(one, name)
                if after is None:
                    return False
                name = after
    return False


def change_table(one: TableFilter, found: FilteredTable) -> FilteredTable | None:
    """Return a table after a filter, None where the filter leaves it out. Raises Refusal."""
    name = (found.table.schema, found.table.table)
    match one:
        case Include() | Exclude():
            if rename(one, name) is None:
                return None
            kept = [key for key in found.table.foreign_keys if rename(one, (key.ref_schema, key.ref_table)) is not None]
            return _with(found, foreign_keys=tuple(kept))
        case Rename():
            return _rename_column(one, found, name) if one.column else _rename_table(one, found, name)
        case DropColumns():
            return _drop(one, found, name)
        case PresentRows():
            return _present(one, found, name)
        case MaskColumns():
            return _mask(one, found, name)
        case _:
            assert_never(one)


def _with(found: FilteredTable, **fields: Any) -> FilteredTable:
    if all(getattr(found.table, field) == value for field, value in fields.items()):
        return found
    return replace(found, table=msgspec.structs.replace(found.table, **fields))


def _rename_table(one: Rename, found: FilteredTable, name: TableName) -> FilteredTable:
    new = rename(one, name)
    assert new is not None
    keys = []
    for key in found.table.foreign_keys:
        there = rename(one, (key.ref_schema, key.ref_table))
        assert there is not None
        keys.append(msgspec.structs.replace(key, ref_schema=there[0], ref_table=there[1]))
    return _with(found, schema=new[0], table=new[1], foreign_keys=tuple(keys))


def _rename_column(one: Rename, found: FilteredTable, name: TableName) -> FilteredTable:
    table = found.table
    keys = []
    for key in table.foreign_keys:
        if matches(one.table, (key.ref_schema, key.ref_table)):
            refers = tuple([one.to if column == one.column else column for column in key.ref_columns])
            key = msgspec.structs.replace(key, ref_columns=refers)
        keys.append(key)
    found = _with(found, foreign_keys=tuple(keys))
    chosen = _chosen(one.table, (one.column,), found, name)
    if not chosen:
        return found
    if any(column.name == one.to for column in table.columns):
        raise Refusal(f"it has a column {one.to} already")
    columns = [
        msgspec.structs.replace(column, name=one.to) if index in chosen else column
        for index, column in enumerate(table.columns)
    ]
    masked = frozenset(one.to if column == one.column else column for column in found.masked)
    older = tuple([(one.to if column == one.column else column, literal) for column, literal in table.older])
    changed = msgspec.structs.replace(found.table, columns=tuple(columns), older=older)
    return replace(found, table=changed, masked=masked)


def _chosen(pattern: str, names: Sequence[str], found: FilteredTable, name: TableName) -> dict[int, Column]:
    """Return the columns that a filter names, by index. Raises Refusal where a table named in full lacks one."""
    if not matches(pattern, name):
        return {}
    if not _PATTERN.search(pattern):
        there = {column.name for column in found.table.columns}
        lacking = [column for column in names if column not in there]
        if lacking:
            raise Refusal(
                f"it has no column {lacking[0]}; if not all of its transactions have it, name the table by a pattern"
            )
    return {index: column for index, column in enumerate(found.table.columns) if column.name in names}


def _drop(one: DropColumns, found: FilteredTable, name: TableName) -> FilteredTable:
    table = found.table
    dropped = _chosen(one.table, one.columns, found, name)
    for index in table.primary_key:
        if index in dropped:
            raise Refusal(f"column {dropped[index].name} is of its primary key, by which rows are found at the target")
    if len(dropped) == len(table.columns):
        raise Refusal("no column would be left")
    keys = tuple(
        [
            key
            for key in table.foreign_keys
            if not dropped.keys() & set(key.columns)
            and not (
                matches(one.table, (key.ref_schema, key.ref_table)) and any(c in one.columns for c in key.ref_columns)
            )
        ]
    )
    return _without(_with(found, foreign_keys=keys), dropped.keys())


def _present(one: PresentRows, found: FilteredTable, name: TableName) -> FilteredTable:
    period = [index for index, column in enumerate(found.table.columns) if column.name in (one.row_start, one.row_end)]
    if len(period) < 2 or not any(matches(pattern, name) for pattern in one.tables):
        return found
    (end,) = (found.picks[index] for index in period if found.table.columns[index].name == one.row_end)
    if end[1] is not None:
        raise Refusal(f"column {one.row_end} is masked, and it tells which rows are present")
    return replace(_without(found, set(period)), keeps=lambda row: row[end[0]] in _FOR_EVER)


def _without(found: FilteredTable, dropped: Set[int]) -> FilteredTable:
    """Return a table without some of its columns, by index, and without the keys that they were of."""
    if not dropped:
        return found
    table = found.table
    kept = [index for index in range(len(table.columns)) if index not in dropped]
    at = {old: new for new, old in enumerate(kept)}
    changed = msgspec.structs.replace(
        table,
        columns=tuple([table.columns[i] for i in kept]),
        primary_key=tuple([at[i] for i in table.primary_key if i in at]),
        unique_keys=tuple([tuple([at[i] for i in key]) for key in table.unique_keys if not dropped & set(key)]),
        foreign_keys=tuple(
            [
                msgspec.structs.replace(key, columns=tuple([at[i] for i in key.columns]))
                for key in table.foreign_keys
                if not dropped & set(key.columns)
            ]
        ),
        older=tuple([one for one in table.older if one[0] not in {table.columns[i].name for i in dropped}]),
    )
    picks = tuple([found.picks[i] for i in kept])
    return replace(found, table=changed, picks=picks, masked=found.masked - {table.columns[i].name for i in dropped})


def _mask(one: MaskColumns, found: FilteredTable, name: TableName) -> FilteredTable:
    table = found.table
    chosen = _chosen(one.table, one.columns, found, name)
    keys = tuple([key for key in table.foreign_keys if _still_refers(one, table, key, chosen)])
    if not chosen:
        return _with(found, foreign_keys=keys)
    unique = one.by is MaskBy.HASH  # different values stay different
    for index in table.primary_key:
        if index in chosen and not unique:
            why = 'is of its primary key, and rows that differ would become one; only by = "hash" keeps them apart'
            raise Refusal(f"column {chosen[index].name} {why}")
    masks = {index: _mask_of(one, column) for index, column in chosen.items()}
    picks = tuple(
        [
            (source, _one_after_the_other(before, masks[index]) if index in masks else before)
            for index, (source, before) in enumerate(found.picks)
        ]
    )
    changed = msgspec.structs.replace(
        table,
        unique_keys=tuple([key for key in table.unique_keys if unique or not chosen.keys() & set(key)]),
        foreign_keys=keys,
        # What rows that are there hold of a column is known where it is NULL, which no mask changes.
        older=tuple([one for one in table.older if not one[1] or one[0] not in {c.name for c in chosen.values()}]),
    )
    return replace(found, table=changed, picks=picks, masked=found.masked | {c.name for c in chosen.values()})


def _still_refers(one: MaskColumns, table: TableMap, key: ForeignKey, chosen: dict[int, Column]) -> bool:
    """Whether a foreign key still finds its row: both sides are masked in the same way, or neither is."""
    there = one.columns if matches(one.table, (key.ref_schema, key.ref_table)) else ()
    return all(
        (mine in chosen) == (theirs in there) and (mine not in chosen or one.by is MaskBy.HASH)
        for mine, theirs in zip(key.columns, key.ref_columns, strict=True)
    )


def _one_after_the_other(first: Mask | None, then: Mask) -> Mask:
    return then if first is None else lambda value: then(first(value))


def _mask_of(one: MaskColumns, column: Column) -> Mask:
    """Return what masks one value of a column. Raises Refusal where the column cannot hold what would stand there."""
    match one.by:
        case MaskBy.NULL:
            if not column.nullable:
                raise Refusal(f"column {column.name} is NOT NULL")
            return _fixed(None)
        case MaskBy.VALUE:
            return _fixed(_fixed_value(one.value, column))
        case MaskBy.KEEP_LAST:
            if column.logical not in (LogicalType.TEXT, LogicalType.ANY):
                raise Refusal(
                    f"column {column.name} is of type {column.source_type}, and only text has last characters"
                )
            return _keep_last(one.keep)
        case MaskBy.HASH:
            return _hash(one.salt, column)
        case _:
            assert_never(one.by)


def _fixed(value: Value) -> Mask:
    return lambda found: found if found is None or found is UNCHANGED else value


def _fixed_value(value: str | int | float | bool | None, column: Column) -> Value:
    """Return a configured value as the column's type has it. Raises Refusal."""
    logical = column.logical
    text, number = isinstance(value, str), isinstance(value, int) and not isinstance(value, bool)
    match logical:
        case LogicalType.ANY:
            return value
        case LogicalType.TEXT if text:
            return value
        case LogicalType.JSON if isinstance(value, str):
            return Json(value)
        case LogicalType.BYTES if isinstance(value, str):
            return value.encode()
        case LogicalType.BOOL if isinstance(value, bool):
            return value
        case LogicalType.INTEGER if number:
            return value
        case LogicalType.F64 if number or isinstance(value, float):
            assert isinstance(value, int | float)
            return float(value)
        case LogicalType.DECIMAL if number or text:
            try:
                return Decimal(str(value))
            except InvalidOperation:
                pass
    raise Refusal(
        f'column {column.name} is of type {column.source_type}, which cannot be {value!r}; by = "null" puts NULL there'
    )


def _keep_last(keep: int) -> Mask:
    def mask(value: Value) -> Value:
        if isinstance(value, str):
            hidden = len(value) - keep
            return "*" * hidden + value[hidden:] if hidden > 0 else "*" * len(value)
        return value if value is None or value is UNCHANGED else "****"

    return mask


def _hash(salt: str, column: Column) -> Mask:
    key = hashlib.blake2b(salt.encode(), digest_size=32).digest()
    size = HASH_BYTES
    make: Callable[[bytes], Value]
    match column.logical:
        case LogicalType.TEXT:
            make, wide = bytes.hex, 2
        case LogicalType.ANY if "INT" not in column.source_type.upper():
            make, wide = bytes.hex, 2
        case LogicalType.BYTES:
            make, wide = bytes, 1
        case LogicalType.UUID:
            make, wide = _uuid, 0
        case _:
            raise Refusal(
                f"column {column.name} is of type {column.source_type}, and a hash is text, bytes or a uuid; "
                'use by = "value" or "null"'
            )
    if column.length and wide:
        size = min(size, column.length // wide)
    if size < HASH_BYTES_LEAST:
        raise Refusal(f"column {column.name} is too short for a hash: it holds {column.length}")

    def mask(value: Value) -> Value:
        if value is None or value is UNCHANGED:
            return value
        return make(hashlib.blake2b(encode_value(value), key=key, digest_size=size).digest())

    return mask


def _uuid(raw: bytes) -> UUID:
    return UUID(bytes=raw)
