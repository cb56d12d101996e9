"""What a PostgreSQL server is asked by SQL: how it is set up, its slot and publication, its tables and types.

Owns the questions, the making of the publication, and the refusals with the statements that mend what is refused.
The hard idea: the catalogue tells of now, and the stream of then. From the catalogue comes only what the stream does
not hold: keys, and which columns may be NULL; and that is taken by the names of the columns.

Source: PostgreSQL's manual, "System Catalogs", "Logical Replication".
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from tranlog.change import TableName
from tranlog.errors import SourceSetupError
from tranlog.source.postgres.connection import PostgresControl, PostgresSourceOptions
from tranlog.source.postgres.position import SlotState, parse_lsn, slot_dropping
from tranlog.source.postgres.values import PostgresType

logger = logging.getLogger(__name__)

OLDEST_VERSION: Final = 140000
TELLS_SCHEMAS: Final = 160000
"""From this version on a table is defined anew when its schema was renamed."""
_SYSTEM_SCHEMAS: Final = "n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'"
TRIGGER: Final = "tranlog_ddl"
"""The name of the event trigger that records DDL, and of its function's schema."""
TRIGGERS: Final = (TRIGGER, f"{TRIGGER}_drop")
PUBLICATION_COMMENT: Final = "made by tranlog"

_SLOT: Final = """
SELECT plugin, database, confirmed_flush_lsn::text, coalesce(wal_status, ''), active_pid, temporary, two_phase
  FROM pg_replication_slots WHERE slot_name = $1 AND slot_type = 'logical'"""
_WITH_PUBLISHED: Final = """
WITH published AS (
    SELECT c.oid, c.relkind FROM pg_publication_tables p
      JOIN pg_namespace n ON n.nspname = p.schemaname
      JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename
     WHERE p.pubname = $1)"""
_NAMED: Final = """
SELECT r.prrelid AS oid FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid WHERE p.pubname = $1"""
_MEMBERS: Final = f"""{_WITH_PUBLISHED},
members AS (
    SELECT oid FROM published
     UNION SELECT t.relid FROM published, LATERAL pg_partition_tree(published.oid) t WHERE published.relkind = 'p')
SELECT n.nspname, c.relname, c.relreplident::text,
       EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indimmediate
                  AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident END)
  FROM members JOIN pg_class c USING (oid) JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind <> 'f' ORDER BY n.nspname, c.relname"""
_HELD: Final = f"""{_WITH_PUBLISHED}
SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.oid IN ({_NAMED} UNION SELECT oid FROM published
                  UNION SELECT a.relid FROM published, LATERAL pg_partition_ancestors(published.oid) a)"""
"""The published tables, and those that published ones are partitions of."""
_UNLOGGED: Final = f"""
SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind = 'r' AND c.relpersistence = 'u' AND {_SYSTEM_SCHEMAS}
   AND ((SELECT puballtables FROM pg_publication WHERE pubname = $1)
        OR n.oid IN (SELECT s.pnnspid FROM pg_publication_namespace s JOIN pg_publication p ON p.oid = s.pnpubid
                      WHERE p.pubname = $1)
        OR c.oid IN (SELECT t.relid FROM ({_NAMED}) r, LATERAL pg_partition_tree(r.oid) t))
 ORDER BY 1, 2"""
_UNLOGGED_14: Final = f"""
SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind = 'r' AND c.relpersistence = 'u' AND {_SYSTEM_SCHEMAS}
   AND ((SELECT puballtables FROM pg_publication WHERE pubname = $1)
        OR c.oid IN (SELECT t.relid FROM ({_NAMED}) r, LATERAL pg_partition_tree(r.oid) t))
 ORDER BY 1, 2"""
_TYPES: Final = """
SELECT t.oid::int8, n.nspname, t.typname, t.typtype::text, t.typbasetype::int8, t.typtypmod
  FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace WHERE t.oid = ANY ($1::oid[])"""
_NOT_NULL: Final = """
SELECT attname FROM pg_attribute WHERE attrelid = $1::int8::oid AND attnum > 0 AND attnotnull AND NOT attisdropped"""
_NUMBERED: Final = """
SELECT a.attname, a.attnum::int4, a.atthasmissing, (a.attmissingval::text::text[])[1],
       c.relkind = 'r' AND c.relfilenode = c.oid
  FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
 WHERE a.attrelid = $1::int8::oid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum"""
_SEEN: Final = """
SELECT c.oid::int8, n.nspname, c.relname, c.relnatts::int4, array_agg(a.attname::text), array_agg(a.attnum::int4)
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
 WHERE c.relkind IN ('r', 'p') GROUP BY 1, 2, 3, 4"""
_KEYS: Final = """
SELECT i.indisprimary, array_agg(a.attname::text ORDER BY k.place)
  FROM pg_index i
  CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS k (attnum, place)
  JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
 WHERE i.indrelid = $1::int8::oid AND i.indisunique AND i.indpred IS NULL AND i.indexprs IS NULL AND i.indisvalid
   AND k.place <= i.indnkeyatts AND (i.indisprimary OR i.indimmediate)
 GROUP BY i.indexrelid, i.indisprimary ORDER BY i.indexrelid"""
_FOREIGN: Final = """
SELECT (SELECT array_agg(a.attname::text ORDER BY k.place) FROM unnest(f.conkey) WITH ORDINALITY AS k (attnum, place)
          JOIN pg_attribute a ON a.attrelid = f.conrelid AND a.attnum = k.attnum),
       n.nspname, c.relname,
       (SELECT array_agg(a.attname::text ORDER BY k.place) FROM unnest(f.confkey) WITH ORDINALITY AS k (attnum, place)
          JOIN pg_attribute a ON a.attrelid = f.confrelid AND a.attnum = k.attnum)
  FROM pg_constraint f JOIN pg_class c ON c.oid = f.confrelid JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE f.conrelid = $1::int8::oid AND f.contype = 'f' ORDER BY f.conname"""
_EDGES: Final = """
SELECT n.nspname, c.relname, rn.nspname, rc.relname
  FROM pg_constraint f
  JOIN pg_class c ON c.oid = f.conrelid JOIN pg_namespace n ON n.oid = c.relnamespace
  JOIN pg_class rc ON rc.oid = f.confrelid JOIN pg_namespace rn ON rn.oid = rc.relnamespace
 WHERE f.contype = 'f'"""
_PARTITIONS: Final = """
SELECT n.nspname, c.relname, rn.nspname, rc.relname
  FROM pg_inherits i
  JOIN pg_class c ON c.oid = i.inhrelid AND c.relispartition JOIN pg_namespace n ON n.oid = c.relnamespace
  JOIN pg_class rc ON rc.oid = i.inhparent JOIN pg_namespace rn ON rn.oid = rc.relnamespace"""
_COLUMNS: Final = """
SELECT a.attname, a.atttypid::int8, a.atttypmod FROM pg_attribute a
 WHERE a.attrelid = $1::int8::oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
   AND ($2::text[] IS NULL OR a.attname = ANY ($2::text[]))
 ORDER BY a.attnum"""
_PUBLISHED: Final = """
SELECT c.oid::int8, p.schemaname, p.tablename, c.relkind = 'p', {chosen} FROM pg_publication_tables p
  JOIN pg_namespace n ON n.nspname = p.schemaname
  JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename
 WHERE p.pubname = $1 ORDER BY p.schemaname, p.tablename"""
_ORDINARY: Final = f"""
SELECT c.oid::int8, n.nspname, c.relname, c.relkind = 'p', NULL, NULL FROM pg_class c
  JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND {_SYSTEM_SCHEMAS} ORDER BY 2, 3"""
_CLOSED: Final = """
SELECT c.oid::int8 FROM pg_class c
 WHERE c.oid::int8 = ANY ($1::int8[]) AND NOT (has_schema_privilege(c.relnamespace, 'USAGE')
       AND has_table_privilege(c.oid, 'SELECT'))"""
_KEY_SENT: Final = """
SELECT c.relreplident::text, (
    SELECT array_agg(a.attname::text ORDER BY a.attnum) FROM pg_index i
      JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])
     WHERE i.indrelid = c.oid AND i.indimmediate
       AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident END)
  FROM pg_class c WHERE c.oid = $1::int8::oid"""
_FILES_NOW: Final = """
SELECT bool_and(pg_relation_filenode(c.oid) IS NOT DISTINCT FROM c.relfilenode) FROM pg_class c
 WHERE c.relkind = 'r' AND (c.oid = $1::int8::oid
       OR c.oid IN (SELECT relid FROM pg_partition_tree($1::int8::oid::regclass)))"""
_NAMES_NOW: Final = """
SELECT bool_and((pg_identify_object_as_address('pg_class'::regclass, c.oid, coalesce(a.attnum, 0))).object_names
                IS NOT DISTINCT FROM array_remove(ARRAY[n.nspname, c.relname, a.attname]::text[], NULL))
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
 WHERE c.oid = $1::int8::oid"""
"""The function tells the names of now, the tables those of the snapshot."""
_WAITS_FOR: Final = """
SELECT CASE WHEN p.gid IS NOT NULL
         THEN 'prepared transaction ' || quote_literal(p.gid) || ' of ' || p.owner || ', open for '
              || extract(epoch FROM clock_timestamp() - p.prepared)::int || ' s'
         ELSE 'process ' || coalesce(h.pid::text, '?') || coalesce(', user ' || a.usename, '')
              || coalesce(', ' || nullif(a.application_name, ''), '') || coalesce(', ' || a.state, '') || ', open for '
              || coalesce(extract(epoch FROM clock_timestamp() - a.xact_start)::int::text, '?') || ' s'
              || coalesce(': ' || left(a.query, 100), '') END
  FROM pg_locks w
  LEFT JOIN pg_locks h ON h.locktype = 'transactionid' AND h.transactionid = w.transactionid AND h.granted
  LEFT JOIN pg_stat_activity a ON a.pid = h.pid
  LEFT JOIN pg_prepared_xacts p ON p.transaction = w.transactionid
 WHERE w.pid = $1 AND w.locktype = 'transactionid' AND NOT w.granted"""
_OTHERS: Final = """
SELECT pid || coalesce(', user ' || usename, '') || coalesce(', ' || nullif(application_name, ''), '')
       || coalesce(', from ' || client_addr, '')
  FROM pg_stat_activity WHERE pid = $1"""
_MAKE_TRIGGER: Final = (
    f"CREATE SCHEMA IF NOT EXISTS {TRIGGER}",
    f"""
CREATE OR REPLACE FUNCTION {TRIGGER}.record() RETURNS event_trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog AS $body$
DECLARE said text := current_query(); sent bytea;
BEGIN
    IF current_setting('tranlog.own', true) = 'on' THEN
        RETURN;
    END IF;
    -- A text of several statements comes once for each of them, and is recorded once.
    IF current_setting('{TRIGGER}.said', true) IS DISTINCT FROM txid_current() || ' ' || md5(said) THEN
        PERFORM set_config('{TRIGGER}.said', txid_current() || ' ' || md5(said), true);
        BEGIN -- a message is sent as it is, in no client's encoding
            sent := convert_to(said, 'UTF8');
        EXCEPTION WHEN OTHERS THEN
            sent := convert_to(said, getdatabaseencoding());
        END;
        PERFORM pg_logical_emit_message(true, 'tranlog:ddl', sent);
    END IF;
END $body$""",
    f"DROP EVENT TRIGGER IF EXISTS {TRIGGER}",
    f"CREATE EVENT TRIGGER {TRIGGER} ON ddl_command_end EXECUTE FUNCTION {TRIGGER}.record()",
    f"DROP EVENT TRIGGER IF EXISTS {TRIGGER}_drop",
    f"CREATE EVENT TRIGGER {TRIGGER}_drop ON sql_drop EXECUTE FUNCTION {TRIGGER}.record()",
)


def quoted(name: str) -> str:
    """Quote an identifier."""
    return '"' + name.replace('"', '""') + '"'


def quoted_table(schema: str, table: str) -> str:
    """Quote a table's name with its schema."""
    return f"{quoted(schema)}.{quoted(table)}"


class SeenTable(NamedTuple):
    """What a table was like: its name, the highest number of a column that it has had, and those of columns by name."""

    name: TableName
    last: int
    named: dict[str, int]


class NumberedColumn(NamedTuple):
    """A column that a table has now. `number` is never given twice.

    `has_missing`: rows from before the column was added hold the value `missing`, as text, and were not written anew.
    `never_rewritten`: none of the table's rows were, so that without `has_missing` such rows hold NULL.
    """

    name: str
    number: int
    has_missing: bool
    missing: str | None
    never_rewritten: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TableKeys:
    """What the stream does not tell of a table, by the names of columns, as it is now; empty where the table is gone.

    `foreign`: columns here, the schema, table and columns there.
    """

    not_null: frozenset[str]
    primary: tuple[str, ...]
    unique: tuple[tuple[str, ...], ...]
    foreign: tuple[tuple[tuple[str, ...], str, str, tuple[str, ...]], ...]


class PublishedTable(NamedTuple):
    """A published table; `is_root`: of partitions. `row_filter`: the condition of the rows that are published.

    `columns`: those that are published; None: all.
    """

    oid: int
    schema: str
    table: str
    is_root: bool
    row_filter: str | None
    columns: list[str] | None


class PostgresCatalog:
    """The questions, asked through one session. Threads: one."""

    def __init__(self, options: PostgresSourceOptions, control: PostgresControl) -> None:
        self._options = options
        self._control = control
        self._types: dict[int, PostgresType] = {}
        self._declared: dict[tuple[int, int], str] = {}
        self.version = 0

    # --- the set-up ---

    def check_server(self) -> None:
        """Refuse a server whose changes cannot be followed. Raises SourceSetupError, SourceUnavailableError."""
        for problem in self.server_problems():
            raise problem

    def server_problems(self) -> Iterator[SourceSetupError]:
        """Yield why the server's changes cannot be followed. Raises SourceSetupError, SourceUnavailableError."""
        ((version, recovery, level, may),) = self._control.rows(
            "SELECT current_setting('server_version_num')::int, pg_is_in_recovery(), current_setting('wal_level'), "
            "(SELECT rolreplication OR rolsuper FROM pg_roles WHERE rolname = current_user)"
        )
        where = self._options.where
        self.version = version
        if version < OLDEST_VERSION:
            yield SourceSetupError(
                why=f"{where} is PostgreSQL {version // 10000}",
                remedy="PostgreSQL 14 is the oldest that sends large transactions while they are open",
            )
        if recovery:
            yield SourceSetupError(
                why=f"{where} is a replica (pg_is_in_recovery)", remedy="Name its primary in the option dsn"
            )
        if level != "logical":
            yield SourceSetupError(
                why=f"{where} has wal_level = {level}",
                remedy="Run at the source: ALTER SYSTEM SET wal_level = 'logical', and restart it",
            )
        if not may:
            yield SourceSetupError(
                why=f"the user at {where} may not replicate", remedy="Run at the source: ALTER ROLE <user> REPLICATION"
            )

    def has_publication(self) -> bool:
        """Whether the publication is there. Raises SourceSetupError for one that leaves kinds of changes out."""
        name = self._options.publication_name
        found = self._control.rows(
            "SELECT pubinsert AND pubupdate AND pubdelete AND pubtruncate FROM pg_publication WHERE pubname = $1",
            (name,),
        )
        if found and not found[0][0]:
            raise SourceSetupError(
                why=f"the publication {name} does not publish all of insert, update, delete and truncate",
                remedy=f"Run at the source: ALTER PUBLICATION {quoted(name)} "
                "SET (publish = 'insert, update, delete, truncate')",
            )
        return bool(found)

    def check_tables(self) -> None:
        """Refuse a publication without tables, tables whose changes do not tell enough, and unlogged ones."""
        options = self._options
        name = options.publication_name
        found = self._control.rows(_MEMBERS, (name,))
        if options.identity == "set":
            for schema, table, identity, _ in found:
                if identity != "f":
                    self.set_identity(schema, table)
        else:
            self.refuse_identities(
                [
                    (schema, table)
                    for schema, table, identity, has_key in found
                    if identity != "f" and (options.identity == "full" or not has_key)
                ]
            )
        wanted = [tuple(one.split(".")) for one in options.tables or () if not one.endswith(".*")]
        there = self._control.rows(_HELD, (name,)) if wanted else []
        missing = [quoted_table(*one) for one in wanted if one not in there]
        if missing:
            raise SourceSetupError(
                why=f"the publication {name} does not hold {', '.join(missing)}",
                remedy=f"Run at the source: ALTER PUBLICATION {quoted(name)} ADD TABLE {', '.join(missing)}",
            )
        if options.unlogged == "refuse":
            unlogged = self._control.rows(_UNLOGGED if self.version >= 150000 else _UNLOGGED_14, (name,))
            if unlogged:
                raise SourceSetupError(
                    why=f"{', '.join(quoted_table(*one) for one in unlogged)}: unlogged tables write no WAL, so that "
                    "no change of theirs would be captured",
                    remedy="Run at the source: "
                    + " ".join(f"ALTER TABLE {quoted_table(*one)} SET LOGGED;" for one in unlogged)
                    + ' or set unlogged = "ignore"',
                )

    def refuse_identities(self, tables: Sequence[TableName]) -> None:
        """Raise SourceSetupError for tables whose replica identity does not do, unless there are none."""
        if not tables:
            return
        if self._options.identity == "full":
            what = "UPDATE and DELETE would come without the whole row as it was"
            more = ', or set identity = "set", which does that, or identity = "key", which goes without'
        else:
            what = "UPDATE and DELETE would come without the row's key, or are refused by the server"
            more = ", or give them a primary key that is not DEFERRABLE"
        statements = " ".join(f"ALTER TABLE {quoted_table(*one)} REPLICA IDENTITY FULL;" for one in tables)
        raise SourceSetupError(
            why=f"the replica identity of {', '.join(quoted_table(*one) for one in tables)} does not do: {what}",
            remedy=f"Run at the source: {statements}{more}",
        )

    def set_identity(self, schema: str, table: str) -> None:
        """Give a table the replica identity FULL. Raises SourceSetupError, with the statement, where it may not."""
        statement = f"ALTER TABLE {quoted_table(schema, table)} REPLICA IDENTITY FULL"
        try:
            self._control.rows(statement)
        except SourceSetupError as exc:
            raise SourceSetupError(
                why=exc.why, remedy=f"Run at the source, as the table's owner: {statement};"
            ) from exc
        logger.warning("A table got the replica identity FULL. table=%s.%s", schema, table)

    def make_publication(self, *, keep: bool = True) -> None:
        """Make the publication; it stays only if its tables do, and to `keep` it. Raises SourceSetupError."""
        options = self._options
        parts = []
        for one in options.tables or ():
            schema, _, table = one.partition(".")
            parts.append(
                f"TABLES IN SCHEMA {quoted(schema)}" if table == "*" else f"TABLE {quoted_table(schema, table)}"
            )
        what = ", ".join(parts) if parts else "ALL TABLES"
        more = " WITH (publish_via_partition_root = true)" if options.via_partition_root else ""
        self._control.rows("BEGIN")
        try:
            self._control.rows(f"CREATE PUBLICATION {quoted(options.publication_name)} FOR {what}{more}")
            self._control.rows(f"COMMENT ON PUBLICATION {quoted(options.publication_name)} IS '{PUBLICATION_COMMENT}'")
            self.check_tables()
            self._control.rows("COMMIT" if keep else "ROLLBACK")
        except BaseException:
            self._control.close()
            raise
        if keep:
            logger.info("A publication was made. name=%s", options.publication_name)

    def make_trigger(self) -> None:
        """Make the event triggers that record DDL, where one of them is missing."""
        found = self._control.rows("SELECT FROM pg_event_trigger WHERE evtname = ANY ($1::name[])", (list(TRIGGERS),))
        if len(found) == len(TRIGGERS):
            return
        for statement in _MAKE_TRIGGER:
            self._control.rows(statement)

    # --- the slot ---

    def slot(self) -> SlotState | None:
        """Return the slot; None where there is none of that name. Raises SourceSetupError for one of another kind."""
        options = self._options
        found = self._control.rows(_SLOT, (options.slot_name,))
        if not found:
            return None
        plugin, database, confirmed, wal_status, pid, temporary, two_phase = found[0]
        ((here,),) = self._control.rows("SELECT current_database()")
        if plugin != "pgoutput" or database != here or temporary or two_phase:
            raise SourceSetupError(
                why=f"the slot {options.slot_name} is for the plugin {plugin} and the database {database}"
                + (", temporary" if temporary else "")
                + (", and sends prepared transactions before they commit" if two_phase else ""),
                remedy=f"Set the option slot to another name, or drop it: {slot_dropping(options.slot_name)}",
            )
        at = None if confirmed is None else parse_lsn(confirmed)
        return SlotState(confirmed_lsn=at, wal_status=wal_status, active_pid=pid)

    def reader_of_slot(self, pid: int) -> str:
        """Name whoever reads from the slot."""
        found = self._control.rows(_OTHERS, (pid,))
        return str(found[0][0]) if found else str(pid)

    def current_lsn(self) -> str:
        """Return where the server's WAL ends by now."""
        return str(self._control.rows("SELECT pg_current_wal_lsn()::text")[0][0])

    def durable_lsn(self) -> str:
        """Return up to where the server's WAL is durable by now."""
        return str(self._control.rows("SELECT pg_current_wal_flush_lsn()::text")[0][0])

    def retained_bytes(self) -> int | None:
        """Return how much WAL the slot keeps; None where there is no slot, or it is invalidated."""
        found = self._control.rows(
            "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::int8 FROM pg_replication_slots "
            "WHERE slot_name = $1",
            (self._options.slot_name,),
        )
        return found[0][0] if found else None

    def heartbeat(self) -> None:
        """Write a message into the WAL, in a transaction of its own."""
        self._control.rows(
            "SELECT pg_logical_emit_message(true, 'tranlog:heartbeat', $1::text)", (self._options.slot_name,)
        )

    def close(self) -> None:
        """Close the session; the next question opens another."""
        self._control.close()

    # --- tables and types ---

    def forget(self) -> None:
        """Ask anew for what a server may have changed while we were away."""
        self._types.clear()
        self._declared.clear()

    def keys(self, oid: int) -> TableKeys:
        """Return the keys of a table; none that is DEFERRABLE, since rows of a transaction may break it for a while."""
        rows = self._control.rows
        indexes = rows(_KEYS, (oid,))
        return TableKeys(
            not_null=frozenset(name for (name,) in rows(_NOT_NULL, (oid,))),
            primary=next((tuple(columns) for primary, columns in indexes if primary), ()),
            unique=tuple(tuple(columns) for primary, columns in indexes if not primary),
            foreign=tuple((tuple(one[0]), one[1], one[2], tuple(one[3])) for one in rows(_FOREIGN, (oid,))),
        )

    def seen(self) -> dict[int, SeenTable]:
        """Return all tables, by their OIDs."""
        return {
            oid: SeenTable((schema, table), last, dict(zip(names, numbers, strict=True)))
            for oid, schema, table, last, names, numbers in self._control.rows(_SEEN)
        }

    def numbered_columns(self, oid: int) -> list[NumberedColumn]:
        """Return the columns of a table, in order."""
        return [NumberedColumn(*found) for found in self._control.rows(_NUMBERED, (oid,))]

    def foreign_key_edges(self) -> list[tuple[TableName, TableName]]:
        """Return all foreign keys as (referring table, referred table), and partitions with their tables."""
        found = [*self._control.rows(_EDGES), *self._control.rows(_PARTITIONS)]
        return [((schema, table), (other_schema, other)) for schema, table, other_schema, other in found]

    def schemas(self, oids: Iterable[int]) -> dict[int, str]:
        """Return in which schema each of these tables is now."""
        sql = (
            "SELECT c.oid::int8, n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE c.oid = ANY ($1::oid[])"
        )
        return dict(self._control.rows(sql, (list(oids),)))

    def without_full(self, oid: int) -> list[TableName]:
        """Return what of a table and its partitions does not have the replica identity FULL now."""
        found = self._control.rows(
            "SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE (c.oid = $1::int8::oid OR c.oid IN (SELECT relid FROM pg_partition_tree($1::int8::oid::regclass))) "
            "AND c.relreplident <> 'f' AND c.relkind <> 'f' ORDER BY 1, 2",
            (oid,),
        )
        return [(schema, table) for schema, table in found]

    def types(self, columns: Iterable[tuple[int, int]]) -> dict[tuple[int, int], PostgresType]:
        """Return each column's type by its OID and type modifier; one that is gone is missing."""
        wanted = list(columns)
        asked = {oid for oid, _ in wanted}
        while asked := {oid for oid in asked if oid not in self._types}:
            more = set()
            for oid, schema, name, kind, base, typmod in self._control.rows(_TYPES, (list(asked),)):
                self._types[oid] = PostgresType(schema=schema, name=name, kind=kind, base=base, typmod=typmod)
                if kind == "d":
                    more.add(base)
            gone = asked - self._types.keys()
            asked = more - gone
        found = {}
        for oid, typmod in wanted:
            plain_oid, plain_typmod = oid, typmod
            while (one := self._types.get(plain_oid)) is not None and one.kind == "d":
                plain_oid, plain_typmod = one.base, one.typmod
            if one is not None:
                declared = self._declared_as(plain_oid, plain_typmod)
                found[oid, typmod] = PostgresType(
                    schema=one.schema, name=one.name, kind=one.kind, typmod=plain_typmod, declared=declared
                )
        return found

    def _declared_as(self, oid: int, typmod: int) -> str:
        text = self._declared.get((oid, typmod))
        if text is None:
            ((text,),) = self._control.rows("SELECT format_type($1::int8::oid, $2::int4)", (oid, typmod))
            self._declared[oid, typmod] = text
        return text

    def published(self) -> list[PublishedTable]:
        """Return the published tables."""
        sql = _PUBLISHED.format(chosen="NULL, NULL" if self.version < 150000 else "p.rowfilter, p.attnames::text[]")
        return [PublishedTable(*found) for found in self._control.rows(sql, (self._name,))]

    def ordinary(self) -> list[PublishedTable]:
        """Return the database's tables, published or not, a partitioned one as one."""
        return [PublishedTable(*found) for found in self._control.rows(_ORDINARY)]

    def check_readable(self, tables: Sequence[PublishedTable]) -> None:
        """Refuse tables that this user may not read. Raises SourceSetupError, with the statements."""
        oids = {oid for (oid,) in self._control.rows(_CLOSED, ([one.oid for one in tables],))}
        closed = [one for one in tables if one.oid in oids]
        if closed:
            ((user,),) = self._control.rows("SELECT quote_ident(current_user)")
            names = ", ".join([quoted_table(one.schema, one.table) for one in closed])
            schemas = ", ".join(sorted({quoted(one.schema) for one in closed}))
            raise SourceSetupError(
                why=f"{user} may not read {names}",
                remedy=f"Name the other tables, or run at the source: GRANT USAGE ON SCHEMA {schemas} TO {user}; "
                f"GRANT SELECT ON {names} TO {user}",
            )

    def key_sent(self, oid: int) -> tuple[str, tuple[str, ...]]:
        """Return a table's replica identity, and the columns of the index that it is, in the order of the table."""
        ((identity, columns),) = self._control.rows(_KEY_SENT, (oid,)) or [("n", None)]
        return identity, tuple(columns or ())

    def rows_counted(self, oid: int) -> int:
        """Return about how many rows a table and its partitions have; 0 where none was ever counted."""
        sql = (
            "SELECT coalesce(sum(greatest(reltuples, 0)), 0)::int8 FROM pg_class WHERE relkind = 'r' "
            "AND (oid = $1::int8::oid OR oid IN (SELECT relid FROM pg_partition_tree($1::int8::oid::regclass)))"
        )
        return int(self._control.rows(sql, (oid,))[0][0])

    def is_as_it_was(self, oid: int) -> bool:
        """Whether a table's rows lie where they lay at the session's snapshot: no TRUNCATE, and no ALTER, moved them.

        And whether its name, and those of its columns, still lead to them. To be asked while the session holds a lock
        on what was read by this name.
        """
        return all(self._control.rows(sql, (oid,))[0][0] is not False for sql in (_FILES_NOW, _NAMES_NOW))

    def waits_for(self, pid: int) -> list[str]:
        """Describe the transaction that a server's process waits for; empty while it waits for none."""
        return [who for (who,) in self._control.rows(_WAITS_FOR, (pid,))]

    def insert_lsn(self) -> int:
        """Return where the next record of the WAL will begin."""
        return parse_lsn(self._control.rows("SELECT pg_current_wal_insert_lsn()::text")[0][0])

    def columns(self, oid: int, only: Sequence[str] | None) -> list[tuple[str, int, int]]:
        """Return a table's columns but generated ones, all or some: name, the type's OID, the type modifier."""
        found = self._control.rows(_COLUMNS, (oid, None if only is None else list(only)))
        return [(name, kind, typmod) for name, kind, typmod in found]

    @property
    def _name(self) -> str:
        return self._options.publication_name
