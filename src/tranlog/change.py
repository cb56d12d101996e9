"""What a transaction is made of: table maps, row changes, statements, and the fragments that the log stores.

Owns the values that travel from a source to a target. Their bytes are `payload`'s, their place in the log is
`log`'s. The hard idea: a *fragment* is the unit that moves. A small transaction is one fragment with `last` set;
a large one is a run of fragments, none of which says anything about the whole except the last.

Source: docs/format.md.
"""

from __future__ import annotations

import enum
from typing import TypeAlias

import msgspec

from tranlog.types import LogicalType, Value

CHECKS = ("foreign_key_checks", "unique_checks", "check_constraint_checks")
"""What a session of MariaDB's may switch off for its rows."""


class Op(enum.IntEnum):
    """What happened to a row. Part of the format, numbered as in the ancestor's OneRowChange.action."""

    INSERT = 1
    DELETE = 2
    UPDATE = 3


class Column(msgspec.Struct, frozen=True, kw_only=True):
    """One column of a table as the source declares it.

    `source_type` is the source's own spelling, with its arguments: `decimal(10,2)`, `varchar(20)`. `length` is
    the declared length in the type's own unit (characters, bytes, bits), 0 where there is none.
    """

    name: str
    source_type: str
    logical: LogicalType
    unsigned: bool = False
    nullable: bool = True
    charset: str | None = None
    length: int = 0


class ForeignKey(msgspec.Struct, frozen=True, kw_only=True):
    """A reference: column indexes here, and the table and column names there."""

    columns: tuple[int, ...]
    ref_schema: str
    ref_table: str
    ref_columns: tuple[str, ...]


class TableMap(msgspec.Struct, frozen=True, kw_only=True, cache_hash=True):
    """A table as it was when a transaction touched it; rows are tuples in the order of `columns`.

    Key members are column indexes. An empty `primary_key` means the table has none.
    """

    schema: str
    table: str
    columns: tuple[Column, ...]
    primary_key: tuple[int, ...] = ()
    unique_keys: tuple[tuple[int, ...], ...] = ()
    foreign_keys: tuple[ForeignKey, ...] = ()
    sequence: bool = False
    """Whether it is a sequence: an INSERT gives its one row another value, and no rollback takes that back."""
    unchecked: tuple[str, ...] = ()
    """Which of `CHECKS` the source's session had off for these rows; it stands in a payload's options."""
    older: tuple[tuple[str, str], ...] = ()
    """Columns that this transaction is the first to have, each with what rows from before them hold: a literal, as
    `table_edits.AddedColumn` has it, empty for NULL; it stands in a payload's options."""

    @property
    def name(self) -> str:
        """`schema.table`, for messages and maps."""
        return f"{self.schema}.{self.table}"

    def key_of(self, row: tuple[Value, ...]) -> tuple[Value, ...]:
        """Return the key's values in `row`; the whole row where the table has no primary key."""
        return tuple([row[i] for i in self.primary_key]) if self.primary_key else row


class RowChange(msgspec.Struct, frozen=True, gc=False):
    """One row inserted, updated or deleted, with full images.

    `before` is None for an INSERT, `after` is None for a DELETE; else each is one value per column. Nothing in it can
    lead back to it, so the collector of cycles need not look at the millions.
    """

    table: TableMap
    op: Op
    before: tuple[Value, ...] | None
    after: tuple[Value, ...] | None


class Statement(msgspec.Struct, frozen=True, kw_only=True):
    """DDL or another statement, recorded as text at its place among the row changes; never parsed.

    `options` are the session settings that it ran under, in the source's order. `timestamp` is ms since 1970.
    """

    schema: str
    sql: str | bytes
    ddl: bool
    timestamp: int = 0
    error_code: int = 0
    options: tuple[tuple[str, str], ...] = ()


Change: TypeAlias = RowChange | Statement

TableName: TypeAlias = tuple[str, str]
"""(schema, table)"""

Options: TypeAlias = tuple[tuple[str, str], ...]
"""Ordered (name, value) pairs; of equal names the first counts."""


class Fragment(msgspec.Struct, frozen=True, kw_only=True):
    """What a source hands over and a log appends: one transaction, or one part of a large one.

    `tstamp` is the commit time at the source, ms since 1970 UTC; it orders nothing. `tables` names the tables
    touched, None where they are too many to list. Of several fragments only the last speaks for the whole:
    its `event_id`, `shard_id`, `tables` and `write_set` (see `write_set`); earlier ones carry the shard `#UNKNOWN`.
    """

    source_id: str
    event_id: str
    shard_id: str
    tstamp: int
    tables: tuple[TableName, ...] | None
    payload: bytes
    last: bool = True
    write_set: bytes = b""


NOOP = "noop"
"""Metadata name that marks a transaction without content."""
HEARTBEAT = "heartbeat"
"""Metadata name of a heartbeat; its value is the heartbeat's name."""


class Payload(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A fragment's content: what `payload.decode` returns."""

    metadata: Options = ()
    options: Options = ()
    changes: tuple[Change, ...] = ()

    def is_noop(self) -> bool:
        """Whether this is a no-op: a transaction that only has a seqno."""
        return not self.changes and any(name == NOOP for name, _ in self.metadata)
