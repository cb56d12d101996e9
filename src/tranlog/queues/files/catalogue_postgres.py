r"""The catalogue of a store in PostgreSQL: a database of its own, or a schema of one that is there.

Owns the session: its settings, reconnecting, and the lock that keeps two copies of one store from using one catalogue.
A name may contain a NUL character, which PostgreSQL's text cannot: it is stored as `\0`, and a backslash as two.

Source: PostgreSQL's manual, "Explicit Locking", "Schemas", "Write Ahead Log".
"""

from __future__ import annotations

import contextlib
from typing import Any, Final

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from tranlog.errors import CatalogueAwayError, CatalogueError
from tranlog.queues.files.catalogue import tables_text
from tranlog.servers.postgres import KEEPALIVE, describe_dsn

CATALOGUE_SCHEMA: Final = "tranlog_queues"
"""The schema that the tables stand in."""
_MAINTENANCE = "postgres"  # a database that every server has
_SETTINGS = {"search_path": CATALOGUE_SCHEMA, "lock_timeout": "10s", "statement_timeout": "30s"}
_CONNECT_TIMEOUT_S = 10


class PostgresCatalogue:
    """A `CatalogueDatabase` in a PostgreSQL. A session that was lost is replaced when the next transaction begins."""

    def __init__(self, conninfo: str, *, reading: bool = False, create: bool = False) -> None:
        """Connect; with `create` make the database if it is missing. Raises CatalogueError, ConfigError."""
        self.where = describe_dsn(conninfo, option="connect")
        self._settings = {**_SETTINGS, "default_transaction_read_only": "on" if reading else "off"}
        self._conninfo = conninfo
        self._store_id = b""
        try:
            self._session = self._connect()
        except CatalogueError:
            if not (create and self._make_database()):
                raise
            self._session = self._connect()

    def _connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        settings = " ".join(f"-c {name}={value}" for name, value in self._settings.items())
        try:
            made = make_conninfo(
                self._conninfo,
                client_encoding="utf8",
                connect_timeout=_CONNECT_TIMEOUT_S,
                tcp_user_timeout=30_000,
                options=f"{settings} -c synchronous_commit=on",
                **KEEPALIVE,
            )
            return psycopg.connect(made, autocommit=True, prepare_threshold=None)
        except psycopg.Error as exc:
            # A database that is not there is a catalogue that is lost; libpq gives no code for it.
            raise self._told(exc, away="does not exist" not in str(exc)) from exc

    def _make_database(self) -> bool:
        """Make the database that the connection string names, if the server is there and lacks it."""
        name = psycopg.conninfo.conninfo_to_dict(self._conninfo).get("dbname")
        if not name:
            return False
        try:
            maintenance = make_conninfo(self._conninfo, dbname=_MAINTENANCE, connect_timeout=_CONNECT_TIMEOUT_S)
            with psycopg.connect(maintenance, autocommit=True) as session:
                if session.execute("select 1 from pg_database where datname = %s", (name,)).fetchone():
                    return False
                making = sql.SQL("create database {} encoding 'UTF8' template template0")
                session.execute(making.format(sql.Identifier(str(name))))
        except psycopg.Error:
            return False  # why it cannot be reached is said by the first attempt
        return True

    def _told(self, exc: psycopg.Error, *, away: bool) -> CatalogueError:
        kind = CatalogueAwayError if away else CatalogueError
        return kind(path=self.where, why=str(exc).strip().partition("\n")[0] or type(exc).__name__)

    def run(self, text: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run a statement; return its rows. Raises CatalogueError."""
        kept = [_kept(value) if isinstance(value, str) else value for value in values]
        try:
            cursor = self._session.execute(text.replace("?", "%s"), kept or None)
            rows = cursor.fetchall() if cursor.description else []
        except psycopg.Error as exc:
            raise self._told(exc, away=self._session.closed) from exc
        return [tuple(_said(value) if isinstance(value, str) else value for value in row) for row in rows]

    def begin(self) -> None:
        """Begin a transaction, in a new session where the last one was lost."""
        if self._session.closed:
            self._session.close()
            self._session = self._connect()
            if self._store_id:
                self.hold(self._store_id)
        self.run("begin")

    def commit(self) -> None:
        """Commit it; how durable that is, the server's settings decide."""
        self.run("commit")

    def roll_back(self) -> None:
        """End a transaction that failed, if there is one."""
        with contextlib.suppress(CatalogueError):
            self.run("rollback")

    def has_tables(self) -> bool:
        """Whether the tables are there."""
        found = self.run("select to_regclass(?) is not null", f"{CATALOGUE_SCHEMA}.store")
        return bool(found[0][0])

    def make_tables(self) -> None:
        """Make schema and tables, in a transaction."""
        self.run(f"create schema if not exists {CATALOGUE_SCHEMA}")
        self.run(tables_text(integer="bigint", blob="bytea", digest="sha256(arguments)"))

    def hold(self, store_id: bytes) -> None:
        """Lock this store's catalogue for this session. Raises CatalogueError."""
        self._store_id = store_id
        key = int.from_bytes(store_id[:8], "big", signed=True)
        if not self.run("select pg_try_advisory_lock(?)", key)[0][0]:
            why = "another process works on it, by a copy of this store's directory or from another machine; stop that"
            raise CatalogueError(path=self.where, why=why)

    def close(self) -> None:
        """End the session."""
        self._session.close()


def _kept(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\0", "\\0")


def _said(text: str) -> str:
    return "\\".join(part.replace("\\0", "\0") for part in text.split("\\\\"))
