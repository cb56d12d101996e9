"""The segments of a log of either codec, each with its GTIDs, its age and what it takes of the disk."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tranlog.disk import OsDisk
from tranlog.ids import Epoch, Gtid, Seqno, segment_number
from tranlog.log.files.segments import SegmentStat
from tranlog.log.reading.reader import LogReader
from tranlog.tungsten.reading.reader import Seek, TungstenCursor, TungstenReader

Report = Callable[[str], None]

_BLOCK_BYTES: Final = 512
"""In which `st_blocks` counts, whatever the file system's own are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedSegment:
    """One segment. GTIDs are None where no transaction lives in it; `created_at` is ms since 1970.

    `bytes` are those that were written, `on_disk` what the file system has set aside for them.
    """

    number: int
    name: str
    first_gtid: Gtid | None
    last_gtid: Gtid | None
    created_at: int | None
    bytes: int
    on_disk: int


def segment_rows(reader: LogReader, *, report: Report) -> list[ListedSegment]:
    """Describe each segment, first to newest. Raises CorruptRecordError, LogUnreadableError, SegmentGoneError."""
    held = reader.range()
    stats = reader.index()
    rows: list[ListedSegment] = []
    firsts = [_gtid(reader, one.first_seqno) if _lives(one) else None for one in stats]
    for at, one in enumerate(stats):
        report(f"segments: {at + 1} of {len(stats)}")
        first, last = firsts[at], None
        if first is not None:
            # Epochs rise with seqnos: between two transactions of one epoch there is no other.
            later = next((gtid for gtid in firsts[at + 1 :] if gtid is not None), None)
            known = later is not None and later.epoch == first.epoch
            last = Gtid(first.epoch, one.last_seqno) if known else _gtid(reader, min(one.last_seqno, held.last_seqno))
        rows.append(
            ListedSegment(
                number=one.number,
                name=one.name,
                first_gtid=first,
                last_gtid=last,
                created_at=one.written_at,
                bytes=one.bytes,
                on_disk=on_disk_bytes(reader.path, one.name),
            )
        )
    return rows


def tungsten_rows(path: str, *, report: Report) -> list[ListedSegment]:
    """Describe each segment of the Java replicator's. Created is the file's time: its records have none of the writer.

    Raises CorruptRecordError, LogUnreadableError, SegmentGoneError.
    """
    reader = TungstenReader.open(path)
    rows: list[ListedSegment] = []
    disk = OsDisk()
    entries = reader.index()
    with reader.cursor(strict=False) as cursor:
        for at, one in enumerate(entries):
            report(f"segments: {at + 1} of {len(entries)}")
            rows.append(
                ListedSegment(
                    number=segment_number(one.name) or 0,
                    name=one.name,
                    first_gtid=_ancestors_gtid(cursor, one.first_seqno),
                    last_gtid=_ancestors_gtid(cursor, one.last_seqno),
                    created_at=disk.modified_ms(os.path.join(reader.path, one.name)),
                    bytes=one.bytes,
                    on_disk=on_disk_bytes(reader.path, one.name),
                )
            )
    return rows


def _ancestors_gtid(cursor: TungstenCursor, seqno: int) -> Gtid | None:
    if seqno < 0:
        return None
    if cursor.seek(seqno) is not Seek.FOUND:  # a segment whose end a gap follows
        return None if cursor.passed is None else _ancestors_gtid(cursor, cursor.passed)
    stored = cursor.next()
    return None if stored is None else Gtid(Epoch(stored.record.epoch), Seqno(seqno))


def _lives(one: SegmentStat) -> bool:
    return one.last_seqno >= one.first_seqno


def _gtid(reader: LogReader, seqno: Seqno) -> Gtid | None:
    header = reader.header(seqno)
    return None if header is None else header.gtid


def on_disk_bytes(directory: str, name: str) -> int:
    """Return what the file system has set aside for a file; 0 for one that was purged meanwhile."""
    try:
        return os.stat(os.path.join(directory, name)).st_blocks * _BLOCK_BYTES
    except FileNotFoundError:
        return 0
