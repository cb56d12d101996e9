"""What is spilled of a large transaction: the bytes of its chunks and of its reference, and which segments may go.

Owns the byte forms of spill segments and of the table beside them, and retention's decision about them. Writing them
is `spilling`'s, reading `spilled`'s. The hard idea: a chunk knows the chunk before it and not the one after it, which
is not written yet. The reference, written last, knows the last chunk; so one walk back over the chunks' headers finds
all of them, however many other transactions spilled between them.

Source: tokumx-replication, "Large Transactions"; docs/decisions/0012.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import msgspec

from tranlog.checksum import crc32
from tranlog.ids import Epoch, Gtid, Lsn, Seqno
from tranlog.log.records.format import (
    BAD_CHECKSUM,
    CHUNK_TYPE,
    CRC,
    CRC_32,
    CRC_NONE,
    TRAILER,
    Impossible,
    RecordHeader,
    StoredRecord,
    parse_event,
)
from tranlog.lsn import lsn_segment

SPILL_PREFIX: Final = "thl.spill."
SPILL_TABLE_NAME: Final = "spill.table"
SPILL_MAGIC: Final = b"TLSP"
TABLE_MAGIC: Final = b"TLST"
SPILL_VERSION: Final = 1

AS_IT_IS: Final = 0
"""Codec of a chunk: its fragments' bytes."""
DEFLATED: Final = 1
"""Codec of a chunk: its fragments' bytes, compressed by zlib."""

SPILL_HEADER_FIELDS: Final = (
    ("magic", 4),
    ("version", 2),
    ("reserved", 2),
    ("created_at", 8),
    ("history", 16),
    ("crc", 4),
)
CHUNK_FIELDS: Final = (
    ("record_length", 4),
    ("record_type", 1),
    ("oid", 16),
    ("seq", 4),
    ("previous", 8),
    ("written_at", 8),
    ("codec", 1),
    ("raw_length", 4),
    ("header_crc", 4),
    ("fragments", 0),
    ("crc_method", 1),
    ("crc", 4),
)
REFERENCE_FIELDS: Final = (
    ("oid", 16),
    ("chunks", 4),
    ("fragments", 4),
    ("first", 8),
    ("last", 8),
    ("raw_bytes", 8),
    ("spilled_bytes", 8),
)
SPILL_TABLE_FIELDS: Final = (
    ("magic", 4),
    ("version", 2),
    ("reserved", 2),
    ("covers", 4),
    ("next_number", 4),
    ("count", 4),
    ("references", 0),
    ("crc", 4),
)
TABLE_REFERENCE_FIELDS: Final = (("spill_segment", 4), ("epoch_number", 8), ("seqno", 8))

SPILL_HEADER: Final = struct.Struct(">4sHHQ16s")
"""A spill segment's header without its crc."""
SPILL_HEADER_BYTES: Final = SPILL_HEADER.size + CRC.size
CHUNK: Final = struct.Struct(">IB16sIQQBI")
"""A chunk up to and including raw_length."""
CHUNK_HEADER_BYTES: Final = CHUNK.size + CRC.size
CHUNK_OVERHEAD: Final = CHUNK_HEADER_BYTES + TRAILER.size
REFERENCE: Final = struct.Struct(">16sIIQQQQ")
"""What the event field of a referring record holds."""
SPILL_TABLE: Final = struct.Struct(">4sHHIII")
"""The table up to and including count."""
TABLE_REFERENCE: Final = struct.Struct(">IQQ")
OID: Final = struct.Struct(">QQ")
"""The writer's epoch when the transaction was begun, and its number among those that this opening spilled."""

_NAME: Final = re.compile(r"thl\.spill\.([0-9]{10})")
_NUMBER_MAX: Final = (1 << 32) - 1


def spill_name(number: int) -> str:
    """Return the file name of a spill segment: ten decimal digits."""
    return f"{SPILL_PREFIX}{number:010d}"


def spill_number(name: str) -> int | None:
    """Return the number in a spill segment's file name; None for any other file."""
    match = _NAME.fullmatch(name)
    number = 0 if match is None else int(match[1])
    return number if 0 < number <= _NUMBER_MAX else None


# --- bytes -----------------------------------------------------------------------------------------------


def encode_spill_header(created_at: int, history: bytes) -> bytes:
    """Return the bytes at the start of a spill segment of the log with this history; `created_at` is ms since 1970."""
    body = SPILL_HEADER.pack(SPILL_MAGIC, SPILL_VERSION, 0, max(created_at, 0), history)
    return body + CRC.pack(crc32(body))


def parse_spill_header(raw: bytes) -> tuple[int, bytes] | None:
    """Return when a spill segment was begun, ms since 1970, and the identity of the log's history.

    None if these are not the first bytes of one.
    """
    if len(raw) < SPILL_HEADER_BYTES or CRC.pack(crc32(raw[: SPILL_HEADER.size])) != raw[SPILL_HEADER.size :][:4]:
        return None
    magic, version, _, created_at, history = SPILL_HEADER.unpack_from(raw)
    return (created_at, history) if (magic, version) == (SPILL_MAGIC, SPILL_VERSION) else None


class ChunkHeader(msgspec.Struct, frozen=True):
    """The header of one chunk. `previous` is the place of the chunk before it, 0 for the first."""

    record_length: int
    oid: bytes
    seq: int
    previous: Lsn
    written_at: int
    codec: int
    raw_length: int


class RawChunk(msgspec.Struct, frozen=True):
    """A chunk as it goes from one log to another: what it holds, and nothing of where it stood.

    `raw` are fragments of `raw_length` bytes, as `codec` keeps them.
    """

    oid: bytes
    seq: int
    codec: int
    raw_length: int
    raw: bytes


Kept: TypeAlias = tuple[int, int, Sequence[bytes | memoryview]]
"""Codec, raw_length, and the fragments as the codec keeps them, in pieces that are cut anywhere."""


def pack_chunk(raw: Sequence[bytes | memoryview], *, compress: bool) -> Kept:
    """Return how a chunk keeps `raw`, the event records of some fragments, cut anywhere."""
    raw_length = sum(map(len, raw))
    if compress:
        packed = zlib.compress(b"".join(raw), 1)
        if len(packed) < raw_length:
            return DEFLATED, raw_length, (packed,)
    return AS_IT_IS, raw_length, raw


def encode_chunk(oid: bytes, seq: int, previous: int, written_at: int, what: Kept) -> Iterator[bytes | memoryview]:
    """Return a chunk record, in pieces."""
    codec, raw_length, kept = what
    length = CHUNK_OVERHEAD + sum(map(len, kept))
    head = CHUNK.pack(length, CHUNK_TYPE, oid, seq, previous, max(written_at, 0), codec, raw_length)
    head += CRC.pack(crc32(head))
    yield head
    crc = crc32(head)
    for piece in kept:
        crc = crc32(piece, crc)
        yield piece
    yield TRAILER.pack(CRC_32, crc32(b"\x01", crc))


def parse_chunk_header(raw: bytes) -> ChunkHeader | Impossible:
    """Read the header of a chunk, which its own checksum proves."""
    if len(raw) < CHUNK_HEADER_BYTES:
        return Impossible("the file ends inside the chunk")
    (crc,) = CRC.unpack_from(raw, CHUNK.size)
    if crc != crc32(raw[: CHUNK.size]):
        return Impossible("no chunk, or one whose header does not match its checksum")
    length, kind, oid, seq, previous, written_at, codec, raw_length = CHUNK.unpack_from(raw)
    if kind != CHUNK_TYPE or length < CHUNK_OVERHEAD or codec > DEFLATED:
        return Impossible("a chunk that this release does not know")
    return ChunkHeader(length, oid, seq, Lsn(previous), written_at, codec, raw_length)


def open_chunk(header: ChunkHeader, raw: bytes) -> bytes | Impossible:
    """Return the event records in a whole chunk, its checksum verified."""
    if len(raw) < header.record_length:
        return Impossible("the file ends inside the chunk")
    if TRAILER.unpack_from(raw, len(raw) - TRAILER.size) != (CRC_32, crc32(memoryview(raw)[: -CRC.size])):
        return Impossible(BAD_CHECKSUM)
    return unpack_chunk(header.codec, header.raw_length, raw[CHUNK_HEADER_BYTES : -TRAILER.size])


def unpack_chunk(codec: int, raw_length: int, kept: bytes) -> bytes | Impossible:
    """Return the event records that a chunk keeps so."""
    if codec > DEFLATED:
        return Impossible("a chunk that this release does not know")
    if codec == DEFLATED:
        unpacking = zlib.decompressobj()
        try:
            kept = unpacking.decompress(kept, raw_length + 1)
        except zlib.error as exc:
            return Impossible(f"a chunk that does not unpack: {exc}")
        if not unpacking.eof:
            return Impossible("a chunk that does not unpack to what it says")
    return kept if len(kept) == raw_length else Impossible("a chunk that does not hold as much as it says")


class Reference(msgspec.Struct, frozen=True):
    """What a referring record says of its transaction: where the first and the last chunk stand, and how much it is.

    `raw_bytes` are those of the fragments' records, `spilled_bytes` those of the chunks. The spill segments from the
    first chunk's to the last one's are the ones that it refers into.
    """

    oid: bytes
    chunks: int
    fragments: int
    first: Lsn
    last: Lsn
    raw_bytes: int
    spilled_bytes: int

    @property
    def segments(self) -> range:
        """The numbers of the spill segments that it refers into."""
        return range(lsn_segment(self.first), lsn_segment(self.last) + 1)


def encode_reference(one: Reference) -> bytes:
    """Return what stands in the event field of a referring record."""
    return REFERENCE.pack(one.oid, one.chunks, one.fragments, one.first, one.last, one.raw_bytes, one.spilled_bytes)


def with_reference(record: bytes, one: Reference) -> bytes:
    """Return a whole referring record with another reference in it, its checksum recomputed."""
    body = record[: -TRAILER.size - REFERENCE.size] + encode_reference(one) + record[-TRAILER.size : -CRC.size]
    return body + CRC.pack(crc32(body) if body[-1] == CRC_32 else 0)


def parse_reference(raw: bytes) -> Reference | None:
    """Read the event field of a referring record; None if its numbers contradict each other."""
    if len(raw) != REFERENCE.size:
        return None
    oid, chunks, fragments, first, last, raw_bytes, spilled_bytes = REFERENCE.unpack(raw)
    if not 0 < chunks <= fragments or first > last or (chunks == 1) != (first == last):
        return None
    return Reference(oid, chunks, fragments, Lsn(first), Lsn(last), raw_bytes, spilled_bytes)


def fragments_of(raw: bytes, verdict: RecordHeader, fragno: int) -> Iterator[StoredRecord] | Impossible:
    """Return the fragments in a chunk as they would stand in the log, the first one being `fragno`.

    `verdict` is the header of the referring record, whose seqno, epoch and place they get.
    """
    headers: list[tuple[int, RecordHeader]] = []
    at = 0
    while at < len(raw):
        header = parse_event(raw, at, verdict.lsn)
        if header is None or header.spilled or header.crc_method != CRC_NONE:
            return Impossible("a chunk that holds something else than fragments")
        headers.append((at, header))
        at += header.record_length

    def records() -> Iterator[StoredRecord]:
        for number, (start, header) in enumerate(headers, fragno):
            end = start + header.record_length - TRAILER.size
            told = msgspec.structs.replace(header, seqno=verdict.seqno, epoch=verdict.epoch, fragno=number)
            yield StoredRecord(told, raw[end - header.data_length : end])

    return records() if headers else Impossible("a chunk without fragments")


# --- who refers to what, and what may go -----------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SpillTable:
    """Who refers into which spill segment, as far as the log's segments below `covers` say it.

    `next_number` is above every spill segment that there ever was. A cache: what it does not cover, the log says.
    """

    covers: int
    next_number: int
    referred_by: Mapping[int, tuple[Gtid, ...]]


def encode_table(table: SpillTable) -> bytes:
    """Return the bytes of the table."""
    listed = [
        TABLE_REFERENCE.pack(number, gtid.epoch, gtid.seqno)
        for number, gtids in sorted(table.referred_by.items())
        for gtid in gtids
    ]
    head = SPILL_TABLE.pack(TABLE_MAGIC, SPILL_VERSION, 0, table.covers, table.next_number, len(listed))
    body = head + b"".join(listed)
    return body + CRC.pack(crc32(body))


def parse_table(raw: bytes) -> SpillTable | None:
    """Read the table; None for one that is damaged, torn or of another version."""
    if len(raw) < SPILL_TABLE.size + CRC.size:
        return None
    magic, version, _, covers, next_number, count = SPILL_TABLE.unpack_from(raw)
    end = SPILL_TABLE.size + count * TABLE_REFERENCE.size
    if (magic, version) != (TABLE_MAGIC, SPILL_VERSION) or len(raw) < end + CRC.size:
        return None
    if CRC.unpack_from(raw, end) != (crc32(raw[:end]),):
        return None
    found: dict[int, tuple[Gtid, ...]] = {}
    for number, epoch, seqno in TABLE_REFERENCE.iter_unpack(raw[SPILL_TABLE.size : end]):
        found[number] = (*found.get(number, ()), Gtid(Epoch(epoch), Seqno(seqno)))
    return SpillTable(covers=covers, next_number=next_number, referred_by=found)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpillSegment:
    """A spill segment as retention sees it: its number, and the highest transaction that refers into it, if any."""

    number: int
    referred_by: Gtid | None


def highest(gtids: Iterable[Gtid]) -> Gtid | None:
    """Return the one with the highest seqno, which is the one that retention waits for; None of none.

    An abandoned transaction counts too while its record stands in the log: its seqno is then above the log's first.
    """
    return max(gtids, key=lambda gtid: (gtid.seqno, gtid.epoch), default=None)


def may_go(
    segments: Sequence[SpillSegment], *, first_seqno: Seqno, pinned: Iterable[int], active: int | None
) -> list[int]:
    """Return the spill segments that nothing needs any more, in the order given.

    One stays while a transaction from `first_seqno` on, the first that the log holds, refers into it; while it is
    the `active` one, which is written to; and from the lowest of `pinned` on, the segments in which transactions
    that are still open began to spill.
    """
    lowest = min(pinned, default=_NUMBER_MAX + 1)
    return [
        one.number
        for one in segments
        if one.number != active
        and one.number < lowest
        and (one.referred_by is None or one.referred_by.seqno < first_seqno)
    ]
