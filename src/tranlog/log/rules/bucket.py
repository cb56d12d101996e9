"""A bucket of the sparse index: a run of seqnos inside one segment, and its stored form.

Owns what one bucket maps and how it looks in the table; which buckets there are is `index`'s. The hard idea: a bucket
changes at its end alone, by one assignment, so readers look without a lock.

Source: vlsn-index ("Persistent storage").
"""

from __future__ import annotations

import struct
import sys
from array import array
from typing import Final

from tranlog.checksum import crc32
from tranlog.errors import IndexDamagedError
from tranlog.ids import Lsn, Seqno
from tranlog.log.rules.index_values import IndexOptions, Place
from tranlog.lsn import lsn, lsn_offset, lsn_segment

_NO_OFFSET = 0  # a segment begins with its header: no record stands at 0


class Bucket:
    """A run of seqnos inside one segment: an offset for every stride-th one, and for the last.

    Seqnos are not stored: slot i stands for first + i * stride. An empty slot was never registered.

    Threads: one that changes it, any number that look up meanwhile.
    """

    __slots__ = ("first", "offsets", "segment", "stride", "tail")

    def __init__(self, segment: int, first: Seqno, offset: int, stride: int) -> None:
        self.segment = segment
        self.first = first
        self.stride = stride
        self.offsets = array("I", (offset,))
        self.tail = (first, offset)
        """The last seqno and its offset: one object, so that nobody reads half of a change."""

    @property
    def last(self) -> Seqno:
        """The last seqno."""
        return self.tail[0]

    @property
    def last_offset(self) -> int:
        """Where the last seqno stands."""
        return self.tail[1]

    def accepts(self, seqno: Seqno, position: Lsn, options: IndexOptions, *, dense: bool = True) -> bool:
        """Whether a seqno after the last one still belongs here; `dense`: all that lie between are mapped, too."""
        if lsn_segment(position) != self.segment:
            return False
        if (seqno - self.first) // self.stride >= options.max_mappings:
            return False
        distance = lsn_offset(position) - self.offsets[-1]
        return distance <= self.reach(options) or (not dense and distance <= options.max_distance)

    def reach(self, options: IndexOptions) -> int:
        """Return how many bytes after its last mapping it still takes a seqno from."""
        return options.max_distance if self.stride == 1 else min(4 * options.spacing, options.max_distance)

    def stride_behind(self, options: IndexOptions) -> int:
        """Return the stride that suits the bucket which follows this one, if its transactions are as large."""
        (last, offset), offsets = self.tail, self.offsets
        if last == self.first:
            return options.stride
        return max(1, min(options.stride, options.spacing * (last - self.first) // max(offset - offsets[0], 1)))

    def put(self, seqno: Seqno, offset: int) -> None:
        """Take a mapping: a later one extends the bucket, an earlier one may fill its own slot."""
        slot, rest = divmod(seqno - self.first, self.stride)
        offsets = self.offsets
        last = self.tail[0]
        if rest == 0:
            if slot < len(offsets):
                offsets[slot] = offset
            elif seqno > last:
                offsets.extend((_NO_OFFSET,) * (slot - len(offsets)))
                offsets.append(offset)
        if seqno > last:
            self.tail = (seqno, offset)

    def unbroken(self) -> Place:
        """Return the last mapping before which no slot is missing."""
        last, last_offset = self.tail
        slot = len(self.offsets) - 1
        if slot == (last - self.first) // self.stride:
            return Place(last, lsn(self.segment, last_offset))
        return Place(Seqno(self.first + slot * self.stride), lsn(self.segment, self.offsets[slot]))

    def exact(self, seqno: Seqno) -> Lsn | None:
        """Return where a seqno stands, if that is mapped."""
        last, last_offset = self.tail
        if seqno == last:
            return lsn(self.segment, last_offset)
        slot, rest = divmod(seqno - self.first, self.stride)
        if rest or not 0 <= slot < len(self.offsets) or self.offsets[slot] == _NO_OFFSET:
            return None
        return lsn(self.segment, self.offsets[slot])

    def lte(self, seqno: Seqno) -> Place:
        """Return the nearest mapping at or below a seqno that is not below the first."""
        last, last_offset = self.tail
        if seqno >= last:
            return Place(last, lsn(self.segment, last_offset))
        offsets = self.offsets
        slot = min((seqno - self.first) // self.stride, len(offsets) - 1)
        while offsets[slot] == _NO_OFFSET:
            slot -= 1
        return Place(Seqno(self.first + slot * self.stride), lsn(self.segment, offsets[slot]))

    def gte(self, seqno: Seqno) -> Place:
        """Return the nearest mapping at or above a seqno that is not above the last."""
        last, last_offset = self.tail
        offsets = self.offsets
        slot = max(-(-(seqno - self.first) // self.stride), 0)
        while slot < len(offsets) and offsets[slot] == _NO_OFFSET:
            slot += 1
        if slot < len(offsets):
            return Place(Seqno(self.first + slot * self.stride), lsn(self.segment, offsets[slot]))
        return Place(last, lsn(self.segment, last_offset))

    def cut(self, last: Seqno) -> None:
        """Forget what is above `last`, which is not below the first; the greatest mapping left is the last."""
        if last >= self.last:
            return
        offsets = self.offsets
        del offsets[(last - self.first) // self.stride + 1 :]
        while offsets[-1] == _NO_OFFSET:
            offsets.pop()
        self.tail = (Seqno(self.first + (len(offsets) - 1) * self.stride), offsets[-1])

    def copy(self) -> Bucket:
        """Return another object that maps the same."""
        same = Bucket(self.segment, self.first, self.offsets[0], self.stride)
        same.offsets = self.offsets[:]
        same.tail = self.tail
        return same


# --- the stored form --------------------------------------------------------------------------------------

BUCKET_FIELDS: Final = (
    ("version", 1), ("segment", 4), ("stride", 4), ("last_seqno", 8), ("last_offset", 4), ("count", 4), ("offsets", 0),
    ("crc", 4),
)  # fmt: skip

_BUCKET = struct.Struct(">BIIqII")
"""A stored bucket before its offsets: version, segment, stride, last seqno, last offset, number of offsets."""
_CRC = struct.Struct(">I")
VALUE_VERSION = 1


def seal(raw: bytes) -> bytes:
    """Return a stored value with its checksum."""
    return raw + _CRC.pack(crc32(raw))


def unseal(raw: bytes, what: str) -> bytes:
    """Return a stored value without its checksum. Raises IndexDamagedError for one that does not hold."""
    body = raw[: -_CRC.size]
    if len(raw) < _CRC.size + 1 or _CRC.unpack(raw[-_CRC.size :])[0] != crc32(body):
        raise IndexDamagedError(why=f"the checksum of {what} does not match")
    if body[0] != VALUE_VERSION:
        raise IndexDamagedError(why=f"{what} has version {body[0]}, this release knows {VALUE_VERSION}")
    return body


def _swapped(offsets: array[int]) -> array[int]:
    """Return offsets as they are stored, big-endian, or as they are used again."""
    if sys.byteorder == "big":
        return offsets
    swapped = offsets[:]
    swapped.byteswap()
    return swapped


def encode_bucket(bucket: Bucket) -> bytes:
    """Return a bucket's stored form; its first seqno is the key. Layout: docs/format.md, "The stored index"."""
    offsets = bucket.offsets
    head = _BUCKET.pack(VALUE_VERSION, bucket.segment, bucket.stride, bucket.last, bucket.last_offset, len(offsets))
    return seal(head + _swapped(offsets).tobytes())


def decode_bucket(first: int, raw: bytes) -> Bucket:
    """Read what `encode_bucket` wrote. Raises IndexDamagedError."""
    what = f"the bucket at seqno {first}"
    body = unseal(raw, what)
    if len(body) < _BUCKET.size:
        raise IndexDamagedError(why=f"{what} is cut short")
    _, segment, stride, last, last_offset, count = _BUCKET.unpack_from(body)
    if len(body) != _BUCKET.size + 4 * count or not count or not stride or last < first:
        raise IndexDamagedError(why=f"the lengths of {what} contradict each other")
    offsets = array("I")
    offsets.frombytes(memoryview(body)[_BUCKET.size :])
    offsets = _swapped(offsets)
    if offsets[0] == _NO_OFFSET or first + (count - 1) * stride > last:
        raise IndexDamagedError(why=f"{what} maps what it does not hold")
    bucket = Bucket(segment, Seqno(first), offsets[0], stride)
    bucket.offsets = offsets
    bucket.tail = (Seqno(last), last_offset)
    return bucket
