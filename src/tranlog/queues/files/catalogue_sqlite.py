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
from tranlog.queues.files.catalogue import tables_text

_BUSY_MS = 10_000


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
        except UnicodeEncodeError as exc:
            raise CatalogueError(path=self.where, why="its path is no UTF-8, and SQLite takes no other") from exc
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
        self.run(tables_text(integer="integer", blob="blob", digest="arguments"))

    def hold(self, store_id: bytes) -> None:
        """Check that the file can be written. The lock of the store's directory keeps other processes out."""
        if self._connection.readonly("main"):
            raise CatalogueError(path=self.where, why="it can only be read")
        self.begin()
        self.roll_back()

    def close(self) -> None:
        """Close it."""
        self._connection.close(True)
