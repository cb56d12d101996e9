"""From the changes of one transaction to its fragments: the piece that every source shares.

Owns cutting at about 1 MiB, the shard verdict in the last fragment, and the list of tables. Pure; compiled, see
`tranlog.compiled`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import get_args

import msgspec

from tranlog.change import HEARTBEAT, NOOP, Change, Fragment, Op, Options, RowChange, Statement, TableMap, TableName
from tranlog.gaps import GAP, TableGap
from tranlog.payload import PayloadBuilder
from tranlog.row_bytes import encode_row
from tranlog.row_touches import RowTouches
from tranlog.shard import UNKNOWN_SHARD, ShardRule, ShardRuleKind, ShardTally
from tranlog.table_map import older_option
from tranlog.types import VALUE_TYPES, Unchanged, Value
from tranlog.write_item import encode_write_set
from tranlog.write_set import WriteKind

FRAGMENT_BYTES = 1 << 20
"""A fragment is closed when its payload has grown to this many bytes; one larger row makes one larger fragment."""
TABLE_LIST_BYTES = 60_000
"""Above this many bytes of names a record says "too many tables" and the transaction is serial."""
_BY_SCHEMA_KIND = ShardRuleKind.SCHEMA
_BY_SCHEMA = ShardRule(kind=ShardRuleKind.SCHEMA)
_NO_LIMIT = 1 << 62
_VERDICTS_KEPT = 4_096


class TransactionPacker:
    """Packs one transaction at a time. Not for threads.

    Shape: `add*` returns a fragment when one is full, else None; `finish` returns the last one, with the write set
    that `touches` has collected.
    """

    def __init__(
        self,
        *,
        source_id: str,
        rule: ShardRule,
        fragment_bytes: int = FRAGMENT_BYTES,
        touches: RowTouches | None = None,
    ) -> None:
        self._source_id = source_id
        self._limit = fragment_bytes
        self._builder = PayloadBuilder()
        self._touches = touches
        self._schemas: dict[tuple[TableName, ...], str] = {}  # verdicts, where nothing but names tells them
        self.begin(rule)

    def begin(self, rule: ShardRule) -> None:
        """Start a transaction, dropping what an unfinished one had collected. `rule` serves until the next one."""
        if self._builder.size:
            self._builder.drop()
        if self._touches is not None:
            self._touches.begin()
        self._tally = None if rule.kind is _BY_SCHEMA_KIND else ShardTally(rule)
        self._serial = False
        self._names: dict[TableName, None] = {}
        self._table: TableMap | None = None
        self._emitted = 0
        self._unchecked: tuple[str, ...] = ()
        self._older: list[TableMap] = []

    def note_older(self, table: TableMap) -> None:
        """Take what a table's `older` says; the transaction is serial, since every channel needs it."""
        self._older.append(table)
        self._make_serial()

    def __len__(self) -> int:
        """Changes that wait in the open fragment."""
        return len(self._builder)

    @property
    def emitted(self) -> int:
        """Fragments of this transaction already handed out."""
        return self._emitted

    def add(self, change: Change, *, event_id: str, tstamp: int) -> Fragment | None:
        """Add a change; `event_id` and `tstamp` serve the fragment that may come out.

        Raises what `PayloadBuilder.add` raises, and then has taken nothing.
        """
        self._builder.add(change)
        if isinstance(change, Statement):
            self._make_serial()
        else:
            self._touch(change.table)
            if (touches := self._touches) is not None:
                touches.rows(change.table, change.op, (encode_row((*(change.before or ()), *(change.after or ()))),))
        return self._cut(event_id, tstamp)

    def _make_serial(self) -> None:
        self._serial = True
        if self._touches is not None:
            self._touches.statement()

    def add_encoded(self, table: TableMap, op: Op, images: bytes, *, event_id: str, tstamp: int) -> Fragment | None:
        """Add a row change whose images are already `row_bytes.encode_row` bytes."""
        self._builder.add_encoded(table, op, images)
        self._touch(table)
        if self._touches is not None:
            self._touches.rows(table, op, (images,))
        return self._cut(event_id, tstamp)

    def add_rows(self, table: TableMap, op: Op, rows: Sequence[bytes]) -> None:
        """Add a row change for each of `rows`, as `add_encoded` does, to the open fragment, whatever its size."""
        self._touch(table)
        if self._touches is not None:
            self._touches.rows(table, op, rows)
        self._builder.add_encoded_rows(table, op, rows, start=0, limit=_NO_LIMIT)

    def _touch(self, table: TableMap) -> None:
        if table is not self._table:
            self._table = table
            self._names[table.schema, table.table] = None
            if self._tally is not None:
                self._tally.touch(table.schema, table.table)

    def _verdict(self, tables: tuple[TableName, ...]) -> str:
        """Return the shard of the transaction, which touched these tables."""
        if self._serial:
            return UNKNOWN_SHARD
        if self._tally is not None:
            return self._tally.verdict()
        found = self._schemas.get(tables)
        if found is None:
            tally = ShardTally(_BY_SCHEMA)
            for schema, table in tables:
                tally.touch(schema, table)
            if len(self._schemas) >= _VERDICTS_KEPT:
                self._schemas.clear()
            found = self._schemas[tables] = tally.verdict()
        return found

    def add_encoded_rows(
        self,
        table: TableMap,
        op: Op,
        rows: Sequence[bytes],
        *,
        event_id: str,
        tstamp: int,
        unchecked: tuple[str, ...] = (),
    ) -> Iterator[Fragment]:
        """Add a row change for each of `rows`, as `add_encoded` does, and yield the fragments that get full.

        `unchecked` as in TableMap: rows of another one begin a fragment. Ends: everything is added only when the
        iteration has ended.
        """
        if unchecked != self._unchecked:
            if len(self._builder):
                yield self.take(event_id=event_id, tstamp=tstamp)
            self._unchecked = unchecked
        builder, limit = self._builder, self._limit
        at, end = 0, len(rows)
        if end:
            self._touch(table)
            if self._touches is not None:
                self._touches.rows(table, op, rows)
        while at < end:
            at = builder.add_encoded_rows(table, op, rows, start=at, limit=limit)
            if builder.size >= limit:
                yield self.take(event_id=event_id, tstamp=tstamp)

    def _cut(self, event_id: str, tstamp: int) -> Fragment | None:
        return None if self._builder.size < self._limit else self.take(event_id=event_id, tstamp=tstamp)

    def take(self, *, event_id: str, tstamp: int) -> Fragment:
        """Return what was added so far as a fragment, full or not; the transaction goes on."""
        tables = tuple({(t.schema, t.table): None for t in self._builder.tables()})
        self._emitted += 1
        return Fragment(
            source_id=self._source_id,
            event_id=event_id,
            shard_id=UNKNOWN_SHARD,
            tstamp=tstamp,
            tables=tables if _list_bytes(tables) <= TABLE_LIST_BYTES else None,
            payload=self._builder.take(options=self._options()),
            last=False,
        )

    def _options(self) -> Options:
        if not (self._unchecked or self._older):
            return ()
        unchecked = tuple([(name, "0") for name in self._unchecked])
        return (*unchecked, older_option(self._older)) if self._older else unchecked

    def finish(self, *, event_id: str, tstamp: int, metadata: Options = (), options: Options = ()) -> Fragment:
        """Return the last fragment, which speaks for the whole transaction: its shard, its tables, its event id."""
        tables = tuple(self._names)
        listed = _list_bytes(tables) <= TABLE_LIST_BYTES
        write_set = b""
        if self._touches is not None and listed and not any([name == HEARTBEAT for name, _ in metadata]):
            write_set = self._touches.take(tables)  # all channels meet in front of a heartbeat
        fragment = Fragment(
            source_id=self._source_id,
            event_id=event_id,
            shard_id=self._verdict(tables) if listed else UNKNOWN_SHARD,
            tstamp=tstamp,
            tables=tables if listed else None,
            payload=self._builder.take(metadata=metadata, options=(*self._options(), *options)),
            write_set=write_set,
        )
        self._emitted += 1
        return fragment

    def finish_gap(self, gap: TableGap, *, event_id: str, tstamp: int, metadata: Options = ()) -> Fragment:
        """Return the last fragment of a transaction that lacks the changes of some tables; it is serial."""
        noop = () if self._emitted or len(self) else ((NOOP, GAP),)
        fragment = self.finish(event_id=event_id, tstamp=tstamp, metadata=(*noop, *gap.metadata(), *metadata))
        # Serial, whatever makes a shard: all channels must know of it before what comes next.
        step = encode_write_set(WriteKind.STEP, 0, (), ())
        return msgspec.structs.replace(fragment, shard_id=UNKNOWN_SHARD, tables=None, write_set=step)


class ChangePacker:
    """Packs one transaction of a program's own changes, for `pack` and for what takes them one after the other."""

    def __init__(self, *, source_id: str, event_id: str, tstamp: int, rule: ShardRule = _BY_SCHEMA) -> None:
        """As `pack`. Raises ValueError for an empty event id, TypeError for what is no text or no whole number."""
        for name, given, kind in (("source_id", source_id, str), ("event_id", event_id, str), ("tstamp", tstamp, int)):
            if type(given) is not kind:
                raise TypeError(f"{name} is {'a text' if kind is str else 'a whole number of ms'}, not {given!r}")
        if not event_id:
            raise ValueError("event_id is empty: it is the source's own position of the transaction")
        self._packer = TransactionPacker(source_id=source_id, rule=rule, touches=RowTouches())
        self._event_id = event_id
        self._tstamp = tstamp

    def add(self, changes: Iterable[Change]) -> Iterator[Fragment]:
        """Take changes, and yield the fragments that are full. Raises as `pack`."""
        for change in changes:
            if isinstance(change, RowChange):
                _check_values(change)
            elif not isinstance(change, Statement):
                raise TypeError(f"a change is a RowChange or a Statement, not {change!r}")
            elif not isinstance(change.sql, str | bytes):  # else it would be written without its text
                raise TypeError(f"the sql of a Statement is a text, or bytes, not {change.sql!r}")
            full = self._packer.add(change, event_id=self._event_id, tstamp=self._tstamp)
            if full is not None:
                yield full

    def finish(self, metadata: Options = ()) -> Fragment:
        """Return the last fragment, which speaks for the whole."""
        return self._packer.finish(event_id=self._event_id, tstamp=self._tstamp, metadata=metadata)


def pack(
    changes: Iterable[Change],
    *,
    source_id: str,
    event_id: str,
    tstamp: int,
    metadata: Options = (),
    rule: ShardRule = _BY_SCHEMA,
) -> list[Fragment]:
    """Return one transaction of these changes as fragments, what `Log.append` takes one by one; whole in memory.

    `event_id` is the source's own position of the transaction, `tstamp` its commit time, ms since 1970 UTC. Raises
    ValueError for an empty event id, for a value that its column does not take, and for a change that could not be
    read back; TypeError for what is no change, and for an argument of another type.
    """
    packer = ChangePacker(source_id=source_id, event_id=event_id, tstamp=tstamp, rule=rule)
    fragments = list(packer.add(changes))
    fragments.append(packer.finish(metadata))  # not in one display with a star: compiled, this would come first
    return fragments


def _check_values(change: RowChange) -> None:
    """Raise ValueError for a value that its column does not take, by table and column."""
    for row in (change.before, change.after):
        for column, value in zip(change.table.columns, row or (), strict=False):
            if value is None or isinstance(value, Unchanged):
                continue
            taken = VALUE_TYPES.get(column.logical, _EVERY_TYPE)
            if type(value) not in taken:
                names = ", ".join(sorted(one.__name__ for one in taken))
                raise ValueError(
                    f"{change.table.name}, column {column.name}: a {type(value).__name__} is no value of a column of "
                    f"the logical type {column.logical.name}; it takes {names}, or None"
                )


_EVERY_TYPE = frozenset(get_args(Value)) - {type(None), Unchanged}


@lru_cache(maxsize=1024)
def _list_bytes(tables: tuple[tuple[str, str], ...]) -> int:
    return sum(7 + len(schema.encode()) + len(table.encode()) for schema, table in tables)
