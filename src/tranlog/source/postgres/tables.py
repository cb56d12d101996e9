"""A PostgreSQL's tables as they are now: for `tranlog verify` and `tranlog tables create`.

Owns reading the catalogue into table maps, and the rows of a SELECT into values, both as the slot would give them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Final

import psycopg

from tranlog.change import TableMap
from tranlog.errors import SourceSetupError, UnsupportedTypeError
from tranlog.source.postgres.catalog import PostgresCatalog, quoted, quoted_table
from tranlog.source.postgres.connection import PostgresControl, PostgresSourceOptions, connect, translated
from tranlog.source.postgres.relations import table_map
from tranlog.source.postgres.values import column_of, value_reader
from tranlog.types import Value

_ROWS_AT_ONCE: Final = 2000


class PostgresTables:
    """The published tables of a PostgreSQL source, read over connections of its own.

    Threads: one.
    """

    def __init__(self, options: PostgresSourceOptions) -> None:
        options.check()
        self._options = options
        self._control = PostgresControl(options)
        self._catalog = PostgresCatalog(options, self._control)

    def tables(self) -> list[TableMap]:
        """Return the published tables by (schema, table). Raises SourceUnavailableError, SourceSetupError."""
        catalog = self._catalog
        catalog.check_server()
        catalog.forget()
        if not catalog.has_publication():
            raise SourceSetupError(
                why=f"{self._options.where} has no publication {self._options.publication_name}",
                remedy="`tranlog capture` makes it",
            )
        return [self._table(*found) for found in catalog.published()]

    def _table(self, oid: int, schema: str, table: str) -> TableMap:
        listed = self._catalog.columns(oid, schema, table)
        types = self._catalog.types((kind, typmod) for _, kind, typmod in listed)
        keys = self._catalog.keys(oid)
        columns = []
        for name, kind, typmod in listed:
            found = types.get((kind, typmod))
            if found is None:
                raise UnsupportedTypeError(
                    table=f"{schema}.{table}", column=name, type_name=f"type {kind}, dropped now"
                )
            columns.append(column_of(name, found, nullable=name not in keys.not_null))
        return table_map(schema, table, columns, primary=keys.primary, keys=keys)

    def rows(self, table: TableMap) -> Iterator[tuple[Value, ...]]:
        """Yield a table's rows as the capture would carry them, in no order, streaming; `table` is one of `tables`.

        Raises: SourceUnavailableError, SourceSetupError.
        """
        readers = [value_reader(column) for column in table.columns]
        names = ", ".join(quoted(column.name) for column in table.columns)
        connection = connect(self._options)
        try:
            with connection.cursor() as cursor:
                cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                select = f"SELECT {names} FROM {quoted_table(table.schema, table.table)}"
                cursor.execute(f"DECLARE tranlog_rows NO SCROLL CURSOR FOR {select}")
                while True:
                    cursor.execute(f"FETCH {_ROWS_AT_ONCE} FROM tranlog_rows")
                    result = cursor.pgresult
                    assert result is not None
                    for row in range(result.ntuples):
                        yield tuple(
                            [
                                None if (raw := result.get_value(row, at)) is None else reader(raw)
                                for at, reader in enumerate(readers)
                            ]
                        )
                    if result.ntuples < _ROWS_AT_ONCE:
                        return
        except (psycopg.Error, OSError) as exc:
            raise translated(exc, self._options) from exc
        finally:
            with suppress(psycopg.Error):
                connection.close()

    def close(self) -> None:
        """Free the connection; closing twice is harmless."""
        self._control.close()
