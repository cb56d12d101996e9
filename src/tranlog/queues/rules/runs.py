"""Runs of the most common groups of a log: a message put on a queue, moved, or removed for good.

Owns these groups' bytes as they are written, and the walk over them. Their meaning is defined by `records` and
`state`, whose tables this follows. The hard idea: each of millions of records is checked against its place, its epoch
and its object, and each group against its checksums, but an object is created only for a message that still waits at
the end of its container. Everything else is left to `parse`.

Source: docs/format.md, "Bodies".
"""

from __future__ import annotations

import struct
from typing import Final

from librt.strings import BytesWriter, read_i32_be, read_i64_be
from mypy_extensions import i64, u8

from tranlog.checksum import crc32
from tranlog.ids import Lsn
from tranlog.queues.rules.encoding import write_head
from tranlog.queues.rules.records import (
    BODIES,
    DELETE,
    DEQUEUE,
    ENQUEUE,
    FIRST,
    HEAD,
    LAST,
    MOVE,
    MOVE_PLACE,
    OVERHEAD,
    SECTION_BYTES,
    START,
    WHOLE,
)
from tranlog.queues.rules.state import Message, QueuePlace, QueueState
from tranlog.words import write_u32, write_u64

# Literals: the compiler folds what it knows. They are held against the tables below.
_LSN: Final = 10
_OF: Final = 18
_START_BYTES: Final = 51
_ENQUEUE_BYTES: Final = 55
_DEQUEUE_BYTES: Final = 47
_DELETE_BYTES: Final = 30
_MOVE_BYTES: Final = 91
"""With one place."""
_START_TYPE: Final = 0x11_01
"""record_type and flags."""
_ENQUEUE_TYPE: Final = 0x13_02
_DEQUEUE_TYPE: Final = 0x14_01
_DELETE_TYPE: Final = 0x15_02
_MOVE_TYPE: Final = 0x16_03
_VIEWED: Final = 512
"""A slice of so many bytes costs more than a view of them."""
_SLOT_BITS: Final = 6
"""A message takes more than 64 bytes of a container, so no two begin in one slot of so many."""
_U32: Final = 0xFFFF_FFFF


def _bytes(record_type: int) -> int:
    return OVERHEAD + sum(size for _, size in BODIES[record_type][1])


assert (HEAD.size, SECTION_BYTES) == (26, 65_536)
assert (_bytes(START), _bytes(ENQUEUE)) == (_START_BYTES, _ENQUEUE_BYTES)
assert (_bytes(DEQUEUE), _bytes(DELETE)) == (_DEQUEUE_BYTES, _DELETE_BYTES)
assert _bytes(MOVE) + MOVE_PLACE.size == _MOVE_BYTES
assert (START << 8 | FIRST, ENQUEUE << 8 | LAST) == (_START_TYPE, _ENQUEUE_TYPE)
assert (DEQUEUE << 8 | FIRST, DELETE << 8 | LAST) == (_DEQUEUE_TYPE, _DELETE_TYPE)
assert MOVE << 8 | WHOLE == _MOVE_TYPE
assert _START_BYTES + _ENQUEUE_BYTES > 1 << _SLOT_BITS


def _carried(size: int) -> bytes:
    """Return the table by which `_carry` leads the checksum of a record over itself and `size` bytes after it.

    A CRC is linear but for a constant. So the CRC of two records, one after the other, is that of the first one, led
    on so, XOR that of the second. Format: for each byte of the checksum, the lowest first, its 256 values, u32.
    """

    def led(crc: int) -> int:
        return crc32(bytes(size), crc32(crc.to_bytes(4, "big"), crc)) ^ crc32(bytes(size))

    values = [led(byte << shift) ^ (led(0) if shift else 0) for shift in (0, 8, 16, 24) for byte in range(256)]
    return struct.pack(">1024I", *values)


_OVER_ENQUEUE: Final = _carried(_ENQUEUE_BYTES - 4)
_OVER_DELETE: Final = _carried(_DELETE_BYTES - 4)


def _carry(table: bytes, crc: i64) -> i64:
    return (
        i64(read_i32_be(table, (crc & 0xFF) << 2))
        ^ i64(read_i32_be(table, 1024 + ((crc >> 8 & 0xFF) << 2)))
        ^ i64(read_i32_be(table, 2048 + ((crc >> 16 & 0xFF) << 2)))
        ^ i64(read_i32_be(table, 3072 + ((crc >> 24 & 0xFF) << 2)))
    )


class RunWriter:
    """Encodes groups as `RunWalk` reads them. Threads: one at a time."""

    def __init__(self) -> None:
        self._out = BytesWriter()

    def published(
        self,
        epoch: int,
        place: Lsn,
        stored_at: int,
        header_length: int,
        content: bytes,
        queue_id: int,
        expires_at: int,
        priority: int,
    ) -> tuple[bytes, bytes, bytes]:
        """Return the bytes of a publish to one queue, in pieces.

        `content`: header and content; it is not copied.
        """
        out, length = self._out, len(content)
        size = _START_BYTES + length
        write_head(out, size, _START_TYPE, epoch, place, 0)
        out.append(0)
        write_u64(out, stored_at)
        write_u32(out, header_length)
        write_u64(out, length)
        start = out.getvalue()
        write_head(out, _ENQUEUE_BYTES, _ENQUEUE_TYPE, epoch, place + size, place)
        write_u64(out, queue_id)
        write_u64(out, 0)
        write_u64(out, expires_at)
        out.append(u8(priority))
        enqueue = out.getvalue()
        out.truncate(0)
        write_u32(out, crc32(content, crc32(start)))
        out.write(enqueue)
        write_u32(out, crc32(enqueue))
        return start, content, out.getvalue()

    def taken(self, epoch: int, place: Lsn, message: Lsn, queue_id: int, reason: int) -> bytes:
        """Return the bytes of a Dequeue and the Delete of its message."""
        out = self._out
        write_head(out, _DELETE_BYTES, _DELETE_TYPE, epoch, place + _DEQUEUE_BYTES, message)
        delete = out.getvalue()
        write_head(out, _DEQUEUE_BYTES, _DEQUEUE_TYPE, epoch, place, message)
        write_u64(out, queue_id)
        write_u64(out, 0)
        out.append(u8(reason))
        write_u32(out, crc32(out.getvalue()))
        out.write(delete)
        write_u32(out, crc32(delete))
        return out.getvalue()


class RunWalk:
    """Walks over the runs of one container, all of whose bytes are `raw`.

    A message that begins there is a mark in a slot until `settle`, and not in the state: most are removed before.
    """

    def __init__(self, state: QueueState, raw: bytes, number: int) -> None:
        self._state = state
        self._raw = raw
        self._number = number
        self._begun = BytesWriter()  # by slot: 1 + the offset in it at which a message begins, 0 for none
        self._begun.write(bytes((len(raw) >> _SLOT_BITS) + 1))
        self._from: i64 = 0
        self._to: i64 = 0
        """The slots, the latter not included, outside of which none has a mark."""

    def take(self, offset: int, epoch: int) -> tuple[int, int]:
        """Apply a run of groups in which each message is one record: published, removed for good, or moved.

        Return the offset after it, and its epoch. It ends before any other group, which `parse` reads. `epoch` is that
        of the record before.
        """
        number = self._number
        if number >> 30:
            return offset, epoch  # its places have more than a word
        raw, state, begun = self._raw, self._state, self._begun
        view = memoryview(raw)
        over_enqueue, over_delete = _OVER_ENQUEUE, _OVER_DELETE
        at: i64 = offset
        size: i64 = len(raw)
        reign: i64 = epoch
        high: i64 = number << 32
        check = crc32
        while at + _DEQUEUE_BYTES + _DELETE_BYTES <= size:
            word: i64 = read_i64_be(raw, at)
            kind: i64 = word >> 16 & 0xFFFF
            second: i64 = at + (word >> 32 & _U32)
            its_epoch: i64 = read_i64_be(raw, at + 2) & _U32
            message: i64 = read_i64_be(raw, at + _OF)
            if its_epoch < reign or read_i64_be(raw, at + _LSN) != high | at or second > size or message < 0:
                break
            end: i64 = second
            total: i64 = 0
            on: i64 = at  # the record that names the queue
            following: i64 = 0
            if kind == _START_TYPE:
                total = second - at - _START_BYTES
                end = second + _ENQUEUE_BYTES
                if message or raw[at + 26] or not 0 <= total <= SECTION_BYTES or end > size:
                    break
                if read_i64_be(raw, at + 39) != total:
                    break
                message = high | at
                on = second
                following = _ENQUEUE_BYTES << 16 | _ENQUEUE_TYPE
            elif kind == _DEQUEUE_TYPE:
                end = second + _DELETE_BYTES
                if second != at + _DEQUEUE_BYTES:
                    break
                following = _DELETE_BYTES << 16 | _DELETE_TYPE
            elif kind == _MOVE_TYPE:
                total = second - at - _MOVE_BYTES
                if total < 0 or read_i64_be(raw, at + 38) != total or read_i64_be(raw, at + 42) & _U32 != 1:
                    break
            else:
                break
            expected: i64 = read_i64_be(raw, end - 8)
            if following:
                if (
                    read_i64_be(raw, second) >> 16 & 0xFFFF_FFFF_FFFF != following
                    or read_i64_be(raw, second + 2) & _U32 != its_epoch
                    or read_i64_be(raw, second + _LSN) != high | second
                    or read_i64_be(raw, second + _OF) != message
                    or read_i64_be(raw, on + 34)  # a transaction's
                ):
                    break
                expected ^= _carry(over_enqueue if kind == _START_TYPE else over_delete, read_i64_be(raw, second - 8))
            # One sum over both records: a wrong byte in either is found as surely as by its own.
            if check(raw[at : end - 4] if end - at < _VIEWED else view[at : end - 4]) != expected & _U32:
                break
            if kind == _START_TYPE:
                slot: i64 = at >> _SLOT_BITS
                begun[slot] = u8((at & (1 << _SLOT_BITS) - 1) + 1)
                self._to = slot + 1
            elif kind == _DEQUEUE_TYPE:
                queue_id: i64 = read_i64_be(raw, on + 26)
                slot = (message & _U32) >> _SLOT_BITS
                if message >> 32 == number and message < high | at and begun[slot] == u8((message & 63) + 1):
                    put: i64 = message & _U32
                    put += read_i64_be(raw, put) >> 32 & _U32
                    if read_i64_be(raw, put + 26) != queue_id:
                        break
                    begun[slot] = 0
                else:
                    known = state.messages.get(Lsn(message))
                    if known is not None:
                        if len(known.places) != 1 or known.places[0].queue_id != queue_id:
                            break
                        known.places = ()
                        state.delete(known.id)
            else:
                self.settle()
                place = QueuePlace(
                    _u64(raw, at + 50),
                    Lsn(_u64(raw, at + 58)),
                    Lsn(_u64(raw, at + 66)),
                    _u64(raw, at + 74),
                    raw[at + 82],
                    read_i64_be(raw, at + 79) & _U32,
                )
                header_length = read_i64_be(raw, at + 30) & _U32
                moved = Message(Lsn(message), Lsn(high | at), _u64(raw, at + 26), header_length, total, 0, (place,))
                state.move(Lsn(high | at), moved, total)
            at = end
            reign = its_epoch
        return at, reign

    def settle(self) -> None:
        """Add the messages that began here and were not removed to the state. Call it before the state is read."""
        raw, begun, high = self._raw, self._begun, i64(self._number << 32)
        found: list[Message] = []
        slot: i64 = self._from
        to: i64 = self._to
        while slot < to:
            mark: i64 = i64(begun[slot])
            if mark:
                begun[slot] = 0
                at: i64 = (slot << _SLOT_BITS) + mark - 1
                on: i64 = at + (read_i64_be(raw, at) >> 32 & _U32)
                total: i64 = on - at - _START_BYTES
                put = Lsn(high | on)
                place = QueuePlace(_u64(raw, on + 26), put, put, _u64(raw, on + 42), raw[on + 50])
                length = read_i64_be(raw, at + 31) & _U32
                known = Lsn(high | at)
                found.append(Message(known, known, _u64(raw, at + 27), length, total, total, (place,)))
            slot += 1
        self._from = to
        self._state.know_all(self._number, found)


def _u64(raw: bytes, at: i64) -> int:
    found: int = read_i64_be(raw, at)
    return found if found >= 0 else found + (1 << 64)
