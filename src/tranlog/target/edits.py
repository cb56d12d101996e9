"""What an edit of a source's table comes to at a target of another kind, and what a table here lacks for a change.

Owns these decisions; `database` carries them out. Pure. The hard idea: it is decided by what is here. A table or a
column that is not here is made by the next row, under the name and with the columns that it has by then; and nothing
that is here is taken away.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from tranlog.change import Column, TableMap, TableName
from tranlog.table_edits import (
    UNBOUNDED,
    AddedColumn,
    DroppedColumn,
    DroppedTable,
    Edit,
    RenamedColumn,
    RenamedTable,
    RetypedColumn,
    column_size,
    is_of_labels,
)
from tranlog.table_notes import WHOLE, TableNote
from tranlog.target.binding import TargetColumn, TargetTable
from tranlog.target.dialect import Dialect
from tranlog.types import LogicalType

_DIGITS_OF_INTEGERS: Final = {2: 5, 4: 10, 8: 19, 9: 20}
"""By the size of an integer: digits of the largest."""


class UnfollowedError(Exception):
    """An edit that the target's own tables stand against, or the option for what loses data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """What an edit comes to: `sql` is run, empty for nothing; `note` is kept of the table; `held` is said, or empty."""

    sql: str = ""
    note: TableNote
    held: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TablesHere:
    """A target's tables, as an edit is decided by them. `loss` is the option `ddl_loss`."""

    dialect: Dialect
    loss: str
    table: Callable[[TableName], TargetTable | None]
    has_rows: Callable[[TableName], bool]

    def follow(self, edit: Edit, note: TableNote, seqno: int) -> Followed:
        """Return what an edit comes to; `note` is what is kept of its table so far. Raises UnfollowedError."""
        table = self.table(edit.table)
        if table is None:
            return Followed(note=TableNote(here=note.here and not isinstance(edit, DroppedTable)))
        name = self.dialect.table_name(named(*edit.table))
        match edit:
            case RenamedTable(to=to) if to == edit.table:
                return Followed(note=note)
            case RenamedTable(to=to):
                if self.table(to) is not None:
                    raise UnfollowedError(f"there is a table {'.'.join(to)} here already")
                return Followed(sql=self.dialect.rename_table(named(*edit.table), named(*to)), note=note)
            case RenamedColumn(column=column, to=to):
                sql = self._rename(name, table, column, to)
                return Followed(sql=sql, note=note.renamed(column, to))
            case AddedColumn(column=column, null=null, literal=literal):
                if self._column(table, column) is None:
                    return Followed(note=note.with_filled(column, null, literal))
                if column.lower() in [one.lower() for one in note.dropped]:
                    why = f"a column {column} that the source dropped is still here, with its values; drop or rename it"
                    raise UnfollowedError(why)
                return Followed(note=note)
            case DroppedColumn(column=column):
                one = self._column(table, column)
                if one is None:
                    return Followed(note=note.with_filled(column, False))
                held = self._lost(f"it drops the column {one.name}", f"the column {one.name} stays")
                loosen = self.dialect.take_null if self.loss == "hold" and one.loosens else None
                sql = loosen(name, one) if loosen else ""
                return Followed(sql=sql, note=note.with_dropped(one.name, seqno), held=held)
            case DroppedTable():
                if not self.has_rows(edit.table):
                    return Followed(note=note)
                held = self._lost("it takes rows away, which are still here", "the table stays, with its rows")
                return Followed(note=note.with_dropped(WHOLE, seqno), held=held)
            case RetypedColumn(column=column, source_type=source_type):
                return self._retyped(table, column, source_type, note, seqno)

    def after(self, edit: Edit, note: TableNote) -> Followed | None:
        """Return what an edit whose statement has run leaves to do; None for one that can be decided again."""
        match edit:
            case RenamedTable():
                return Followed(note=note)
            case RenamedColumn(column=column, to=to):
                return Followed(note=note.renamed(column, to))
            case _:
                return None

    def _rename(self, name: str, table: TargetTable, column: str, to: str) -> str:
        quote, one, other = self.dialect.quote, self._column(table, column), self._column(table, to)
        if one is None or quote(one.name) == quote(to):
            return ""
        if other is not None and other is not one:
            raise UnfollowedError(f"there is a column {other.name} here already")
        return f"ALTER TABLE {name} RENAME COLUMN {quote(one.name)} TO {quote(to)}"

    def _retyped(self, table: TargetTable, column: str, source_type: str, note: TableNote, seqno: int) -> Followed:
        """Decide about a column's new type: a wider one comes with the rows."""
        one = self._column(table, column)
        if one is None:
            # A literal may be another one by the new type.
            return Followed(note=note.with_filled(column, note.filled.get(column.lower()) == ""))
        (family, *size), (here, *size_here) = column_size(source_type), column_size(one.declared)
        if is_of_labels(source_type):
            family, size = "text", [0, 0]  # whichever texts it was made of, others are no labels
        if not family or family != here:
            why = (
                f"the column {one.name} is {one.declared} here, and what {source_type} makes of its values is not known"
            )
            raise UnfollowedError(why)
        if all(new >= old for new, old in zip(size, size_here, strict=True)):
            return Followed(note=note)
        held = self._lost(
            f"the column {one.name} may become narrower by it than it is here",
            f"the column {one.name} stays {one.declared}, with what the source may have cut off",
        )
        certain = size_here[0] < UNBOUNDED
        return Followed(note=note.with_retyped(one.name, seqno) if certain else note, held=held)

    def _lost(self, what: str, held: str) -> str:
        if self.loss == "stop":
            raise UnfollowedError(f'{what}: ddl_loss = "stop" does not pass over that')
        return held

    def _column(self, table: TargetTable, name: str) -> TargetColumn | None:
        """Return a column by its name; MariaDB and SQLite, whose statements these are, do not tell its case apart."""
        wanted = self.dialect.quote(name)
        found = {self.dialect.quote(one.name): one for one in table.columns.values()}
        return found.get(wanted) or next((one for at, one in found.items() if at.lower() == wanted.lower()), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Behind:
    """What a table here lacks for a change: statements without which it cannot go in, and what else they change."""

    needed: tuple[str, ...] = ()
    wished: tuple[str, ...] = ()
    """A column that takes NULL, or a wider type: most values fit without it."""


def behind(
    dialect: Dialect, table: TableMap, here: TargetTable, added: Callable[[], Mapping[str, str] | None]
) -> Behind:
    """Return what a table here lacks for a change of `table`.

    `added` returns the names of columns, in lower case, of which it is known what they hold in the rows that are here:
    a literal, or NULL (empty); None while there are no rows. It is asked only where a column is missing. Of others no
    table map tells. A table that keeps old versions by itself is refused, and lacks nothing.
    """
    if here.period & {one.name for one in table.columns}:
        return Behind()
    name = dialect.table_name(table)
    found = {dialect.one_column(one.name): one for one in here.columns.values()}
    lacking = [at for at, one in enumerate(table.columns) if dialect.one_column(one.name) not in found]
    known: Mapping[str, str] = {}
    if lacking and (filled := added()) is not None:
        known = filled
        if not all(_is_filled(table.columns[at], known.get(table.columns[at].name.lower())) for at in lacking):
            return Behind()
    wished = []
    for at, one in enumerate(table.columns):
        column = found.get(dialect.one_column(one.name))
        if column is None:
            continue
        wider = widened(dialect, table, at, column)
        if wider and dialect.retype:
            wished.append(dialect.retype(name, column, wider))
            column = replace(column, declared=wider)
        if dialect.take_null and column.loosens and one.nullable and at not in table.primary_key:
            wished.append(dialect.take_null(name, column))
    needed = []
    for at in lacking:
        literal = known.get(table.columns[at].name.lower())
        needed.append(dialect.add_column(table, at) + (f" DEFAULT {literal}" if literal else ""))
        if literal and dialect.retype:  # SQLite, which alters no column, keeps the default
            needed.append(f"ALTER TABLE {name} ALTER COLUMN {dialect.quote(table.columns[at].name)} DROP DEFAULT")
    return Behind(needed=tuple(needed), wished=tuple(wished))


def _is_filled(column: Column, literal: str | None) -> bool:
    """Whether it is certain what a column holds in the rows that are here, by what a statement said; None: nothing."""
    if not literal:
        return literal is not None and column.nullable
    family, *_ = column_size(column.source_type)
    return family == ("text" if literal.startswith("'") else "integer")


def widened(dialect: Dialect, table: TableMap, index: int, here: TargetColumn) -> str:
    """Return the type that a column here needs, to hold all that the source's does and all that it holds; empty: its
    own, or none is known that is of its family. (A number of SQLite's is of any size, whatever its column says.)
    """
    column = table.columns[index]
    family, *wanted = column_size(column.source_type)
    family_here, *size = column_size(here.declared)
    most = [max(pair) for pair in zip(wanted, size, strict=True)]
    if not here.retypes or not family or family != family_here or column.logical == LogicalType.ANY or most == size:
        return ""
    if family == "decimal" and most != wanted:
        column = msgspec.structs.replace(column, source_type=f"decimal({sum(most)},{most[1]})")
        columns = (*table.columns[:index], column, *table.columns[index + 1 :])
        table = msgspec.structs.replace(table, columns=columns)
    made = dialect.column_type(table, index)
    family_made, *size_made = column_size(made)
    if family == "integer" and family_made == "decimal":
        return made if size_made[0] >= _DIGITS_OF_INTEGERS[most[0]] else ""
    holds = family_made == family and all(new >= old for new, old in zip(size_made, most, strict=True))
    # Of a sign that is here the rows are not known, whatever the size.
    return made if holds and ("unsigned" in made) == ("unsigned" in here.declared) else ""


def emptying(
    dialect: Dialect, tables: Collection[TableName], references: Iterable[tuple[TableName, TableName]]
) -> list[str]:
    """Return the statements that delete all rows of tables, by their names here.

    `references` are the foreign keys here, (referring table, referred table); these tables, and others that lose no
    rows by it, may refer to each other in a circle. `tables` is not empty.
    """
    deletes = {one: f"DELETE FROM {dialect.table_name(named(*one))}" for one in tables}
    if dialect.keys_at_end:
        *others, last = deletes.values()
        parts = ", ".join([f"emptied_{number} AS ({sql})" for number, sql in enumerate(others)])
        return [f"WITH {parts} {last}" if parts else last]
    referring: dict[TableName, set[TableName]] = {one: set() for one in deletes}
    for one, other in references:
        referring.get(other, set()).add(one)
    statements, left = [], list(deletes)
    while left:
        before, now = "", [one for one in left if referring[one].isdisjoint(left)]
        if not now:  # no order does in a circle; where all that refers to a table is emptied, no check would miss any
            before, now = dialect.unchecked, [one for one in left if referring[one] <= deletes.keys()]
        if not now:
            before, now = "", left
        statements += [before + deletes[one] for one in now]
        left = [one for one in left if one not in now]
    return statements


def named(schema: str, table: str) -> TableMap:
    """Return a table of which only the name is known."""
    return TableMap(schema=schema, table=table, columns=())
