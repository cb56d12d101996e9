"""A session at a PostgreSQL server, by psycopg.

Owns the connection and its settings, the pipeline that carries batches, the catalogue, and what the server's error
codes mean to us. The hard idea: nothing depends on how the server, the database or the role is set up. Every setting
that changes a value's text, the meaning of a statement or how long it waits is set by the session itself. Left as they
are: the search path, which says where our three tables stand; `synchronous_commit`, since a position and its rows are
lost together or not at all; and constraints and triggers of the target's own, unless the options turn them off.

Source: PostgreSQL's manual, "Client Connection Defaults", "Error Codes", "Pipeline Mode".
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from tranlog.change import TableMap, TableName
from tranlog.errors import ConfigError, TargetUnavailableError, TranlogError, TransientTargetError
from tranlog.row_blocks import RowBlock
from tranlog.row_bytes import encode_value
from tranlog.target.binding import CopyForm, Form, Row, TargetColumn, TargetTable
from tranlog.target.postgres_dialect import CATEGORY_OF, fit_name
from tranlog.target.session import Cell, LockTimeoutError, MisfitError, MissingTableError, TakenNameError, unavailable
from tranlog.target.target import TargetKeys, TextEquality
from tranlog.text_rows import ValueEncoder, encode_cells
from tranlog.types import Value

if TYPE_CHECKING:
    from tranlog.target.options import TargetOptions

try:
    import psycopg
    from psycopg import pq
    from psycopg.conninfo import make_conninfo
    from psycopg.errors import error_from_result
    from psycopg.types.numeric import Int8Dumper
    from psycopg.waiting import Ready, Wait

    from tranlog.servers.postgres import KEEPALIVE, TEXT_SETTINGS, describe_dsn, read_dsn
except ImportError as exc:
    raise ConfigError(
        option="target.kind",
        value="postgres",
        why="the library psycopg is missing; install the package with its extra: pip install 'tranlog[postgres]'",
    ) from exc

logger = logging.getLogger(__name__)

_SETTINGS: Final = {
    **TEXT_SETTINGS,
    "xmloption": "content",
    "standard_conforming_strings": "on",
    "statement_timeout": "0",
    "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off",
    "default_transaction_deferrable": "off",
    "transform_null_equals": "off",
    "array_nulls": "on",  # else a NULL in a batch, which comes as arrays, is a text of four letters
    "row_security": "off",  # an error instead of rows that a policy hides
    # A plan of a batch is kept, and made while a table may still be small: by the key's index it stays right.
    "enable_seqscan": "off",
    "enable_mergejoin": "off",
    "jit": "off",  # a scan that is off counts as dear, and so dear a statement would be compiled each time
}

FEW_ROWS: Final = 4
"""So few rows of a batch go one by one: a join with an array costs the server as much as four plain statements."""
PREPARED_MOST: Final = 500
"""Prepared statements that a session keeps."""
MESSAGE_MOST: Final = (1 << 30) - (1 << 20)
"""Bytes of parameters in one message: at 1 GiB the server ends the connection without saying why."""
FLUSH_EVERY: Final = 32
"""Commands that are collected before the socket is given them."""
ROWS_AT_ONCE: Final = 2000
"""So many rows are read at once."""
COPY_LEAST: Final = 200
"""With so many rows of a batch a COPY begins; those of the same form that follow go into it, however few."""

_TRY_AGAIN: Final = frozenset({"40001", "40P01", "57014", "57P01", "57P02", "57P03", "57P05", "25P03", "25P04"})
_LOCK_TIMEOUT: Final = "55P03"
_TOO_LARGE: Final = "54000"
"""A value that an index cannot hold: of the server's limits the one that is a row's matter."""
_MISSING: Final = frozenset({"42P01", "42703", "3F000"})
_DUPLICATE: Final = frozenset({"23505", "23P01"})
_SURROUNDINGS: Final = ("53", "54", "58", "F0", "XX")
"""Classes of errors that are the server's own: no room, no memory, its limits, its files."""
_REFUSED: Final = frozenset({"42501", "25006", "0A000"})

_COLUMNS: Final = """
SELECT a.attname, a.attgenerated <> '', b.typname, b.typtype, b.typelem <> 0 AND b.typlen = -1,
       format_type(b.oid, -1), format_type(a.atttypid, a.atttypmod),
       CASE WHEN t.typtype = 'd' THEN t.typtypmod ELSE a.atttypmod END, c.relkind,
       a.attnotnull AND a.attidentity = '' AND NOT EXISTS (
           SELECT FROM pg_index p WHERE p.indrelid = c.oid AND p.indisprimary AND a.attnum = ANY (p.indkey)),
       NOT (c.relhasrules OR c.relrowsecurity),
       c.relkind = 'r' AND NOT c.relhasrules AND NOT c.relhassubclass AND NOT c.relispartition
       AND (SELECT count(*) FROM pg_index i WHERE i.indrelid = c.oid AND (i.indisunique OR i.indisexclusion)) = 1
       AND NOT EXISTS (SELECT FROM pg_trigger g LEFT JOIN pg_constraint f ON f.oid = g.tgconstraint
                        WHERE g.tgrelid = c.oid AND f.contype IS DISTINCT FROM 'f'),
       EXISTS (SELECT FROM pg_class u WHERE u.relpersistence = 'u'
               AND (u.oid = c.oid OR u.oid IN (SELECT relid FROM pg_partition_tree(c.oid)))),
       n.nspname, c.relname, a.attidentity = 'a'
  FROM pg_class c
  JOIN pg_namespace n ON n.oid = c.relnamespace
  LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
  LEFT JOIN pg_type t ON t.oid = a.atttypid
  LEFT JOIN pg_type b ON b.oid = CASE WHEN t.typtype = 'd' THEN t.typbasetype ELSE t.oid END
 WHERE c.relname = $1 AND ($2 = '' AND pg_table_is_visible(c.oid) OR n.nspname = $2)
 ORDER BY a.attnum"""
_UNIQUE: Final = """
SELECT DISTINCT a.attname, i.indexprs IS NOT NULL
  FROM pg_index i
  JOIN pg_class c ON c.oid = i.indrelid
  JOIN pg_namespace n ON n.oid = c.relnamespace
  JOIN pg_attribute a ON a.attrelid = c.oid AND (a.attnum = ANY (i.indkey) OR (i.indexprs IS NOT NULL AND a.attnum > 0))
 WHERE c.relname = $1 AND ($2 = '' AND pg_table_is_visible(c.oid) OR n.nspname = $2)
   AND (i.indisunique OR i.indisexclusion)"""
_TABLE_KINDS: Final = ("r", "p")
_KEY_TABLE: Final = """
SELECT c.oid::int8, n.nspname, c.relname,
       CASE WHEN c.relkind <> 'r' OR c.relispartition OR c.relhassubclass THEN 'it has partitions or heirs'
            WHEN c.relhasrules THEN 'a rule' WHEN c.relrowsecurity THEN 'row security' ELSE '' END
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relname = $1 AND ($2 = '' AND pg_table_is_visible(c.oid) OR n.nspname = $2) AND c.relkind IN ('r', 'p')"""
_KEY_COLUMNS: Final = (
    "SELECT a.attname FROM unnest({}::int2[]) WITH ORDINALITY k (number, place) "
    "JOIN pg_attribute a ON a.attrelid = {} AND a.attnum = k.number {} ORDER BY k.place"
)
# What only later servers have is asked of the row as JSON.
_KEY_INDEXES: Final = f"""
SELECT to_json(ARRAY({_KEY_COLUMNS.format("i.indkey", "i.indrelid", "WHERE k.place <= i.indnkeyatts")}))::text,
       CASE WHEN i.indisexclusion THEN 'an exclusion constraint'
            WHEN i.indpred IS NOT NULL OR i.indexprs IS NOT NULL THEN 'a partial or expression index'
            WHEN to_jsonb(i)->>'indnullsnotdistinct' = 'true' THEN 'NULLS NOT DISTINCT'
            WHEN EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)
                         AND a.atttypid IN ('float4'::regtype, 'float8'::regtype)) THEN 'a key of inexact numbers'
            ELSE '' END
  FROM pg_index i WHERE i.indrelid = $1::int8::oid AND (i.indisunique OR i.indisexclusion)"""
_KEY_TEXTS: Final = """
SELECT a.attname, CASE WHEN t.typcategory = 'S' AND c.collisdeterministic
                        AND COALESCE(NULLIF(t.typbasetype, 0), t.oid) IN ('text'::regtype, 'varchar'::regtype,
                                                                          'bpchar'::regtype)
                       THEN 1 ELSE 3 END
  FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid LEFT JOIN pg_collation c ON c.oid = a.attcollation
 WHERE a.attrelid = $1::int8::oid AND a.attnum > 0 AND NOT a.attisdropped AND t.typcategory = 'S'"""
_KEY_REFERENCES: Final = f"""
SELECT to_json(ARRAY({_KEY_COLUMNS.format("f.conkey", "f.conrelid", "")}))::text, n.nspname, c.relname,
       to_json(ARRAY({_KEY_COLUMNS.format("f.confkey", "f.confrelid", "")}))::text,
       CASE WHEN to_jsonb(f)->>'conperiod' = 'true' THEN 'a reference by PERIOD' ELSE '' END
  FROM pg_constraint f JOIN pg_class c ON c.oid = f.confrelid JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE f.contype = 'f' AND f.conrelid = $1::int8::oid"""
_REFERENCES: Final = """
SELECT n.nspname, c.relname, m.nspname, d.relname
  FROM pg_constraint f JOIN pg_class c ON c.oid = f.conrelid JOIN pg_namespace n ON n.oid = c.relnamespace
  JOIN pg_class d ON d.oid = f.confrelid JOIN pg_namespace m ON m.oid = d.relnamespace
 WHERE f.contype = 'f' ORDER BY 1, 2, 3, 4"""
_SLOW_REFERENCES: Final = """
SELECT n.nspname, c.relname, m.nspname, d.relname, format('CREATE INDEX ON %s (%s)', c.oid::regclass, (
           SELECT string_agg(quote_ident(a.attname), ', ' ORDER BY k.place)
             FROM unnest(f.conkey) WITH ORDINALITY k (number, place)
             JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.number))
  FROM pg_constraint f JOIN pg_class c ON c.oid = f.conrelid JOIN pg_namespace n ON n.oid = c.relnamespace
  JOIN pg_class d ON d.oid = f.confrelid JOIN pg_namespace m ON m.oid = d.relnamespace
 WHERE f.contype = 'f' AND f.conparentid = 0 AND NOT EXISTS (
           SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisvalid AND i.indpred IS NULL
              AND f.conkey <@ (i.indkey::int2[])[0:cardinality(f.conkey) - 1])
 ORDER BY 1, 2, 3, 4, 5"""
# A partitioned table's foreign key is there for each of its partitions too, on either side.
_LOSING: Final = """
SELECT DISTINCT m.nspname, d.relname
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  JOIN pg_constraint f ON f.confrelid = c.oid OR f.confrelid IN (SELECT relid FROM pg_partition_tree(c.oid))
  JOIN pg_class d ON d.oid = COALESCE(pg_partition_root(f.conrelid), f.conrelid)
  JOIN pg_namespace m ON m.oid = d.relnamespace
 WHERE c.relname = $1 AND ($2 = '' AND pg_table_is_visible(c.oid) OR n.nspname = $2)
   AND f.contype = 'f' AND f.confdeltype NOT IN ('a', 'r') ORDER BY 1, 2"""
_KEY_ACTIONS: Final = """
SELECT DISTINCT conrelid::regclass::text FROM pg_constraint WHERE contype = 'f' AND confrelid = $1::int8::oid
   AND (confdeltype NOT IN ('a', 'r') OR confupdtype NOT IN ('a', 'r')) ORDER BY 1"""
_KEY_TRIGGERS: Final = """
SELECT tgname FROM pg_trigger WHERE tgrelid = $1::int8::oid AND NOT tgisinternal
   AND tgenabled IN ('A', CASE current_setting('session_replication_role') WHEN 'replica' THEN 'R' ELSE 'O' END)
 ORDER BY tgname"""

_LACKS_CREATE: Final = """
SELECT format('GRANT CREATE ON DATABASE %I TO %I', current_database(), current_user)
 WHERE NOT has_database_privilege(current_database(), 'CREATE')
 UNION ALL
SELECT format('GRANT USAGE, CREATE ON SCHEMA %I TO %I', nspname, current_user)
  FROM pg_namespace
 WHERE nspname = $1 AND NOT (has_schema_privilege(oid, 'CREATE') AND has_schema_privilege(oid, 'USAGE'))"""
_LACKS_ALTER: Final = """
SELECT format('ALTER TABLE %I.%I OWNER TO %I', n.nspname, c.relname, current_user)
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relname = $1 AND ($2 = '' AND pg_table_is_visible(c.oid) OR n.nspname = $2)
   AND NOT pg_has_role(c.relowner, 'USAGE')"""

_FILES_NOW: Final = """
SELECT bool_and(pg_relation_filenode(f.oid) IS NOT DISTINCT FROM f.relfilenode)
  FROM pg_class c
  JOIN pg_namespace n ON n.oid = c.relnamespace
  JOIN pg_class f ON f.relkind = 'r' AND (f.oid = c.oid OR f.oid IN (SELECT relid FROM pg_partition_tree(c.oid)))
 WHERE c.relname = $1 AND ($2 = '' AND pg_table_is_visible(c.oid) OR n.nspname = $2)"""

_WHOSE: Final = """
SELECT 'session ' || a.pid || ' of user ' || coalesce(a.usename, '?')
       || coalesce(', ' || nullif(a.application_name, ''), '')
       || coalesce(', from ' || a.client_addr, '') || coalesce(', ' || a.state, '')
       || coalesce(' since ' || date_trunc('second', a.xact_start), '')
  FROM pg_stat_activity a"""
_HOLDS_ROWS: Final = """
EXISTS (SELECT FROM pg_locks l WHERE l.pid = a.pid AND l.granted AND l.locktype = 'relation'
        AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND l.mode IN ('RowShareLock', 'RowExclusiveLock', 'ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock',
                       'AccessExclusiveLock') {which})"""
_HOLDS_OUR_ROWS: Final = _HOLDS_ROWS.format(
    which="AND l.relation IN (to_regclass('tranlog_channel'), to_regclass('tranlog_pipeline'))"
)
_HOLDS_ANY_ROWS: Final = _HOLDS_ROWS.format(which="AND l.relation >= 16384")  # no catalogue's, as of autovacuum

_STOPPED_INSIDE: Final = """
  FROM pg_stat_activity a
 WHERE a.pid <> pg_backend_pid() AND a.usename = current_user AND a.datname = current_database()
   AND a.application_name = current_setting('application_name') AND a.application_name <> ''
   AND a.state LIKE 'idle in transaction%' AND a.state_change < clock_timestamp() - interval '1 s'"""


def where_of(options: TargetOptions) -> str:
    """Return where the target is, without its password. Raises ConfigError."""
    return describe_dsn(options.dsn, option="target.dsn")


class PostgresSession:
    """One connection to a PostgreSQL server; see Session for what its methods do."""

    folds_names = False

    def __init__(self, options: TargetOptions) -> None:
        self._where = where_of(options)
        self._prepared: dict[str, bytes] = {}
        self._statements = 0
        self._holds_snapshot = False
        self._expected: list[int | None] = []  # in the pipeline: rows that each command is to hit, None: a prepare
        self._copying: CopyForm | None = None  # the COPY that is open, and how many rows it was given
        self._copied = 0
        parts = read_dsn(options.dsn, option="target.dsn")
        defaults: dict[str, str | int] = {
            "application_name": "tranlog",
            "connect_timeout": max(2, round(options.connect_timeout_s)),
            **KEEPALIVE,
        }
        defaults["client_encoding"] = "UTF8"
        dsn = make_conninfo(
            options.dsn, **{k: v for k, v in defaults.items() if k not in parts or k == "client_encoding"}
        )
        try:
            self._connection = psycopg.connect(dsn, autocommit=True)
        except psycopg.Error as exc:
            raise unavailable(self._where, str(exc)) from exc
        try:
            self._connection.adapters.register_dumper(int, Int8Dumper)
            settings = {
                **_SETTINGS,
                "idle_in_transaction_session_timeout": str(round(options.idle_timeout_s * 1000)),
                "lock_timeout": str(max(1, round(options.lock_timeout_s * 1000))),
            }
            self._triggers_off = options.triggers == "off"
            if self._triggers_off:
                settings["session_replication_role"] = "replica"
            ((read_only,),) = self.fetch("SELECT current_setting('default_transaction_read_only')")
            if read_only == "on":
                logger.warning(
                    "The target's default_transaction_read_only is on; it is off in tranlog's own sessions, which "
                    "write there. target=%s",
                    self._where,
                )
            calls = [f"set_config(${n}, ${n + 1}, false)" for n in range(1, 2 * len(settings), 2)]
            self.fetch(f"SELECT {', '.join(calls)}", [part for setting in settings.items() for part in setting])
            ((self.identity,),) = self.fetch(
                "SELECT pid || ' ' || backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()"
            )
        except MisfitError as exc:
            self.close()
            raise unavailable(self._where, str(exc)) from exc
        except BaseException:
            self.close()
            raise

    # --- transactions ---

    def begin(self, *, lock_timeout_s: float | None = None) -> None:
        self._execute("BEGIN")
        if lock_timeout_s is not None:
            self._execute(f"SET LOCAL lock_timeout = {max(1, round(lock_timeout_s * 1000))}")

    def commit(self) -> None:
        self.settle()
        self._execute("COMMIT")

    def rollback(self) -> None:
        self._leave_pipeline()
        with suppress(psycopg.Error):
            if self._connection.info.transaction_status != pq.TransactionStatus.IDLE:
                psycopg.RawCursor(self._connection).execute("ROLLBACK")

    def _leave_pipeline(self) -> None:
        """Forget what is under way, after an error, and what it may not have prepared any more."""
        self._prepared.clear()
        try:
            self._end_copy(b"it is rolled back")
            self.settle()
        except (MisfitError, MissingTableError, LockTimeoutError, TranlogError):
            pass
        pgconn = self._connection.pgconn
        if pgconn.status == pq.ConnStatus.OK and (
            pgconn.pipeline_status != pq.PipelineStatus.OFF or pgconn.transaction_status == pq.TransactionStatus.ACTIVE
        ):
            self._connection.close()

    def savepoint(self) -> None:
        self.run("SAVEPOINT tranlog_savepoint")

    def rollback_to_savepoint(self) -> None:
        self._leave_pipeline()
        self._execute("ROLLBACK TO SAVEPOINT tranlog_savepoint")

    # --- statements ---

    def _execute(self, sql: str, parameters: Sequence[Any] = ()) -> psycopg.RawCursor[Any]:
        cursor = psycopg.RawCursor(self._connection)
        try:
            cursor.execute(sql, parameters)
        except psycopg.Error as exc:
            raise self._sorted(exc) from exc
        return cursor

    def run(self, sql: str, parameters: Sequence[Any] = ()) -> int:
        self.settle()
        return self._execute(sql, parameters).rowcount

    def fetch(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        self.settle()
        return self._execute(sql, parameters).fetchall()

    def send(self, form: Form, rows: Sequence[Row]) -> int:
        if form.copy is not None and (form.copy is self._copying or len(rows) >= COPY_LEAST):
            self._copy(form.copy, rows)
            return 1
        self._end_copy()
        if form.one is not None and len(rows) <= FEW_ROWS:
            for row in rows:
                self._send(form.one, [row])
            return len(rows)
        self._send(form, rows)
        return 1

    def _copy(self, form: CopyForm, rows: Sequence[Row]) -> None:
        lines = form.lines(rows)
        pgconn = self._connection.pgconn
        if form is not self._copying:
            self.settle()
        try:
            if form is not self._copying:
                pgconn.send_query(form.sql.encode())
                (begun,) = self._connection.wait(_collect(pgconn))
                if begun.status == pq.ExecStatus.FATAL_ERROR:
                    raise self._sorted(error_from_result(begun))
                self._copying, self._copied = form, 0
            self._copied += len(rows)
            pgconn.put_copy_data(lines)
            self._connection.wait(_flush(pgconn))
        except psycopg.Error as exc:
            raise self._sorted(exc) from exc

    def _end_copy(self, error: bytes | None = None) -> None:
        """End the COPY that is open, if one is; with an `error` it fails."""
        if self._copying is None:
            return
        self._copying = None
        pgconn = self._connection.pgconn
        try:
            pgconn.put_copy_end(error)
            (ended,) = self._connection.wait(_collect(pgconn))
        except psycopg.Error as exc:
            raise self._sorted(exc) from exc
        if ended.status == pq.ExecStatus.FATAL_ERROR:
            raise self._sorted(error_from_result(ended))
        self._check(ended.command_tuples, self._copied)

    def _send(self, form: Form, rows: Sequence[Row]) -> None:
        parameters = [None if text is None else text.encode() for text in form.bind(rows)]
        size = sum([len(text) for text in parameters if text is not None])
        if size > MESSAGE_MOST:
            raise MisfitError(f"{size} bytes in one statement; PostgreSQL takes {MESSAGE_MOST} at most")
        if len(self._prepared) >= PREPARED_MOST and form.sql not in self._prepared:
            self.settle()
            for old in self._prepared.values():
                self._execute(f"DEALLOCATE {old.decode()}")
            self._prepared.clear()
        pgconn = self._connection.pgconn
        try:
            if not self._expected:
                pgconn.enter_pipeline_mode()
            name = self._prepared.get(form.sql)
            if name is None:
                self._statements += 1
                name = self._prepared[form.sql] = b"tranlog_%d" % self._statements
                self._expected.append(None)
                pgconn.send_prepare(name, form.sql.encode())
            self._expected.append(len(rows))
            pgconn.send_query_prepared(name, parameters)
            if len(self._expected) % FLUSH_EVERY == 0:
                pgconn.flush()  # the server works while the next rows are made ready
        except psycopg.Error as exc:
            raise self._sorted(exc) from exc

    def settle(self) -> None:
        self._end_copy()
        if not self._expected:
            return
        expected, self._expected = self._expected, []
        pgconn = self._connection.pgconn
        try:
            pgconn.pipeline_sync()
            results = self._connection.wait(_collect(pgconn, pipeline=True))
            pgconn.exit_pipeline_mode()
        except psycopg.Error as exc:
            raise self._sorted(exc) from exc
        for result, rows in zip(results, expected, strict=False):
            if result.status == pq.ExecStatus.FATAL_ERROR:
                raise self._sorted(error_from_result(result))
            if rows is not None:
                self._check(result.command_tuples, rows)

    def _check(self, hit: int | None, rows: int) -> None:
        """Raise MisfitError unless every row hit one."""
        if hit != rows:
            raise MisfitError(f"{hit} rows hit instead of {rows}", affected=hit)

    def run_script(self, text: str) -> None:
        self.settle()
        self._execute(text)

    def _sorted(self, exc: psycopg.Error) -> Exception:
        """Return what an error of the driver's is to us, by the server's code for it."""
        code = exc.sqlstate or ""
        why = _message(exc)
        if code == "" or code[:2] == "08" or self._connection.broken or self._connection.closed:
            if isinstance(exc, psycopg.DataError | psycopg.ProgrammingError) and not self._connection.closed:
                return MisfitError(why)
            return TransientTargetError(why=f"the connection to {self._where} was lost: {why}")
        if code in _TRY_AGAIN:
            return TransientTargetError(why=why)
        if code == _LOCK_TIMEOUT:
            return LockTimeoutError(why)
        if code == _TOO_LARGE:
            return MisfitError(why, table=exc.diag.table_name or "")
        if code in _MISSING:
            return MissingTableError(why)
        if code[:2] in _SURROUNDINGS or code in _REFUSED:
            return unavailable(self._where, why)
        return MisfitError(why, duplicate=code in _DUPLICATE, table=exc.diag.table_name or "")

    # --- the catalogue ---

    def table(self, table: TableMap) -> TargetTable:
        names = (fit_name(table.table), fit_name(table.schema))
        rows = self.fetch(_COLUMNS, names)
        if not rows:
            raise MissingTableError("there is no such table")
        if rows[0][8] not in _TABLE_KINDS:
            raise TakenNameError("this name is not a table's")
        columns = {}
        for name, generated, typname, typtype, is_array, type_name, declared, typmod, _, loosens, *_, fixed in rows:
            if name is None:  # a table without columns
                continue
            category = "array" if is_array and typtype == "b" and typname.startswith("_") else CATEGORY_OF.get(typname)
            columns[name] = TargetColumn(
                name=name,
                type_name=type_name,
                category=category or "other",
                loosens=loosens,
                retypes=not generated,
                generated=generated,
                fixed=fixed,
                declared=declared,
                digits=_digits(typname, typmod),
                length=_length(typname, typmod),
            )
        unique = frozenset([name for name, _ in self.fetch(_UNIQUE, names)])
        copies, order_unseen, unlogged, *named = rows[0][10:15]
        return TargetTable(
            name=tuple(named),
            columns=columns,
            unique=unique,
            place="ctid",
            copies=copies,
            order_unseen=order_unseen,
            unlogged=unlogged,
        )

    def keys(self, table: TableMap) -> TargetKeys | None:
        found = self.fetch(_KEY_TABLE, (fit_name(table.table), fit_name(table.schema)))
        if not found:
            return None
        oid, schema, name, why = found[0]
        indexes = self.fetch(_KEY_INDEXES, (oid,))
        # Without triggers foreign keys are not checked either.
        references = [] if self._triggers_off else self.fetch(_KEY_REFERENCES, (oid,))
        actions = [] if self._triggers_off else self.fetch(_KEY_ACTIONS, (oid,))
        reasons = [why, *[one for _, one in indexes], *[one[4] for one in references]]
        return TargetKeys(
            name=(schema, name),
            texts={column: TextEquality(equality) for column, equality in self.fetch(_KEY_TEXTS, (oid,))},
            unique=tuple([tuple(json.loads(columns)) for columns, one in indexes if not one]),
            references=tuple(
                [
                    (tuple(json.loads(own)), (to, there), tuple(json.loads(cols)))
                    for own, to, there, cols, _ in references
                ]
            ),
            triggers=tuple([trigger for (trigger,) in self.fetch(_KEY_TRIGGERS, (oid,))]),
            actions=f"foreign keys of {', '.join([one for (one,) in actions])} change its rows" if actions else "",
            why=next(filter(None, reasons), ""),
        )

    def references(self) -> list[tuple[TableName, TableName]]:
        rows = [] if self._triggers_off else self.fetch(_REFERENCES)
        return [((schema, table), (to_schema, to)) for schema, table, to_schema, to in rows]

    def losing(self, table: TableMap) -> list[TableName]:
        rows = [] if self._triggers_off else self.fetch(_LOSING, (fit_name(table.table), fit_name(table.schema)))
        return [(schema, name) for schema, name in rows]

    def slow_references(self) -> list[tuple[TableName, TableName, str]]:
        rows = [] if self._triggers_off else self.fetch(_SLOW_REFERENCES)
        return [((schema, table), (to_schema, to), remedy) for schema, table, to_schema, to, remedy in rows]

    def lacks_create(self, schema: str | None = None) -> str:
        if schema:
            found = self.fetch(_LACKS_CREATE, (fit_name(schema),))
            return "; ".join([grant for (grant,) in found])
        return self._lacks_create_here()

    def lacks_alter(self, table: TableMap) -> str:
        found = self.fetch(_LACKS_ALTER, (fit_name(table.table), fit_name(table.schema)))
        return "; ".join([change for (change,) in found])

    def _lacks_create_here(self) -> str:
        ((schema, user, may),) = self.fetch(
            "SELECT quote_ident(current_schema()), quote_ident(current_user), "
            "has_schema_privilege(current_schema(), 'CREATE')"
        )
        if schema is None:
            return "CREATE SCHEMA public, or set the search_path of the user to a schema that is there"
        return "" if may else f"GRANT CREATE ON SCHEMA {schema} TO {user}"

    def blocks(self, sql: str, cells: Sequence[Cell]) -> Iterator[RowBlock]:
        self.settle()
        if self._holds_snapshot:
            self.savepoint()
        else:
            self._begin_to_read()
        try:
            self._execute(f"DECLARE tranlog_rows NO SCROLL CURSOR FOR {sql}")
            encoders, forms = [_encoder(cell.read) for cell in cells], bytes([cell.form for cell in cells])
            found = ROWS_AT_ONCE
            while found == ROWS_AT_ONCE:
                result = self._execute(f"FETCH {ROWS_AT_ONCE} FROM tranlog_rows").pgresult
                assert result is not None
                found = result.ntuples
                if found:
                    yield encode_cells(result.get_value, found, forms, encoders)
        finally:
            if self._holds_snapshot:
                self.rollback_to_savepoint()  # which frees the table's lock
            else:
                self.rollback()

    def _begin_to_read(self) -> None:
        self._execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        # The reader at the other end may be slow, and holds no lock that anybody waits for.
        self._execute("SET LOCAL idle_in_transaction_session_timeout = 0")

    def hold_snapshot(self) -> None:
        self.settle()
        self._begin_to_read()
        self._execute("SELECT 1")  # which takes it
        self._holds_snapshot = True

    def is_as_it_was(self, table: TableMap) -> bool:
        # An ALTER or TRUNCATE after this look, and before the lock was freed, cannot have been.
        if not self._holds_snapshot:
            return True
        ((same,),) = self.fetch(_FILES_NOW, (fit_name(table.table), fit_name(table.schema)))
        return same is not False

    # --- other sessions ---

    def end(self, identity: str) -> bool:
        pid, _, started = identity.partition(" ")
        if identity == self.identity or not pid.isdigit():
            return False
        the_one = f"a.pid = {int(pid)} AND a.backend_start::text = $1 AND {_HOLDS_OUR_ROWS}"
        whose = self.fetch(f"{_WHOSE} WHERE {the_one}", (started,))
        if not whose:
            return False
        try:
            return bool(
                self.fetch(f"SELECT pg_terminate_backend(a.pid) FROM pg_stat_activity a WHERE {the_one}", (started,))
            )
        except TargetUnavailableError as exc:
            raise unavailable(
                self._where,
                f"{whose[0][0]} keeps a row of tranlog_channel locked and may not be ended by this user: {exc.why}",
            ) from exc

    def stopped_inside(self) -> list[str]:
        rows = self.fetch(f"SELECT a.pid || ' ' || a.backend_start {_STOPPED_INSIDE} AND {_HOLDS_OUR_ROWS}")
        return [identity for (identity,) in rows]

    def lock_holders(self, *, ours: bool) -> tuple[str, bool]:
        holds = _HOLDS_OUR_ROWS if ours else _HOLDS_ANY_ROWS
        rows = self.fetch(f"{_WHOSE} WHERE a.pid <> pg_backend_pid() AND {holds} ORDER BY a.xact_start LIMIT 5")
        return " or ".join([who for (who,) in rows]) or "a session that has ended by now", False

    def close(self) -> None:
        with suppress(psycopg.Error):
            self._connection.close()


def _encoder(read: Callable[[Any], Value]) -> ValueEncoder:
    return lambda raw: encode_value(read(raw.decode()))


def _collect(pgconn: pq.abc.PGconn, *, pipeline: bool = False) -> Generator[Wait, Ready | int, list[pq.abc.PGresult]]:
    """Send what is left and return the results: of one command, or of a pipeline up to the sync that ends it.

    A COPY's are those that begin it, then those that end it.
    """
    results: list[pq.abc.PGresult] = []
    unsent = True
    while True:
        unsent = unsent and pgconn.flush() != 0
        ready = yield Wait.RW if unsent else Wait.R
        if not ready & Ready.R:
            continue
        pgconn.consume_input()
        while not pgconn.is_busy():
            result = pgconn.get_result()
            if result is None:
                if not pipeline:
                    return results
                continue  # the end of one command's results
            if result.status == pq.ExecStatus.PIPELINE_SYNC:
                return results
            results.append(result)
            if result.status == pq.ExecStatus.COPY_IN:
                return results


def _flush(pgconn: pq.abc.PGconn) -> Generator[Wait, Ready | int, None]:
    """Send what is left; what the server says meanwhile waits."""
    while pgconn.flush() != 0:
        ready = yield Wait.RW
        if ready & Ready.R:
            pgconn.consume_input()


def _message(exc: psycopg.Error) -> str:
    """Return the server's message in one line, with its detail, which names the key, and its hint of what to do."""
    if exc.diag.message_primary:
        more = " ".join(filter(None, (exc.diag.message_detail, exc.diag.message_hint)))
        return f"{exc.diag.message_primary} ({more})" if more else exc.diag.message_primary
    return " ".join(str(exc).split()).rstrip(".")


def _length(typname: str, typmod: int) -> int | None:
    """Return how much text a column keeps: characters of the standard's types, bytes of PostgreSQL's own for names."""
    if typname in ("varchar", "bpchar"):
        return typmod - 4 if typmod > 0 else None
    return {"name": 63, "char": 1}.get(typname)


def _digits(typname: str, typmod: int) -> int | None:
    """Return the digits after the point that a column keeps, by its type modifier."""
    if typname == "numeric":
        return None if typmod < 4 else ((typmod - 4) & 0x7FF ^ 0x400) - 0x400  # a scale may be negative
    if typname in ("time", "timetz", "timestamp", "timestamptz"):
        return None if typmod < 0 else typmod
    if typname == "interval":
        return None if typmod < 0 or typmod & 0xFFFF == 0xFFFF else typmod & 0xFFFF
    return None
