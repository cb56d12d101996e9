"""SQLite as a kind of source: its options in the configuration, and what its outbox tells without a capture.

Owns the questions that `status` asks of the outbox. They are read-only, and find a database that is not prepared yet.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import closing
from typing import Any, ClassVar, Final

import apsw

from tranlog.errors import SourceUnavailableError
from tranlog.shard import ShardRuleKind
from tranlog.source.kinds import SourceKind, SourceStanding, checked_rule
from tranlog.source.sqlite.claim import OutboxPlace, place_of
from tranlog.source.sqlite.schema import OUTBOX_TABLE, SOURCE_TABLE
from tranlog.source.sqlite.source import SqliteSource, SqliteSourceOptions
from tranlog.source.sqlite.tables import SqliteTables

_LAST: Final = (
    f"SELECT uuid, id, token FROM main.{SOURCE_TABLE}, main.{OUTBOX_TABLE} WHERE last ORDER BY id DESC LIMIT 1"
)
_HELD: Final = f"SELECT count(*) FILTER (WHERE last AND id > ?), sum(length(changes)) FROM main.{OUTBOX_TABLE}"


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
        return source

    def tables(self, options: SqliteSourceOptions) -> SqliteTables:
        return SqliteTables(options.path)

    def event_id(self, options: SqliteSourceOptions) -> str:
        row = _read_outbox(options.path, _LAST)
        return "" if row is None else f"{row[0]}:{OutboxPlace(*row[1:]).text}"

    def standing(self, options: SqliteSourceOptions, captured: str) -> SourceStanding:
        found = place_of(captured)
        row = _read_outbox(options.path, _HELD, 0 if found is None else found[1].id)
        return SourceStanding(waiting=0, retained_bytes=0) if row is None else SourceStanding("", row[0], row[1] or 0)


KIND: Final = SqliteKind()


def _read_outbox(path: str, sql: str, *bindings: int) -> Any:
    """Return one row of what is ours in a SQLite source, None where it is not prepared yet."""
    if not os.path.exists(path):
        raise SourceUnavailableError(where=path, why="there is no such file")
    try:
        with closing(apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY)) as db:
            return db.execute(sql, bindings).fetchone() if db.table_exists("main", OUTBOX_TABLE) else None
    except apsw.Error as exc:
        raise SourceUnavailableError(where=path, why=str(exc)) from exc
