"""The schema as capture knows it: looked at whenever it has changed.

Owns when it is read again, what capture refuses and warns of, and the shard rule that follows from it. What a foreign
program did to the tables is followed where triggers capture it (`foreign_ddl`), and refused elsewhere.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import apsw

from tranlog.clock import Clock
from tranlog.errors import ForeignWriterError, SourceSetupError
from tranlog.shard import UNKNOWN_SHARD, ShardRule, ShardRuleKind
from tranlog.source.sqlite.foreign_ddl import find_changes, follow_foreign, is_changed
from tranlog.source.sqlite.opening import db_transaction
from tranlog.source.sqlite.raw import SCHEMA
from tranlog.source.sqlite.schema import SqliteSchema, check_tables, read_schema, schema_version

logger = logging.getLogger(__name__)


class SourceSchema:
    """The schema of the database at `path`. Not for threads."""

    def __init__(self, path: str, rule: ShardRule, warned: set[str], clock: Clock) -> None:
        self.rule = rule
        """The shard rule, under the foreign keys as they are."""
        self.follows = False
        """Whether what foreign programs did is followed, not only looked at."""
        self._path = path
        self._mapping = rule.mapping
        self._warned = warned
        self._clock = clock
        self._known: SqliteSchema | None = None

    @property
    def version(self) -> int:
        """The number of the schema that was seen last."""
        assert self._known is not None, "look() was not called"
        return self._known.version

    def forget(self) -> None:
        """Have the next look read the schema, whatever its number."""
        self._known = None

    def look(self, db: apsw.Connection) -> None:
        """Read the schema where it changed: follow or refuse what a foreign program did, warn of what is not captured.

        Raises ForeignWriterError, SourceSetupError.
        """
        if self._known is not None and schema_version(db) == self._known.version:
            return
        with db_transaction(db, write=False):
            schema = self._checked(db)
        if schema is None:
            with db_transaction(db, write=True):
                follow_foreign(db, self._path, self._clock.now_ms())
                schema = read_schema(db)
        for plan in schema.plans.values():
            if not plan.captured:
                raise SourceSetupError(
                    why=f"table {plan.map.name} is WITHOUT ROWID and has a virtual generated column: SQLite does not "
                    "tell its changes",
                    remedy="Make the column STORED, or the table an ordinary one",
                )
            if not plan.map.primary_key and plan.map.table not in self._warned:
                self._warned.add(plan.map.table)
                logger.warning(
                    "table without primary key: its rows are matched by all their values table=%s", plan.map.name
                )
        for name, what in schema.left_out().items():
            if name not in self._warned:
                self._warned.add(name)
                logger.warning("%s is not captured, nor what it stores table=%s.%s", what, SCHEMA, name)
        self._known = schema
        if self.rule.kind is ShardRuleKind.MAP:
            self.rule = ShardRule(kind=ShardRuleKind.MAP, mapping=self._joined_map(schema))

    def _checked(self, db: apsw.Connection) -> SqliteSchema | None:
        """Return the schema, None where a foreign program's changes are to be followed first."""
        schema = read_schema(db)
        if schema.by_trigger:
            if is_changed(db, schema):
                find_changes(db, schema, self._path)
                return None if self.follows else schema
        else:
            if not schema.unguarded:
                check_tables(db, self._path)
            _refuse_unguarded(schema, self._path)
        return schema

    def _joined_map(self, schema: SqliteSchema) -> Mapping[str, str]:
        """Return the user's map without the tables that foreign keys join and the map parts: those become serial."""
        rule = ShardRule(kind=ShardRuleKind.MAP, mapping=self._mapping)
        shards: dict[str, set[str]] = {}
        for (schema_name, table), group in schema.rule.groups.items():
            shards.setdefault(group, set()).add(rule.shard_of(schema_name, table))
        mapping = dict(self._mapping)
        for (schema_name, table), group in schema.rule.groups.items():
            if len(shards[group]) > 1:
                mapping[f"{schema_name}.{table}"] = UNKNOWN_SHARD
                if f"map {table}" not in self._warned:
                    self._warned.add(f"map {table}")
                    logger.warning(
                        "shard map parts tables that foreign keys join, their transactions are serial table=%s.%s",
                        schema_name,
                        table,
                    )
        return mapping


def _refuse_unguarded(schema: SqliteSchema, path: str) -> None:
    for name in sorted(schema.unguarded):
        raise ForeignWriterError(
            table=f"{SCHEMA}.{name}",
            why=f"a foreign program made it, and may have written it, in {path}",
            remedy="Copy its rows to the target, then adopt it by tranlog.source.sqlite.install(path). Write through "
            "tranlog.source.sqlite.connect",
        )
