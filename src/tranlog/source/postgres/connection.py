"""Connections to a PostgreSQL server, and what its errors mean to us.

Owns the options that name the server, opening sessions, and what an error means to capture: the server is away, or is
set up so that it will say the same again, and then what to change.

Source: PostgreSQL's manual, "Error Codes".
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Literal

import psycopg
from psycopg import pq
from psycopg.conninfo import make_conninfo

from tranlog.errors import ConfigError, SourceError, SourceSetupError, SourceUnavailableError
from tranlog.option_kinds import ABOVE_0, Bounds, check_bounds, check_kinds
from tranlog.raising import BEGIN_ANEW
from tranlog.servers.postgres import KEEPALIVE, TEXT_SETTINGS, describe_dsn, read_dsn
from tranlog.shard import ShardRule, ShardRuleKind
from tranlog.source.packer import FRAGMENT_BYTES
from tranlog.source.postgres.position import slot_dropping
from tranlog.source.reconnecting import busy

_SLOT_NAME: Final = re.compile(r"[a-z0-9_]{1,63}")
_TABLE_NAME: Final = re.compile(r"[^.]+\.[^.]+")
_SESSION: Final = {
    **TEXT_SETTINGS,
    "lc_monetary": "C",
    "search_path": "pg_catalog",
    "statement_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "lock_timeout": "10s",
    "default_transaction_read_only": "off",
    "row_security": "off",
    "tranlog.own": "on",  # the event trigger does not record what we do
}
_IN_TRANSACTION: Final = (pq.TransactionStatus.INTRANS, pq.TransactionStatus.INERROR)
_SETUP_CLASSES: Final = ("0A", "22", "28", "3D", "42")
_SETUP_CODES: Final = frozenset({"53400", "55000", "55006", "58P01", "53300"})
_LOCKED: Final = "55P03"
_TAKEN_CODES: Final = frozenset({"53300", "53400"})
_LOGIN: Final = re.compile(
    r"password authentication failed|no password supplied|authentication failed|pg_hba\.conf|does not exist|"
    r"must be superuser or replication role|permission denied|certificate|SSL|definition of service|"
    r"is not permitted to log in|not currently accepting connections|max_wal_senders",
    re.IGNORECASE,
)
"""A connection that fails has no error code, only a text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresSourceOptions:
    """Which server and database, what of it, and how much memory and patience."""

    kind: ClassVar[str] = "postgres"
    dsn: str = field(default="postgresql:///", repr=False)
    """A connection string of libpq's: a URL or `host=... service=...`, with `sslmode` and its kin. The server needs
    wal_level = logical."""
    password: str = field(default="", repr=False, metadata={"example": "a password"})
    """The password, where the dsn and libpq's own files have none."""
    source_id: str = field(default="postgres", metadata={"default": "the service's name"})
    """Names this source in every record; keep it."""
    publication: str | None = field(default=None, metadata={"example": "tranlog_shop", "default": "named as the slot"})
    """Made if it is missing."""
    slot: str | None = field(default=None, metadata={"example": "tranlog_shop", "default": "made from source_id"})
    """Made if it is missing."""
    tables: tuple[str, ...] | None = field(default=None, metadata={"example": ["shop.*", "public.stock"]})
    """What a publication that is made holds, `schema.table` or `schema.*`; None: all tables of the database."""
    via_partition_root: bool = False
    """Whether a publication that is made shows a partitioned table as one, or each partition by itself."""
    identity: Literal["full", "key", "set"] = "full"
    """`full` demands REPLICA IDENTITY FULL of each table, `set` sets it; `key` is content with the key, and then there
    are no before images."""
    unlogged: Literal["refuse", "ignore"] = "refuse"
    """Unlogged tables write no WAL, so no capture sees them."""
    failover: bool = False
    """Whether a slot that is made is synchronised to standbys: PostgreSQL 17 and later."""
    ddl_capture: Literal["off", "event_trigger"] = "off"
    """PostgreSQL sends no DDL. `event_trigger` makes an event trigger that records its text; for superusers."""
    load_wait_s: float = 30.0
    """After so long it is said for which open transactions the snapshot of a load waits, or a slot that is made;
    `capture --once` ends then where it is a load."""
    load_snapshot: Literal["chunk", "export"] = "chunk"
    """`export`: one snapshot serves a whole load, for servers whose transactions are long; meanwhile VACUUM frees
    nothing, and what is committed waits for the load's end. `chunk`: each chunk has its own."""
    shard_rule: ShardRule = field(default_factory=lambda: ShardRule(kind=ShardRuleKind.SCHEMA))
    fragment_bytes: int = FRAGMENT_BYTES
    """At about this size of payload a transaction is cut into fragments."""
    queue_bytes: int = 16 << 20
    """How much may wait between the socket and `read`; then the server waits."""
    memory_bytes: int = 16 << 20
    """So much of unfinished transactions waits in memory, beyond it in temporary files."""
    spool_directory: str | None = field(default=None, metadata={"path": True, "example": "spool"})
    """Where such files are made; None takes the system's directory for temporary files."""
    transaction_bytes_max: int = 1 << 30
    """A larger transaction is not taken: `on_gap` says what becomes of it."""
    on_gap: Literal["gap", "stop"] = "gap"
    """What capture cannot carry, where it is certain which tables it changed: `gap` goes on, and targets wait for a
    load of these tables; `stop` ends capture."""
    read_bytes: int = 8 << 20
    """After so many bytes `read` ends, so that its caller can make them durable."""
    feedback_s: float = 1.0
    """How often the server hears how far the log is; ten times that, and 10 s at least, of silence is a lost
    connection."""
    heartbeat_s: float = 10.0
    """How often it is looked whether the slot keeps WAL of other databases; then a message moves it on."""
    heartbeat_bytes: int = 1 << 20
    """From so many bytes of WAL on."""
    retained_warn_bytes: int = 10 << 30
    """From so many bytes that the slot keeps at the server on, a warning says so."""
    reconnect_s: float = 60.0
    """How long a lost server is tried before SourceUnavailableError."""
    connect_timeout_s: float = 10.0
    """How long a connection may take."""

    def check(self) -> None:
        """Raise ConfigError for an impossible value."""
        check_kinds(self)
        if not self.source_id:
            raise ConfigError(option="source_id", value="", why="must not be empty")
        read_dsn(self.dsn, option="dsn")
        if self.slot is not None and not _SLOT_NAME.fullmatch(self.slot):
            why = "a slot's name is 1 to 63 small letters, digits and underscores"
            raise ConfigError(option="slot", value=self.slot, why=why)
        if self.publication is not None and not 0 < len(self.publication.encode()) < 64:
            raise ConfigError(option="publication", value=self.publication, why="a name has 1 to 63 bytes")
        for table in self.tables or ():
            if not _TABLE_NAME.fullmatch(table):
                raise ConfigError(option="tables", value=table, why="a table is named schema.table, or schema.*")
        if self.tables is not None and not self.tables:
            raise ConfigError(option="tables", value=[], why="an empty list captures nothing; leave it out for all")
        check_bounds(self, _BOUNDS)

    @property
    def where(self) -> str:
        """The server and database, without the password, for messages."""
        return describe_dsn(self.dsn, option="dsn")

    @property
    def slot_name(self) -> str:
        """The name of the replication slot."""
        if self.slot is not None:
            return self.slot
        plain = re.sub(r"[^a-z0-9_]", "_", self.source_id.lower())[:40]
        tail = "" if plain == self.source_id else f"_{zlib.crc32(self.source_id.encode()):08x}"
        return f"tranlog_{plain}{tail}"

    @property
    def publication_name(self) -> str:
        """The name of the publication."""
        return self.slot_name if self.publication is None else self.publication


_BOUNDS: Bounds = (
    (
        "fragment_bytes queue_bytes memory_bytes transaction_bytes_max read_bytes",
        1,
        math.inf,
        "must be at least 1 byte",
    ),
    ("feedback_s heartbeat_s connect_timeout_s load_wait_s", ABOVE_0, math.inf, "must be more than 0 seconds"),
    ("reconnect_s heartbeat_bytes retained_warn_bytes", 0, math.inf, "must not be negative"),
)


def connect(options: PostgresSourceOptions, *, waits: bool = False, **more: str) -> psycopg.Connection[Any]:
    """Open a session whose texts do not depend on how the server is set up; `waits` as in `translated`.

    Raises SourceUnavailableError, SourceSetupError.
    """
    parts = read_dsn(options.dsn, option="dsn")
    settings = " ".join(f"-c {name}={value.replace(' ', chr(92) + ' ')}" for name, value in _SESSION.items())
    given: dict[str, Any] = {
        "application_name": f"tranlog {options.source_id}"[:63],
        "connect_timeout": max(2, round(options.connect_timeout_s)),
        **KEEPALIVE,
    }
    fixed = {"client_encoding": "UTF8", "options": f"{parts.get('options') or ''} {settings}".strip(), **more}
    if options.password:
        fixed["password"] = options.password
    try:
        conninfo = make_conninfo(options.dsn, **{k: v for k, v in given.items() if k not in parts}, **fixed)
        return psycopg.connect(conninfo, autocommit=True)
    except (psycopg.Error, OSError) as exc:
        raise translated(exc, options, waits=waits) from exc


def translated(
    error: BaseException, options: PostgresSourceOptions, *, waits: bool = False, table: str = "a table"
) -> SourceError:
    """Return our exception for one of the client library's; `table`: what is read.

    `waits`: where others have taken the server's slots or connections it is tried again, as one that is away.
    """
    text = _message(error)
    code = getattr(error, "sqlstate", None) or ""
    if waits and (code in _TAKEN_CODES or (not code and "max_wal_senders" in text)):
        taken = code or "53300"
        why = f"{text} ({taken}). {_remedy(taken, text, options.slot_name)}"
        return SourceUnavailableError(where=options.where, why=why)
    if code == _LOCKED:
        return busy(options.where, f"{table} stays locked there ({text})")
    if not code and _LOGIN.search(text) and "shutting down" not in text:
        return SourceSetupError(why=f"{options.where} says {text!r}", remedy=_login_remedy(text))
    if code in _SETUP_CODES or code[:2] in _SETUP_CLASSES:
        return SourceSetupError(
            why=f"{options.where} says {text!r} ({code})", remedy=_remedy(code, text, options.slot_name)
        )
    return SourceUnavailableError(where=options.where, why=text)


def undecodable(error: psycopg.Error, options: PostgresSourceOptions) -> SourceSetupError:
    """Return the error for a transaction at which the server's own decoding fails."""
    place = "; ".join([one for one in (error.sqlstate, error.diag.context) if one])
    return SourceSetupError(
        why=f"{options.where} cannot decode a transaction: {_message(error)!r} ({place})",
        remedy="Where the server can be made to decode it, start capture again. Else drop the slot: "
        f"{slot_dropping(options.slot_name)}. {BEGIN_ANEW}",
    )


def _message(error: BaseException) -> str:
    primary = error.diag.message_primary if isinstance(error, psycopg.Error) else None
    if primary and isinstance(error, psycopg.Error):
        return " ".join([one for one in (primary, error.diag.message_detail) if one])
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__


def _login_remedy(text: str) -> str:
    if "max_wal_senders" in text:
        return _remedy("53300", text, "")
    if "replication" in text:
        return "Run at the source: ALTER ROLE <user> REPLICATION; and see that pg_hba.conf lets it in"
    if "certificate" in text or "SSL" in text:
        return "Check sslmode, sslrootcert and the host's name in the option dsn, and the server's certificate"
    return "Check the option dsn, the password, whether it has expired (VALID UNTIL), and the server's pg_hba.conf"


def _remedy(code: str, text: str, slot: str) -> str:
    match code:
        case "42501":
            return (
                "Run at the source: ALTER ROLE <user> REPLICATION, and GRANT SELECT on the captured tables to it; a "
                "publication is made by an owner of its tables with CREATE on the database, one of all tables by a "
                "superuser"
            )
        case "53400":
            return "Raise max_replication_slots at the source and restart it, or drop a slot that nobody needs"
        case "53300":
            return "Raise max_wal_senders or max_connections at the source and restart it"
        case "55006":
            return f"Another program reads from the slot {slot}; stop it, or set the option slot to a name of its own"
        case "55000" if "wal_level" in text:
            return "Run at the source: ALTER SYSTEM SET wal_level = 'logical', and restart it"
    return "Mend it at the source, then start capture again"


class PostgresControl:
    """The session beside the stream, for questions to the server. Opened when needed, opened again when lost.

    Threads: one.
    """

    def __init__(self, options: PostgresSourceOptions) -> None:
        self._options = options
        self._connection: psycopg.Connection[Any] | None = None

    def rows(self, sql: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Run one statement, its parameters as $1. A session that was lost while idle is replaced once.

        One that was lost in a transaction is not: what was said in it before would be gone. Raises:
        SourceUnavailableError, SourceSetupError.
        """
        replaceable = self._connection is not None and self._connection.info.transaction_status not in _IN_TRANSACTION
        try:
            return self._run(sql, parameters)
        except SourceUnavailableError:
            self.close()
            if not replaceable:
                raise
            return self._run(sql, parameters)

    def _run(self, sql: str, parameters: Sequence[object]) -> list[tuple[Any, ...]]:
        if self._connection is None:
            self._connection = connect(self._options)
        try:
            with psycopg.RawCursor(self._connection) as cursor:
                cursor.execute(sql, parameters or None)
                return cursor.fetchall() if cursor.description is not None else []
        except (psycopg.Error, OSError) as exc:
            raise translated(exc, self._options) from exc

    def close(self) -> None:
        """Close the session; the next question opens another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(psycopg.Error):
                connection.close()
