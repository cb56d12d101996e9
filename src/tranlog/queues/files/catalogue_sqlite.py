"""The catalogue of a store in SQLite: `catalogue.db` in its directory.

SQLite keeps a rollback journal, not a WAL: changes are rare, a reader beside the owner needs no shared memory, and the
tests of lost power run these very calls on their own disk.

Source: docs/decisions/0030-a-store-of-messages-has-one-log.md.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import apsw

from tranlog.errors import CatalogueError

_BUSY_MS = 10_000

_TABLES = """
create table store(
    store_id blob not null, format integer not null, created_at integer not null,
    counter integer not null, epoch integer not null);
create table exchange(
    id integer primary key, name text not null unique, type text not null,
    alternate text, arguments blob not null);
create table queue(
    id integer primary key, name text not null unique, arguments blob not null);
create table binding(
    id integer primary key,
    exchange_id integer not null references exchange(id) on delete cascade,
    queue_id integer references queue(id) on delete cascade,
    destination_id integer references exchange(id) on delete cascade,
    routing_key text not null, arguments blob not null,
    check ((queue_id is null) <> (destination_id is null)));
create unique index binding_once on binding(
    exchange_id, coalesce(queue_id, 0), coalesce(destination_id, 0), routing_key, arguments);
create table config(name text primary key, value blob not null) without rowid;
"""


class SqliteCatalogue:
    """A `CatalogueDatabase` in a SQLite file."""

    def __init__(
        self, path: str, connect: Callable[[str], apsw.Connection] = apsw.Connection, *, reading: bool = False
    ) -> None:
        """Open it by `connect`; with `reading` only to read it. Raises CatalogueError."""
        self.where = path
        with self._told():
            self._connection = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY) if reading else connect(path)
        try:
            self.run(f"pragma busy_timeout = {_BUSY_MS}")
            if not reading:
                self.run("pragma journal_mode = delete")
            self.run("pragma synchronous = extra")
            self.run("pragma foreign_keys = on")
            self.run("pragma temp_store = memory")
        except BaseException:
            self.close()
            raise

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """Have SQLite's errors be ours."""
        try:
            yield
        except apsw.Error as exc:
            raise CatalogueError(path=self.where, why=str(exc)) from exc

    def run(self, text: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run a statement; return its rows."""
        with self._told():
            return list(self._connection.execute(text, values))

    def begin(self) -> None:
        """Begin a transaction that writes."""
        self.run("begin immediate")

    def commit(self) -> None:
        """Commit it; durable."""
        self.run("commit")

    def roll_back(self) -> None:
        """End a transaction that failed, if there is one."""
        with contextlib.suppress(CatalogueError, apsw.Error):
            if not self._connection.get_autocommit():
                self.run("rollback")

    def has_tables(self) -> bool:
        """Whether the tables are there."""
        return bool(self.run("select 1 from sqlite_schema where name = 'store'"))

    def make_tables(self) -> None:
        """Make the tables, in a transaction."""
        self.run(_TABLES)

    def hold(self, store_id: bytes) -> None:
        """See that it can be written: who else opens the store the lock of its directory stops."""
        if self._connection.readonly("main"):
            raise CatalogueError(path=self.where, why="it can only be read")
        self.begin()
        self.roll_back()

    def close(self) -> None:
        """Close it."""
        self._connection.close(True)
