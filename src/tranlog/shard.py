"""Which shard a transaction belongs to: decided at capture, stored in the record's header.

Owns the rules `schema`, `table` and `map`, and the verdict `#UNKNOWN` for what spans shards or is DDL, which the
pipeline applies alone. The hard idea: a wrong answer here reorders dependent transactions at the target, so
everything that is not certainly inside one shard is serial.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tranlog.change import TableName

UNKNOWN_SHARD = "#UNKNOWN"
"""The shard of a transaction that touches several shards, none, or the schema itself: it is serial."""


class ShardRuleKind(enum.StrEnum):
    """How tables are grouped into shards."""

    SCHEMA = "schema"
    TABLE = "table"
    MAP = "map"


# Names of this module: looking a member up in its class costs more than the comparison.
_BY_SCHEMA, _BY_TABLE = ShardRuleKind.SCHEMA, ShardRuleKind.TABLE


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRule:
    """A rule with all that it needs to know.

    `groups` (rule `table`): the shard of each table that foreign keys join to another, from `foreign_key_groups`.
    `mapping` (rule `map`): from `schema.table` or `schema` to a shard; `*` is the default; what it does not name
    is `#UNKNOWN`.
    """

    kind: ShardRuleKind
    groups: Mapping[TableName, str] = field(default_factory=dict)
    mapping: Mapping[str, str] = field(default_factory=dict)

    def shard_of(self, schema: str, table: str) -> str:
        """Return the shard of one table."""
        kind = self.kind
        if kind is _BY_TABLE:
            return self.groups.get((schema, table)) or f"{schema}.{table}"
        if kind is _BY_SCHEMA:
            return schema or UNKNOWN_SHARD
        mapping = self.mapping
        return mapping.get(f"{schema}.{table}") or mapping.get(schema) or mapping.get("*") or UNKNOWN_SHARD


def foreign_key_groups(edges: Iterable[tuple[TableName, TableName]]) -> dict[TableName, str]:
    """Return the shard of each table that a foreign key touches; joined tables share the first one's name.

    `edges` are (referring table, referred table) over the source's whole graph; "first" is by (schema, table).
    """
    group: dict[TableName, set[TableName]] = {}
    for one, other in edges:
        joined, added = group.setdefault(one, {one}), group.setdefault(other, {other})
        if joined is added:
            continue
        if len(joined) < len(added):
            joined, added = added, joined
        joined |= added
        for table in added:
            group[table] = joined
    names: dict[int, str] = {}
    for joined in group.values():
        if id(joined) not in names:
            names[id(joined)] = ".".join(min(joined))
    return {table: names[id(joined)] for table, joined in group.items()}


class ShardTally:
    """Collects what one transaction touches and gives its verdict. One per transaction; not for threads."""

    __slots__ = ("_rule", "_shards", "_tables")

    def __init__(self, rule: ShardRule) -> None:
        self._rule = rule
        self._tables: set[TableName] = set()
        self._shards: set[str] = set()

    def touch(self, schema: str, table: str) -> None:
        """Note a row change of a table."""
        name = (schema, table)
        if name not in self._tables:
            self._tables.add(name)
            self._shards.add(self._rule.shard_of(schema, table))

    def verdict(self) -> str:
        """Return the one shard touched, or `#UNKNOWN` for several or none."""
        if len(self._shards) != 1:
            return UNKNOWN_SHARD
        return next(iter(self._shards))
