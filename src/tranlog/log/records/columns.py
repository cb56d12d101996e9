"""Records and row changes as columns: where each field and each value lies in a stretch of a segment.

Owns the walk over the bytes that makes no object per record, row or value: it notes offsets, from which `arrow` cuts
columns. What the bytes mean is `format`'s and `payload`'s, and this module follows their tables. The hard idea: values
in a row lie one after the other, so the place where one begins is where the one before it ends, and a column of a
table is every k-th piece of the same bytes.

Source: docs/performance.md; docs/format.md.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from mypy_extensions import mypyc_attr

from tranlog.change import Statement, TableMap, TableName
from tranlog.checksum import crc32
from tranlog.errors import PayloadError
from tranlog.header import Record
from tranlog.ids import Seqno
from tranlog.log.records.format import (
    CRC_32,
    EVENT_DATA_LENGTH,
    EVENT_MIN,
    EVENT_START,
    EVENT_TSTAMP,
    EVENT_TYPE,
    TRAILER,
    RecordHeader,
    encode_tables,
    parse_tables,
    tables_end,
)
from tranlog.payload import OP_STATEMENT, PACKED_VERSION, decode, decode_table_map
from tranlog.shard import UNKNOWN_SHARD
from tranlog.value_ends import pass_value

FIELDS: Final = 6
"""Pieces that a record is cut into: its start with the source_id, event_id, shard_id (each with its NUL), tstamp and
extension and length, the payload with the trailer, and what is passed over after it."""
NOOP_KIND: Final = 0
"""The kind of the one row of a transaction without changes; the other kinds are the numbers of their operations."""
_UPDATE: Final = 3
_LAST_FRAG: Final = 19
"""Where last_frag stands in an event record."""
_IMAGES: Final = (None, range(1), range(1), range(2))
_VERDICTS_MAX: Final = 10_000
_STATEMENT_KEY: Final = 0x0A
_METADATA_KEY: Final = 0x12
"""The first byte of the envelope's fields 1 and 2."""


@mypyc_attr(native_class=False)  # a frozen dataclass with slots cannot be one
@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which transactions and which of their rows are wanted; None wants all. Shards, schemas and tables all count.

    With schemas or tables, what belongs to none is not wanted: transactions without changes, and with tables also
    statements.
    """

    shards: frozenset[str] | None = None
    schemas: frozenset[str] | None = None
    tables: frozenset[TableName] | None = None

    def wants(self, shard_id: str, tables: tuple[TableName, ...] | None) -> bool:
        """Whether a transaction can hold a wanted row, by its header alone."""
        if self.shards is not None and shard_id not in self.shards:
            return False
        if tables is None or (self.schemas is None and self.tables is None):
            return True
        if any(self.wants_row(schema, table) for schema, table in tables):
            return True
        # A statement has a schema and no table; a transaction with one in it has no shard.
        return self.tables is None and (not tables or shard_id == UNKNOWN_SHARD)

    def wants_row(self, schema: str, table: str) -> bool:
        """Whether the rows of a table are wanted."""
        return (self.schemas is None or schema in self.schemas) and (
            self.tables is None or (schema, table) in self.tables
        )

    def wants_statement(self, schema: str) -> bool:
        """Whether the statements in a schema are wanted."""
        return self.tables is None and (self.schemas is None or schema in self.schemas)

    def wants_noop(self) -> bool:
        """Whether transactions without changes are wanted."""
        return self.tables is None and self.schemas is None


ALL: Final = Selection()


class Block:
    """Records that lie in one buffer, in order: `offsets` has FIELDS numbers for each.

    They were taken out of those in `raw[start:behind]`, the first of which has the seqno `first`.
    """

    __slots__ = ("behind", "first", "offsets", "raw", "start")

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.offsets = array("i")
        self.start = self.behind = self.first = 0

    def __len__(self) -> int:
        return len(self.offsets) // FIELDS

    def payloads(self) -> list[tuple[int, int]]:
        """Return where each payload begins and ends."""
        offsets = self.offsets
        return [(at, behind - TRAILER.size) for at, behind in zip(offsets[4::FIELDS], offsets[5::FIELDS], strict=True)]

    def seqno(self, number: int) -> Seqno:
        """Return the seqno of one of the records."""
        return Seqno(EVENT_START.unpack_from(self.raw, self.offsets[number * FIELDS])[3])


def block_of(record: Record, verdict: RecordHeader | None = None) -> Block:
    """Return a block of one record that was read by itself; event id, shard, tables and time are `verdict`'s."""
    header = record.header
    last = header if verdict is None else verdict
    pieces = (
        EVENT_START.pack(0, EVENT_TYPE, 0, header.seqno, header.fragno, header.last_frag, header.epoch)
        + header.source_id.encode()
        + b"\0",
        last.event_id.encode() + b"\0",
        last.shard_id.encode() + b"\0",
        EVENT_TSTAMP.pack(last.tstamp) + (encode_tables(last.tables) if last.tables != () else b"") + b"\0\0\0\0",
        record.payload + bytes(TRAILER.size),
    )
    block = Block(b"".join(pieces))
    at = 0
    for piece in pieces:
        block.offsets.append(at)
        at += len(piece)
    block.offsets.append(at)
    return block


def scan_block(
    block: Block, at: int, seqno: int, upto: int, *, checksum: bool, selection: Selection, verdicts: dict[bytes, bool]
) -> tuple[int, int]:
    """Take the transactions of one fragment each, from `seqno`, which stands at `at`, on, into an empty block.

    Ends: before the first that is something else, does not lie wholly in the bytes, has a wrong checksum or none
    (with `checksum`), or is after `upto`. Return its place and seqno. What is not wanted is passed over, its
    checksum too. `verdicts` remembers what was wanted, from block to block.
    """
    block.start, block.first = at, seqno
    raw = block.raw
    unpack, index, end = EVENT_START.unpack_from, raw.index, len(raw)
    length_of, trailer_of = EVENT_DATA_LENGTH.unpack_from, TRAILER.unpack_from
    offsets: list[int] = []  # a list takes numbers faster than an array does, compiled or not
    everything = selection == ALL
    view = memoryview(raw)
    try:
        while seqno <= upto:
            length, kind, header_length, number, fragno, last_frag, _ = unpack(raw, at)
            if number != seqno or fragno or last_frag != 1 or kind != EVENT_TYPE or not EVENT_MIN <= length <= end - at:
                break
            second = index(0, at + 28) + 1
            third = index(0, second) + 1
            fourth = index(0, third) + 1
            payload = at + 13 + header_length
            behind = at + length
            if fourth + 12 > payload or payload + 5 > behind:
                break
            if not everything:
                listed = raw[fourth + 8 : min(tables_end(raw, fourth + 8, payload - 4), payload - 4)]
                key = raw[third:fourth] + listed
                verdict = verdicts.get(key)
                if verdict is None:
                    if len(verdicts) >= _VERDICTS_MAX:
                        verdicts.clear()
                    wanted = selection.wants(raw[third : fourth - 1].decode(), parse_tables(listed))
                    verdict = verdicts[key] = wanted
                if not verdict:
                    at = behind
                    seqno += 1
                    continue
            if checksum:
                method, crc = trailer_of(raw, behind - 5)
                if method != CRC_32 or crc != crc32(view[at : behind - 4]):
                    break
            elif length_of(raw, payload - 4)[0] != length - 18 - header_length:
                break
            offsets += (at, second, third, fourth, payload, behind)
            at = behind
            seqno += 1
    except (ValueError, struct.error):
        pass  # the bytes end in the middle of a header, or are damaged: for the cursor's slow path to say
    block.offsets = array("i", offsets)
    block.behind = at
    return at, seqno


class TableRows:
    """One table map as payloads carry it: its number, that of its name, and whether its rows are wanted."""

    __slots__ = ("name", "number", "table", "values", "wanted")

    def __init__(self, table: TableMap, number: int, name: int, wanted: bool) -> None:
        self.table = table
        self.number = number
        self.name = name
        self.wanted = wanted
        self.values = range(len(table.columns))


class Rows:
    """The rows of the records walked so far, and where their values lie. Not for threads.

    `records` has the number of each row's record. With `detail`, `kinds` has its operation, `tables` the number of its
    table map or -1, `changenos` the number of its change in the fragment, and `starts` where the values of its first
    image begin in `values`, or the number of its statement. `values` has, for each image of a block, one place per
    value and one for the image's end; `before` are those of earlier blocks. Per record, `metadata` has the number of
    its metadata in `known_metadata`.
    """

    def __init__(self, selection: Selection = ALL, *, detail: bool, images: bool, metadata: bool) -> None:
        self.selection = selection
        self.with_detail = detail or not selection.wants_noop()
        self.with_images = images
        self.with_metadata = metadata
        self.seen = False
        """Whether the open transaction has had a change."""
        self.clear()

    def clear(self) -> None:
        """Forget all rows."""
        self.records = array("i")
        self.kinds = array("b")
        self.tables = array("i")
        self.starts = array("i")
        self.changenos = array("i")
        self.values = array("i")
        self.before = 0
        self.metadata = array("i")
        self.statements: list[Statement] = []
        self.by_map: dict[bytes, TableRows] = {}
        self.names: dict[TableName, int] = {}
        self.known_metadata: dict[bytes, int] = {b"": 0}

    def __len__(self) -> int:
        return len(self.records)

    def tables_of(self, raw: bytes, at: int, count: int) -> tuple[Sequence[TableRows], int]:
        """Read so many table maps from `at` on; return them and where they end."""
        found = []
        by_map = self.by_map
        for _ in range(count):
            size, at = read_varint(raw, at)
            chunk = raw[at : at + size]
            at += size
            rows = by_map.get(chunk)
            if rows is None:
                table = decode_table_map(chunk)
                name = self.names.setdefault((table.schema, table.table), len(self.names))
                wanted = self.selection.wants_row(table.schema, table.table)
                rows = by_map[chunk] = TableRows(table, len(by_map), name, wanted)
            found.append(rows)
        return found, at

    def walk(self, block: Block, first_record: int) -> None:
        """Note the rows of a block's payloads; its first record is number `first_record`. Raises PayloadError."""
        self.before += len(self.values)
        spans = block.payloads()
        malformed = self._walk(block, spans, first_record)
        if malformed is not None:
            number, why = malformed
            start, end = spans[number]
            seqno = block.seqno(number)
            try:
                decode(block.raw[start:end])  # says what is wrong as it says it elsewhere
            except PayloadError as exc:
                raise PayloadError(why=exc.why, seqno=seqno) from exc
            raise PayloadError(why=why, seqno=seqno)

    def _walk(self, block: Block, spans: Sequence[tuple[int, int]], first_record: int) -> tuple[int, str] | None:
        """Walk the payloads; return the number of one that is malformed, and why, or None."""
        raw = block.raw
        push_record, push_kind, push_start = self.records.append, self.kinds.append, self.starts.append
        push_table, push_changeno = self.tables.append, self.changenos.append
        with_detail, with_images, with_metadata = self.with_detail, self.with_images, self.with_metadata
        by_map, wants_noop = self.by_map, self.selection.wants_noop()
        known_metadata, push_metadata, images_of = self.known_metadata, self.metadata.append, _IMAGES
        # Only a block of one record, read by itself, can be a fragment before the last.
        last = len(spans) > 1 or bool(spans and raw[block.offsets[0] + _LAST_FRAG])
        place = self.before
        noted: list[int] = []  # a list takes numbers faster than an array does, compiled or not
        ignored: list[int] = []
        seen = self.seen
        number = 0
        tables: Sequence[TableRows]
        try:
            for number, (start, end) in enumerate(spans):
                record = first_record + number
                at = start
                packed = packed_end = metadata_start = metadata_end = 0
                statements: list[Statement] | None = None
                while at < end:
                    key = raw[at]
                    if key == 0xA2 and raw[at + 1] == 6:
                        size = raw[at + 2]
                        at += 3
                        if size >= 0x80:
                            size, at = read_varint(raw, at - 1)
                        packed = at
                        at = packed_end = at + size
                        continue
                    field = at
                    at = pass_field(raw, at)
                    if key == _STATEMENT_KEY:
                        (statement,) = decode(raw[field:at]).changes
                        assert isinstance(statement, Statement)
                        statements = [statement] if statements is None else [*statements, statement]
                    elif key == _METADATA_KEY:
                        metadata_start = metadata_start or field
                        metadata_end = at
                if at != end:
                    return number, "a field of it passes the end"
                if with_metadata:
                    if metadata_end:
                        chunk = raw[metadata_start:metadata_end]
                        push_metadata(known_metadata.setdefault(chunk, len(known_metadata)))
                    else:
                        push_metadata(0)
                if packed:
                    if raw[packed] != PACKED_VERSION:
                        return number, f"packed form version {raw[packed]}"
                    if raw[packed + 1] == 1:  # one table, in line: this is the walk's cost for small transactions
                        size = raw[packed + 2]
                        at = packed + 3
                        if size >= 0x80:
                            size, at = read_varint(raw, at - 1)
                        one = by_map.get(raw[at : at + size])
                        if one is None:
                            tables, at = self.tables_of(raw, packed + 2, 1)
                        else:
                            tables = (one,)
                            at += size
                    else:
                        count, at = read_varint(raw, packed + 1)
                        tables, at = self.tables_of(raw, at, count)
                    count = raw[at]
                    at += 1
                    if count >= 0x80:
                        count, at = read_varint(raw, at - 1)
                    if count > packed_end - at:
                        return number, f"{count} changes announced, {packed_end - at} bytes there"
                elif statements is not None:
                    count = len(statements)
                else:
                    count = 0
                if count:
                    seen = True
                    if not with_detail:
                        for _ in range(count):
                            push_record(record)
                    elif not packed:
                        assert statements is not None
                        for changeno, statement in enumerate(statements):
                            self._add_statement(record, changeno, statement)
                    else:
                        placed = 0
                        for changeno in range(count):
                            op = raw[at]
                            which = raw[at + 1]
                            at += 2
                            if which >= 0x80:
                                which, at = read_varint(raw, at - 1)
                            if op == OP_STATEMENT:
                                if statements is None or which != placed or which >= len(statements):
                                    return number, f"statement {which} is out of place"
                                self._add_statement(record, changeno, statements[which])
                                placed += 1
                                continue
                            images = images_of[op]
                            if images is None:
                                return number, f"operation {op}"
                            rows = tables[which]
                            values = rows.values
                            target = ignored
                            if rows.wanted:
                                push_record(record)
                                push_kind(op)
                                push_table(rows.number)
                                push_start(place)
                                push_changeno(changeno)
                                if with_images:
                                    target = noted
                                    place += len(values) + 1 if op != _UPDATE else 2 * len(values) + 2
                            if count == 1 and not with_images:
                                at = packed_end  # nothing stands after it
                                break
                            for _ in images:
                                for _ in values:
                                    target.append(at)
                                    tag = raw[at]
                                    if tag == 4:
                                        at += 1
                                        while raw[at] >= 0x80:
                                            at += 1
                                        at += 1
                                    elif tag == 9 or tag == 10 or tag == 8:
                                        size = raw[at + 1]
                                        if size < 0x80:
                                            at += size + 2
                                        else:
                                            size, at = read_varint(raw, at + 1)
                                            at += size
                                    elif tag < 4:
                                        at += 1
                                    elif tag == 7:
                                        at += 9
                                    elif tag == 14:
                                        at += 1
                                        while raw[at] >= 0x80:
                                            at += 1
                                        at += 1
                                    else:
                                        at = pass_value(raw, at)
                                target.append(at)
                        if at != packed_end or placed != (0 if statements is None else len(statements)):
                            return number, "the packed changes and the envelope disagree on where they end"
                if last:
                    if not seen and wants_noop:
                        push_record(record)
                        if with_detail:
                            push_kind(NOOP_KIND)
                            push_table(-1)
                            push_start(-1)
                            push_changeno(0)
                    seen = False
            self.values = array("i", noted)
        except PayloadError as exc:
            return number, exc.why
        except (ValueError, IndexError, OverflowError, struct.error) as exc:
            return number, "it ends in the middle" if isinstance(exc, IndexError) else str(exc)
        self.seen = seen
        return None

    def _add_statement(self, record: int, changeno: int, statement: Statement) -> None:
        if self.selection.wants_statement(statement.schema):
            self.records.append(record)
            self.kinds.append(OP_STATEMENT)
            self.tables.append(-1)
            self.starts.append(len(self.statements))
            self.changenos.append(changeno)
            self.statements.append(statement)


def read_varint(raw: bytes, at: int) -> tuple[int, int]:
    """Read the varint at `at`; return it and where it ends. Raises ValueError, IndexError."""
    number = shift = 0
    while True:
        byte = raw[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7
        if shift > 63:
            raise ValueError("a varint of more than ten bytes")


def pass_field(raw: bytes, at: int) -> int:
    """Return where the envelope's field at `at` ends. Raises ValueError, IndexError."""
    key, at = read_varint(raw, at)
    match key & 7:
        case 0:
            return read_varint(raw, at)[1]
        case 1:
            return at + 8
        case 2:
            size, at = read_varint(raw, at)
            return at + size
        case 5:
            return at + 4
        case wire:
            raise ValueError(f"wire type {wire}")


def survey_payload(raw: bytes, at: int, end: int) -> tuple[int, int, int]:
    """Return how many changes a payload holds, statements too, and where its metadata begins and ends.

    None of its values is looked at. Raises PayloadError.
    """
    changes = statements = metadata_start = metadata_end = 0
    try:
        while at < end:
            key = raw[at]
            field = at
            if key == 0xA2 and raw[at + 1] == 6:
                size, at = read_varint(raw, at + 2)
                packed_end = at + size
                count, at = read_varint(raw, at + 1)
                for _ in range(count):
                    size, at = read_varint(raw, at)
                    at += size
                changes, at = read_varint(raw, at)
                at = packed_end
                continue
            at = pass_field(raw, at)
            if key == _STATEMENT_KEY:
                statements += 1
            elif key == _METADATA_KEY:
                if not metadata_end:  # a start may be 0
                    metadata_start = field
                metadata_end = at
    except (ValueError, IndexError) as exc:
        raise PayloadError(why=str(exc)) from exc
    if at != end:
        raise PayloadError(why="a field of it passes the end")
    return changes or statements, metadata_start, metadata_end
