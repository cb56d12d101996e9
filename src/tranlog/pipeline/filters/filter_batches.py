"""Changes as Arrow record batches for a user's function, and back again without loss.

Owns the form of these batches. The hard idea: Arrow cannot hold all values that a source may have (a zero date, text
that does not decode, a value that was not sent). So a batch shows what it can; values that the function does not change
stay as in the log, and only changed ones are converted back.

Shape: one row per change, all of one table. Columns: `row`, the change's number in the batch; `op`, INSERT, UPDATE or
DELETE; then `before.NAME` and `after.NAME` for each column of the table, null where there is no such image. The
schema's metadata have `schema`, `table` and, as JSON, `primary_key`. A function may take rows away and set values;
it may not add, double or reorder rows, nor change `row` and `op`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from decimal import Decimal, InvalidOperation
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from tranlog.change import Column, RowChange
from tranlog.errors import LibraryMissingError
from tranlog.types import F32, Date, Datetime, Instant, Json, LogicalType, Time, Value, value_text

if TYPE_CHECKING:
    from pyarrow import Array, DataType, RecordBatch

_I64: Final = (-(1 << 63), (1 << 63) - 1)
_U64: Final = (0, (1 << 64) - 1)


class BatchMismatch(Exception):
    """What a function returned does not fit what it was given. Becomes a FilterError."""


def batch_of(run: Sequence[RowChange]) -> RecordBatch:
    """Return changes of one table as a batch. Raises LibraryMissingError."""
    pa = _pyarrow()
    table = run[0].table
    arrays = [
        pa.array(range(len(run)), pa.int32()),
        pa.array([change.op.name for change in run], pa.string()),
    ]
    names = ["row", "op"]
    for side in ("before", "after"):
        images = [change.before if side == "before" else change.after for change in run]
        for index, column in enumerate(table.columns):
            values = [None if image is None else image[index] for image in images]
            kind = _kind_of(column, run, index)
            show = _unsigned if kind is LogicalType.INTEGER and column.unsigned else _SHOWN[kind]
            arrays.append(pa.array([show(value) for value in values], _arrow_type(kind, column)))
            names.append(f"{side}.{column.name}")
    key = [table.columns[index].name for index in table.primary_key]
    metadata = {"schema": table.schema, "table": table.table, "primary_key": json.dumps(key)}
    schema = pa.schema([pa.field(name, array.type) for name, array in zip(names, arrays, strict=True)], metadata)
    batch: RecordBatch = pa.record_batch(arrays, schema=schema)
    return batch


def changes_of(run: Sequence[RowChange], given: RecordBatch, returned: Any) -> list[RowChange]:
    """Return the changes that a batch stands for, after a function. Raises BatchMismatch."""
    pa = _pyarrow()
    if returned is given:
        return list(run)
    if not isinstance(returned, pa.RecordBatch):
        raise BatchMismatch(f"it returned {type(returned).__name__}; a pyarrow.RecordBatch is expected")
    names = given.schema.names
    if sorted(returned.schema.names) != sorted(names):
        lacking, more = set(names) - set(returned.schema.names), set(returned.schema.names) - set(names)
        what = f"column {min(lacking)} is missing" if lacking else f"column {min(more)} is new" if more else "doubled"
        raise BatchMismatch(f"the batch that it returned has other columns: {what}; see the filters drop and rename")
    rows = _cast(returned.column("row"), given.column("row").type, "row").to_pylist()
    if any(row is None or not 0 <= row < len(run) for row in rows) or any(
        following <= row for row, following in pairwise(rows)
    ):
        raise BatchMismatch("column row of the batch that it returned has other numbers, or has them in another order")
    taken = given.take(pa.array(rows, pa.int32()))
    if not returned.column("op").equals(taken.column("op")):
        raise BatchMismatch("column op of the batch that it returned has changed")
    images: dict[str, list[list[Value] | None]] = {
        "before": [None if run[row].before is None else list(run[row].before or ()) for row in rows],
        "after": [None if run[row].after is None else list(run[row].after or ()) for row in rows],
    }
    for side, side_images in images.items():
        for index, column in enumerate(run[0].table.columns):
            name = f"{side}.{column.name}"
            was, now = taken.column(name), returned.column(name)
            if now.equals(was):
                continue
            _set(side_images, index, column, name, was, _cast(now, was.type, name), _kind_of(column, run, index))
    return [
        RowChange(
            run[row].table,
            run[row].op,
            None if before is None else tuple(before),
            None if after is None else tuple(after),
        )
        for row, before, after in zip(rows, images["before"], images["after"], strict=True)
    ]


def _set(
    images: Sequence[list[Value] | None],
    index: int,
    column: Column,
    name: str,
    was: Array,
    now: Array,
    kind: LogicalType,
) -> None:
    """Put what differs into the rows."""
    make = _MADE[kind]
    for image, old, new in zip(images, _plain(was), _plain(now), strict=True):
        if old == new and type(old) is type(new):
            continue
        if image is None:
            raise BatchMismatch(f"column {name} of the batch that it returned has a value where there is no such row")
        try:
            image[index] = None if new is None else make(new)
        except (ValueError, InvalidOperation) as exc:
            raise BatchMismatch(f"column {name} of the batch that it returned holds {new!r}: {exc}") from exc


def _cast(array: Array, kind: DataType, name: str) -> Array:
    pa = _pyarrow()
    if array.type == kind:
        return array
    try:
        return array.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as exc:
        raise BatchMismatch(f"column {name} of the batch that it returned is {array.type}, not {kind}: {exc}") from exc


def _plain(array: Array) -> list[Any]:
    """Return an array's values, those of times as the numbers that they are."""
    pa = _pyarrow()
    if pa.types.is_date32(array.type):
        array = array.cast(pa.int32())
    elif pa.types.is_timestamp(array.type) or pa.types.is_duration(array.type):
        array = array.cast(pa.int64())
    values: list[Any] = array.to_pylist()
    return values


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError as exc:
        raise LibraryMissingError(library="pyarrow", what="filters on Arrow batches") from exc
    return pyarrow


# --- one value at a time ---------------------------------------------------------------------------------


def _kind_of(column: Column, run: Sequence[RowChange], index: int) -> LogicalType:
    """Return what kind of array shows a column; where each value has its own, that of all of them, or text."""
    if column.logical is not LogicalType.ANY:
        return column.logical
    kinds = {type(image[index]) for change in run for image in (change.before, change.after) if image is not None}
    for kind, logical in ((int, LogicalType.INTEGER), (float, LogicalType.F64), (bytes, LogicalType.BYTES)):
        if kind in kinds and kinds <= {kind, type(None)}:
            return logical
    return LogicalType.ANY


def _arrow_type(kind: LogicalType, column: Column) -> DataType:
    pa = _pyarrow()
    match kind:
        case LogicalType.BOOL:
            return pa.bool_()
        case LogicalType.INTEGER:
            return pa.uint64() if column.unsigned else pa.int64()
        case LogicalType.F32 | LogicalType.F64:
            return pa.float64()
        case LogicalType.BYTES:
            return pa.binary()
        case LogicalType.DATE:
            return pa.date32()
        case LogicalType.TIME:
            return pa.duration("us")
        case LogicalType.DATETIME:
            return pa.timestamp("us")
        case LogicalType.INSTANT:
            return pa.timestamp("us", "UTC")
        case _:
            return pa.string()


def _only(kind: type[Any], get: Callable[[Any], Any] = lambda value: value) -> Callable[[Value], Any]:
    """Show values of one type; others are null, and stay what they are unless the function sets another."""
    return lambda value: get(value) if type(value) is kind else None


def _integer(value: Value) -> int | None:
    return value if type(value) is int and _I64[0] <= value <= _I64[1] else None


def _unsigned(value: Value) -> int | None:
    return value if type(value) is int and _U64[0] <= value <= _U64[1] else None


def _text(value: Value) -> str | None:
    return (
        None
        if value is None or not isinstance(value, str | int | float | Decimal | UUID | Json)
        else (value.text if isinstance(value, Json) else value_text(value))
    )


def _refuse(value: object) -> Value:
    raise ValueError("a value of such a type cannot be set; use the filter mask")


_SHOWN: Final[dict[LogicalType, Callable[[Value], Any]]] = {
    **dict.fromkeys(LogicalType, lambda value: None),
    LogicalType.ANY: _text,
    LogicalType.BOOL: _only(bool),
    LogicalType.INTEGER: _integer,
    LogicalType.F32: _only(F32, lambda value: value.value),
    LogicalType.F64: _only(float),
    LogicalType.DECIMAL: _only(Decimal, str),
    LogicalType.TEXT: _only(str),
    LogicalType.BYTES: _only(bytes),
    LogicalType.DATE: _only(Date, lambda value: value.days),
    LogicalType.TIME: _only(Time, lambda value: value.micros),
    LogicalType.DATETIME: _only(Datetime, lambda value: value.micros),
    LogicalType.INSTANT: _only(Instant, lambda value: value.micros),
    LogicalType.JSON: _only(Json, lambda value: value.text),
    LogicalType.UUID: _only(UUID, str),
}
_MADE: Final[dict[LogicalType, Callable[[Any], Value]]] = {
    **dict.fromkeys(LogicalType, _refuse),
    LogicalType.ANY: str,
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
    LogicalType.JSON: Json,
    LogicalType.UUID: UUID,
}
