"""A source, a native replica, and a target of ours at a PostgreSQL, whose values are compared with the replica's."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from replicas import Replicas
from tranlog.change import Change, Op, Options, RowChange, Statement, TableName
from tranlog.ddl import touched
from tranlog.errors import ConflictError
from tranlog.pipeline.upkeep.verify import verify_tables
from tranlog.source.mariadb import MariadbSourceOptions, MariadbTables
from tranlog.source.mariadb.position import BinlogPosition, gtid_text
from tranlog.target.options import TargetOptions
from tranlog.target.postgres_dialect import POSTGRES
from tranlog.testing.servers import OptionValue, PostgresServer

_CASCADES: Final = re.compile(r"\bON\s+(?:DELETE|UPDATE)\s+(?:CASCADE|SET)\b", re.IGNORECASE)
_ADVISED: Final = re.compile(r"column (?P<column>.+?): .*; make the column text", re.DOTALL)


class ReplicaStoppedError(Exception):
    """The native replica has stopped where our copy needs its tables."""


class ReplicasAtPostgres(Replicas):
    """Replicas with our target at a PostgreSQL, DDL passed over there, and values compared as by `tranlog verify`.

    What a DDL statement names is dropped at the target, and made and loaded anew from the native replica, which has
    been brought to the same place, before the next of its rows. Tables whose foreign keys change rows by themselves
    are left out: capture for such a target refuses them.
    """

    def __init__(self, *, server_options: Mapping[str, OptionValue] | None = None) -> None:
        super().__init__(server_options=server_options, target_options={"ddl": "ignore"})
        self.postgres = PostgresServer(options={"fsync": False, "synchronous_commit": False, "full_page_writes": False})
        self._stale: set[TableName] = set()
        self._cascading: set[TableName] = set()

    def _start_target(self, stack: contextlib.ExitStack) -> None:
        stack.enter_context(self.postgres)

    def _options(self, options: Mapping[str, Any]) -> TargetOptions:
        return TargetOptions(kind="postgres", dsn=self.postgres.dsn(), **options)

    def _write(self, changes: Sequence[Change], event_id: str, tstamp: int, metadata: Options) -> None:
        assert self._applier is not None
        kept: list[Change] = []
        new: set[TableName] = set()
        for change in changes:
            if isinstance(change, Statement):
                new |= (named := self._drop(change))
                if change.ddl and all(table for _, table in named):
                    kept.append(change)  # others stop apply: an operator does them by hand, and leaves them out
                continue
            name = (change.table.schema, change.table.table)
            if name in self._cascading:
                continue
            if name in new:  # CREATE TABLE … SELECT
                self._applier.rows.create_table(change.table)
                self._stale.discard(name)
            elif self._is_stale(name):
                self._load()
            kept.append(change)
        self._write_as_advised(kept, event_id, tstamp, metadata)

    def _write_as_advised(self, changes: Sequence[Change], event_id: str, tstamp: int, metadata: Options) -> None:
        """Apply; where a value is refused with the advice to make its column text, do so and go on."""
        while True:
            try:
                return super()._write(changes, event_id, tstamp, metadata)
            except ConflictError as exc:
                if (advised := _ADVISED.match(exc.why)) is None:
                    raise
                table = ".".join(map(POSTGRES.quote, exc.table.split(".")))
                column = POSTGRES.quote(advised["column"])
                self.postgres.execute(f"ALTER TABLE {table} ALTER {column} TYPE text")

    def _is_stale(self, name: TableName) -> bool:
        return name in self._stale or (name[0], "") in self._stale

    def _drop(self, statement: Statement) -> set[TableName]:
        """Drop at the target what a statement is about, and return that."""
        text = statement.sql if isinstance(statement.sql, str) else statement.sql.decode("latin-1")
        found = touched(text, schema=statement.schema)
        named = set(found.names if found is not None else ())
        if _CASCADES.search(text) or named & self._cascading:
            self._cascading |= named
        for schema, table in named:
            home = POSTGRES.quote(schema)
            what = f"TABLE IF EXISTS {home}.{POSTGRES.quote(table)}" if table else f"SCHEMA IF EXISTS {home}"
            self.postgres.execute(f"DROP {what} CASCADE")
        self._stale |= named
        return named

    def _load(self) -> None:
        """Make the tables that DDL was about anew, with the rows that they have where our target stands."""
        assert self._applier is not None and self._position is not None
        if not self.replica_to(gtid_text(BinlogPosition.parse(self._position).gtids)):
            raise ReplicaStoppedError(self.replica_error())
        with contextlib.closing(self._replica_tables()) as reader:
            for table in reader.tables():
                if self._is_stale((table.schema, table.table)):
                    self._applier.rows.create_table(table)
                    rows = [RowChange(table, Op.INSERT, None, row) for row in reader.rows(table)]
                    self._write_as_advised(rows, self._position, 0, ())
        self._stale.clear()

    def _replica_tables(self) -> MariadbTables:
        return MariadbTables(MariadbSourceOptions(host=self.replica.host, port=self.replica.port))

    def differences(self, *databases: str, any_engine: bool = False) -> list[str]:
        """Say in which tables' rows our target differs from the native replica; `databases`: in all that there are."""
        assert self._applier is not None
        self._load()
        found = []
        with contextlib.closing(self._replica_tables()) as reader:
            tables = [one for one in reader.tables() if (one.schema, one.table) not in self._cascading]
            for one in verify_tables(reader, self._applier.rows, tables=tables, differences=3, report=lambda *_: None):
                self.rows += one.source_rows
                if not one.equal:
                    rows = "; ".join([f"{row.key}: {row.what}" for row in one.differences])
                    counts = f"{one.source_rows} rows at the replica, {one.target_rows} at the target"
                    found.append(f"{one.table}: {one.problem or counts} {rows}")
        return found

    def empty_target(self) -> None:
        """Leave our target without anything but what is tranlog's own."""
        kept = "schema_name <> 'information_schema' AND schema_name <> 'public' AND schema_name NOT LIKE 'pg\\_%'"
        for (name,) in self.postgres.execute(f"SELECT schema_name FROM information_schema.schemata WHERE {kept}"):
            self.postgres.execute(f"DROP SCHEMA {POSTGRES.quote(name)} CASCADE")
        self._stale.clear()
        self._cascading.clear()
