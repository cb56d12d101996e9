"""What a crash, a hand or decay can leave of a log: the one judge of it, and what a writer does who opens it.

Owns the verdict; opening, checking, repairing and reading carry it out. Finding out is `scan`'s. The hard idea: half a
record at the end of the newest segment is what a crash leaves and is cut; half a record anywhere that was proven
durable is damage and is refused. A sync record that stands *after* the bad place proves it durable, whatever lies
between, and so does what the writer has published beside the segments. A glance at a segment only gives a suspicion:
what is wrong with it is said by a walk, and so all name the same place.

Source: docs/format.md.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from tranlog.ids import NO_EPOCH, NO_SEQNO, Epoch, Lsn, Seqno, segment_name
from tranlog.log.records.format import RecordHeader, RollbackMark
from tranlog.log.records.spill import Reference
from tranlog.log.rules.damage import Damage, Problem
from tranlog.log.rules.rollback import contradiction
from tranlog.lsn import lsn_offset, lsn_segment


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRecord:
    """A record that could not be taken, the first one on the way."""

    offset: int
    why: str
    kind: Damage = Damage.RECORD
    seqno: Seqno | None = None
    """Its own, where that can be read."""
    blank: bool = False
    """It is zeros, or ends in them, up to a place at which a copy may have come upon what was written since."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What stands beside the segments about how far they went.

    The log held everything up to `seqno`, NO_SEQNO where nobody knows, something of `epoch`, and all rollback marks up
    to number `mark`. `mark_lost`: that one is not there any more. `copied`: the directory is a copy of the log's, and
    may have been made while that was written.
    """

    seqno: Seqno = NO_SEQNO
    epoch: Epoch = NO_EPOCH
    mark: int = 0
    mark_lost: bool = False
    copied: bool = False

    def ends_later(self, last: Seqno, epoch: Epoch) -> bool:
        """Whether it knows of more than a log that ends at `last`, with `epoch` as its highest."""
        return self.mark_lost or self.epoch > epoch or self.seqno > last

    def beside(self, marks: Sequence[RollbackMark]) -> Published:
        """Return what still counts of it in a log with these marks, in order: a later mark has rolled it back.

        Without any of them nobody knows whether the last one was lost or purged.
        """
        if not marks or marks[-1].number == self.mark:
            return self
        return NOTHING_PUBLISHED if marks[-1].number > self.mark else replace(self, mark_lost=True)


NOTHING_PUBLISHED = Published()


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What the stored index says of the log's end: it was durable when that was written, and nothing before it changes.

    The record of `seqno`, of `epoch`, begins at `offset` of segment `number`; the segment was durable up to `end`.
    """

    number: int
    offset: int
    seqno: Seqno
    epoch: Epoch
    end: int
    history: bytes
    """Of the log that it was stored for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentGlance:
    """What a segment's first and last bytes say, without walking it."""

    number: int
    size: int
    prev_seqno: Seqno | None
    """None: the header is not whole, see `problem`."""
    torn_header: bool = False
    """The header is missing or zero, and nothing but zeros stands after it: a rotation that was cut short."""
    problem: str | None = None
    first_seqno: Seqno | None = None
    """Seqno of the first event; None where there is none, or none that can be believed."""
    first_offset: int | None = None
    """Where that event begins."""
    bad: BadRecord | None = None
    """The first event, where it is not to be believed."""
    next_name: str | None = None
    """What the rotate record names that ends the file; None: it does not end in one."""
    written_at: int | None = None
    """Of the first sync record, if the segment begins with one."""
    mark: RollbackMark | None = None
    """The rollback mark that the segment begins with."""

    @property
    def after(self) -> Seqno | None:
        """The seqno before the segment's first: its header's or, after a rollback mark, the matchpoint's."""
        return self.prev_seqno if self.mark is None else self.mark.matchpoint_seqno


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentScan:
    """What walking a segment from its header found. Offsets are bytes in the segment.

    `good_end` lies after the last complete transaction and the sync records that follow it; `end` after the last
    good record. `open_fragments` > 0: a transaction that did not complete begins at `good_end`. `proven` is the
    highest offset that a sync record before `end` proves durable, `proven_behind` the highest that one after the
    bad record does.
    """

    number: int
    prev_seqno: Seqno
    size: int
    records: int
    fragments: int
    good_end: int
    end: int
    last_seqno: Seqno
    last_first_lsn: Lsn | None
    """First record of the last complete transaction."""
    last_header: RecordHeader | None
    """Header of the last fragment of the last complete transaction."""
    open_fragments: int
    proven: int
    proven_behind: int
    proven_seqno: Seqno
    """Last transaction below `proven`; prev_seqno where none is."""
    closed_cleanly: bool
    """The last record is a sync record that proves everything before it."""
    bad: BadRecord | None
    next_name: str | None
    """What a rotate record at the end names."""
    unchecked: int
    """Events without a checksum."""
    starts: array[int]
    """Where the complete transactions begin, from prev_seqno + 1 on: for the index."""
    epochs: tuple[tuple[Seqno, Epoch], ...] = ()
    """Each seqno at which an epoch begins that was not there before, with that epoch."""
    references: tuple[tuple[RecordHeader, Reference], ...] = ()
    """The referring records, and what they say."""
    mark: RollbackMark | None = None
    """The rollback mark that the segment begins with; prev_seqno is then its matchpoint, not what the header says."""
    epoch: Epoch = NO_EPOCH
    """The highest that was seen, of transactions and marks."""
    behind: Checkpoint | None = None
    """The walk began at this one's record: `starts`, the counts and prev_seqno are of what stands from there on."""

    @property
    def header_seqno(self) -> Seqno:
        """What the segment's header names as the last seqno before it; of a walk after a checkpoint, that one's."""
        return self.prev_seqno if self.mark is None else self.mark.last_seqno


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What is in a log's directory: a glance at every segment, and a scan of the newest ones.

    Scans reach back to the last complete transaction, oldest first, and leave out a newest segment whose header is
    torn.
    """

    glances: tuple[SegmentGlance, ...]
    scans: tuple[SegmentScan, ...]
    matchpoint: RecordHeader | None = None
    """Of the last living transaction, where it stands before a rollback mark that nothing follows yet."""
    history: bytes | None = None
    """What the segments bear; None while none of them has its first record."""
    suspects: tuple[SegmentScan, ...] = ()
    """Walks through earlier segments, of those that a glance found suspicious."""
    published: Published = NOTHING_PUBLISHED

    @property
    def partial(self) -> bool:
        """Whether a scan began at a checkpoint."""
        return any(scan.behind is not None for scan in self.scans)

    @property
    def marks(self) -> tuple[RollbackMark, ...]:
        """The rollback marks, in order."""
        return tuple(glance.mark for glance in self.glances if glance.mark is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewLog:
    """There is no record and no segment that says where to go on: start segment `number`."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Continue:
    """Go on after `end` of `segment`, the newest one with a whole header.

    What stands after `end` is cut off: kept in cut/ if `torn` says why, else it is zeros. Bytes from `proven` on
    were never proven durable: write them again before the next sync, since after a sync that failed the system may
    take them for written. `next_segment`: the segment ends in a rotate record; create that one, or write its torn
    header again. `last_seqno` is the last complete transaction's, with its last fragment's header and its first
    record's LSN; both None if the log holds none.
    """

    segment: int
    end: int
    size: int
    proven: int
    torn: str | None
    next_segment: int | None
    last_seqno: Seqno
    last_header: RecordHeader | None
    last_first_lsn: Lsn | None
    clean: bool
    """The log was closed by its writer."""
    mark: RollbackMark | None = None
    """The last rollback mark: the epoch of the next writer lies above its."""


RecoveryPlan: TypeAlias = NewLog | Problem | Continue
"""A Problem: refuse, and change nothing."""


def plan(survey: Survey) -> RecoveryPlan:
    """Decide what opening the log for writing does first."""
    glances = survey.glances
    if not glances:
        return NewLog(number=1)
    problems = judge(survey)
    if problems:
        return problems[0]
    if glances[-1].torn_header and len(glances) == 1:
        return NewLog(number=glances[-1].number)
    scans = survey.scans
    assert scans, "a row without problems has a segment with a whole header"
    last, marks = scans[-1], survey.marks
    last_header, last_first_lsn = last_transaction(survey)
    torn = torn_end(last)
    return Continue(
        segment=last.number,
        end=last.good_end,
        size=last.size,
        proven=min(last.proven, last.good_end),
        torn=torn,
        next_segment=last.number + 1 if last.next_name is not None else None,
        last_seqno=last.last_seqno,
        last_header=last_header,
        last_first_lsn=last_first_lsn,
        clean=last.closed_cleanly and torn is None,
        mark=marks[-1] if marks else None,
    )


def last_transaction(survey: Survey) -> tuple[RecordHeader | None, Lsn | None]:
    """Return the header of the last transaction's last fragment, and where its first stands; None without any."""
    holder = next((scan for scan in reversed(survey.scans) if scan.last_header is not None), None)
    marks = survey.marks
    if holder is not None and not (marks and lsn_segment(marks[-1].dead_end) > holder.number):
        return holder.last_header, holder.last_first_lsn
    # The mark was written and nothing of its epoch: the rollback is complete all the same.
    return survey.matchpoint, None if survey.matchpoint is None else marks[-1].matchpoint_lsn


# --- the judge -------------------------------------------------------------------------------------------


def judge(survey: Survey) -> list[Problem]:
    """Return what is wrong with a log, first segment to newest, as far as the survey looked."""
    glances = survey.glances
    published = survey.published.beside(survey.marks)
    scans = {scan.number: scan for scan in (*survey.suspects, *survey.scans)}
    problems: list[Problem] = []
    before: SegmentGlance | None = None
    end: SegmentScan | None = None  # the walk through the segment before, if that found nothing wrong
    epoch = NO_EPOCH
    for glance in glances:
        known = NO_SEQNO if before is None or before.prev_seqno is None else before.prev_seqno
        found: list[Problem | None] = []
        if before is not None and glance.number != before.number + 1:
            found.append(missing(before.number + 1, known))
            end = None
        newest = glance is glances[-1]
        found.append(
            header_problem(glance, known if end is None else end.last_seqno, newest=newest, told=end is not None)
        )
        scan = scans.get(glance.number)
        if scan is not None:
            epoch = max(epoch, scan.epoch)
            found.append(end_problem(scan, newest=newest, published=published, epoch=epoch))
        end = scan if found[-1] is None else None
        problems += [one for one in found if one is not None]
        before = glance
    problems += mark_problems(survey.marks)
    if glances[-1].torn_header:
        last = survey.scans[-1].last_seqno if survey.scans else NO_SEQNO
        problems += header_end_problem(glances[-1].number, last, published, epoch)
    return sorted(problems, key=lambda one: (one.segment, one.offset))


def missing(number: int, last: Seqno) -> Problem:
    """Return the problem of a segment that is not there; `last` is the last seqno known before it."""
    why = "the segment is missing, later ones are there"
    return Problem(segment=segment_name(number), offset=0, seqno=_seqno(last), why=why, kind=Damage.MISSING)


def header_problem(glance: SegmentGlance, last: Seqno, *, newest: bool, told: bool) -> Problem | None:
    """Return what is wrong with a segment's header; `told`: `last` is where the segment right before it ends."""
    if glance.prev_seqno is None:
        if newest and glance.torn_header:
            return None
        why, kind = glance.problem or "bad header: cut short or zeros", Damage.HEADER
    elif glance.mark is None and glance.first_seqno is not None and glance.first_seqno != glance.prev_seqno + 1:
        why = f"bad header: prev_seqno {glance.prev_seqno}, but the segment begins with {glance.first_seqno}"
        last, kind = glance.prev_seqno, Damage.HEADER
    elif told and glance.prev_seqno != last:
        why = f"bad header: prev_seqno {glance.prev_seqno}, but the previous segment ends at {last}"
        kind = Damage.HOLE if glance.prev_seqno > last else Damage.DUPLICATE
    else:
        return None
    return Problem(segment=segment_name(glance.number), offset=0, seqno=_seqno(last), why=why, kind=kind)


def suspicious(glance: SegmentGlance, following: SegmentGlance) -> bool:
    """Whether a segment that is not the newest has to be walked, by what its ends and the next header say."""
    return (
        glance.bad is not None
        or glance.next_name != segment_name(glance.number + 1)
        or glance.after is None
        or (glance.first_seqno is not None and glance.first_seqno != glance.after + 1)
        or (glance.mark is not None and glance.mark.last_seqno != glance.prev_seqno)
        or following.prev_seqno is None
        or following.prev_seqno < glance.after
    )


def end_problem(scan: SegmentScan, *, newest: bool, published: Published, epoch: Epoch) -> Problem | None:
    """Return what is wrong where a walk through a segment ended; None for each of the ordinary ends.

    `epoch` is the highest up to there.
    """
    last, bad = scan.last_seqno, scan.bad
    cut_back = newest and not published.ends_later(last, epoch)
    if bad is not None:
        if cut_back and bad.offset >= max(scan.proven, 0 if bad.blank and published.copied else scan.proven_behind):
            return None
        offset, why, kind = bad.offset, bad.why, bad.kind
        if newest and bad.offset < max(scan.proven, scan.proven_behind):
            why = f"{why}, below a place that was proven durable"
        last = last if bad.seqno is None else bad.seqno
    elif scan.open_fragments and not cut_back:
        text = f"{scan.open_fragments} fragments of seqno {last + 1} without a last one"
        offset, why, kind = scan.good_end, f"the segment ends inside: {text}", Damage.ROTATE
        last = Seqno(last + 1)
    elif newest and not cut_back:
        offset, why, kind = scan.end, _ends_early(published), Damage.END
    elif not newest and scan.next_name != segment_name(scan.number + 1):
        offset, kind = scan.end, Damage.ROTATE
        why = "the segment ends without a rotate record"
        if scan.next_name is not None:
            why = f"its rotate record leads to {scan.next_name}"
    else:
        return None
    return Problem(segment=segment_name(scan.number), offset=offset, seqno=_seqno(last), why=why, kind=kind)


def header_end_problem(number: int, last: Seqno, published: Published, epoch: Epoch) -> list[Problem]:
    """Return what is wrong with a log whose newest segment, `number`, has no header yet, and that ends at `last`."""
    if not published.ends_later(last, epoch):
        return []
    name, why = segment_name(number), _ends_early(published)
    return [Problem(segment=name, offset=0, seqno=_seqno(last), why=why, kind=Damage.END)]


def _ends_early(published: Published) -> str:
    if published.mark_lost:
        return f"the records end here, but rollback mark {published.mark} stood after them"
    return f"the records end here, but the log went up to seqno {published.seqno}"


def torn_end(scan: SegmentScan) -> str | None:
    """Return what a crash left at the end of the newest segment, in which nothing is wrong; None for a clean end."""
    if scan.bad is not None:
        return f"torn tail: {scan.bad.why}"
    if scan.open_fragments:
        return f"open transaction: {scan.open_fragments} fragments of seqno {scan.last_seqno + 1} without a last one"
    return None


def mark_problems(marks: Sequence[RollbackMark]) -> list[Problem]:
    """Return the first rollback mark, of those of a log in order, that cannot be true beside the earlier ones."""
    wrong = contradiction(marks)
    if wrong is None:
        return []
    mark, why = wrong
    number, offset = lsn_segment(mark.dead_end), lsn_offset(mark.dead_end)
    return [Problem(segment=segment_name(number), offset=offset, seqno=mark.matchpoint_seqno, why=why)]


def _seqno(seqno: Seqno) -> Seqno | None:
    return None if seqno == NO_SEQNO else seqno
