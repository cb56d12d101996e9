"""The bytes of a segment: header, event, rotate, sync and mark records, and what a stretch of bytes can turn out to be.

Owns encoding and parsing of the native codec, and its limits. What a transaction's payload means is `payload`'s;
which outcome is an error, and which the ordinary end of a log, is `recovery`'s and the cursor's. The hard idea: a
parser of a log meets the end, half a record and damage as a matter of course, so each is a value with a name and
nothing here raises for what it reads. docs/format.md shows the same tables to people.

Source: docs/format.md.
"""

from __future__ import annotations

import struct
from collections.abc import Container
from functools import lru_cache
from typing import Final, cast

from librt.strings import BytesWriter, read_i64_be, write_i64_be
from mypy_extensions import i64, u8

from tranlog.change import Fragment, TableName
from tranlog.checksum import crc32
from tranlog.errors import RecordLimitError
from tranlog.header import Passes
from tranlog.ids import HISTORY_BYTES, NO_SEQNO, Epoch, Lsn, Seqno
from tranlog.log.records.record import BAD_CHECKSUM as BAD_CHECKSUM
from tranlog.log.records.record import END as END
from tranlog.log.records.record import BadChecksum as BadChecksum
from tranlog.log.records.record import End as End
from tranlog.log.records.record import Impossible as Impossible
from tranlog.log.records.record import Outcome as Outcome
from tranlog.log.records.record import Partial as Partial
from tranlog.log.records.record import RecordHeader as RecordHeader
from tranlog.log.records.record import RollbackMark as RollbackMark
from tranlog.log.records.record import RotateRecord as RotateRecord
from tranlog.log.records.record import SegmentHeader as SegmentHeader
from tranlog.log.records.record import StoredRecord as StoredRecord
from tranlog.log.records.record import SyncRecord as SyncRecord
from tranlog.words import write_u32

MAGIC_NUMBER: Final = 0xC001CAFE
MAJOR_VERSION: Final = 1
MINOR_VERSION: Final = 1

EVENT_TYPE: Final = 1
ROTATE_TYPE: Final = 2
SYNC_TYPE: Final = 3
MARK_TYPE: Final = 4
REFERENCE_TYPE: Final = 5
"""An event record whose event field says where the transaction was spilled to: the form of an event in all else."""
CHUNK_TYPE: Final = 6
"""Only in spill segments, see `spill`."""

CRC_NONE: Final = 0
CRC_32: Final = 1
CRC_32_ALONE: Final = 2
"""Of a sync record: it has a CRC-32, the events of its writer have none."""

TABLE_ITEM: Final = 1
"""Header extension: one table touched."""
WRITE_SET_ITEM: Final = 2
"""Header extension: what the transaction touched, see `write_set`."""
TABLES_OMITTED_ITEM: Final = 3
"""Header extension: too many tables to list."""
PADDING_ITEM: Final = 255
"""Means nothing: it brings a record to the length that was reserved for it."""

# The fields of each record in order, with their sizes; 0 stands for a variable size.
HEADER_FIELDS: Final = (("magic_number", 4), ("major_version", 2), ("minor_version", 2), ("prev_seqno", 8))
EVENT_FIELDS: Final = (
    ("record_length", 4),
    ("record_type", 1),
    ("header_length", 4),
    ("seqno", 8),
    ("fragno", 2),
    ("last_frag", 1),
    ("epoch_number", 8),
    ("source_id", 0),
    ("event_id", 0),
    ("shard_id", 0),
    ("tstamp", 8),
    ("header_extension", 0),
    ("data_length", 4),
    ("event", 0),
    ("crc_method", 1),
    ("crc", 4),
)
ROTATE_FIELDS: Final = (
    ("record_length", 4),
    ("record_type", 1),
    ("next_file_name", 0),
    ("crc_method", 1),
    ("crc", 4),
)
SYNC_FIELDS: Final = (
    ("record_length", 4),
    ("record_type", 1),
    ("durable_lsn", 8),
    ("written_at", 8),
    ("seqno", 8),
    ("h", 8),
    ("history", 0),
    ("crc_method", 1),
    ("crc", 4),
)
MARK_FIELDS: Final = (
    ("record_length", 4),
    ("record_type", 1),
    ("number", 8),
    ("epoch_number", 8),
    ("matchpoint_epoch", 8),
    ("matchpoint_seqno", 8),
    ("matchpoint_lsn", 8),
    ("dead_start", 8),
    ("dead_end", 8),
    ("last_seqno", 8),
    ("written_at", 8),
    ("crc_method", 1),
    ("crc", 4),
)
EXTENSION_ITEM_FIELDS: Final = (("type", 1), ("length", 2), ("bytes", 0))
TABLE_ITEM_FIELDS: Final = (("schema_length", 2), ("schema", 0), ("table_length", 2), ("table", 0))

HEADER: Final = struct.Struct(">IHHq")
"""The whole header record of a segment."""
EVENT_START: Final = struct.Struct(">IBIQHBQ")
"""An event record from record_length up to and including epoch_number."""
EVENT_TSTAMP: Final = struct.Struct(">Q")
EVENT_DATA_LENGTH: Final = struct.Struct(">I")
RECORD_START: Final = struct.Struct(">IB")
"""record_length and record_type, as every record but the header begins."""
SYNC: Final = struct.Struct(">IBQQqQ")
"""A sync record up to and including h."""
MARK: Final = struct.Struct(">IBQQQQQQQQQB")
"""A rollback mark without its crc."""
TRAILER: Final = struct.Struct(">BI")
"""crc_method and crc, as every record but the header ends."""
EXTENSION_ITEM: Final = struct.Struct(">BH")
NAME_LENGTH: Final = struct.Struct(">H")
CRC: Final = struct.Struct(">I")

_U32: Final = 0xFFFF_FFFF
_ONES: Final = 0x0101_0101_0101_0101
_HIGHS: Final = -0x7F7F_7F7F_7F7F_7F80
"""The highest bit of each byte of a signed word."""
_SMALL: Final = 4096

BEFORE_HEADER: Final = 9
"""Bytes of an event record before those that header_length counts."""
HEADER_LENGTH_MIN: Final = 30
"""header_length of three empty strings and no extension."""
EVENT_OVERHEAD: Final = BEFORE_HEADER + EVENT_DATA_LENGTH.size + TRAILER.size
"""record_length of an event is this, its header_length and its data_length."""
EVENT_MIN: Final = EVENT_OVERHEAD + HEADER_LENGTH_MIN
ROTATE_MIN: Final = RECORD_START.size + 1 + TRAILER.size
ROTATE_MAX: Final = 512
SYNC_BYTES: Final = SYNC.size + TRAILER.size
FIRST_SYNC_BYTES: Final = SYNC_BYTES + HISTORY_BYTES
"""record_length of a segment's first record, the sync record that names the history."""
MARK_BYTES: Final = MARK.size + CRC.size

FRAGNO_MAX: Final = 65_535
SEQNO_MAX: Final = (1 << 63) - 1
HEADER_LENGTH_MAX: Final = 1 << 20
"""Our own bound for the strings and tables of one record, so that a reader knows how much it may have to hold."""
TABLE_ITEMS_MAX: Final = 60_000
"""Bytes of table items in one header; beyond, the writer says TABLES_OMITTED_ITEM."""
RECORD_BYTES_MAX: Final = (1 << 32) - 1
SEGMENT_BYTES_MAX: Final = 1 << 32


_CRC_32_METHOD: Final = b"\x01"
_CRC_32_ALONE_METHOD: Final = b"\x02"
_PLACE: Final = struct.Struct(">Q")
_ZERO_CRC: Final = TRAILER.pack(CRC_NONE, 0)


# --- segment header --------------------------------------------------------------------------------------


def encode_header(prev_seqno: int) -> bytes:
    """Return the 16 bytes at the start of a segment; -1 for a new log that starts at seqno 0."""
    return HEADER.pack(MAGIC_NUMBER, MAJOR_VERSION, MINOR_VERSION, prev_seqno)


def parse_header(raw: bytes) -> SegmentHeader | Partial | Impossible:
    """Read a segment's header: Partial for less than 16 bytes or 16 zeros, Impossible for another file."""
    if len(raw) < HEADER.size or raw[: HEADER.size] == bytes(HEADER.size):
        return Partial(HEADER.size)
    magic, major, minor, prev_seqno = HEADER.unpack_from(raw)
    if magic != MAGIC_NUMBER:
        return Impossible(f"bad header: magic number {magic:08x} instead of {MAGIC_NUMBER:08x}")
    if (major, minor) != (MAJOR_VERSION, MINOR_VERSION):
        return Impossible(f"bad header: format version {major}.{minor}; this release knows 1.1")
    if prev_seqno < -1:
        return Impossible(f"bad header: prev_seqno {prev_seqno}")
    return SegmentHeader(Seqno(prev_seqno))


def newer_version(raw: bytes) -> str | None:
    """Return the version of a segment header that a later release wrote, `2.1`; None for any other header.

    A major version that is one wrong bit away from ours counts as damage: it is named as such, and can be repaired.
    """
    if len(raw) < HEADER.size:
        return None
    magic, major, minor, _ = HEADER.unpack_from(raw)
    newer = magic == MAGIC_NUMBER and major > MAJOR_VERSION and (major ^ MAJOR_VERSION).bit_count() > 1
    return f"{major}.{minor}" if newer else None


def is_tungsten(raw: bytes) -> bool:
    """Whether a segment that begins with `raw`, header and first record's start, is in the Tungsten codec.

    Magic and version are the same in both codecs; the first record tells. A segment with nothing but its header
    counts as native.
    """
    first = raw[HEADER.size :]
    if len(first) < BEFORE_HEADER:
        return False
    length, kind, header_length = struct.unpack_from(">IBI", first)
    # Ours, perhaps with one wrong bit in its type: no Tungsten record has one of these lengths.
    if length in (SYNC_BYTES, FIRST_SYNC_BYTES):
        return False
    if kind == EVENT_TYPE:
        return bool(length > 0 and header_length == 0)
    return bool(kind == ROTATE_TYPE) and first[RECORD_START.size] == 0


# --- event records ---------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def encode_tables(tables: tuple[TableName, ...] | None) -> bytes:
    """Return the header extension that lists tables; None says that they were too many. Raises ValueError."""
    if tables is None:
        return EXTENSION_ITEM.pack(TABLES_OMITTED_ITEM, 0)
    items = []
    for schema, table in tables:
        one, other = schema.encode(), table.encode()
        length = 2 * NAME_LENGTH.size + len(one) + len(other)
        if length > 65_535:
            raise ValueError(f"the name of table {table[:40]}... has {len(other)} bytes")
        items += [EXTENSION_ITEM.pack(TABLE_ITEM, length), NAME_LENGTH.pack(len(one)), one]
        items += [NAME_LENGTH.pack(len(other)), other]
    listed = b"".join(items)
    if len(listed) > TABLE_ITEMS_MAX:
        raise ValueError(f"its list of tables has {len(listed)} bytes; past {TABLE_ITEMS_MAX} it has to be left out")
    return listed


def _write_set_item(write_set: bytes) -> bytes:
    if len(write_set) > 65_535:
        raise ValueError(f"its write set has {len(write_set)} bytes")
    return EXTENSION_ITEM.pack(WRITE_SET_ITEM, len(write_set)) + write_set


def _text(name: str, text: str) -> bytes:
    raw = text.encode("utf-8")
    if 0 in raw:  # asked for as bytes it costs an error that nobody sees
        raise ValueError(f"its {name} holds a NUL character")
    return raw


def encode_event(
    *,
    seqno: int,
    fragno: int,
    last_frag: bool,
    epoch: int,
    source_id: str,
    event_id: str,
    shard_id: str,
    tstamp: int,
    tables: tuple[TableName, ...] | None,
    payload: bytes,
    checksum: bool,
    padding: int = 0,
    spilled: bool = False,
    write_set: bytes = b"",
) -> tuple[bytes, bytes]:
    """Return what stands before and what stands after the payload in an event record.

    `padding`: bytes of a header item that means nothing, 0 or at least 3. `spilled`: the payload is a reference.
    Raises RecordLimitError for whatever the format cannot hold, TypeError for a payload that is not bytes.
    """
    _check_payload(payload)
    try:
        source, event, shard = _text("source_id", source_id), _text("event_id", event_id), _text("shard_id", shard_id)
        extension = encode_tables(tables) if tables != () else b""
        if write_set:
            extension += _write_set_item(write_set)
        if padding:
            extension += EXTENSION_ITEM.pack(PADDING_ITEM, padding - EXTENSION_ITEM.size)
            extension += bytes(padding - EXTENSION_ITEM.size)
    except ValueError as exc:  # UnicodeEncodeError is one
        raise RecordLimitError(event_id=event_id, why=str(exc)) from exc
    kind = REFERENCE_TYPE if spilled else EVENT_TYPE
    out = BytesWriter()
    head = _event_head(
        out, kind, source, event, shard, extension, len(payload), seqno, fragno, last_frag, epoch, tstamp, event_id
    )
    return head, TRAILER.pack(CRC_32, crc32(_CRC_32_METHOD, crc32(payload, crc32(head)))) if checksum else _ZERO_CRC


def _check_payload(payload: object) -> None:
    """Raise TypeError for what is no bytes: a text has a length too, and would be found out only when it is written."""
    if not isinstance(payload, bytes):
        raise TypeError(f"a fragment's payload is bytes, not {type(payload).__name__}")


def _event_head(
    out: BytesWriter,
    kind: int,
    source: bytes,
    event: bytes,
    shard: bytes,
    extension: bytes,
    data_length: int,
    seqno: int,
    fragno: int,
    last_frag: bool,
    epoch: int,
    tstamp: int,
    event_id: str,
) -> bytes:
    header_length = HEADER_LENGTH_MIN + len(source) + len(event) + len(shard) + len(extension)
    record_length = EVENT_OVERHEAD + header_length + data_length
    if fragno > FRAGNO_MAX:
        raise RecordLimitError(event_id=event_id, why=f"it has more than {FRAGNO_MAX + 1} fragments")
    if header_length > HEADER_LENGTH_MAX:
        raise RecordLimitError(event_id=event_id, why=f"its ids and tables take {header_length} bytes")
    if record_length > RECORD_BYTES_MAX:
        raise RecordLimitError(event_id=event_id, why=f"a fragment of {data_length} bytes")
    if seqno > SEQNO_MAX:
        raise RecordLimitError(event_id=event_id, why=f"the log has reached {SEQNO_MAX}, the last possible seqno")
    if not 0 <= tstamp <= SEQNO_MAX:
        raise RecordLimitError(event_id=event_id, why=f"its commit time {tstamp} ms is before 1970 or implausible")
    out.truncate(0)
    write_u32(out, record_length)
    out.append(cast(u8, kind))
    write_u32(out, header_length)
    write_i64_be(out, seqno)
    out.append(cast(u8, fragno >> 8))
    out.append(cast(u8, fragno & 0xFF))
    out.append(cast(u8, 1 if last_frag else 0))
    write_i64_be(out, epoch)
    out.write(source)
    out.append(0)
    out.write(event)
    out.append(0)
    out.write(shard)
    out.append(0)
    write_i64_be(out, tstamp)
    out.write(extension)
    write_u32(out, data_length)
    return out.getvalue()


def _trailer(out: BytesWriter, crc: int) -> bytes:
    out.truncate(0)
    out.append(cast(u8, CRC_32))
    write_u32(out, crc)
    return out.getvalue()


class EventWriter:
    """Encodes transactions of one fragment, one after the other; what a record has in common with the last is kept."""

    def __init__(self) -> None:
        self._source_id = ""
        self._source = b""
        self._shard_id = ""
        self._shard = b""
        self._tables: tuple[TableName, ...] | None = ()
        self._extension = b""
        self._out = BytesWriter()
        self.tag: i64 = 0
        """What the record that was written last puts into the running hash, see `running_hash`."""

    def write(self, pieces: list[bytes], fragment: Fragment, seqno: int, epoch: int, checksum: bool, most: int) -> int:
        """Put the record of a fragment after `pieces`; return its length, or 0 and nothing where it passes `most`.

        The same bytes as `encode_event`'s. Raises RecordLimitError, and then nothing is put there either.
        """
        event_id = fragment.event_id
        source_id = fragment.source_id
        shard_id = fragment.shard_id
        payload = fragment.payload
        tables = fragment.tables
        _check_payload(payload)
        try:
            if source_id != self._source_id:
                self._source = _text("source_id", source_id)
                self._source_id = source_id
            event = _text("event_id", event_id)
            if shard_id != self._shard_id:
                self._shard = _text("shard_id", shard_id)
                self._shard_id = shard_id
            if tables is not self._tables:
                self._extension = encode_tables(tables) if tables != () else b""
                self._tables = tables
        except ValueError as exc:  # UnicodeEncodeError is one
            raise RecordLimitError(event_id=event_id, why=str(exc)) from exc
        source, shard, extension = self._source, self._shard, self._extension
        if fragment.write_set:
            extension = extension + _write_set_item(fragment.write_set)
        size = len(payload)
        length = EVENT_OVERHEAD + HEADER_LENGTH_MIN + len(source) + len(event) + len(shard) + len(extension) + size
        if length > most:
            return 0
        out = self._out
        head = _event_head(
            out, EVENT_TYPE, source, event, shard, extension, size, seqno, 0, True, epoch, fragment.tstamp, event_id
        )
        pieces.append(head)
        pieces.append(payload)
        crc = crc32
        if checksum:
            crc_of: i64 = crc(_CRC_32_METHOD, crc(payload, crc(head)))
            pieces.append(_trailer(out, crc_of))
            self.tag = crc_of
        else:
            pieces.append(_ZERO_CRC)
            self.tag = crc(head)
        return length


@lru_cache(maxsize=4096)
def parse_tables(raw: bytes) -> tuple[TableName, ...] | None:
    """Return the tables that a header extension lists; None: too many. Raises ValueError, struct.error."""
    tables: list[TableName] = []
    omitted = False
    at = 0
    while at < len(raw):
        kind, length = EXTENSION_ITEM.unpack_from(raw, at)
        at += EXTENSION_ITEM.size
        end = at + length
        if end > len(raw):
            raise ValueError("a header extension item runs over the header's end")
        if kind == TABLE_ITEM:
            (size,) = NAME_LENGTH.unpack_from(raw, at)
            at += NAME_LENGTH.size
            schema = raw[at : at + size].decode()
            at += size
            (other,) = NAME_LENGTH.unpack_from(raw, at)
            at += NAME_LENGTH.size
            if at + other != end:
                raise ValueError("a table in the header extension has a wrong length")
            tables.append((schema, raw[at:end].decode()))
        elif kind == TABLES_OMITTED_ITEM:
            omitted = True
        at = end
    return None if omitted else tuple(tables)


def tables_end(raw: bytes, at: i64, end: i64) -> int:
    """Return where in a header extension, from `at` to `end`, the items of tables end, which stand first."""
    while at < end and (raw[at] == TABLE_ITEM or raw[at] == TABLES_OMITTED_ITEM):
        at += 3 + (raw[at + 1] << 8 | raw[at + 2])
    return at


def _parse_extension(raw: bytes, at: i64, end: i64) -> tuple[tuple[TableName, ...] | None, bytes]:
    """Read a header extension: tables and write set. Raises ValueError, IndexError, struct.error."""
    behind: i64 = tables_end(raw, at, end)
    if behind >= end:
        return parse_tables(raw[at:end]), b""
    write_set = b""
    place: i64 = behind
    while place < end:
        kind: i64 = raw[place]
        start: i64 = place + 3
        place = start + (raw[place + 1] << 8 | raw[place + 2])
        if kind == WRITE_SET_ITEM:
            write_set = raw[start:place]
        elif kind in (TABLE_ITEM, TABLES_OMITTED_ITEM):
            return parse_tables(raw[at:end]), b""  # in an order that no release of ours writes
    if place > end:
        raise ValueError("a header extension item runs over the header's end")
    return parse_tables(raw[at:behind]) if behind > at else (), write_set


def parse_event(raw: bytes, at: i64, lsn: int, trailer: bytes | None = None) -> RecordHeader | None:
    """Read the header of the event record at `raw[at]`, or None for whatever is not one that lies wholly in `raw`.

    The fast path of every scan: no checksum, no payload touched. With `trailer`, the record's last 5 bytes, only
    the header has to lie in `raw`. What None means is for `parse_record` to say.
    """
    try:
        # Read in words, which compiled code does without a call: a field is a word's upper or lower part.
        if at < 0:
            return None
        kind: i64 = raw[at + 4]
        length: i64 = read_i64_be(raw, at) >> 32 & _U32
        header_length: i64 = read_i64_be(raw, at + 5) >> 32 & _U32
        seqno: i64 = read_i64_be(raw, at + 9)
        flags: i64 = read_i64_be(raw, at + 12)
        epoch: i64 = read_i64_be(raw, at + 20)
        last_frag: i64 = flags & 0xFF
        # A referring record is whole: fragment 0, and the last.
        if kind != EVENT_TYPE and (kind != REFERENCE_TYPE or flags & 0xFF_FFFF != 1):
            return None
        if last_frag > 1 or seqno < 0 or epoch < 0:
            return None
        first: i64 = at + 28
        second: i64 = raw.index(0, first) + 1
        third: i64 = raw.index(0, second) + 1
        fourth: i64 = raw.index(0, third) + 1
        end: i64 = at + 9 + header_length
        if end < fourth + 8:
            return None
        tstamp: i64 = read_i64_be(raw, fourth)
        data_length: i64 = length - 18 - header_length
        if tstamp < 0 or data_length != EVENT_DATA_LENGTH.unpack_from(raw, end)[0]:
            return None
        tables: tuple[TableName, ...] | None = ()
        write_set = b""
        if end != fourth + 8:
            tables, write_set = _parse_extension(raw, fourth + 8, end)
        crc: i64
        if trailer is None:
            crc = read_i64_be(raw, at + length - 8)
        else:
            crc = read_i64_be(b"\0\0\0" + trailer, 0)
        return RecordHeader(
            seqno,  # type: ignore[arg-type]
            flags >> 8 & 0xFFFF,
            last_frag == 1,
            epoch,  # type: ignore[arg-type]
            raw[first : second - 1].decode("utf-8"),
            raw[second : third - 1].decode("utf-8"),
            raw[third : fourth - 1].decode("utf-8"),
            tstamp,
            tables,
            length,
            data_length,
            kind != EVENT_TYPE,
            write_set,
            lsn,  # type: ignore[arg-type]
            crc >> 32 & 0xFF,
            crc & _U32,
        )
    except (ValueError, IndexError, struct.error):
        return None


def event_begins(raw: bytes, seqno: int) -> bool:
    """Whether `raw` begins as the first record of a transaction does: type, seqno, fragment 0."""
    if len(raw) < 19 or raw[4] not in (EVENT_TYPE, REFERENCE_TYPE):
        return False
    return read_i64_be(raw, 9) == seqno and raw[17] == 0 and raw[18] == 0


def skip_events(raw: bytes, at: i64, seqno: i64) -> int:
    """Return the place of the first record in `raw`, from `at` on, that is not an event below `seqno`.

    The place can lie after the end of `raw`. Trusts each record's length: the caller checks what it lands on.
    """
    end: i64 = len(raw) - EVENT_MIN
    while at <= end:
        word: i64 = read_i64_be(raw, at)
        length: i64 = word >> 32 & _U32
        if word >> 24 & 0xFF != EVENT_TYPE or length < EVENT_MIN or not 0 <= read_i64_be(raw, at + 9) < seqno:
            break
        at += length
    return at


def pass_events(
    raw: bytes, at: i64, seqno: i64, upto: i64, shards: Container[bytes], passes: Passes | None = None
) -> tuple[int, int, int]:
    """Pass over transactions of one fragment each that belong to one of `shards`, from `seqno`, at `raw[at]`, on.

    With `passes` over those of which it says so instead, asked for one after the other.

    Ends: before the first that is something else, does not lie wholly in `raw`, or is after `upto`. Return its
    place and seqno, and the place of the last one passed, -1 for none. As in `parse_event` no checksum is looked at.
    """
    end: i64 = len(raw)
    last: i64 = -1
    try:
        while seqno <= upto:
            word: i64 = read_i64_be(raw, at)
            length: i64 = word >> 32 & _U32
            if (
                word >> 24 & 0xFF != EVENT_TYPE
                or not EVENT_MIN <= length <= end - at
                or read_i64_be(raw, at + 9) != seqno
                or read_i64_be(raw, at + 12) & 0xFF_FFFF != 1  # fragno 0, last_frag 1
            ):
                break
            shard: i64 = raw.index(0, raw.index(0, at + 28) + 1) + 1
            behind: i64 = raw.index(0, shard)
            header_end: i64 = at + 9 + (read_i64_be(raw, at + 5) >> 32 & _U32)
            if behind > header_end - 9:
                break
            if passes is None:
                if raw[shard:behind] not in shards:
                    break
            else:
                tables, write_set = _parse_extension(raw, behind + 9, header_end)
                if not passes(seqno, raw[shard:behind], tables, write_set):
                    break
            last = at
            at += length
            seqno += 1
    except (ValueError, IndexError, struct.error):
        pass  # the window ends in the middle of a header
    return at, seqno, last


def take_events(
    raw: bytes, at: i64, seqno: i64, upto: i64, places: list[int], *, verify: bool, within: int = -1
) -> tuple[int, int]:
    """Add to `places` where each transaction of one fragment begins, from `seqno`, at `raw[at]`, on.

    Ends: before the first that is something else, does not lie wholly in `raw`, has no checksum or, with
    `verify`, the wrong one, or is after `upto`. Return its place and seqno. With `within` also before the first
    of another epoch or with a header that contradicts itself; without, what a record with the right checksum says of
    its own inside is not looked at.
    """
    epoch: i64 = within
    end: i64 = len(raw)
    view = memoryview(raw)
    checksum = crc32
    try:
        while seqno <= upto:
            word: i64 = read_i64_be(raw, at)
            behind: i64 = at + (word >> 32 & _U32)
            if (
                word >> 24 & 0xFF != EVENT_TYPE
                or not at + EVENT_MIN <= behind <= end
                or read_i64_be(raw, at + 9) != seqno
                or read_i64_be(raw, at + 12) & 0xFF_FFFF != 1  # fragno 0, last_frag 1
            ):
                break
            trailer: i64 = read_i64_be(raw, behind - 8) & 0xFF_FFFF_FFFF
            if trailer >> 32 != CRC_32:
                break
            if verify:
                # A copy of a small record costs less than a view of it.
                crc: i64 = checksum(raw[at : behind - 4] if behind - at < _SMALL else view[at : behind - 4])
                if crc != trailer & _U32:
                    break
            if epoch >= 0 and (read_i64_be(raw, at + 20) != epoch or not _fits(raw, at, behind)):
                break
            places.append(at)  # compiled, a method of a list is called directly; a bound one is not
            at = behind
            seqno += 1
    except (ValueError, IndexError, struct.error):
        pass  # the window ends in the middle of a header, or a header's inside is wrong
    return at, seqno


def cut_records(raw: bytes, places: list[int], seqno: int) -> list[tuple[int, bytes]]:
    """Return seqno and bytes of each record between two of `places`, the first of them `seqno`."""
    records: list[tuple[int, bytes]] = []
    start: i64 = places[0]
    number: i64 = seqno
    for at in range(1, len(places)):
        end: i64 = places[at]
        records.append((number, raw[start:end]))
        number += 1
        start = end
    return records


def _fits(raw: bytes, at: i64, behind: i64) -> bool:
    """Whether `parse_event` takes the event record in `raw[at:behind]`. Raises ValueError, IndexError, struct.error."""
    end: i64 = at + 9 + (read_i64_be(raw, at + 5) >> 32 & _U32)
    if end + 9 > behind or read_i64_be(raw, end) >> 32 & _U32 != behind - end - 9:
        return False
    tstamp_at: i64 = _after_ascii(raw, at + 28, end)
    if not tstamp_at:
        tstamp_at = raw.index(0, raw.index(0, raw.index(0, at + 28) + 1) + 1) + 1
        raw[at + 28 : tstamp_at].decode("utf-8")
    if tstamp_at + 8 > end or read_i64_be(raw, tstamp_at) < 0:
        return False
    if tstamp_at + 8 < end:
        _parse_extension(raw, tstamp_at + 8, end)
    return True


def _after_ascii(raw: bytes, at: i64, end: i64) -> i64:
    """Return the offset after the third NUL from `at` on; 0 where a byte before it is not ASCII, or `end` comes first.

    By words: most have neither a NUL nor a byte above 0x7F.
    """
    left: i64 = 3
    while at + 8 <= end:
        word: i64 = read_i64_be(raw, at)
        if not (word | (word - _ONES)) & _HIGHS:
            at += 8
            continue
        shift: i64 = 64
        while shift:
            shift -= 8
            at += 1
            byte: i64 = word >> shift & 0xFF
            if byte & 0x80:
                return 0
            if not byte:
                left -= 1
                if not left:
                    return at
    return 0


def event_checksum_holds(header: RecordHeader, crc: int) -> bool:
    """Whether a record's own checksum field agrees with `crc`, the CRC-32 of all its bytes before that field."""
    if header.crc_method == CRC_32:
        return header.crc == crc
    # Method 00 with a crc is method 01 with a flipped bit.
    return header.crc_method == CRC_NONE and header.crc == 0


# --- rotate, sync and mark records -----------------------------------------------------------------------


def encode_rotate(next_file_name: str) -> bytes:
    """Return the record that ends a segment."""
    name = next_file_name.encode() + b"\0"
    body = RECORD_START.pack(ROTATE_MIN - 1 + len(name), ROTATE_TYPE) + name + _CRC_32_METHOD
    return body + CRC.pack(crc32(body))


def encode_sync(
    place: int,
    durable_lsn: int,
    written_at: int,
    history: bytes = b"",
    *,
    seqno: int = NO_SEQNO,
    h: int = 0,
    checksums: bool = True,
) -> bytes:
    """Return the sync record that stands at `place`, a segment's first one with the identity of the log's `history`.

    `written_at` is ms since 1970. `h`, from 0 to 2^64 - 1, is the running hash up to `seqno`; by default it tells
    nothing. Its checksum covers its place: anywhere else, in a payload say, it is none.
    """
    method = _CRC_32_METHOD if checksums else _CRC_32_ALONE_METHOD
    length = SYNC_BYTES + len(history)
    body = SYNC.pack(length, SYNC_TYPE, durable_lsn, max(written_at, 0), seqno, h) + history + method
    return body + CRC.pack(crc32(_PLACE.pack(place), crc32(body)))


def history_of(head: bytes, number: int) -> bytes | None:
    """Return the identity of the history that segment `number` bears, which begins with `head`.

    None where no whole sync record stands first, b"" where that bears none. `head` holds at least
    HEADER.size + FIRST_SYNC_BYTES of the segment, or all of it.
    """
    first = parse_record(head, HEADER.size, number << 32 | HEADER.size)
    return first.history if isinstance(first, SyncRecord) else None


def encode_mark(mark: RollbackMark) -> bytes:
    """Return a rollback mark."""
    body = MARK.pack(
        MARK_BYTES,
        MARK_TYPE,
        mark.number,
        mark.epoch,
        mark.matchpoint_epoch,
        mark.matchpoint_seqno,
        mark.matchpoint_lsn,
        mark.dead_start,
        mark.dead_end,
        mark.last_seqno,
        max(mark.written_at, 0),
        CRC_32,
    )
    return body + CRC.pack(crc32(body))


def looks_like_mark(raw: bytes) -> bool:
    """Whether a bad record that begins with `raw` may have been a rollback mark, and no event or sync record."""
    length, kind = RECORD_START.unpack_from(raw)
    return length == MARK_BYTES or kind not in (EVENT_TYPE, REFERENCE_TYPE, SYNC_TYPE)


def _parse_mark(raw: bytes, at: int, lsn: int) -> RollbackMark | Impossible:
    _, _, number, epoch, its_epoch, seqno, place, start, end, last, written_at, _ = MARK.unpack_from(raw, at)
    # A place of 0 is the caller's "somewhere": then nothing can be said about where the mark stands.
    if not place < start < end or seqno >= last or its_epoch > epoch or (lsn and end != lsn):
        return Impossible("a rollback mark whose numbers contradict each other or its place", MARK_BYTES)
    return RollbackMark(
        number, Epoch(epoch), Epoch(its_epoch), Seqno(seqno), Lsn(place), Lsn(start), Lsn(end), Seqno(last), written_at
    )


SYNC_START: Final = RECORD_START.pack(SYNC_BYTES, SYNC_TYPE)
"""What a sync record begins with: how one is found after bytes that cannot be walked."""


def _crc_of(raw: bytes, at: int, end: int) -> int:
    return crc32(memoryview(raw)[at:end])


def parse_record(raw: bytes, at: int, lsn: int, checksum: bool = True) -> Outcome:
    """Say what stands at `raw[at]`; `lsn` is that place's. With `checksum`, an event's bytes are checked too.

    Shape: an event's outcome is its header; its payload is `raw[at + record_length - 5 - data_length:...]`.
    Rotate, sync and mark records are always checked, a sync record with its place.
    """
    left = len(raw) - at
    if left < 4:
        return END if left <= 0 or not any(raw[at:]) else Partial(RECORD_START.size)
    (length,) = EVENT_DATA_LENGTH.unpack_from(raw, at)
    if length == 0:
        return END
    if left < 5:
        return Partial(RECORD_START.size)
    kind = raw[at + 4]
    if kind in (EVENT_TYPE, REFERENCE_TYPE):
        if length < EVENT_MIN:
            return Impossible(f"an event record of {length} bytes")
        if left < length:
            return Partial(length)
        header = parse_event(raw, at, lsn)
        if header is None:
            if not _trailing_crc_holds(raw, at, length):
                return BadChecksum(length)
            return Impossible("an event record whose lengths or strings contradict each other", length)
        if checksum and not event_checksum_holds(header, _crc_of(raw, at, at + length - 4)):
            return BadChecksum(length, header)
        return header
    if kind == ROTATE_TYPE:
        if not ROTATE_MIN <= length <= ROTATE_MAX:
            return Impossible(f"a rotate record of {length} bytes")
        if left < length:
            return Partial(length)
        if not _trailing_crc_holds(raw, at, length):
            return BadChecksum(length)
        name = raw[at + 5 : at + length - 5]
        if name[-1:] != b"\0" or b"\0" in name[:-1]:
            return Impossible("a rotate record without a file name", length)
        return RotateRecord(name[:-1].decode(errors="replace"), length)
    if kind == SYNC_TYPE:
        if length not in (SYNC_BYTES, FIRST_SYNC_BYTES):
            return Impossible(f"a sync record of {length} bytes")
        if left < length:
            return Partial(length)
        method, crc = TRAILER.unpack_from(raw, at + length - TRAILER.size)
        if not CRC_32 <= method <= CRC_32_ALONE or crc != crc32(_PLACE.pack(lsn), _crc_of(raw, at, at + length - 4)):
            return BadChecksum(length)
        _, _, durable_lsn, written_at, seqno, h = SYNC.unpack_from(raw, at)
        history = raw[at + SYNC.size : at + length - TRAILER.size]
        return SyncRecord(Lsn(durable_lsn), written_at, history, length, method == CRC_32, Seqno(seqno), h)
    if kind == MARK_TYPE:
        if length != MARK_BYTES:
            return Impossible(f"a rollback mark of {length} bytes")
        if left < length:
            return Partial(length)
        if not _trailing_crc_holds(raw, at, length):
            return BadChecksum(length)
        return _parse_mark(raw, at, lsn)
    return Impossible(f"record type {kind}, which this release does not know", length)


def _trailing_crc_holds(raw: bytes, at: int, length: int) -> bool:
    method, crc = TRAILER.unpack_from(raw, at + length - TRAILER.size)
    return bool(method == CRC_32 and crc == _crc_of(raw, at, at + length - 4))
