"""The events of MariaDB's binary log: bytes in, small values out.

Owns the layout of every event that we understand, and the names of those that we do not. Row images are
`rows`'s; which events make a transaction is `groups`'s. Pure. The hard idea: an event that is not
understood to its last byte must stop the reader by name, since skipping it would lose a change without a trace.

All functions take an event as the stream hands it over: the 19 bytes of the header in front, no checksum after.

Source: MariaDB's manual, "Replication protocol", "Binlog event types".
"""

from __future__ import annotations

import enum
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from tranlog.errors import SourceError
from tranlog.source.mariadb.position import DomainGtid
from tranlog.source.mariadb.values import decimal_text

HEADER: Final = struct.Struct("<IBIIIH")
"""Of every event: timestamp in seconds, type, server id, size with header and checksum, end offset, flags."""
HEADER_BYTES: Final = 19
AFTER_FLAGS: Final = HEADER_BYTES + 8
"""Where the body of a TABLE_MAP event or of a rows event begins: after the table's number and the flags."""
CHECKSUM_BYTES: Final = 4

_U16: Final = struct.Struct("<H")
_U32: Final = struct.Struct("<I")
_F64: Final = struct.Struct("<d")
_GTID_POST: Final = struct.Struct("<QIB")  # sequence, domain, flags
_GTID_LIST_ENTRY: Final = struct.Struct("<IIQ")  # domain, server id, sequence
_QUERY_POST: Final = struct.Struct("<IIBHH")  # thread, seconds it took, schema length, error code, status length
_LOAD_POST_BYTES: Final = 13  # after those: file number, where its name begins and ends, what duplicates do

ARTIFICIAL: Final = 0x20
"""Flag of an event that the server made up for its reader; it stands in no file."""


@dataclass(eq=False, kw_only=True)
class EventFormatError(SourceError):
    """Bytes from the binlog that are no event as MariaDB writes them."""

    why: str

    def __str__(self) -> str:
        return (
            f"a binlog event cannot be decoded: {self.why}. Check the file with `mariadb-binlog "
            "--verify-binlog-checksum`"
        )


class EventType(enum.IntEnum):
    """The event types of MariaDB, by their numbers on the wire."""

    START_V3 = 1
    QUERY = 2
    STOP = 3
    ROTATE = 4
    INTVAR = 5
    LOAD = 6
    SLAVE = 7
    CREATE_FILE = 8
    APPEND_BLOCK = 9
    EXEC_LOAD = 10
    DELETE_FILE = 11
    NEW_LOAD = 12
    RAND = 13
    USER_VAR = 14
    FORMAT_DESCRIPTION = 15
    XID = 16
    BEGIN_LOAD_QUERY = 17
    EXECUTE_LOAD_QUERY = 18
    TABLE_MAP = 19
    WRITE_ROWS_V0 = 20
    UPDATE_ROWS_V0 = 21
    DELETE_ROWS_V0 = 22
    WRITE_ROWS_V1 = 23
    UPDATE_ROWS_V1 = 24
    DELETE_ROWS_V1 = 25
    INCIDENT = 26
    HEARTBEAT = 27
    IGNORABLE = 28
    ROWS_QUERY = 29
    WRITE_ROWS = 30
    UPDATE_ROWS = 31
    DELETE_ROWS = 32
    MYSQL_GTID = 33
    MYSQL_ANONYMOUS_GTID = 34
    MYSQL_PREVIOUS_GTIDS = 35
    TRANSACTION_CONTEXT = 36
    VIEW_CHANGE = 37
    XA_PREPARE = 38
    PARTIAL_UPDATE_ROWS = 39
    TRANSACTION_PAYLOAD = 40
    ANNOTATE_ROWS = 160
    BINLOG_CHECKPOINT = 161
    GTID = 162
    GTID_LIST = 163
    START_ENCRYPTION = 164
    QUERY_COMPRESSED = 165
    WRITE_ROWS_COMPRESSED_V1 = 166
    UPDATE_ROWS_COMPRESSED_V1 = 167
    DELETE_ROWS_COMPRESSED_V1 = 168
    WRITE_ROWS_COMPRESSED = 169
    UPDATE_ROWS_COMPRESSED = 170
    DELETE_ROWS_COMPRESSED = 171


def event_name(kind: int) -> str:
    """Return an event type's name for a message, also of one that we never heard of."""
    try:
        return f"{EventType(kind).name} event"
    except ValueError:
        return f"event of the unknown type {kind}"


INFORMATIVE: Final = frozenset(
    {
        EventType.STOP,
        EventType.HEARTBEAT,
        EventType.IGNORABLE,
        EventType.ROWS_QUERY,
        EventType.BINLOG_CHECKPOINT,
        EventType.GTID_LIST,
    }
)
"""Events that change no row and no table: the only ones that are passed over. A flag that an event may be ignored is
not believed, since it speaks of the server's own replicas."""

ROWS_EVENTS: Final = {
    EventType.WRITE_ROWS_V1: ("write", 1),
    EventType.UPDATE_ROWS_V1: ("update", 1),
    EventType.DELETE_ROWS_V1: ("delete", 1),
    EventType.WRITE_ROWS: ("write", 2),
    EventType.UPDATE_ROWS: ("update", 2),
    EventType.DELETE_ROWS: ("delete", 2),
}
"""What a rows event does, and the version of its header."""


_COMPRESSED: Final = {
    EventType.QUERY_COMPRESSED: EventType.QUERY,
    EventType.WRITE_ROWS_COMPRESSED_V1: EventType.WRITE_ROWS_V1,
    EventType.UPDATE_ROWS_COMPRESSED_V1: EventType.UPDATE_ROWS_V1,
    EventType.DELETE_ROWS_COMPRESSED_V1: EventType.DELETE_ROWS_V1,
    EventType.WRITE_ROWS_COMPRESSED: EventType.WRITE_ROWS,
    EventType.UPDATE_ROWS_COMPRESSED: EventType.UPDATE_ROWS,
    EventType.DELETE_ROWS_COMPRESSED: EventType.DELETE_ROWS,
}
COMPRESSED: Final = frozenset(map(int, _COMPRESSED))
"""Events whose text or rows are compressed by zlib: what log_bin_compress writes."""


def uncompressed_event(event: bytes) -> bytes:
    """Return the event that a compressed one stands for, with the header of this one but for its type."""
    kind = _COMPRESSED[EventType(event[4])]
    reader = _Reader(event, HEADER_BYTES, len(event), f"a {event_name(event[4])}")
    if kind == EventType.QUERY:
        _, _, schema_bytes, _, status_bytes = _QUERY_POST.unpack(reader.take(_QUERY_POST.size))
        reader.take(status_bytes + schema_bytes + 1)
    else:
        reader.at = _rows_shape(event, kind).images_at
    start = reader.at
    head = reader.byte()
    if head & 0xF8 != 0x80 or not 1 <= head & 7 <= 4:
        raise reader.fail(f"compressed in the unknown way {head:#x}")
    size = int.from_bytes(reader.take(head & 7), "big")
    try:
        inflate = zlib.decompressobj()
        content = inflate.decompress(event[reader.at :], size + 1)
    except zlib.error as exc:
        raise reader.fail(f"it does not decompress ({exc})") from exc
    if len(content) != size or not inflate.eof:
        raise reader.fail(f"it does not decompress to the {size} bytes that it announces")
    return b"".join((event[:4], bytes([kind]), event[5:start], content))


def query_of_load(event: bytes) -> bytes:
    """Return the QUERY event that stands in an EXECUTE_LOAD_QUERY event: the text of a LOAD DATA."""
    at = HEADER_BYTES + _QUERY_POST.size
    if len(event) < at + _LOAD_POST_BYTES:
        raise EventFormatError(why=f"a {event_name(event[4])} of {len(event)} bytes")
    return event[:4] + bytes([EventType.QUERY]) + event[5:at] + event[at + _LOAD_POST_BYTES :]


def has_valid_checksum(event: bytes) -> bool:
    """Say whether the last four bytes are the CRC-32 of all before them."""
    return len(event) > CHECKSUM_BYTES and zlib.crc32(event[:-4]) == _U32.unpack_from(event, len(event) - 4)[0]


class _Reader:
    """Reads a byte string from front to back; whatever passes its end is an EventFormatError."""

    __slots__ = ("_what", "at", "end", "raw")

    def __init__(self, raw: bytes, at: int, end: int, what: str) -> None:
        self.raw = raw
        self.at = at
        self.end = end
        self._what = what

    def fail(self, why: str) -> EventFormatError:
        return EventFormatError(why=f"{self._what}: {why}")

    def take(self, count: int) -> bytes:
        start = self.at
        self.at += count
        if self.at > self.end:
            raise self.fail(f"it ends {self.at - self.end} bytes too early")
        return self.raw[start : self.at]

    def byte(self) -> int:
        return self.take(1)[0]

    def number(self, count: int) -> int:
        return int.from_bytes(self.take(count), "little")

    def packed(self) -> int:
        """Read a length-encoded integer."""
        first = self.byte()
        if first < 251:
            return first
        if first == 251 or first == 255:
            raise self.fail(f"a length that starts with {first}")
        return self.number({252: 2, 253: 3, 254: 8}[first])

    def name(self) -> str:
        """Read a length byte, that many bytes of UTF-8, and a zero byte."""
        text = self.text(self.take(self.byte()))
        if self.take(1) != b"\0":
            raise self.fail("a name without a zero byte after it")
        return text

    def text(self, raw: bytes) -> str:
        try:
            return raw.decode()
        except UnicodeDecodeError as exc:
            raise self.fail(f"a name that is not UTF-8: {raw!r}") from exc

    def part(self, count: int, what: str) -> _Reader:
        """Return a reader over the next `count` bytes and pass over them."""
        start = self.at
        self.take(count)
        return _Reader(self.raw, start, self.at, what)

    def left(self) -> int:
        return self.end - self.at


# --- the file and its position ---------------------------------------------------------------------------


def announces_checksums(event: bytes) -> bool:
    """Read a FORMAT_DESCRIPTION event: whether checksums follow. It has its own still after it, as it always does."""
    reader = _Reader(event, HEADER_BYTES, len(event), "a format description")
    version = reader.number(2)
    if version != 4:
        raise reader.fail(f"binlog format {version}; only 4 is known")
    reader.take(50 + 4)  # the server's version, and when the file was begun
    header_bytes = reader.byte()
    if header_bytes != HEADER_BYTES:
        raise reader.fail(f"event headers of {header_bytes} bytes")
    if reader.left() < 1 + CHECKSUM_BYTES:
        raise reader.fail("it does not name its checksum")
    algorithm = event[-1 - CHECKSUM_BYTES]
    if algorithm not in (0, 1):
        raise reader.fail(f"checksum algorithm {algorithm}")
    return bool(algorithm)


def parse_rotate(event: bytes) -> tuple[str, int]:
    """Read a ROTATE event: the file that follows, and the offset in it."""
    reader = _Reader(event, HEADER_BYTES, len(event), "a rotate event")
    offset = reader.number(8)
    name = reader.text(reader.take(reader.left()))
    if not name:
        raise reader.fail("it names no file")
    return name, offset


# --- transactions ----------------------------------------------------------------------------------------

_FL_STANDALONE = 1
_FL_GROUP_COMMIT_ID = 2
_FL_DDL = 32
_FL_PREPARED_XA = 64
_FL_COMPLETED_XA = 128
_EXTRA_START_ALTER = 2
_EXTRA_COMMIT_ALTER = 4
_EXTRA_ROLLBACK_ALTER = 8


class Xid(msgspec.Struct, frozen=True):
    """The name of an XA transaction."""

    form: int
    gtrid: bytes
    bqual: bytes

    def __str__(self) -> str:
        return f"X'{self.gtrid.hex()}',X'{self.bqual.hex()}',{self.form}"


class GtidEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The first event of a transaction.

    `standalone`: one statement follows and no commit event. `group_commit_id`: shared by the transactions that were
    committed together. `xid`: of the XA transaction that it prepares, or (`ends_xa`) commits or rolls back.
    `alter_phase`: "start" and "rollback" are the parts of a two-phase ALTER that change nothing.
    """

    gtid: DomainGtid
    standalone: bool
    ddl: bool
    xid: Xid | None
    ends_xa: bool
    group_commit_id: int | None
    alter_phase: str | None


def parse_gtid(event: bytes) -> GtidEvent:
    """Read a GTID event."""
    try:
        sequence, domain, flags = _GTID_POST.unpack_from(event, HEADER_BYTES)
        (server_id,) = _U32.unpack_from(event, 5)
    except struct.error as exc:
        raise EventFormatError(why=f"a GTID event of {len(event)} bytes") from exc
    commit_id = None
    alter_phase = None
    xid = None
    if flags & (_FL_GROUP_COMMIT_ID | _FL_PREPARED_XA | _FL_COMPLETED_XA) or event[32:].strip(b"\0"):
        reader = _Reader(event, HEADER_BYTES + _GTID_POST.size, len(event), "a GTID event")
        if flags & _FL_GROUP_COMMIT_ID:
            commit_id = reader.number(8)
        if flags & (_FL_PREPARED_XA | _FL_COMPLETED_XA):
            form = int.from_bytes(reader.take(4), "little", signed=True)
            gtrid_bytes, bqual_bytes = reader.take(2)
            xid = Xid(form, reader.take(gtrid_bytes), reader.take(bqual_bytes))
        extra = reader.byte() if reader.left() else 0
        if extra & _EXTRA_START_ALTER:
            alter_phase = "start"
        elif extra & _EXTRA_COMMIT_ALTER:
            alter_phase = "commit"
        elif extra & _EXTRA_ROLLBACK_ALTER:
            alter_phase = "rollback"
    return GtidEvent(
        gtid=DomainGtid(domain, server_id, sequence),
        standalone=bool(flags & _FL_STANDALONE),
        ddl=bool(flags & _FL_DDL),
        xid=xid,
        ends_xa=bool(flags & _FL_COMPLETED_XA),
        group_commit_id=commit_id,
        alter_phase=alter_phase,
    )


def parse_gtid_list(event: bytes) -> tuple[DomainGtid, ...]:
    """Read a GTID_LIST event: what the files before this one hold, in the order written."""
    reader = _Reader(event, HEADER_BYTES, len(event), "a GTID list")
    count = reader.number(4) & 0x0FFFFFFF
    entries = []
    for _ in range(count):
        domain, server_id, sequence = _GTID_LIST_ENTRY.unpack(reader.take(_GTID_LIST_ENTRY.size))
        entries.append(DomainGtid(domain, server_id, sequence))
    return tuple(entries)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryEvent:
    """A statement, or one of the words that steer a transaction.

    `text` are the bytes as the client sent them, in the charset that `collation_client` names. `settings` are the
    session's, by the name of the variable, as far as the event tells; `unread` holds status bytes after the first
    setting that we do not know.
    """

    schema: str
    text: bytes
    error_code: int
    settings: tuple[tuple[str, str], ...]
    collation_client: int | None
    unread: bytes


# fmt: off
_SQL_MODES: Final = (
    "REAL_AS_FLOAT", "PIPES_AS_CONCAT", "ANSI_QUOTES", "IGNORE_SPACE", "IGNORE_BAD_TABLE_OPTIONS",
    "ONLY_FULL_GROUP_BY", "NO_UNSIGNED_SUBTRACTION", "NO_DIR_IN_CREATE", "POSTGRESQL", "ORACLE", "MSSQL", "DB2",
    "MAXDB", "NO_KEY_OPTIONS", "NO_TABLE_OPTIONS", "NO_FIELD_OPTIONS", "MYSQL323", "MYSQL40", "ANSI",
    "NO_AUTO_VALUE_ON_ZERO", "NO_BACKSLASH_ESCAPES", "STRICT_TRANS_TABLES", "STRICT_ALL_TABLES", "NO_ZERO_IN_DATE",
    "NO_ZERO_DATE", "ALLOW_INVALID_DATES", "ERROR_FOR_DIVISION_BY_ZERO", "TRADITIONAL", "NO_AUTO_CREATE_USER",
    "HIGH_NOT_PRECEDENCE", "NO_ENGINE_SUBSTITUTION", "PAD_CHAR_TO_FULL_LENGTH", "EMPTY_STRING_IS_NULL",
    "SIMULTANEOUS_ASSIGNMENT", "TIME_ROUND_FRACTIONAL",
)
# fmt: on
"""By their bits, from the lowest."""


def sql_mode_text(mode: int) -> str:
    """Return a sql_mode as `SET sql_mode` takes it: names, or the number where a bit has none that we know."""
    if mode >> len(_SQL_MODES):
        return str(mode)
    return ",".join(name for bit, name in enumerate(_SQL_MODES) if mode >> bit & 1)


# Bits of the status variable FLAGS2, and whether a set bit means that the variable is on.
_FLAGS2: Final = (
    ("foreign_key_checks", 26, False),
    ("unique_checks", 27, False),
    ("check_constraint_checks", 15, False),
    ("sql_auto_is_null", 14, True),
    ("autocommit", 19, False),
    ("explicit_defaults_for_timestamp", 24, True),
    ("sql_if_exists", 28, True),
    ("system_versioning_insert_history", 30, True),
)
_ROWS_FLAGS: Final = (("foreign_key_checks", 0x02), ("unique_checks", 0x04), ("check_constraint_checks", 0x80))
"""Flags of a rows event that say which checks its session had off."""
_INTVARS: Final = {1: "last_insert_id", 2: "insert_id"}


def parse_query(event: bytes) -> QueryEvent:
    """Read a QUERY event."""
    reader = _Reader(event, HEADER_BYTES, len(event), "a query event")
    _, _, schema_bytes, error_code, status_bytes = _QUERY_POST.unpack(reader.take(_QUERY_POST.size))
    status = reader.part(status_bytes, "the status of a query event")
    schema = reader.text(reader.take(schema_bytes))
    if reader.take(1) != b"\0":
        raise reader.fail("a schema without a zero byte after it")
    text = reader.take(reader.left())
    settings: list[tuple[str, str]] = []
    collation_client = None
    unread = b""
    while status.left():
        start = status.at
        match status.byte():
            case 0:
                flags = status.number(4)
                settings += [(name, "1" if bool(flags >> bit & 1) == on else "0") for name, bit, on in _FLAGS2]
            case 1:
                settings.append(("sql_mode", sql_mode_text(status.number(8))))
            case 2:  # the catalog, in an old form
                status.take(status.byte() + 1)
            case 3:
                settings.append(("auto_increment_increment", str(status.number(2))))
                settings.append(("auto_increment_offset", str(status.number(2))))
            case 4:
                collation_client = status.number(2)
                settings.append(("collation_client", str(collation_client)))
                settings.append(("collation_connection", str(status.number(2))))
                settings.append(("collation_server", str(status.number(2))))
            case 5:
                settings.append(("time_zone", status.take(status.byte()).decode(errors="replace")))
            case 6:  # the catalog, always "std"
                status.take(status.byte())
            case 7:
                settings.append(("lc_time_names", str(status.number(2))))
            case 8:
                settings.append(("collation_database", str(status.number(2))))
            case 9:  # tables that a multi-table update names
                status.take(8)
            case 10:  # the event's size at the server's own source
                status.take(4)
            case 11:
                user = status.take(status.byte()).decode(errors="replace")
                host = status.take(status.byte()).decode(errors="replace")
                settings.append(("invoker", f"{user}@{host}"))
            case 16:
                settings.append(("explicit_defaults_for_timestamp", str(status.byte())))
            case 128:
                settings.append(("timestamp_microseconds", str(status.number(3))))
            case 129:  # the number of the transaction that carries the DDL
                status.take(8)
            case 130:  # the GTID event's extra flags once more
                if status.byte() & (_EXTRA_COMMIT_ALTER | _EXTRA_ROLLBACK_ALTER):
                    status.take(8)
            case 131:  # from 11.2, in front of code 4: the charsets whose default collation is another one
                pairs = [f"{status.number(2)}={status.number(2)}" for _ in range(status.byte())]
                settings.append(("character_set_collations", ",".join(pairs)))
            case _:
                # Codes have no lengths: what follows cannot be told apart.
                unread = status.raw[start : status.end]
                break
    return QueryEvent(
        schema=schema,
        text=text,
        error_code=error_code,
        settings=tuple(settings),
        collation_client=collation_client,
        unread=unread,
    )


def parse_beside(
    event: bytes, charsets: Mapping[int, str], collations: Mapping[int, str]
) -> tuple[tuple[str, str], ...]:
    """Return what an INTVAR, RAND or USER_VAR event sets for the statement after it.

    A user variable is named with its `@`, and its value is an expression. `charsets` and `collations` are by the
    server's number for a collation.
    """
    kind = EventType(event[4])
    reader = _Reader(event, HEADER_BYTES, len(event), f"a {event_name(kind)}")
    match kind:
        case EventType.INTVAR:
            which = reader.byte()
            if which not in _INTVARS:
                raise reader.fail(f"a number of the kind {which}")
            return ((_INTVARS[which], str(reader.number(8))),)
        case EventType.RAND:
            return (("rand_seed1", str(reader.number(8))), ("rand_seed2", str(reader.number(8))))
        case _:
            name = reader.text(reader.take(reader.number(4)))
            return (("@" + name, _user_value(reader, charsets, collations)),)


def _user_value(reader: _Reader, charsets: Mapping[int, str], collations: Mapping[int, str]) -> str:
    if reader.byte():
        return "NULL"
    kind, collation = reader.byte(), reader.number(4)
    raw = reader.take(reader.number(4))
    match kind:
        case 0:
            if collation not in charsets:
                raise reader.fail(f"a text in collation {collation}, which the server does not name")
            return f"_{charsets[collation]} x'{raw.hex()}' COLLATE {collations[collation]}"
        case 1 if len(raw) == 8:
            text = repr(_F64.unpack(raw)[0])
            return text if "e" in text else text + "e0"
        case 2 if len(raw) == 8:
            signed = not (reader.left() and reader.byte() & 1)
            return str(int.from_bytes(raw, "little", signed=signed))
        case 4 if len(raw) > 2:
            return f"CAST({decimal_text(raw[0], raw[1])[1](raw[2:])} AS DECIMAL({raw[0]},{raw[1]}))"
        case _:
            raise reader.fail(f"a value of the kind {kind} in {len(raw)} bytes")


def rows_unchecked(event: bytes) -> tuple[str, ...]:
    """Return the checks that the session of a rows event had off."""
    flags = int.from_bytes(event[25:27], "little")
    return tuple([name for name, bit in _ROWS_FLAGS if flags & bit])


def annotation(event: bytes) -> str:
    """Return the text of an ANNOTATE_ROWS event: the statement that made the rows after it."""
    return event[HEADER_BYTES:].decode(errors="replace")


# --- tables and rows -------------------------------------------------------------------------------------


class FieldType(enum.IntEnum):
    """How a column's values are stored in a row image, by the numbers on the wire."""

    DECIMAL = 0
    TINY = 1
    SHORT = 2
    LONG = 3
    FLOAT = 4
    DOUBLE = 5
    NULL = 6
    TIMESTAMP = 7
    LONGLONG = 8
    INT24 = 9
    DATE = 10
    TIME = 11
    DATETIME = 12
    YEAR = 13
    NEWDATE = 14
    VARCHAR = 15
    BIT = 16
    TIMESTAMP2 = 17
    DATETIME2 = 18
    TIME2 = 19
    BLOB_COMPRESSED = 140
    VARCHAR_COMPRESSED = 141
    NEWDECIMAL = 246
    ENUM = 247
    SET = 248
    TINY_BLOB = 249
    MEDIUM_BLOB = 250
    LONG_BLOB = 251
    BLOB = 252
    VAR_STRING = 253
    STRING = 254
    GEOMETRY = 255


def _types(names: str) -> frozenset[FieldType]:
    return frozenset(map(FieldType.__getitem__, names.split()))


_BLOBS: Final = _types("TINY_BLOB MEDIUM_BLOB LONG_BLOB BLOB BLOB_COMPRESSED GEOMETRY")
_TEXTS: Final = _types("VARCHAR VARCHAR_COMPRESSED VAR_STRING STRING")
_METADATA_BYTES: Final = {
    **dict.fromkeys(_BLOBS | _types("FLOAT DOUBLE TIMESTAMP2 DATETIME2 TIME2"), 1),
    **dict.fromkeys(_TEXTS | _types("BIT NEWDECIMAL ENUM SET"), 2),
}
_COLUMNS_MAX: Final = 4096
"""The server's own limit."""
_NUMERIC: Final = _types("DECIMAL TINY SHORT INT24 LONG LONGLONG FLOAT DOUBLE YEAR NEWDECIMAL")
_WITH_CHARSET: Final = _BLOBS | _TEXTS


@dataclass(frozen=True, slots=True, kw_only=True)
class BinlogColumn:
    """A column as a TABLE_MAP event tells it.

    `length` means: the most bytes of a VARCHAR or STRING, the bytes of a BLOB's length, of an ENUM's or SET's
    number; for BIT the bits; for NEWDECIMAL the precision, with `decimals`; for the temporal types `decimals` alone.
    `collation` is the server's number of the charset's collation; `labels` are an ENUM's or SET's, as bytes in it.
    """

    name: str
    kind: FieldType
    length: int
    decimals: int
    nullable: bool
    unsigned: bool
    collation: int | None
    labels: tuple[bytes, ...]
    geometry: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BinlogTable:
    """A table as a TABLE_MAP event tells it. `complete` is false without binlog_row_metadata=FULL: no names."""

    schema: str
    table: str
    columns: tuple[BinlogColumn, ...]
    primary_key: tuple[int, ...]
    complete: bool


def table_number(event: bytes) -> int:
    """Return the number by which the rows events of a transaction name the table; of TABLE_MAP and rows events."""
    if len(event) < AFTER_FLAGS:
        raise EventFormatError(why=f"a table map or rows event of {len(event)} bytes")
    return int.from_bytes(event[19:25], "little")


def table_map_name(event: bytes) -> tuple[str, str]:
    """Return only the schema and the table that a TABLE_MAP event is about."""
    reader = _Reader(event, AFTER_FLAGS, len(event), "a table map")
    return reader.name(), reader.name()


def parse_table_map(event: bytes) -> BinlogTable:
    """Read a TABLE_MAP event with its optional metadata."""
    reader = _Reader(event, AFTER_FLAGS, len(event), "a table map")
    schema, table = reader.name(), reader.name()
    reader = _Reader(event, reader.at, len(event), f"the table map of {schema}.{table}")
    count = reader.packed()
    if not 0 < count <= _COLUMNS_MAX:
        raise reader.fail(f"{count} columns")
    raw_kinds = reader.take(count)
    try:
        kinds = [FieldType(kind) for kind in raw_kinds]
    except ValueError as exc:
        raise reader.fail(f"a column type that is not known ({exc})") from exc
    metadata = reader.part(reader.packed(), f"the column metadata of {schema}.{table}")
    shapes = []
    for at, kind in enumerate(kinds):
        kinds[at], length, decimals = _shape(kind, metadata.take(_METADATA_BYTES.get(kind, 0)))
        shapes.append((length, decimals))
    nulls = int.from_bytes(reader.take((count + 7) // 8), "little")
    optional = _read_optional(reader, kinds, f"{schema}.{table}")
    names = optional.names if optional.names is not None else [f"@{number}" for number in range(1, count + 1)]
    if len(names) != count:
        raise reader.fail(f"{len(names)} names for {count} columns")
    if any(index >= count for index in optional.primary_key):
        raise reader.fail("a primary key of columns that it does not have")
    return BinlogTable(
        schema=schema,
        table=table,
        columns=tuple(
            BinlogColumn(
                name=names[at],
                kind=kinds[at],
                length=shapes[at][0],
                decimals=shapes[at][1],
                nullable=bool(nulls >> at & 1),
                unsigned=optional.unsigned.get(at, False),
                collation=optional.collations.get(at),
                labels=optional.labels.get(at, ()),
                geometry=optional.geometries.get(at),
            )
            for at in range(count)
        ),
        primary_key=tuple(optional.primary_key),
        complete=optional.names is not None,
    )


def _shape(kind: FieldType, raw: bytes) -> tuple[FieldType, int, int]:
    """Return the true type, length and decimals of a column from its two bytes or one of metadata."""
    match kind:
        case FieldType.STRING | FieldType.ENUM | FieldType.SET:
            # Two bits of a CHAR's length hide, inverted, in the byte of the true type.
            if raw[0] & 0x30 != 0x30:
                return FieldType.STRING, raw[1] | (raw[0] & 0x30 ^ 0x30) << 4, 0
            if raw[0] in (FieldType.ENUM, FieldType.SET):
                return FieldType(raw[0]), raw[1], 0
            return FieldType.STRING, raw[1], 0
        case FieldType.VARCHAR | FieldType.VAR_STRING | FieldType.VARCHAR_COMPRESSED:
            return kind, raw[0] | raw[1] << 8, 0
        case FieldType.NEWDECIMAL:
            return kind, raw[0], raw[1]
        case FieldType.BIT:
            return kind, raw[1] * 8 + raw[0], 0
        case FieldType.TIME2 | FieldType.DATETIME2 | FieldType.TIMESTAMP2:
            return kind, 0, raw[0]
        case _:
            return kind, raw[0] if raw else 0, 0


class _Optional:
    """What the optional part of a TABLE_MAP event tells, by the number of the column."""

    def __init__(self) -> None:
        self.names: list[str] | None = None
        self.unsigned: dict[int, bool] = {}
        self.collations: dict[int, int] = {}
        self.labels: dict[int, tuple[bytes, ...]] = {}
        self.geometries: dict[int, int] = {}
        self.primary_key: list[int] = []


def _read_optional(reader: _Reader, kinds: list[FieldType], table: str) -> _Optional:
    found = _Optional()
    numeric = [at for at, kind in enumerate(kinds) if kind in _NUMERIC]
    with_charset = [at for at, kind in enumerate(kinds) if kind in _WITH_CHARSET]
    with_labels = [at for at, kind in enumerate(kinds) if kind in (FieldType.ENUM, FieldType.SET)]
    while reader.left():
        kind = reader.byte()
        part = reader.part(reader.packed(), f"metadata {kind} of the table map of {table}")
        match kind:
            case 1:
                bits = part.take(part.left())
                if len(bits) * 8 < len(numeric):
                    raise part.fail("too few bits of signedness")
                for place, at in enumerate(numeric):
                    found.unsigned[at] = bool(bits[place >> 3] & 0x80 >> (place & 7))
            case 2 | 10:
                _read_default_collation(part, with_charset if kind == 2 else with_labels, found)
            case 3 | 11:
                for at in with_charset if kind == 3 else with_labels:
                    found.collations[at] = part.packed()
            case 4:
                found.names = []
                while part.left():
                    found.names.append(part.text(part.take(part.packed())))
            case 5 | 6:
                wanted = FieldType.SET if kind == 5 else FieldType.ENUM
                for at in with_labels:
                    if kinds[at] == wanted:
                        count = part.packed()
                        if count > part.left():
                            raise part.fail(f"{count} labels announced in {part.left()} bytes")
                        found.labels[at] = tuple([part.take(part.packed()) for _ in range(count)])
            case 7:
                for at, column in enumerate(kinds):
                    if column == FieldType.GEOMETRY and part.left():
                        found.geometries[at] = part.packed()
            case 8:
                while part.left():
                    found.primary_key.append(part.packed())
            case 9:
                while part.left():
                    found.primary_key.append(part.packed())
                    part.packed()
            case _:  # only says more about columns that the rest has already laid out
                continue
        if part.left():
            raise part.fail(f"{part.left()} bytes too many")
    return found


def _read_default_collation(part: _Reader, columns: list[int], found: _Optional) -> None:
    default = part.packed()
    for at in columns:
        found.collations[at] = default
    while part.left():
        place = part.packed()
        if place >= len(columns):
            raise part.fail(f"a charset for column {place} of {len(columns)} that have one")
        found.collations[columns[place]] = part.packed()


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsShape:
    """Where a rows event's images start, and which columns they hold.

    `columns` is the table's number of columns; `present` has a bit for each that all images hold, the first column's
    lowest; None where an update's two images hold different ones.
    """

    columns: int
    present: int | None
    images_at: int


def parse_rows_shape(event: bytes) -> RowsShape:
    """Read what stands before the images of a rows event."""
    return _rows_shape(event, EventType(event[4]))


def _rows_shape(event: bytes, kind: EventType) -> RowsShape:
    operation, version = ROWS_EVENTS[kind]
    reader = _Reader(event, AFTER_FLAGS, len(event), "a rows event")
    if version == 2:
        size = reader.number(2)
        if size < 2:
            raise reader.fail(f"extra data of {size} bytes")
        reader.take(size - 2)
    columns = reader.packed()
    held = {
        int.from_bytes(reader.take((columns + 7) // 8), "little") & ((1 << columns) - 1)
        for _ in range(2 if operation == "update" else 1)
    }
    return RowsShape(columns=columns, present=held.pop() if len(held) == 1 else None, images_at=reader.at)
