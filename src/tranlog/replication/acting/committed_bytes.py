"""The bytes of a node's log that readers outside the group may have: those of committed transactions.

Owns where these end in each file. The hard idea: transactions stand in the log one after the other, so the bytes end
with the last committed one. But the chunks of several large transactions are mixed in a spill segment, so each chunk
is checked: its transaction is committed if a committed record refers to it.

Source: docs/protocol.md, "Readers".
"""

from __future__ import annotations

import threading

from tranlog.disk import DiskFile
from tranlog.errors import PurgedError
from tranlog.ids import NO_SEQNO, Gtid, Lsn, Seqno, segment_number
from tranlog.log.files.segment import SegmentReader
from tranlog.log.records.format import HEADER, RollbackMark, RotateRecord, SyncRecord
from tranlog.log.records.spill import (
    CHUNK_HEADER_BYTES,
    SPILL_HEADER_BYTES,
    ChunkHeader,
    parse_chunk_header,
    spill_number,
)
from tranlog.log.writing.member import MemberLog
from tranlog.lsn import lsn_offset, lsn_segment


class CommittedBytes:
    """The committed part of the files of one log, as it grows. Threads: any."""

    def __init__(self, log: MemberLog) -> None:
        self.log = log
        self._lock = threading.Lock()
        self._end = NO_SEQNO, Lsn(0)  # the last committed transaction, and where it ends
        self._oids: dict[Gtid, bytes | None] = {}  # of committed ones that refer to spill

    def end_of(self, name: str, file: DiskFile) -> int | None:
        """Return where the committed part of a segment ends; None for a file that may be read whole.

        Other records belong to the transaction before them. Raises LogError, OSError.
        """
        number = segment_number(name)
        end = Lsn(0) if number is None else self._committed_end()
        if number is None or number < lsn_segment(end):
            return None
        at = lsn_offset(end) if number == lsn_segment(end) else HEADER.size
        reader = SegmentReader(file, number)
        while isinstance(found := reader.read(at, verify=False), SyncRecord | RollbackMark | RotateRecord):
            at += found.record_length
        return at

    def chunk_end(self, name: str, file: DiskFile, offset: int) -> int | None:
        """Return up to where a spill segment may be read from `offset` on, where its head or a chunk begins.

        Of a chunk that is not committed that is its header. None for any other file. Raises LogError, OSError.
        """
        number = spill_number(name)
        if number is None or offset < SPILL_HEADER_BYTES:
            return None if number is None else SPILL_HEADER_BYTES
        header = parse_chunk_header(file.pread(CHUNK_HEADER_BYTES, offset))
        if not isinstance(header, ChunkHeader):
            return offset
        committed = header.oid in self._committed_oids(number)
        return offset + (header.record_length if committed else CHUNK_HEADER_BYTES)

    def _committed_end(self) -> Lsn:
        held = self.log.range()
        committed = held.committed_seqno
        if committed < max(held.first_seqno, 0):
            return Lsn(0)
        with self._lock:
            if self._end[0] != committed:
                header = self.log.header(committed)
                assert header is not None, "what is committed is visible"
                self._end = committed, Lsn(header.lsn + header.record_length)
            return self._end[1]

    def _committed_oids(self, number: int) -> set[bytes | None]:
        committed = self.log.range().committed_seqno
        with self._lock:
            found = [gtid for gtid in self.log.spilled_into(number) if gtid.seqno <= committed]
            for gtid in found:
                if gtid not in self._oids:
                    self._oids[gtid] = self._oid(gtid)
            return {self._oids[gtid] for gtid in found}

    def _oid(self, gtid: Gtid) -> bytes | None:
        """Return whose chunks those of a transaction are; None where it was abandoned, or is purged."""
        try:
            with self.log.cursor() as cursor:
                cursor.seek(Seqno(gtid.seqno))
                found = cursor.next()
        except PurgedError:
            return None
        return found.oid if found is not None and found.header.gtid == gtid else None
