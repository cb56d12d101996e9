"""The module that Django looks for in a backend: Django's own for SQLite, over our DB-API module."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from django.db.backends.sqlite3 import base
from django.db.backends.sqlite3._functions import register as register_functions

from tranlog.source.sqlite import dbapi


class DatabaseWrapper(base.DatabaseWrapper):  # type: ignore[misc]
    """A connection of Django's. Raises as `dbapi` does, which Django translates."""

    Database = dbapi

    def get_new_connection(self, conn_params: dict[str, Any]) -> dbapi.DbApiConnection:
        """Open a connection; `NAME` must be a file."""
        connection = dbapi.connect(conn_params["database"], timeout=conn_params.get("timeout", 10.0))
        register_functions(connection)
        for command in ("PRAGMA foreign_keys = ON", *self.init_commands):
            if command.strip():
                connection.execute(command.strip())
        return connection

    def create_cursor(self, name: str | None = None) -> dbapi.DbApiCursor:
        """Return a cursor that takes Django's style of parameters."""
        connection: dbapi.DbApiConnection = self.connection
        return connection.cursor(factory=_FormatCursor)


class _FormatCursor(dbapi.DbApiCursor):
    def execute(self, sql: str, parameters: Sequence[Any] | Mapping[str, Any] | None = None) -> dbapi.DbApiCursor:
        if parameters is None:
            return super().execute(sql)
        return super().execute(_in_qmarks(sql, parameters), parameters)

    def executemany(
        self, sql: str, seq_of_parameters: Iterable[Sequence[Any] | Mapping[str, Any]]
    ) -> dbapi.DbApiCursor:
        given = list(seq_of_parameters)
        return super().executemany(_in_qmarks(sql, given[0] if given else ()), given)


def _in_qmarks(sql: str, parameters: Sequence[Any] | Mapping[str, Any]) -> str:
    if isinstance(parameters, Mapping):
        return sql % {name: f":{name}" for name in parameters}
    return base.FORMAT_QMARK_REGEX.sub("?", sql).replace("%%", "%")  # type: ignore[no-any-return]
