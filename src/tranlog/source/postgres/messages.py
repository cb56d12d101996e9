"""The messages of pgoutput, PostgreSQL's own output plugin, and those of the stream that carries them.

Owns their bytes: protocol versions 1 and 2, streamed transactions among them; of a step of a two-phase commit, which is
not asked for, that it is one. What a value's text means is `values`'s, what belongs to a transaction `transactions`'s.
Pure. The hard idea: a message of a row is not cut into values here; whoever decodes it walks over them once, so its
message says where they begin.

Source: PostgreSQL's manual, "Logical Replication Message Formats", "Streaming Replication Protocol".
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, TypeAlias

import msgspec

EPOCH_2000_MICROS: Final = 946_684_800_000_000
"""PostgreSQL counts microseconds from 2000-01-01, everybody else from 1970-01-01."""
_U16: Final = struct.Struct(">H")
_U32: Final = struct.Struct(">I")
_COLUMN: Final = struct.Struct(">Ii")
_END: Final = struct.Struct(">BQQq")
_KEEPALIVE: Final = struct.Struct(">cQqB")
_FEEDBACK: Final = struct.Struct(">cQQQqB")


class MessageFormatError(Exception):
    """Bytes that are no message of pgoutput, or one that this version does not know."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class BeginMessage(msgspec.Struct, frozen=True):
    """The start of a transaction."""

    xid: int


class CommitMessage(msgspec.Struct, frozen=True):
    """The end of a transaction. `end_lsn` is the first byte after its commit record; `timestamp`: microseconds UTC.

    `xid`: of a streamed one, else 0. `kind` tells what ended: the message's letter.
    """

    kind: str
    end_lsn: int
    timestamp: int
    xid: int = 0


class OriginMessage(msgspec.Struct, frozen=True):
    """Where a transaction was first committed that came here by replication."""

    name: str


class RelationColumn(msgspec.Struct, frozen=True):
    """A published column: whether it belongs to the replica identity, its type's OID and type modifier."""

    key: bool
    name: str
    type_oid: int
    typmod: int


class RelationMessage(msgspec.Struct, frozen=True):
    """A table as the rows after this message have it. `identity`: pg_class.relreplident."""

    xid: int
    oid: int
    schema: str
    table: str
    identity: str
    columns: tuple[RelationColumn, ...]


class TypeMessage(msgspec.Struct, frozen=True):
    """A type that is not built in; of a domain, the name of its base type."""

    xid: int
    oid: int
    schema: str
    name: str


class RowMessage(msgspec.Struct, frozen=True):
    """A row inserted, updated or deleted: `kind` is I, U or D. Its tuples begin at byte `at`, each after its letter."""

    kind: str
    xid: int
    relation: int
    at: int


class TruncateMessage(msgspec.Struct, frozen=True):
    """Tables that were emptied together."""

    xid: int
    relations: tuple[int, ...]
    cascade: bool
    restart_identity: bool


class LogicalMessage(msgspec.Struct, frozen=True):
    """What a session gave to pg_logical_emit_message. `lsn` is the first byte after its record."""

    xid: int
    transactional: bool
    lsn: int
    prefix: str
    content: bytes


class StreamStart(msgspec.Struct, frozen=True):
    """From here to the next StreamStop: changes of a transaction that has not ended; each is preceded by its xid."""

    xid: int
    first: bool


class StreamStop(msgspec.Struct, frozen=True):
    """The end of a part of a streamed transaction."""


class StreamAbort(msgspec.Struct, frozen=True):
    """A streamed transaction, or a part of one (`subxid` differs), was rolled back."""

    xid: int
    subxid: int


class TwoPhaseMessage(msgspec.Struct, frozen=True):
    """A step of a two-phase commit."""


Message: TypeAlias = (
    BeginMessage
    | CommitMessage
    | OriginMessage
    | RelationMessage
    | TypeMessage
    | RowMessage
    | TruncateMessage
    | LogicalMessage
    | StreamStart
    | StreamStop
    | StreamAbort
    | TwoPhaseMessage
)


def parse_message(raw: bytes, *, streamed: bool = False) -> Message:
    """Return what a message says; `streamed`: it stands between a StreamStart and its StreamStop.

    Raises MessageFormatError.
    """
    parse = _PARSERS.get(raw[:1])
    if parse is None:
        raise MessageFormatError(f"a message of the unknown kind {raw[:1]!r}")
    try:
        return parse(raw, streamed)
    except (struct.error, IndexError, ValueError) as exc:
        raise MessageFormatError(f"a message {raw[:1]!r} of {len(raw)} bytes: {exc}") from exc


def xid_of(raw: bytes) -> int:
    """Return the (sub)transaction of a message that stands inside a streamed transaction."""
    if len(raw) < 5:
        raise MessageFormatError(f"a message {raw[:1]!r} of {len(raw)} bytes without its transaction")
    return int.from_bytes(raw[1:5])


def _micros(value: int) -> int:
    return value + EPOCH_2000_MICROS


def _text(raw: bytes, at: int) -> tuple[str, int]:
    end = raw.index(0, at)
    return raw[at:end].decode(), end + 1


def _xid(raw: bytes, streamed: bool) -> tuple[int, int]:
    return (_U32.unpack_from(raw, 1)[0], 5) if streamed else (0, 1)


def _whole(raw: bytes, at: int) -> None:
    if at != len(raw):
        raise ValueError(f"{len(raw) - at} bytes behind its end")


def _begin(raw: bytes, streamed: bool) -> BeginMessage:
    _, _, xid = struct.unpack(">QqI", raw[1:])
    return BeginMessage(xid)


def _commit(raw: bytes, streamed: bool) -> CommitMessage:
    _, _, end_lsn, timestamp = _END.unpack(raw[1:])
    return CommitMessage("C", end_lsn, _micros(timestamp))


def _stream_commit(raw: bytes, streamed: bool) -> CommitMessage:
    (xid,) = _U32.unpack_from(raw, 1)
    _, _, end_lsn, timestamp = _END.unpack(raw[5:])
    return CommitMessage("c", end_lsn, _micros(timestamp), xid)


def _two_phase(raw: bytes, streamed: bool) -> TwoPhaseMessage:
    return TwoPhaseMessage()


def _origin(raw: bytes, streamed: bool) -> OriginMessage:
    name, at = _text(raw, 9)
    _whole(raw, at)
    return OriginMessage(name)


def _relation(raw: bytes, streamed: bool) -> RelationMessage:
    xid, at = _xid(raw, streamed)
    (oid,) = _U32.unpack_from(raw, at)
    schema, at = _text(raw, at + 4)
    table, at = _text(raw, at)
    identity = chr(raw[at])
    (count,) = _U16.unpack_from(raw, at + 1)
    at += 3
    columns = []
    for _ in range(count):
        flags = raw[at]
        name, at = _text(raw, at + 1)
        type_oid, typmod = _COLUMN.unpack_from(raw, at)
        at += 8
        columns.append(RelationColumn(bool(flags & 1), name, type_oid, typmod))
    _whole(raw, at)
    return RelationMessage(xid, oid, schema or "pg_catalog", table, identity, tuple(columns))


def _type(raw: bytes, streamed: bool) -> TypeMessage:
    xid, at = _xid(raw, streamed)
    (oid,) = _U32.unpack_from(raw, at)
    schema, at = _text(raw, at + 4)
    name, at = _text(raw, at)
    _whole(raw, at)
    return TypeMessage(xid, oid, schema or "pg_catalog", name)


def _row(raw: bytes, streamed: bool) -> RowMessage:
    xid, at = _xid(raw, streamed)
    (relation,) = _U32.unpack_from(raw, at)
    return RowMessage(chr(raw[0]), xid, relation, at + 4)


def _truncate(raw: bytes, streamed: bool) -> TruncateMessage:
    xid, at = _xid(raw, streamed)
    count, flags = struct.unpack_from(">IB", raw, at)
    if count * 4 != len(raw) - at - 5:
        raise ValueError(f"{count} tables announced")
    relations = struct.unpack_from(f">{count}I", raw, at + 5)
    return TruncateMessage(xid, relations, bool(flags & 1), bool(flags & 2))


def _message(raw: bytes, streamed: bool) -> LogicalMessage:
    xid, at = _xid(raw, streamed)
    flags, lsn = struct.unpack_from(">BQ", raw, at)
    prefix, at = _text(raw, at + 9)
    (size,) = _U32.unpack_from(raw, at)
    content = raw[at + 4 :]
    if size != len(content):
        raise ValueError(f"{size} bytes of content announced")
    return LogicalMessage(xid, bool(flags & 1), lsn, prefix, content)


def _stream_start(raw: bytes, streamed: bool) -> StreamStart:
    xid, first = struct.unpack(">IB", raw[1:])
    return StreamStart(xid, first == 1)


def _stream_stop(raw: bytes, streamed: bool) -> StreamStop:
    _whole(raw, 1)
    return StreamStop()


def _stream_abort(raw: bytes, streamed: bool) -> StreamAbort:
    return StreamAbort(*struct.unpack(">II", raw[1:]))


_PARSERS: Final[dict[bytes, Callable[[bytes, bool], Message]]] = {
    b"B": _begin,
    b"C": _commit,
    b"O": _origin,
    b"R": _relation,
    b"Y": _type,
    b"I": _row,
    b"U": _row,
    b"D": _row,
    b"T": _truncate,
    b"M": _message,
    b"S": _stream_start,
    b"E": _stream_stop,
    b"c": _stream_commit,
    b"A": _stream_abort,
    **dict.fromkeys((b"b", b"P", b"K", b"r", b"p"), _two_phase),
}


# --- the stream ------------------------------------------------------------------------------------------


class Keepalive(msgspec.Struct, frozen=True):
    """How far the server has sent its WAL: everything committed before `wal_end` has come."""

    wal_end: int
    reply_wanted: bool


def parse_keepalive(raw: bytes) -> Keepalive:
    """Read a keepalive. Raises MessageFormatError."""
    try:
        _, wal_end, _, reply = _KEEPALIVE.unpack(raw)
    except struct.error as exc:
        raise MessageFormatError(f"a keepalive of {len(raw)} bytes") from exc
    return Keepalive(wal_end, bool(reply))


def feedback(*, received: int, durable: int, now_micros: int, reply: bool) -> bytes:
    """Return the message that tells the server how far we are; `durable` 0 confirms nothing. `now_micros`: UTC."""
    return _FEEDBACK.pack(b"r", received, durable, durable, now_micros - EPOCH_2000_MICROS, reply)
