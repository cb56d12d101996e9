"""The captured tables as the events that come have them: how their rows are decoded, and which shard they belong to.

Owns the way from a TABLE_MAP event to a decoder, with what the catalog adds to it. All of it is learned anew after
each DDL and at each connection.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Final

from tranlog.change import TableMap
from tranlog.shard import ShardRule, ShardRuleKind, foreign_key_groups
from tranlog.source.mariadb.alike import AlikeColumns
from tranlog.source.mariadb.catalog import Catalog
from tranlog.source.mariadb.connection import MariadbSourceOptions
from tranlog.source.mariadb.events import (
    AFTER_FLAGS,
    HEADER,
    BinlogTable,
    EventFormatError,
    parse_table_map,
    table_map_name,
)
from tranlog.source.mariadb.lone_tables import LoneTables
from tranlog.source.mariadb.rows import RowsEncoder, encoder_of_present
from tranlog.source.mariadb.transaction import SourceTransaction
from tranlog.source.mariadb.types import (
    MariadbType,
    alike_in_binlog,
    carried_columns,
    named_by_catalog,
    table_map,
    types_in_binlog,
)

logger = logging.getLogger(__name__)

_LAYOUTS_MAX: Final = 20_000
_SEQUENCE_COLUMNS: Final = (
    "next_not_cached_value",
    "minimum_value",
    "maximum_value",
    "start_value",
    "increment",
    "cache_size",
    "cycle_option",
    "cycle_count",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLayout:
    """A table as the running transaction's rows have it. `full` is what stands before full images of a rows event.

    `part` returns that of images which hold the columns of these bits alone, the first's lowest; None where one is
    missing that should be there.
    """

    table: TableMap
    encode: RowsEncoder
    part: Callable[[int], TableLayout | None]
    columns: int
    full: bytes
    full_twice: bytes
    transactional: bool | None


class CapturedTables:
    """The tables of one server as the events that come have them. Threads: one."""

    def __init__(self, options: MariadbSourceOptions, catalog: Catalog, alike: AlikeColumns, lone: LoneTables) -> None:
        self._options = options
        self.lone = lone
        self._catalog = catalog
        self._alike = alike
        self._layouts: dict[bytes, TableLayout | None] = {}
        self._rule = options.shard_rule
        self._keys_known = False
        self._likely: set[str] = set()
        self.keyless: dict[str, None] = {}
        """The names of the tables without a primary key that were met."""
        self.charsets: dict[int, str] = {}
        """The charset of each collation by the server's number for it."""
        self.collations: dict[int, str] = {}
        """The name of each collation by that number."""
        self.folds_names = False
        """Whether the server keeps names of databases and tables in lower case."""

    def learn(self) -> None:
        """Ask a server for its foreign keys, collations and case of names.

        Raises SourceSetupError, SourceUnavailableError.
        """
        self._know_keys()
        self.charsets, self.collations = self._catalog.collations()
        self.folds_names = self._catalog.folds_names()

    def forget(self) -> None:
        """Learn all tables anew: there was DDL, or may have been."""
        self._layouts.clear()
        self.lone.forget()
        self._catalog.forget_tables()
        self._keys_known = False

    def shard_rule(self, *, ddl: bool = False) -> ShardRule:
        """Return the rule that names shards; a transaction that is `ddl` alone needs no foreign keys for it."""
        if not (self._keys_known or ddl):
            self._know_keys()
        return self._rule

    def _know_keys(self) -> None:
        """Read the foreign keys where the shard rule or the refusal of cascades needs them."""
        by_table = self._options.shard_rule.kind is ShardRuleKind.TABLE
        if by_table or self._options.cascades == "refuse":
            edges = self._catalog.foreign_key_edges()
            if by_table:
                self._rule = ShardRule(kind=ShardRuleKind.TABLE, groups=foreign_key_groups(edges))
        self._keys_known = True

    def layout(self, event: bytes, transaction: SourceTransaction) -> TableLayout | None:
        """Return the layout of a TABLE_MAP event's table; None where it is not captured.

        Raises UnsupportedEventError.
        """
        key = event[AFTER_FLAGS - 2 :]
        try:
            return self._layouts[key]
        except KeyError:
            pass
        try:
            layout = self._make_layout(event, transaction)
        except EventFormatError as exc:
            raise transaction.broken(exc.why) from exc
        if len(self._layouts) >= _LAYOUTS_MAX:
            self._layouts.clear()
        self._layouts[key] = layout
        return layout

    def _make_layout(self, event: bytes, transaction: SourceTransaction) -> TableLayout | None:
        schema, name = table_map_name(event)
        if not self._options.captures(schema):
            return None
        binlog_table = parse_table_map(event)
        known = self._catalog.table(schema, name)
        if binlog_table.complete:
            then, certain = self._alike.as_of(schema, name, HEADER.unpack_from(event)[0])
            types = types_in_binlog(binlog_table, collations=self.charsets, known=then)
            told = {column.name: kind.source_type for column, kind in zip(binlog_table.columns, types, strict=True)}
            for column in alike_in_binlog(told).keys() - certain:
                self._check_alike(f"{schema}.{name}.{column}", told[column], then.types.get(column), transaction)
        else:
            binlog_table, types = self._named(binlog_table, event, transaction)
        carried = carried_columns(binlog_table, known)
        # By its columns, unless a table of today has the same.
        sequence = tuple(column.name for column in binlog_table.columns) == _SEQUENCE_COLUMNS and (
            known is None or known.sequence or tuple(known.types) != _SEQUENCE_COLUMNS
        )
        count = len(types)

        @cache
        def part(present: int) -> TableLayout | None:
            kept = [at for at in carried if present >> at & 1]
            if not kept:
                return None  # images of no columns have no length: nobody knows how many there are
            # Of a table that is gone nobody knows which columns were generated; its key is none of them.
            if len(kept) < len(carried) and (known is not None or not set(binlog_table.primary_key) <= set(kept)):
                return None
            table = table_map(
                schema,
                name,
                [
                    types[at].column(binlog_table.columns[at].name, nullable=binlog_table.columns[at].nullable)
                    for at in kept
                ],
                primary_key=[kept.index(at) for at in binlog_table.primary_key],
                known=known,
                sequence=sequence,
            )
            bits = present.to_bytes((count + 7) // 8, "little")
            head = bytes([count]) if count < 251 else b"\xfc" + count.to_bytes(2, "little")
            return TableLayout(
                table=table,
                encode=encoder_of_present(binlog_table, types, kept, present),
                part=part,
                columns=count,
                full=head + bits,
                full_twice=head + bits + bits,
                transactional=None if known is None else known.transactional,
            )

        found = part((1 << count) - 1)
        assert found is not None
        if not (found.table.primary_key or sequence) and found.table.name not in self.keyless:
            self.keyless[found.table.name] = None
            logger.warning(
                "A table has no primary key: its rows are found by all their values, which is slow. table=%s",
                found.table.name,
            )
        return found

    def _check_alike(self, column: str, declared: str, now: str | None, transaction: SourceTransaction) -> None:
        """Refuse a column that may be a UUID or a BINARY where nothing tells which; name one that is likely."""
        if declared != now:
            raise transaction.refused(
                f"column {column}, which may be a UUID, an INET or a BINARY: the binlog does not tell, and the catalog "
                "does not have the table as it was then; that",
                f'Say what it was, as in column_types = ["{column}=uuid"], and start capture again. ',
            )
        if column not in self._likely:
            self._likely.add(column)
            logger.warning(
                "A column is taken for what it is now, since the binlog does not tell a UUID from a BINARY and its "
                "table may have changed; column_types says otherwise. column=%s type=%s transaction=%s",
                *(column, declared, transaction.group.gtid.gtid),
            )

    def _named(
        self, table: BinlogTable, event: bytes, transaction: SourceTransaction
    ) -> tuple[BinlogTable, tuple[MariadbType, ...]]:
        """Return a table whose event lacks the names of its columns with those that the catalog still has for it."""
        catalog = self._catalog
        found = named_by_catalog(
            table,
            catalog.columns(table.schema, table.table),
            catalog.primary_key(table.schema, table.table),
            self.charsets,
        )
        # Asked last: what was changed between the questions shows.
        if found is None or not catalog.unchanged_since(table.schema, table.table, HEADER.unpack_from(event)[0]):
            raise transaction.refused(
                f"rows of {table.schema}.{table.table} without the names of their columns: they were written while "
                "binlog_row_metadata was not FULL, and the catalog does not have the table as it was then; that",
                "SET GLOBAL binlog_row_metadata = 'FULL'. ",
            )
        return found
