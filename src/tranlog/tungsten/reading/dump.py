"""A Tungsten event as `thl list -json` shows it: every field, by the ancestor's names. Decides, does not act.

Owns the names of fields, and the Java classes of values; what people read is `text`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, assert_never

from tranlog.tungsten.reading import text
from tranlog.tungsten.records import values
from tranlog.tungsten.records.event import (
    INSERT_ID,
    ColumnSpec,
    Event,
    EventChange,
    FileDelete,
    FileFragment,
    FileQuery,
    Row,
    RowChanges,
    RowId,
    StatementChange,
    TableChange,
)
from tranlog.tungsten.records.values import BinaryText, Cell, Flag, Long, Moment, Unscaled, decimal_of
from tranlog.types import F32

Json = Any
"""A value of a dump, as `json` reads it."""


def _options(options: Sequence[tuple[str, str]]) -> Json:
    return [list(option) for option in options]


def dump_event(event: Event) -> Json:
    """Return an event with every field, by the ancestor's names, as JSON can carry it."""
    header = event.header
    out: dict[str, Json] = {
        "class": "ReplDBMSFilteredEvent" if header.filtered else "ReplDBMSEvent",
        "shardId": event.shard_id,
        "sourceId": header.source_id,
        "eventId": header.event_id,
        "epoch": header.epoch,
        "seqno": header.seqno,
        "fragno": header.fragno,
        "lastFrag": header.last_frag,
        "extracted": header.tstamp,
    }
    if header.filtered:
        out |= {"seqnoEnd": header.seqno_end, "fragnoEnd": header.fragno_end}
    out["dbmsEvent"] = {
        "class": "DBMSEvent",
        "id": header.event_id,
        "lastFrag": True,
        "metadata": _options(event.metadata),
        "options": _options(event.options),
    }
    out["data"] = [_dump_change(change) for change in event.changes]
    return out


def _dump_change(change: EventChange) -> Json:
    match change:
        case StatementChange():
            return _dump_statement("StatementData", change)
        case RowChanges():
            return {
                "class": "RowChangeData",
                "options": _options(change.options) or None,
                "changes": [_dump_table(table) for table in change.tables],
            }
        case RowId():
            kind = INSERT_ID if change.kind is None else change.kind
            return {"class": "RowIdData", "options": None, "rowId": change.number, "type": kind}
        case FileFragment():
            return {
                "class": "LoadDataFileFragment",
                "options": None,
                "fileId": change.file_id,
                "schema": change.schema,
                "data": change.raw.hex(),
            }
        case FileQuery():
            return _dump_statement("LoadDataFileQuery", change.statement) | {
                "fileId": change.file_id,
                "filenameStartPos": change.name_start,
                "filenameEndPos": change.name_end,
            }
        case FileDelete():
            return {"class": "LoadDataFileDelete", "options": None, "fileId": change.file_id}
    assert_never(change)


def _dump_statement(name: str, change: StatementChange) -> dict[str, Json]:
    return {
        "class": name,
        "options": _options(change.options) or None,
        "query": text.statement_text(change),
        "queryBytes": None if change.raw_query is None else change.raw_query.hex(),
        "schema": change.schema,
        "timestamp": change.timestamp,
        "errorCode": change.error_code,
    }


def _dump_table(table: TableChange) -> Json:
    return {
        "schema": table.schema,
        "table": table.table,
        "action": table.op.name,
        "tableId": -1 if table.table_id is None else table.table_id,
        "keySpec": [_dump_spec(spec) for spec in table.key_specs],
        "columnSpec": [_dump_spec(spec) for spec in table.column_specs],
        "keyValues": [_dump_row(row) for row in table.keys],
        "columnValues": [_dump_row(row) for row in table.rows],
    }


def _dump_spec(spec: ColumnSpec) -> Json:
    return {
        "index": spec.index,
        "name": spec.name or "",
        "type": spec.sql_type,
        "length": spec.length,
        "unsigned": not spec.signed,
        "notNull": spec.not_null,
        "desc": spec.description or "",
    }


def _dump_row(row: Row) -> Json:
    return [_dump_cell(cell) for cell in row]


def _dump_cell(cell: Cell) -> Json:
    match cell:
        case None:
            return None
        case str():
            return {"class": "java.lang.String", "value": cell}
        case int():
            return {"class": "java.lang.Integer", "value": str(cell)}
        case Long(value=number):
            return {"class": "java.lang.Long", "value": str(number)}
        case Flag(value=number):
            return {"class": "java.lang.Integer", "value": str(number)}
        case float():
            return {"class": "java.lang.Double", "value": text.double_text(cell)}
        case F32(value=single):
            return {"class": "java.lang.Float", "value": text.double_text(single, single=True)}
        case bytes():
            return {"class": "com.continuent.tungsten.replicator.extractor.mysql.SerialBlob", "value": cell.hex()}
        case BinaryText(raw=raw):
            return {"class": "byte[]", "value": raw.hex()}
        case Unscaled(raw=raw, scale=scale):
            exact = decimal_of(cell)
            unscaled = str(int.from_bytes(raw, "big", signed=True))
            plain = "" if exact is None else f"{exact:f}"
            return {"class": "java.math.BigDecimal", "value": {"plain": plain, "unscaled": unscaled, "scale": scale}}
        case Moment(kind=kind, millis=millis, nanos=nanos, zone=zone):
            if millis is None:
                return {"class": "java.lang.Integer", "value": str(nanos or 0)}
            if kind == values.TIMESTAMP or zone is not None or nanos is not None:
                whole = millis % 1000 * 1_000_000 + (nanos or 0)
                return {"class": "java.sql.Timestamp", "value": {"millis": millis, "nanos": whole}}
            return {"class": "java.sql.Time" if kind == values.TIME else "java.sql.Date", "value": {"millis": millis}}
