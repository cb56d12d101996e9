"""A source's table joined with its namesake at the target: which statement carries which change.

Owns the join, and for each change the statement form and the row of parameters that it becomes. Leaves SQL to the
dialects and sending to the sessions. The hard idea: a *form* is a statement for any number of rows; changes of one
form that follow each other go out together, so forms are cached and compared by identity. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from math import copysign
from operator import itemgetter
from typing import Any, Final, NoReturn, Protocol, TypeAlias
from uuid import UUID

from tranlog.change import Column, Op, RowChange, TableMap, TableName
from tranlog.target.related import Related
from tranlog.target.target import RefusedError
from tranlog.types import (
    F32,
    UNCHANGED,
    Bit,
    CharsetBytes,
    Date,
    Datetime,
    EnumLabel,
    Instant,
    Json,
    LogicalType,
    Other,
    SetLabels,
    Time,
    Unchanged,
    Value,
    value_text,
)

Row: TypeAlias = tuple[Value, ...]
"""One row of parameters: an INSERT's after image, a DELETE's before image, an UPDATE's before and after in one."""

STRICT: Final = "strict"
"""In `Form.relaxed`: no complaint about a value, since the columns are as the source's, where it is."""
BATCH_ROWS: Final = 1000
"""Rows that one batched statement carries at most."""
_BOUNDED_LENGTH: Final = 255  # declared lengths up to here do not count towards a batch's bytes
_SHOWN_KEY_CHARS: Final = 300
_UNBOUNDED: Final = (LogicalType.ANY, LogicalType.TEXT, LogicalType.BYTES, LogicalType.JSON, LogicalType.OTHER)
_EQUAL_YET_DIFFERENT: Final = (float, Decimal)  # 0.0 == -0.0 and Decimal("1.0") == Decimal("1.00")


class UnfitError(RefusedError):
    """A value that a column of the target cannot hold. Becomes a ConflictError that names the transaction."""


class MismatchError(Exception):
    """A column of the target whose type cannot take what the source's column holds, whatever the value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetColumn:
    """A column as the target declares it: `type_name` as a cast takes it, `category` in the dialect's own words.

    `digits`: digits after the point that it keeps (of a number, or of a second); None: as many as come. `length`,
    `collation` and `labels` where the kind's statements depend on them: characters or bytes, None for any number; of a
    TIMESTAMP of MariaDB's its last second.
    """

    name: str
    type_name: str
    category: str
    declared: str
    """The type in full, for messages."""
    nullable: bool = True
    loosens: bool = False
    """Whether it refuses NULL, and one statement, which changes nothing else, makes it take NULL."""
    retypes: bool = False
    """Whether one statement, which changes nothing else, gives it another type."""
    generated: bool = False
    fixed: bool = False
    """Whether an update may not set it, not even to what it holds: GENERATED ALWAYS AS IDENTITY."""
    moves: bool = False
    """Whether an update that does not set it changes it all the same: ON UPDATE CURRENT_TIMESTAMP."""
    digits: int | None = None
    length: int | None = None
    collation: str = ""
    check: str = ""
    """The condition of its own CHECK, which a statement that defines it anew has to repeat."""
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetTable:
    """A table as the target has it. `unique` holds the columns of its unique indexes, primary key included.

    `place` is the hidden column that tells equal rows apart (`ctid`, `rowid`), empty where there is none.
    """

    columns: Mapping[str, TargetColumn]
    unique: frozenset[str]
    place: str
    period: frozenset[str] = frozenset()
    """Columns of the period of one that keeps old versions of its rows by itself, with its own clock."""
    engine: str = ""
    """Of a table whose changes no rollback takes back: what stores it."""
    order_unseen: bool = False
    """Whether nothing at the target but foreign keys sees in which order rows of different keys change within a target
    transaction: no trigger, no rule and one unique index. False where that is not known."""
    name: TableName = ("", "")
    """Schema and name at the target, where `order_unseen`."""
    unlogged: bool = False
    """Whether a crash of the server empties it, or a part of it, while positions stay."""
    copies: bool = False
    """Whether rows may come by `Form.copy`: nothing stands in between that this way passes over or is refused by."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class CopyForm:
    """A statement that takes any number of rows as a stream. `lines` makes the bytes of some; it raises UnfitError."""

    sql: str
    lines: Callable[[Sequence[Row]], bytes]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Form:
    """A statement for up to `limit` rows. `bind` makes its parameters out of rows, as the session wants them.

    `distinct`: rows of one key must not share a statement, since it would touch the row once only. `ordered`: nothing
    may pass these rows, whatever the table allows. Raises UnfitError from `bind`.
    """

    op: Op
    sql: str
    bind: Callable[[Sequence[Row]], Sequence[Any]]
    limit: int = BATCH_ROWS
    distinct: bool = False
    ordered: bool = False
    one: Form | None = None
    """The same for one row at a time, where a kind does few rows faster so."""
    copy: CopyForm | None = None
    """The same for very many, where a kind does these faster so."""
    relaxed: tuple[str, ...] = ()
    """What the session does not mind for these rows: checks of `change.CHECKS`, and STRICT."""
    for_row: Callable[[Row], Form | None] | None = None
    """Make the form for a row that this one cannot carry; None where no form can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundColumn:
    """A column on both sides: `index` in the source's rows, `name` as the target quotes it."""

    index: int
    name: str
    source: Column
    target: TargetColumn


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """What a row without a key is found by: the columns to compare, and of each whether its value is NULL.

    `place` is as in TargetTable.
    """

    columns: Sequence[BoundColumn]
    nulls: tuple[bool, ...]
    place: str


class Forms(Protocol):
    """What a dialect says about changing rows. `key` are the key's columns.

    An UPDATE's row has the after image from `width` on.
    """

    def insert(self, table: str, columns: Sequence[BoundColumn]) -> Form:
        """Insert rows; a key that is there already is an error, never an update."""

    def update(
        self, table: str, changed: Sequence[BoundColumn], key: Sequence[BoundColumn], *, width: int, alone: bool
    ) -> Form:
        """Update rows by key; `alone`: one row per statement, since the order of rows matters."""

    def delete(self, table: str, key: Sequence[BoundColumn]) -> Form:
        """Delete rows by key."""

    def update_image(self, table: str, changed: Sequence[BoundColumn], image: Image, *, width: int) -> Form:
        """Update one of the rows that equal the whole before image."""

    def delete_image(self, table: str, image: Image) -> Form:
        """Delete one of the rows that equal the whole before image."""


NATURAL: Final[dict[LogicalType, type]] = {
    LogicalType.BOOL: bool,
    LogicalType.INTEGER: int,
    LogicalType.F32: F32,
    LogicalType.F64: float,
    LogicalType.DECIMAL: Decimal,
    LogicalType.TEXT: str,
    LogicalType.BYTES: bytes,
    LogicalType.DATE: Date,
    LogicalType.TIME: Time,
    LogicalType.DATETIME: Datetime,
    LogicalType.INSTANT: Instant,
    LogicalType.BIT: Bit,
    LogicalType.ENUM: EnumLabel,
    LogicalType.SET: SetLabels,
    LogicalType.JSON: Json,
    LogicalType.UUID: UUID,
    LogicalType.OTHER: Other,
}
"""The type of the values that a column of each logical type holds."""


def refuse_column(column: Column, target: TargetColumn) -> None:
    """Raise MismatchError for a column that takes none of the source's values, or not exactly."""
    raise MismatchError(
        f"column {column.name} is {target.declared} here, which does not take the source's "
        f"{column.source_type or 'values of any type'}"
    )


def refused_value(column: BoundColumn, value: Value) -> UnfitError:
    """Return the error for a value of a type that a column does not take."""
    name = column.source.name
    if isinstance(value, Unchanged):
        return UnfitError(f"column {name}: the source did not send its value")
    shown = value_text(value)[:60]
    return UnfitError(
        f"column {name} is {column.target.declared} here, which does not take {type(value).__name__} {shown}"
    )


def refuse_charset_bytes(value: CharsetBytes) -> NoReturn:
    """Raise UnfitError for text that is known by its bytes alone."""
    raise UnfitError(f"bytes that are no text in {value.charset}, or not its only ones, cannot be stored as text")


def _equal_by_value(a: Value, b: Value) -> bool:
    """Tell two equal floats or decimals apart where their texts or bits differ."""
    if isinstance(a, float) and isinstance(b, float):
        return a != 0.0 or copysign(1.0, a) == copysign(1.0, b)
    return str(a) == str(b)


class Binding:
    """One source table at the target. Threads: one at a time.

    `related`: what foreign keys see of it, None for nothing. `acts`: whether one of those to this table deletes or
    changes rows where one of it goes; it is asked once, for the first that goes.
    """

    def __init__(
        self,
        table: TableMap,
        target: TargetTable,
        name: str,
        columns: Sequence[BoundColumn],
        forms: Forms,
        related: Related | None = None,
        acts: Callable[[], bool] = lambda: False,
    ):
        self.table = table
        self.name = name
        self._target = target
        self._forms = forms
        self._columns = {column.index: column for column in columns}
        self._written = tuple(self._columns)
        self._moving = tuple([column.index for column in columns if column.target.moves])
        self._width = len(table.columns)
        self._key = [self._columns[i] for i in table.primary_key if i in self._columns]
        # Without one of its columns a key finds nothing: such a table is treated as one without a key.
        if len(self._key) < len(table.primary_key):
            self._key = []
        self._key_may_be_null = any(column.source.nullable for column in self._key)
        self.gathers = (
            target.order_unseen
            and (related is None or not related.circle)
            and bool(self._key)
            and not self._key_may_be_null
            and target.unique == {column.target.name for column in self._key}
        )
        """Whether changes of different keys may pass each other, so that those of one form go out together. Of a
        table with foreign keys only as far as these do not see it."""
        self.related = related
        self._acts = acts if self.gathers and related is not None and related.referred else None
        self.key_of: Callable[[Row], Any] = itemgetter(*[c.index for c in self._key]) if self._key else tuple
        heavy = heavy_columns(table)
        # By the length of a row: an UPDATE's has both images.
        self._heavy = {self._width: heavy, 2 * self._width: heavy + [i + self._width for i in heavy]}
        self.has_heavy = bool(heavy)
        insert = forms.insert(name, columns)
        self.insert = self._relax(insert if target.copies else replace(insert, copy=None))
        self.delete = self._relax(forms.delete(name, self._key)) if self._key else None
        self._updates: dict[tuple[int, ...], Form] = {}
        self._images: dict[tuple[tuple[int, ...] | None, tuple[bool, ...]], Form] = {}

    def place(self, change: RowChange) -> tuple[Form, Row]:
        """Return the statement form of a change and its row. Raises UnfitError where the change cannot be written."""
        before, after = change.before, change.after
        if before is None:
            assert after is not None
            return self.insert, after
        if self.delete is None or (self._key_may_be_null and self._has_null_key(before)):
            return self._place_by_image(before, after)
        if after is None:
            if self._acts is not None:
                self._ask_acts(self.delete, self._acts)
            return self.delete, before
        changed = self._changed(before, after)
        form = self._updates.get(changed)
        if form is None:
            columns = [self._columns[i] for i in changed]
            alone = any(c.target.name in self._target.unique or c in self._key for c in columns)
            form = self._relax(self._forms.update(self.name, columns, self._key, width=self._width, alone=alone))
            form = replace(form, ordered=True) if alone else form
            self._updates[changed] = form
        return form, before + after

    def _ask_acts(self, delete: Form, acts: Callable[[], bool]) -> None:
        self._acts = None
        if acts() or (self.related is not None and self.related.own):
            self.delete = replace(delete, ordered=True)

    def _relax(self, form: Form) -> Form:
        """Return a form that leaves out the checks that the source left out."""
        if not self.table.unchecked:
            return form
        one = None if form.one is None else self._relax(form.one)
        return replace(form, relaxed=(*form.relaxed, *self.table.unchecked), one=one)

    def _changed(self, before: Row, after: Row) -> tuple[int, ...]:
        # Written out, not called: this runs for every value of every update.
        changed = tuple(
            [
                i
                for i in self._written
                if (new := after[i]) is not (old := before[i])
                and new is not UNCHANGED
                and (
                    type(new) is not type(old)
                    or new != old
                    or (type(new) in _EQUAL_YET_DIFFERENT and not _equal_by_value(old, new))
                )
            ]
        )
        if self._moving:
            changed = tuple(sorted({*changed, *[i for i in self._moving if after[i] is not UNCHANGED]}))
        if changed:
            return changed
        # An update that changes nothing is still an update: the row must be there, and its triggers fire.
        sent = [i for i in self._written if after[i] is not UNCHANGED]
        return tuple([i for i in sent if not self._columns[i].target.fixed][:1] or sent[:1])

    def _has_null_key(self, row: Row) -> bool:
        return any(row[c.index] is None for c in self._key)

    def _place_by_image(self, before: Row, after: Row | None) -> tuple[Form, Row]:
        columns = list(self._columns.values())
        for column in columns:
            if before[column.index] is UNCHANGED:
                raise UnfitError(f"column {column.source.name}: the source sent no before value, and there is no key")
        changed = None if after is None else self._changed(before, after)
        nulls = tuple([before[c.index] is None for c in columns])
        form = self._images.get((changed, nulls))
        if form is None:
            image = Image(columns=columns, nulls=nulls, place=self._target.place)
            if changed is None:
                form = self._forms.delete_image(self.name, image)
            else:
                set_to = [self._columns[i] for i in changed]
                form = self._forms.update_image(self.name, set_to, image, width=self._width)
            if len(self._images) > 4096:  # as many as there are patterns of NULLs, in the worst case
                self._images.clear()
            form = self._images[changed, nulls] = self._relax(form)
        return form, before if after is None else before + after

    def weigh(self, row: Row) -> int:
        """Return the bytes of those values of a row that may be of any size; the others are taken as small."""
        return weigh(row, self._heavy[len(row)])


def key_text(change: RowChange) -> str:
    """Return the key of a change as a message shows it: that of the row as it was, before an update."""
    row = change.after if change.before is None else change.before
    assert row is not None
    table = change.table
    indexes = table.primary_key or range(len(table.columns))
    shown = ", ".join([f"{table.columns[i].name}={value_text(row[i])}" for i in indexes])
    shown = shown if len(shown) <= _SHOWN_KEY_CHARS else shown[:_SHOWN_KEY_CHARS] + "…"
    return f"({shown})" if table.primary_key else f"none, row ({shown})"


def heavy_columns(table: TableMap) -> list[int]:
    """Return the indexes of the columns whose values may be of any size."""
    return [
        index
        for index, column in enumerate(table.columns)
        if column.logical in _UNBOUNDED and not 0 < column.length <= _BOUNDED_LENGTH
    ]


def weigh(row: Row, indexes: Sequence[int]) -> int:
    """Return the bytes of the values at `indexes`, about."""
    size = 0
    for i in indexes:
        value = row[i]
        if isinstance(value, str | bytes):
            size += len(value)
        elif isinstance(value, Json | Other):
            size += len(value.text)
        elif isinstance(value, CharsetBytes):
            size += len(value.raw)
    return size


def source_digits(column: Column) -> int | None:
    """Return how many digits after the point a column's values have at most, by its declaration; None: unknown."""
    _, bracket, arguments = column.source_type.partition("(")
    numbers = [part.strip() for part in arguments.partition(")")[0].split(",")] if bracket else []
    match column.logical:
        case LogicalType.INTEGER:
            return 0
        case LogicalType.DECIMAL if numbers:
            return int(numbers[1]) if len(numbers) > 1 and numbers[1].isdigit() else 0
        case LogicalType.TIME | LogicalType.DATETIME | LogicalType.INSTANT if numbers and numbers[0].isdigit():
            return int(numbers[0])
        case _:
            return None


def may_round(column: Column, target: TargetColumn) -> bool:
    """Whether the target keeps fewer digits than the source's values may have: then each value is to be looked at."""
    if target.digits is None:
        return False
    digits = source_digits(column)
    return digits is None or digits > target.digits
