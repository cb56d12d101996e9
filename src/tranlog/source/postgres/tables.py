"""A PostgreSQL's tables as they are now: for `tranlog verify` and `tranlog tables create`.

Owns reading the catalogue into table maps, and the rows of a SELECT into values, both as the slot would give them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

import psycopg

from tranlog.change import TableMap, TableName
from tranlog.errors import SourceSetupError, UnsupportedTypeError
from tranlog.row_blocks import RowBlock, decoded
from tranlog.source.postgres.catalog import PostgresCatalog, PublishedTable, quoted, quoted_table
from tranlog.source.postgres.connection import PostgresControl, PostgresSourceOptions, connect, translated
from tranlog.source.postgres.relations import table_map
from tranlog.source.postgres.values import column_of, text_forms, value_encoder
from tranlog.source.reconnecting import busy
from tranlog.text_rows import encode_cells
from tranlog.types import Value

_ROWS_AT_ONCE: Final = 2000


class PostgresTables:
    """The published tables of a PostgreSQL source, read over connections of its own.

    Threads: one.
    """

    def __init__(self, options: PostgresSourceOptions, control: PostgresControl | None = None) -> None:
        """`control`: the session that is asked for the tables; None: one of its own."""
        options.check()
        self._options = options
        self._control = PostgresControl(options) if control is None else control
        self.catalog = PostgresCatalog(options, self._control)
        self._published: dict[TableName, PublishedTable] = {}

    def tables(self, only: TableName | None = None) -> list[TableMap]:
        """Return the published tables by (schema, table), or `only` one.

        Raises SourceUnavailableError, SourceSetupError.
        """
        catalog = self.catalog
        catalog.check_server()
        catalog.forget()
        if not catalog.has_publication():
            raise SourceSetupError(
                why=f"{self._options.where} has no publication {self._options.publication_name}",
                remedy="`tranlog capture` makes it",
            )
        self._published = {(found.schema, found.table): found for found in catalog.published()}
        return [self._table(found) for name, found in self._published.items() if only in (None, name)]

    def _table(self, found: PublishedTable) -> TableMap:
        oid, schema, table = found.oid, found.schema, found.table
        listed = self.catalog.columns(oid, found.columns)
        types = self.catalog.types((kind, typmod) for _, kind, typmod in listed)
        keys = self.catalog.keys(oid)
        columns = []
        for name, kind, typmod in listed:
            known = types.get((kind, typmod))
            if known is None:
                raise UnsupportedTypeError(
                    table=f"{schema}.{table}", column=name, type_name=f"type {kind}, dropped now"
                )
            columns.append(column_of(name, known, nullable=name not in keys.not_null))
        identity, key_sent = self.catalog.key_sent(oid)
        primary = keys.primary if identity == "f" or self._options.identity != "key" else key_sent
        return table_map(schema, table, columns, primary=primary, keys=keys)

    def estimate(self, table: TableMap) -> int:
        """Return what ANALYZE or VACUUM last counted; see `TableReader.estimate`."""
        return self.catalog.rows_counted(self.oid(table))

    def beside(self) -> dict[str, str]:
        """Return none: every table has snapshots."""
        return {}

    def oid(self, table: TableMap) -> int:
        """Return the OID of one of `tables`."""
        return self._published[table.schema, table.table].oid

    def check_as_it_was(self, table: TableMap) -> None:
        """Refuse a table whose rows the control's snapshot does not show any more. Raises SourceUnavailableError."""
        if not self.catalog.is_as_it_was(self.oid(table)):
            why = f"{table.name} was emptied, rewritten or renamed after the snapshot, which does not show its rows now"
            raise busy(self._options.where, why)

    def rows(self, table: TableMap, limit: int | None = None) -> Iterator[tuple[Value, ...]]:
        """Yield a table's rows as the capture would carry them, in no order, streaming; `table` is one of `tables`.

        Raises: SourceUnavailableError, SourceSetupError.
        """
        connection = connect(self._options)
        try:
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            tail = "" if limit is None else f"LIMIT {limit}"
            yield from decoded(self.select(table, connection, tail=tail), table)
        except (psycopg.Error, OSError) as exc:
            raise translated(exc, self._options) from exc
        finally:
            with suppress(psycopg.Error):
                connection.close()

    def select(
        self, table: TableMap, connection: psycopg.Connection[Any], *, condition: str = "true", tail: str = ""
    ) -> Iterator[RowBlock]:
        """Yield the published rows of one of `tables` that meet a condition, in a transaction; `tail` follows it.

        The transaction holds a lock on the table then. Raises as `rows`.
        """
        found = self._published[table.schema, table.table]
        encoders, forms = [value_encoder(column) for column in table.columns], text_forms(table)
        names = ", ".join(quoted(column.name) for column in table.columns)
        # Tables that inherit from this one are published by themselves.
        select = (
            f"SELECT {names} FROM {'' if found.is_root else 'ONLY '}{quoted_table(table.schema, table.table)} "
            f"WHERE ({found.row_filter or 'true'}) AND ({condition}) {tail}"
        )
        try:
            with connection.cursor() as cursor:
                cursor.execute(f"DECLARE tranlog_rows NO SCROLL CURSOR FOR {select}")
                while True:
                    cursor.execute(f"FETCH {_ROWS_AT_ONCE} FROM tranlog_rows")
                    result = cursor.pgresult
                    assert result is not None
                    if result.ntuples:
                        yield encode_cells(result.get_value, result.ntuples, forms, encoders)
                    if result.ntuples < _ROWS_AT_ONCE:
                        cursor.execute("CLOSE tranlog_rows")
                        return
        except (psycopg.Error, OSError) as exc:
            raise translated(exc, self._options, table=table.name) from exc

    def close(self) -> None:
        """Free the connection; closing twice is harmless."""
        self._control.close()
