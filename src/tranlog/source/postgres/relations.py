"""The tables of a stream: from their definitions, types and keys to what encodes their rows.

Owns the current definition of each table and the shard rule that its foreign keys make. The hard idea: the server says
once in a stream what a table is like and refers to it by number from then on, so a definition counts until the next
one, also one that came inside a transaction that is passed over.

Source: PostgreSQL's manual, "Logical Replication Message Formats", Relation and Type.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

import msgspec

from tranlog.change import Column, ForeignKey, TableMap
from tranlog.shard import ShardRule, ShardRuleKind, foreign_key_groups
from tranlog.source.postgres.catalog import TELLS_SCHEMAS, PostgresCatalog, SeenTable, TableKeys
from tranlog.source.postgres.connection import PostgresSourceOptions
from tranlog.source.postgres.messages import RelationMessage, TypeMessage
from tranlog.source.postgres.position import WalPosition
from tranlog.source.postgres.rows import PostgresTableLayout
from tranlog.source.postgres.values import PostgresType, column_of, value_encoder
from tranlog.table_edits import literal_of

logger = logging.getLogger(__name__)

_FULL: Final = "f"
_NOTHING: Final = "n"


Older: TypeAlias = tuple[tuple[str, str], ...]
"""What `TableMap.older` is."""


class Definition(NamedTuple):
    """A table, with what is known of its new columns. `moved`: a name that was another's before, or empty."""

    table: TableMap
    moved: str


class _Notes(msgspec.Struct, frozen=True, kw_only=True):
    """What a server's tables, by their OIDs, were like when they were last in what was released at an LSN."""

    system: str
    lsn: int
    tables: dict[int, SeenTable]


class Relations:
    """The definitions that a stream has told so far. Threads: one."""

    def __init__(self, options: PostgresSourceOptions, catalog: PostgresCatalog) -> None:
        self._options = options
        self._catalog = catalog
        self._names: dict[int, PostgresType] = {}
        self._layouts: dict[int, PostgresTableLayout] = {}
        self._rule = options.shard_rule
        self._keys_known = False
        self._keyless: set[str] = set()
        self._seen: dict[int, SeenTable] | None = None
        self._notes: _Notes | None = None
        self._noted = False
        self._renamed_at: int | None = None

    def take_notes(self, raw: bytes) -> None:
        """Take what `notes` returned last for the log."""
        try:
            self._notes = msgspec.json.decode(raw, type=_Notes)
        except msgspec.DecodeError as exc:
            logger.warning("What the source knew is of another version, and is not used. why=%s", exc)

    def notes(self, released: WalPosition) -> bytes | None:
        """Return what all tables were like when they were last here; None: as it was returned or taken last."""
        if self._noted:
            return None
        self._noted = True
        return msgspec.json.encode(_Notes(system=released.system, lsn=released.lsn, tables=self._all_seen()))

    def forget(self, position: WalPosition) -> None:
        """Forget all: a new stream tells everything again, from a position on.

        What has been added since the first one, or since the log's notes, is a new column.
        """
        notes = self._notes
        if self._seen is not None:
            self._seen = self._all_seen()
        elif notes is not None and notes.system == position.system and notes.lsn <= position.lsn:
            self._seen, self._noted = notes.tables, True
        else:
            self._seen = self._catalog.seen()
        self._names.clear()
        self._layouts = {}
        self._keys_known = False
        self._renamed_at = None
        self._catalog.forget()

    @property
    def layouts(self) -> dict[int, PostgresTableLayout]:
        """The tables by their numbers. It never changes: a definition makes another one."""
        return self._layouts

    def restore(self, known: dict[int, PostgresTableLayout]) -> None:
        """Go back to what `layouts` was."""
        self._layouts = known

    def look_at_schemas(self, lsn: int) -> None:
        """Look whether tables are in a schema of another name than they were defined with.

        A server before 16 goes on with the old name in this stream. From `lsn` on a new one says the new name.
        """
        if self._renamed_at is not None or self._catalog.version >= TELLS_SCHEMAS:
            return
        found = self._catalog.schemas(self._layouts)
        defined = {oid: layout.table.schema for oid, layout in self._layouts.items()}
        renamed = {(defined[oid], now) for oid, now in found.items() if now != defined[oid]}
        if renamed:
            self._renamed_at = lsn
            said = ", ".join([f"{before} to {now}" for before, now in sorted(renamed)])
            logger.warning("Tables have another schema now: the source is connected to anew. schemas=%s", said)

    def renamed(self, lsn: int) -> bool:
        """Whether a new stream is wanted at `lsn`, since this one goes on with old names."""
        return self._renamed_at is not None and lsn >= self._renamed_at

    def note_type(self, message: TypeMessage) -> None:
        """Take the name of a type, which the catalogue may not have any more."""
        self._names[message.oid] = PostgresType(schema=message.schema, name=message.name)

    def define(self, message: RelationMessage) -> Definition:
        """Take a table's definition; return what it says of a table that has been here.

        Raises SourceSetupError, SourceUnavailableError.
        """
        full_wanted = self._options.identity != "key"
        lacking = self._catalog.without_full(message.oid) if full_wanted else []
        if self._options.identity == "set":
            for schema, name in lacking:
                self._catalog.set_identity(schema, name)
        else:
            self._catalog.refuse_identities(lacking)
        found = self._catalog.types((column.type_oid, column.typmod) for column in message.columns)
        keys = self._catalog.keys(message.oid)
        columns = []
        for column in message.columns:
            kind = found.get((column.type_oid, column.typmod)) or self._names.get(column.type_oid)
            if kind is None:
                kind = PostgresType(schema="", name=f"type {column.type_oid}")
            columns.append(column_of(column.name, kind, nullable=column.name not in keys.not_null))
        primary = keys.primary
        if message.identity != _FULL:
            primary = tuple(column.name for column in message.columns if column.key and message.identity != _NOTHING)
        table = table_map(message.schema, message.table, columns, primary=primary, keys=keys)
        if not table.primary_key and table.name not in self._keyless:
            self._keyless.add(table.name)
            logger.warning(
                "A table has no primary key: its rows are found by all their values, which is slow. table=%s",
                table.name,
            )
        before = self._before(message.oid)
        older, number, named = self._new_columns(message, table, None if before is None else before.last)
        moved = self._moved(table, before, named)
        layout = PostgresTableLayout(
            column_number=number,
            named=named if before is None else before.named | named,
            table=table,
            encoders=tuple(value_encoder(column) for column in table.columns),
            keys=tuple(column.key for column in message.columns),
            by_key=not full_wanted,
        )
        self._layouts = {**self._layouts, message.oid: layout}
        self._noted = self._noted and before == _seen(layout)
        return Definition(msgspec.structs.replace(table, older=older), moved)

    def _moved(self, table: TableMap, before: SeenTable | None, named: dict[str, int]) -> str:
        """Return a name in a definition that was another's before it, as a message has it; empty for none."""
        name = table.schema, table.table
        if before is None or before.name != name:
            return f"the name of {table.name}" if any(one.name == name for one in self._all_seen().values()) else ""
        for column, number in named.items():
            if before.named.get(column, number) != number:
                return f"the name of column {column} of {table.name}"
        return ""

    def _before(self, oid: int) -> SeenTable | None:
        layout = self._layouts.get(oid)
        return (self._seen or {}).get(oid) if layout is None else _seen(layout)

    def _all_seen(self) -> dict[int, SeenTable]:
        return (self._seen or {}) | {oid: _seen(layout) for oid, layout in self._layouts.items()}

    def _new_columns(
        self, message: RelationMessage, table: TableMap, known: int | None
    ) -> tuple[Older, int, dict[str, int]]:
        """Return what `TableMap.older` is, the number of the table's last column, and the columns' by their names.

        By its number a column that was renamed is no new one. Where the catalogue is ahead of the stream by a column
        that is gone, or has another name, none that it has is a new one any more, and no name says a number.
        """
        types = {column.name: column.source_type for column in table.columns}
        found = self._catalog.numbered_columns(message.oid)
        there = [one for one in found if one.name in types]
        named = {one.name: one.number for one in there}
        number = max([known or 0, *[one.number for one in (there if len(there) == len(types) else found)]])
        if list(named) != list(types):
            named = {}  # the stream has columns in the order of their numbers
        if known is None:
            return (), number, named
        older = []
        for one in there:
            literal = literal_of(one.missing or "", types[one.name]) if one.has_missing else ""
            if one.number > known and (literal or (one.never_rewritten and not one.has_missing)):
                older.append((one.name, literal))
        return tuple(older), number, named

    def rule(self, *, anew: bool) -> ShardRule:
        """Return the shard rule; `anew`: tables were defined, so foreign keys may be others."""
        if self._options.shard_rule.kind is ShardRuleKind.TABLE and (anew or not self._keys_known):
            groups = foreign_key_groups(self._catalog.foreign_key_edges())
            self._rule = ShardRule(kind=ShardRuleKind.TABLE, groups=groups)
            self._keys_known = True
        return self._rule


def _seen(layout: PostgresTableLayout) -> SeenTable:
    return SeenTable((layout.table.schema, layout.table.table), layout.column_number, layout.named)


def table_map(
    schema: str, table: str, columns: Sequence[Column], *, primary: Sequence[str], keys: TableKeys
) -> TableMap:
    """Return a table's map; a key counts where the table has all its columns."""
    place = {column.name: at for at, column in enumerate(columns)}

    def places(names: Sequence[str]) -> tuple[int, ...]:
        return tuple(place[name] for name in names) if all(name in place for name in names) else ()

    return TableMap(
        schema=schema,
        table=table,
        columns=tuple(columns),
        primary_key=places(primary),
        unique_keys=tuple(found for names in keys.unique if (found := places(names))),
        foreign_keys=tuple(
            ForeignKey(columns=found, ref_schema=other_schema, ref_table=other, ref_columns=there)
            for here, other_schema, other, there in keys.foreign
            if (found := places(here))
        ),
    )
