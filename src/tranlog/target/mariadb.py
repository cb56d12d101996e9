"""A session at a MariaDB server, by PyMySQL.

Owns the connection and its settings, how rows become packets, the catalogue, who holds a lock, and what the server's
error codes mean to us. The hard ideas: nothing depends on how the server is set up, so every setting that changes a
value, a statement or how long it waits is set by the session; and a connection's number alone names nobody, since a
restarted server counts anew. So each session holds a lock of its own name (GET_LOCK), which the server frees when the
session ends, however it ends: whoever is named so is there if and only if that lock is held by that connection.

Source: MariaDB's manual, "Server System Variables", "GET_LOCK", "KILL", "Information Schema INNODB_TRX Table".
"""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from math import ceil
from typing import TYPE_CHECKING, Any, Final

from tranlog.change import TableMap, TableName
from tranlog.errors import ConfigError, TransientTargetError
from tranlog.row_blocks import RowBlock
from tranlog.servers.mariadb_address import read_url
from tranlog.servers.mariadb_errors import ErrorClass, error_class
from tranlog.servers.mariadb_rights import account, has_right
from tranlog.servers.mariadb_values import catalog_labels
from tranlog.target.binding import STRICT, Form, Row, TargetColumn, TargetTable
from tranlog.target.mariadb_dialect import CATEGORY_OF, COLLATION, ROWS_HERE, fit_name, literal, quote
from tranlog.target.session import (
    Cell,
    LockTimeoutError,
    MisfitError,
    MissingTableError,
    TakenNameError,
    made,
    unavailable,
)
from tranlog.target.target import TargetKeys, TextEquality

if TYPE_CHECKING:
    from tranlog.target.options import TargetOptions

try:
    import pymysql
    from pymysql.constants import CLIENT, ER, FIELD_TYPE
    from pymysql.converters import encoders
    from pymysql.cursors import SSCursor

    from tranlog.servers.mariadb import SESSION, close, close_query, connect, error_number, message, set_session
except ImportError as exc:
    raise ConfigError(
        option="target.kind",
        value="mariadb",
        why="the library PyMySQL is missing; install the package with its extra: pip install 'tranlog[mariadb]'",
    ) from exc

logger = logging.getLogger(__name__)

FEW_ROWS: Final = 4
"""So few rows of an UPDATE go one by one: a join with the rows costs the server as much as four plain statements."""
_PACKET_MARGIN: Final = 4096
_LENIENT: Final = "'ALLOW_INVALID_DATES,NO_AUTO_VALUE_ON_ZERO,NO_ENGINE_SUBSTITUTION'"
_SETTINGS: Final = {
    **SESSION,
    "sql_mode": f"'STRICT_ALL_TABLES,ERROR_FOR_DIVISION_BY_ZERO,{_LENIENT[1:]}",
    "tx_isolation": "'READ-COMMITTED'",
    "tx_read_only": "0",
    "autocommit": "1",
    "max_statement_time": "0",
    "idle_readonly_transaction_timeout": "0",  # else these two count, and not idle_transaction_timeout
    "idle_write_transaction_timeout": "0",
    "foreign_key_checks": "1",
    "unique_checks": "1",
    "check_constraint_checks": "1",
    "auto_increment_increment": "1",
    "auto_increment_offset": "1",
    "sql_safe_updates": "0",
    "sql_select_limit": "18446744073709551615",
    "sql_auto_is_null": "0",
    "sql_big_selects": "1",
    "in_predicate_conversion_threshold": "0",  # a long list of keys stays one, and finds the index
    "sql_if_exists": "0",
    "completion_type": "'NO_CHAIN'",
}
_CONVERSIONS: Final[dict[Any, Any]] = {
    **encoders,
    **dict.fromkeys(
        (FIELD_TYPE.TINY, FIELD_TYPE.SHORT, FIELD_TYPE.LONG, FIELD_TYPE.INT24, FIELD_TYPE.LONGLONG, FIELD_TYPE.YEAR),
        int,
    ),
}
"""What the driver makes of the server's texts: integers. Everything else is the dialect's to read."""
_MISSING: Final = frozenset({ER.NO_SUCH_TABLE, ER.BAD_TABLE_ERROR, ER.BAD_FIELD_ERROR, ER.BAD_DB_ERROR})
_DUPLICATE: Final = frozenset({ER.DUP_ENTRY, ER.DUP_UNIQUE, 1586, 1761, 1762})
_NO_SUCH_THREAD: Final = ER.NO_SUCH_THREAD
_SKIPPED_TABLE: Final = 1684
_SKIPPED_PAUSE_S: Final = 0.02
_PARAMETER: Final = re.compile(r"\$(\d+)")

_COLUMNS: Final = """
SELECT COLUMN_NAME, DATA_TYPE, COLUMN_TYPE, GENERATION_EXPRESSION IS NOT NULL OR EXTRA LIKE '%%GENERATED%%',
       EXTRA LIKE '%%on update%%', IS_NULLABLE = 'YES',
       COLUMN_KEY = 'PRI', EXTRA = '' AND COLUMN_COMMENT = ''
       AND COALESCE(COLUMN_DEFAULT, 'NULL') IN ('NULL', '''0000-00-00 00:00:00'''),
       CAST(NUMERIC_SCALE AS SIGNED), CAST(DATETIME_PRECISION AS SIGNED),
       CAST(CHARACTER_MAXIMUM_LENGTH AS SIGNED), COLLATION_NAME, GENERATION_EXPRESSION IN ('ROW START', 'ROW END')
  FROM information_schema.COLUMNS
 WHERE TABLE_SCHEMA = COALESCE(NULLIF($1, ''), DATABASE()) AND TABLE_NAME = $2
 ORDER BY ORDINAL_POSITION""".replace("%%", "%")
_CHECKS: Final = """
SELECT CONSTRAINT_NAME, CHECK_CLAUSE FROM information_schema.CHECK_CONSTRAINTS
 WHERE CONSTRAINT_SCHEMA = COALESCE(NULLIF($1, ''), DATABASE()) AND TABLE_NAME = $2 AND LEVEL = 'Column'"""
_TABLE_TYPE: Final = """
SELECT TABLE_TYPE,
       IF(TABLE_TYPE IN ('VIEW', 'SEQUENCE') OR e.TRANSACTIONS = 'YES', '', COALESCE(t.ENGINE, 'not known')),
       TABLE_SCHEMA, TABLE_NAME
  FROM information_schema.TABLES t LEFT JOIN information_schema.ENGINES e ON e.ENGINE = t.ENGINE
 WHERE TABLE_SCHEMA = COALESCE(NULLIF($1, ''), DATABASE()) AND TABLE_NAME = $2"""
_TABLE_TYPES: Final = ("BASE TABLE", "SYSTEM VERSIONED")

_KEY_TABLE: Final = """
SELECT TABLE_SCHEMA, TABLE_NAME, TABLE_TYPE FROM information_schema.TABLES
 WHERE TABLE_SCHEMA = COALESCE(NULLIF($1, ''), DATABASE()) AND TABLE_NAME = $2"""
_KEY_INDEXES: Final = """
SELECT INDEX_NAME, COLUMN_NAME, SUB_PART IS NOT NULL FROM information_schema.STATISTICS
 WHERE TABLE_SCHEMA = $1 AND TABLE_NAME = $2 AND NON_UNIQUE = 0 ORDER BY INDEX_NAME, SEQ_IN_INDEX"""
# Not joined with the former: then the server opens every table there is.
_INEXACT: Final = """
SELECT COLUMN_NAME FROM information_schema.COLUMNS
 WHERE TABLE_SCHEMA = $1 AND TABLE_NAME = $2 AND DATA_TYPE IN ('float', 'double')"""
_KEY_TEXTS: Final = """
SELECT COLUMN_NAME, COLLATION_NAME FROM information_schema.COLUMNS
 WHERE TABLE_SCHEMA = $1 AND TABLE_NAME = $2 
   AND DATA_TYPE IN ('char', 'varchar', 'tinytext', 'text', 'mediumtext', 'longtext')"""
# Of these no two characters of printable ASCII are one, but for their case, nor any two together; others, as those that
# stand for one language, are not looked at.
_ASCII_COLLATIONS: Final = re.compile(
    "(utf8|utf8mb3|utf8mb4)_(general|unicode|unicode_520|uca1400)(_nopad)?(_ai|_as)?_(ci|cs)|latin1_swedish(_nopad)?_ci"
)
_KEY_REFERENCES: Final = """
SELECT CONSTRAINT_NAME, COLUMN_NAME, REFERENCED_TABLE_SCHEMA, REFERENCED_TABLE_NAME, REFERENCED_COLUMN_NAME
  FROM information_schema.KEY_COLUMN_USAGE
 WHERE TABLE_SCHEMA = $1 AND TABLE_NAME = $2 AND REFERENCED_TABLE_NAME IS NOT NULL
 ORDER BY CONSTRAINT_NAME, ORDINAL_POSITION"""
_REFERENCES: Final = """
SELECT CONSTRAINT_SCHEMA, TABLE_NAME, UNIQUE_CONSTRAINT_SCHEMA, REFERENCED_TABLE_NAME
  FROM information_schema.REFERENTIAL_CONSTRAINTS ORDER BY 1, 2, 3, 4"""
_LOSING: Final = """
SELECT DISTINCT CONSTRAINT_SCHEMA, TABLE_NAME FROM information_schema.REFERENTIAL_CONSTRAINTS
 WHERE UNIQUE_CONSTRAINT_SCHEMA = COALESCE(NULLIF($1, ''), DATABASE()) AND REFERENCED_TABLE_NAME = $2
   AND DELETE_RULE NOT IN ('RESTRICT', 'NO ACTION') ORDER BY 1, 2"""
_KEY_ACTIONS: Final = """
SELECT DISTINCT TABLE_NAME FROM information_schema.REFERENTIAL_CONSTRAINTS
 WHERE UNIQUE_CONSTRAINT_SCHEMA = $1 AND REFERENCED_TABLE_NAME = $2
   AND (DELETE_RULE NOT IN ('RESTRICT', 'NO ACTION') OR UPDATE_RULE NOT IN ('RESTRICT', 'NO ACTION'))
 ORDER BY TABLE_NAME"""
_KEY_TRIGGERS: Final = """
SELECT TRIGGER_NAME FROM information_schema.TRIGGERS
 WHERE EVENT_OBJECT_SCHEMA = $1 AND EVENT_OBJECT_TABLE = $2 ORDER BY TRIGGER_NAME"""

SEND_BYTES: Final = 1 << 18
"""Statements with rows wait for others until they have grown to this, and are sent as one packet."""

_WHOSE: Final = (
    "CONCAT('session ', p.ID, ' of user ', p.USER, ' from ', p.HOST, ', ', LOWER(p.COMMAND), ' since ', p.TIME, ' s')"
)
_HOLDERS: Final = """
  FROM information_schema.INNODB_TRX t JOIN information_schema.PROCESSLIST p ON p.ID = t.trx_mysql_thread_id
 WHERE t.trx_rows_locked > 0 AND p.ID <> CONNECTION_ID()"""


def _differ(counts: tuple[int, int]) -> bool:
    return counts[0] != counts[1]


def text_equality(collation: str) -> TextEquality:
    """Return which texts are one by a collation of MariaDB."""
    if collation.endswith("_bin"):
        return TextEquality.FOLDED
    return TextEquality.ASCII if _ASCII_COLLATIONS.fullmatch(collation) else TextEquality.UNKNOWN


def lock_name(identity: str) -> str:
    """Return the name of the lock that the session of this identity holds."""
    return f"tranlog {identity}"


class MariadbSession:
    """One connection to a MariaDB server; see Session for what its methods do."""

    def __init__(self, options: TargetOptions) -> None:
        url = read_url(options.dsn)
        self._where = url.describe()
        self._lock_wait_s = -1
        self._lock_timeout_s = options.lock_timeout_s
        self._relaxed: tuple[str, ...] = ()
        self._sent: list[bytes] = []  # and not run yet; how many rows each statement in it is to hit
        self._expected: list[int] = []
        self._sent_bytes = 0
        self._holds_snapshot = False
        try:
            self._connection = connect(
                url,
                connect_timeout_s=options.connect_timeout_s,
                # FOUND_ROWS: an update to equal values has found its row.
                client_flag=CLIENT.FOUND_ROWS | CLIENT.MULTI_STATEMENTS,
                conv=_CONVERSIONS,
            )
        except (pymysql.err.MySQLError, OSError, RuntimeError) as exc:
            raise unavailable(self._where, message(exc)) from exc
        try:
            self._cursor = self._connection.cursor()
            self._set_up(options)
        except MisfitError as exc:
            self.close()
            raise unavailable(self._where, str(exc)) from exc
        except BaseException:
            self.close()
            raise

    def _set_up(self, options: TargetOptions) -> None:
        ((version, read_only),) = self.fetch("SELECT VERSION(), @@tx_read_only")
        if read_only == 1:
            logger.warning(
                "The target's tx_read_only is on; it is off in tranlog's own sessions, which write there. target=%s",
                self._where,
            )
        if "MariaDB" not in version:
            raise unavailable(self._where, f"it is no MariaDB, but {version}")
        self._execute(f"SET NAMES utf8mb4 COLLATE {COLLATION}")
        self._execute(set_session({**_SETTINGS, "idle_transaction_timeout": str(ceil(options.idle_timeout_s))}))
        self._wait_for_locks(max(1, ceil(options.lock_timeout_s)))
        ((connection_id, packet, case),) = self.fetch(
            "SELECT CONNECTION_ID(), @@max_allowed_packet, @@lower_case_table_names"
        )
        self.folds_names = case != 0
        self._timestamps_end = (1 << 32 if tuple(map(int, version.split(".")[:2])) >= (11, 5) else 1 << 31) - 1
        self._packet_most = packet - _PACKET_MARGIN
        self._packet_allowed = packet
        self.identity = f"{connection_id} {uuid.uuid4().hex}"
        # By the second name a session is found of which only the number is seen.
        names = (lock_name(self.identity), lock_name(f"{connection_id}"))
        ((one, two),) = self.fetch("SELECT GET_LOCK($1, 0), GET_LOCK($2, 0)", names)
        if one != 1 or two != 1:
            raise unavailable(self._where, "the server gives no lock by GET_LOCK, and a session needs one for its name")

    def _wait_for_locks(self, seconds: int) -> None:
        if self._lock_wait_s != seconds:
            self._execute(f"SET SESSION innodb_lock_wait_timeout = {seconds}, lock_wait_timeout = {seconds}")
            self._lock_wait_s = seconds

    # --- transactions ---

    def begin(self, *, lock_timeout_s: float | None = None) -> None:
        self._forget()
        self._wait_for_locks(max(1, ceil(self._lock_timeout_s if lock_timeout_s is None else lock_timeout_s)))
        self._relax(())
        self._execute("START TRANSACTION")

    def commit(self) -> None:
        self._execute("COMMIT")

    def rollback(self) -> None:
        self._forget()
        with suppress(pymysql.err.MySQLError, OSError):
            self._cursor.execute("ROLLBACK")

    def savepoint(self) -> None:
        self._execute("SAVEPOINT tranlog_savepoint")

    def rollback_to_savepoint(self) -> None:
        self._forget()  # it would only be undone
        self._execute("ROLLBACK TO SAVEPOINT tranlog_savepoint")

    # --- statements ---

    def _execute(self, sql: str | bytes) -> list[int]:
        """Run one statement, or several, to the end, after what was sent; return how many rows each one hit."""
        self.settle()
        cursor = self._cursor
        try:
            cursor.execute(sql)
            counts = [cursor.rowcount]
            while cursor.nextset():
                counts.append(cursor.rowcount)
        except (pymysql.err.MySQLError, OSError) as exc:
            raise self._sorted(exc) from exc
        return counts

    def _filled(self, sql: str, parameters: Sequence[Any]) -> str:
        if not parameters:
            return sql
        texts = [_parameter(value) for value in parameters]
        filled = _PARAMETER.sub(lambda found: texts[int(found[1]) - 1], sql)
        self._check_size(len(filled.encode()))
        return filled

    def _check_size(self, size: int) -> None:
        if size > self._packet_most:
            raise MisfitError(
                f"it takes a packet of {size} bytes, and the server's max_allowed_packet is {self._packet_allowed}; "
                "SET GLOBAL max_allowed_packet to more, 1073741824 at most, then start again"
            )

    def run(self, sql: str, parameters: Sequence[Any] = ()) -> int:
        return self._execute(self._filled(sql, parameters))[0]

    def fetch(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        self.settle()
        until = time.monotonic() + self._lock_timeout_s
        while True:
            try:
                self._cursor.execute(self._filled(sql, parameters))
                rows = list(self._cursor.fetchall())
                skipped = self._skipped()
            except (pymysql.err.MySQLError, OSError) as exc:
                raise self._sorted(exc) from exc
            if not skipped:
                return rows
            if time.monotonic() >= until:
                raise TransientTargetError(why=skipped)
            time.sleep(_SKIPPED_PAUSE_S)

    def _skipped(self) -> str:
        """Say which table was left out of what was just read of the catalogue, since it is being altered; empty: none.

        The server does that to whoever holds any lock, and a session of ours always holds that of its name.
        """
        if not self._cursor.warning_count:
            return ""
        self._cursor.execute("SHOW WARNINGS")
        return next((said for _, number, said in self._cursor.fetchall() if number == _SKIPPED_TABLE), "")

    def _relax(self, wanted: tuple[str, ...]) -> None:
        """Leave these checks out from now on, and no others."""
        if wanted != self._relaxed:
            names = {*wanted, *self._relaxed}
            self._execute("SET SESSION " + ", ".join([_relaxed(name, name in wanted) for name in sorted(names)]))
            self._relaxed = wanted

    def send(self, form: Form, rows: Sequence[Row]) -> int:
        self._relax(form.relaxed)
        if form.one is not None and len(rows) <= FEW_ROWS:
            form = form.one
        together = ROWS_HERE in form.sql
        head, _, tail = form.sql.partition(ROWS_HERE)
        prefix, suffix, between = head.encode(), tail.encode(), b"," if together else b";"
        most = self._packet_most - len(prefix) - len(suffix)
        part: list[bytes] = []
        size = statements = 0
        for text in form.bind(rows):
            raw = text.encode("utf-8", "surrogateescape")
            if part and size + len(raw) > most:
                self._send(prefix, between.join(part), suffix, len(part), together)
                part, size, statements = [], 0, statements + 1
            part.append(raw)
            size += len(raw) + 1
        self._check_size(len(prefix) + size + len(suffix))
        self._send(prefix, between.join(part), suffix, len(part), together)
        return statements + 1

    def _send(self, prefix: bytes, rows: bytes, suffix: bytes, count: int, together: bool) -> None:
        """Send with what follows: one after the other a round trip each is most of what rows of mixed tables take."""
        size = len(prefix) + len(rows) + len(suffix)
        self._check_size(size)
        if self._sent_bytes + size > min(SEND_BYTES, self._packet_most):
            self.settle()
        self._sent.append(prefix + rows + suffix)
        self._sent_bytes += size + 1
        self._expected += [count] if together else [1] * count

    def _forget(self) -> None:
        self._sent, self._expected, self._sent_bytes = [], [], 0

    def settle(self) -> None:
        if not self._sent:
            return
        sent, expected = b";".join(self._sent), self._expected
        self._forget()
        hit, wanted = next(filter(_differ, zip(self._execute(sent), expected, strict=False)), (0, 0))
        if hit != wanted:
            raise MisfitError(f"{hit} rows hit instead of {wanted}", affected=hit)

    def run_script(self, text: str) -> None:
        self._execute(text)

    def _sorted(self, exc: BaseException) -> Exception:
        """Return what an error of the driver's is to us, by the server's code for it."""
        why, number = message(exc), error_number(exc)
        if number == ER.LOCK_WAIT_TIMEOUT:
            return LockTimeoutError(f"a lock did not come in time ({why})")
        if number in _MISSING:
            return MissingTableError(why)
        match error_class(number):
            case ErrorClass.LOST:
                return TransientTargetError(why=f"the connection to {self._where} was lost: {why or 'it is closed'}")
            case ErrorClass.TRANSIENT:
                return TransientTargetError(why=why)
            case ErrorClass.UNAVAILABLE:
                return unavailable(self._where, why)
        return MisfitError(why, duplicate=number in _DUPLICATE)

    # --- the catalogue ---

    def table(self, table: TableMap) -> TargetTable:
        names = (fit_name(table.schema) if table.schema else "", fit_name(table.table))
        kinds = self.fetch(_TABLE_TYPE, names)
        if not kinds:
            raise MissingTableError(f"there is no such {'sequence' if table.sequence else 'table'}")
        # Where rows come it is this server's word whether it is a sequence, since ALTER TABLE makes either the other.
        if kinds[0][0] not in _TABLE_TYPES and not (kinds[0][0] == "SEQUENCE" and table.columns):
            raise TakenNameError(f"this name is not a table's ({kinds[0][0].lower()})")
        columns, period, checks = {}, set(), dict(self.fetch(_CHECKS, names))
        for row in self.fetch(_COLUMNS, names):
            name, kind, declared, generated, moves, nullable, in_key, retypes, *sizes, collation, of_period = row
            scale, precision, length = sizes
            if of_period:
                period.add(name)
            columns[name] = TargetColumn(
                name=name,
                type_name=kind,
                category=CATEGORY_OF.get(kind, "other"),
                declared=declared,
                nullable=bool(nullable),
                loosens=bool(retypes and not nullable and not in_key),
                retypes=bool(retypes),
                generated=bool(generated),
                moves=bool(moves),
                digits=scale if precision is None and kind in ("decimal", "float", "double") else precision,
                length=self._timestamps_end if kind == "timestamp" else length,
                collation=collation or "",
                check=checks.get(name, ""),
                labels=catalog_labels(declared),
            )
        if kinds[0][0] == "SYSTEM VERSIONED" and not period:
            period = {"row_start", "row_end"}  # hidden
        kind, engine, schema, name = kinds[0]
        unique, triggers, why = _indexes(self, schema, name, kind)
        order_unseen = len(unique) == 1 and not triggers and not why and not engine
        return TargetTable(
            name=(schema, name),
            columns=columns,
            # Updates that change a key go row by row, so columns need not be known as unique for their own sake.
            unique=frozenset(unique[0]) if order_unseen else frozenset(),
            place="",
            engine=engine,
            period=frozenset(period),
            order_unseen=order_unseen,
        )

    def keys(self, table: TableMap) -> TargetKeys | None:
        names = (fit_name(table.schema) if table.schema else "", fit_name(table.table))
        found = [row for row in self.fetch(_KEY_TABLE, names) if row[2] in (*_TABLE_TYPES, "SEQUENCE")]
        if not found:
            return None
        schema, name, kind = found[0]
        unique, triggers, why = _indexes(self, schema, name, kind)
        own: dict[str, list[str]] = {}
        there: dict[str, tuple[TableName, list[str]]] = {}
        for key, column, to_schema, to, to_column in self.fetch(_KEY_REFERENCES, (schema, name)):
            own.setdefault(key, []).append(column)
            there.setdefault(key, ((to_schema, to), []))[1].append(to_column)
        actions = [one for (one,) in self.fetch(_KEY_ACTIONS, (schema, name))]
        return TargetKeys(
            name=(schema, name),
            texts={one: text_equality(collation) for one, collation in self.fetch(_KEY_TEXTS, (schema, name))},
            unique=tuple(map(tuple, unique)),
            references=tuple([(tuple(own[key]), to, tuple(columns)) for key, (to, columns) in there.items()]),
            triggers=tuple(triggers),
            actions=f"foreign keys of {', '.join(actions)} change its rows" if actions else "",
            why=why,
        )

    def references(self) -> list[tuple[TableName, TableName]]:
        return [((schema, table), (to_schema, to)) for schema, table, to_schema, to in self.fetch(_REFERENCES)]

    def losing(self, table: TableMap) -> list[TableName]:
        names = (fit_name(table.schema) if table.schema else "", fit_name(table.table))
        return [(schema, name) for schema, name in self.fetch(_LOSING, names)]

    def slow_references(self) -> list[tuple[TableName, TableName, str]]:
        return []  # InnoDB makes the index itself

    def lacks_create(self, schema: str | None = None) -> str:
        return self._lacks("CREATE", schema)

    def lacks_alter(self, table: TableMap) -> str:
        on_table = "SELECT 1 FROM information_schema.TABLE_PRIVILEGES WHERE TABLE_SCHEMA = $1 AND TABLE_NAME = $2"
        if self.fetch(f"{on_table} AND PRIVILEGE_TYPE = 'ALTER'", (fit_name(table.schema), fit_name(table.table))):
            return ""
        return self._lacks("ALTER", table.schema)

    def _lacks(self, right: str, schema: str | None) -> str:
        ((user, database),) = self.fetch("SELECT CURRENT_USER(), DATABASE()")
        database = fit_name(schema) if schema else database
        if has_right([row[0] for row in self.fetch("SHOW GRANTS")], [right], database):
            return ""
        return f"GRANT {right}, SELECT, INSERT, UPDATE, DELETE ON {quote(database)}.* TO {account(user)}"

    def blocks(self, sql: str, cells: Sequence[Cell]) -> Iterator[RowBlock]:
        cursor = self._connection.cursor(SSCursor)
        try:
            if self._holds_snapshot:
                self.savepoint()
            cursor.execute(sql)
            yield from made(cursor.fetchall_unbuffered(), cells)
        except (pymysql.err.MySQLError, OSError) as exc:
            raise self._sorted(exc) from exc
        finally:
            with suppress(pymysql.err.MySQLError, OSError):
                close_query(self._connection, cursor)
                if self._holds_snapshot:
                    self._cursor.execute("ROLLBACK TO SAVEPOINT tranlog_savepoint")  # which frees the table's lock

    def hold_snapshot(self) -> None:
        self._execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        self._execute("SET SESSION idle_transaction_timeout = 0")
        self._execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        self._holds_snapshot = True

    def is_as_it_was(self, table: TableMap) -> bool:
        return True  # else the server has refused to read it

    # --- other sessions ---

    def end(self, identity: str) -> bool:
        number = identity.partition(" ")[0]
        if identity == self.identity or not number.isdigit():
            return False
        ((holder,),) = self.fetch("SELECT IS_USED_LOCK($1)", (lock_name(identity),))
        if holder != int(number) or not self._keeps_a_lock(holder):
            return False
        try:
            self._cursor.execute(f"KILL {holder}")
        except pymysql.err.MySQLError as exc:
            if exc.args[0] == _NO_SUCH_THREAD:
                return True
            whose = self.fetch(f"SELECT {_WHOSE} FROM information_schema.PROCESSLIST p WHERE p.ID = {holder}")
            who = whose[0][0] if whose else f"session {holder}"
            raise unavailable(
                self._where,
                f"{who} keeps a row of tranlog_channel locked and may not be ended by this user: {message(exc)}",
            ) from exc
        except OSError as exc:
            raise self._sorted(exc) from exc
        return True

    def _keeps_a_lock(self, number: int) -> bool:
        """Whether a session holds locks on rows. Who may not see that takes it so: it is a replaced task's session."""
        try:
            return bool(self._fetch_seen(f"SELECT p.ID {_HOLDERS} AND p.ID = {number}"))
        except _UnseenError:
            return True

    def stopped_inside(self) -> list[str]:
        idle = (
            "p.COMMAND = 'Sleep' AND p.TIME >= 1 AND p.USER = SUBSTRING_INDEX(USER(), '@', 1) AND p.DB <=> DATABASE()"
        )
        ours = "IS_USED_LOCK(CONCAT('tranlog ', p.ID)) = p.ID"
        try:
            rows = self._fetch_seen(f"SELECT p.ID {_HOLDERS} AND {idle} AND {ours}")
        except _UnseenError:
            return []
        return [str(number) for (number,) in rows]

    def lock_holders(self, *, ours: bool) -> tuple[str, bool]:
        try:
            rows = self._fetch_seen(f"SELECT {_WHOSE} {_HOLDERS} ORDER BY t.trx_started LIMIT 5")
        except _UnseenError:
            return "a session that this user may not see (GRANT PROCESS ON *.* shows it)", False
        gone = "a session that has ended by now" + ("" if ours else ", or has the table by LOCK TABLES")
        return " or ".join([who for (who,) in rows]) or gone, False

    def _fetch_seen(self, sql: str) -> list[tuple[Any, ...]]:
        try:
            self._cursor.execute(sql)
            return list(self._cursor.fetchall())
        except pymysql.err.MySQLError as exc:
            if exc.args[0] == ER.SPECIFIC_ACCESS_DENIED_ERROR:
                raise _UnseenError from exc
            raise self._sorted(exc) from exc
        except OSError as exc:
            raise self._sorted(exc) from exc

    def close(self) -> None:
        close(self._connection)


def _indexes(session: MariadbSession, schema: str, name: str, kind: str) -> tuple[list[list[str]], list[str], str]:
    """Return the columns of a table's unique indexes, its triggers, and why these are not all; empty: they are."""
    unique: dict[str, list[str]] = {}
    why = "" if kind == "BASE TABLE" else f"it is {kind.lower()}"
    inexact = {column for (column,) in session.fetch(_INEXACT, (schema, name))}
    for index, column, prefix in session.fetch(_KEY_INDEXES, (schema, name)):
        unique.setdefault(index, []).append(column)
        why = why or ("a key of a prefix" if prefix else "a key of inexact numbers" if column in inexact else "")
    if not why and not has_right([row[0] for row in session.fetch("SHOW GRANTS")], ["TRIGGER"], schema):
        why = f"its triggers are hidden from this user; GRANT TRIGGER ON {quote(schema)}.* shows them"
    if not why and "WITHOUT OVERLAPS" in session.fetch(f"SHOW CREATE TABLE {quote(schema)}.{quote(name)}")[0][1]:
        why = "WITHOUT OVERLAPS"
    return list(unique.values()), [one for (one,) in session.fetch(_KEY_TRIGGERS, (schema, name))], why


class _UnseenError(Exception):
    """This user may not see other users' transactions."""


def _relaxed(name: str, left_out: bool) -> str:
    """Return how a check of `Form.relaxed` is left out, or is made again."""
    if name == STRICT:
        return f"sql_mode = {_LENIENT if left_out else _SETTINGS['sql_mode']}"
    return f"{name} = {0 if left_out else 1}"


def _parameter(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        return f"x'{value.hex()}'"
    return literal(value) if isinstance(value, str) else str(int(value))
