"""What columns were that the binlog does not tell apart: a UUID, an INET6, an INET4 and a BINARY look alike there.

Owns what is remembered of them. The hard idea: the catalog knows the present and the stream brings the past, so the
catalog's word counts only where the table has not changed since.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tranlog.change import TableName
from tranlog.source.mariadb.catalog import Catalog
from tranlog.source.mariadb.connection import MariadbSourceOptions
from tranlog.source.mariadb.types import KnownTable, alike_after, alike_in_binlog

_TABLES_MAX: Final = 50_000


class AlikeColumns:
    """The types of such columns by table, as they were seen last. Threads: one."""

    def __init__(self, options: MariadbSourceOptions, catalog: Catalog) -> None:
        self._options = options
        self._catalog = catalog
        self._alike: dict[TableName, dict[str, str]] = {}
        self._seen_at: dict[TableName, int] = {}
        """Up to and including this second such columns may have been others than they were when they were seen."""

    def as_of(self, schema: str, table: str, second: int) -> tuple[KnownTable, frozenset[str]]:
        """Return what a table's types were in this second, as far as is known; and of which columns that is certain.

        Columns that the binlog does not tell apart (UUID, INET6, BINARY) are what the catalog says where the table has
        not changed since, else what they were when it was last seen, or created, before that; else what the option
        column_types says. Where all that is silent there is the catalog's word of now, which is not certain.
        """
        known = self._catalog.table(schema, table) or KnownTable(types={})
        name = (schema, table)
        if known.changed_at is not None and known.changed_at < second:
            self._note(name, alike_in_binlog(known.types))
        start = f"{schema}.{table}."
        columns = dict([said[len(start) :].split("=") for said in self._options.column_types if said.startswith(start)])
        if second > self._seen_at.get(name, -1):
            columns |= self._alike.get(name, {})
        return replace(known, types={**known.types, **columns}), frozenset(columns)

    def note_statement(self, schema: str, sql: str) -> None:
        """Remember what a statement says of such columns: the table may be gone, or another one, when rows come."""
        for name, columns in alike_after(schema, sql, self._alike).items():
            if self._options.captures(name[0]):
                self._note(name, columns)

    def note_present(self, *, now: bool) -> None:
        """Remember such columns of all captured tables. `now`: nothing has changed since the position."""
        seen_at = -1 if now else self._catalog.now_s()
        for name, column, declared in self._catalog.alike_columns():
            columns = alike_in_binlog({column: declared})
            self._note(name, {**self._alike.get(name, {}), **columns}, seen_at=seen_at)

    def _note(self, name: TableName, columns: dict[str, str], *, seen_at: int = -1) -> None:
        self._seen_at[name] = seen_at
        self._alike.pop(name, None)
        if columns:
            self._alike[name] = columns
            if len(self._alike) > _TABLES_MAX:
                del self._alike[next(iter(self._alike))]
        if name not in self._alike or seen_at < 0:
            self._seen_at.pop(name, None)
