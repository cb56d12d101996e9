"""Records as `thl` shows them: the ancestor's text forms, and the same as JSON. Decides, does not act.

Owns the text of a transaction, of a header, of the index and of the overview. The hard idea: people and scripts know
these forms from the ancestor, so names and order are its own; what our records say beyond it (the shard, which ours
keep in the record's header) stands where the ancestor's user looks for it.

Source: thl-internals, "'thl' Utility". Where the ancestor's output is a defect (B7-6: one event too few), ours is
right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final

import msgspec

from tranlog.change import Change, Column, Op, Options, RowChange, Statement, TableMap
from tranlog.header import TransactionHeader
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
from tranlog.log.records.format import RollbackMark
from tranlog.lsn import lsn_text
from tranlog.payload import DDL_OPTION, Payload
from tranlog.row_text import json_form
from tranlog.types import CharsetBytes, Datetime, Instant, LogicalType, Value, datetime_text, value_text

EVENT_TYPE: Final = "com.continuent.tungsten.replicator.event.ReplDBMSEvent"
"""What the ancestor's users see as TYPE of every transaction."""


# --- one fragment, for people ----------------------------------------------------------------------------


def fragment_lines(header: TransactionHeader, payload: Payload, style: Style = PLAIN) -> Iterator[str]:
    """Yield the lines of one fragment, as `thl list` prints them."""
    yield f"SEQ# = {header.seqno} / FRAG# = {header.fragno}{' (last frag)' if header.last_frag else ''}"
    yield f"- TIME = {time_text(header.tstamp, style.zone)}"
    yield f"- EPOCH# = {header.epoch}"
    yield f"- EVENTID = {header.event_id}"
    yield f"- SOURCEID = {header.source_id}"
    yield f"- METADATA = [{metadata_text(_with_shard(payload.metadata, header.shard_id))}]"
    yield f"- TYPE = {EVENT_TYPE}"
    if payload.options:
        yield f"- OPTIONS = [{options_text(payload.options)}]"
    schema = ""
    for number, item in enumerate(_grouped(payload.changes)):
        if isinstance(item, Statement):
            options = _statement_options(item)
            if options:
                yield f"- OPTIONS = [{options_text(options)}]"
            if item.schema != schema:
                schema = item.schema
                yield f"- SCHEMA = {schema}"
            yield f"- SQL({number}) = {sql_text(item, style)}"
        else:
            yield f"- SQL({number}) ="
            yield from _row_lines(item, style)


def sql_lines(header: TransactionHeader, payload: Payload, style: Style = PLAIN) -> Iterator[str]:
    """Yield the statements of one fragment, `;` after each; a comment for each table's row changes."""
    schema = ""
    for item in _grouped(payload.changes):
        if isinstance(item, Statement):
            if item.schema and item.schema != schema:
                yield f"USE {item.schema};"
                schema = item.schema
            yield f"{sql_text(item, style)};"
        else:
            counted = Counter((change.op.name, change.table.name) for change in item)
            for (op, table), rows in counted.items():
                yield f"/* SEQ# = {header.seqno} - {op} {table} ({rows}) - {NO_SQL_OF_ROWS} */"


def _with_shard(metadata: Options, shard_id: str) -> Options:
    """Return the metadata with the shard, which stands last unless it is among them."""
    return metadata if any(name == "shard" for name, _ in metadata) else (*metadata, ("shard", shard_id))


def _statement_options(statement: Statement) -> Options:
    return (*statement.options, (DDL_OPTION, "true")) if statement.ddl else statement.options


def sql_text(statement: Statement, style: Style = PLAIN) -> str:
    """Return a statement's text; bytes are read in the wanted charset or as UTF-8, what they cannot be as escapes."""
    if isinstance(statement.sql, str):
        return statement.sql
    charset = python_charset(style.charset or "utf-8") or "utf-8"
    return statement.sql.decode(charset, errors="backslashreplace")


def shown_value(value: Value, style: Style) -> str:
    """Return a value of a row; bytes in the wanted charset, or in hexadecimal without one or where `hex` is set."""
    match value:
        case bytes() if style.charset is not None and not style.hex:
            return value.decode(python_charset(style.charset) or "utf-8", errors="backslashreplace")
        case CharsetBytes(raw=raw) if style.charset is not None and not style.hex:
            return raw.decode(python_charset(style.charset) or "utf-8", errors="backslashreplace")
        case Instant(micros) if style.zone is not UTC:
            return _local_text(micros, style.zone)
        case _:
            return value_text(value)


def _local_text(micros: int, zone: tzinfo) -> str:
    """Return an instant by a zone's clock, with its offset as PostgreSQL writes it: `+09`, `+05:30`."""
    try:
        offset = (datetime.fromtimestamp(0, UTC) + timedelta(microseconds=micros)).astimezone(zone).utcoffset()
    except (OverflowError, ValueError):  # beyond the calendar's years no zone has rules
        return value_text(Instant(micros))
    minutes = int((offset or timedelta()).total_seconds()) // 60
    hours, rest = divmod(abs(minutes), 60)
    there = datetime_text(Datetime(micros + minutes * 60_000_000))
    return f"{there}{'-' if minutes < 0 else '+'}{hours:02d}" + (f":{rest:02d}" if rest else "")


def _grouped(changes: Sequence[Change]) -> Iterator[Statement | list[RowChange]]:
    """Yield the statements one by one and the runs of row changes between them, each run one SQL(i)."""
    run: list[RowChange] = []
    for change in changes:
        if isinstance(change, RowChange):
            run.append(change)
            continue
        if run:
            yield run
            run = []
        yield change
    if run:
        yield run


def _row_lines(run: Sequence[RowChange], style: Style) -> Iterator[str]:
    last: tuple[TableMap, Op] | None = None
    row = 0
    for change in run:
        kind = (change.table, change.op)
        if kind != last:
            last, row = kind, 0
            yield f" - ACTION = {change.op.name}"
            yield f" - SCHEMA = {change.table.schema}"
            yield f" - TABLE = {change.table.table}"
        yield f" - ROW# = {row}"
        row += 1
        for label, image in (("COL", change.after), ("KEY", change.before)):
            if image is not None:
                for index, (column, value) in enumerate(zip(change.table.columns, image, strict=True), start=1):
                    spec = _spec_text(index, column) if style.specs else f"{index}: {column.name}"
                    yield f"  - {label}({spec}) = {shown_value(value, style)}"


def _spec_text(index: int, column: Column) -> str:
    """Return a column as `-specs` shows it: the ancestor's words, with the source's own type and ours of it."""
    blob = column.logical is LogicalType.BYTES
    return (
        f"index={index} name={column.name} type={column.source_type} [{column.logical.name}] length={column.length} "
        f"unsigned={bool_text(column.unsigned)} blob={bool_text(blob)} desc={column.charset or ''}"
    )


# --- headers ---------------------------------------------------------------------------------------------


def mark_line(mark: RollbackMark) -> str:
    """Return the line that stands before what a rollback mark abandoned."""
    return (
        f"# ABANDONED by rollback mark {mark.number} at {lsn_text(mark.dead_end)}, {time_text(mark.written_at)}: "
        f"everything after {mark.matchpoint} up to seqno {mark.last_seqno}"
    )


def mark_json(mark: RollbackMark) -> str:
    """Return the same as one line of JSON."""
    shown = {
        "mark": lsn_text(mark.dead_end),
        "number": mark.number,
        "matchpoint": str(mark.matchpoint),
        "lastSeqno": mark.last_seqno,
        "time": time_text(mark.written_at),
    }
    return msgspec.json.encode(shown).decode()


# --- one fragment, for programs --------------------------------------------------------------------------


class ChangeJson(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """One change inside FragmentJson; a column that the source did not send is missing from its image."""

    op: str
    schema: str
    table: str = ""
    key: dict[str, object] | None = None
    before: dict[str, object] | None = None
    after: dict[str, object] | None = None
    statement: str = ""
    ddl: bool = False
    options: Options = ()


class FragmentJson(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One line of `thl list -json`: the names of `-headers -json`, and the content."""

    seqno: int
    epoch: int
    gtid: str
    frag: int
    last_frag: bool
    time: str
    tstamp: int
    event_id: str
    source_id: str
    shard_id: str
    tables: list[str] | None
    metadata: Options
    options: Options
    changes: list[ChangeJson]


def fragment_json(header: TransactionHeader, payload: Payload, zone: tzinfo = UTC) -> str:
    """Return one fragment as one line of JSON."""
    shown = FragmentJson(
        seqno=header.seqno,
        epoch=header.epoch,
        gtid=str(header.gtid),
        frag=header.fragno,
        last_frag=header.last_frag,
        time=time_text(header.tstamp, zone),
        tstamp=header.tstamp,
        event_id=header.event_id,
        source_id=header.source_id,
        shard_id=header.shard_id,
        tables=None if header.tables is None else [f"{schema}.{table}" for schema, table in header.tables],
        metadata=payload.metadata,
        options=payload.options,
        changes=[change_json(change) for change in payload.changes],
    )
    return msgspec.json.encode(shown).decode()


def change_json(change: Change) -> ChangeJson:
    """Return one change as JSON has it."""
    if isinstance(change, Statement):
        return ChangeJson(
            op="STATEMENT",
            schema=change.schema,
            statement=sql_text(change),
            ddl=change.ddl,
            options=change.options,
        )
    table = change.table
    image = change.after if change.before is None else change.before
    assert image is not None
    names = [table.columns[i].name for i in table.primary_key]
    return ChangeJson(
        op=change.op.name,
        schema=table.schema,
        table=table.table,
        key=_image(names, table.key_of(image)) if names else None,
        before=None if change.before is None else _image([c.name for c in table.columns], change.before),
        after=None if change.after is None else _image([c.name for c in table.columns], change.after),
    )


def _image(names: Sequence[str], values: Sequence[Value]) -> dict[str, object]:
    return {name: json_form(value) for name, value in zip(names, values, strict=True)}
