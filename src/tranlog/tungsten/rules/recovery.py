"""What the state of a Tungsten directory means, and what to do about it: decides, does not act.

Owns the verdicts on opening for writing, on purge, and on the order of what is stored. `directory` finds the facts
and carries the verdicts out. The hard idea: the ancestor's repair and its refusals are kept (a torn end and an
unfinished transaction are cut, a bad checksum in the last segment is refused), and its holes are not: damage that it
would meet only when somebody reads is refused before anything is written after it, a missing segment is named, and
the end of a purge is the end of the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TypeAlias

import msgspec

from tranlog.ids import segment_name
from tranlog.tungsten.records.codec import FILE_HEADER, NO_BASE, next_number
from tranlog.tungsten.records.record import (
    Damaged,
    EventRecord,
    FileHeader,
    ImpossibleEvent,
    PartialEvent,
    TungstenRotate,
    UnknownRecord,
)


class DirectoryEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A segment by its file: what its first 16 bytes say."""

    number: int
    size: int
    header: FileHeader | PartialEvent | ImpossibleEvent

    @property
    def name(self) -> str:
        """The file's name."""
        return segment_name(self.number)


class Torn(msgspec.Struct, frozen=True):
    """From this byte on there is no whole record."""

    offset: int
    why: str


class TungstenScan(msgspec.Struct, frozen=True, kw_only=True):
    """What all records of a segment add up to.

    `last` is the last event with the mark of the last fragment, `complete_end` the byte after it, `next_seqno` the
    one after all that complete transactions and filtered ranges take up. `rotate` is the segment's last record if it
    is of that kind; `open_fragments` counts those after `last`, which wait for theirs. `unknown` is the first record
    of a type that the replicator does not have. Where `stop` is set, reading ended there. `order_problem` is the first
    event that does not follow the one before it.
    """

    number: int
    size: int
    base_seqno: int
    first: EventRecord | None = None
    last: EventRecord | None = None
    complete_end: int = FILE_HEADER.size
    records_end: int = FILE_HEADER.size
    rotate: TungstenRotate | None = None
    stop: Torn | Damaged | None = None
    unknown: UnknownRecord | None = None
    open_fragments: int = 0
    transactions: int = 0
    fragments: int = 0
    next_seqno: int = 0
    order_problem: str | None = None


# --- opening for writing ---------------------------------------------------------------------------------


class NewDirectory(msgspec.Struct, frozen=True):
    """There is no segment: begin with number 1."""


class Refuse(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing is written to this directory until the damage is dealt with."""

    segment: str
    offset: int
    seqno: int | None
    why: str


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes that belong to no complete transaction: from `offset` to the end of the segment, or the whole file."""

    number: int
    offset: int
    size: int
    whole: bool
    why: str


class TungstenContinue(msgspec.Struct, frozen=True, kw_only=True):
    """Cut what is listed, the newest first, and go on: in segment `tail`, or in a new one of number `create`."""

    tail: int
    cuts: tuple[Cut, ...] = ()
    create: int | None = None
    last: EventRecord | None = None
    next_seqno: int = 0
    notes: tuple[str, ...] = ()


def holes(entries: Sequence[DirectoryEntry]) -> Iterator[Refuse]:
    """Yield where segments are missing from the row, by the first one of each hole.

    The ancestor does not notice a missing segment. Source: docs/conformance.md, B7-4.
    """
    for before, entry in pairwise(entries):
        wanted = next_number(before.number)
        if entry.number != wanted:
            why = f"the segment is missing between {before.name} and {entry.name}"
            yield Refuse(segment=segment_name(wanted), offset=0, seqno=_begun(before), why=why)


def row_problem(entries: Sequence[DirectoryEntry]) -> Refuse | None:
    """Find a segment that is missing from the row, or whose header is not one."""
    return next(holes(entries), None) or header_problem(entries)


def header_problem(entries: Sequence[DirectoryEntry]) -> Refuse | None:
    """Find a segment whose header is not one.

    Where only the newest's header was not finished, that is an end, not damage.
    """
    for place, entry in enumerate(entries):
        seqno = _begun(entries[place - 1]) if place else None
        match entry.header:
            case ImpossibleEvent(why=why):
                return Refuse(segment=entry.name, offset=0, seqno=seqno, why=why)
            case PartialEvent(size=size) if place < len(entries) - 1:
                why = f"the segment has {size} of the {FILE_HEADER.size} bytes of its header, and others follow it"
                return Refuse(segment=entry.name, offset=0, seqno=seqno, why=why)
    return None


def _begun(entry: DirectoryEntry) -> int | None:
    """Return the seqno with which a segment begins, as its header says; what is after it is at or after that."""
    header = entry.header
    if not isinstance(header, FileHeader):
        return None
    return 0 if header.base_seqno == NO_BASE else header.base_seqno


def plan_open(
    entries: Sequence[DirectoryEntry], scans: Mapping[int, TungstenScan]
) -> NewDirectory | Refuse | TungstenContinue:
    """Decide how a log is opened for writing. `scans` holds every segment's, by number, or only the last ones'."""
    if not entries:
        return NewDirectory()
    refused = row_problem(entries)
    if refused is not None:
        return refused
    cuts: list[Cut] = []
    place = len(entries) - 1
    while True:
        entry = entries[place]
        before = scans.get(entries[place - 1].number) if place else None
        linked = before is not None and before.rotate is not None and before.rotate.next_segment == entry.number
        scan = scans.get(entry.number)
        if scan is not None and (scan.last is not None or isinstance(scan.stop, Damaged) or scan.unknown is not None):
            break
        if scan is not None and (place == 0 or linked):
            break
        why = "its header was not finished" if scan is None else "it holds no complete transaction"
        cuts.append(Cut(number=entry.number, offset=0, size=entry.size, whole=True, why=why))
        if place == 0:
            return TungstenContinue(tail=entry.number, cuts=tuple(cuts), create=entry.number)
        place -= 1
        if linked:
            break
    tail = scans[entries[place].number]
    for scan in scans.values():
        problem = _older_problem(scan) if scan.number != tail.number and _is_older(scan, entries, place) else None
        if problem is not None:
            return problem
    refused = _damage(tail) or _base_problem([scans[e.number] for e in entries[: place + 1] if e.number in scans])
    if refused is not None:
        return refused
    last = _last_complete(scans, entries[: place + 1])
    next_seqno = max((scan.next_seqno for scan in scans.values()), default=0)
    notes = tuple(
        f"{segment_name(scan.number)}: {scan.order_problem}"
        for scan in scans.values()
        if scan.order_problem is not None
    )
    if tail.rotate is not None and tail.stop is None and not tail.open_fragments:
        create = next_number(tail.number)
        return TungstenContinue(
            tail=create, cuts=tuple(cuts), create=create, last=last, next_seqno=next_seqno, notes=notes
        )
    if tail.size > tail.complete_end:
        why = tail.stop.why if isinstance(tail.stop, Torn) else "the last fragment of its transaction never came"
        offset = tail.complete_end
        cuts.append(Cut(number=tail.number, offset=offset, size=tail.size - offset, whole=False, why=why))
    return TungstenContinue(tail=tail.number, cuts=tuple(cuts), last=last, next_seqno=next_seqno, notes=notes)


def _is_older(scan: TungstenScan, entries: Sequence[DirectoryEntry], place: int) -> bool:
    return any(entry.number == scan.number for entry in entries[:place])


def _damage(scan: TungstenScan) -> Refuse | None:
    name = segment_name(scan.number)
    seqno = None if scan.last is None else scan.last.seqno
    if isinstance(scan.stop, Damaged):
        return Refuse(segment=name, offset=scan.stop.offset, seqno=seqno, why=scan.stop.why)
    if scan.unknown is not None:
        why = f"record type {scan.unknown.record_type}, which no reader of the replicator passes"
        return Refuse(segment=name, offset=scan.unknown.offset, seqno=seqno, why=why)
    return None


def _older_problem(scan: TungstenScan) -> Refuse | None:
    """Find what is wrong with a segment that others follow."""
    refused = _damage(scan)
    if refused is not None:
        return refused
    name = segment_name(scan.number)
    seqno = None if scan.last is None else scan.last.seqno
    if scan.stop is not None:
        return Refuse(segment=name, offset=scan.stop.offset, seqno=seqno, why=f"{scan.stop.why}, and segments follow")
    wanted = next_number(scan.number)
    if scan.rotate is None:
        why = f"the segment ends without the record that leads to {segment_name(wanted)}"
        return Refuse(segment=name, offset=scan.records_end, seqno=seqno, why=why)
    if scan.rotate.next_segment != wanted:
        return Refuse(
            segment=name, offset=scan.rotate.offset, seqno=seqno, why=rotate_problem(scan.rotate, scan.number)
        )
    return None


def rotate_problem(rotate: TungstenRotate, number: int) -> str:
    """Return what is wrong with a rotate record that does not lead to the next segment (B7-12: backwards, for ever)."""
    return f"its rotate record leads to segment {rotate.next_segment}, not to {segment_name(next_number(number))}"


def _base_problem(scans: Sequence[TungstenScan]) -> Refuse | None:
    """Find a header that claims seqnos which an earlier segment holds: seeking would go astray."""
    last: int | None = None
    for scan in scans:
        if scan.base_seqno != NO_BASE and last is not None and scan.base_seqno <= last:
            why = f"its header begins at seqno {scan.base_seqno}, but the segments before it reach {last}"
            return Refuse(segment=segment_name(scan.number), offset=0, seqno=last, why=why)
        if scan.last is not None:
            last = scan.last.seqno
    return None


def _last_complete(scans: Mapping[int, TungstenScan], entries: Sequence[DirectoryEntry]) -> EventRecord | None:
    for entry in reversed(entries):
        scan = scans.get(entry.number)
        if scan is not None and scan.last is not None:
            return scan.last
    return None


# --- order -----------------------------------------------------------------------------------------------


class EventPlace(msgspec.Struct, frozen=True):
    """Where the next event belongs: its seqno, and its fragment where a transaction is open."""

    seqno: int
    fragno: int = 0


def order_problem(wanted: EventPlace | None, seqno: int, fragno: int) -> str | None:
    """Return why an event does not belong after what is stored; None where it does. `wanted` is None in an empty log.

    The ancestor stores duplicates, gaps and a second open transaction. Source: docs/conformance.md, B7-22.
    """
    if wanted is None:
        return None if fragno == 0 else f"seqno {seqno} begins with fragment {fragno}"
    if seqno == wanted.seqno and fragno == wanted.fragno:
        return None
    if wanted.fragno:
        return (
            f"seqno {seqno}, fragment {fragno}, while fragment {wanted.fragno} of the open transaction {wanted.seqno} "
            "is to come"
        )
    if seqno < wanted.seqno:
        return f"seqno {seqno} again: the log holds all below {wanted.seqno}"
    if seqno > wanted.seqno:
        return f"seqno {seqno} where {wanted.seqno} is to come"
    return f"seqno {seqno} begins with fragment {fragno}"


def reading_problem(wanted: EventPlace | None, seqno: int, fragno: int) -> str | None:
    """Return why an event that is read does not follow the one before it; None where it does.

    Between transactions seqnos may be missing: a replicator that is told to (`online -base-seqno`) goes on higher.
    """
    why = order_problem(wanted, seqno, fragno)
    gap = wanted is not None and not wanted.fragno and not fragno and seqno > wanted.seqno
    return None if gap else why


def place_behind(seqno: int, fragno: int, last_frag: bool, seqno_end: int | None, fragno_end: int | None) -> EventPlace:
    """Return where the next event belongs after one; `seqno_end` and `fragno_end` are a filtered range's."""
    end = seqno if seqno_end is None else max(seqno, seqno_end)
    if last_frag:
        return EventPlace(end + 1)
    return EventPlace(end, (fragno if fragno_end is None else fragno_end) + 1)


# --- purge -----------------------------------------------------------------------------------------------


class IndexEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A segment's range of seqnos; -1 for both ends of one without a transaction."""

    number: int
    first_seqno: int
    last_seqno: int
    bytes: int

    @property
    def name(self) -> str:
        """The file's name."""
        return segment_name(self.number)


class PurgeSegments(msgspec.Struct, frozen=True):
    """Remove these segments, in this order."""

    numbers: tuple[int, ...]


class PurgeTail(msgspec.Struct, frozen=True, kw_only=True):
    """Remove these segments, in this order, then cut segment `cut` before its first record of `seqno` or above."""

    numbers: tuple[int, ...]
    cut: int
    seqno: int


class RefusePurge(msgspec.Struct, frozen=True):
    """The range cannot be removed."""

    why: str


PurgePlan: TypeAlias = PurgeSegments | PurgeTail | RefusePurge


def plan_purge(index: Sequence[IndexEntry], low: int | None, high: int | None) -> PurgePlan:
    """Decide what a purge of `low` to `high` removes, both included; None: from the first, to the last.

    At the front whole segments go, as many as lie in the range; at the end everything from `low` on, so that what is
    left has no hole (B7-2: the ancestor keeps the last segment).
    """
    if low is not None and high is not None and low > high:
        return RefusePurge(f"the range is empty: low seqno={low} high seqno={high}")
    if low is None and high is None:
        return PurgeSegments(tuple([entry.number for entry in index]))
    held = [entry for entry in index if entry.last_seqno >= 0]
    if not held:
        return RefusePurge("the log holds no transaction")
    first, last = held[0].first_seqno, held[-1].last_seqno
    if (low is not None and low > last) or (high is not None and high < first):
        return RefusePurge(f"nothing of it is in the log, which holds {first} to {last}")
    from_first = low is None or low <= first
    to_last = high is None or high >= last
    if from_first and to_last:
        return PurgeSegments(tuple([entry.number for entry in index]))
    if from_first:
        assert high is not None
        gone = []
        for entry in index:
            if entry.last_seqno > high:
                break
            gone.append(entry.number)
        return PurgeSegments(tuple(gone))
    if not to_last:
        return RefusePurge(
            f"Deletion range invalid; must include one or both log end points: low seqno={low} high seqno={high}"
        )
    assert low is not None
    # Where all of it goes, the last segment that stays loses the rotate record that would lead nowhere.
    cut = max(entry.number for entry in held if entry.first_seqno < low)
    gone = [entry.number for entry in index if entry.number > cut]
    return PurgeTail(numbers=tuple(gone[::-1]), cut=cut, seqno=low)
