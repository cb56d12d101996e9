"""A MariaDB's tables as they were at one position of its binlog, read without a lock.

Source: MariaDB's manual, "START TRANSACTION", "Enhancements for START TRANSACTION WITH CONSISTENT SNAPSHOT".
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, Final

import pymysql
from pymysql.constants import ER

from tranlog.change import TableMap, TableName
from tranlog.errors import SourceSetupError
from tranlog.loads import Key
from tranlog.row_blocks import RowBlock, decoded
from tranlog.servers.mariadb import close
from tranlog.source.keyset import beyond
from tranlog.source.mariadb.connection import MariadbSourceOptions, translated
from tranlog.source.mariadb.position import BinlogPosition, parse_gtids
from tranlog.source.mariadb.tables import MariadbTables, connect_to_read, quoted_name
from tranlog.types import Value

_ATTEMPTS: Final = 20


class MariadbSnapshot:
    """Implements `source.source.Snapshot`: the server tells the binlog's position of a consistent snapshot.

    The catalog is read after it was taken, and tables are read by name. A table that was emptied or rebuilt after it
    the server refuses to read (ER_TABLE_DEF_CHANGED). It does not refuse one that RENAME has put there, whose partition
    was exchanged or dropped, or whose columns were added, dropped or renamed at once: the rows are then not those of
    the position. From the first row on the session's lock keeps all of these away.
    """

    serves_all = False

    def __init__(self, options: MariadbSourceOptions) -> None:
        """Take a snapshot of now. Raises SourceUnavailableError, SourceSetupError."""
        self._options = options
        self._connection = connect_to_read(options)
        self._tables = MariadbTables(options)
        try:
            with self._connection.cursor() as cursor:
                cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                for _ in range(_ATTEMPTS):
                    place, gtids = _taken(cursor)
                    if gtids is not None or not _has_begun_a_file(cursor):
                        break
        except (pymysql.err.MySQLError, OSError) as exc:
            self.close()
            raise translated(exc, options) from exc
        if gtids is None:
            self.close()
            raise SourceSetupError(
                why=f"{options.where} does not tell the GTIDs of a snapshot at {place[0]}:{place[1]}; it cannot where "
                "that file holds an event beyond max_allowed_packet, and this user may not begin another file",
                remedy=f"GRANT RELOAD ON *.* TO {options.user!r}, or raise max_allowed_packet, and begin again",
            )
        self.position = BinlogPosition(gtids=parse_gtids(gtids), file=place[0], offset=place[1])

    def table(self, name: TableName) -> TableMap | None:
        """Return a captured table of an engine with transactions. Raises as `MariadbTables.tables`."""
        return next((one for one in self._tables.tables(name) if one.name not in self._tables.beside()), None)

    def is_ordered(self, table: TableMap) -> bool:
        """Whether the key has only integers and bytes; the order of others is a collation's, or a type's own."""
        return bool(table.primary_key) and self._tables.has_integers_or_bytes(table)

    def chunk(self, table: TableMap, after: Key | None, limit: int | None) -> Iterator[RowBlock]:
        """Yield rows; see `Snapshot.chunk`."""
        clause = ""
        if self.is_ordered(table):
            names = [quoted_name(table.columns[at].name) for at in table.primary_key]
            if after is not None:
                values = [str(part) if isinstance(part, int) else f"x'{_raw(part).hex()}'" for part in after]
                clause = f"WHERE {beyond(names, values)} "
            clause += f"ORDER BY {', '.join(names)} LIMIT {limit}"
        return self._tables.select(table, self._connection, clause)

    def whole(self, table: TableMap) -> Iterator[RowBlock]:
        """Yield all rows; see `Snapshot.whole`. While the server writes a binlog, no savepoint frees the lock."""
        return self._tables.select(table, self._connection)

    def covers(self, event_id: str) -> bool:
        """Whether the transaction of this event id is in the rows."""
        return self.position.covers(BinlogPosition.parse(event_id))

    def close(self) -> None:
        """Close the sessions; closing twice is harmless."""
        close(self._connection)
        self._tables.close()


class MariadbAtOnce(MariadbTables):
    """All captured tables, or `only` some, as of one moment: one transaction, whose position nobody asks.

    Implements `source.source.TableReader`. Of a table that is altered after it began, and before it is read, the server
    refuses what it refuses for `MariadbSnapshot`, and no more.
    """

    def __init__(self, options: MariadbSourceOptions, only: Collection[str]) -> None:
        """Begin. Raises SourceUnavailableError, SourceSetupError."""
        super().__init__(options)
        self._only = frozenset(only)
        self._session = connect_to_read(options)
        try:
            with self._session.cursor() as cursor:
                cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        except (pymysql.err.MySQLError, OSError) as exc:
            self.close()
            raise translated(exc, options) from exc

    def tables(self, only: TableName | None = None) -> list[TableMap]:
        """Return the tables; see `MariadbTables.tables`. Raises SourceSetupError for one without snapshots."""
        found = [one for one in self._catalog.captured_tables() if not self._only or ".".join(one[:2]) in self._only]
        engines = self._catalog.without_transactions()
        beside = [(schema, table) for schema, table, _ in found if f"{schema}.{table}" in engines]
        if beside:
            names = [f"{quoted_name(schema)}.{quoted_name(table)}" for schema, table in beside]
            raise SourceSetupError(
                why=f"{', '.join(names)}: the engine has no snapshots, so that rows could be of another moment",
                remedy="Name the other tables, or run at the source: "
                + "; ".join([f"ALTER TABLE {name} ENGINE = InnoDB" for name in names]),
            )
        return [self._table(*one) for one in found if only in (None, one[:2])]

    def rows(self, table: TableMap, limit: int | None = None) -> Iterator[tuple[Value, ...]]:
        """Yield a table's rows; see `MariadbTables.rows`. One iteration at a time."""
        return decoded(self.select(table, self._session, "" if limit is None else f"LIMIT {limit}"), table)

    def close(self) -> None:
        """Close the sessions; closing twice is harmless."""
        close(self._session)
        super().close()


def _raw(part: object) -> bytes:
    assert isinstance(part, bytes)
    return part


def _taken(cursor: Any) -> tuple[tuple[str, int], str | None]:
    """Take a snapshot; return where in the binlog it is, and its GTIDs, None where the server cannot tell them.

    It reads the file up to there, and ends at an event beyond max_allowed_packet (the images of an updated row together
    may be). Then the GTIDs are those of the whole binlog, if that ends where the snapshot is before and after.
    """
    cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
    cursor.execute("SHOW STATUS LIKE 'binlog_snapshot_%'")
    told = {_text(name).lower(): _text(value) for name, value in cursor.fetchall()}
    place = told.get("binlog_snapshot_file", ""), int(told.get("binlog_snapshot_position") or 0)
    # This connection converts nothing, so neither what it is given.
    cursor.execute(f"SELECT BINLOG_GTID_POS('{place[0]}', {place[1]})")
    ((gtids,),) = cursor.fetchall()
    if gtids is not None:
        return place, _text(gtids)
    found = []
    for query in ("SHOW MASTER STATUS", "SELECT @@global.gtid_binlog_pos", "SHOW MASTER STATUS"):
        cursor.execute(query)
        found.append(cursor.fetchall())
    ends = [(_text(rows[0][0]), int(rows[0][1])) for rows in (found[0], found[2]) if rows]
    return place, _text(found[1][0][0]) if ends == [place, place] else None


def _has_begun_a_file(cursor: Any) -> bool:
    """Begin another file of the binlog, which is read from its start; False where the user lacks RELOAD."""
    try:
        cursor.execute("FLUSH NO_WRITE_TO_BINLOG BINARY LOGS")
    except pymysql.err.OperationalError as exc:
        if exc.args[0] != ER.SPECIFIC_ACCESS_DENIED_ERROR:
            raise
        return False
    return True


def _text(raw: bytes | str) -> str:
    return raw if isinstance(raw, str) else raw.decode()
