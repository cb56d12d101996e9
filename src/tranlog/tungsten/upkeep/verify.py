"""Checking every record of a Java replicator's directory, after damage too.

Owns the walk; what damage is, is `recovery`'s and `segments`' to say. The hard idea: a damaged record's frame still
tells where the next one begins, so one bad record is one problem and not the end of the check.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

from tranlog.disk import OS_DISK, Disk
from tranlog.errors import PayloadError, SegmentGoneError
from tranlog.ids import NO_SEQNO, Seqno, segment_name
from tranlog.log.files.directory import join
from tranlog.log.rules.damage import Damage, Problem
from tranlog.log.upkeep.verify import VerifyReport
from tranlog.tungsten.files.segments import TungstenSegment, list_entries, place_of, torn_end
from tranlog.tungsten.records.codec import FILE_HEADER, next_number
from tranlog.tungsten.records.payload import decode
from tranlog.tungsten.records.record import (
    BadLength,
    Damaged,
    EventRecord,
    FileHeader,
    PartialEvent,
    Short,
    TungstenRotate,
    UnknownRecord,
)
from tranlog.tungsten.rules.recovery import DirectoryEntry, EventPlace, holes, reading_problem, rotate_problem


def verify(
    path: str,
    *,
    disk: Disk = OS_DISK,
    checked: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> VerifyReport:
    """Check every record of the directory at `path` and decode every payload. Changes nothing.

    `progress` is told (bytes checked, bytes in all). What is purged meanwhile is not looked at. Raises
    LogMissingError, LogUnreadableError, NativeLogError, SegmentGoneError.
    """
    while True:
        entries = list_entries(path, disk)
        walk = _Walk(path, disk, checked=checked, total=sum(entry.size for entry in entries), progress=progress)
        for hole in holes(entries):
            walk.fault(hole.segment, hole.offset, hole.seqno, hole.why, Damage.MISSING)
        try:
            for place, entry in enumerate(entries):
                walk.segment(entry, newest=place == len(entries) - 1)
            break
        except SegmentGoneError:
            if disk.exists(join(path, entries[0].name)):
                raise
    return VerifyReport(
        path=path,
        segments=len(entries),
        bytes=walk.total,
        records=walk.records,
        transactions=walk.transactions,
        fragments=walk.fragments,
        first_seqno=Seqno(walk.first),
        last_seqno=Seqno(walk.last),
        unchecked=walk.unchecked,
        checksums_used=checked,
        tail=walk.tail,
        problems=tuple(walk.problems),
        index="none, as in every directory of the Java replicator's",
    )


class _Walk:
    """What the records say so far."""

    def __init__(
        self, path: str, disk: Disk, *, checked: bool, total: int, progress: Callable[[int, int], None] | None
    ) -> None:
        self._path = path
        self._disk = disk
        self._checked = checked
        self._progress = progress
        self._done = 0
        self._wanted: EventPlace | None = None
        self._seqno: int | None = None
        self.total = total
        self.records = self.transactions = self.fragments = self.unchecked = 0
        self.first = self.last = int(NO_SEQNO)
        self.tail: str | None = None
        self.problems: list[Problem] = []

    def fault(self, segment: str, offset: int, seqno: int | None, why: str, kind: Damage) -> None:
        self.problems.append(
            Problem(segment=segment, offset=offset, seqno=None if seqno is None else Seqno(seqno), why=why, kind=kind)
        )

    def segment(self, entry: DirectoryEntry, *, newest: bool) -> None:
        """Check one segment from its header to its end."""
        if not isinstance(entry.header, FileHeader):
            why = getattr(entry.header, "why", "its header was not finished")
            if newest and isinstance(entry.header, PartialEvent):
                self.tail = f"{entry.name} is skipped: {why}"
            else:
                self.fault(entry.name, 0, self._seqno, why, Damage.HEADER)
            return
        rotate: TungstenRotate | None = None
        at = FILE_HEADER.size
        with closing(TungstenSegment(self._path, entry.number, self._disk, checked=self._checked)) as reader:
            while True:
                outcome = reader.record(at)
                if isinstance(outcome, Short | BadLength):
                    break
                self.records += 1
                rotate = outcome if isinstance(outcome, TungstenRotate) else None
                self._take(entry, reader, outcome)
                at = outcome.offset + outcome.length
                if self._progress is not None and self.records % 1024 == 0:
                    self._progress(self._done + at, self.total)
        self._done += entry.size
        torn = torn_end(outcome, entry.size, at)
        if newest:
            if torn is not None:
                self.tail = f"{entry.name} ends in {torn.why}, offset {torn.offset}"
            elif self._wanted is not None and self._wanted.fragno:
                self.tail = f"{entry.name} ends in a transaction whose last fragment is missing"
            elif rotate is not None and not self._disk.exists(join(self._path, segment_name(rotate.next_segment))):
                why = "the segment that its rotate record names is missing"
                self.fault(entry.name, rotate.offset, self._seqno, why, Damage.MISSING)
        elif torn is not None:
            self.fault(entry.name, at, self._seqno, f"{torn.why}, and segments follow", Damage.ROTATE)
        elif rotate is None:
            why = "it ends without a rotate record, and segments follow"
            self.fault(entry.name, at, self._seqno, why, Damage.ROTATE)

    def _take(
        self,
        entry: DirectoryEntry,
        reader: TungstenSegment,
        outcome: EventRecord | TungstenRotate | UnknownRecord | Damaged,
    ) -> None:
        match outcome:
            case Damaged():
                self.fault(entry.name, outcome.offset, self._seqno, outcome.why, Damage.RECORD)
                self._wanted = None  # it may have been any event
            case UnknownRecord(record_type=kind):
                why = f"record type {kind}, which is none of the replicator's"
                self.fault(entry.name, outcome.offset, self._seqno, why, Damage.RECORD)
            case TungstenRotate(next_segment=number):
                if number != next_number(entry.number):
                    why = rotate_problem(outcome, entry.number)
                    self.fault(entry.name, outcome.offset, self._seqno, why, Damage.ROTATE)
            case EventRecord():
                self._event(entry, reader, outcome)

    def _event(self, entry: DirectoryEntry, reader: TungstenSegment, record: EventRecord) -> None:
        self.fragments += 1
        self.unchecked += record.crc_type == 0
        why = reading_problem(self._wanted, record.seqno, record.fragno) if self._wanted is not None else None
        if why is not None:
            self.fault(entry.name, record.offset, record.seqno, why, Damage.RECORD)
        try:
            decode(reader.payload(record))
        except PayloadError as exc:
            self.fault(entry.name, record.offset, record.seqno, exc.why, Damage.RECORD)
        self._wanted = place_of(reader, record)
        self._seqno = record.seqno
        if self.first < 0:
            self.first = record.seqno
        if record.last_frag:
            self.transactions += 1
            self.last = max(self.last, record.seqno)
