"""An event of the ancestor as a fragment of ours, and back: both directions of one translation, and what each loses.

Owns the translation of one fragment; which fragments follow each other is `arrange`'s, acting is `converting`'s and
`translated`'s. The hard idea: both ways must give back what went in. What the native payload has no word for (column
specs, session options of rows, the serializer's clock) is kept beside it in a field that readers pass over, and so
little of it as the rules below cannot restore; a translation is checked against its own inverse, byte by byte, and
where that differs the whole original is kept. In the other direction the table map travels as an option of the row
changes. What is lost all the same has a name.

Source: docs/format.md.
"""

from __future__ import annotations

import base64
import binascii
import enum
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final, TypeAlias

import msgspec

from tranlog.change import NOOP, Change, Column, Op, Options, RowChange, Statement, TableMap, TableName
from tranlog.errors import PayloadError
from tranlog.header import TransactionHeader
from tranlog.payload import DDL_OPTION, Payload, decode_table_map, encode_table_map, kept_of, with_kept
from tranlog.payload import decode as decode_native
from tranlog.payload import encode as encode_native
from tranlog.statements import StatementKind, statement_kind
from tranlog.tungsten.records import values
from tranlog.tungsten.records.cells import cell_of, recell, spec_of, value_of
from tranlog.tungsten.records.event import (
    LAST_INSERT_ID,
    SHARD_OPTION,
    UNKNOWN_SHARD,
    ColumnSpec,
    Event,
    EventChange,
    EventHeader,
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
from tranlog.tungsten.records.payload import decode, encode
from tranlog.tungsten.records.record import EventRecord
from tranlog.tungsten.records.values import UNSCALED_BYTES_MAX, Cell, Moment, Unscaled, to_value
from tranlog.types import UNCHANGED, LogicalType, Other, Tag, Value

TABLE_OPTION: Final = "##tranlog_table"
"""Option of row changes that we wrote: the table map's bytes, in base64."""
FILTERED: Final = "filtered"
"""Value of the metadata `noop`: the ancestor's filtered range begins here."""
MISSING: Final = "missing"
"""Value of the metadata `noop`: the ancestor's log has no event of its own for this seqno or fragment."""
JAVA_OBJECT: Final = "java object"
"""Value of the metadata `noop`: the content is a serialized Java object, kept as it is and not read."""
FRAGNO_MAX: Final = 0x7FFF
_IS_DDL: Final = (DDL_OPTION, "true")
_IS_NO_DDL: Final = (DDL_OPTION, "false")


class Loss(enum.StrEnum):
    """What the other codec cannot say. The value is the name that people see."""

    JAVA_OBJECT = "java-object"
    LOAD_DATA = "load-data"
    IRREGULAR_ROWS = "irregular-rows"
    NANOSECONDS = "nanoseconds"
    LONG_DECIMAL = "long-decimal"
    ID_TEXT = "id-text"
    BELOW_ZERO = "below-zero"
    OUT_OF_ORDER = "out-of-order"
    WIDE_GAP = "wide-gap"
    EPOCH_BACK = "epoch-back"
    MANY_FRAGMENTS = "many-fragments"
    TABLE_MAP = "table-map"
    VALUE_BOOL = "value-bool"
    VALUE_NUMBER = "value-number"
    VALUE_TEXT = "value-text"
    VALUE_BYTES = "value-bytes"
    VALUE_TIME = "value-time"
    VALUE_BIT = "value-bit"
    VALUE_OTHER = "value-other"


MEANINGS: Final = {
    Loss.JAVA_OBJECT: "a payload of the replicator's JavaSerializer: it is kept as it is, and its changes are not read",
    Loss.LOAD_DATA: "a file of LOAD DATA: it is kept for the way back, and is no change here",
    Loss.IRREGULAR_ROWS: "a row change whose values do not fit its columns: kept for the way back, no change here",
    Loss.NANOSECONDS: "a time finer than a microsecond: kept for the way back, cut here",
    Loss.LONG_DECIMAL: "a decimal of more than 4096 bytes: it becomes its bytes in hex",
    Loss.ID_TEXT: "a zero character in a source, event or shard id: it is replaced",
    Loss.BELOW_ZERO: "an epoch or a commit time below zero: it becomes zero",
    Loss.OUT_OF_ORDER: "events that do not follow the ones before them: they are left out",
    Loss.WIDE_GAP: "more seqnos in a row without an event than a log without gaps can be filled with",
    Loss.EPOCH_BACK: "an epoch lower than the one before it, which no log here has",
    Loss.MANY_FRAGMENTS: "a transaction of more fragments than the replicator counts",
    Loss.TABLE_MAP: "a table whose columns cannot be described there: lengths, names",
    Loss.VALUE_BOOL: "a truth value in a column of another type",
    Loss.VALUE_NUMBER: "a number that its column does not hold, or a decimal without digits (NaN, infinity, -0)",
    Loss.VALUE_TEXT: "a text, label or JSON in a column of another type",
    Loss.VALUE_BYTES: "bytes in a column of another type, or in a charset that is not the column's",
    Loss.VALUE_TIME: "a date that no calendar has beside all zeros, or an infinite one",
    Loss.VALUE_BIT: "bits of another width than their column's",
    Loss.VALUE_OTHER: "a value of a type that does not exist there",
}
"""What each loss means, for people."""

FATAL: Final = frozenset({Loss.WIDE_GAP, Loss.EPOCH_BACK, Loss.MANY_FRAGMENTS})
"""What cannot be converted at all, also where loss is accepted."""
NO_CHANGES: Final = frozenset({Loss.JAVA_OBJECT, Loss.LOAD_DATA, Loss.IRREGULAR_ROWS})
"""What would not reach a target."""

_LOSS_OF_TAG: Final = {
    Tag.FALSE: Loss.VALUE_BOOL,
    Tag.TRUE: Loss.VALUE_BOOL,
    **dict.fromkeys((Tag.I64, Tag.U64, Tag.F32, Tag.F64, Tag.DECIMAL), Loss.VALUE_NUMBER),
    **dict.fromkeys((Tag.TEXT, Tag.ENUM, Tag.SET, Tag.JSON), Loss.VALUE_TEXT),
    **dict.fromkeys((Tag.BYTES, Tag.CHARSET_BYTES), Loss.VALUE_BYTES),
    **dict.fromkeys((Tag.DATE, Tag.TIME, Tag.DATETIME, Tag.INSTANT, Tag.ZERO_DATE, Tag.INFINITE_DATE), Loss.VALUE_TIME),
    Tag.BIT: Loss.VALUE_BIT,
    Tag.UUID: Loss.VALUE_OTHER,
    Tag.OTHER: Loss.VALUE_OTHER,
}


class Outer(msgspec.Struct, frozen=True, kw_only=True):
    """A record's header in the form that both codecs can write."""

    seqno: int
    fragno: int
    last_frag: bool
    epoch: int
    source_id: str
    event_id: str
    shard_id: str
    tstamp: int


FragmentHeader: TypeAlias = EventRecord | Outer | TransactionHeader
"""The header of a record in either codec."""


class NativeFragment(msgspec.Struct, frozen=True, kw_only=True):
    """A fragment of ours that stands for an event.

    `tables` are those touched, in order. `payload` holds `content`, and what is kept for the way back.
    """

    outer: Outer
    content: Payload
    payload: bytes
    tables: tuple[TableName, ...]
    losses: frozenset[Loss] = frozenset()

    @property
    def has_statement(self) -> bool:
        """Whether a statement is among the changes."""
        return any(isinstance(change, Statement) for change in self.content.changes)


class TungstenFragment(msgspec.Struct, frozen=True, kw_only=True):
    """An event's bytes that stand for a fragment of ours. `end`: see `EventHeader.end`."""

    payload: bytes
    losses: frozenset[Loss] = frozenset()
    end: tuple[int, int] | None = None


class _Form(msgspec.Struct, frozen=True, array_like=True):
    """What is kept for the way back.

    `serialized`: the serializer's clock. `skeleton`: the event with its header and, of the changes that can be
    restored, nothing but their columns; `taken` says for each of its changes how many of ours it became (n: restored
    from them; -1 - n: it stands in the skeleton whole). Without a skeleton the rules suffice. `raw`: the whole
    payload as it was.
    """

    serialized: int | None = None
    skeleton: bytes | None = None
    taken: tuple[int, ...] = ()
    raw: bytes | None = None


_FORM_ENCODER: Final = msgspec.msgpack.Encoder()
_FORM_DECODER: Final = msgspec.msgpack.Decoder(_Form)


# --- from the ancestor -----------------------------------------------------------------------------------


def outer_of(record: FragmentHeader) -> tuple[Outer, frozenset[Loss]]:
    """Return the header of an event record as a native record can hold it."""
    losses: set[Loss] = set()
    texts = [record.source_id, record.event_id, record.shard_id]
    if any("\0" in text for text in texts):
        losses.add(Loss.ID_TEXT)
        texts = [text.replace("\0", "\N{REPLACEMENT CHARACTER}") for text in texts]
    if record.epoch < 0 or record.tstamp < 0:
        losses.add(Loss.BELOW_ZERO)
    outer = Outer(
        seqno=record.seqno,
        fragno=record.fragno,
        last_frag=record.last_frag,
        epoch=max(record.epoch, 0),
        source_id=texts[0],
        event_id=texts[1],
        shard_id=texts[2],
        tstamp=max(record.tstamp, 0),
    )
    return outer, frozenset(losses)


def to_native(record: FragmentHeader, raw: bytes, *, keep: bool = True) -> NativeFragment:
    """Translate an event. Raises PayloadError for a payload that neither of the ancestor's serializers wrote.

    `keep` off keeps nothing for the way back: for whoever only reads.
    """
    outer, unsayable = outer_of(record)
    losses = set(unsayable)
    event = decode(raw)
    if isinstance(event, JavaObject):
        content = Payload(metadata=((NOOP, JAVA_OBJECT),))
        payload = encode_native(content)
        if keep:
            payload = with_kept(payload, _FORM_ENCODER.encode(_Form(raw=raw)))
        return NativeFragment(
            outer=outer, content=content, payload=payload, tables=(), losses=frozenset(losses | {Loss.JAVA_OBJECT})
        )
    header = event.header
    changes: list[Change] = []
    parts: list[int] = []
    for change in event.changes:
        ours, lost = _native_changes(change)
        losses |= lost
        parts.append(len(ours))
        changes += ours
    metadata = event.metadata
    if header.filtered:
        metadata = ((NOOP, FILTERED), *metadata)
    elif outer.shard_id != UNKNOWN_SHARD and metadata[-1:] == ((SHARD_OPTION, outer.shard_id),):
        metadata = metadata[:-1]
    content = Payload(metadata=metadata, options=event.options, changes=tuple(changes))
    try:
        payload = encode_native(content)
    except ValueError as exc:
        raise PayloadError(why=str(exc), seqno=record.seqno) from exc
    if keep:
        payload = _with_form(payload, content, event, raw, outer, parts)
    tables = dict.fromkeys((c.table.schema, c.table.table) for c in changes if isinstance(c, RowChange))
    return NativeFragment(outer=outer, content=content, payload=payload, tables=tuple(tables), losses=frozenset(losses))


def missing_fragment(outer: Outer) -> NativeFragment:
    """Return what stands where the ancestor's log has nothing: in a gap, or after the start of a filtered range."""
    content = Payload(metadata=((NOOP, MISSING),))
    return NativeFragment(outer=outer, content=content, payload=encode_native(content), tables=())


def _with_form(payload: bytes, content: Payload, event: Event, raw: bytes, outer: Outer, parts: Sequence[int]) -> bytes:
    """Add what the way back needs, as little as gives the same bytes."""
    plain = _Form(serialized=event.header.serialized)
    for form in (None if event.header.serialized == outer.tstamp else plain, _skeleton(content, event, parts)):
        kept = payload if form is None else with_kept(payload, _FORM_ENCODER.encode(form))
        back = _event_of(outer, content, form)
        if back is not None and encode(back[0]) == raw:
            return kept
    return with_kept(payload, _FORM_ENCODER.encode(_Form(raw=raw)))


def _skeleton(content: Payload, event: Event, parts: Sequence[int]) -> _Form:
    changes: list[EventChange] = []
    taken: list[int] = []
    at = 0
    for change, count in zip(event.changes, parts, strict=True):
        bare = _bare(change)
        ours = content.changes[at : at + count]
        at += count
        if bare is not None and _restored(bare, ours) == change:
            changes.append(bare)
            taken.append(count)
        else:
            changes.append(change)
            taken.append(-1 - count)
    skeleton = Event(header=event.header, changes=tuple(changes))
    return _Form(serialized=event.header.serialized, skeleton=encode(skeleton), taken=tuple(taken))


def _native_changes(change: EventChange) -> tuple[list[Change], set[Loss]]:
    match change:
        case StatementChange():
            return [_native_statement(change)], set()
        case RowChanges():
            own = _own_rows(change)
            return _foreign_rows(change) if own is None else (own, set())
        case RowId(number=number, kind=kind):
            name = "LAST_INSERT_ID" if kind == LAST_INSERT_ID else "INSERT_ID"
            return [Statement(schema="", sql=f"SET {name} = {number}", ddl=False)], set()
        case FileFragment() | FileQuery() | FileDelete():
            return [], {Loss.LOAD_DATA}


def _native_statement(change: StatementChange) -> Statement:
    """Translate a statement; DDL is what an option marks as such, or what begins like it."""
    sql: str | bytes = change.query if change.query is not None else change.raw_query or ""
    options = tuple(option for option in change.options if option != _IS_DDL)
    ddl = len(options) < len(change.options)
    if not ddl and _looks_like_ddl(sql):
        ddl = options[-1:] != (_IS_NO_DDL,)
        options = options if ddl else options[:-1]
    return Statement(
        schema=change.schema or "",
        sql=sql,
        ddl=ddl,
        timestamp=change.timestamp or 0,
        error_code=change.error_code,
        options=options,
    )


def _looks_like_ddl(sql: str | bytes) -> bool:
    readable = sql if isinstance(sql, str) else sql.decode("latin-1")
    return statement_kind(readable, marked_ddl=False) is StatementKind.DDL


def _foreign_rows(change: RowChanges) -> tuple[list[Change], set[Loss]]:
    """Translate rows of tables that the ancestor described."""
    changes: list[Change] = []
    losses: set[Loss] = set()
    for part in change.tables:
        found = _foreign_table(part)
        if found is None:
            losses.add(Loss.IRREGULAR_ROWS)
            continue
        changes += found
        for row in (*part.keys, *part.rows):
            for cell in row:
                if isinstance(cell, Moment) and (cell.nanos or 0) % 1000:
                    losses.add(Loss.NANOSECONDS)
                elif isinstance(cell, Unscaled) and len(cell.raw) > UNSCALED_BYTES_MAX:
                    losses.add(Loss.LONG_DECIMAL)
    return changes, losses


def _foreign_table(part: TableChange) -> list[Change] | None:
    keyed, valued = part.op is not Op.INSERT, part.op is not Op.DELETE
    if (
        (part.keys and not keyed)
        or (part.rows and not valued)
        or (keyed and valued and len(part.keys) != len(part.rows))
    ):
        return None
    key_specs, column_specs = part.key_specs if keyed else (), part.column_specs if valued else ()
    if any(len(row) != len(key_specs) for row in part.keys) or any(len(row) != len(column_specs) for row in part.rows):
        return None
    if any(len({spec.index for spec in specs}) != len(specs) for specs in (key_specs, column_specs)):
        return None
    datetimes = frozenset(
        spec.index
        for specs, rows in ((key_specs, part.keys), (column_specs, part.rows))
        for at, spec in enumerate(specs)
        if spec.sql_type == _DATE
        for row in rows
        if isinstance(cell := row[at], Moment) and cell.zone is not None
    )
    table, key_places, column_places = _foreign_map(part.schema, part.table, key_specs, column_specs, datetimes)
    width = len(table.columns)
    befores = _images(part.keys, key_specs, key_places, width)
    afters = _images(part.rows, column_specs, column_places, width)
    if part.op is Op.INSERT:
        return [RowChange(table, Op.INSERT, None, after) for after in afters]
    if part.op is Op.DELETE:
        return [RowChange(table, Op.DELETE, before, None) for before in befores]
    return [RowChange(table, Op.UPDATE, before, after) for before, after in zip(befores, afters, strict=True)]


def _images(
    rows: Sequence[Row], specs: Sequence[ColumnSpec], places: Sequence[int], width: int
) -> Iterator[tuple[Value, ...]]:
    for row in rows:
        image: list[Value] = [UNCHANGED] * width
        for cell, spec, place in zip(row, specs, places, strict=True):
            image[place] = _foreign_value(cell, spec)
        yield tuple(image)


def _foreign_value(cell: Cell, spec: ColumnSpec) -> Value:
    description = spec.description or ""
    value = to_value(cell, sql_type=spec.sql_type, signed=spec.signed, length=spec.length, description=description)
    if isinstance(value, Other) and isinstance(cell, int) and _is_year(description):
        return cell
    return value


def _is_year(description: str) -> bool:
    return description.upper().startswith("YEAR")


_DATE: Final = 91
SQL_TYPES: Final = {
    4: ("INTEGER", LogicalType.INTEGER),
    -7: ("BIT", LogicalType.BIT),
    2: ("NUMERIC", LogicalType.DECIMAL),
    3: ("DECIMAL", LogicalType.DECIMAL),
    6: ("FLOAT", LogicalType.F32),
    8: ("DOUBLE", LogicalType.F64),
    _DATE: ("DATE", LogicalType.DATE),
    92: ("TIME", LogicalType.TIME),
    93: ("TIMESTAMP", LogicalType.INSTANT),
    2004: ("BLOB", LogicalType.BYTES),
    1: ("CHAR", LogicalType.TEXT),
    12: ("VARCHAR", LogicalType.TEXT),
    -15: ("NCHAR", LogicalType.TEXT),
    -9: ("NVARCHAR", LogicalType.TEXT),
    2005: ("CLOB", LogicalType.TEXT),
    values.SQL_OTHER: ("OTHER", LogicalType.OTHER),
    0: ("NULL", LogicalType.ANY),
}
"""Names of java.sql.Types, and what each is here."""

_Places: TypeAlias = tuple[int, ...]


@lru_cache(maxsize=1024)
def _foreign_map(
    schema: str,
    table: str,
    key_specs: tuple[ColumnSpec, ...],
    column_specs: tuple[ColumnSpec, ...],
    datetimes: frozenset[int],
) -> tuple[TableMap, _Places, _Places]:
    """Return the table map for columns of the ancestor's, and which of its columns each spec describes.

    Keys that leave columns out are those that a filter reduced to what names a row: they count as the primary key.
    """
    by_index = {spec.index: spec for spec in (*key_specs, *column_specs)}
    order = {index: place for place, index in enumerate(sorted(by_index))}
    columns = []
    for index in order:
        spec = by_index[index]
        name, logical = SQL_TYPES.get(spec.sql_type, (f"java.sql.Types {spec.sql_type}", LogicalType.ANY))
        described = spec.description or name
        if index in datetimes or (spec.sql_type == _DATE and described.upper().startswith("DATETIME")):
            logical = LogicalType.DATETIME
        elif spec.sql_type == values.SQL_OTHER and _is_year(described):
            logical = LogicalType.INTEGER
        columns.append(
            Column(
                name=spec.name or f"@{index}",
                source_type=described,
                logical=logical,
                unsigned=not spec.signed,
                nullable=not spec.not_null,
                length=max(spec.length, 0),
            )
        )
    key_places = tuple([order[spec.index] for spec in key_specs])
    reduced = column_specs and key_specs and len(key_specs) < len(by_index)
    found = TableMap(
        schema=schema, table=table, columns=tuple(columns), primary_key=tuple(sorted(key_places)) if reduced else ()
    )
    return found, key_places, tuple([order[spec.index] for spec in column_specs])


# --- restoring from what is kept -------------------------------------------------------------------------


def _bare(change: EventChange) -> EventChange | None:
    """Return a change without what can be restored from ours, None where nothing can."""
    match change:
        case StatementChange(query=query, raw_query=raw_query):
            return msgspec.structs.replace(
                change, query=None if query is None else "", raw_query=None if raw_query is None else b""
            )
        case RowChanges(tables=tables):
            empty = tuple([msgspec.structs.replace(part, keys=(), rows=()) for part in tables])
            return msgspec.structs.replace(change, tables=empty) if len(tables) == 1 else None
        case _:
            return None


def _restored(bare: EventChange, ours: Sequence[Change]) -> EventChange | None:
    match bare:
        case StatementChange(query=query) if len(ours) == 1 and isinstance(statement := ours[0], Statement):
            sql = statement.sql
            if query is None:
                return msgspec.structs.replace(bare, raw_query=sql) if isinstance(sql, bytes) else bare
            return msgspec.structs.replace(bare, query=sql) if isinstance(sql, str) else None
        case RowChanges(tables=(part,)):
            changes = [change for change in ours if isinstance(change, RowChange)]
            if len(changes) != len(ours):
                return None
            keys = _cells([change.before for change in changes], part.key_specs, part)
            rows = _cells([change.after for change in changes], part.column_specs, part)
            return msgspec.structs.replace(bare, tables=(msgspec.structs.replace(part, keys=keys, rows=rows),))
    return None


def _cells(
    images: Sequence[tuple[Value, ...] | None], specs: Sequence[ColumnSpec], part: TableChange
) -> tuple[Row, ...]:
    if not images or images[0] is None:
        return ()
    keyed = part.key_specs if part.op is not Op.INSERT else ()
    valued = part.column_specs if part.op is not Op.DELETE else ()
    indexes = sorted({spec.index for spec in (*keyed, *valued)})
    order = {index: place for place, index in enumerate(indexes)}
    places = [order[spec.index] for spec in specs]
    return tuple(
        [
            tuple([recell(image[place], spec) for place, spec in zip(places, specs, strict=True)])
            for image in images
            if image is not None
        ]
    )


# --- to the ancestor -------------------------------------------------------------------------------------


def to_tungsten(header: FragmentHeader, payload: bytes) -> TungstenFragment | None:
    """Translate a fragment of ours; None where the ancestor's log has nothing. Raises PayloadError."""
    try:
        kept = kept_of(payload)
        form = None if kept is None else _FORM_DECODER.decode(kept)
        content = decode_native(payload)
    except PayloadError as exc:
        raise PayloadError(why=exc.why, seqno=header.seqno) from exc
    except msgspec.DecodeError as exc:
        raise PayloadError(why=f"what is kept of another codec is damaged ({exc})", seqno=header.seqno) from exc
    if form is not None and form.raw is not None:
        event = decode(form.raw)
        return TungstenFragment(payload=form.raw, end=None if isinstance(event, JavaObject) else event.header.end)
    if form is None and not content.changes and content.metadata == ((NOOP, MISSING),):
        return None
    found = _event_of(header, content, form)
    if found is None:
        raise PayloadError(why="what is kept of another codec does not fit the changes", seqno=header.seqno)
    event, losses = found
    return TungstenFragment(payload=encode(event), losses=losses, end=event.header.end)


def _event_of(header: FragmentHeader, content: Payload, form: _Form | None) -> tuple[Event, frozenset[Loss]] | None:
    """Put the event together; None where what is kept does not fit."""
    losses: frozenset[Loss] = frozenset()
    if form is not None and form.skeleton is not None:
        skeleton = decode(form.skeleton)
        if isinstance(skeleton, JavaObject) or len(skeleton.changes) != len(form.taken):
            return None
        whole: list[EventChange] = []
        at = 0
        for bare, count in zip(skeleton.changes, form.taken, strict=True):
            if count < 0:
                at -= count + 1
                whole.append(bare)
                continue
            change = _restored(bare, content.changes[at : at + count])
            at += count
            if change is None:
                return None
            whole.append(change)
        if at != len(content.changes):
            return None
        inner, changes = skeleton.header, tuple(whole)
    else:
        serialized = header.tstamp if form is None or form.serialized is None else form.serialized
        inner = EventHeader(
            seqno=header.seqno,
            fragno=header.fragno,
            last_frag=header.last_frag,
            tstamp=header.tstamp,
            serialized=serialized,
            source_id=header.source_id,
            epoch=header.epoch,
            event_id=header.event_id,
        )
        changes, losses = _tungsten_changes(content.changes)
    metadata = content.metadata
    if inner.filtered:
        if metadata[:1] != ((NOOP, FILTERED),):
            return None
        metadata = metadata[1:]
    else:
        metadata = _with_shard(metadata, header.shard_id)
    return Event(header=inner, changes=changes, metadata=metadata, options=content.options), losses


def _with_shard(metadata: Options, shard_id: str) -> Options:
    """Add the shard, by which the ancestor goes, unless the metadata say it already."""
    if shard_id == UNKNOWN_SHARD:
        return metadata
    named = any(name == SHARD_OPTION for name, _ in metadata)
    if not named or metadata[-1] == (SHARD_OPTION, shard_id):
        return (*metadata, (SHARD_OPTION, shard_id))
    return metadata


def _tungsten_changes(changes: Sequence[Change]) -> tuple[tuple[EventChange, ...], frozenset[Loss]]:
    out: list[EventChange] = []
    losses: set[Loss] = set()
    at = 0
    while at < len(changes):
        change = changes[at]
        if isinstance(change, Statement):
            out.append(_tungsten_statement(change))
            at += 1
            continue
        end = at + 1
        while end < len(changes) and isinstance(found := changes[end], RowChange) and found.table == change.table:
            end += 1
        run = [one for one in changes[at:end] if isinstance(one, RowChange)]
        out.append(_tungsten_rows(change.table, run, losses))
        at = end
    return tuple(out), frozenset(losses)


def _tungsten_statement(statement: Statement) -> StatementChange:
    sql = statement.sql
    mark: Options = ()
    if statement.ddl:
        mark = (_IS_DDL,)
    elif _looks_like_ddl(sql):
        mark = (_IS_NO_DDL,)
    return StatementChange(
        schema=statement.schema,
        timestamp=statement.timestamp,
        query=sql if isinstance(sql, str) else None,
        options=statement.options + mark,
        error_code=statement.error_code,
        raw_query=sql if isinstance(sql, bytes) else None,
    )


def _tungsten_rows(table: TableMap, run: Sequence[RowChange], losses: set[Loss]) -> RowChanges:
    """Return the changes of one table, cut where the operation or the columns that are there differ."""
    parts: list[TableChange] = []
    form: tuple[Op, _Places, _Places] | None = None
    keys: list[Row] = []
    rows: list[Row] = []
    columns = table.columns

    def close() -> None:
        if form is not None:
            op, before, after = form
            parts.append(
                TableChange(
                    schema=table.schema,
                    table=table.table,
                    op=op,
                    key_specs=tuple([_spec(columns[i], i + 1) for i in before]),
                    column_specs=tuple([_spec(columns[i], i + 1) for i in after]),
                    keys=tuple(keys),
                    rows=tuple(rows),
                )
            )

    for change in run:
        wanted = (change.op, _there(change.before), _there(change.after))
        if wanted != form:
            close()
            form, keys, rows = wanted, [], []
        if change.before is not None:
            keys.append(_row(change.before, wanted[1], columns, losses))
        if change.after is not None:
            rows.append(_row(change.after, wanted[2], columns, losses))
    close()
    try:
        encoded = base64.b64encode(encode_table_map(table)).decode()
    except ValueError:
        losses.add(Loss.TABLE_MAP)
        return RowChanges(tables=tuple(parts))
    return RowChanges(tables=tuple(parts), options=((TABLE_OPTION, encoded),))


def _there(image: tuple[Value, ...] | None) -> _Places:
    return () if image is None else tuple([i for i, value in enumerate(image) if value is not UNCHANGED])


def _row(image: tuple[Value, ...], places: _Places, columns: tuple[Column, ...], losses: set[Loss]) -> Row:
    cells: list[Cell] = []
    for place in places:
        cell, lost = cell_of(image[place], columns[place])
        if lost is not None:
            losses.add(_LOSS_OF_TAG[lost])
        cells.append(cell)
    return tuple(cells)


_spec = lru_cache(maxsize=4096)(spec_of)


def _own_rows(change: RowChanges) -> list[Change] | None:
    """Read row changes that `_tungsten_rows` wrote; None for any other."""
    if len(change.options) != 1 or change.options[0][0] != TABLE_OPTION:
        return None
    try:
        table = decode_table_map(base64.b64decode(change.options[0][1], validate=True))
    except (ValueError, IndexError, binascii.Error):
        return None
    changes: list[Change] = []
    for part in change.tables:
        if (part.schema, part.table) != (table.schema, table.table):
            return None
        befores = _own_images(part.keys, part.key_specs, table)
        afters = _own_images(part.rows, part.column_specs, table)
        if befores is None or afters is None:
            return None
        keyed, valued = part.op is not Op.INSERT, part.op is not Op.DELETE
        if bool(befores) is not keyed or bool(afters) is not valued:
            return None
        if keyed and valued and len(befores) != len(afters):
            return None
        for at in range(max(len(befores), len(afters))):
            changes.append(RowChange(table, part.op, befores[at] if keyed else None, afters[at] if valued else None))
    return changes


def _own_images(rows: Sequence[Row], specs: Sequence[ColumnSpec], table: TableMap) -> list[tuple[Value, ...]] | None:
    places = [spec.index - 1 for spec in specs]
    if any(not 0 <= place < len(table.columns) for place in places):
        return None
    images: list[tuple[Value, ...]] = []
    for row in rows:
        if len(row) != len(places):
            return None
        image: list[Value] = [UNCHANGED] * len(table.columns)
        for cell, place in zip(row, places, strict=True):
            image[place] = value_of(cell, table.columns[place])
        images.append(tuple(image))
    return images
