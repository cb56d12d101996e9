"""A second SQLite database that follows a captured one by decoded payloads alone, strictly.

Every change must find its full before image, in value and storage class, exactly once; else capture said something
that was not so. Triggers and foreign keys are off here, as what they did arrives as changes of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import apsw

from tranlog.change import Change, Op, Statement, TableMap
from tranlog.payload import PayloadBuilder, decode
from tranlog.source.sqlite.raw import read_piece
from tranlog.types import CharsetBytes, Value


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def bound(value: Value) -> tuple[str, object]:
    """Return the SQL and the binding that stand for a value."""
    if isinstance(value, CharsetBytes):
        assert value.charset == "utf8"
        return "CAST(? AS TEXT)", value.raw
    assert value is None or isinstance(value, int | float | str | bytes)
    return "?", value


def content(db: apsw.Connection) -> dict[str, list[Any]]:
    """Return every user table's rows, sorted, with storage classes and text as bytes."""
    tables: dict[str, list[Any]] = {}
    listed = "SELECT name FROM pragma_table_list WHERE schema = 'main' AND type = 'table'"
    names: list[Any] = db.execute(listed).fetchall()
    for (name,) in names:
        if name.startswith(("sqlite_", "_tranlog_")):
            continue
        columns: list[Any] = db.execute("SELECT name FROM pragma_table_xinfo(?)", (name,)).fetchall()
        parts = [f"typeof({quoted(c)}), CAST({quoted(c)} AS BLOB)" for (c,) in columns]
        rows = db.execute(f"SELECT {', '.join(parts)} FROM {quoted(name)}").fetchall()
        tables[name] = sorted(rows, key=repr)
    return tables


def changes_of(raw: bytes) -> tuple[Change, ...]:
    """Return what a row of the outbox says, as capture reads it."""
    builder = PayloadBuilder()
    for change in read_piece(raw).changes:
        if isinstance(change, Statement):
            builder.add(change)
        else:
            builder.add_encoded(*change)
    return decode(builder.take()).changes


class Replica:
    """Applies changes to a SQLite database in memory."""

    def __init__(self) -> None:
        self.db = apsw.Connection(":memory:")
        self.db.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
        self.seen = 0
        self.transactions = 0

    def follow(self, db: apsw.Connection) -> int:
        """Apply what the outbox of `db` holds beyond what was seen; return how many transactions that were."""
        before = self.transactions
        asked = "SELECT id, last, changes FROM _tranlog_outbox WHERE id > ? ORDER BY id"
        rows: list[Any] = db.execute(asked, (self.seen,)).fetchall()
        last = 1
        for number, last, raw in rows:
            self.seen = number
            self.apply(changes_of(raw))
            self.transactions += last
        assert last == 1, "the outbox ends inside a transaction"
        return self.transactions - before

    def apply(self, changes: Iterable[Change]) -> None:
        for change in changes:
            if isinstance(change, Statement):
                assert change.ddl and isinstance(change.sql, str)
                self.db.execute(change.sql)
                continue
            name = quoted(change.table.table)
            columns = [quoted(column.name) for column in change.table.columns]
            if change.op is Op.INSERT:
                assert change.after is not None
                values = [bound(value) for value in change.after]
                places = ", ".join(sql for sql, _ in values)
                self._run(
                    f"INSERT INTO {name}({', '.join(columns)}) VALUES({places})", [value for _, value in values], change
                )
                continue
            assert change.before is not None
            where, bindings = self._only(change.table, columns, change.before)
            if change.op is Op.DELETE:
                self._run(f"DELETE FROM {name} WHERE {where}", bindings, change)
                continue
            assert change.after is not None
            values = [bound(value) for value in change.after]
            sets = ", ".join(f"{column} = {sql}" for column, (sql, _) in zip(columns, values, strict=True))
            self._run(f"UPDATE {name} SET {sets} WHERE {where}", [value for _, value in values] + bindings, change)

    def _only(self, table: TableMap, columns: list[str], row: tuple[Value, ...]) -> tuple[str, list[object]]:
        """Return a condition that holds for one row with these values: the first, where they are several."""
        parts, bindings = [], []
        for column, value in zip(columns, row, strict=True):
            sql, binding = bound(value)
            parts.append(f"typeof({column}) = typeof({sql}) AND {column} COLLATE BINARY IS {sql}")
            bindings += [binding, binding]
        where = " AND ".join(parts)
        if not table.primary_key:
            where = f"rowid = (SELECT min(rowid) FROM {quoted(table.table)} WHERE {where})"
        return where, bindings

    def _run(self, sql: str, bindings: list[object], change: Change) -> None:
        self.db.execute(sql, bindings)
        assert self.db.changes() == 1, f"{self.db.changes()} rows instead of one: {change}"
