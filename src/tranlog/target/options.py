"""How to reach a target and how to write to it; the one function that opens it; and what differs by kind before that.

Owns the options, which travel to Spark's tasks, and the choice of dialect and session by kind. Drivers are imported
only when a target of their kind is opened.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any, Literal

from tranlog.change import TableMap
from tranlog.errors import ConfigError, TargetUnavailableError
from tranlog.option_kinds import ABOVE_0, Bounds, check_bounds, check_kinds
from tranlog.servers.mariadb_address import read_url
from tranlog.target.dialect import Dialect
from tranlog.target.target import Target

TargetKind = Literal["sqlite", "postgres", "mariadb", "null"]
_IN_FILE = {"sqlite": "SQLite", "null": "null"}
"""The kinds that are a file, as messages have them."""
_SERVERS = ("postgres", "mariadb")
EXAMPLES: Mapping[TargetKind, Mapping[str, str]] = {
    "sqlite": {"path": "target.db"},
    "postgres": {"dsn": "postgresql://postgres@127.0.0.1:5432/postgres", "user": "postgres"},
    "mariadb": {"dsn": "mariadb://root@127.0.0.1:3306/tranlog", "user": "root"},
    "null": {"path": "positions.db"},
}
"""What `tranlog init` shows for a target of each kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetOptions:
    """Where a target is, and how changes are applied there. Picklable; its repr shows no password."""

    kind: TargetKind
    """What it is; `null` reads and decodes everything and keeps only its position, to try a pipeline."""
    path: str = field(default="", metadata={"path": True, "only": tuple(_IN_FILE)})
    """The database file, made if it is missing; a null target's has its positions alone."""
    dsn: str = field(default="", repr=False, metadata={"only": _SERVERS})
    """PostgreSQL: `postgresql://user:password@host:port/database`, or any connection string of libpq's. MariaDB:
    `mariadb://user:password@host:port/database`; the database holds tranlog's own tables."""
    ddl: Literal["stop", "ignore", "follow"] = field(
        default="stop",
        metadata={
            "default": "`follow` where [source] names another kind of database, else `stop`",
            "example": "ignore",
        },
    )
    """What to do with a recorded statement. `stop`: run it where source and target are of one kind (from a
    PostgreSQL only TRUNCATE, not what its event trigger records), else stop and name it. `ignore`: pass over DDL,
    counted; the first is warned of. Then tables are the operator's. A statement that changes rows (TRUNCATE, a
    statement in a row's place) is never passed over, nor is DDL that takes rows away which are still here (DROP TABLE,
    a partition's end, CREATE of a table that is here): that stops, and says so. `follow`: a table that is missing is
    made from the table map of its first change; a column is added while its table has no rows, or where the source's
    statement says that it is NULL in all of them, takes NULL where the source's does, and gets a wider type where the
    source's has; of a statement from another kind new names of tables and columns are carried out, what takes data away
    is for `ddl_loss`, and it is passed over where the next rows tell what it did, else it stops; a TRUNCATE deletes the
    rows of the same tables. docs/following.md has each change."""
    ddl_loss: Literal["hold", "ignore", "stop"] = "hold"
    """With `follow`, what to do with DDL from another kind that takes data away: a dropped column, a dropped table with
    rows, a type that may be narrower than the one here. `hold`: table, column and type stay as they are
    here, and a column takes NULL from then on where that can be done; a warning and `tranlog status` name them.
    `ignore`: the same, but nothing is changed here, not even whether a column takes NULL. `stop`: stop at it."""
    net_effect: bool = False
    """Collapse the changes of one key in a target transaction to their net effect: faster on hot rows, for targets
    whose triggers and foreign keys do not mind. Changes of tables without a key, changes with NULL in the key, deletes
    and changes of a key on which foreign keys act (ON DELETE CASCADE, SET NULL, SET DEFAULT), and statements are never
    collapsed; what a target's constraints refuse is applied again in the log's order."""
    triggers: Literal["fire", "off"] = "fire"
    """Whether the target's own triggers run while changes are applied. `off` needs a superuser at PostgreSQL, and
    turns off foreign keys there too; SQLite's foreign keys are always off, since their cascades arrive as rows. MariaDB
    cannot turn triggers off."""
    engine: Literal["refuse", "innodb"] = field(default="refuse", metadata={"only": ("mariadb",)})
    """MariaDB: tables of an engine without transactions (MyISAM, Aria, MEMORY, CSV), whose rows would double when a
    target transaction is tried again. `refuse`: named at the start where the log's next transactions name them, else
    when the first of their rows comes. `innodb`: tables that the log's DDL makes so are made InnoDB here; others are
    refused."""
    lock_timeout_s: float = 10.0
    """Seconds to wait for a lock, on a row or a table, at SQLite for the write lock, before who has it is named and the
    channel pauses. Long enough for any target transaction. A replaced task that has it is ended much sooner:
    `position.FREEING_AFTER_S`."""
    idle_timeout_s: float = field(default=60.0, metadata={"only": _SERVERS})
    """Seconds after which the server ends a session that has stopped inside a transaction; 0: never. A server's."""
    connect_timeout_s: float = field(default=10.0, metadata={"only": _SERVERS})
    """Seconds to wait for a connection to a server."""

    @property
    def in_file(self) -> bool:
        """Whether this target is a file at `path`, not a server."""
        return self.kind in _IN_FILE

    def absolute(self) -> TargetOptions:
        """Return the same target for a process in another folder: a relative path counts from here."""
        return replace(self, path=os.path.abspath(self.path)) if self.path else self

    def with_login(self, *, user: str | None, password: str | None) -> TargetOptions:
        """Return the same target with a login in its connection string; None leaves what stands there.

        Raises ConfigError, TargetUnavailableError where a library is missing.
        """
        given: dict[str, Any] = {n: value for n, value in (("user", user), ("password", password)) if value is not None}
        if not given:
            return self
        if self.in_file:
            name, shown = ("user", user) if password is None else ("password", "(hidden)")
            raise _refuse(name, shown, f"a {self.kind} target has none")
        if self.kind == "mariadb":
            url = read_url(self.dsn)
            _check_user(user, url.user)
            return replace(self, dsn=replace(url, **given).url())
        try:
            from psycopg import ProgrammingError
            from psycopg.conninfo import conninfo_to_dict, make_conninfo
        except ImportError as exc:
            raise TargetUnavailableError(
                where="[target]", why="the library psycopg is not installed: `pip install 'tranlog[postgres]'`"
            ) from exc
        try:
            _check_user(user, conninfo_to_dict(self.dsn).get("user"))
            return replace(self, dsn=make_conninfo(self.dsn, **given))
        except ProgrammingError as exc:
            why = "not a connection string of PostgreSQL's; it reads postgresql://user@host:port/database"
            raise _refuse("dsn", "(hidden)", why) from exc

    def check(self) -> None:
        """Refuse what cannot be. Raises ConfigError."""
        check_kinds(self, prefix="target.")
        if self.kind == "sqlite" and not self.path:
            raise _refuse("path", None, "a SQLite target needs the path of its database file")
        if self.kind == "null" and not self.path:
            raise _refuse("path", None, "a null target needs the path of a file for its positions")
        if self.in_file and self.dsn:
            raise _refuse("dsn", None, f"a {_IN_FILE[self.kind]} target has a path, and no dsn")
        if self.in_file and (self.path.startswith(":") or "\0" in self.path):
            raise _refuse("path", self.path, "not a file that several processes can open")
        if self.kind == "postgres" and not self.dsn:
            raise _refuse("dsn", None, "a PostgreSQL target needs postgresql://user:password@host:port/database")
        if self.kind == "mariadb":
            if not self.dsn:
                raise _refuse("dsn", None, "a MariaDB target needs mariadb://user:password@host:port/database")
            read_url(self.dsn)
            if self.triggers == "off":
                raise _refuse("triggers", "off", "MariaDB cannot turn its triggers off; drop them at the target")
        if not self.in_file and self.path:
            raise _refuse("path", self.path, f"a {self.kind} target has a dsn, and no path")
        check_bounds(self, _BOUNDS, prefix="target.")


_BOUNDS: Bounds = (
    ("lock_timeout_s connect_timeout_s", ABOVE_0, 86_400, "seconds, above 0 and at most a day"),
    ("idle_timeout_s", 0, 86_400, "seconds, at most a day; 0 turns it off"),
)


def _refuse(option: str, value: object, why: str) -> ConfigError:
    return ConfigError(option=f"target.{option}", value=value, why=why)


def _check_user(user: str | None, known: object) -> None:
    if user is not None and known not in (None, "", user):
        raise _refuse("user", user, f"the dsn names the user {known!r}; give one of them")


def is_there(options: TargetOptions) -> bool:
    """Whether a target can hold a position at all: looking at a file that is not there would make it."""
    return not options.in_file or os.path.exists(options.path)


def open_target(options: TargetOptions) -> Target:
    """Connect to a target. Raises ConfigError (a missing library among it), TargetUnavailableError."""
    from tranlog.target.database import open_database

    options.check()
    if options.kind == "sqlite":
        from tranlog.target.sqlite import SqliteSession

        return open_database(options, _dialect(options.kind), SqliteSession, where=options.path)
    if options.kind == "null":
        from tranlog.target.null import open_null

        return open_null(options)
    if options.kind == "mariadb":
        from tranlog.target.mariadb import MariadbSession

        return open_database(options, _dialect(options.kind), MariadbSession, where=read_url(options.dsn).describe())
    from tranlog.target.postgres import PostgresSession, where_of

    return open_database(options, _dialect(options.kind), PostgresSession, where=where_of(options))


def identity(options: TargetOptions) -> str:
    """Return what names the file, the database or the server of a target. Raises as `open_target`."""
    if options.in_file:
        return os.path.realpath(options.path)
    target = open_target(options)
    try:
        return target.positions.identity()
    finally:
        target.close()


def has_sequences(kind: TargetKind) -> bool:
    """Whether rows of a sequence go into a sequence at that kind of target."""
    return kind != "null" and _dialect(kind).has_sequences


def is_own(table: TableMap) -> bool:
    """Whether a table has a name by which a target keeps positions."""
    from tranlog.target.position import OUR_TABLES

    return table.table.lower() in OUR_TABLES


def runs_ddl_of(kind: TargetKind) -> frozenset[str]:
    """Return from which kinds of source that kind of target may run the recorded statements."""
    return frozenset() if kind == "null" else _dialect(kind).runs_ddl_of


def create_statements(kind: TargetKind, table: TableMap) -> list[str]:
    """Return the statements that make a table at a target of that kind, none at one that keeps no rows."""
    return [] if kind == "null" else list(_dialect(kind).create_table(table))


def default_ddl(kind: TargetKind, source_kind: str) -> Literal["stop", "follow"]:
    """Return the option `ddl` of that kind of target where a configuration does not say it."""
    databases = {"sqlite", *_SERVERS}
    return "follow" if source_kind in databases - {kind} and kind in databases else "stop"


def _dialect(kind: TargetKind) -> Dialect:
    found: Dialect = getattr(import_module(f"tranlog.target.{kind}_dialect"), kind.upper())
    return found
