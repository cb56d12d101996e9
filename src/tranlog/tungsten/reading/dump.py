"""A Tungsten segment as the golden directories dump it: every field of every record. Decides, does not act.

Owns the form of `dump.jsonl`: the ancestor's names of fields, and the Java classes of values. For the tests of the
codec; what people read is `text`'s.

Source: README of the golden directories, "dump.jsonl".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, assert_never

from tranlog.errors import PayloadError
from tranlog.tungsten.reading import text
from tranlog.tungsten.records import values
from tranlog.tungsten.records.codec import FILE_HEADER, checksum_problem, parse_file_header, scan
from tranlog.tungsten.records.event import (
    INSERT_ID,
    ColumnSpec,
    Event,
    EventChange,
    FileDelete,
    FileFragment,
    FileQuery,
    JavaObject,
    Row,
    RowChanges,
    RowId,
    StatementChange,
    TableChange,
)
from tranlog.tungsten.records.payload import decode
from tranlog.tungsten.records.record import (
    BadLength,
    Damaged,
    EventRecord,
    FileHeader,
    PartialEvent,
    Short,
    TungstenRotate,
    UnknownRecord,
)
from tranlog.tungsten.records.values import BinaryText, Cell, Flag, Long, Moment, Unscaled, decimal_of
from tranlog.types import F32

Json = Any
"""A value of a dump, as `json` reads it."""


def dump_segment(name: str, raw: bytes, *, checked: bool) -> Iterator[Json]:
    """Yield a segment in the form of `dump.jsonl`; an error's text is `error` alone, since the wording is ours."""
    header = parse_file_header(raw)
    if not isinstance(header, FileHeader):
        if isinstance(header, PartialEvent):
            yield {"file": name, "size": len(raw), "error": "error"}
        return
    yield {"file": name, "size": len(raw), "baseSeqno": header.base_seqno}
    at = FILE_HEADER.size
    for outcome in scan(raw, checked=checked):
        if isinstance(outcome, Short | BadLength):
            yield {"offset": at, "truncated": True}
            return
        yield _dump_record(raw, outcome)
        at = outcome.offset + outcome.length


def _dump_record(raw: bytes, record: EventRecord | TungstenRotate | UnknownRecord | Damaged) -> Json:
    kind = raw[record.offset + 4]
    line: dict[str, Json] = {
        "offset": record.offset,
        "length": record.length,
        "type": kind,
        "crcType": record.crc_type,
        "crc": record.crc,
        "crcOk": checksum_problem(raw, record.offset, record.length) is None,
    }
    match record:
        case Damaged():
            line["error"] = "error"
        case TungstenRotate(next_segment=number):
            line["rotateIndex"] = number
        case EventRecord():
            line |= {
                "seqno": record.seqno,
                "fragno": record.fragno,
                "lastFrag": record.last_frag,
                "epoch": record.epoch,
                "sourceId": record.source_id,
                "eventId": record.event_id,
                "shardId": record.shard_id,
                "sourceTstamp": record.tstamp,
            }
            try:
                event = decode(payload_of(raw, record))
            except PayloadError:
                line["error"] = "error"
            else:
                line["event"] = None if isinstance(event, JavaObject) else dump_event(event)
        case UnknownRecord():
            pass
    return line


def payload_of(raw: bytes, record: EventRecord) -> bytes:
    """Return an event's payload out of its whole segment."""
    return raw[record.payload_offset : record.payload_offset + record.payload_length]


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
