"""From a stream of changes to batches: what goes out in one statement, never reordered across others.

Owns the cutting, and the net effect of a stream where that is asked for. Leaves joining tables and making statements
to `binding`, sending to the sessions. The hard idea: a batch is a run. Changes of one form that follow each other
are one statement; the first that differs ends it, so that the order at the target is the log's. Only where nothing at
the target could tell the difference (`Binding.gathers`) do changes of different keys pass each other, to join others of
their form; those of one key never do, and foreign keys find the rows that they look for. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, TypeAlias

import msgspec

from tranlog.change import Change, Op, RowChange, Statement, TableMap
from tranlog.ids import Seqno
from tranlog.target.binding import Binding, Form, Row, heavy_columns, weigh
from tranlog.types import UNCHANGED, Value

Placed: TypeAlias = tuple[Seqno, RowChange | Statement]
"""A change and the transaction that it belongs to."""

BATCH_BYTES: Final = 4 << 20
"""A batch is closed when values of unbounded size in it have grown to this."""
GATHER_ROWS: Final = 10_000
"""So many rows are gathered before they go out."""
NET_EFFECT_KEYS: Final = 20_000
"""Changes whose net effect is held before it goes out; a larger target transaction goes out in several parts."""
NET_EFFECT_BYTES: Final = 64 << 20
"""The same for bytes of values of unbounded size."""

_INSERT: Final = Op.INSERT
_DELETE: Final = Op.DELETE
_UPDATE: Final = Op.UPDATE


class Batch(msgspec.Struct, frozen=True, eq=False):
    """Rows for one statement, in the order of the log."""

    form: Form
    rows: list[Row]
    bytes: int


class _GatheredTable:
    """Changes of one table: by how often the key changed before, and form, the rows; apart from them those that go."""

    __slots__ = ("binding", "gone", "levels", "seen")

    def __init__(self, binding: Binding) -> None:
        self.binding = binding
        self.seen: dict[Any, int] = {}
        self.levels: list[dict[Form, list[Row]]] = []
        self.gone: dict[Any, Row] = {}

    def add(self, form: Form, row: Row) -> None:
        """Take a change in: after those of its key, beside those of its form."""
        key = self.binding.key_of(row)
        level = self.seen.get(key, -1) + 1
        self.seen[key] = level
        if level == len(self.levels):
            self.levels.append({})
        rows = self.levels[level].get(form)
        if rows is None:
            self.levels[level][form] = [row]
        else:
            rows.append(row)


class _Gathered:
    """Changes of tables where only the order within a key matters, and what foreign keys see of it.

    Of tables with foreign keys, rows that come go out first, those that others refer to before these; rows that
    others may refer to go last, the other way around. Nothing is gathered that comes after its row has gone.
    """

    __slots__ = ("_tables", "bytes", "rows")

    def __init__(self) -> None:
        self._tables: dict[str, _GatheredTable] = {}
        self.rows = self.bytes = 0

    def add(self, binding: Binding, form: Form, row: Row) -> bool:
        """Take a change in, if it may join what is there: else that has to go out before it."""
        table = self._tables.get(binding.name)
        if table is None:
            table = self._tables[binding.name] = _GatheredTable(binding)
        elif table.binding is not binding:
            return False  # the table was altered in between
        if table.gone and binding.key_of(row) in table.gone:
            return False
        if form is binding.delete and binding.related is not None and binding.related.referred:
            table.gone[binding.key_of(row)] = row
        else:
            table.add(form, row)
        self.rows += 1
        if binding.has_heavy:
            self.bytes += binding.weigh(row)
        return True

    def pour(self) -> Iterator[Batch]:
        """Yield everything and forget it; the first batch tells the bytes of all."""
        size = self.bytes
        for form, rows in self._in_order():
            for at in range(0, len(rows), form.limit):
                yield Batch(form, rows[at : at + form.limit], size)
                size = 0
        self._tables.clear()
        self.rows = self.bytes = 0

    def _in_order(self) -> Iterator[tuple[Form, list[Row]]]:
        related = sorted([one for one in self._tables.values() if one.binding.related is not None], key=_depth)
        for table in related:
            came = table.levels[0].pop(table.binding.insert, None) if table.levels else None
            if came is not None:
                yield table.binding.insert, came
        for table in self._tables.values():
            for level in table.levels:
                yield from level.items()
        for table in reversed(related):
            if table.gone and table.binding.delete is not None:
                yield table.binding.delete, list(table.gone.values())


def _depth(table: _GatheredTable) -> int:
    assert table.binding.related is not None
    return table.binding.related.depth


def batch_up(
    stream: Iterable[Placed], bind: Callable[[TableMap, Seqno], Binding]
) -> Iterator[Batch | tuple[Seqno, Statement]]:
    """Cut a stream of changes into batches; a statement stands alone at its place.

    `bind` is asked for a table's binding whenever the table changes. Nothing passes a statement, nor a change of a
    table whose order is seen. Raises what `bind` and `Binding.place` raise.
    """
    gathered = _Gathered()
    rows: list[Row] = []
    form: Form | None = None
    table: TableMap | None = None
    binding: Binding | None = None
    keys: set[Any] = set()
    size = 0
    for seqno, change in stream:
        if isinstance(change, Statement):
            yield from gathered.pour()
            if form is not None and rows:
                yield Batch(form, rows, size)
            rows, form, table, size = [], None, None, 0  # a statement may change tables: bind them anew
            yield seqno, change
            continue
        if change.table is not table or binding is None:
            table = change.table
            binding = bind(table, seqno)
        wanted, row = binding.place(change)
        if binding.gathers and not wanted.ordered:
            if rows:
                assert form is not None
                yield Batch(form, rows, size)
                rows, form, size = [], None, 0
            if not gathered.add(binding, wanted, row):
                yield from gathered.pour()
                gathered.add(binding, wanted, row)
            if gathered.rows >= GATHER_ROWS or gathered.bytes >= BATCH_BYTES:
                yield from gathered.pour()
            continue
        if gathered.rows:
            yield from gathered.pour()
        if wanted is not form or len(rows) >= wanted.limit or size >= BATCH_BYTES:
            if form is not None and rows:
                yield Batch(form, rows, size)
            rows, form, size = [], wanted, 0
            keys.clear()
        if wanted.distinct:
            key = binding.key_of(row)
            if key in keys:
                yield Batch(wanted, rows, size)
                rows, size = [], 0
                keys.clear()
            keys.add(key)
        rows.append(row)
        if binding.has_heavy:
            size += binding.weigh(row)
    yield from gathered.pour()
    if form is not None and rows:
        yield Batch(form, rows, size)


def batch_inserts(
    changes: Iterator[Change], bind: Callable[[TableMap, Seqno], Binding], seqno: Seqno
) -> Generator[Batch, None, Iterator[Change]]:
    """Cut rows that a transaction inserts into batches, as `batch_up`, up to its first change of another kind.

    Return that one and what follows it. For many rows: it looks at nothing else. Raises what `bind` raises.
    """
    rows: list[Row] = []
    table: TableMap | None = None
    binding: Binding | None = None
    size = 0
    for change in changes:
        if not isinstance(change, RowChange) or change.op is not _INSERT or change.table.sequence:
            if binding is not None and rows:
                yield Batch(binding.insert, rows, size)
            return chain((change,), changes)
        if change.table is not table or binding is None:
            if binding is not None and rows:
                yield Batch(binding.insert, rows, size)
            table = change.table
            binding = bind(table, seqno)
            rows, size, limit, heavy = [], 0, binding.insert.limit, binding.has_heavy
        assert change.after is not None
        rows.append(change.after)
        if heavy:
            size += binding.weigh(change.after)
        if len(rows) >= limit or size >= BATCH_BYTES:
            yield Batch(binding.insert, rows, size)
            rows, size = [], 0
    if binding is not None and rows:
        yield Batch(binding.insert, rows, size)
    return iter(())


@dataclass(slots=True)
class _Effect:
    """What a run of changes did to one row: the images before the first and after the last, None for no row."""

    seqno: Seqno
    before: Row | None
    after: Row | None


class _TableEffect:
    """The net effect on one table: by key, or for a table without one as it came."""

    __slots__ = ("acted_on", "effects", "heavy", "key_may_be_null", "plain", "table")

    def __init__(self, table: TableMap, acted_on: bool) -> None:
        self.table = table
        self.effects: dict[Row, _Effect] = {}
        self.plain: list[tuple[Seqno, RowChange]] = []
        self.heavy = heavy_columns(table)
        self.key_may_be_null = any(table.columns[i].nullable for i in table.primary_key)
        self.acted_on = acted_on

    def takes_others(self, change: RowChange) -> bool:
        """Whether foreign keys of others act on this change: a row goes, or its key changes."""
        before, after = change.before, change.after
        return before is not None and (after is None or self.table.key_of(before) != self.table.key_of(after))

    def has_null_key(self, change: RowChange) -> bool:
        """Whether a key of this change names no row, as NULL does in SQLite."""
        key_of = self.table.key_of
        return any(row is not None and None in key_of(row) for row in (change.before, change.after))

    def contradicts(self, change: RowChange) -> bool:
        """Whether a change finds another row, or none, where the changes before it left one.

        So it is when two keys are swapped by a source that checks them at commit: for a moment both rows have the
        key, and only the log's own order tells them apart.
        """
        key_of = self.table.key_of
        before, after = change.before, change.after
        if before is not None:
            left = self.effects.get(key_of(before))
            if left is not None and not _agree(left.after, before):
                return True
        if after is not None:
            key = key_of(after)
            if before is None or key_of(before) != key:
                left = self.effects.get(key)
                return left is not None and left.after is not None
        return False

    def add(self, seqno: Seqno, change: RowChange) -> None:
        """Take a change in that does not contradict."""
        if not self.table.primary_key:
            self.plain.append((seqno, change))
            return
        key_of = self.table.key_of
        before, after = change.before, change.after
        old = None if before is None else key_of(before)
        new = None if after is None else key_of(after)
        if old is not None and (new is None or new != old):
            self._note(seqno, old, before, None)
            if before is not None and after is not None:
                after = _fill(after, before)
        if new is not None:
            self._note(seqno, new, before if new == old else None, after)

    def _note(self, seqno: Seqno, key: Row, before: Row | None, after: Row | None) -> None:
        effect = self.effects.get(key)
        if effect is None:
            self.effects[key] = _Effect(seqno, before, after)
            return
        effect.seqno = seqno
        effect.after = after if after is None or effect.after is None else _fill(after, effect.after)

    def changes(self) -> Iterator[tuple[Seqno, RowChange]]:
        """Yield deletes, then updates by the columns that they change, then inserts; then what came as it was."""
        deletes, inserts = [], []
        updates: dict[tuple[bool, ...], list[tuple[Seqno, RowChange]]] = {}
        for effect in self.effects.values():
            if effect.before is None and effect.after is not None:
                inserts.append((effect.seqno, RowChange(self.table, _INSERT, None, effect.after)))
            elif effect.before is not None and effect.after is None:
                deletes.append((effect.seqno, RowChange(self.table, _DELETE, effect.before, None)))
            elif effect.before is not None and effect.after is not None:
                same = tuple([old == new for old, new in zip(effect.before, effect.after, strict=True)])
                change = RowChange(self.table, _UPDATE, effect.before, effect.after)
                updates.setdefault(same, []).append((effect.seqno, change))
        yield from deletes
        for alike in updates.values():
            yield from alike
        yield from inserts
        yield from self.plain


def _agree(left: Row | None, found: Row) -> bool:
    if left is None:
        return False
    return left == found or all(
        a is b or a == b or a is UNCHANGED or b is UNCHANGED for a, b in zip(left, found, strict=True)
    )


def _fill(after: Row, earlier: Row) -> Row:
    """Put what is known of a row in the place of what the source did not send again."""
    if UNCHANGED not in after:
        return after
    filled: list[Value] = [old if new is UNCHANGED else new for new, old in zip(after, earlier, strict=True)]
    return tuple(filled)


def net_effect(
    stream: Iterable[Placed], acted_on: Callable[[TableMap], bool] = lambda table: False
) -> Iterator[Placed]:
    """Collapse the changes of one key to their net effect: at most one change per row, grouped by table.

    Shape: a statement divides the stream, nothing passes it, and so does a change that finds another row than those
    before it left; changes of tables without a key stay as they came, so do those with NULL in their key, and, of a
    table that is `acted_on` by foreign keys of others when its rows go, those that they act on. Tables come
    in the order in which they were first touched: foreign keys and unique keys of the target may object where the
    log's own order would not, and the caller then applies that one.
    """
    tables: dict[tuple[str, str], _TableEffect] = {}
    held = size = 0
    for seqno, change in stream:
        if held >= NET_EFFECT_KEYS or size >= NET_EFFECT_BYTES:
            yield from _pour(tables)
            held = size = 0
        if isinstance(change, Statement):
            yield from _pour(tables)
            yield seqno, change
            continue
        name = (change.table.schema, change.table.table)
        effect = tables.get(name)
        if effect is not None and effect.table is not change.table and effect.table != change.table:
            yield from _pour(tables)  # altered in between: rows of two forms do not merge
            effect = None
        if effect is None:
            effect = tables[name] = _TableEffect(change.table, acted_on(change.table))
        if (effect.key_may_be_null and effect.has_null_key(change)) or (
            effect.acted_on and effect.takes_others(change)
        ):
            yield from _pour(tables)
            yield seqno, change
            continue
        if effect.contradicts(change):
            yield from _pour(tables)
            held = size = 0
            effect = tables[name] = _TableEffect(change.table, effect.acted_on)
        effect.add(seqno, change)
        held += 1
        for row in (change.before, change.after):
            if row is not None:
                size += weigh(row, effect.heavy)
    yield from _pour(tables)


def _pour(tables: dict[tuple[str, str], _TableEffect]) -> Iterator[Placed]:
    for effect in tables.values():
        yield from effect.changes()
    tables.clear()
