"""What a stretch of bytes of a Tungsten segment can turn out to be: the values that `codec` returns.

Owns the values alone; nothing here reads or writes a byte.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

TRAILER_BYTES: Final = 9
"""The checksum's type and value after every record."""


class FileHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The 16 bytes that a segment begins with."""

    major: int
    minor: int
    base_seqno: int


class PartialEvent(msgspec.Struct, frozen=True):
    """Fewer bytes than a file header has."""

    size: int


class ImpossibleEvent(msgspec.Struct, frozen=True):
    """Bytes that no segment of the replicator begins with."""

    why: str


class _Framed(msgspec.Struct, frozen=True, kw_only=True):
    """A record's frame: its first byte in the segment, its whole length, its checksum."""

    offset: int
    length: int
    crc_type: int
    crc: int


class EventRecord(_Framed, frozen=True, kw_only=True):
    """An event record's frame and outer header.

    The payload is the `payload_length` bytes from `payload_offset` in the segment. Of the wall clock and the
    identity in the payload this knows nothing; readers filter by this header alone.
    """

    seqno: int
    fragno: int
    last_frag: bool
    epoch: int
    source_id: str
    event_id: str
    shard_id: str
    tstamp: int
    payload_offset: int

    @property
    def payload_length(self) -> int:
        """Bytes of the payload."""
        return self.offset + self.length - TRAILER_BYTES - self.payload_offset

    @property
    def end(self) -> int:
        """The first byte after the record."""
        return self.offset + self.length


class TungstenRotate(_Framed, frozen=True, kw_only=True):
    """The last record of a segment; the log goes on in the segment of that number."""

    next_segment: int


class UnknownRecord(_Framed, frozen=True, kw_only=True):
    """A sound frame around a record type that the replicator does not have."""

    record_type: int


class Damaged(_Framed, frozen=True, kw_only=True):
    """A whole record that is not what was written; the frame still tells where the next one begins."""

    record_type: int
    why: str


class Short(msgspec.Struct, frozen=True):
    """The bytes end inside the record, which has `needed` of them (4: its length is not known yet)."""

    needed: int


class BadLength(msgspec.Struct, frozen=True):
    """A length that no record has: zeros, or rubbish, after the last one."""

    record_length: int


Sound: TypeAlias = EventRecord | TungstenRotate | UnknownRecord
Outcome: TypeAlias = Sound | Damaged | Short | BadLength
