"""A SQLite database's tables as they are now, or as they were at a place in the outbox.

Owns the read transaction in which they are read. The hard idea: rows and outbox lie in one database, so one read
transaction has both: the rows, and the newest transaction that they have.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from itertools import islice

import apsw

from tranlog.change import TableMap, TableName
from tranlog.errors import SourceSetupError, SourceUnavailableError
from tranlog.loads import Key
from tranlog.row_blocks import RowBlock, encoded
from tranlog.source.sqlite.claim import place_of
from tranlog.source.sqlite.opening import looking
from tranlog.source.sqlite.raw import OUTBOX_TABLE, SCHEMA
from tranlog.source.sqlite.schema import TablePlan, read_schema
from tranlog.source.sqlite.statement import quote
from tranlog.types import Value


class SqliteTables:
    """Reads a SQLite database's tables, or `only` some, as they are now. Implements `source.source.TableReader`.

    All reading happens in one read transaction, opened by the first call.
    """

    def __init__(self, path: str, only: Collection[str] = ()) -> None:
        self.path = path
        if not os.path.exists(path):
            raise SourceSetupError(why=f"there is no database at {path}", remedy="Check the path")
        self._db: apsw.Connection | None = None
        try:
            self._db = looking(path)
            self._db.set_busy_timeout(10_000)
            self._db.execute("BEGIN")
            schema = read_schema(self._db)
        except apsw.Error as exc:
            self.close()
            raise SourceUnavailableError(where=path, why=str(exc)) from exc
        self.version = schema.version
        """The number of the schema that the tables have."""
        self.left_out = {f"{SCHEMA}.{name}": what for name, what in schema.left_out().items()}
        """The user's tables that are not among them, and what each of them is."""
        self._plans: dict[str, TablePlan] = schema.plans
        self._maps = [table for table in schema.maps() if not only or table.name in only]

    def tables(self, only: TableName | None = None) -> list[TableMap]:
        """Return the user's tables, or `only` one; see `TableReader.tables`."""
        return [table for table in self._maps if only in (None, (table.schema, table.table))]

    def estimate(self, table: TableMap) -> int:
        """Return the span of the rowids, which is at hand; see `TableReader.estimate`."""
        assert self._db is not None, "closed"
        try:
            found = self._db.execute(f"SELECT max(rowid) - min(rowid) + 1 FROM main.{quote(table.table)}").fetchall()
        except apsw.SQLError:  # it has none
            return 0
        return int(found[0][0] or 0)

    def beside(self) -> dict[str, str]:
        """Return none: all tables are of one database."""
        return {}

    def rows(self, table: TableMap, limit: int | None = None) -> Iterator[tuple[Value, ...]]:
        """Yield a table's rows as capture carries them: without generated columns."""
        try:
            yield from islice(self._all_rows(table), limit)
        except apsw.Error as exc:
            raise SourceUnavailableError(where=self.path, why=str(exc)) from exc

    def _all_rows(self, table: TableMap) -> Iterator[tuple[Value, ...]]:
        assert self._db is not None, "closed"
        plan = self._plans[table.table]
        cursor = self._db.execute(plan.select_all)
        seen = 0
        while True:
            try:
                for row in cursor:
                    seen += 1
                    yield row
                return
            except UnicodeDecodeError:
                break
        # Text that is not UTF-8: the same scan, from here on by bytes.
        yield from plan.read(self._db, f"LIMIT -1 OFFSET {seen}")

    def close(self) -> None:
        """Free the connection."""
        if self._db is not None:
            self._db.close(True)
            self._db = None


class SqliteSnapshot(SqliteTables):
    """The tables as of `outbox_id`, the newest id in the outbox, inclusive. Implements `source.source.Snapshot`."""

    serves_all = False

    def __init__(self, path: str) -> None:
        super().__init__(path)
        assert self._db is not None
        self.outbox_id = 0
        if self._db.table_exists("main", OUTBOX_TABLE):
            ((newest,),) = self._db.execute(f"SELECT coalesce(max(id), 0) FROM main.{OUTBOX_TABLE}").fetchall()
            assert isinstance(newest, int)
            self.outbox_id = newest

    def table(self, name: TableName) -> TableMap | None:
        """Return one of the user's tables."""
        return next(iter(self.tables(name)), None)

    def is_ordered(self, table: TableMap) -> bool:
        """Whether the key is the rowid; of others the order depends on collations and on the values' types."""
        return self._plans[table.table].rowid is not None

    def chunk(self, table: TableMap, after: Key | None, limit: int | None) -> Iterator[RowBlock]:
        """Yield rows; see `Snapshot.chunk`."""
        return encoded(self._chunk(table, after, limit))

    def _chunk(self, table: TableMap, after: Key | None, limit: int | None) -> Iterator[tuple[Value, ...]]:
        plan = self._plans[table.table]
        if plan.rowid is None:
            yield from self.rows(table)
            return
        assert self._db is not None and limit is not None
        name = quote(table.columns[plan.rowid].name)
        condition = "" if after is None else f"WHERE {name} > ?1 "
        values = () if after is None else after
        try:
            yield from plan.read(self._db, f"{condition}ORDER BY {name} LIMIT {limit}", values)
        except apsw.Error as exc:
            raise SourceUnavailableError(where=self.path, why=str(exc)) from exc

    def whole(self, table: TableMap) -> Iterator[RowBlock]:
        """Yield all rows; see `Snapshot.whole`."""
        return encoded(self.rows(table))

    def covers(self, event_id: str) -> bool:
        """Whether the transaction of this event id is in the rows."""
        found = place_of(event_id)
        return found is None or found[1].id <= self.outbox_id
