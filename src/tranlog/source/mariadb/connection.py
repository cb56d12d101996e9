"""Connections to a MariaDB server, and what its errors mean to us.

Owns the options that name the server, opening connections, and what an error means to capture: the server is away, or
is set up so that it will say the same again, and then what to change. Which error is which is `servers`'.
"""

from __future__ import annotations

import logging
import math
import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Literal

import pymysql
from pymysql.constants import ER

from tranlog.errors import ConfigError, SourceError, SourceSetupError, SourceUnavailableError
from tranlog.option_kinds import ABOVE_0, Bounds, check_bounds, check_kinds
from tranlog.servers import mariadb
from tranlog.servers.mariadb import SESSION, close, error_number, message, set_session
from tranlog.servers.mariadb_address import MariadbAddress
from tranlog.servers.mariadb_errors import ErrorClass, error_class
from tranlog.shard import ShardRule, ShardRuleKind
from tranlog.source.mariadb.position import parse_start
from tranlog.source.packer import FRAGMENT_BYTES
from tranlog.source.reconnecting import busy

logger = logging.getLogger(__name__)

SYSTEM_DATABASES: Final = ("mysql", "information_schema", "performance_schema", "sys")
_LOCK_WAIT_S: Final = 30
_CATALOG_WAIT_S: Final = 5
"""So long one question waits for a table that is locked, and a stop for the question."""

_COLUMN_TYPE: Final = re.compile(r"[^.]+\..+\.[^.=]+=(?:uuid|inet[46]|binary\((?:4|16)\))", re.DOTALL)
_PASSING: Final = (ER.LOCK_WAIT_TIMEOUT, ER.LOCK_DEADLOCK, ER.TABLE_DEF_CHANGED)
"""What others do to a table at this moment: the same is tried again, as at a server that is away."""
SAME_SERVER_ID: Final = 4052
"""ER_SLAVE_SAME_ID: somebody else follows the server under our number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MariadbSourceOptions:
    """Which server, from where, and how much memory and patience."""

    kind: ClassVar[str] = "mariadb"
    host: str = "127.0.0.1"
    """The server; it needs binlog_format=ROW, binlog_row_image=FULL and binlog_row_metadata=FULL."""
    port: int = 3306
    """Its port."""
    user: str = "root"
    """The user, with the rights of a replica."""
    password: str = field(default="", repr=False, metadata={"example": "a password"})
    """The user's password."""
    source_id: str = field(default="mariadb", metadata={"default": "the service's name"})
    """Names this source in every record; keep it."""
    server_id: int | None = field(default=None, metadata={"example": 4711, "default": "made from source_id"})
    """A number from 1 to 2^32 - 1, unlike that of every other replica."""
    start: str = "now"
    """Where to begin for a log without events: `now`, `earliest`, a GTID list, or `binlog.000003:12345`."""
    databases: tuple[str, ...] | None = field(default=None, metadata={"example": ["shop"]})
    """Whose rows are captured; None: of all but `ignored_databases`. DDL is judged in the same way, by the databases
    that it names."""
    ignored_databases: tuple[str, ...] = SYSTEM_DATABASES
    """Databases that are left out: MariaDB's own."""
    shard_rule: ShardRule = field(default_factory=lambda: ShardRule(kind=ShardRuleKind.SCHEMA))
    statements: Literal["stop", "record"] = "stop"
    """Statements in the place of rows: `stop` does not take them, and `on_gap` says what then; `record` logs their
    text, which no other kind of database can apply."""
    cascades: Literal["refuse", "allow"] = "refuse"
    """Foreign keys with CASCADE or SET NULL change rows that the binlog does not hold. `allow` is for targets with the
    same foreign keys."""
    annotate: bool = False
    """Whether the texts of the statements after the rows become metadata `annotate`."""
    fragment_bytes: int = FRAGMENT_BYTES
    """At about this size of payload a transaction is cut into fragments."""
    queue_bytes: int = 16 << 20
    """How much may wait between the socket and `read`; then the server waits."""
    memory_bytes: int = 16 << 20
    """Up to this size an unfinished transaction waits in memory, beyond it in a temporary file."""
    spool_directory: str | None = field(default=None, metadata={"path": True, "example": "spool"})
    """Where such files are made; None takes the system's directory for temporary files."""
    transaction_bytes_max: int = 1 << 30
    """A larger transaction is not taken: `on_gap` says what becomes of it."""
    on_gap: Literal["gap", "stop"] = "gap"
    """What capture cannot carry, where it is certain which tables it changed: `gap` goes on, and targets wait for a
    load of these tables; `stop` ends capture."""
    read_bytes: int = 8 << 20
    """After so many bytes `read` ends, so that its caller can make them durable."""
    heartbeat_s: float = 1.0
    """How often an idle server says that it is there; four times that, and 10 s at least, of silence is a lost
    connection."""
    reconnect_s: float = 60.0
    """How long a lost server is tried before SourceUnavailableError."""
    connect_timeout_s: float = 10.0
    """How long a connection may take."""
    position_interval_s: float = 10.0
    """How often the position moves by an empty transaction while nothing that is captured happens."""
    column_types: tuple[str, ...] = field(default=(), metadata={"example": ["shop.users.token=uuid"]})
    """What columns were that the binlog does not tell apart, in tables that are gone or were altered when it is read:
    `schema.table.column=type`, the type `uuid`, `inet6`, `inet4`, `binary(16)` or `binary(4)`. It counts where
    nothing else tells."""
    xa_warn_s: float = 600.0
    """From this age on a warning names an XA transaction that is prepared and has not ended."""

    def check(self) -> None:
        """Raise ConfigError for an impossible value."""
        check_kinds(self)
        for option in ("host", "user", "source_id"):
            if not getattr(self, option):
                raise ConfigError(option=option, value="", why="must not be empty")
        check_bounds(self, _BOUNDS)
        try:
            parse_start(self.start)
        except ValueError as exc:
            raise ConfigError(option="start", value=self.start, why=str(exc)) from exc
        if self.databases is not None and not self.databases:
            raise ConfigError(option="databases", value=[], why="an empty list captures nothing; leave it out for all")
        for said in self.column_types:
            if not _COLUMN_TYPE.fullmatch(said):
                why = "not schema.table.column=type, with uuid, inet6, inet4, binary(16) or binary(4)"
                raise ConfigError(option="column_types", value=said, why=why)

    @property
    def where(self) -> str:
        """`host:port`, for messages."""
        return f"{self.host}:{self.port}"

    @property
    def replica_id(self) -> int:
        """The server id under which we follow the binlog."""
        if self.server_id is not None:
            return self.server_id
        return 0x40000000 | zlib.crc32(self.source_id.encode()) & 0x3FFFFFFF

    def captures(self, schema: str) -> bool:
        """Whether row changes of a database are captured."""
        if self.databases is not None:
            return schema in self.databases
        return schema not in self.ignored_databases


_SIZES = "fragment_bytes queue_bytes memory_bytes transaction_bytes_max read_bytes"
_BOUNDS: Bounds = (
    ("port", 1, 65_535, "a port is a number from 1 to 65535"),
    ("server_id", 1, (1 << 32) - 1, "a server id is a number from 1 to 2^32 - 1"),
    (_SIZES, 1, math.inf, "must be at least 1 byte"),
    ("heartbeat_s connect_timeout_s", ABOVE_0, math.inf, "must be more than 0 seconds"),
    ("reconnect_s position_interval_s xa_warn_s", 0, math.inf, "must not be negative"),
)


def connect(
    options: MariadbSourceOptions, *, lock_wait_s: int = _LOCK_WAIT_S, **settings: Any
) -> pymysql.Connection[Any]:
    """Open a session in UTC that outlives idle days. Raises SourceUnavailableError, SourceSetupError."""
    try:
        address = MariadbAddress(host=options.host, port=options.port, user=options.user, password=options.password)
        connection = mariadb.connect(address, connect_timeout_s=options.connect_timeout_s, **settings)
        try:
            with connection.cursor() as cursor:
                cursor.execute(set_session({**SESSION, "lock_wait_timeout": str(lock_wait_s)}))
        except BaseException:
            close(connection)
            raise
    except (pymysql.err.MySQLError, OSError) as exc:
        raise translated(exc, options) from exc
    return connection


def translated(error: BaseException, options: MariadbSourceOptions, *, table: str = "a table") -> SourceError:
    """Return our exception for one of the client library's; `table`: what is read."""
    number, text = error_number(error), message(error) or type(error).__name__
    if number in _PASSING:
        return busy(options.where, f"{table}: {text}")
    if error_class(number) is ErrorClass.LOST:
        return SourceUnavailableError(where=options.where, why=text)
    return setup_error(number, text, options)


def setup_error(code: int, text: str, options: MariadbSourceOptions) -> SourceSetupError:
    """Return what to do about an error that the server will repeat."""
    user = f"'{options.user}'"
    if code in (ER.ACCESS_DENIED_ERROR, 1698, 1862):
        remedy = f"Check user and password of the source ({options.where})"
    elif code in (ER.SPECIFIC_ACCESS_DENIED_ERROR, ER.TABLEACCESS_DENIED_ERROR, ER.DBACCESS_DENIED_ERROR):
        remedy = (
            f"Run at the source: GRANT REPLICATION SLAVE, BINLOG MONITOR, SELECT ON *.* TO {user}@'<host>' (SELECT may "
            "be granted on the captured databases alone)"
        )
    elif code == SAME_SERVER_ID:
        remedy = f"Set the option server_id; now it is {options.replica_id}, and every replica needs its own"
    elif "max_allowed_packet" in text:
        remedy = "Run at the source: SET GLOBAL max_allowed_packet = 1073741824, then start capture again"
    else:
        remedy = "Mend it at the source, then start capture again"
    return SourceSetupError(why=f"{options.where} says {text!r} ({code})", remedy=remedy)


class Control:
    """The session beside the stream, for questions to the server. Opened when needed, opened again when lost.

    A question about a table that is locked is asked again while `patient` says so.
    Threads: one.
    """

    def __init__(self, options: MariadbSourceOptions, *, patient: Callable[[], bool] = lambda: False) -> None:
        self._options = options
        self._patient = patient
        self._connection: pymysql.Connection[Any] | None = None

    def rows(self, sql: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Run one statement. A session that was lost while idle is replaced once.

        Raises: SourceUnavailableError, SourceSetupError.
        """
        while True:
            fresh = self._connection is None
            try:
                found = self._run(sql, parameters)
            except SourceUnavailableError:
                self.close()
                if fresh:
                    raise
                found = self._run(sql, parameters)
            if found is not None:
                return found
            if not self._patient():
                raise busy(self._options.where, f"a table of its catalog is locked ({' '.join(sql.split())[:100]})")
            logger.warning("A table that is captured is locked: its definition is asked for again. sql=%s", sql)

    def _run(self, sql: str, parameters: Sequence[object]) -> list[tuple[Any, ...]] | None:
        """Return the answer; None where a lock kept the server from it."""
        if self._connection is None:
            self._connection = connect(
                self._options,
                lock_wait_s=_CATALOG_WAIT_S,
                read_timeout=_LOCK_WAIT_S * 4,
                write_timeout=_LOCK_WAIT_S * 4,
            )
        try:
            with self._connection.cursor() as cursor:
                cursor.execute(sql, tuple(parameters) or None)
                found = list(cursor.fetchall())
                # The catalog leaves a locked table out, and only a warning says so.
                if cursor.warning_count:
                    cursor.execute("SHOW WARNINGS")
                    if any(code == ER.LOCK_WAIT_TIMEOUT for _, code, _ in cursor.fetchall()):
                        return None
                return found
        except (pymysql.err.MySQLError, OSError) as exc:
            if error_number(exc) == ER.LOCK_WAIT_TIMEOUT:
                return None
            raise translated(exc, self._options) from exc

    def close(self) -> None:
        """Close the session; the next question opens another."""
        if self._connection is not None:
            close(self._connection)
            self._connection = None
