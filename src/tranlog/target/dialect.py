"""What differs between kinds of target, in one table per kind: names, types, SQL forms, locks, time.

Owns the shape of that table; a module `<kind>_dialect` fills it in. What positions and appliers do is
written once over it, without a question after the kind. Pure: the drivers are the sessions' business.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tranlog.change import Column, TableMap
from tranlog.target.binding import Forms, TargetColumn
from tranlog.types import Value


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Dialect:
    """One kind of target. In our own SQL a parameter is written `$1`, `$2`; `mark` is what stands for the dollar."""

    kind: str
    mark: str

    integer_type: str
    """64 bits, in our three tables."""
    text_type: str
    key_text_type: str
    """Text in a key of our three tables, of two such columns at most."""
    table_suffix: str
    """After the definition of our tables, whose rows are updated all the time."""

    now_ms: str
    """An expression: the target's own clock, ms since 1970."""
    insert_or_keep: str
    """An INSERT that leaves a row with the same key as it is, and then counts none: of `{into}` and `{key}`."""
    insert_or_set: str
    """An INSERT that changes a row with the same key: of `{into}`, `{key}` and `{set}`."""
    lock_rows: str
    """After a SELECT: lock the rows for change; empty where a write transaction locks everything anyway."""
    share_rows: str
    """After a SELECT: keep the rows from being changed until commit."""
    check_deferred: str
    """A statement that checks deferred constraints now; empty where there are none that one could check."""

    runs_ddl_of: frozenset[str]
    """Which `dbms_type` in a transaction's metadata marks statements that this target may run."""
    ddl_to_skip: Callable[[str], str]
    """Say why a statement of the same kind is not to be run here; empty where it is."""
    has_sequences: bool
    """Whether rows of a sequence go into a sequence here; else they are passed over."""
    keys_at_end: bool
    """Whether foreign keys are checked at a statement's end, so that one can empty tables that refer to each other."""
    unchecked: str
    """Before a statement: check no foreign keys for it; empty where none are checked, or no session may do that."""
    statements_commit: bool
    """Whether a recorded statement commits what stands before it, so that it cannot share a target transaction."""

    without_transactions: str
    """A query for schema, name and engine of the tables whose changes no rollback takes back; empty where none are."""

    quote: Callable[[str], str]
    """Quote one name, so shortened that the target does not shorten it."""
    table_name: Callable[[TableMap], str]
    """The quoted name that a source's table has here."""
    one_name: Callable[[TableMap], str]
    """What is equal for two of a source's tables whose names would be one name here."""
    one_column: Callable[[str], str]
    """The same for the names of two columns of a table."""
    create_table: Callable[[TableMap], tuple[str, ...]]
    """The statements that make the table, and its schema, where they are missing."""
    add_column: Callable[[TableMap, int], str]
    """The statement that gives a table one column of a source's table more."""
    column_type: Callable[[TableMap, int], str]
    """The type that a column of a source's table gets where its table is made."""
    rename_table: Callable[[TableMap, TableMap], str]
    """The statement, or statements, by which the first table gets the name of the second."""
    take_null: Callable[[str, TargetColumn], str] | None = None
    """The statement that makes a column take NULL, by the table's quoted name; None where none ever `loosens`."""
    retype: Callable[[str, TargetColumn, str], str] | None = None
    """The statement that gives a column another type, likewise; None where none ever `retypes`."""

    accepts: Callable[[Column, TargetColumn], None]
    """Raise MismatchError where a column here cannot take what the source's column holds, whatever the value."""
    forms: Forms
    selected: Callable[[Column, TargetColumn, str], str]
    """The expression by which a column, given with its quoted name, is read for `reader`."""
    reader: Callable[[Column, TargetColumn], Callable[[Any], Value]]
    """Return what makes a value again out of what the session reads from a column; NULL is not its business."""

    text_form: Callable[[Column, TargetColumn], int] = lambda column, target: 0
    """Which form a column's text has of those that `reader` would make the very value of; see `text_rows.put_text`."""

    def sql(self, text: str) -> str:
        """Put our own SQL into this dialect's words: `$n` and, in braces, the fields that are words of it."""
        filled = text.format(
            integer=self.integer_type,
            text=self.text_type,
            key_text=self.key_text_type,
            suffix=self.table_suffix,
            now=self.now_ms,
            lock=self.lock_rows,
            share=self.share_rows,
        )
        return filled.replace("$", self.mark)


def table_parts(table: TableMap, quote: Callable[[str], str], defined: Callable[[int, Column], str]) -> str:
    """Return what stands between the parentheses of a CREATE TABLE: columns as `defined`, primary key, unique keys.

    Foreign keys stay out: a source's cascades arrive as rows.
    """

    def names(indexes: Sequence[int]) -> str:
        return ", ".join([quote(table.columns[i].name) for i in indexes])

    parts = [f"{quote(column.name)} {defined(i, column)}".rstrip() for i, column in enumerate(table.columns)]
    if table.primary_key:
        parts.append(f"PRIMARY KEY ({names(table.primary_key)})")
    return "\n    " + ",\n    ".join([*parts, *[f"UNIQUE ({names(key)})" for key in table.unique_keys]]) + "\n"
