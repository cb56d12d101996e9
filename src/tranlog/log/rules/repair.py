"""What to do about a damaged log: which bytes to write again, what to cut off, and what that loses.

Owns the decision, as a value that can be shown before anything is done; finding the damage is `verify`'s, carrying
out is `repairing`'s. The hard idea: not every damage costs something. Headers, sync and rotate records say nothing
that their neighbours do not say as well, so they are written again where both sides prove that no transaction is
missing. Only where one is missing does somebody have to choose: what stands before the damage, or what after it.

Source: docs/format.md.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from tranlog.ids import NO_HISTORY, NO_SEQNO, Epoch, Seqno, segment_name
from tranlog.log.records.format import (
    EVENT_MIN,
    FIRST_SYNC_BYTES,
    HEADER,
    SEGMENT_BYTES_MAX,
    SYNC_BYTES,
    RollbackMark,
    encode_header,
    encode_rotate,
    encode_sync,
)
from tranlog.log.rules.damage import BadPlace, Damage, LogFindings, SegmentFindings, TransactionRun
from tranlog.lsn import lsn, lsn_offset, lsn_segment


class Keep(enum.StrEnum):
    """Which part of a log stays where transactions are missing from its middle."""

    FRONT = "front"
    """Everything before the first damage: the log ends there."""
    BACK = "back"
    """Every segment after the last damage: the log begins there, as if purged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite:
    """Put `raw` in place of `size` bytes at `offset`; nothing is lost. `ends`: the file ends after it."""

    segment: int
    offset: int
    size: int
    raw: bytes
    ends: bool
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CutOff:
    """Take `size` bytes, all from `offset` on, off the end of a segment."""

    segment: int
    offset: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Remove:
    """Take a whole segment away."""

    segment: int
    size: int


Step: TypeAlias = Rewrite | CutOff | Remove


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Transactions of one epoch, both ends included: GTID(epoch, first) to GTID(epoch, last)."""

    epoch: Epoch
    first: Seqno
    last: Seqno


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """What the log does not hold after a repair and did, or should have, before.

    `gtids`: transactions that are whole in what is cut and kept. `unreadable`: seqnos, as (first, last), of which no
    whole transaction was found. `unread_bytes`: at that end of the log, of which nobody can say what they held.
    `bytes`: cut off or taken away, those included.
    """

    gtids: tuple[Span, ...]
    unreadable: tuple[tuple[Seqno, Seqno], ...]
    unread_bytes: int
    bytes: int

    @property
    def seqnos(self) -> int:
        """How many transactions."""
        spans = sum(span.last - span.first + 1 for span in self.gtids)
        return spans + sum(last - first + 1 for first, last in self.unreadable)


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairPlan:
    """What a repair does, in this order, and what it costs.

    Before the first step the stored index is removed and `epoch` is written down as assigned. `first_seqno` and
    `last_seqno` are what the log holds afterwards; last < first: nothing. `ahead`: holds that stand at what is lost.
    """

    keep: Keep
    steps: tuple[Step, ...]
    lost: Lost
    first_seqno: Seqno
    last_seqno: Seqno
    epoch: Epoch
    ahead: tuple[str, ...]
    spill: tuple[int, ...] = ()
    """Spill segments that the transactions refer to which go: copied before they do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NothingToRepair:
    """There is no damage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CannotRepair:
    """What was asked for cannot be done."""

    why: str


Decision: TypeAlias = RepairPlan | NothingToRepair | CannotRepair


@dataclass(frozen=True, slots=True)
class _Break:
    """A place where transactions are missing: `row` keeps its bytes up to `offset` (None: none) as part of the front,
    and the back begins with segment `next_row`."""

    row: int
    offset: int | None
    next_row: int
    mark_lost: bool = False
    """A rollback mark may have stood here: twins of what came before stand after."""
    hidden: bool = False
    """What stood here is wholly unknown; a rollback mark may have."""
    cap: Seqno | None = None
    """The last seqno before `offset`, where a run of good transactions is cut in two there."""


def plan(findings: LogFindings, *, keep: Keep, now_ms: int, holds: Iterable[tuple[str, Seqno | None]] = ()) -> Decision:
    """Decide how to repair a log so that it opens and verifies clean, and what of its spill to keep. Pure.

    `holds` as (name, restart_seqno); None, for one that is damaged, holds everything. `now_ms` is the stamp of sync
    records that are written again: retention counts from it, so that nothing goes too early.
    """
    decided = _plan(findings, keep, now_ms, holds)
    if not isinstance(decided, RepairPlan):
        return decided
    cut = {
        step.segment: 0 if isinstance(step, Remove) else step.offset
        for step in decided.steps
        if not isinstance(step, Rewrite)
    }
    gone = [
        spill
        for place, spill in findings.references
        if cut.get(lsn_segment(place), SEGMENT_BYTES_MAX) <= lsn_offset(place)
    ]
    return replace(decided, spill=tuple(one for one in findings.spill if any(one in spill for spill in gone)))


def _plan(findings: LogFindings, keep: Keep, now_ms: int, holds: Iterable[tuple[str, Seqno | None]]) -> Decision:
    segments = findings.segments
    rewrites: list[tuple[int, Rewrite]] = []
    breaks: list[_Break] = []
    for row in range(len(segments)):
        _judge(segments, row, now_ms, findings.history or NO_HISTORY, rewrites, breaks)
    if not findings.problems:
        return NothingToRepair()
    breaks += _unexplained(findings, rewrites, breaks)
    known = list(holds)
    if not breaks:
        return _decided(findings, keep, [step for _, step in rewrites], len(segments) - 1, None, known)
    if keep is Keep.FRONT:
        for one in breaks:
            if one.mark_lost or (one.hidden and findings.marks):
                name = segment_name(segments[one.row].number)
                return CannotRepair(
                    why=f"at {name} a rollback mark may be damaged or missing, and without it what it abandoned would "
                    "come back; restore that segment, or keep what lies after the damage (--keep back)"
                )
        first = min(breaks, key=lambda one: (one.row, -1 if one.offset is None else one.offset))
        return _keep_front(findings, first, rewrites, known)
    return _keep_back(findings, max(one.next_row for one in breaks), rewrites, known)


def _unexplained(
    findings: LogFindings, rewrites: Sequence[tuple[int, Rewrite]], breaks: Sequence[_Break]
) -> list[_Break]:
    """Return a break at each fault of a segment in which nothing else is to be done: no fault is passed over."""
    rows = {segment_name(one.number): row for row, one in enumerate(findings.segments)}
    seen = {row for row, _ in rewrites} | {one.row for one in breaks}
    found: dict[int, _Break] = {}
    for problem in findings.problems:
        row = rows.get(problem.segment)
        if row is not None and row not in seen and problem.kind is not Damage.END:
            cap = problem.seqno if problem.kind is Damage.HASH else None
            found.setdefault(row, _Break(row, problem.offset or None, row + 1, cap=cap))
    return list(found.values())


def _keep_front(
    findings: LogFindings,
    first: _Break,
    rewrites: Sequence[tuple[int, Rewrite]],
    holds: list[tuple[str, Seqno | None]],
) -> Decision:
    segments = findings.segments
    row, offset = first.row, first.offset
    if offset is None:
        row, offset = row - 1, segments[row - 1].size
    mark = _resurrected(segments, max(row, 0))
    if mark is not None and mark.dead_start < lsn(segments[row].number, min(offset, segments[row].size)):
        # With its mark gone, what it abandoned would come back: that goes, too.
        number = lsn_segment(mark.dead_start)
        row = next((at for at, one in enumerate(segments) if one.number == number), -1)
        offset = lsn_offset(mark.dead_start)
        first = _Break(row, offset, row, cap=mark.matchpoint_seqno)
    if row < 0:
        return CannotRepair(
            why="nothing can be read before the damage; keep what lies after it (--keep back), or clear the log by "
            "`tranlog reset --after`"
        )
    steps: list[Step] = [
        step
        for at, step in rewrites
        if at < row or (at == row and (step.offset + step.size <= offset or first.offset is None))
    ]
    size = segments[row].size
    if offset < size:
        # The shortened segment lacks its rotate record, so the log stays closed until the later ones are gone.
        steps.append(CutOff(segment=segments[row].number, offset=offset, size=size - offset))
    steps += [Remove(segment=one.number, size=one.size) for one in reversed(segments[row + 1 :])]
    return _decided(findings, Keep.FRONT, steps, row, offset if first.offset is not None else None, holds, first.cap)


def _keep_back(
    findings: LogFindings,
    row: int,
    rewrites: Sequence[tuple[int, Rewrite]],
    holds: list[tuple[str, Seqno | None]],
) -> Decision:
    segments = findings.segments
    if row >= len(segments):
        return CannotRepair(
            why="the damage reaches into the newest segment, after which there is none; keep what lies before the "
            "first damage (--keep front)"
        )
    first = _first_of(segments[row])
    if first is None:
        return CannotRepair(
            why="the damage reaches to the newest segment, of which nothing can be read; keep what lies before the "
            "first damage (--keep front)"
        )
    for one in segments[row:]:  # what a mark abandons down to before the first segment, a new stream begins after
        if one.mark is not None and lsn_segment(one.mark.dead_start) < segments[row].number:
            first = min(first, Seqno(one.mark.matchpoint_seqno + 1))
    for name, restart in holds:
        if restart is None or restart < first:
            needed = "everything: it is damaged" if restart is None else f"seqno {restart}"
            return CannotRepair(
                why=f"the log would begin at seqno {first}, but {name} still needs {needed}; drop that hold first, or "
                "keep what lies before the damage (--keep front)"
            )
    steps: list[Step] = [step for at, step in rewrites if at >= row]
    steps += [Remove(segment=one.number, size=one.size) for one in segments[:row]]
    kept = [run for one in segments[row:] for run in one.runs]
    gone = [run for one in segments[:row] for run in one.runs]
    begins = min((run.first for run in gone), default=first)
    unread = 0
    for one in segments[:row]:
        if one.prev_seqno is not None:
            begins = min(begins, Seqno(one.prev_seqno + 1))
        elif one.first_seqno is None:  # nothing tells with which seqno the log began
            unread += one.runs[0].start if one.runs else one.size
        if one.prev_seqno is not None or one.runs:
            break
    lost = _lost(gone, begins, Seqno(first - 1), sum(one.size for one in segments[:row]), unread)
    last = _last_living(segments[row:], kept, Seqno(first - 1))
    return RepairPlan(
        keep=Keep.BACK,
        steps=tuple(steps),
        lost=lost,
        first_seqno=first,
        last_seqno=last,
        epoch=findings.epoch,
        ahead=(),
    )


def _decided(
    findings: LogFindings,
    keep: Keep,
    steps: Sequence[Step],
    row: int,
    offset: int | None,
    holds: list[tuple[str, Seqno | None]],
    cap: Seqno | None = None,
) -> RepairPlan:
    """Return the plan that keeps segments up to `row`, and of that one the bytes before `offset` (None: all)."""
    segments = findings.segments
    kept: list[TransactionRun] = []
    gone: list[TransactionRun] = []
    for at, one in enumerate(segments):
        for run in one.runs:
            stays = at < row or (at == row and (offset is None or run.start < offset))
            if stays and at == row and cap is not None and run.last > cap:
                gone.append(replace(run, first=max(run.first, Seqno(cap + 1)), epochs=_epochs_from(run, cap + 1)))
                if run.first > cap:
                    continue
                run = replace(run, last=cap)
            (kept if stays else gone).append(run)
    first = _first_of(segments[0])
    first = min((run.first for run in kept), default=Seqno(NO_SEQNO + 1) if first is None else first)
    last = _last_living(segments[: row + 1], kept, Seqno(first - 1))
    ends = [run.last for run in gone] + [findings.visible]
    # A header by itself proves nothing; the first event, where it is whole, does.
    ends += [Seqno(one.first_seqno - 1) for one in segments[row + 1 :] if one.first_seqno is not None]
    # So does a sync record: the newest segment may hold nothing else.
    ends += [one.synced for one in segments[row + 1 :]]
    cut = sum(step.size for step in steps if isinstance(step, CutOff | Remove))
    if segments[-1].runs:
        ends.append(segments[-1].last)
    lost = _lost(gone, Seqno(last + 1), max(ends), cut, _unread(segments[-1]) if cut else 0)
    # Where nobody can say which epochs were lost: each of them had a no-op, and so a seqno and a record.
    unread = sum(end - begin + 1 for begin, end in lost.unreadable) + lost.unread_bytes // EVENT_MIN
    return RepairPlan(
        keep=keep,
        steps=tuple(steps),
        lost=lost,
        first_seqno=first,
        last_seqno=last,
        epoch=Epoch(findings.epoch + unread),
        ahead=tuple(name for name, restart in holds if restart is not None and restart > last),
    )


def _unread(newest: SegmentFindings) -> int:
    """Return the bytes at the end of the log after which nothing tells which transactions they held."""
    if not newest.bad or newest.bad[-1].next_event is not None or _was_sync(newest.bad[-1]):
        return 0
    bad = newest.bad[-1]
    return (newest.size if bad.resumes_at is None else bad.resumes_at) - bad.offset


def _lost(gone: Sequence[TransactionRun], first: Seqno, last: Seqno, size: int, unread: int) -> Lost:
    """Describe what goes of the seqnos `first` to `last`."""
    spans: list[Span] = []
    for span in sorted((span for run in gone for span in _spans(run)), key=lambda one: (one.first, one.epoch)):
        before = spans[-1] if spans else None
        if before is not None and before.epoch == span.epoch and before.last + 1 == span.first:
            spans[-1] = Span(epoch=span.epoch, first=before.first, last=span.last)
        elif span.last >= first:
            spans.append(Span(epoch=span.epoch, first=max(span.first, first), last=span.last))
    unreadable: list[tuple[Seqno, Seqno]] = []
    at = first
    for span in spans:
        if span.first > at:
            unreadable.append((at, Seqno(span.first - 1)))
        at = max(at, Seqno(span.last + 1))
    if at <= last:
        unreadable.append((at, last))
    return Lost(gtids=tuple(spans), unreadable=tuple(unreadable), unread_bytes=unread, bytes=size)


def _spans(run: TransactionRun) -> Iterator[Span]:
    for at, (first, epoch) in enumerate(run.epochs):
        last = run.epochs[at + 1][0] - 1 if at + 1 < len(run.epochs) else run.last
        if last >= max(first, run.first):
            yield Span(epoch=epoch, first=max(first, run.first), last=Seqno(last))


# --- one segment and its neighbours -----------------------------------------------------------------------


def _true_prev(one: SegmentFindings) -> Seqno | None:
    """Return the seqno that a segment's header should name: its first record says it or, without one, the header."""
    if one.mark is not None:
        return one.mark.last_seqno
    return one.prev_seqno if one.first_seqno is None else Seqno(one.first_seqno - 1)


def _first_of(one: SegmentFindings) -> Seqno | None:
    """Return the first seqno that a segment holds or will hold in the stream; None where nothing says it."""
    prev = one.mark.matchpoint_seqno if one.mark is not None else _true_prev(one)
    return None if prev is None else Seqno(prev + 1)


def _epochs_from(run: TransactionRun, first: int) -> tuple[tuple[Seqno, Epoch], ...]:
    """Return a run's epochs from a seqno of it on."""
    here = [(seqno, epoch) for seqno, epoch in run.epochs if seqno <= first]
    return ((Seqno(first), here[-1][1]), *run.epochs[len(here) :]) if here else run.epochs


def _last_living(segments: Sequence[SegmentFindings], kept: Sequence[TransactionRun], without: Seqno) -> Seqno:
    """Return the last transaction of the stream in what is kept: physically the last, or a matchpoint after it."""
    mark = segments[-1].mark
    if mark is not None and not any(run.first == one.first for run in segments[-1].runs for one in kept[-1:]):
        return mark.matchpoint_seqno
    return kept[-1].last if kept else without


def _resurrected(segments: Sequence[SegmentFindings], row: int) -> RollbackMark | None:
    """Return the mark, of those in what goes after segment `row`, that abandons most of what would stay."""
    marks = [one.mark for one in segments[row + 1 :] if one.mark is not None]
    return min(marks, key=lambda mark: mark.dead_start, default=None)


def _judge(
    segments: Sequence[SegmentFindings],
    row: int,
    now_ms: int,
    history: bytes,
    rewrites: list[tuple[int, Rewrite]],
    breaks: list[_Break],
) -> None:
    """Find what can be written again in a segment, and where transactions are missing from it or before it."""
    one = segments[row]
    newest = row == len(segments) - 1
    before = segments[row - 1] if row else None
    adjoins = before is not None and before.number == one.number - 1
    if before is not None and not adjoins:
        breaks.append(_Break(row, None, row, hidden=True))
    prev = _true_prev(one)
    if prev is None:
        if newest and one.torn_header:
            return
        breaks.append(_Break(row, None, row + 1, hidden=True))
        return
    if one.prev_seqno != prev:
        why = f"the header of {segment_name(one.number)}"
        rewrites.append(
            (row, Rewrite(segment=one.number, offset=0, size=HEADER.size, raw=encode_header(prev), ends=False, why=why))
        )
    if before is not None and adjoins and before.last != prev:
        breaks.append(_Break(row, None, row))
    following = None if newest else segments[row + 1]
    complete = (
        following is not None
        and following.number == one.number + 1
        and following.first_seqno is not None
        and _true_prev(following) == one.last
        and one.open_fragments == 0
    )
    for at, bad in enumerate(one.bad):
        if bad.next_name == segment_name(one.number + 1):
            rewrites.append((row, _rewrite_end(one, bad.offset, b"", "bytes after the rotate record")))
            return
        if _was_sync(bad):
            first = history if bad.offset == HEADER.size else b""
            place = lsn(one.number, bad.offset)
            # In the newest segment nothing that comes later can say another hash.
            known = bad.last if newest or bad.h is not None else NO_SEQNO
            raw = encode_sync(place, place, now_ms, first, seqno=known, h=bad.h or 0, checksums=bad.checksums)
            why = f"a sync record of {segment_name(one.number)}"
            rewrites.append(
                (row, Rewrite(segment=one.number, offset=bad.offset, size=len(raw), raw=raw, ends=False, why=why))
            )
            continue
        last_bad = at == len(one.bad) - 1
        if complete and last_bad and bad.resumes_at is None and bad.last == one.last and bad.open_fragments == 0:
            rewrites.append((row, _rewrite_rotate(one, bad.good_end)))
            return
        behind = bad.next_event
        twins = behind is not None and behind[0] <= bad.last and bad.resumes_at != bad.offset
        at_start = not any(run.start < bad.offset and run.first <= bad.last for run in one.runs)
        breaks.append(
            _Break(row, bad.good_end, row + 1, mark_lost=twins and at_start, hidden=at_start and bad.resumes_at is None)
        )
    if not newest and one.next_name != segment_name(one.number + 1):
        if complete:
            rewrites.append((row, _rewrite_rotate(one, one.good_end if one.next_name is None else _before_rotate(one))))
        else:
            breaks.append(_Break(row, one.good_end, row + 1))


def _was_sync(bad: BadPlace) -> bool:
    """Whether nothing but a sync record can have stood here: so few bytes, and no transaction is missing."""
    if bad.resumes_at != bad.offset + (FIRST_SYNC_BYTES if bad.offset == HEADER.size else SYNC_BYTES):
        return False
    return bad.next_event is None or bad.next_event == (bad.last + 1, bad.open_fragments)


def _before_rotate(one: SegmentFindings) -> int:
    assert one.next_name is not None
    return one.end - len(encode_rotate(one.next_name))


def _rewrite_rotate(one: SegmentFindings, offset: int) -> Rewrite:
    return _rewrite_end(
        one, offset, encode_rotate(segment_name(one.number + 1)), f"the rotate record of {segment_name(one.number)}"
    )


def _rewrite_end(one: SegmentFindings, offset: int, raw: bytes, why: str) -> Rewrite:
    return Rewrite(segment=one.number, offset=offset, size=one.size - offset, raw=raw, ends=True, why=why)
