"""What foreign programs did to the tables, followed: `capture_by_trigger`.

Owns finding out what was done, from the tables as they are and what their triggers were made for, and writing it into
the outbox. The hard idea: the triggers of a table show which table it was. SQLite carries them along when it renames
the table or a column, and drops them with the table. They go on to copy the columns that they name, so every row of the
outbox is what it says, whenever it was written. What they lack is read from the table itself: a column that was added
has its default in each row, unless the row was written since. So the outbox gets, after the rows that stand there, each
statement, then an UPDATE of each row in which a new column has another value; and all rows of a table that is new.

Source: SQLite's documentation, "ALTER TABLE".
"""

from __future__ import annotations

import logging
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import apsw
import msgspec

from tranlog.change import TableMap
from tranlog.errors import ForeignWriterError
from tranlog.payload import decode_table_map, encode_table_map
from tranlog.source.packer import FRAGMENT_BYTES
from tranlog.source.sqlite.hook import ONE
from tranlog.source.sqlite.lost_changes import RowTooLargeError
from tranlog.source.sqlite.outbox import INSERT_PIECE, random_token
from tranlog.source.sqlite.raw import (
    SCHEMA,
    RawTable,
    encode_change,
    encode_head,
    encode_piece,
    encode_statement,
    raw_row,
)
from tranlog.source.sqlite.schema import SqliteSchema, TablePlan, install_in, noted_marks, read_schema, table_marks
from tranlog.source.sqlite.statement import fold, quote
from tranlog.source.sqlite.triggers import number_of, numbered_tables, trigger_texts
from tranlog.types import Value

logger = logging.getLogger(__name__)

_PARTS: Final = re.compile(
    r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|`(?:[^`]|``)*`|\[[^]]*\]|--[^\n]*|/\*.*?(?:\*/|$)|(?P<sign>[(),])""", re.DOTALL
)
_TABLE, _BEFORE, _AFTER = 0, 0, 0  # the number of the only table of a piece; the places of a row, which are not read


class AddedColumns(NamedTuple):
    """Columns that stand after those that a table had, and the clauses that define them."""

    names: tuple[str, ...]
    clauses: tuple[str, ...]


@dataclass(slots=True)
class ForeignChanges:
    """What foreign programs did since the tables were noted, in an order in which it can be done again."""

    dropped: list[str] = field(default_factory=list)
    renamed: list[tuple[str, str]] = field(default_factory=list)
    columns: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    """Columns that have another name, by the table's name of now."""
    added: dict[str, AddedColumns] = field(default_factory=dict)
    """By the table's name of now."""
    made: list[str] = field(default_factory=list)


def is_changed(db: apsw.Connection, schema: SqliteSchema) -> bool:
    """Whether a foreign program has changed a table; `schema` was read in the open transaction."""
    return bool(schema.unguarded) or noted_marks(db) != table_marks(db)


def find_changes(db: apsw.Connection, schema: SqliteSchema, path: str) -> ForeignChanges:
    """Return what was done, as the open transaction sees it. Raises ForeignWriterError for what cannot be followed."""
    maps = {number: decode_table_map(encoded) for number, (encoded, _) in numbered_tables(db).items()}
    return _Finder(schema, noted_marks(db), maps, path).find()


def follow_foreign(db: apsw.Connection, path: str, now_ms: int) -> None:
    """Write what foreign programs did into the outbox and make the triggers anew, in the caller's write transaction.

    Does nothing where nothing was done. Raises ForeignWriterError, and has changed nothing then; RowTooLargeError.
    """
    schema = read_schema(db)
    if not schema.by_trigger or not is_changed(db, schema):
        return
    found = find_changes(db, schema, path)
    defaults = {name: _defaults(db, schema.plans[name], added) for name, added in found.added.items()}
    for name, values in [*defaults.items()]:
        if values is None and _has_rows(db, name):  # ALTER TABLE cannot do it to a table with rows
            _make_anew(found, name)
            del defaults[name]
    for statement in _statements(found):
        _write(db, (), [encode_statement(statement, now_ms)], now_ms)
        logger.warning("a foreign program changed the tables, captured: %s path=%s", statement, path)
    for name, values in defaults.items():
        if values is not None and found.added[name].names:
            _write(db, [_raw_table(schema, name)], _updates(db, schema.plans[name], found.added[name], values), now_ms)
    for name in found.made:
        statement = _sql(schema, name)
        _write(db, (), [encode_statement(statement, now_ms)], now_ms)
        logger.warning("a foreign program made a table, captured with its rows table=%s path=%s", name, path)
        rows = (encode_change((_TABLE, None, raw_row(row), None, _AFTER)) for row in schema.plans[name].read(db))
        _write(db, [_raw_table(schema, name)], rows, now_ms)
    install_in(db)


@dataclass(slots=True)
class _Finder:
    """Holds the tables of now against the noted ones, and those for which the triggers were made. Pure."""

    schema: SqliteSchema
    noted: Mapping[str, int]
    maps: Mapping[int, TableMap]
    path: str

    def find(self) -> ForeignChanges:
        found = ForeignChanges()
        then: dict[str, TableMap] = {}
        order = {name: at for at, name in enumerate(self.schema.texts)}
        for name in sorted(self.schema.plans, key=lambda name: order[fold(name)]):
            if triggers := self.schema.guards.get(fold(name)):
                then[name] = self._then(name, triggers)
            else:
                found.made.append(name)
        went = {table.table for table in then.values()}
        found.dropped = sorted(name for name in self.noted if name not in went)
        tables = [(table.table, name) for name, table in then.items() if table.table != name]
        found.renamed = self._in_order(None, tables, self.noted.keys() - set(found.dropped))
        for name, table in then.items():
            columns = self.schema.plans[name].map.columns
            old = [column.name for column in table.columns]
            pairs = [(was, now.name) for was, now in zip(old, columns, strict=False) if was != now.name]
            if pairs:
                found.columns[name] = self._in_order(name, pairs, old)
        for name, table in then.items():
            added = self._added(name, table, renames=bool(found.renamed or found.columns))
            if added is not None:
                found.added[name] = added
        return found

    def _then(self, name: str, triggers: dict[str, str]) -> TableMap:
        """Return the table for which triggers were made. Raises ForeignWriterError for others than SQLite has left."""
        number, now = number_of(triggers), self.schema.plans[name].map
        table = self.maps.get(number)
        if table is None:
            raise _not_whole(name, self.path)
        kept = now.columns[: len(table.columns)]
        carried = msgspec.structs.replace(table, table=name, columns=kept)
        if len(kept) != len(table.columns) or table.primary_key != now.primary_key or table.table not in self.noted:
            raise _unknown(name, self.path)
        if fold(name) in self.schema.overtaken or triggers != trigger_texts(carried, number):
            raise _not_whole(name, self.path)
        for at, (was, column) in enumerate(zip(table.columns, kept, strict=True)):
            # Triggers of an earlier release may tell another nullability of an INTEGER key that is no rowid.
            integer_key = table.primary_key == (at,) and fold(column.source_type) == "integer"
            null = was.nullable != column.nullable and not (integer_key and column.nullable)
            if was.source_type != column.source_type or null:
                raise _unknown(name, self.path)
        return table

    def _in_order(
        self, table: str | None, renames: list[tuple[str, str]], names: Iterable[str]
    ) -> list[tuple[str, str]]:
        """Return renames of tables, or of a table's columns, so that each finds its new name free.

        `names` are those that are taken before the first. Raises ForeignWriterError where there is no such order.
        """
        taken, left, ordered = {*map(fold, names)}, [*renames], []
        while left:
            free = next((one for one in left if fold(one[1]) not in taken - {fold(one[0])}), None)
            if free is None:
                raise _unknown(table or left[0][1], self.path)
            left.remove(free)
            ordered.append(free)
            taken = taken - {fold(free[0])} | {fold(free[1])}
        return ordered

    def _added(self, name: str, table: TableMap, *, renames: bool) -> AddedColumns | None:
        """Return the columns that were added to a table; None for none.

        That nothing else was done shows by the noted sum, that of the stored SQL without them. A rename rewrites the
        SQL, also that of tables that refer to it; then the columns must show it, and a generated one does not.
        """
        plan, sql, noted = self.schema.plans[name], _sql(self.schema, name), self.noted[table.table]
        first = len(table.columns)
        names = tuple([column.name for column in plan.map.columns[first:]])
        parts = column_parts(sql)
        if zlib.crc32(sql.encode()) == noted:
            if names:
                raise _unknown(name, self.path)
            return None
        for end in range(first, len(parts)):
            for begin in range(first, end + 1):
                without = sql[: parts[begin].start - 1] + sql[parts[end].stop :]
                if zlib.crc32(without.encode()) == noted:
                    clauses = tuple([sql[part].strip() for part in parts[begin : end + 1]])
                    if len(names) > len(clauses):
                        raise _unknown(name, self.path)
                    return AddedColumns(names, clauses)
        if not renames or plan.kept is not None:
            raise _unknown(name, self.path)
        clauses = tuple([sql[part].strip() for part in parts[first : first + len(names)]])
        return AddedColumns(names, clauses) if names else None


def column_parts(sql: str) -> list[slice]:
    """Return where the definitions of a CREATE TABLE stand in its text: columns, then constraints."""
    parts: list[slice] = []
    depth = begin = 0
    for found in _PARTS.finditer(sql):
        sign = found["sign"]
        depth -= sign == ")"
        if (sign == "," and depth == 1) or (sign == ")" and depth == 0):
            parts.append(slice(begin, found.start()))
            begin = found.end()
            if depth == 0:
                break
        depth += sign == "("
        if sign == "(" and depth == 1:
            begin = found.end()
    return parts


def _sql(schema: SqliteSchema, name: str) -> str:
    return next(str(sql) for kind, _, sql in schema.texts[fold(name)] if kind == "table")


def _raw_table(schema: SqliteSchema, name: str) -> RawTable:
    table = schema.plans[name].map
    return _TABLE, encode_table_map(table), schema.rule.shard_of(table.schema, table.table)


def _make_anew(found: ForeignChanges, name: str) -> None:
    """Have a table dropped by the name that it had, and made with all its rows."""
    del found.added[name]
    found.columns.pop(name, None)
    before = next((was for was, now in found.renamed if now == name), name)
    found.renamed = [one for one in found.renamed if one[1] != name]
    found.dropped.append(before)
    found.made.append(name)


def _statements(found: ForeignChanges) -> Iterator[str]:
    """Yield what was done to tables that were there, each as a statement."""
    for name in found.dropped:
        yield f"DROP TABLE {quote(name)}"
    for was, now in found.renamed:
        yield f"ALTER TABLE {quote(was)} RENAME TO {quote(now)}"
    for name, columns in found.columns.items():
        for was, now in columns:
            yield f"ALTER TABLE {quote(name)} RENAME COLUMN {quote(was)} TO {quote(now)}"
    for name, added in found.added.items():
        for clause in added.clauses:
            yield f"ALTER TABLE {quote(name)} ADD COLUMN {clause}"


def _defaults(db: apsw.Connection, plan: TablePlan, added: AddedColumns) -> tuple[Value, ...] | None:
    """Return what rows that were there have in added columns; None where ALTER TABLE refuses a table with rows."""
    listed = "SELECT iif(strict, 'STRICT', '') FROM pragma_table_list(?) WHERE schema = 'main'"
    ((strict,),) = db.execute(listed, (plan.map.table,)).fetchall()
    scratch = apsw.Connection(":memory:")
    try:
        columns = plan.map.columns[: len(plan.map.columns) - len(added.names)]
        parts = [f"{quote(one.name)} {one.source_type or 'ANY'}" for one in columns]
        scratch.execute(f"CREATE TABLE t({', '.join(parts)}) {strict}")
        scratch.execute("INSERT INTO t DEFAULT VALUES")
        for clause in added.clauses:
            scratch.execute(f"ALTER TABLE t ADD COLUMN {clause}")
        row: Any
        (row,) = scratch.execute(f"SELECT {', '.join(map(quote, added.names)) or 'NULL'} FROM t").fetchall()
        return tuple(row)
    except apsw.Error:
        return None
    finally:
        scratch.close()


def _has_rows(db: apsw.Connection, name: str) -> bool:
    return bool(db.execute(f"SELECT 1 FROM main.{quote(name)} LIMIT 1").fetchall())


def _updates(db: apsw.Connection, plan: TablePlan, added: AddedColumns, defaults: Sequence[Value]) -> Iterator[bytes]:
    """Yield an UPDATE of each row with another value than the default in a column that was added."""
    other = " OR ".join(
        f"{column} COLLATE BINARY IS NOT ?{at} OR typeof({column}) <> typeof(?{at})"
        for at, column in enumerate(map(quote, added.names), 1)
    )
    for row in plan.read(db, f"WHERE {other}", defaults):
        before = (*row[: len(row) - len(defaults)], *defaults)
        yield encode_change((_TABLE, raw_row(before), raw_row(row), _BEFORE, _AFTER))


def _write(db: apsw.Connection, tables: Sequence[RawTable], changes: Iterable[bytes], now_ms: int) -> None:
    """Write changes into the outbox as one transaction; nothing where there are none."""
    head, piece, size = encode_head(tables), list[bytes](), 0
    for change in changes:
        if size >= FRAGMENT_BYTES:
            _insert(db, tables, encode_piece(head, piece), now_ms, last=False)
            piece, size = [], 0
        piece.append(ONE + change)
        size += len(change)
    if piece:
        _insert(db, tables, encode_piece(head, piece), now_ms, last=True)


def _insert(db: apsw.Connection, tables: Sequence[RawTable], piece: bytes, now_ms: int, *, last: bool) -> None:
    try:
        db.execute(INSERT_PIECE, (last, now_ms, random_token(), False, piece))
    except apsw.TooBigError as exc:
        names = tuple([decode_table_map(encoded).name for _, encoded, _ in tables])
        limit = db.limit(apsw.SQLITE_LIMIT_LENGTH)
        raise RowTooLargeError(tables=names, size=len(piece), limit=limit) from exc


def _not_whole(name: str, path: str) -> ForeignWriterError:
    return ForeignWriterError(
        table=f"{SCHEMA}.{name}",
        why="a foreign program dropped or changed the triggers that capture it, or made one of its own after them, in "
        f"{path}. What was written until then waits in the outbox",
        remedy=_remedy(name, path),
    )


def _unknown(name: str, path: str) -> ForeignWriterError:
    return ForeignWriterError(
        table=f"{SCHEMA}.{name}",
        why=f"a foreign program has altered it in {path} in a way that capture cannot tell. What was written until "
        "then waits in the outbox",
        remedy="Do the same to the target's table. " + _remedy(name, path),
    )


def _remedy(name: str, path: str) -> str:
    program = f'python3 -c "from tranlog.source.sqlite import install; install({path!r})"'
    return (
        f"Run {program}, then start `tranlog capture` and run `tranlog load --replace --tables {SCHEMA}.{name}`, "
        "with the other tables that the first command has named: it brings the rows that were missed"
    )
