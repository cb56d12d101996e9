"""Repair of a Java replicator's directory that is damaged: keep the part before the damage, or the part after it.

Owns what goes and the order on the disk; what is damage is `verify`'s to say. The ancestor has no such thing. The hard
idea is the native one's, see `log.repairing`: a repair can be cut off at any call and is then simply run again, so what
goes is copied and synced before it goes, and goes from the end that stays no longer. Records of a replicator hold
nothing that its other records say again, so nothing is ever written anew.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from tranlog.disk import OS_DISK, Disk
from tranlog.errors import LogLockedError, LogMissingError, RepairRefusedError
from tranlog.ids import Epoch, Seqno
from tranlog.log.files.directory import LOCK_NAME, storage_error
from tranlog.log.rules.damage import Problem
from tranlog.log.rules.repair import CutOff, Keep, Lost, NothingToRepair, Remove, RepairPlan, Span, Step
from tranlog.log.upkeep.repairing import Agree, RepairOutcome, take_steps, write_report
from tranlog.log.upkeep.verify import Progress, VerifyReport
from tranlog.tungsten.files.segments import TungstenSegment, list_entries, place_of
from tranlog.tungsten.records.codec import FILE_HEADER, NO_BASE, segment_number
from tranlog.tungsten.records.record import BadLength, EventRecord, FileHeader, Short, TungstenRotate
from tranlog.tungsten.rules.recovery import DirectoryEntry
from tranlog.tungsten.upkeep.verify import verify
from tranlog.tungsten.writing.directory import take_lock

logger = logging.getLogger(__name__)


def repair(
    path: str,
    *,
    keep: Keep = Keep.FRONT,
    dry_run: bool = False,
    agree: Agree | None = None,
    disk: Disk = OS_DISK,
    progress: Progress | None = None,
) -> RepairOutcome:
    """Make a damaged directory one that opens and verifies clean; with `dry_run` only say how, without the lock.

    A repair that was interrupted is finished by another one. Raises LogLockedError, LogMissingError,
    LogUnreadableError, NativeLogError, RepairRefusedError, DiskFullError, DiskFailedError, and what `agree` raises.
    """
    if not list_entries(path, disk):
        raise LogMissingError(path=path, why="it holds no segment (thl.data.*)")
    if dry_run:
        before, decision = _look(path, keep, disk, progress)
        return RepairOutcome(before=before, decision=decision, after=None, kept_in=(), report=None)
    lock = take_lock(path, disk)
    try:
        before, decision = _look(path, keep, disk, progress)
        if isinstance(decision, NothingToRepair):
            return RepairOutcome(before=before, decision=decision, after=None, kept_in=(), report=None)
        if agree is not None:
            agree(decision, before)
        if not lock.held():
            raise LogLockedError(path=path, holder=f"{LOCK_NAME} was replaced or removed meanwhile")
        report = write_report(path, disk, decision, before)
        kept = take_steps(path, disk, decision.steps)
        after = verify(path, disk=disk, progress=progress)
        return RepairOutcome(before=before, decision=decision, after=after, kept_in=tuple(kept), report=report)
    except OSError as exc:
        raise storage_error(exc, path) from exc
    finally:
        lock.release()


def _look(
    path: str, keep: Keep, disk: Disk, progress: Progress | None
) -> tuple[VerifyReport, RepairPlan | NothingToRepair]:
    report = verify(path, disk=disk, progress=progress)
    if report.sound:
        return report, NothingToRepair()
    entries = list_entries(path, disk)
    places = sorted((_number(problem), problem.offset) for problem in report.problems)
    decide = _keep_front if keep is Keep.FRONT else _keep_back
    return report, decide(path, disk, entries, places[0] if keep is Keep.FRONT else places[-1])


def _number(problem: Problem) -> int:
    number = segment_number(problem.segment)
    assert number is not None, "a problem names a segment"
    return number


# --- what goes -------------------------------------------------------------------------------------------


def _keep_front(path: str, disk: Disk, entries: Sequence[DirectoryEntry], wrong: tuple[int, int]) -> RepairPlan:
    """Keep the whole transactions before `wrong` (segment, offset). Raises RepairRefusedError where there are none."""
    stays, goes = _Held(), _Held()
    steps: list[Step] = [Remove(segment=one.number, size=one.size) for one in entries if one.number > wrong[0]]
    steps.reverse()
    front = [one for one in entries if one.number <= wrong[0]]
    while front:
        entry = front.pop()
        cut = _whole_before(path, disk, entry, wrong)
        if cut > FILE_HEADER.size:
            if cut < entry.size:
                steps.append(CutOff(segment=entry.number, offset=cut, size=entry.size - cut))
            front.append(entry)
            break
        steps.append(Remove(segment=entry.number, size=entry.size))
    if not front:
        why = "nothing can be read before the damage; keep what lies after it (--keep back)"
        raise RepairRefusedError(path=path, why=why)
    for entry in front:
        stays.take(path, disk, entry, 0, cut if entry is front[-1] else entry.size)
    for entry in entries[len(front) - 1 :]:
        goes.take(path, disk, entry, cut if entry is front[-1] else 0, entry.size)
    return _plan(Keep.FRONT, steps, stays, goes, begins=None)


def _keep_back(path: str, disk: Disk, entries: Sequence[DirectoryEntry], wrong: tuple[int, int]) -> RepairPlan:
    """Keep the segments after that of `wrong`. Raises RepairRefusedError where there are none."""
    back = [one for one in entries if one.number > wrong[0] and isinstance(one.header, FileHeader)]
    stays, goes = _Held(), _Held()
    for entry in back:
        stays.take(path, disk, entry, 0, entry.size)
    if stays.last is None:
        why = "no segment with a whole transaction stands after the damage; keep what lies before it (--keep front)"
        raise RepairRefusedError(path=path, why=why)
    front = [one for one in entries if one.number <= wrong[0]]
    for entry in front:
        goes.take(path, disk, entry, 0, entry.size)
    steps: list[Step] = [Remove(segment=one.number, size=one.size) for one in front]
    begins, goes.unread = _begun(path, disk, front)
    return _plan(Keep.BACK, steps, stays, goes, begins=begins)


def _begun(path: str, disk: Disk, front: Sequence[DirectoryEntry]) -> tuple[int | None, int]:
    """Return the seqno with which a log begins, as far as a header tells, and the bytes that nothing tells of."""
    unread = 0
    for entry in front:
        header = entry.header
        if isinstance(header, FileHeader) and header.base_seqno != NO_BASE:
            return header.base_seqno, unread
        if isinstance(header, FileHeader):
            for record in _records(path, disk, entry):
                return None, unread + record.offset - FILE_HEADER.size
        unread += entry.size
    return None, unread


def _whole_before(path: str, disk: Disk, entry: DirectoryEntry, wrong: tuple[int, int]) -> int:
    """Return where a segment's last whole transaction before `wrong` ends: what leads on from there has to go too."""
    number, offset = wrong
    if not isinstance(entry.header, FileHeader):
        return 0
    limit = entry.size if entry.number < number else offset
    at = FILE_HEADER.size
    for record in _records(path, disk, entry):
        end = record.offset + record.length
        if end > limit:
            break
        if isinstance(record, EventRecord) and record.last_frag:
            at = end
    return at


def _records(path: str, disk: Disk, entry: DirectoryEntry) -> Iterator[EventRecord | TungstenRotate]:
    """Yield what is sound in a segment, passing over what is not as far as lengths lead."""
    at = FILE_HEADER.size
    with closing(TungstenSegment(path, entry.number, disk, checked=True)) as reader:
        while not isinstance(found := reader.record(at), Short | BadLength):
            if isinstance(found, EventRecord | TungstenRotate):
                yield found
            at = found.offset + found.length


@dataclass(slots=True)
class _Held:
    """Which whole transactions some part of a log holds."""

    spans: list[Span] = field(default_factory=list)
    last: EventRecord | None = None
    bytes: int = 0
    unread: int = 0
    _open: tuple[int, int] | None = None

    def take(self, path: str, disk: Disk, entry: DirectoryEntry, start: int, end: int) -> None:
        """Look at the bytes `start` to `end` of a segment."""
        self.bytes += end - start
        read_to = max(start, FILE_HEADER.size)
        if isinstance(entry.header, FileHeader):
            with closing(TungstenSegment(path, entry.number, disk, checked=True)) as reader:
                for record in _records(path, disk, entry):
                    if record.offset < start:
                        continue
                    if record.offset + record.length > end:
                        break
                    read_to = record.offset + record.length
                    if isinstance(record, EventRecord):
                        self._event(record, place_of(reader, record).seqno)
        self.unread = max(end - read_to, 0)

    def _event(self, record: EventRecord, next_seqno: int) -> None:
        if record.fragno == 0:
            self._open = (record.seqno, 0)
        if self._open != (record.seqno, record.fragno):
            self._open = None  # its beginning is not here
            return
        self._open = (record.seqno, record.fragno + 1)
        if not record.last_frag:
            return
        self.last, self._open = record, None
        first, last = Seqno(record.seqno), Seqno(max(next_seqno - 1, record.seqno))
        epoch = Epoch(max(record.epoch, 0))
        before = self.spans[-1] if self.spans else None
        if before is not None and before.epoch == epoch and before.last + 1 == first:
            self.spans[-1] = Span(epoch=epoch, first=before.first, last=last)
        else:
            self.spans.append(Span(epoch=epoch, first=first, last=last))


def _plan(keep: Keep, steps: list[Step], stays: _Held, goes: _Held, *, begins: int | None) -> RepairPlan:
    assert stays.last is not None, "a plan keeps something"
    after = keep is Keep.FRONT
    first, last = stays.spans[0].first, stays.spans[-1].last
    known = sorted((span.first, span.last) for span in goes.spans)
    missing: list[tuple[Seqno, Seqno]] = []
    wanted = last + 1 if after else min(first if begins is None else begins, known[0][0] if known else first)
    for low, high in known if after else [*known, (first, last)]:
        if low > wanted:
            missing.append((Seqno(wanted), Seqno(low - 1)))
        wanted = max(wanted, high + 1)
    return RepairPlan(
        keep=keep,
        steps=tuple(steps),
        lost=Lost(
            gtids=tuple(goes.spans),
            unreadable=tuple(missing),
            unread_bytes=goes.unread,
            bytes=goes.bytes,
        ),
        first_seqno=first,
        last_seqno=last,
        epoch=Epoch(max(stays.last.epoch, 0)),
        ahead=(),
    )
