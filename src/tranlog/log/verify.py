"""Checking a whole log: every record of every segment, and a report instead of an error at the first fault.

Owns the walk over all segments and past damage. What is damage and what is an ordinary end follows the same rules
as opening (`recovery`). The hard idea: after a bad record the next one is only found where the bad one's length
can be believed, that is, where a good record stands behind it; else the rest of that segment is given up, by name.

Source: design/log-format.md, "`thl verify` explains"; conformance/tungsten.md B7-3, B7-4.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field

from tranlog.disk import Disk, OsDisk
from tranlog.errors import LogMissingError, LogUnreadableError, SegmentGoneError
from tranlog.ids import NO_SEQNO, Seqno
from tranlog.log.format import (
    HEADER,
    BadChecksum,
    End,
    Impossible,
    Outcome,
    RecordHeader,
    RotateRecord,
    SyncRecord,
    segment_name,
)
from tranlog.log.positions import PositionsReader
from tranlog.log.recovery import BadRecord, SegmentGlance, SegmentScan
from tranlog.log.scan import SegmentScanner
from tranlog.log.segment import SegmentReader, glance_at, join, list_segments, refuse_tungsten

Progress = Callable[[int, int], None]
"""Called with the bytes checked so far and the bytes in all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One fault: where it is, and the seqno there or, where that cannot be read, of the last good one before it."""

    segment: str
    offset: int
    seqno: Seqno | None
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """What a check found. `sound` says in one word how it went.

    `unchecked`: fragments that carry no checksum, so that nothing but sync and rotate records proves them.
    `tail`: how the log ends where that is not a clean end; what a crash leaves, and no problem.
    `last_seqno` is the last complete transaction.
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
    tail: str | None = None
    problems: list[Problem] = field(default_factory=list)

    def fault(self, number: int, offset: int, seqno: Seqno, why: str) -> None:
        known = None if seqno == NO_SEQNO else seqno
        self.problems.append(Problem(segment=segment_name(number), offset=offset, seqno=known, why=why))

    def take(self, found: SegmentScan) -> None:
        self.records += found.records
        self.fragments += found.fragments
        self.transactions += found.last_seqno - found.prev_seqno
        self.unchecked += found.unchecked
        if found.last_header is not None:
            if self.first_seqno == NO_SEQNO:
                self.first_seqno = Seqno(found.prev_seqno + 1)
            self.last_seqno = found.last_seqno


def verify(
    path: str | os.PathLike[str],
    *,
    disk: Disk | None = None,
    checksum: bool = True,
    progress: Progress | None = None,
) -> VerifyReport:
    """Check every record of the log at `path`, also while it is written to. Changes nothing.

    Raises LogMissingError, LogUnreadableError, LogCodecError, SegmentGoneError (purged meanwhile: start again).
    """
    disk = OsDisk() if disk is None else disk
    directory = os.fspath(path).rstrip("/") or "/"
    numbers = list_segments(directory, disk)
    if not numbers:
        raise LogMissingError(path=directory, why="it holds no segment (thl.data.*)")
    tally = _Tally()
    try:
        positions = PositionsReader(directory, disk)
        published = positions.read()
        positions.close()
        visible = NO_SEQNO if published is None else published.visible_seqno
        sizes = [_size(directory, disk, number) for number in numbers]
        done = 0
        before: int | None = None
        for number, size in zip(numbers, sizes, strict=True):
            if before is not None and number != before + 1:
                tally.fault(before + 1, 0, tally.last_seqno, "the segment is missing, later ones are there")
            _check_segment(
                tally,
                directory,
                disk,
                number,
                newest=number == numbers[-1],
                adjoins=before == number - 1,
                visible=visible,
                checksum=checksum,
            )
            before = number
            done += size
            if progress is not None:
                progress(done, sum(sizes))
    except FileNotFoundError as exc:
        raise SegmentGoneError(path=str(exc.filename)) from exc
    except OSError as exc:
        raise LogUnreadableError(path=directory, why=exc.strerror or str(exc)) from exc
    return VerifyReport(
        path=directory,
        segments=len(numbers),
        bytes=sum(sizes),
        records=tally.records,
        transactions=tally.transactions,
        fragments=tally.fragments,
        first_seqno=tally.first_seqno,
        last_seqno=tally.last_seqno,
        unchecked=tally.unchecked,
        checksums_used=checksum,
        tail=tally.tail,
        problems=tuple(tally.problems),
    )


def _size(directory: str, disk: Disk, number: int) -> int:
    file = disk.open(join(directory, segment_name(number)))
    try:
        return file.size()
    finally:
        file.close()


def _check_segment(
    tally: _Tally,
    directory: str,
    disk: Disk,
    number: int,
    *,
    newest: bool,
    adjoins: bool,
    visible: Seqno,
    checksum: bool,
) -> None:
    """Check one segment from its header to its end."""
    file = disk.open(join(directory, segment_name(number)))
    try:
        refuse_tungsten(file, directory)
        glance = glance_at(file, number)
        reader = SegmentReader(file, number, checksum=checksum)
        prev_seqno = _check_header(tally, glance, reader, newest=newest, adjoins=adjoins)
        if prev_seqno is None:
            return
        scanner = SegmentScanner(reader, prev_seqno)
        while True:
            scanner.advance()
            found = scanner.result()
            tally.take(found)
            if found.bad is None:
                break
            outcome = reader.read(found.bad.offset, verify=checksum)
            proven = found.bad.offset < max(found.proven, found.proven_behind) or found.last_seqno < visible
            if newest and not proven:
                tally.tail = f"torn tail at {segment_name(number)}, offset {found.bad.offset}: {found.bad.why}"
                return
            seqno = found.last_seqno
            if isinstance(outcome, RecordHeader):
                seqno = outcome.seqno
            elif isinstance(outcome, BadChecksum) and outcome.header is not None:
                seqno = outcome.header.seqno
            tally.fault(number, found.bad.offset, seqno, found.bad.why)
            following = _behind(reader, outcome, found.bad, found.last_seqno)
            if following is None:
                rest = found.size - found.bad.offset
                tally.fault(
                    number, found.bad.offset, found.last_seqno, f"the {rest} bytes from here on could not be read"
                )
                return
            scanner = following
    finally:
        file.close()
    if found.open_fragments:
        text = f"{found.open_fragments} fragments of seqno {found.last_seqno + 1} without a last one"
        if newest and found.last_seqno >= visible:
            tally.tail = f"open transaction at {segment_name(number)}, offset {found.good_end}: {text}"
        else:
            tally.fault(number, found.good_end, Seqno(found.last_seqno + 1), f"the segment ends inside: {text}")
    elif newest and found.last_seqno < visible:
        why = f"the records end here, but seqno {visible} was visible"
        tally.fault(number, found.end, found.last_seqno, why)
    if not newest and found.next_name != segment_name(number + 1):
        why = "the segment ends without a rotate record"
        if found.next_name is not None:
            why = f"its rotate record leads to {found.next_name}"
        tally.fault(number, found.end, found.last_seqno, why)


def _check_header(
    tally: _Tally, glance: SegmentGlance, reader: SegmentReader, *, newest: bool, adjoins: bool
) -> Seqno | None:
    """Hold a segment's header against what came before; return the seqno before its first, None to pass it over."""
    if glance.prev_seqno is None:
        if newest and glance.torn_header:
            tally.tail = f"a rotation that was cut short: {segment_name(glance.number)} has no header yet"
            return None
        tally.fault(glance.number, 0, tally.last_seqno, glance.problem or "bad header: cut short or zeros")
        offset = HEADER.size
        outcome = reader.read(offset, verify=True)
        while isinstance(outcome, SyncRecord):
            offset += outcome.record_length
            outcome = reader.read(offset, verify=True)
        return Seqno(outcome.seqno - 1) if isinstance(outcome, RecordHeader) else None
    expected = tally.last_seqno
    if adjoins and expected != NO_SEQNO and glance.prev_seqno != expected:
        why = f"bad header: prev_seqno {glance.prev_seqno}, but the previous segment ends at {expected}"
        tally.fault(glance.number, 0, expected, why)
    if glance.first_seqno is not None and glance.first_seqno != glance.prev_seqno + 1:
        why = f"bad header: prev_seqno {glance.prev_seqno}, but the segment begins with {glance.first_seqno}"
        tally.fault(glance.number, 0, glance.prev_seqno, why)
        return Seqno(glance.first_seqno - 1)
    return glance.prev_seqno


def _behind(reader: SegmentReader, outcome: Outcome, bad: BadRecord, last_seqno: Seqno) -> SegmentScanner | None:
    """Return a scanner that goes on behind a bad record; None where its length cannot be believed."""
    offset = bad.offset
    match outcome:
        case RecordHeader():  # good in itself, in the wrong place: go on from it as it is
            return SegmentScanner(
                reader, Seqno(outcome.seqno - 1), before=outcome, offset=offset, fragno=outcome.fragno
            )
        case SyncRecord() | RotateRecord() | BadChecksum() | Impossible() if outcome.record_length:
            offset += outcome.record_length
        case _:
            return None
    place = offset
    following = reader.read(place, verify=True)
    while isinstance(following, SyncRecord):
        place += following.record_length
        following = reader.read(place, verify=True)
    if isinstance(following, RecordHeader):
        return SegmentScanner(
            reader, Seqno(following.seqno - 1), before=following, offset=offset, fragno=following.fragno
        )
    if isinstance(following, RotateRecord) or (isinstance(following, End) and place > offset):
        lost = 0
        if isinstance(outcome, BadChecksum) and outcome.header is not None:
            lost = 1
        return SegmentScanner(reader, Seqno(last_seqno + lost), offset=offset)
    return None
