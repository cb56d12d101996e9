"""An event as the ancestor serializes it: one fragment of a transaction, or a filtered range, and its changes.

Owns the types. Their bytes are `payload`'s, the cells of rows are `values`'s, their text is `text`'s. Optional fields
keep whether they were written (None), so that what is read and written again is the same bytes.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from tranlog.change import Op, Options
from tranlog.tungsten.records.values import Cell

DEFAULT_SHARD: Final = "#DEFAULT"
"""What the payload's own header says of every event; the shard stands in the record and in the metadata."""
UNKNOWN_SHARD: Final = "#UNKNOWN"
SHARD_OPTION: Final = "shard"
CHARSET_OPTION: Final = "##charset"
LAST_INSERT_ID: Final = 1
INSERT_ID: Final = 2


class StatementChange(msgspec.Struct, frozen=True, kw_only=True):
    """A statement: its text in `query`, or its bytes in `raw_query` with the charset among the options."""

    schema: str | None = None
    timestamp: int | None = None
    query: str | None = None
    options: Options = ()
    error_code: int = 0
    raw_query: bytes | None = None


class ColumnSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A column; `index` counts from 1, `sql_type` is of java.sql.Types, `length` in bytes or characters."""

    index: int
    name: str | None = None
    sql_type: int
    signed: bool = True
    length: int = 0
    not_null: bool = False
    description: str | None = None


Row: TypeAlias = tuple[Cell, ...]


class TableChange(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of one table that changed in one way.

    `keys` holds a row per changed row for DELETE and UPDATE, `rows` for INSERT and UPDATE; the specs tell the columns.
    """

    schema: str
    table: str
    op: Op
    key_specs: tuple[ColumnSpec, ...] = ()
    column_specs: tuple[ColumnSpec, ...] = ()
    keys: tuple[Row, ...] = ()
    rows: tuple[Row, ...] = ()
    table_id: int | None = None


class RowChanges(msgspec.Struct, frozen=True, kw_only=True):
    """Row changes of one binlog event or trigger, with the session's options."""

    tables: tuple[TableChange, ...] = ()
    options: Options = ()


class RowId(msgspec.Struct, frozen=True, kw_only=True):
    """The id that a following statement inserts (INSERT_ID) or refers to (LAST_INSERT_ID)."""

    number: int
    kind: int | None = None


class FileFragment(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a file that LOAD DATA reads."""

    file_id: int
    raw: bytes
    schema: str | None = None


class FileQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The LOAD DATA statement of a file; `name_start` and `name_end` count characters of its text."""

    statement: StatementChange
    file_id: int
    name_start: int
    name_end: int


class FileDelete(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a file that LOAD DATA does not need any more. The ancestor's own writer loses these."""

    file_id: int


EventChange: TypeAlias = StatementChange | RowChanges | RowId | FileFragment | FileQuery | FileDelete


class EventHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The header inside the payload. Times in ms since 1970 UTC.

    `tstamp` is the commit time at the source, `serialized` the writer's wall clock. A filtered event stands for all
    from (seqno, fragno) up to (`seqno_end`, `fragno_end`), both included, and has no content.
    """

    seqno: int
    fragno: int = 0
    last_frag: bool = True
    tstamp: int
    serialized: int
    source_id: str
    epoch: int
    event_id: str
    shard_id: str = DEFAULT_SHARD
    filtered: bool = False
    seqno_end: int | None = None
    fragno_end: int | None = None

    @property
    def end(self) -> tuple[int, int] | None:
        """The (seqno, fragno) up to which a filtered range reaches; None for any other event."""
        if not self.filtered:
            return None
        seqno = self.seqno if self.seqno_end is None else max(self.seqno, self.seqno_end)
        return seqno, self.fragno if self.fragno_end is None else self.fragno_end


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One fragment of one transaction, or a filtered range."""

    header: EventHeader
    changes: tuple[EventChange, ...] = ()
    metadata: Options = ()
    options: Options = ()

    @property
    def shard_id(self) -> str:
        """The shard by the metadata, the first where there are several; `#UNKNOWN` without."""
        for name, value in self.metadata:
            if name == SHARD_OPTION:
                return value
        return UNKNOWN_SHARD


class JavaObject(msgspec.Struct, frozen=True):
    """A payload of the ancestor's JavaSerializer: kept as it is, never decoded."""

    raw: bytes

    def sentence(self) -> str:
        """Say to people what this is."""
        return (
            f"The payload is a serialized Java object of {len(self.raw)} bytes, written by the replicator's "
            "JavaSerializer: kept as it is, not decoded."
        )
