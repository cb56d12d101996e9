"""What a crash, a hand or decay can leave of a log, and what to do about it when a writer opens it.

Owns the decision; finding out is `segment`'s, carrying out is `log`'s. The hard idea: half a record at the end of
the newest segment is what a crash leaves and is cut; half a record anywhere that was proven durable is damage and
is refused. A sync record that stands *behind* the bad place proves it durable, whatever lies between.

Source: design/log-format.md, "Ends of a log: four different things, four names".
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

from tranlog.ids import NO_EPOCH, NO_SEQNO, Epoch, Lsn, Seqno, lsn_offset, lsn_segment
from tranlog.log.format import RecordHeader, RollbackMark, segment_name
from tranlog.log.rollback import contradiction
from tranlog.log.spill import Reference


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRecord:
    """A record that could not be taken, the first one on the way."""

    offset: int
    why: str


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
    """The header is missing or zero, and nothing but zeros stands behind it: a rotation that was cut short."""
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
        """The seqno before the segment's first: its header's or, behind a rollback mark, the matchpoint's."""
        return self.prev_seqno if self.mark is None else self.mark.matchpoint_seqno


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentScan:
    """What walking a segment from its header found. Offsets are bytes in the segment.

    `good_end` lies behind the last complete transaction and the sync records that follow it; `end` behind the last
    good record. `open_fragments` > 0: a transaction that did not complete begins at `good_end`. `proven` is the
    highest offset that a sync record before `end` proves durable, `proven_behind` the highest that one behind the
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
    first_method: int | None
    """crc_method of the first event; None without any."""
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
    behind: Checkpoint | None = None
    """The walk began at this one's record: `starts`, the counts and prev_seqno are of what stands from there on."""

    @property
    def header_seqno(self) -> Seqno:
        """What the segment's header names as the last seqno before it; of a walk behind a checkpoint, that one's."""
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
class Refuse:
    """Damage: open nothing, change nothing. The fields are CorruptRecordError's."""

    segment: str
    offset: int
    seqno: Seqno | None
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Continue:
    """Go on behind `end` of `segment`, the newest one with a whole header.

    What stands behind `end` is cut off: kept in cut/ if `torn` says why, else it is zeros. Bytes from `proven` on
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
    mark_epoch: Epoch = NO_EPOCH
    """Of the last rollback mark: the next writer's lies above it."""


RecoveryPlan: TypeAlias = NewLog | Refuse | Continue


def plan(survey: Survey) -> RecoveryPlan:
    """Decide what opening the log for writing does first."""
    glances = survey.glances
    if not glances:
        return NewLog(number=1)
    refusal = _row_problem(glances)
    if refusal is not None:
        return refusal
    newest = glances[-1]
    if newest.torn_header and len(glances) == 1:
        return NewLog(number=newest.number)
    scans = survey.scans
    assert scans, "a row without problems has a segment with a whole header"
    for scan in scans[:-1] if scans[-1].number == newest.number else scans:
        refusal = _closed_segment_problem(scan)
        if refusal is not None:
            return refusal
    for scan, following in pairwise(scans):
        said = following.header_seqno
        if scan.last_seqno != said:
            why = f"bad header: prev_seqno {said}, but the previous segment ends at {scan.last_seqno}"
            return Refuse(segment=segment_name(following.number), offset=0, seqno=_seqno(scan.last_seqno), why=why)
    last = scans[-1]
    if last.bad is not None and last.bad.offset < max(last.proven, last.proven_behind):
        return Refuse(
            segment=segment_name(last.number),
            offset=last.bad.offset,
            seqno=_seqno(last.last_seqno),
            why=f"{last.bad.why}, below a place that was proven durable",
        )
    torn: str | None = None
    if last.bad is not None:
        torn = f"torn tail: {last.bad.why}"
    elif last.open_fragments:
        torn = f"open transaction: {last.open_fragments} fragments of seqno {last.last_seqno + 1} without a last one"
    holder = next((scan for scan in reversed(scans) if scan.last_header is not None), last)
    last_header, last_first_lsn = holder.last_header, holder.last_first_lsn
    marks = survey.marks
    if last_header is None or (marks and lsn_segment(marks[-1].dead_end) > holder.number):
        # The mark was written and nothing of its epoch: the rollback is complete all the same.
        last_header = survey.matchpoint
        last_first_lsn = None if last_header is None else marks[-1].matchpoint_lsn
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
        mark_epoch=marks[-1].epoch if marks else NO_EPOCH,
    )


def _seqno(seqno: Seqno) -> Seqno | None:
    return None if seqno == NO_SEQNO else seqno


def _row_problem(glances: tuple[SegmentGlance, ...]) -> Refuse | None:
    """Find what is wrong with the row of segments, as far as their first and last bytes show it."""
    before: SegmentGlance | None = None
    for glance in glances:
        name = segment_name(glance.number)
        newest = glance is glances[-1]
        known = None if before is None or before.prev_seqno is None else _seqno(before.prev_seqno)
        if before is not None and glance.number != before.number + 1:
            missing = segment_name(before.number + 1)
            return Refuse(segment=missing, offset=0, seqno=known, why="the segment is missing, later ones are there")
        if glance.problem is not None:
            return Refuse(segment=name, offset=0, seqno=known, why=glance.problem)
        if not newest and (glance.torn_header or glance.next_name != segment_name(glance.number + 1)):
            why = "bad header: cut short or zeros" if glance.torn_header else _no_rotate(glance)
            offset = 0 if glance.torn_header else glance.size
            return Refuse(segment=name, offset=offset, seqno=known, why=why)
        if not newest and glance.bad is not None:
            return Refuse(segment=name, offset=glance.bad.offset, seqno=glance.prev_seqno, why=glance.bad.why)
        if glance.prev_seqno is not None and glance.after is not None:
            if glance.first_seqno is not None and glance.first_seqno != glance.after + 1:
                why = f"bad header: prev_seqno {glance.prev_seqno}, but the segment begins with {glance.first_seqno}"
                if glance.mark is not None:
                    why = f"a rollback mark to seqno {glance.after}, but the segment goes on with {glance.first_seqno}"
                return Refuse(segment=name, offset=0, seqno=known, why=why)
            if before is not None and before.after is not None and glance.prev_seqno < before.after:
                why = f"bad header: prev_seqno {glance.prev_seqno} behind the previous segment's {before.after}"
                return Refuse(segment=name, offset=0, seqno=known, why=why)
            if glance.mark is not None and glance.mark.last_seqno != glance.prev_seqno:
                why = f"a rollback mark that abandons up to seqno {glance.mark.last_seqno} behind {glance.prev_seqno}"
                return Refuse(segment=name, offset=lsn_offset(glance.mark.dead_end), seqno=known, why=why)
        before = glance
    wrong = contradiction([glance.mark for glance in glances if glance.mark is not None])
    if wrong is not None:
        mark, why = wrong
        number, offset = lsn_segment(mark.dead_end), lsn_offset(mark.dead_end)
        return Refuse(segment=segment_name(number), offset=offset, seqno=mark.matchpoint_seqno, why=why)
    return None


def _no_rotate(glance: SegmentGlance) -> str:
    if glance.next_name is not None:
        return f"its rotate record leads to {glance.next_name}"
    return "it does not end in a rotate record, though a later segment is there"


def _closed_segment_problem(scan: SegmentScan) -> Refuse | None:
    """Find what is wrong inside a segment that is not the newest, where everything is proven."""
    if scan.bad is not None:
        offset, why = scan.bad.offset, scan.bad.why
    elif scan.open_fragments:
        offset, why = scan.good_end, "the segment ends inside a transaction"
    elif scan.next_name is None:
        offset, why = scan.end, "the segment ends without a rotate record"
    else:
        return None
    return Refuse(segment=segment_name(scan.number), offset=offset, seqno=_seqno(scan.last_seqno), why=why)
