"""What a look at every record of a log found: its faults, and what was good between them. Values, no behaviour.

Owns the words for kinds of damage and the facts that a repair decides by; `verify` finds them, `repair` decides, and
what a fault is, `recovery` says. The hard idea: a fault alone does not say what it cost. That follows from what
stands on both sides of it: a bad record between seqno 7 and seqno 8 has cost nothing.

Source: docs/format.md.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from tranlog.errors import CorruptRecordError
from tranlog.ids import NO_SEQNO, Epoch, Lsn, Seqno
from tranlog.log.records.format import RollbackMark


class Damage(enum.StrEnum):
    """What kind of fault."""

    RECORD = "bad record"
    HEADER = "bad header"
    MISSING = "missing segment"
    HOLE = "hole"
    """Transactions are missing between two that are there."""
    DUPLICATE = "duplicate"
    """A seqno stands here that stood before, and nothing says that the first one was abandoned."""
    ROTATE = "bad end of segment"
    END = "bad end of log"
    INDEX = "bad stored index"
    HASH = "another history"
    """A sync record says another running hash than the records before it give."""
    SPILL = "bad spill"
    """What a spilled transaction refers to is missing or damaged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One fault: where it is, and the seqno there or, where that cannot be read, of the last good one before it."""

    segment: str
    offset: int
    seqno: Seqno | None
    why: str
    kind: Damage = Damage.RECORD

    def error(self) -> CorruptRecordError:
        """Return the error for it."""
        return CorruptRecordError(segment=self.segment, offset=self.offset, seqno=self.seqno, why=self.why)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionRun:
    """Good transactions one after the other in a segment, both ends included; `epochs` as (first seqno, epoch).

    `start` is where the walk that found them began: all their bytes lie after it, but for what a bad place splits.
    """

    start: int
    first: Seqno
    last: Seqno
    epochs: tuple[tuple[Seqno, Epoch], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BadPlace:
    """A place in a segment where the walk had to stop, and what stands on both sides of it.

    `good_end` lies after the last complete transaction before it, which is `last`; `open_fragments` of the next one
    stand between `good_end` and `offset`. `resumes_at` is the next good record after it, None where none was found;
    `next_event` the seqno and fragno of the first event from there on, None where none follows; `checksums` says
    whether that has one. `next_name`: what a rotate record right before it names.
    """

    offset: int
    good_end: int
    last: Seqno
    open_fragments: int
    resumes_at: int | None = None
    next_event: tuple[Seqno, int] | None = None
    checksums: bool = True
    next_name: str | None = None
    h: int | None = None
    """The running hash up to `last`, unsigned; None where nothing tells it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFindings:
    """What one segment holds.

    `prev_seqno` is what its header says, None for one that is not whole; `first_seqno` that of its first good event,
    if nothing bad stands before that. `last` is its last complete transaction, `good_end` the end of what is whole:
    both of the last run, whatever bad places came before it.
    """

    number: int
    size: int
    prev_seqno: Seqno | None
    torn_header: bool
    first_seqno: Seqno | None
    runs: tuple[TransactionRun, ...]
    bad: tuple[BadPlace, ...]
    last: Seqno
    good_end: int
    end: int
    open_fragments: int
    next_name: str | None
    torn: bool = False
    """It is the newest, and what stands after `good_end` is what a crash leaves."""
    mark: RollbackMark | None = None
    """The rollback mark that it begins with."""
    synced: Seqno = NO_SEQNO
    """Up to where its sync records, those after the mark, say that the log went; NO_SEQNO where none does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFindings:
    """What a whole log holds, first segment to newest.

    `visible` is how far the log went by what stands beside it, NO_SEQNO where nobody knows;
    `epoch` the highest epoch that was published or read.
    """

    segments: tuple[SegmentFindings, ...]
    visible: Seqno
    epoch: Epoch
    problems: tuple[Problem, ...] = ()
    marks: int = 0
    """Rollback marks that stand in it."""
    references: tuple[tuple[Lsn, range], ...] = ()
    """The places of referring records, and the spill segments that each refers into."""
    history: bytes | None = None
    """The identity of the log's history, where a segment bears it."""
    spill: tuple[int, ...] = ()
    """The spill segments that are there."""
