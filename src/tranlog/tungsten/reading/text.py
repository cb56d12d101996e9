"""Events of a Tungsten log as the ancestor's `thl` prints them. Decides, does not act.

Owns the texts of list, list -sql, list -headers (and -json), index, info and purge. The hard idea: people and scripts
know these lines, so they are the ancestor's to the letter, except where its own are no answer: the address of a Java
object, an empty line that ends a value, one event too few. `intended` lists those.

Source: the listings beside the golden directories.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from datetime import tzinfo
from decimal import Decimal
from typing import Final

from tranlog.listing import (
    NO_SQL_OF_ROWS,
    PLAIN,
    Style,
    bool_text,
    metadata_text,
    options_text,
    python_charset,
    time_text,
)
from tranlog.tungsten.records import values
from tranlog.tungsten.records.event import (
    CHARSET_OPTION,
    LAST_INSERT_ID,
    ColumnSpec,
    Event,
    FileDelete,
    FileFragment,
    FileQuery,
    JavaObject,
    RowChanges,
    RowId,
    StatementChange,
    TableChange,
)
from tranlog.tungsten.records.record import EventRecord
from tranlog.tungsten.records.values import BinaryText, Cell, Flag, Long, Moment, Unscaled, decimal_of
from tranlog.tungsten.rules.translate import SQL_TYPES
from tranlog.types import F32, Date, Datetime, date_text, datetime_text

_PACKAGE: Final = "com.continuent.tungsten.replicator.event."
EVENT_TYPE: Final = f"{_PACKAGE}ReplDBMSEvent"
FILTERED_TYPE: Final = f"{_PACKAGE}ReplDBMSFilteredEvent"
SQL_BLOB: Final = 2004


# --- values ----------------------------------------------------------------------------------------------


def _java_decimal(digits: str, exponent: int) -> str:
    """Write significant digits, the first of which stands at 10**exponent, as Java's Double.toString does."""
    if -3 <= exponent < 7:
        if exponent < 0:
            return "0." + "0" * (-exponent - 1) + digits
        return digits[: exponent + 1].ljust(exponent + 1, "0") + "." + (digits[exponent + 1 :] or "0")
    return f"{digits[0]}.{digits[1:] or '0'}E{exponent}"


def double_text(number: float, *, single: bool = False) -> str:
    """Return a double, or a float of four bytes, as Java prints it: shortest digits, `1.0E10`, `NaN`, `-Infinity`."""
    if number != number:
        return "NaN"
    if number in (float("inf"), float("-inf")):
        return "Infinity" if number > 0 else "-Infinity"
    sign = "-" if struct.pack(">d", number)[0] & 0x80 else ""
    if number == 0:
        return sign + "0.0"
    number = abs(number)
    text = repr(number)
    if single:
        wanted = struct.pack(">f", number)
        for precision in range(9):
            text = f"{number:.{precision}e}"
            if abs(float(text)) < 3.4028236e38 and struct.pack(">f", float(text)) == wanted:
                break
    exact = Decimal(text).as_tuple()
    digits = "".join(map(str, exact.digits)).lstrip("0")
    assert isinstance(exact.exponent, int)
    exponent = exact.exponent + len(digits) - 1
    return sign + _java_decimal(digits.rstrip("0") or "0", exponent)


def _moment_text(moment: Moment, zone: tzinfo) -> str:
    if moment.millis is None:
        return str(moment.nanos or 0)
    below = moment.nanos or 0
    if moment.kind == values.TIMESTAMP:
        return time_text(moment.millis, zone, nanos=below)
    if moment.kind == values.TIME:
        if moment.nanos is not None:
            return time_text(moment.millis, nanos=below)
        return datetime_text(Datetime(moment.millis // 1000 * 1_000_000)).split(" ")[1]
    if moment.zone is None:
        return date_text(Date(moment.millis // 86_400_000))
    seconds, rest = divmod(moment.millis, 1000)
    text = datetime_text(Datetime(seconds * 1_000_000))
    nanos = rest * 1_000_000 + below
    return f"{text}.{nanos:09d}" if nanos else text


def cell_text(cell: Cell, style: Style = PLAIN) -> str:
    """Return a value of a row as `thl list` prints it."""
    match cell:
        case None:
            return "NULL"
        case str():
            return cell
        case int():
            return str(cell)
        case Long(value=number) | Flag(value=number):
            return str(number)
        case float():
            return double_text(cell)
        case F32(value=single):
            return double_text(single, single=True)
        case Unscaled():
            exact = decimal_of(cell)
            return f"0x{cell.raw.hex()} scale {cell.scale}" if exact is None else str(exact)
        case Moment():
            return _moment_text(cell, style.zone)
        case bytes():
            return "0x" + cell.hex() if style.hex else _text_of(cell, style.charset or "utf-8")
        case BinaryText(raw=raw):
            if style.charset is None or style.hex:
                return "0x" + raw.hex()
            return _text_of(raw, style.charset)


def _text_of(raw: bytes, charset: str) -> str:
    """Decode bytes as far as they go; in hexadecimal where the charset is not known."""
    known = python_charset(charset)
    return f"0x{raw.hex()} (the charset {charset} is not known)" if known is None else raw.decode(known, "replace")


def statement_text(statement: StatementChange, style: Style = PLAIN) -> str:
    """Return a statement's text, decoded by the charset among its options where it travels as bytes."""
    if statement.raw_query is None:
        return statement.query or ""
    named = next((value for name, value in statement.options if name == CHARSET_OPTION), "utf-8")
    return _text_of(statement.raw_query, style.charset or named)


# --- list ------------------------------------------------------------------------------------------------


def _last_mark(record: EventRecord) -> str:
    return " (last frag)" if record.last_frag else ""


def _filtered_lines(event: Event) -> Iterator[str]:
    header = event.header
    yield "## Filtered events ##"
    yield f"From Seqno# {header.seqno} / Fragno# {header.fragno}"
    yield f"To Seqno# {header.seqno_end or 0} / Fragno# {header.fragno_end or 0}"


def event_lines(record: EventRecord, event: Event | JavaObject, style: Style = PLAIN) -> Iterator[str]:
    """Yield the lines of one fragment, as `thl list` prints them."""
    tstamp = record.tstamp if isinstance(event, JavaObject) else event.header.tstamp
    yield f"SEQ# = {record.seqno} / FRAG# = {record.fragno}{_last_mark(record)}"
    yield f"- TIME = {time_text(tstamp, style.zone)}"
    yield f"- EPOCH# = {record.epoch}"
    yield f"- EVENTID = {record.event_id}"
    yield f"- SOURCEID = {record.source_id}"
    if isinstance(event, JavaObject):
        yield f"- SHARDID = {record.shard_id}"
        yield event.sentence()
        return
    yield f"- METADATA = [{metadata_text(event.metadata)}]"
    if event.header.filtered:
        yield f"- TYPE = {FILTERED_TYPE}"
        yield from _filtered_lines(event)
        return
    yield f"- TYPE = {EVENT_TYPE}"
    schema: str | None = None
    for number, change in enumerate(event.changes):
        match change:
            case StatementChange():
                yield from _statement_lines(number, change, schema, style)
                schema = schema if change.schema is None else change.schema
            case FileQuery(statement=statement):
                yield from _statement_lines(number, statement, schema, style)
                schema = schema if statement.schema is None else statement.schema
            case RowChanges(tables=tables, options=options):
                if options:
                    yield f"- OPTIONS = [{options_text(options)}]"
                yield f"- SQL({number}) ="
                for table in tables:
                    yield from _table_lines(table, style)
            case RowId():
                yield f"- SQL({number}) = {_row_id_text(change)}"
            case FileFragment(file_id=file_id, raw=raw):
                yield f"- DATA FILE #{file_id} / size : {len(raw)}"
            case FileDelete(file_id=file_id):
                yield f"- DATA FILE #{file_id} / delete"


def _row_id_text(change: RowId) -> str:
    return f"SET {'LAST_INSERT_ID' if change.kind == LAST_INSERT_ID else 'INSERT_ID'} = {change.number}"


def _statement_lines(number: int, statement: StatementChange, schema: str | None, style: Style) -> Iterator[str]:
    if statement.options:
        yield f"- OPTIONS = [{options_text(statement.options)}]"
    if statement.schema is not None and statement.schema != schema:
        yield f"- SCHEMA = {statement.schema}"
    yield f"- SQL({number}) = {statement_text(statement, style)}"


def _table_lines(table: TableChange, style: Style) -> Iterator[str]:
    yield f" - ACTION = {table.op.name}"
    yield f" - SCHEMA = {table.schema}"
    yield f" - TABLE = {table.table}"
    rows, keys = table.rows, table.keys
    for number in range(max(len(rows), len(keys))):
        yield f" - ROW# = {number}"
        if number < len(rows):
            yield from _cell_lines("COL", table.column_specs, rows[number], style)
        else:
            for spec in table.column_specs:
                yield f"Column specs only found : {spec.name or ''}"
        if number < len(keys):
            yield from _cell_lines("KEY", table.key_specs, keys[number], style)


def _cell_lines(label: str, specs: Sequence[ColumnSpec], row: Sequence[Cell], style: Style) -> Iterator[str]:
    for place, cell in enumerate(row):
        spec = specs[place] if place < len(specs) else ColumnSpec(index=place + 1, sql_type=0)
        shown = _spec_text(spec) if style.specs else f"{spec.index}: {spec.name or ''}"
        yield f"  - {label}({shown}) = {cell_text(cell, style)}"


def _spec_text(spec: ColumnSpec) -> str:
    kind, _ = SQL_TYPES.get(spec.sql_type, ("UNKNOWN", None))
    return (
        f"index={spec.index} name={spec.name or ''} type={spec.sql_type} [{kind}] "
        f"length={spec.length} unsigned={bool_text(not spec.signed)} blob={bool_text(spec.sql_type == SQL_BLOB)} "
        f"desc={spec.description or ''}"
    )


# --- list -sql -------------------------------------------------------------------------------------------


def sql_lines(record: EventRecord, event: Event | JavaObject, style: Style = PLAIN) -> Iterator[str]:
    """Yield the statements of one fragment; what is no statement as a comment."""
    if isinstance(event, JavaObject):
        yield f"/* SEQ# = {record.seqno} - {event.sentence()} */"
        return
    if event.header.filtered:
        yield from _filtered_lines(event)
        return
    schema: str | None = None
    for change in event.changes:
        match change:
            case StatementChange() | FileQuery():
                statement = change.statement if isinstance(change, FileQuery) else change
                if statement.schema and statement.schema != schema:
                    yield f"USE {statement.schema};"
                    schema = statement.schema
                yield f"{statement_text(statement, style)};"
            case RowChanges(tables=tables):
                for _ in tables:
                    yield f"/* SEQ# = {record.seqno} - {NO_SQL_OF_ROWS} */"
            case RowId():
                yield f"{_row_id_text(change)};"
            case FileFragment(file_id=file_id, raw=raw):
                yield f"/* SEQ# = {record.seqno} - {len(raw)} bytes of the data file {file_id} */"
            case FileDelete(file_id=file_id):
                yield f"/* SEQ# = {record.seqno} - the data file {file_id} is deleted */"


# --- list -headers ---------------------------------------------------------------------------------------
