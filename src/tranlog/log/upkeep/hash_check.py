"""Recomputing the running hash of a segment, and holding it against what its sync records say.

Owns the comparison; where a segment can be read is `verify`'s. The hard idea: where nothing tells the hash before the
first record, the first sync record after it does, and from there on it is compared with the others.

Source: docs/format.md, "The running hash".
"""

from __future__ import annotations

from dataclasses import dataclass

from tranlog.ids import NO_SEQNO, Seqno
from tranlog.log.files.hashing import record_tag
from tranlog.log.files.segment import SegmentReader
from tranlog.log.records.format import RecordHeader, RollbackMark, SyncRecord, take_events
from tranlog.log.records.running_hash import after, before, fold, fold_span, signed, unsigned


@dataclass(frozen=True, slots=True)
class HashFault:
    """A sync record at `offset` that says another hash up to `seqno` than the records before it give."""

    offset: int
    seqno: Seqno
    why: str


@dataclass(frozen=True, slots=True)
class HashedSpan:
    """The hash before the first transaction of a span, and after the last whole one.

    Both are signed, and None where nothing tells them. `synced` is the greatest seqno that a sync record in it names,
    after the last rollback mark; NO_SEQNO where none does.
    """

    before: int | None
    after: int | None
    faults: tuple[HashFault, ...]
    synced: Seqno = NO_SEQNO


def check_hashes(
    reader: SegmentReader, offset: int, end: int, first: tuple[Seqno, int], last: Seqno, h: int | None
) -> HashedSpan:
    """Walk good records from `offset` to `end`, not including it; `last` is the last whole transaction among them.

    `first` are seqno and fragno of the first record, `h` is the hash before it. Raises OSError.
    """
    seqno, fragno = first
    faults: list[HashFault] = []
    begun, base, since = h, h, seqno  # `base` is the hash before the transaction `since`, `added` what came since then
    added = fragments = 0
    whole = not fragno  # all fragments of the transaction were seen
    synced = NO_SEQNO
    while offset < end:
        outcome = reader.read(offset, verify=False)
        if isinstance(outcome, RecordHeader):
            places: list[int] = []
            at = offset - reader.start
            if not fragno:
                behind, following = take_events(reader.window, at, seqno, last, places, verify=False)
            if places:
                added = fold_span(reader.window, at, behind, added)
                offset, seqno = reader.start + behind, Seqno(following)
                continue
            fragments = fold(fragments, record_tag(reader, outcome), outcome.seqno, outcome.epoch)
            fragno += 1
            if outcome.last_frag:
                added = after(added, fragments, 1)
                seqno, fragments, fragno = Seqno(seqno + 1), 0, 0
                if not whole:
                    begun = base = None
                    since, added, whole = seqno, 0, True
        elif isinstance(outcome, SyncRecord):
            told, count, synced = signed(outcome.h), seqno - since, max(synced, outcome.seqno)
            if outcome.seqno == seqno - 1 and whole:
                if base is None:
                    base = before(told, added, count)
                    begun = base if since == first[0] and not first[1] else None
                found = after(base, added, count)
                if found != told:
                    why = f"the running hash up to seqno {seqno - 1} is {unsigned(found):016x} for the records before "
                    faults.append(HashFault(offset, outcome.seqno, f"{why}and {outcome.h:016x} in this sync record"))
                    base, since, added = told, seqno, 0
        elif isinstance(outcome, RollbackMark):
            base, synced = None, NO_SEQNO
            since = seqno = Seqno(outcome.matchpoint_seqno + 1)
            added = 0
        else:
            break
        offset += outcome.record_length
    return HashedSpan(begun, None if base is None else after(base, added, seqno - since), tuple(faults), synced)
