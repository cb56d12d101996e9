"""A PostgreSQL's tables as they were at one LSN of its stream, read without a lock that anybody waits for.

Owns having a snapshot taken and reading in it. The hard idea: making a logical slot gives a snapshot that holds exactly
what was committed up to the slot's LSN, but the server first waits for every transaction that is open. So a temporary
slot is made over a connection of its own that nobody waits for, an ordinary session takes the snapshot over, and the
slot is gone before the first row is read.

Source: PostgreSQL's manual, "Streaming Replication Protocol" (CREATE_REPLICATION_SLOT), "SET TRANSACTION", "Caveats" of
concurrency control.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any
from uuid import UUID

import psycopg

from tranlog.change import TableMap, TableName
from tranlog.clock import Clock
from tranlog.loads import Key
from tranlog.row_blocks import RowBlock, decoded
from tranlog.source.keyset import beyond
from tranlog.source.postgres.catalog import PostgresCatalog, quoted
from tranlog.source.postgres.connection import PostgresControl, PostgresSourceOptions, connect, translated
from tranlog.source.postgres.position import WalPosition, parse_lsn
from tranlog.source.postgres.slot_making import PatientStatement
from tranlog.source.postgres.tables import PostgresTables
from tranlog.source.source import SnapshotWait
from tranlog.types import LogicalType, Value

_ORDERED = frozenset({LogicalType.INTEGER, LogicalType.BYTES, LogicalType.UUID})
"""What has one order, at the server and here."""


class _SnapshotSession(PostgresControl):
    """A session whose transaction has a snapshot, `exported` or its own: lost, it cannot be had again."""

    def __init__(self, options: PostgresSourceOptions, exported: str | None = None) -> None:
        super().__init__(options)
        self.connection = self._connection = connect(options)
        self._run("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", ())
        if exported is not None:
            self._run(f"SET TRANSACTION SNAPSHOT '{exported}'", ())

    def rows(self, sql: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Run one statement, its parameters as $1. Raises SourceUnavailableError, SourceSetupError."""
        return self._run(sql, parameters)


class PostgresSnapshot:
    """Implements `source.source.Snapshot`. `lsn`: what was committed before it is in the rows.

    Catalogue and rows are of the snapshot. Of a table that was emptied or rewritten after it the server would show no
    row, and by a name that was given to another, the rows of that: then SourceUnavailableError is raised, and another
    snapshot has the rows.
    """

    def __init__(self, options: PostgresSourceOptions, lsn: int, exported: str) -> None:
        self.lsn = lsn
        self._options = options
        self.serves_all = options.load_snapshot == "export"
        self._session = _SnapshotSession(options, exported)
        self._tables = PostgresTables(options, self._session)

    def table(self, name: TableName) -> TableMap | None:
        """Return a published table. Raises as `PostgresTables.tables`."""
        return next(iter(self._tables.tables(name)), None)

    def is_ordered(self, table: TableMap) -> bool:
        """Whether the key has only integers, bytes and UUIDs; the order of others is a collation's, or a type's own."""
        return bool(table.primary_key) and all(table.columns[at].logical in _ORDERED for at in table.primary_key)

    def chunk(self, table: TableMap, after: Key | None, limit: int | None) -> Iterator[RowBlock]:
        """Yield rows; see `Snapshot.chunk`."""
        condition, tail = "true", ""
        if self.is_ordered(table):
            names = [quoted(table.columns[at].name) for at in table.primary_key]
            if after is not None:
                condition = beyond(names, [_literal(part) for part in after])
            tail = f"ORDER BY {', '.join(names)} LIMIT {limit}"
        yield from self._tables.select(table, self._session.connection, condition=condition, tail=tail)
        self._tables.check_as_it_was(table)

    def whole(self, table: TableMap) -> Iterator[RowBlock]:
        """Yield all rows; see `Snapshot.whole`."""
        connection = self._session.connection
        try:
            connection.execute("SAVEPOINT tranlog_rows")
            yield from self._tables.select(table, connection)
            self._tables.check_as_it_was(table)
            connection.execute("ROLLBACK TO SAVEPOINT tranlog_rows")
        except (psycopg.Error, OSError) as exc:
            raise translated(exc, self._options) from exc

    def covers(self, event_id: str) -> bool:
        """Whether the transaction of this event id is in the rows."""
        return WalPosition.parse(event_id).lsn <= self.lsn

    def close(self) -> None:
        """Close the session; closing twice is harmless."""
        self._tables.close()


class PostgresAtOnce(PostgresTables):
    """All tables of the database, or `only` some, as of one moment: one transaction, and no publication or slot.

    Implements `source.source.TableReader`. A partitioned table is one table. Until it is closed, TRUNCATE and ALTER of
    a table that was read wait.
    """

    def __init__(self, options: PostgresSourceOptions, only: Collection[str]) -> None:
        """Begin. Raises SourceUnavailableError, SourceSetupError."""
        self._session = _SnapshotSession(options)
        super().__init__(options, self._session)
        self._only = frozenset(only)

    def tables(self, only: TableName | None = None) -> list[TableMap]:
        """Return the tables; see `PostgresTables.tables`. Raises SourceSetupError, with the GRANT, without SELECT."""
        found = [one for one in self.catalog.ordinary() if not self._only or f"{one.schema}.{one.table}" in self._only]
        self.catalog.check_readable(found)
        self._published = {(one.schema, one.table): one for one in found}
        return [self._table(one) for name, one in self._published.items() if only in (None, name)]

    def rows(self, table: TableMap, limit: int | None = None) -> Iterator[tuple[Value, ...]]:
        """Yield a table's rows; see `PostgresTables.rows`. One iteration at a time."""
        tail = "" if limit is None else f"LIMIT {limit}"
        yield from decoded(self.select(table, self._session.connection, tail=tail), table)
        self.check_as_it_was(table)


def _literal(part: int | bytes | UUID) -> str:
    match part:
        case bytes():
            return f"'\\x{part.hex()}'::bytea"
        case UUID():
            return f"'{part}'::uuid"
    return f"({part})"


class SnapshotTaking:
    """The snapshot that the server was asked for and has not taken yet. Threads: one.

    Shape: `lets_pass` says how far the stream may go meanwhile: up to an LSN that the snapshot will certainly hold.
    While the server waits for a transaction, that is where the WAL ends then: the snapshot is taken behind that
    transaction's end.
    """

    def __init__(self, options: PostgresSourceOptions, catalog: PostgresCatalog, clock: Clock) -> None:
        self._options = options
        self._catalog = catalog
        self._clock = clock
        self._asked: PatientStatement | None = None
        self._bound = 0
        self._told_at = 0.0
        self._why = ""

    def take(self) -> PostgresSnapshot | SnapshotWait:
        """Ask for a snapshot, or look whether it is there. Raises SourceUnavailableError, SourceSetupError.

        The former also where others have taken the server's slots or senders: one will be free.
        """
        try:
            if self._asked is None:
                self._ask()
                return SnapshotWait()
            result = self._asked.answer()
            if result is None:
                return SnapshotWait(why=self._look(self._asked.pid))
            lsn, exported = [(result.get_value(0, at) or b"").decode() for at in (1, 2)]
            found = PostgresSnapshot(self._options, parse_lsn(lsn), exported)
        except (psycopg.Error, OSError) as exc:
            self.drop()
            raise translated(exc, self._options, waits=True) from exc
        except BaseException:
            self.drop()
            raise
        self.drop()
        return found

    def _ask(self) -> None:
        self._bound, self._told_at, self._why = self._catalog.insert_lsn(), self._clock.monotonic(), ""
        self._asked = PatientStatement(self._options, waits=True, replication="database")
        name = f"{self._options.slot_name[:40]}_load_{self._asked.pid}"
        self._asked.send(f'CREATE_REPLICATION_SLOT "{name}" TEMPORARY LOGICAL pgoutput EXPORT_SNAPSHOT')

    def _look(self, pid: int) -> str:
        """Let the stream go on while the server waits for a transaction; say for which, from `load_wait_s` on."""
        end = self._catalog.insert_lsn()
        found = self._catalog.waits_for(pid)  # after the WAL's end was seen: whoever is waited for ends behind it
        if not found:
            return self._why
        self._bound = end
        now = self._clock.monotonic()
        if now - self._told_at >= self._options.load_wait_s:
            self._told_at, self._why = now, "; ".join(found)
        return self._why

    def lets_pass(self, lsn: int) -> bool:
        """Whether the stream may go on with what was committed before `lsn`."""
        return self._asked is None or lsn <= self._bound

    def wait(self, timeout_s: float) -> None:
        """Wait until the server answers, up to `timeout_s`."""
        if self._asked is not None and timeout_s > 0:
            self._asked.wait(timeout_s)

    def drop(self) -> None:
        """Forget what was asked for; the slot goes with its session."""
        asked, self._asked = self._asked, None
        if asked is not None:
            asked.drop()
