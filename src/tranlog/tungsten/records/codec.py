"""The records of a Tungsten segment: file header, event, rotate, and what a stretch of bytes can turn out to be.

Owns framing, checksums and the event's outer header, in both directions. The payload inside is `payload`'s; which
outcome is an error and which the ordinary end of a log is `recovery`'s and the cursor's. The hard idea: half a
record, an impossible length and damage are met as a matter of course, so each is a value with a name, and nothing
here raises for what it reads. The values themselves stand in `records`, so that this module can be compiled.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import Final
from zlib import crc32

from tranlog.errors import RecordLimitError
from tranlog.log.records.format import FIRST_SYNC_BYTES, SYNC_TYPE
from tranlog.tungsten.records.record import (
    BadLength,
    Damaged,
    EventRecord,
    FileHeader,
    ImpossibleEvent,
    Outcome,
    PartialEvent,
    Short,
    Sound,
    TungstenRotate,
    UnknownRecord,
)

MAGIC_NUMBER: Final = 0xC001CAFE
MAJOR_VERSION: Final = 1
MINOR_VERSION: Final = 1
NO_BASE: Final = -1
"""The base seqno of a log's first segment; every later one has the first seqno that was to go into it."""

EVENT_TYPE: Final = 1
ROTATE_TYPE: Final = 2
CRC_NONE: Final = 0
CRC_32: Final = 1

FILE_HEADER: Final = struct.Struct(">IHHq")
LENGTH: Final = struct.Struct(">I")
EVENT_START: Final = struct.Struct(">BqHBq")
"""record type, seqno, fragno, last fragment, epoch; three strings and the commit time follow."""
TRAILER: Final = struct.Struct(">BQ")
"""crc type, and the CRC-32 in eight bytes."""
_EVENT_HEAD: Final = struct.Struct(">IBq")
_EVENT_RUN: Final = struct.Struct(">IBqHB")
_TSTAMP: Final = struct.Struct(">q")
_SHORT: Final = struct.Struct(">H")
_ROTATE: Final = struct.Struct(">Bq")

FRAME_BYTES: Final = LENGTH.size + TRAILER.size
LENGTH_MIN: Final = FRAME_BYTES
_PLAIN_MIN: Final = FRAME_BYTES + EVENT_START.size + 3 * 2 + 8 + 2
LENGTH_MAX: Final = 1_000_000_000
"""What the ancestor's reader takes for the length of a record; anything else is a torn end."""
FRAGNO_MAX: Final = 0x7FFF
STRING_BYTES_MAX: Final = 0xFFFF
SEGMENT_NUMBERS: Final = (1 << 31) - 1
"""Segment numbers rise by one modulo this."""

_SEGMENT_NAME: Final = re.compile(r"thl\.data\.([0-9]{10})")


# --- names -----------------------------------------------------------------------------------------------


def segment_number(name: str) -> int | None:
    """Return the number of a segment's file name, or None for any other file."""
    found = _SEGMENT_NAME.fullmatch(name)
    if found is None:
        return None
    number = int(found[1])
    return number if number < SEGMENT_NUMBERS else None


def next_number(number: int) -> int:
    """Return the number of the segment after the one of that number."""
    return (number + 1) % SEGMENT_NUMBERS


# --- modified UTF-8 --------------------------------------------------------------------------------------

_SURROGATES: Final = re.compile(r"[\ud800-\udbff][\udc00-\udfff]")


def read_utf(raw: bytes) -> str:
    """Read Java's modified UTF-8: NUL in two bytes, characters above U+FFFF as two surrogates of three bytes.

    Raises ValueError for anything else, half a surrogate pair included.
    """
    if raw.isascii():
        return raw.decode("ascii")
    text = raw.replace(b"\xc0\x80", b"\0").decode("utf-8", "surrogatepass")
    if max(text) > "\uffff":
        raise ValueError("a character of four bytes, which Java does not write")
    if "\xed" in raw.decode("latin-1"):  # may begin a surrogate
        text = _SURROGATES.sub(lambda pair: pair[0].encode("utf-16", "surrogatepass").decode("utf-16"), text)
        text.encode()
    return text


def write_utf(text: str) -> bytes:
    """Write Java's modified UTF-8. Raises ValueError for half a surrogate pair."""
    if text.isascii():
        return text.encode("ascii").replace(b"\0", b"\xc0\x80")
    out = bytearray()
    for character in text:
        point = ord(character)
        if point > 0xFFFF:
            point -= 0x10000
            pair = chr(0xD800 | point >> 10) + chr(0xDC00 | point & 0x3FF)
            out += pair.encode("utf-8", "surrogatepass")
        else:
            out += character.encode() if point else b"\xc0\x80"
    return bytes(out)


# --- reading ---------------------------------------------------------------------------------------------


def parse_file_header(raw: bytes) -> FileHeader | PartialEvent | ImpossibleEvent:
    """Read what a segment begins with. A minor version that we do not know is the caller's to warn about."""
    if len(raw) < FILE_HEADER.size:
        return PartialEvent(len(raw))
    magic, major, minor, base_seqno = FILE_HEADER.unpack_from(raw)
    if magic != MAGIC_NUMBER:
        return ImpossibleEvent(f"invalid magic number {magic:08x}: no file of the replicator's log")
    if major != MAJOR_VERSION:
        return ImpossibleEvent(f"incompatible major version {major}; this is version {MAJOR_VERSION}.{MINOR_VERSION}")
    return FileHeader(major=major, minor=minor, base_seqno=base_seqno)


def is_native(raw: bytes) -> bool:
    """Whether a segment that begins with `raw` (header, and its first record's start) is in our native codec.

    Source: docs/format.md: a sync record with the identity of the history stands first in every segment. No record
    of the replicator's is of its type or of its length, so that one wrong bit makes neither of the other.
    """
    if len(raw) < FILE_HEADER.size + LENGTH.size + 1 or LENGTH.unpack_from(raw)[0] != MAGIC_NUMBER:
        return False
    return LENGTH.unpack_from(raw, FILE_HEADER.size)[0] == FIRST_SYNC_BYTES and raw[FILE_HEADER.size + 4] == SYNC_TYPE


def checksum_problem(raw: bytes, at: int, length: int) -> str | None:
    """Return what the checksum of the whole record at `raw[at:at + length]` says against it, None for nothing."""
    end = at + length
    crc_type, stored = TRAILER.unpack_from(raw, end - TRAILER.size)
    if crc_type == CRC_32:
        computed = crc32(memoryview(raw)[at + 4 : end - TRAILER.size])
        return None if computed == stored else f"checksum failure: stored {stored:08x}, computed {computed:08x}"
    if crc_type == CRC_NONE:
        return None if stored == 0 else f"a checksum of {stored:08x} where there is to be none"
    return f"unknown checksum type {crc_type}"


def parse_record(raw: bytes, at: int, offset: int, *, checked: bool) -> Outcome:
    """Read the record that begins at `raw[at]`, which is byte `offset` of its segment. Raises nothing.

    `checked` off passes every checksum over, as the ancestor does with `-no-checksum`.
    """
    available = len(raw) - at
    if available < LENGTH.size:
        return Short(LENGTH.size)
    length: int = LENGTH.unpack_from(raw, at)[0]
    if not LENGTH_MIN <= length <= LENGTH_MAX:
        return BadLength(length)
    if available < length:
        return Short(length)
    end = at + length - TRAILER.size
    crc_type, crc = TRAILER.unpack_from(raw, end)
    kind = raw[at + 4]
    why = checksum_problem(raw, at, length) if checked else None
    if why is None:
        if end <= at + 4:
            why = "a record without a type"
        elif kind == EVENT_TYPE:
            event = _parse_event(raw, at, end, offset, length, crc_type, crc)
            if not isinstance(event, str):
                return event
            why = event
        elif kind == ROTATE_TYPE:
            if end - at - 4 == _ROTATE.size:
                number: int = _ROTATE.unpack_from(raw, at + 4)[1]
                return TungstenRotate(offset=offset, length=length, next_segment=number, crc_type=crc_type, crc=crc)
            why = f"a rotate record of {length} bytes"
        else:
            return UnknownRecord(offset=offset, length=length, record_type=kind, crc_type=crc_type, crc=crc)
    return Damaged(offset=offset, length=length, record_type=kind, crc_type=crc_type, crc=crc, why=why)


def _parse_event(raw: bytes, at: int, end: int, offset: int, length: int, crc_type: int, crc: int) -> EventRecord | str:
    place = at + 4 + EVENT_START.size
    if place > end:
        return "an event record without room for its header"
    _, seqno, fragno, last_frag, epoch = EVENT_START.unpack_from(raw, at + 4)
    if last_frag > 1:
        return f"the mark of the last fragment is {last_frag}"
    if seqno < 0:
        return f"seqno {seqno}"
    texts: list[str] = []
    for _ in range(3):
        if place + 2 > end:
            return "an event record that ends inside its header"
        size: int = _SHORT.unpack_from(raw, place)[0]
        place += 2 + size
        if place > end:
            return "an event record that ends inside its header"
        try:
            texts.append(read_utf(raw[place - size : place]))
        except ValueError:
            return "text in the header that is not Java's UTF-8"
    if place + _TSTAMP.size > end:
        return "an event record that ends inside its header"
    return EventRecord(
        offset=offset,
        length=length,
        seqno=seqno,
        fragno=fragno,
        last_frag=last_frag == 1,
        epoch=epoch,
        source_id=texts[0],
        event_id=texts[1],
        shard_id=texts[2],
        tstamp=_TSTAMP.unpack_from(raw, place)[0],
        crc_type=crc_type,
        crc=crc,
        payload_offset=offset + place + _TSTAMP.size - at,
    )


def skip_events(raw: bytes, at: int, seqno: int, *, checked: bool) -> tuple[int, int]:
    """Pass whole, sound events of seqnos below `seqno`; return where the first other record stands, and the last one.

    That is the last one passed, -1 where none was. The quick way to a seqno: no header is read beyond it.
    `parse_record` says what the record is that it stops at.
    """
    size = len(raw)
    head = _EVENT_HEAD.unpack_from
    before = -1
    while at + _EVENT_HEAD.size <= size:
        length, kind, found = head(raw, at)
        if kind != EVENT_TYPE or found >= seqno or not LENGTH_MIN + EVENT_START.size <= length <= LENGTH_MAX:
            break
        if at + length > size or (checked and checksum_problem(raw, at, length) is not None):
            break
        before = at
        at += length
    return at, before


def pass_plain(raw: bytes, at: int, seqno: int) -> tuple[int, int, int]:
    """Pass whole, sound transactions of one fragment each, of the seqnos from `seqno` on without a gap.

    Returns where the first other record stands, the last one passed (-1: none), and how many that were. Without a
    checksum only the whole header tells whether a record is sound, so it passes none; and it stops at what may be a
    filtered range: its body is empty, so its last byte is zero.
    """
    size = len(raw)
    head = _EVENT_RUN.unpack_from
    before = -1
    count = 0
    while at + _EVENT_RUN.size <= size:
        length, kind, found, fragno, last_frag = head(raw, at)
        end = at + length
        if kind != EVENT_TYPE or found != seqno or fragno or last_frag != 1 or end > size:
            break
        if not _PLAIN_MIN <= length <= LENGTH_MAX or raw[end - TRAILER.size - 1] == 0:
            break
        if raw[end - TRAILER.size] != CRC_32 or checksum_problem(raw, at, length) is not None:
            break
        before = at
        at = end
        seqno += 1
        count += 1
    return at, before, count


def scan(raw: bytes, at: int = FILE_HEADER.size, *, checked: bool) -> Iterator[Sound | Damaged | Short | BadLength]:
    """Yield the records of a whole segment's bytes, and last the reason why it ends before its last byte, if it does.

    Goes on after a damaged record.
    """
    size = len(raw)
    while at < size:
        outcome = parse_record(raw, at, at, checked=checked)
        yield outcome
        if isinstance(outcome, Short | BadLength):
            return
        at += outcome.length


# --- writing ---------------------------------------------------------------------------------------------


def encode_file_header(base_seqno: int) -> bytes:
    """Return the 16 bytes that a segment begins with; NO_BASE in the first of a log."""
    return FILE_HEADER.pack(MAGIC_NUMBER, MAJOR_VERSION, MINOR_VERSION, base_seqno)


def _framed(body: bytes, checksum: bool) -> bytes:
    trailer = TRAILER.pack(CRC_32, crc32(body)) if checksum else TRAILER.pack(CRC_NONE, 0)
    return LENGTH.pack(len(body) + FRAME_BYTES) + body + trailer


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
    payload: bytes,
    checksum: bool,
) -> bytes:
    """Return a whole event record. Raises RecordLimitError for what the format cannot hold."""
    if not 0 <= fragno <= FRAGNO_MAX:
        raise RecordLimitError(event_id=event_id, why=f"fragment {fragno}: the replicator counts up to {FRAGNO_MAX}")
    parts = []
    for what, text in (("source id", source_id), ("event id", event_id), ("shard id", shard_id)):
        try:
            raw = write_utf(text)
        except ValueError as exc:
            raise RecordLimitError(event_id=repr(event_id), why=f"its {what} has half a surrogate pair") from exc
        if len(raw) > STRING_BYTES_MAX:
            raise RecordLimitError(event_id=event_id[:80], why=f"its {what} has more than {STRING_BYTES_MAX} bytes")
        parts += [_SHORT.pack(len(raw)), raw]
    try:
        start = EVENT_START.pack(EVENT_TYPE, seqno, fragno, last_frag, epoch)
        stamp = _TSTAMP.pack(tstamp)
    except struct.error as exc:
        raise RecordLimitError(event_id=event_id, why=f"a number that does not fit into 64 bits ({exc})") from exc
    body = b"".join((start, *parts, stamp, payload))
    if len(body) + FRAME_BYTES > LENGTH_MAX:
        raise RecordLimitError(
            event_id=event_id, why=f"a record of {len(body) + FRAME_BYTES} bytes; {LENGTH_MAX} is most"
        )
    return _framed(body, checksum)


def encode_rotate(next_segment: int, *, checksum: bool) -> bytes:
    """Return the record that ends a segment and names the next one."""
    return _framed(_ROTATE.pack(ROTATE_TYPE, next_segment), checksum)
