"""What a parser can find at a place in a segment: records, and the three ways in which there is none.

Owns these values. Their bytes are `format`'s, what they mean for a log as a whole `recovery`'s. They stand apart from
the parser, which is compiled and makes millions of them: a msgspec struct is made faster than a compiled class.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from tranlog.header import Record, TransactionHeader
from tranlog.ids import NO_SEQNO, Epoch, Gtid, Lsn, Seqno


class SegmentHeader(msgspec.Struct, frozen=True):
    """The header record of a segment."""

    prev_seqno: Seqno


class RecordHeader(TransactionHeader, frozen=True, gc=False):
    """The header of one fragment, with its place: `lsn` is the record's first byte."""

    lsn: Lsn
    crc_method: int
    crc: int


class StoredRecord(Record, frozen=True):
    """One fragment as it stands in the log."""

    header: RecordHeader


class RotateRecord(msgspec.Struct, frozen=True):
    """The last record of every segment but the newest."""

    next_file_name: str
    record_length: int


class SyncRecord(msgspec.Struct, frozen=True):
    """Everything before `durable_lsn` was durable when this was written; `written_at` is ms since 1970.

    `history` is the identity of the log's history, in the first record of a segment; b"" in any other. `checksums`: its
    writer gives its events checksums. `h` is the running hash up to `seqno`, mostly the last transaction before it,
    unsigned; that of NO_SEQNO is 0.
    """

    durable_lsn: Lsn
    written_at: int
    history: bytes = b""
    record_length: int = 42
    checksums: bool = True
    seqno: Seqno = NO_SEQNO
    h: int = 0


class RollbackMark(msgspec.Struct, frozen=True):
    """Everything after the matchpoint, up to this mark, is abandoned; the stream goes on after the mark.

    `number` rises by one from mark to mark. No transaction before the mark has an epoch above `epoch`; a log
    that numbers itself goes on in that one. `matchpoint_lsn` is where the matchpoint's first record stands. The dead
    interval is half-open: `dead_start` lies after the matchpoint's last record, `dead_end` is the mark's own place.
    `last_seqno` is the last transaction that was abandoned, `written_at` is ms since 1970.
    """

    number: int
    epoch: Epoch
    matchpoint_epoch: Epoch
    matchpoint_seqno: Seqno
    matchpoint_lsn: Lsn
    dead_start: Lsn
    dead_end: Lsn
    last_seqno: Seqno
    written_at: int
    record_length: int = 82

    @property
    def matchpoint(self) -> Gtid:
        """The last transaction that stays."""
        return Gtid(self.matchpoint_epoch, self.matchpoint_seqno)


BAD_CHECKSUM: Final = "its checksum does not match its bytes"


class End(msgspec.Struct, frozen=True):
    """No record here: no byte is left, or zeros stand where a record's length would."""


class Partial(msgspec.Struct, frozen=True):
    """The buffer ends before the record does; the record needs `needed` bytes from its start, or more."""

    needed: int


class BadChecksum(msgspec.Struct, frozen=True):
    """A record whose bytes do not match its checksum; `header` is what they say, where they say anything."""

    record_length: int
    header: RecordHeader | None = None

    @property
    def why(self) -> str:
        """What to tell people."""
        return BAD_CHECKSUM


class Impossible(msgspec.Struct, frozen=True):
    """Bytes that no writer of this format produces; `record_length` is what they claim, 0 where that is absurd."""

    why: str
    record_length: int = 0


Outcome: TypeAlias = RecordHeader | RotateRecord | SyncRecord | RollbackMark | End | Partial | BadChecksum | Impossible
"""What a parser finds at a place in a segment."""

END: Final = End()
