"""Checking a whole log: every record of every segment, and a report instead of an error at the first fault.

Owns the walk over all segments and past damage. What is damage and what is an ordinary end, `recovery` says, here as
when the log is opened. The hard idea: after a bad record the next one is found where the bad one's length says, if a
good record stands there; else by looking for bytes that begin like an event and prove it by their checksum. What no
such place follows is given up, by name.

Source: docs/format.md; docs/conformance.md, B7-3, B7-4.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import cast

import msgspec

from tranlog.disk import OS_DISK, Disk, DiskFile
from tranlog.errors import LogMissingError, LogUnreadableError, SegmentGoneError
from tranlog.ids import NO_EPOCH, NO_HISTORY, NO_SEQNO, Epoch, Seqno, segment_name
from tranlog.log.files.directory import directory_of, join, list_segments
from tranlog.log.files.index_table import INDEX_NAME, good_bytes, read_index
from tranlog.log.files.positions import Positions, read_positions, read_published
from tranlog.log.files.scan import SegmentScanner
from tranlog.log.files.segment import WINDOW_BYTES, SegmentReader, glance_at
from tranlog.log.files.segments import history_borne, one_history
from tranlog.log.files.spilled import SpillFault, SpillReader, list_spill
from tranlog.log.records.format import (
    CRC_NONE,
    EVENT_MIN,
    FIRST_SYNC_BYTES,
    HEADER,
    MARK_BYTES,
    SYNC_BYTES,
    BadChecksum,
    End,
    Outcome,
    RecordHeader,
    RollbackMark,
    RotateRecord,
    SyncRecord,
)
from tranlog.log.records.running_hash import unsigned
from tranlog.log.records.spill import SPILL_HEADER_BYTES, Reference, parse_spill_header, spill_name
from tranlog.log.rules.damage import BadPlace, Damage, LogFindings, Problem, SegmentFindings, TransactionRun
from tranlog.log.rules.index import SeqnoIndex
from tranlog.log.rules.recovery import (
    BadRecord,
    Published,
    SegmentGlance,
    SegmentScan,
    end_problem,
    header_end_problem,
    header_problem,
    mark_problems,
    missing,
)
from tranlog.log.rules.rollback import killer
from tranlog.log.upkeep.hash_check import check_hashes
from tranlog.lsn import lsn, lsn_offset, lsn_segment, lsn_text

Progress = Callable[[int, int], None]
"""Called with the bytes checked so far and the bytes in all."""

_PROGRESS_BYTES = 16 << 20
_EVENT_HEAD_BYTES = 16
"""What the pattern of `_find_event` looks at, before and after the type byte."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """What a check found. `sound` says in one word how it went.

    `transactions` and `first_seqno` to `last_seqno` are what the log holds now; `abandoned` transactions stand in its
    segments as well, and no longer belong to it.
    `unchecked`: fragments that carry no checksum, so that nothing but sync and rotate records proves them.
    `tail`: how the log ends where that is not a clean end; what a crash leaves, and no problem.
    `last_seqno` is the last complete transaction. `index` says how the stored index was found; one that is missing,
    old or cut short is no problem, one that leads to wrong places is.
    """

    path: str
    segments: int
    bytes: int
    records: int
    transactions: int
    fragments: int
    first_seqno: Seqno
    last_seqno: Seqno
    unchecked: int
    checksums_used: bool
    tail: str | None
    problems: tuple[Problem, ...]
    index: str
    abandoned: int = 0
    spilled: int = 0
    """Transactions that stand in spill segments, in `spill_bytes` bytes."""
    spill_bytes: int = 0

    @property
    def sound(self) -> bool:
        """Whether there is no problem."""
        return not self.problems


@dataclass(slots=True)
class _Tally:
    records: int = 0
    transactions: int = 0
    fragments: int = 0
    unchecked: int = 0
    first_seqno: Seqno = NO_SEQNO
    last_seqno: Seqno = NO_SEQNO
    epoch: Epoch = NO_EPOCH
    last_header: RecordHeader | None = None
    tail: str | None = None
    problems: list[Problem] = field(default_factory=list)
    segments: list[SegmentFindings] = field(default_factory=list)
    marks: list[RollbackMark] = field(default_factory=list)
    references: list[tuple[RecordHeader, Reference]] = field(default_factory=list)
    abandoned: int = 0
    end: Seqno | None = None
    """Where the segment before ends; None where that is not known."""
    h: int | None = None
    """The running hash up to there, signed; None where nothing tells it."""

    def fault(self, number: int, offset: int, seqno: Seqno, why: str, kind: Damage) -> None:
        known = None if seqno == NO_SEQNO else seqno
        self.problems.append(Problem(segment=segment_name(number), offset=offset, seqno=known, why=why, kind=kind))

    def take(self, found: SegmentScan) -> None:
        self.records += found.records
        self.fragments += found.fragments
        self.transactions += found.last_seqno - found.prev_seqno
        self.unchecked += found.unchecked
        self.references += found.references
        self.epoch = max(self.epoch, found.epoch)
        if found.mark is not None and found.mark not in self.marks:
            self._take_mark(found.mark)
        if found.last_header is not None:
            if self.first_seqno == NO_SEQNO:
                self.first_seqno = Seqno(found.prev_seqno + 1)
            self.last_seqno = found.last_seqno
            self.last_header = found.last_header

    def _take_mark(self, mark: RollbackMark) -> None:
        """Count what a mark abandons of what was seen, and go on after its matchpoint."""
        self.marks.append(mark)
        if self.first_seqno != NO_SEQNO:
            self.abandoned += max(mark.last_seqno - max(mark.matchpoint_seqno, self.first_seqno - 1), 0)
            self.first_seqno = min(self.first_seqno, Seqno(mark.matchpoint_seqno + 1))
        self.last_seqno = mark.matchpoint_seqno
        if self.last_header is not None:
            self.last_header = msgspec.structs.replace(self.last_header, epoch=mark.matchpoint_epoch)


def verify(
    path: str | os.PathLike[str],
    *,
    disk: Disk = OS_DISK,
    checksum: bool = True,
    progress: Progress | None = None,
) -> VerifyReport:
    """Check every record of the log at `path`, and its stored index, also while it is written to. Changes nothing.

    What is purged meanwhile is not looked at. Raises LogMissingError, LogUnreadableError, LogCodecError,
    ForeignHistoryError, SegmentGoneError.
    """
    return examine(path, disk=disk, checksum=checksum, progress=progress)[0]


def examine(
    path: str | os.PathLike[str],
    *,
    disk: Disk = OS_DISK,
    checksum: bool = True,
    progress: Progress | None = None,
) -> tuple[VerifyReport, LogFindings]:
    """Check like `verify`, and return the findings that a repair decides by, too."""
    directory = directory_of(path)
    while True:
        published = read_published(directory, disk)  # before anything that it tells of
        numbers = list_segments(directory, disk)
        if not numbers:
            raise LogMissingError(path=directory, why="it holds no segment (thl.data.*)")
        try:
            return _examined(directory, numbers, published, disk, checksum=checksum, progress=progress)
        except SegmentGoneError:  # purged, and so is what was looked at before it
            if disk.exists(join(directory, segment_name(numbers[0]))):
                raise


def _examined(
    directory: str,
    numbers: Sequence[int],
    published: Published,
    disk: Disk,
    *,
    checksum: bool,
    progress: Progress | None,
) -> tuple[VerifyReport, LogFindings]:
    tally = _Tally()
    try:
        stored = _StoredIndex(directory, disk)
        fronts = {number: _front(directory, disk, number) for number in numbers}
        sizes = [size for size, _ in fronts.values()]
        history = one_history(directory, {number: borne for number, (_, borne) in fronts.items()})
        done = 0
        before: int | None = None
        for number, size in zip(numbers, sizes, strict=True):
            if before is not None and number != before + 1:
                tally.problems.append(missing(before + 1, tally.last_seqno))
                tally.end = None
            with closing(disk.open(join(directory, segment_name(number)))) as file:
                watched = file if progress is None else cast(DiskFile, _Watched(file, progress, done, sum(sizes)))
                _check_segment(
                    tally,
                    watched,
                    stored,
                    number,
                    newest=number == numbers[-1],
                    published=published,
                    checksum=checksum,
                )
            before = number
            done += size
            if progress is not None:
                progress(done, sum(sizes))
        left = read_positions(directory, disk)
        spill = list_spill(directory, disk)
        if history is None:
            history = _history_beside(directory, disk, left, spill)
    except FileNotFoundError as exc:
        raise SegmentGoneError(path=str(exc.filename)) from exc
    except OSError as exc:
        raise LogUnreadableError(path=directory, why=exc.strerror or str(exc)) from exc
    tally.problems += mark_problems(tally.marks)
    spilled = [one for one in tally.references if killer(tally.marks, one[0].lsn) is None]
    spill_bytes = sum(reference.spilled_bytes for _, reference in spilled)
    lost: list[RecordHeader] = []
    for header, reference in spilled:
        fault = _check_spill(directory, disk, header, reference, history)
        if fault is not None:
            problem = Problem(
                segment=fault.segment, offset=fault.offset, seqno=header.seqno, why=fault.why, kind=Damage.SPILL
            )
            tally.problems.append(problem)
            lost.append(header)
    tally.problems += stored.problems
    report = VerifyReport(
        path=directory,
        segments=len(numbers),
        bytes=sum(sizes),
        records=tally.records,
        transactions=tally.transactions - tally.abandoned,
        abandoned=tally.abandoned,
        spilled=len(spilled),
        spill_bytes=spill_bytes,
        fragments=tally.fragments,
        first_seqno=tally.first_seqno,
        last_seqno=tally.last_seqno,
        unchecked=tally.unchecked,
        checksums_used=checksum,
        tail=tally.tail,
        problems=tuple(tally.problems),
        index=stored.verdict(tally.last_seqno),
    )
    findings = LogFindings(
        segments=tuple(_without_lost(one, lost) for one in tally.segments),
        visible=published.seqno,
        epoch=max(tally.epoch, NO_EPOCH if left is None else left.epoch),
        problems=report.problems,
        marks=len(tally.marks),
        references=tuple((header.lsn, reference.segments) for header, reference in tally.references),
        history=history,
        spill=tuple(spill),
    )
    return report, findings


def _history_beside(directory: str, disk: Disk, left: Positions | None, spill: Sequence[int]) -> bytes | None:
    """Return the identity of the log's history where no segment bears it, from what stands beside them."""
    if left is not None and left.history != NO_HISTORY:
        return left.history
    for number in spill:
        with closing(disk.open(join(directory, spill_name(number)))) as file:
            header = parse_spill_header(file.pread(SPILL_HEADER_BYTES, 0))
        if header is not None:
            return header[1]
    return None


def _check_spill(
    directory: str, disk: Disk, header: RecordHeader, reference: Reference, history: bytes | None
) -> SpillFault | None:
    """Read everything that a spilled transaction refers to; return the first fault, None if both are purged."""
    with closing(SpillReader(directory, disk, reference, header, history)) as reader:
        fault = next((found for found in reader.records() if isinstance(found, SpillFault)), None)
    gone = fault is not None and fault.missing
    return None if gone and not disk.exists(join(directory, segment_name(lsn_segment(header.lsn)))) else fault


def _without_lost(one: SegmentFindings, lost: Sequence[RecordHeader]) -> SegmentFindings:
    """Return a segment's findings with the spilled transactions that are lost as bad places among the good ones."""
    runs, bad = list(one.runs), list(one.bad)
    for header in lost:
        if lsn_segment(header.lsn) != one.number:
            continue
        seqno, offset = header.seqno, lsn_offset(header.lsn)
        at = max(row for row, run in enumerate(runs) if run.start <= offset and run.first <= seqno <= run.last)
        run, end = runs[at], offset + header.record_length
        before = tuple(epoch for epoch in run.epochs if epoch[0] < seqno)
        here = [epoch for epoch in run.epochs if epoch[0] <= seqno + 1]
        behind = ((Seqno(seqno + 1), here[-1][1]), *run.epochs[len(here) :]) if here else run.epochs
        front = replace(run, last=Seqno(seqno - 1), epochs=before)
        back = TransactionRun(start=end, first=Seqno(seqno + 1), last=run.last, epochs=behind)
        runs[at : at + 1] = [part for part in (front, back) if part.first <= part.last]
        bad.append(
            BadPlace(
                offset=offset,
                good_end=offset,
                last=Seqno(seqno - 1),
                open_fragments=0,
                resumes_at=end,
                next_event=(Seqno(seqno + 1), 0),
            )
        )
    return replace(one, runs=tuple(runs), bad=tuple(sorted(bad, key=lambda place: place.offset)))


class _Watched:
    """A file that tells how far it was read."""

    def __init__(self, file: DiskFile, progress: Progress, done: int, total: int) -> None:
        self._file = file
        self._progress = progress
        self._done = done
        self._total = total
        self._told = 0

    def pread(self, size: int, offset: int) -> bytes:
        if size == WINDOW_BYTES and offset >= self._told + _PROGRESS_BYTES:
            self._told = offset
            self._progress(self._done + offset, self._total)
        return self._file.pread(size, offset)

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)


def _front(directory: str, disk: Disk, number: int) -> tuple[int, bytes | None]:
    """Return a segment's size, and the history that it bears."""
    with closing(disk.open(join(directory, segment_name(number)))) as file:
        return file.size(), history_borne(file, directory, number)


@dataclass(slots=True)
class _Walk:
    """What was found in one segment so far."""

    runs: list[TransactionRun] = field(default_factory=list)
    bad: list[BadPlace] = field(default_factory=list)
    good_end: int = HEADER.size
    last: Seqno = NO_SEQNO
    torn: bool = False
    mark: RollbackMark | None = None
    h: int | None = None
    """The running hash up to `last`, signed; None where nothing tells it."""
    synced: Seqno = NO_SEQNO

    def first_seqno(self) -> Seqno | None:
        """Return the first good event's seqno, if nothing bad stands before it."""
        if not self.runs or (self.bad and self.bad[0].last < self.runs[0].first):
            return None
        return self.runs[0].first

    def take(
        self, found: SegmentScan, *, start: int, whole: bool, torn_first: bool, before: tuple[Seqno, Epoch] | None
    ) -> None:
        """Take what one scanner saw from `start` on.

        `whole`: it began between two transactions; `torn_first`: in one whose beginning is lost. `before`: the epoch
        in which it began, and from which seqno on.
        """
        self.last = found.last_seqno
        self.mark = self.mark or found.mark
        first = Seqno(found.prev_seqno + (2 if torn_first else 1))
        if found.last_seqno >= first:
            epochs = tuple(one for one in found.epochs if one[0] <= found.last_seqno)
            if found.mark is not None:
                before = (first, found.mark.matchpoint_epoch)
            if before is not None and (not epochs or epochs[0][0] > first):
                epochs = ((max(before[0], first), before[1]), *epochs)
            self.runs.append(TransactionRun(start=start, first=first, last=found.last_seqno, epochs=epochs))
        if found.good_end > start or whole:
            self.good_end = found.good_end


def _check_segment(
    tally: _Tally,
    file: DiskFile,
    stored: _StoredIndex,
    number: int,
    *,
    newest: bool,
    published: Published,
    checksum: bool,
) -> None:
    """Check one segment from its header to its end."""
    glance = glance_at(file, number)
    reader = SegmentReader(file, number, checksum=checksum)
    walk = _Walk()
    begun = _check_header(tally, glance, reader, newest=newest, published=published)
    found: SegmentScan | None = None
    if begun is not None:
        if begun.offset > HEADER.size:
            walk.bad.append(
                BadPlace(
                    offset=HEADER.size,
                    good_end=HEADER.size,
                    last=tally.last_seqno,
                    open_fragments=0,
                    resumes_at=begun.offset,
                    next_event=(Seqno(begun.prev_seqno + 1), 0),
                )
            )
        found = _walk(tally, walk, reader, stored, begun, newest=newest, published=published)
    elif not glance.torn_header or not newest:
        walk.bad.append(BadPlace(offset=HEADER.size, good_end=HEADER.size, last=tally.last_seqno, open_fragments=0))
    tally.segments.append(
        SegmentFindings(
            number=number,
            size=glance.size,
            prev_seqno=glance.prev_seqno,
            torn_header=glance.torn_header,
            first_seqno=walk.first_seqno() if walk.runs or walk.bad else glance.first_seqno,
            runs=tuple(walk.runs),
            bad=tuple(walk.bad),
            last=walk.last,
            good_end=walk.good_end,
            end=walk.good_end if found is None else found.end,
            open_fragments=0 if found is None else found.open_fragments,
            next_name=None if found is None else found.next_name,
            torn=walk.torn,
            mark=walk.mark,
            synced=walk.synced,
        )
    )
    tally.end = None if found is None else found.last_seqno
    tally.h = None if found is None else walk.h
    if found is None:
        return
    problem = end_problem(found, newest=newest, published=published.beside(tally.marks), epoch=tally.epoch)
    if problem is not None:
        tally.problems.append(problem)
    elif found.open_fragments:
        text = f"{found.open_fragments} fragments of seqno {found.last_seqno + 1} without a last one"
        tally.tail = f"open transaction at {segment_name(number)}, offset {found.good_end}: {text}"


@dataclass(frozen=True, slots=True)
class _Start:
    """Where the walk of a segment begins: fragment 0 of seqno `prev_seqno` + 1 at `offset`, or sync records there."""

    prev_seqno: Seqno
    offset: int = HEADER.size


def _walk(
    tally: _Tally,
    walk: _Walk,
    reader: SegmentReader,
    stored: _StoredIndex,
    begun: _Start,
    *,
    newest: bool,
    published: Published,
) -> SegmentScan | None:
    """Walk a segment past every bad place; return the last scan, None where it does not reach the end."""
    number = reader.number
    start, whole, torn_first = begun.offset, True, False
    # A segment that begins without checksums, or in an older epoch, is judged by how the one before it ends.
    last = tally.last_header
    before = None if last is None else (Seqno(begun.prev_seqno + 1), last.epoch)
    scanner = SegmentScanner(reader, begun.prev_seqno, before=last, offset=start)
    first = (Seqno(begun.prev_seqno + 1), 0)
    walk.h = 0 if begun.prev_seqno == NO_SEQNO else tally.h if tally.end == begun.prev_seqno else None
    while True:
        scanner.advance()
        found = scanner.result()
        tally.take(found)
        walk.take(found, start=start, whole=whole, torn_first=torn_first, before=before)
        stored.hold_against(number, found)
        span = check_hashes(reader, start, found.end, first, found.last_seqno, walk.h)
        walk.h = span.after
        walk.synced = max(walk.synced, span.synced)
        for fault in span.faults:
            tally.fault(number, fault.offset, fault.seqno, fault.why, Damage.HASH)
        if span.before is not None and walk.bad and first == (walk.bad[-1].last + 1, 0):
            walk.bad[-1] = replace(walk.bad[-1], h=unsigned(span.before))
        bad = found.bad
        if bad is None:
            return found
        problem = end_problem(found, newest=newest, published=published.beside(tally.marks), epoch=tally.epoch)
        if problem is None:
            tally.tail = f"torn tail at {segment_name(number)}, offset {bad.offset}: {bad.why}"
            walk.torn = True
            return None
        tally.problems.append(problem)
        outcome = reader.read(bad.offset, verify=reader.checksum)
        going_on = _behind(reader, outcome, bad, found)
        walk.bad.append(
            BadPlace(
                offset=bad.offset,
                good_end=walk.good_end,
                last=found.last_seqno,
                open_fragments=found.open_fragments,
                resumes_at=None if going_on is None else going_on.offset,
                next_event=None if going_on is None else going_on.event,
                checksums=going_on is None or going_on.checksums,
                next_name=found.next_name,
                h=None if walk.h is None else unsigned(walk.h),
            )
        )
        if going_on is None:
            rest = found.size - bad.offset
            why = f"the {rest} bytes from here on could not be read"
            tally.fault(number, bad.offset, found.last_seqno, why, bad.kind)
            return None
        scanner, start, before, first = going_on.scanner, going_on.offset, going_on.epoch, going_on.first
        if first != (found.last_seqno + 1, 0) or found.open_fragments:
            walk.h = None
        whole = going_on.event is None or going_on.event[1] == 0
        torn_first = not whole and going_on.event != (found.last_seqno + 1, found.open_fragments)


def _check_header(
    tally: _Tally, glance: SegmentGlance, reader: SegmentReader, *, newest: bool, published: Published
) -> _Start | None:
    """Hold a segment's header against what came before; return where to begin, None to pass the segment over."""
    last = tally.last_seqno if tally.end is None else tally.end
    problem = header_problem(glance, last, newest=newest, told=tally.end is not None)
    if problem is not None:
        tally.problems.append(problem)
    if glance.prev_seqno is None:
        if problem is None:
            tally.tail = f"a rotation that was cut short: {segment_name(glance.number)} has no header yet"
            tally.problems += header_end_problem(glance.number, last, published.beside(tally.marks), tally.epoch)
            return None
        place, event = _first_event(reader, HEADER.size)
        if event is not None:
            return _Start(Seqno(event.seqno - 1))
        mark = reader.read(place, verify=True)
        if isinstance(mark, RollbackMark):
            return _Start(mark.last_seqno)
        event = _find_event(reader, HEADER.size - 1, NO_SEQNO if tally.end is None else last)
        begun = None if event is None or event.fragno else _Start(Seqno(event.seqno - 1), lsn_offset(event.lsn))
        rest = (glance.size if begun is None else begun.offset) - HEADER.size
        if rest > 0:
            why = f"the {rest} bytes from here on could not be read"
            tally.fault(glance.number, HEADER.size, last, why, Damage.RECORD)
        return begun
    prev_seqno = glance.prev_seqno
    if glance.mark is not None:
        return _Start(prev_seqno)  # the scanner holds it against both
    if glance.first_seqno is not None:
        prev_seqno = Seqno(glance.first_seqno - 1)
    return _Start(prev_seqno)


@dataclass(frozen=True, slots=True)
class _GoingOn:
    """A scanner after a bad place, and the first event there as (seqno, fragno); None: only other records.

    `first` is the place of an event that would come first.
    """

    scanner: SegmentScanner
    offset: int
    first: tuple[Seqno, int]
    event: tuple[Seqno, int] | None
    epoch: tuple[Seqno, Epoch] | None
    checksums: bool = True


def _behind(reader: SegmentReader, outcome: Outcome, bad: BadRecord, found: SegmentScan) -> _GoingOn | None:
    """Return how to go on after a bad record; None where no good one is found."""
    last = found.last_seqno
    if isinstance(outcome, RecordHeader) and bad.kind is not Damage.RECORD:  # good in itself, in the wrong place
        return _from_event(reader, bad.offset, outcome)
    claimed = getattr(outcome, "record_length", 0)
    for length in dict.fromkeys((claimed, FIRST_SYNC_BYTES if bad.offset == HEADER.size else SYNC_BYTES, MARK_BYTES)):
        if not length:
            continue
        offset = bad.offset + length
        place, event = _first_event(reader, offset)
        if event is not None:
            return _from_event(reader, offset, event)
        following = reader.read(place, verify=True)
        if isinstance(following, RollbackMark):
            return _GoingOn(SegmentScanner(reader, last, offset=offset), offset, (Seqno(last + 1), 0), None, None)
        if isinstance(following, RotateRecord) or (isinstance(following, End) and place > offset):
            lost = 1 if isinstance(outcome, BadChecksum) and outcome.header is not None else 0
            scanner = SegmentScanner(reader, Seqno(last + lost), offset=offset)
            return _GoingOn(scanner, offset, (Seqno(last + lost + 1), 0), None, None)
    event = _find_event(reader, bad.offset, last)
    return None if event is None else _from_event(reader, lsn_offset(event.lsn), event)


def _from_event(reader: SegmentReader, offset: int, event: RecordHeader) -> _GoingOn:
    prev_seqno = Seqno(event.seqno - 1)
    scanner = SegmentScanner(reader, prev_seqno, before=event, offset=offset, fragno=event.fragno)
    checksums, first = event.crc_method != CRC_NONE, (event.seqno, event.fragno)
    return _GoingOn(scanner, offset, first, first, (event.seqno, event.epoch), checksums)


def _first_event(reader: SegmentReader, offset: int) -> tuple[int, RecordHeader | None]:
    """Return the first place from `offset` on that is no sync record, and the event there if there is a good one."""
    outcome = reader.read(offset, verify=True)
    while isinstance(outcome, SyncRecord):
        offset += outcome.record_length
        outcome = reader.read(offset, verify=True)
    return offset, outcome if isinstance(outcome, RecordHeader) else None


def _find_event(reader: SegmentReader, offset: int, last: Seqno) -> RecordHeader | None:
    """Return the first event after `offset` that proves itself by its checksum and does not come before `last`.

    Seqnos are dense: so many bytes hold so many transactions and no more. What claims another seqno is passed over
    before its length is trusted.
    """
    # record_type 01 or 05, a header_length below 2 MiB, and a seqno whose high half is that of its neighbours
    high = re.escape((max(last, 0) >> 32).to_bytes(4, "big"))
    pattern = re.compile(rb"[\x01\x05]\x00[\x00-\x1f]..(?=" + high + rb"(.{4}))", re.DOTALL)
    base = max(last, 0) >> 32 << 32
    at = offset + 1
    while True:
        raw = reader.file.pread(WINDOW_BYTES, at)
        for match in pattern.finditer(raw):
            place = at + match.start() - 4
            seqno = base | int.from_bytes(match[1], "big")
            if place <= offset or seqno <= last or (last >= 0 and seqno > last + 1 + (place - offset) // EVENT_MIN):
                continue
            event = reader.read(place, verify=True)
            if isinstance(event, RecordHeader) and event.crc_method:
                return event
        if len(raw) < WINDOW_BYTES:
            return None
        at += len(raw) - _EVENT_HEAD_BYTES


class _StoredIndex:
    """The stored index, checked against what the walk sees."""

    def __init__(self, directory: str, disk: Disk) -> None:
        self.problems: list[Problem] = []
        self._index: SeqnoIndex | None = None
        self._note = ""
        path = join(directory, INDEX_NAME)
        try:
            with closing(disk.open(path)) as file:
                raw = file.pread(file.size(), 0)
        except FileNotFoundError:
            self._note = "none; it is built when the log is opened"
            return
        end = good_bytes(raw)
        if end < len(raw):
            self._note = f"{len(raw) - end} bytes from offset {end} on are not a whole flush and are ignored"
        stored = read_index(path, disk)
        if stored is None:
            self._note = self._note or "it is inconsistent and is ignored"
        else:
            self._index = stored[0]

    def hold_against(self, number: int, found: SegmentScan) -> None:
        """Look up every place in segment `number` that the index maps and that this scan has seen."""
        if self._index is None:
            return
        first, starts = found.prev_seqno + 1, found.starts
        for bucket in self._index.mappings.buckets:
            if bucket.segment != number or bucket.last < first:
                continue
            mapped = [(bucket.first + slot * bucket.stride, offset) for slot, offset in enumerate(bucket.offsets)]
            for seqno, offset in (*mapped, (bucket.last, bucket.last_offset)):
                if offset and first <= seqno < first + len(starts) and starts[seqno - first] != offset:
                    place = lsn_text(lsn(number, offset))
                    why = f"the stored index leads to {place} for seqno {seqno}, which is at {starts[seqno - first]}"
                    self.problems.append(
                        Problem(segment=INDEX_NAME, offset=0, seqno=Seqno(seqno), why=why, kind=Damage.INDEX)
                    )
                    break

    def verdict(self, last: Seqno) -> str:
        """Return in words how the stored index was found."""
        if self.problems:
            return "wrong"
        if self._index is None:
            return self._note
        covered = self._index.prefix_range.last
        reach = f"up to seqno {covered}" if covered <= last else f"up to seqno {covered}, which the log does not hold"
        return f"{reach}; {self._note}" if self._note else reach
