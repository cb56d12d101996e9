"""The bytes of the message store: container headers, records, their bodies, and how a place is read.

Owns encoding and parsing, and the limits. The hard idea: a container is used again and again, so the bytes after the
end of its records are not zeros but the records of an earlier use. A record counts only if its own LSN is its place
and its epoch is not below the one before it.

Source: docs/format.md, "The message store".
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from tranlog.checksum import crc32
from tranlog.ids import Lsn
from tranlog.lsn import lsn, lsn_text

CONTAINER_PREFIX: Final = "queue."
FREE_PREFIX: Final = "free."
STORE_LOCK_NAME: Final = "store.lck"
CATALOGUE_NAME: Final = "catalogue.db"
CATALOGUE_CONNECT_NAME: Final = "catalogue.connect"

CONTAINER_MAGIC: Final = b"TLQUEUE1"
CONTAINER_MAJOR: Final = 1
CONTAINER_MINOR: Final = 0
STORE_ID_BYTES: Final = 16
HEADER_BYTES: Final = 4096
"""Of a container, in front of its records."""
PAGE_BYTES: Final = 4096
"""A container's length is a multiple of it."""
CONTAINER_BYTES_LEAST: Final = 3 * PAGE_BYTES
"""So much holds a header and the largest record of fixed bounds; an operator's least is larger."""
CONTAINER_BYTES_MOST: Final = 1 << 30

SECTION_BYTES: Final = 65_536
"""Most content in one record."""
XID_BYTES_MOST: Final = 1_024
POSITIONS_MOST: Final = 1_000

OPEN, SYNC, NEXT, CHECKPOINT, POSITION = 0x01, 0x02, 0x03, 0x04, 0x05
START, CHUNK, ENQUEUE, DEQUEUE, DELETE, MOVE, ATTEMPT = 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17
DTX_START, TX_START, PREPARE, COMMIT, ROLLBACK, END_TX, DELETE_TX = 0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27

FIRST: Final = 1
LAST: Final = 2
WHOLE: Final = FIRST | LAST
ACKED, REJECTED, PURGED, QUEUE_GONE, EXPIRED = range(5)
"""Reasons of a Dequeue."""
PROOFS: Final = frozenset((SYNC, CHECKPOINT))
CONTROL: Final = frozenset((OPEN, SYNC, NEXT, CHECKPOINT))
"""Records that belong to no group."""

CONTAINER_FIELDS: Final = (
    ("magic", 8),
    ("major_version", 2),
    ("minor_version", 2),
    ("container_bytes", 4),
    ("store_id", STORE_ID_BYTES),
    ("number", 4),
    ("epoch", 4),
    ("base_lsn", 8),
    ("begun_at", 8),
    ("crc", 4),
)
RECORD_FIELDS: Final = (
    ("record_length", 4),
    ("record_type", 1),
    ("flags", 1),
    ("epoch", 4),
    ("lsn", 8),
    ("undo_prev", 8),
    ("body", 0),
    ("crc", 4),
)
_PROOF = (("durable_lsn", 8), ("written_at", 8), ("counter", 8))
_CONTENT = (("stored_at", 8), ("header_length", 4), ("total_length", 8))
BODIES: Final[dict[int, tuple[str, tuple[tuple[str, int], ...]]]] = {
    OPEN: ("Open", (("end", 8), ("written_at", 8), ("counter", 8))),
    SYNC: ("Sync", _PROOF),
    NEXT: ("Next", (("number", 4),)),
    CHECKPOINT: ("Checkpoint", (*_PROOF, ("count", 2), ("positions", 0))),
    POSITION: ("Position", (("name_length", 2), ("name", 0), ("number", 8), ("position_epoch", 8), ("part", 4))),
    START: ("Start", (("kind", 1), *_CONTENT, ("section", 0))),
    CHUNK: ("Chunk", (("at", 8), ("section", 0))),
    ENQUEUE: ("Enqueue", (("queue_id", 8), ("transaction", 8), ("expires_at", 8), ("priority", 1))),
    DEQUEUE: ("Dequeue", (("queue_id", 8), ("transaction", 8), ("reason", 1))),
    DELETE: ("Delete", ()),
    MOVE: ("Move", (*_CONTENT, ("count", 4), ("places", 0), ("section", 0))),
    ATTEMPT: ("Attempt", (("queue_id", 8), ("attempts", 4))),
    DTX_START: ("Dtx-Start", (("xid", 0),)),
    TX_START: ("Tx-Start", ()),
    PREPARE: ("Prepare", ()),
    COMMIT: ("Commit", ()),
    ROLLBACK: ("Rollback", ()),
    END_TX: ("End", ()),
    DELETE_TX: ("Delete", ()),
}
"""Name and body of each type of record; 0 stands for a variable size."""
PLACE_FIELDS: Final = (
    ("queue_id", 8),
    ("visible", 8),
    ("enqueued", 8),
    ("expires_at", 8),
    ("priority", 1),
    ("attempts", 4),
)
"""One of the places of a Move."""

_CONTAINER = struct.Struct(">8sHHI16sIIQQ")
_CRC = struct.Struct(">I")
HEAD: Final = struct.Struct(">IBBIQQ")
OVERHEAD: Final = HEAD.size + _CRC.size
"""Bytes of a record without its body."""
OPEN_BODY: Final = struct.Struct(">QQQ")
PROOF_BODY: Final = struct.Struct(">QQQ")
NEXT_BODY: Final = struct.Struct(">I")
NEXT_BYTES: Final = OVERHEAD + NEXT_BODY.size
START_BODY: Final = struct.Struct(">BQIQ")
CHUNK_BODY: Final = struct.Struct(">Q")
ENQUEUE_BODY: Final = struct.Struct(">QQQB")
DEQUEUE_BODY: Final = struct.Struct(">QQB")
MOVE_BODY: Final = struct.Struct(">QIQI")
MOVE_PLACE: Final = struct.Struct(">QQQQBI")
ATTEMPT_BODY: Final = struct.Struct(">QI")
_SYNC = struct.Struct(HEAD.format + PROOF_BODY.format[1:])
_COUNT = struct.Struct(">H")
_ZEROS = bytes(1 << 16)
_POSITION_TAIL = struct.Struct(">QQI")
_LENGTHS = {
    OPEN: (OPEN_BODY.size, OPEN_BODY.size),
    SYNC: (PROOF_BODY.size, PROOF_BODY.size),
    NEXT: (NEXT_BODY.size, NEXT_BODY.size),
    CHECKPOINT: (PROOF_BODY.size + _COUNT.size, CONTAINER_BYTES_MOST),
    POSITION: (_COUNT.size + _POSITION_TAIL.size, 1 << 17),
    START: (START_BODY.size, START_BODY.size + SECTION_BYTES),
    CHUNK: (CHUNK_BODY.size, CHUNK_BODY.size + SECTION_BYTES),
    ENQUEUE: (ENQUEUE_BODY.size, ENQUEUE_BODY.size),
    DEQUEUE: (DEQUEUE_BODY.size, DEQUEUE_BODY.size),
    DELETE: (0, 0),
    MOVE: (MOVE_BODY.size, CONTAINER_BYTES_MOST),
    ATTEMPT: (ATTEMPT_BODY.size, ATTEMPT_BODY.size),
    DTX_START: (0, XID_BYTES_MOST),
    **dict.fromkeys((TX_START, PREPARE, COMMIT, ROLLBACK, END_TX, DELETE_TX), (0, 0)),
}
"""Least and most bytes of each body."""


class QueueRecord(NamedTuple):
    """A record as it stands in a container. `undo_prev` is the LSN of its object's Start, 0 in a Start."""

    record_type: int
    flags: int
    epoch: int
    lsn: Lsn
    undo_prev: Lsn
    body: memoryview

    @property
    def length(self) -> int:
        """Of the whole record, in bytes."""
        return OVERHEAD + len(self.body)


@dataclass(frozen=True, slots=True)
class Stopped:
    """A place without a record. `bad`: this store does not write such bytes there; otherwise it is an end."""

    why: str
    bad: bool


class ContainerHeader(NamedTuple):
    """The header of a container. Units: `begun_at` in ms since 1970."""

    container_bytes: int
    store_id: bytes
    number: int
    epoch: int
    base_lsn: Lsn
    begun_at: int


class NamedPosition(NamedTuple):
    """Up to where a producer's work is in the store: a number, and an epoch and a part if it needs them."""

    number: int
    epoch: int = 0
    part: int = 0


class ProducerStep(NamedTuple):
    """A publish that counts once: its producer, and the producer's position with it."""

    name: bytes
    position: NamedPosition


PART_FORGOTTEN: Final = 0xFFFFFFFF
"""The part of a Position whose name is forgotten."""
PRODUCER_BYTES_MOST: Final = 255
POSITION_BYTES_MOST: Final = 30 + 22 + PRODUCER_BYTES_MOST
"""Of a whole record."""


def container_name(number: int) -> str:
    """Return the name of a container in use."""
    return f"{CONTAINER_PREFIX}{number:010d}"


def free_name(number: int) -> str:
    """Return the name of a free container."""
    return f"{FREE_PREFIX}{number:010d}"


def number_of(name: str, prefix: str) -> int | None:
    """Return the number in the name of a container with this prefix; None where it is no such name."""
    digits = name.removeprefix(prefix)
    named = name.startswith(prefix) and len(digits) == 10 and digits.isascii() and digits.isdigit()
    return int(digits) if named and 0 < int(digits) < 1 << 32 else None


def first_lsn(number: int) -> Lsn:
    """Return the LSN of a container's first record."""
    return lsn(number, HEADER_BYTES)


def encode_header(header: ContainerHeader) -> bytes:
    """Return the first 4,096 bytes of a container."""
    raw = _CONTAINER.pack(CONTAINER_MAGIC, CONTAINER_MAJOR, CONTAINER_MINOR, *header)
    return (raw + _CRC.pack(crc32(raw))).ljust(HEADER_BYTES, b"\0")


def parse_header(raw: bytes) -> ContainerHeader | str:
    """Read a container's first bytes; return the reason if they are no header."""
    if len(raw) < _CONTAINER.size + _CRC.size:
        return "its header is cut short"
    magic, major, minor, *fields = _CONTAINER.unpack_from(raw)
    if magic != CONTAINER_MAGIC:
        return "it does not begin as a container does"
    if _CRC.unpack_from(raw, _CONTAINER.size)[0] != crc32(raw[: _CONTAINER.size]):
        return "the checksum of its header is wrong"
    if major != CONTAINER_MAJOR:
        return f"its format version is {major}.{minor}, and this release knows {CONTAINER_MAJOR}.{CONTAINER_MINOR}"
    behind = raw[_CONTAINER.size + _CRC.size :]
    if behind != bytes(len(behind)):
        return "the bytes after the fields of its header are not zeros"
    return ContainerHeader(*fields)


def parse(raw: memoryview, offset: int, number: int, epoch: int, *, start: int = 0) -> QueueRecord | Stopped:
    """Read what stands at an offset of `raw`, which is a container's bytes from `start` on.

    `epoch` is that of the record before.
    """
    left = len(raw) - offset
    if left < OVERHEAD:
        return Stopped("no record has room there", bad=any(raw[offset:]))
    length, record_type, flags, its_epoch, place, undo_prev = HEAD.unpack_from(raw, offset)
    if length == 0:
        return Stopped("zeros", bad=False)
    bounds = _LENGTHS.get(record_type)
    if bounds is None:
        return Stopped(f"record_type {record_type:02x} is unknown", bad=True)
    if not bounds[0] <= length - OVERHEAD <= bounds[1] or length > left:
        return Stopped(f"record_length {length} is impossible", bad=True)
    end = offset + length - _CRC.size
    if _CRC.unpack_from(raw, end)[0] != crc32(raw[offset:end]):
        of = f" of {lsn_text(Lsn(undo_prev))}" if undo_prev else ""
        return Stopped(f"the checksum of the record is wrong, which reads {BODIES[record_type][0]}{of}", bad=True)
    if place != number << 32 | start + offset:
        return Stopped(f"a record of {lsn_text(Lsn(place))}, which is another use of the container", bad=False)
    if its_epoch < epoch:
        return Stopped(f"a record of epoch {its_epoch} after one of epoch {epoch}", bad=False)
    body = raw[offset + HEAD.size : end]
    return QueueRecord(record_type, flags, its_epoch, Lsn(place), Lsn(undo_prev), body)


def encode_sync(epoch: int, place: Lsn, durable: Lsn, written_at: int, counter: int) -> bytes:
    """Return the bytes of a Sync record."""
    raw = _SYNC.pack(_SYNC.size + _CRC.size, SYNC, 0, epoch, place, 0, durable, written_at, counter)
    return raw + _CRC.pack(crc32(raw))


def find_proofs(raw: bytes, offset: int, number: int) -> Iterator[tuple[Lsn, Lsn]]:
    """Find Sync and Checkpoint records of this use at or after an offset; return place and durable_lsn of each.

    Searches at every byte, since it is not known where records begin after a bad one.
    """
    own = _CRC.pack(number)  # the high half of the LSN, which is the record's own place
    view, stop = memoryview(raw), end_before_zeros(raw)  # finding that there is nothing among zeros takes long
    at = raw.find(own, offset + 10, stop)
    while at >= 0:
        start = at - 10
        if raw[start + 4] in PROOFS and _CRC.unpack(raw[at + 4 : at + 8].ljust(4, b"\0"))[0] == start:
            found = parse(view, start, number, 0)
            if isinstance(found, QueueRecord):
                yield found.lsn, Lsn(PROOF_BODY.unpack_from(found.body)[0])
        at = raw.find(own, at + 1, stop)


def end_before_zeros(raw: bytes) -> int:
    """Return where the zeros at the end begin."""
    stop = len(raw)
    while stop >= len(_ZEROS) and raw.startswith(_ZEROS, stop - len(_ZEROS)):  # stripped byte by byte it takes long
        stop -= len(_ZEROS)
    begin = max(stop - len(_ZEROS), 0)
    return begin + len(raw[begin:stop].rstrip(b"\0"))


def encode_position(name: bytes, position: NamedPosition) -> bytes:
    """Return the body of a Position, and a part of a Checkpoint's."""
    return _COUNT.pack(len(name)) + name + _POSITION_TAIL.pack(*position)


def encode_checkpoint(durable: Lsn, written_at: int, counter: int, positions: dict[bytes, NamedPosition]) -> bytes:
    """Return the body of a Checkpoint."""
    rows = [encode_position(name, position) for name, position in positions.items()]
    return PROOF_BODY.pack(durable, written_at, counter) + _COUNT.pack(len(rows)) + b"".join(rows)


def parse_positions(body: memoryview, record_type: int) -> dict[bytes, NamedPosition]:
    """Read the body of a Position, or the positions of a Checkpoint. Raises ValueError if it contradicts itself."""
    at, count = 0, 1
    if record_type == CHECKPOINT:
        at = PROOF_BODY.size + _COUNT.size
        count = _COUNT.unpack_from(body, PROOF_BODY.size)[0]
    found = {}
    for _ in range(count):
        if at + _COUNT.size > len(body):
            raise ValueError("its positions pass its end")
        begin = at + _COUNT.size
        end = begin + _COUNT.unpack_from(body, at)[0]
        at = end + _POSITION_TAIL.size
        if at > len(body):
            raise ValueError("its positions pass its end")
        found[bytes(body[begin:end])] = NamedPosition(*_POSITION_TAIL.unpack_from(body, end))
    if at != len(body):
        raise ValueError("there are bytes after its positions")
    return found


_LSN_FIELDS: Final = frozenset(("durable_lsn", "transaction", "end"))


def record_fields(record: QueueRecord) -> dict[str, object]:
    """Return a record's fields by name; for the first field without a fixed size the number of bytes from there on."""
    name, fields = BODIES[record.record_type]
    told: dict[str, object] = {
        "lsn": lsn_text(record.lsn),
        "epoch": record.epoch,
        "group": {0: "", FIRST: "first", LAST: "last", WHOLE: "whole"}[record.flags & WHOLE],
        "record": name,
        "of": lsn_text(record.undo_prev) if record.undo_prev else "",
    }
    at = 0
    for field, size in fields:
        if not size:
            told[f"{field}_bytes"] = len(record.body) - at
            break
        value = int.from_bytes(record.body[at : at + size], "big")
        told[field] = lsn_text(Lsn(value)) if field in _LSN_FIELDS else value
        at += size
    return told


def record_text(record: QueueRecord) -> str:
    """Return one line for people: place, epoch, name, group, object, and the body's fields."""
    fields = record_fields(record)
    place, epoch, group, name, of = (fields.pop(one) for one in ("lsn", "epoch", "group", "record", "of"))
    told = [f"{place} epoch {epoch}", group, name, of and f"of {of}", *(f"{one}={fields[one]}" for one in fields)]
    return " ".join(str(one) for one in told if one)


def stream_of(record_type: int) -> str:
    """Return the stream of a type of record: `control`, `message` or `transaction`."""
    return ("control", "message", "transaction")[record_type >> 4]
