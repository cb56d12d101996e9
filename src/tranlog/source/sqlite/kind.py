"""SQLite as a kind of source: its options in the configuration, and what its outbox tells without a capture.

Owns the questions that `status` asks of the outbox. They are read-only, and find a database that is not prepared yet.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any, ClassVar, Final

import apsw

from tranlog.clock import Clock
from tranlog.errors import ConfigError, SourceUnavailableError
from tranlog.findings import CheckResult
from tranlog.shard import ShardRuleKind
from tranlog.source.kinds import CapturedUpTo, SourceKind, SourceObject, SourceStanding, checked_rule
from tranlog.source.sqlite.checks import check_columns, examine
from tranlog.source.sqlite.claim import OutboxPlace, place_of
from tranlog.source.sqlite.opening import looking, uninstall
from tranlog.source.sqlite.raw import OUTBOX_TABLE
from tranlog.source.sqlite.schema import GUARD_PREFIX, SOURCE_TABLE
from tranlog.source.sqlite.source import SqliteSource, SqliteSourceOptions
from tranlog.source.sqlite.tables import SqliteTables
from tranlog.source.sqlite.triggers import BY_TRIGGER, CAPTURE_PREFIX, held_bytes

logger = logging.getLogger(__name__)

_LAST: Final = (
    f"SELECT uuid, id, token FROM main.{SOURCE_TABLE}, main.{OUTBOX_TABLE} WHERE last ORDER BY id DESC LIMIT 1"
)
_CLAIM: Final = f"SELECT holder, count(id), max(id) FROM main.{SOURCE_TABLE} LEFT JOIN main.{OUTBOX_TABLE}"
_TRIGGERS: Final = (
    "SELECT name, tbl_name FROM main.sqlite_schema WHERE type = 'trigger' "
    f"AND (name GLOB '{GUARD_PREFIX}*' OR name GLOB '{CAPTURE_PREFIX}*') ORDER BY tbl_name, name"
)
_BY_TRIGGER_NOTE: Final = (
    "Triggers capture what foreign programs write: transactions that commit between two looks of capture become one, "
    "and rows that REPLACE removes are missed without PRAGMA recursive_triggers."
)
_WAITING: Final = (
    f"SELECT count(*), count(*) FILTER (WHERE last = {BY_TRIGGER}) FROM main.{OUTBOX_TABLE} WHERE last AND id > ?"
)


class SqliteKind(SourceKind[SqliteSourceOptions]):
    """A SQLite database whose writers fill an outbox; see SourceKind for what its methods do."""

    options = SqliteSourceOptions
    shard_examples: ClassVar = {
        "serial": ["main.ledger"],
        "channels": {"main.orders": 1},
        "keys": {"main.orders": "customer"},
    }

    def shard_fields(self, rule: ShardRuleKind | None, mapping: Mapping[str, str]) -> dict[str, Any]:
        return {"shard_rule": checked_rule(rule or self.default_rule, mapping), "shard_map": mapping}

    def open(self, options: SqliteSourceOptions) -> SqliteSource:
        source = SqliteSource(options)
        source.check()
        check_columns(options)
        return source

    def tables(self, options: SqliteSourceOptions) -> SqliteTables:
        return SqliteTables(options.path)

    def at_once(self, options: SqliteSourceOptions, only: Sequence[str]) -> SqliteTables:
        reader = SqliteTables(options.path, only)
        for name, what in reader.left_out.items():
            if name in only:
                reader.close()
                raise ConfigError(option="--tables", value=name, why=f"it is a {what}, and is not copied")
            if not only:
                logger.warning("%s is not copied, nor what it stores table=%s", what, name)
        return reader

    def identity(self, options: SqliteSourceOptions) -> str:
        return os.path.realpath(options.path)

    def examine(
        self, options: SqliteSourceOptions, clock: Clock, captured: CapturedUpTo | None
    ) -> Iterator[CheckResult]:
        return examine(options, captured)

    def event_id(self, options: SqliteSourceOptions) -> str:
        row = _read_outbox(options.path, _LAST)
        return "" if row is None else f"{row[0]}:{OutboxPlace(*row[1:]).text}"

    def standing(self, options: SqliteSourceOptions, captured: str) -> SourceStanding:
        found = place_of(captured)
        with _looking(options.path) as db:
            if not db.table_exists("main", OUTBOX_TABLE):
                return SourceStanding(waiting=0, retained_bytes=0)
            rows: list[Any] = db.execute(_WAITING, (0 if found is None else found[1].id,)).fetchall()
            size = held_bytes(db)
        ((waiting, written),) = rows
        note = _BY_TRIGGER_NOTE if options.by_trigger else ""
        return SourceStanding("", waiting, size, note, "rows" if written else "transactions")

    def follower(self, options: SqliteSourceOptions) -> str:
        found = _read_outbox(options.path, _CLAIM)
        return "" if found is None or found[0] is None else str(found[0])

    def installed(self, options: SqliteSourceOptions) -> list[SourceObject]:
        found = _read_outbox(options.path, _CLAIM)
        if found is None:
            return []
        holder, rows, last = found
        claimed = "no log follows it" if holder is None else f"for the log {holder}"
        waits = "empty" if last is None else f"{rows} rows, up to id {last}"
        listed = [
            SourceObject(kind="table", name=SOURCE_TABLE, configured=True, state=claimed),
            SourceObject(kind="table", name=OUTBOX_TABLE, configured=True, state=waits),
        ]
        for name, table in _read(options.path, _TRIGGERS):
            does = "captures" if name.startswith(CAPTURE_PREFIX) else "refuses"
            state = f"{does} what foreign programs write to {table}"
            listed.append(SourceObject(kind="trigger", name=name, configured=True, state=state))
        return listed

    def uninstall(self, options: SqliteSourceOptions) -> list[SourceObject]:
        found = self.installed(options)
        if found:
            uninstall(options.path)
        return found


KIND: Final = SqliteKind()


def _read_outbox(path: str, sql: str) -> Any:
    """Return one row of what is ours in a SQLite source, None where it is not prepared yet."""
    return next(iter(_read(path, sql)), None)


def _read(path: str, sql: str) -> list[Any]:
    with _looking(path) as db:
        return db.execute(sql).fetchall() if db.table_exists("main", OUTBOX_TABLE) else []


@contextmanager
def _looking(path: str) -> Iterator[apsw.Connection]:
    """Give a connection that reads. Raises SourceUnavailableError, for what SQLite refuses meanwhile too."""
    if not os.path.exists(path):
        raise SourceUnavailableError(where=path, why="there is no such file")
    try:
        with closing(looking(path)) as db:
            yield db
    except apsw.Error as exc:
        raise SourceUnavailableError(where=path, why=str(exc)) from exc
