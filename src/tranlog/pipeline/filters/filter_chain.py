"""Applying filters to one channel's transactions, in the order in which they are written.

Owns passing changes through filters, the state per table, and the error that names a filter. `filters` owns what a
filter does to a table, `filter_batches` owns record batches. The hard idea: neighbouring filters that are decided per
table are one step: a dictionary look-up when the table changes, and one function per row, or none. Whether a payload
must be decoded is also decided by names alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from importlib import import_module
from itertools import islice
from operator import itemgetter
from typing import Any, Final, NamedTuple, TypeAlias, assert_never

from tranlog.change import Change, Op, RowChange, Statement, TableMap, TableName
from tranlog.ddl import touched
from tranlog.errors import ConfigError, FilterError, TargetTableError
from tranlog.ids import Seqno
from tranlog.pipeline.filters.filters import (
    Delay,
    EachBatch,
    EachTransaction,
    Filter,
    FilteredTable,
    OnStatement,
    Refusal,
    TableFilter,
    change_table,
    changes_columns,
    check_filters,
    describe,
    renamed,
    renames_tables,
)
from tranlog.shard import UNKNOWN_SHARD
from tranlog.sql_tokens import sql_tokens
from tranlog.types import Value

_REMEMBERED: Final = 4096
"""So many sets of tables, and forms of tables, are remembered before all are forgotten."""
_SHOWN_SQL: Final = 200

Row: TypeAlias = tuple[Value, ...]
RowFunction: TypeAlias = Callable[[Row], Row]


class ChangePlace(NamedTuple):
    """Which transaction a change belongs to, for messages."""

    seqno: Seqno | None
    event_id: str | None


NOWHERE: Final = ChangePlace(None, None)
"""The place of a table that was not met in a transaction."""


class Chain:
    """A pipeline's filters, ready to run. Threads: one at a time.

    `ddl_ignored`: the target passes over DDL by itself, so no filter objects to it, unless it takes rows away of a
    table that has another name there.

    Raises ConfigError from the constructor: what `check_filters` says, and a function that cannot be imported.
    """

    def __init__(self, filters: Sequence[Filter], *, ddl_ignored: bool = False) -> None:
        check_filters(filters)
        self.delay_ms = 0
        self.renames = renames_tables(filters)
        """Whether two tables might become one, which the names in all headers tell."""
        self._steps: list[_TableStep | _TransactionStep | _BatchStep] = []
        self._dropped: dict[tuple[TableName, ...], bool] = {}
        self._looked_at: set[tuple[TableName, ...]] = set()
        run: list[tuple[str, TableFilter]] = []
        for number, one in enumerate(filters, start=1):
            name = f"filter {number} ({describe(one)})"
            match one:
                case Delay(delay_s=seconds):
                    self.delay_ms = round(seconds * 1000)
                    continue
                case EachTransaction() | EachBatch():
                    self._end(run, ddl_ignored)
                    function = load_function(one.function, option=f"filter {number}.function")
                    if isinstance(one, EachTransaction):
                        self._steps.append(_TransactionStep(name, function, one.changes_max))
                    else:
                        self._steps.append(_BatchStep(name, function, one.rows))
                case _:
                    run.append((name, one))
        self._end(run, ddl_ignored)
        first = self._steps[0] if self._steps else None
        self._names = first if isinstance(first, _TableStep) else None

    def _end(self, run: list[tuple[str, TableFilter]], ddl_ignored: bool) -> None:
        if run:
            self._steps.append(_TableStep(tuple(run), ddl_ignored=ddl_ignored))
            run.clear()

    @property
    def functions(self) -> tuple[str, ...]:
        """The filters whose effect only they know."""
        return tuple(step.name for step in self._steps if not isinstance(step, _TableStep))

    def drops(self, tables: tuple[TableName, ...] | None, shard_id: str) -> bool:
        """Whether nothing of a transaction would be left, as far as its header tells; else it must be decoded.

        A transaction with statements has no shard of its own, and is always decoded.
        """
        if not tables or self._names is None or not shard_id or shard_id == UNKNOWN_SHARD:
            return False
        dropped = self._dropped.get(tables)
        if dropped is None:
            if len(self._dropped) >= _REMEMBERED:
                self._dropped.clear()
            names = self._names
            dropped = self._dropped[tables] = all([names.name(table, NOWHERE) is None for table in tables])
        return dropped

    def look_at(self, tables: tuple[TableName, ...], place: ChangePlace) -> None:
        """Note the tables of any channel's transaction. Raises TargetTableError where two would become one."""
        if self._names is None or tables in self._looked_at:
            return
        for table in tables:
            self._names.name(table, place)
        if len(self._looked_at) >= _REMEMBERED:
            self._looked_at.clear()
        self._looked_at.add(tables)

    def home(self, table: TableName) -> TableName | None:
        """Return a table's name after the filters, None where they leave it out. Raises TargetTableError as `look_at`.

        What a function does is not known here.
        """
        return table if self._names is None else self._names.name(table, NOWHERE)

    def hides(self, table: TableName, columns: Collection[str]) -> str:
        """Say what the filters do to a table so that these columns are not as at the source; empty for nothing."""
        if self.functions:
            return self.functions[0]
        if self._names is None or not self._names.changes_columns(table, columns):
            return ""
        return "a filter changes its keys"

    def stream(self, changes: Iterable[Change], place: ChangePlace = NOWHERE) -> Iterator[Change]:
        """Yield what is left of a transaction's changes, in order.

        Raises FilterError, which names filter, table, seqno and event id; TargetTableError as `look_at` does.
        """
        for step in self._steps:
            changes = step.run(changes, place)
        return iter(changes)

    def table(self, table: TableMap) -> FilteredTable | None:
        """Return a table as it is after all filters that are decided per table; None where it is left out.

        Raises FilterError, TargetTableError.
        """
        found: FilteredTable | None = FilteredTable.of(table)
        for step in self._steps:
            if isinstance(step, _TableStep) and found is not None:
                found = step.table(found, NOWHERE)
        return found


def row_function(found: FilteredTable, width: int) -> RowFunction | None:
    """Return what makes a row of the table after the filters out of one before them; None where they are equal."""
    picks = found.picks
    if all(mask is None for _, mask in picks):
        indexes = [index for index, _ in picks]
        if indexes == list(range(width)):
            return None
        if len(indexes) == 1:
            (only,) = indexes
            return lambda row: (row[only],)
        return itemgetter(*indexes)
    return lambda row: tuple([row[index] if mask is None else mask(row[index]) for index, mask in picks])


def load_function(function: str | Callable[..., Any], *, option: str) -> Callable[..., Any]:
    """Return a function, importing it by its name. Raises ConfigError."""
    if not isinstance(function, str):
        return function
    module, _, name = function.partition(":")
    try:
        found: Any = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except Exception as exc:  # whatever the module's own code raises when it is imported
        why = f"cannot be imported: {type(exc).__name__}: {exc}; is its folder in PYTHONPATH, at the workers too?"
        raise ConfigError(option=option, value=function, why=why) from exc
    if not callable(found):
        raise ConfigError(option=option, value=function, why=f"is no function but {type(found).__name__}")
    loaded: Callable[..., Any] = found
    return loaded


_TablePlan: TypeAlias = tuple[TableMap, RowFunction | None, Callable[[Row], bool] | None]
"""A table after filters, what makes its row of one before them, and whether that goes on; None: as it is, and each."""


class _TableStep:
    """Filters that are decided once per table, in a row."""

    def __init__(self, filters: tuple[tuple[str, TableFilter], ...], *, ddl_ignored: bool) -> None:
        self._filters = filters
        self._ddl_ignored = ddl_ignored
        self._plans: dict[TableMap, _TablePlan | None] = {}
        self._names: dict[TableName, TableName | None] = {}
        self._homes: dict[TableName, TableName] = {}
        """By a name after the filters: the table that has it."""

    def name(self, name: TableName, place: ChangePlace) -> TableName | None:
        """Return a table's name after these filters, None where it is left out."""
        try:
            return self._names[name]
        except KeyError:
            pass
        found = renamed((one for _, one in self._filters), name)
        if found is not None:
            holder = self._homes.setdefault(found, name)
            if holder != name:
                raise TargetTableError(
                    table=".".join(found),
                    why=f"{'.'.join(holder)} and {'.'.join(name)} would both have this name, and their rows would mix",
                    seqno=place.seqno,
                    remedy="Exclude one of them before the rename, or rename it to another name",
                )
        self._names[name] = found
        return found

    def changes_columns(self, name: TableName, columns: Collection[str]) -> bool:
        """Whether these filters change what stands in these columns of a table, or leave rows of it out."""
        return changes_columns((one for _, one in self._filters), name, columns)

    def table(self, found: FilteredTable, place: ChangePlace) -> FilteredTable | None:
        """Return a table after these filters. Raises FilterError."""
        source = found.table.name
        if self.name((found.table.schema, found.table.table), place) is None:
            return None
        for name, one in self._filters:
            try:
                after = change_table(one, found)
            except Refusal as exc:
                raise FilterError(
                    filter=name, why=str(exc), table=source, seqno=place.seqno, event_id=place.event_id
                ) from exc
            assert after is not None, "its name is left"
            found = after
        return found

    def _plan(self, table: TableMap, place: ChangePlace) -> _TablePlan | None:
        found = self.table(FilteredTable.of(table), place)
        if len(self._plans) >= _REMEMBERED:
            self._plans.clear()
        plan = None
        if found is not None:
            after = table if found.table == table else found.table
            plan = after, row_function(found, len(table.columns)), found.keeps
        self._plans[table] = plan
        return plan

    def run(self, changes: Iterable[Change], place: ChangePlace) -> Iterator[Change]:
        """Yield what is left of changes."""
        plans = self._plans
        last: TableMap | None = None
        plan: _TablePlan | None = None
        for change in changes:
            if isinstance(change, Statement):
                if self._goes_on(change, place):
                    yield change
                last = None
                continue
            table = change.table
            if table is not last:
                plan = plans[table] if table in plans else self._plan(table, place)
                last = table
            if plan is None:
                continue
            table_after, row, keeps = plan
            before, after, op = change.before, change.after, change.op
            if keeps is not None:
                before = before if before is not None and keeps(before) else None
                after = after if after is not None and keeps(after) else None
                if before is None and after is None:
                    continue
                op = Op.INSERT if before is None else Op.DELETE if after is None else Op.UPDATE
            if row is None:
                yield change if table_after is table else RowChange(table_after, op, before, after)
            else:
                before, after = None if before is None else row(before), None if after is None else row(after)
                yield RowChange(table_after, op, before, after)

    def _goes_on(self, statement: Statement, place: ChangePlace) -> bool:
        """Whether a statement goes on. Raises FilterError where a filter stops at it.

        The target passes over DDL unless rows of its tables are there, which it looks for by the source's names.
        """
        ignored = statement.ddl and self._ddl_ignored
        if ignored and isinstance(statement.sql, str):
            names = _emptied(statement.sql, statement.schema)
            after = [renamed((one for _, one in self._filters), name) for name in names]
            if names and not any(after):
                return False
            ignored = all(new in (None, old) for old, new in zip(names, after, strict=True))
        if not ignored:
            for name, one in self._filters:
                match one.statements:
                    case OnStatement.STOP:
                        sql = (
                            statement.sql if isinstance(statement.sql, str) else statement.sql.decode(errors="replace")
                        )
                        shown = " ".join(sql.split())[:_SHOWN_SQL]
                        why = (
                            f"no filter reads or rewrites the text of a statement, and here is one: {shown!r}; "
                            'statements = "pass" lets such go on as they are, "drop" leaves them out'
                        )
                        raise FilterError(filter=name, why=why, seqno=place.seqno, event_id=place.event_id)
                    case OnStatement.DROP:
                        return False
                    case OnStatement.PASS:
                        pass
                    case _:
                        assert_never(one.statements)
        # It may have renamed tables.
        self._homes.clear()
        self._names.clear()
        self._plans.clear()
        return True


def _emptied(sql: str, schema: str) -> list[TableName]:
    """Return the tables whose rows a statement takes away, `*` for all of a database. A new table has had none."""
    first = [token.text.upper() for token in islice(sql_tokens(sql, ansi_quotes=True), 2)]
    found = None if first[:1] == ["CREATE"] and first != ["CREATE", "OR"] else touched(sql, schema=schema)
    return [] if found is None else [(database, table or "*") for database, table in found.emptied]


class _TransactionStep:
    """A user's function on whole transactions."""

    def __init__(self, name: str, function: Callable[..., Any], changes_max: int) -> None:
        self.name = name
        self._function = function
        self._changes_max = changes_max

    def run(self, changes: Iterable[Change], place: ChangePlace) -> Iterator[Change]:
        """Yield what the function returns; it is not called for a transaction without changes."""
        given: list[Change] = []
        for change in changes:
            given.append(change)
            if len(given) > self._changes_max:
                why = f"the transaction has more than changes_max = {self._changes_max} changes"
                raise self._error(why, place)
        if not given:
            return
        statements = {id(change) for change in given if isinstance(change, Statement)}
        try:
            returned = self._function(list(given))
        except Exception as exc:
            raise self._error(_raised(exc), place) from exc
        if returned is None:
            return
        if not isinstance(returned, list | tuple):
            raise self._error(f"it returned {type(returned).__name__}; a list of changes or None is expected", place)
        for number, change in enumerate(returned):
            why = _misshapen(change, statements)
            if why:
                raise self._error(f"change {number} that it returned {why}", place)
            yield change

    def _error(self, why: str, place: ChangePlace) -> FilterError:
        return FilterError(filter=self.name, why=why, seqno=place.seqno, event_id=place.event_id)


def _misshapen(change: object, statements: set[int]) -> str:
    """Say what is wrong with a change that a function returned; empty: nothing."""
    if isinstance(change, Statement):
        return "" if id(change) in statements else "is a statement that was not there; a function may not make any"
    if not isinstance(change, RowChange):
        return f"is {type(change).__name__}; RowChange is expected"
    images = {"before": change.before, "after": change.after}
    absent = {Op.INSERT: "before", Op.DELETE: "after"}.get(change.op)
    for name, image in images.items():
        if (image is None) != (name == absent):
            return f"is an {change.op.name} {'without' if image is None else 'with'} a row {name}"
        if image is not None and (type(image) is not tuple or len(image) != len(change.table.columns)):
            return (
                f"has a row {name} that is no tuple of {len(change.table.columns)} values, as {change.table.name} has"
            )
    return ""


class _BatchStep:
    """A user's function on Arrow record batches."""

    def __init__(self, name: str, function: Callable[..., Any], rows: int) -> None:
        self.name = name
        self._function = function
        self._rows = rows

    def run(self, changes: Iterable[Change], place: ChangePlace) -> Iterator[Change]:
        """Yield what the function leaves of each run of changes of one table."""
        run: list[RowChange] = []
        for change in changes:
            if run and (isinstance(change, Statement) or change.table is not run[0].table or len(run) >= self._rows):
                yield from self._call(run, place)
                run = []
            if isinstance(change, Statement):
                yield change
            else:
                run.append(change)
        if run:
            yield from self._call(run, place)

    def _call(self, run: list[RowChange], place: ChangePlace) -> Sequence[RowChange]:
        from tranlog.pipeline.filters.filter_batches import BatchMismatch, batch_of, changes_of

        table = run[0].table.name
        given = batch_of(run)
        try:
            returned = self._function(given)
        except Exception as exc:
            raise self._error(_raised(exc), table, place) from exc
        try:
            return changes_of(run, given, returned)
        except BatchMismatch as exc:
            raise self._error(str(exc), table, place) from exc

    def _error(self, why: str, table: str, place: ChangePlace) -> FilterError:
        return FilterError(filter=self.name, why=why, table=table, seqno=place.seqno, event_id=place.event_id)


def _raised(exc: Exception) -> str:
    return f"the function raised {type(exc).__name__}: {exc}"
