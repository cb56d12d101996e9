"""The sparse index: from a seqno to the place in a segment where its record lies, or to one near it.

Owns the range of the log, the buckets, their stored form, and the row of segments; whoever appends, scans or purges
tells it what happened, and `index_table` keeps what it plans to store. The hard idea: mappings may be registered late
and in any order, yet buckets and the stored image only ever hold an unbroken prefix. What comes early waits in a
small map until the gap below it is filled, so a late commit can neither be lost by a flush that overtook it nor leave
a hole.

Source: vlsn-index ("Maintaining the VLSN range", "Persistent storage", "Recovery"); docs/conformance.md, I6 to I37, S4
to S8.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

from tranlog.errors import IndexCutError, IndexDamagedError
from tranlog.ids import NO_SEQNO, Epoch, Lsn, Seqno
from tranlog.log.rules.bucket import VALUE_VERSION, Bucket, decode_bucket, encode_bucket, seal, unseal
from tranlog.log.rules.index_values import EMPTY_RANGE, BuiltFrom, Entry, FlushPlan, IndexOptions, IndexRange, Place
from tranlog.log.rules.mappings import Mappings
from tranlog.lsn import lsn, lsn_segment

RANGE_KEY = -1
"""The key under which the range is stored; a bucket's key is its first seqno."""


class IndexView:
    """The index as it was at one moment, cheap to take; its stored form is made later, by anybody, without a lock."""

    __slots__ = ("_buckets", "_deletes", "_dirty", "_range")

    def __init__(
        self, buckets: tuple[Bucket, ...], dirty: frozenset[int], deletes: tuple[int, ...], stored_range: bytes
    ) -> None:
        self._buckets = buckets
        self._dirty = dirty
        self._deletes = deletes
        self._range = stored_range

    def plan(self) -> FlushPlan:
        """Return what has changed since the index was stored last."""
        changed = [bucket for bucket in self._buckets if bucket.first in self._dirty]
        return FlushPlan(puts=_image(changed, self._range), deletes=self._deletes)

    def image(self) -> dict[int, bytes]:
        """Return everything that a stored index holds, for one that is rewritten."""
        return _image(self._buckets, self._range)


class SeqnoIndex:
    """The index of one log.

    Threads: changes one at a time, under the owner's lock; the range and all lookups at any time without it.
    """

    def __init__(self, *, after: Seqno = NO_SEQNO, options: IndexOptions | None = None) -> None:
        """`after` is the seqno before the first one that the log will hold."""
        self.mappings = Mappings(options=options)
        """Where the transactions are; a reader's index has nothing else."""
        self.range = EMPTY_RANGE
        """The range of what is registered, gaps included. For readers: one object, one moment."""
        self._facts = EMPTY_RANGE  # the range of the unbroken prefix
        self._prefix = after
        self._waiting: dict[Seqno, Entry] = {}
        self._sync_tail: list[Seqno] = []  # sync points of the prefix after its last transaction end
        self._front: Place | None = None  # the range's first seqno and where its segment begins, once one was purged
        self._range_dirty = False

    # --- registering ---------------------------------------------------------------------------------

    @property
    def prefix(self) -> Seqno:
        """Every seqno up to here is registered; what a flush stores ends here."""
        return self._prefix

    @property
    def prefix_range(self) -> IndexRange:
        """The range of the unbroken prefix."""
        return self._facts

    def register(self, entry: Entry) -> bool:
        """Register where a transaction begins, late or early; false for one that is registered already, or purged."""
        seqno = entry.seqno
        if seqno <= self._prefix or seqno in self._waiting:
            return False
        if seqno == self._prefix + 1:
            self._add(entry)
            waiting = self._waiting
            while waiting and (following := waiting.pop(Seqno(self._prefix + 1), None)) is not None:
                self._add(following)
        else:
            self._waiting[seqno] = entry
        self._publish()
        return True

    def register_run(self, segment: int, first: Seqno, offsets: Sequence[int]) -> None:
        """Register complete transactions that follow the prefix one by one inside a segment; the writer's fast way."""
        if not offsets:
            return
        assert first == self._prefix + 1 and not self._waiting
        self.mappings.map_run(segment, first, offsets)
        last = first + len(offsets) - 1
        facts = self._facts
        self._facts = IndexRange(
            first if facts.first == NO_SEQNO else facts.first, Seqno(last), facts.last_sync, Seqno(last)
        )
        self._sync_tail.clear()
        self._prefix = Seqno(last)
        self._range_dirty = True
        self.range = self._facts

    def synced(self, seqno: Seqno) -> None:
        """Register that everything up to `seqno` is durable; a syncup may meet there."""
        seqno = min(seqno, self._prefix)
        if seqno > self._facts.last_sync:
            facts = self._facts
            self._facts = IndexRange(facts.first, facts.last, seqno, facts.last_txn_end)
            self._range_dirty = True
            self._publish()

    def _add(self, entry: Entry) -> None:
        """Take the seqno that follows the prefix."""
        seqno = entry.seqno
        self.mappings.map(seqno, entry.lsn)
        facts = self._facts
        last_sync, last_txn_end = facts.last_sync, facts.last_txn_end
        if entry.txn_end:
            last_txn_end = seqno
            self._sync_tail.clear()
        if entry.sync_point:
            last_sync = seqno
            if not entry.txn_end:
                self._sync_tail.append(seqno)
        first = seqno if facts.first == NO_SEQNO else facts.first
        self._facts = IndexRange(first, seqno, last_sync, last_txn_end)
        self._prefix = seqno
        self._range_dirty = True

    def _publish(self) -> None:
        facts = self._facts
        if self._waiting:
            waiting = self._waiting.values()
            facts = IndexRange(
                facts.first if facts.first != NO_SEQNO else min(self._waiting),
                max(self._waiting),
                max((entry.seqno for entry in waiting if entry.sync_point), default=facts.last_sync),
                max((entry.seqno for entry in waiting if entry.txn_end), default=facts.last_txn_end),
            )
        self.range = facts

    # --- looking up ----------------------------------------------------------------------------------

    def exact(self, seqno: Seqno) -> Lsn | None:
        """Return where the record of `seqno` stands; None if that is not mapped, or outside the range."""
        if seqno not in self.range:
            return None
        entry = self._waiting.get(seqno)
        if entry is not None:
            return entry.lsn
        return self.mappings.exact(seqno)

    def lte(self, seqno: Seqno) -> Place | None:
        """Return the nearest known place at or below `seqno`; None outside the range. Scan forward from there."""
        covered = self.range
        if seqno not in covered:
            return None
        if seqno > self._prefix:
            early = [entry for entry in list(self._waiting.values()) if entry.seqno <= seqno]
            if early:
                nearest = max(early, key=lambda entry: entry.seqno)
                return Place(nearest.seqno, nearest.lsn)
        place = self.mappings.below(seqno)
        if place is not None:
            return place
        front = self._front
        return None if front is None or seqno < front.seqno else front

    def gte(self, seqno: Seqno) -> Place | None:
        """Return the nearest known place at or above `seqno`; None outside the range. Scan backward from there."""
        if seqno not in self.range:
            return None
        place = self.mappings.above(seqno) if seqno <= self._prefix else None
        if place is not None:
            return place
        late = [entry for entry in list(self._waiting.values()) if entry.seqno >= seqno]
        if not late:
            return None
        nearest = min(late, key=lambda entry: entry.seqno)
        return Place(nearest.seqno, nearest.lsn)

    # --- cutting -------------------------------------------------------------------------------------

    def truncate_end(self, last: Entry | None) -> None:
        """Forget everything above `last`, which stays exactly mapped; with None, everything.

        The range is cut first. Raises IndexCutError when it would cut a transaction end away and leave none: `last`
        lies below `last_txn_end` and is no transaction end itself, so which one is the last is not known here.
        """
        facts = self._facts
        if last is None:
            self._prefix = Seqno(facts.first - 1) if facts.first != NO_SEQNO else self._prefix
            self._sync_tail.clear()
            self._waiting.clear()
            self._facts = EMPTY_RANGE
            self.mappings.cut(None)
            self._range_dirty = True
            self._publish()
            return
        seqno = last.seqno
        if seqno >= self.range.last:
            return
        if facts.first == NO_SEQNO or seqno < facts.first or (not last.txn_end and facts.last_txn_end > seqno):
            raise IndexCutError(seqno=seqno, first=facts.first, last=facts.last, last_txn_end=facts.last_txn_end)
        for early in [one for one in self._waiting if one > seqno]:
            del self._waiting[early]
        if seqno < self._prefix:
            self._facts = self._facts_up_to(seqno, sync_point=last.sync_point, txn_end=last.txn_end)
            self._prefix = seqno
            self.mappings.forget_above(Place(seqno, last.lsn))
        self._range_dirty = True
        self._publish()

    def _facts_up_to(self, seqno: Seqno, *, sync_point: bool, txn_end: bool) -> IndexRange:
        """Return the range cut down to `seqno`, which is a sync point and ends a transaction as the caller knows."""
        facts = self._facts
        last_txn_end = facts.last_txn_end
        if last_txn_end > seqno:
            last_txn_end = seqno if txn_end else NO_SEQNO
        del self._sync_tail[bisect_right(self._sync_tail, seqno) :]
        last_sync = facts.last_sync
        if last_sync > seqno:
            if sync_point:
                last_sync = seqno
            else:
                last_sync = self._sync_tail[-1] if self._sync_tail else last_txn_end
        return IndexRange(facts.first, seqno, last_sync, last_txn_end)

    def truncate_front(self, upto: Seqno, front: Lsn) -> None:
        """Forget everything up to and including `upto`, whose segments will go; `front` is where the rest begins.

        The range is cut first, so that no reader starts in what goes. Raises IndexCutError for an `upto` above
        `last_sync`: what no sync proves is not purged.
        """
        facts = self._facts
        if facts.first == NO_SEQNO or upto < facts.first:
            return
        if upto >= facts.last or upto > facts.last_sync:
            raise IndexCutError(seqno=upto, first=facts.first, last=facts.last, last_txn_end=facts.last_txn_end)
        first = Seqno(upto + 1)
        self._facts = IndexRange(
            first,
            facts.last,
            facts.last_sync if facts.last_sync >= first else NO_SEQNO,
            facts.last_txn_end if facts.last_txn_end >= first else NO_SEQNO,
        )
        del self._sync_tail[: bisect_left(self._sync_tail, first)]
        # Before the range: who sees the new range finds the new front.
        self._front = Place(first, front)
        self._range_dirty = True
        self._publish()
        self.mappings.cut_front(lsn_segment(front))

    # --- storing and recovering ----------------------------------------------------------------------

    def view(self, built_from: BuiltFrom) -> IndexView | None:
        """Return what is to be stored so that the stored index covers the prefix; None when it does already."""
        mappings = self.mappings
        buckets, dirty, dropped = mappings.buckets, mappings.dirty, mappings.dropped
        if not (self._range_dirty or dirty or dropped):
            return None
        stored_range = _encode_range(self._facts, self._prefix, self._front, self._sync_tail, built_from)
        return IndexView((*buckets[:-1], buckets[-1].copy()) if buckets else (), dirty, dropped, stored_range)

    def flush_plan(self, built_from: BuiltFrom) -> FlushPlan | None:
        """Return the change that `view` stores."""
        view = self.view(built_from)
        return None if view is None else view.plan()

    def image(self, built_from: BuiltFrom) -> dict[int, bytes]:
        """Return everything that a stored index holds."""
        stored = _encode_range(self._facts, self._prefix, self._front, self._sync_tail, built_from)
        return _image(self.mappings.buckets, stored)

    def flushed(self, plan: FlushPlan) -> None:
        """Register that a plan was stored. One that a truncation or a registration overtook leaves the rest to do."""
        self.mappings.stored(plan.puts, plan.deletes)
        stored_range = plan.puts[RANGE_KEY]
        self._range_dirty = _range_facts(stored_range) != (self._facts, self._prefix)

    @classmethod
    def rough(
        cls, after: Seqno, places: Iterable[Place], last: Seqno, *, options: IndexOptions | None = None
    ) -> SeqnoIndex:
        """Return the index of a log whose stored one is lost: complete transactions from `after` + 1 up to `last`.

        `places` are all that is known, one in each segment; `fill` makes it dense. Nothing is scanned for it.
        """
        index = cls(after=after, options=options)
        if last > after:
            index._facts = index.range = IndexRange(Seqno(after + 1), last, NO_SEQNO, last)
            index._prefix = last
            index._range_dirty = True
            for place in places:
                index.mappings.map(place.seqno, place.lsn)
        return index

    @classmethod
    def restore(
        cls, stored: Mapping[int, bytes], *, options: IndexOptions | None = None
    ) -> tuple[SeqnoIndex, BuiltFrom]:
        """Return the index that was stored, and the end of the log that it describes. Raises IndexDamagedError."""
        if RANGE_KEY not in stored:
            raise IndexDamagedError(why="it holds no range")
        facts, prefix, front, sync_tail, built_from = _decode_range(stored[RANGE_KEY])
        index = cls(after=prefix, options=options)
        buckets = [decode_bucket(key, stored[key]) for key in sorted(stored) if key != RANGE_KEY]
        for before, after in pairwise(buckets):
            if after.first <= before.last or after.segment < before.segment:
                raise IndexDamagedError(why=f"the buckets at {before.first} and {after.first} overlap")
        if facts.first != NO_SEQNO and (not buckets or buckets[-1].last != facts.last):
            raise IndexDamagedError(why=f"no bucket ends at the range's last seqno, {facts.last}")
        index._facts = index.range = facts
        index._front = None if front is None else Place(facts.first, front)
        index._sync_tail = sync_tail
        index.mappings = Mappings(buckets, options=options)
        return index, built_from

    def recover(self, entries: Iterable[Entry]) -> None:
        """Merge what a scan saw, in order, from the stored end of the log or before it, to the log's end.

        What the scan saw wins. Idempotent. Raises IndexDamagedError for a scan that begins after a hole.
        """
        begun = False
        for entry in entries:
            if not begun:
                begun = True
                if entry.seqno > self._prefix + 1 and self._facts.first != NO_SEQNO:
                    why = f"it ends at seqno {self._prefix}, and the log goes on at {entry.seqno}"
                    raise IndexDamagedError(why=why)
                self._forget_from(entry.seqno)
            self.register(entry)

    def _forget_from(self, seqno: Seqno) -> None:
        """Make room for what a scan saw from `seqno` on."""
        facts = self._facts
        if facts.first == NO_SEQNO or seqno <= facts.first:
            # Nothing of the prefix stays, but for what lies before the first entry: nothing.
            self._facts = EMPTY_RANGE
            self._prefix = Seqno(seqno - 1)
            self._sync_tail.clear()
            self.mappings.cut(None)
            self._range_dirty = True
            self._publish()
            return
        if seqno > self._prefix:
            return
        below = Seqno(seqno - 1)
        # What `below` is good for is not known here: only what stands for certain counts.
        self._facts = self._facts_up_to(below, sync_point=False, txn_end=False)
        self._prefix = below
        self.mappings.cut(below)
        self._range_dirty = True


class SegmentRow:
    """The segments of a log, first to newest, with the seqno before each one's first.

    Threads: the owner's lock guards it.
    """

    def __init__(self, *, first_offset: int) -> None:
        """`first_offset` is where the first record of a segment stands."""
        self._first_offset = first_offset
        self._numbers: list[int] = []
        self._prevs: list[Seqno] = []
        # Of those, the segments in which something lives; the numbers here rise, and so do the seqnos.
        self._living: list[int] = []
        self._living_prevs: list[Seqno] = []
        self._cuts: dict[int, Seqno] = {}  # the last seqno that lives in a segment whose end was abandoned

    def __len__(self) -> int:
        return len(self._numbers)

    def __contains__(self, number: object) -> bool:
        numbers = self._numbers
        if not isinstance(number, int):
            return False
        at = bisect_left(numbers, number)
        return at < len(numbers) and numbers[at] == number

    def __iter__(self) -> Iterator[tuple[int, Seqno]]:
        """Yield (number, prev_seqno)."""
        return iter(list(zip(self._numbers, self._prevs, strict=True)))

    def add(self, number: int, prev_seqno: Seqno, matchpoint: Seqno | None = None) -> None:
        """Add a segment after the newest one known; with `matchpoint` it begins with a rollback mark.

        What lies between the two is missing.
        """
        assert not self._numbers or number > self._numbers[-1]
        after = prev_seqno if matchpoint is None else matchpoint
        self._numbers.append(number)
        self._prevs.append(after)
        if matchpoint is not None:
            while self._living and self._living_prevs[-1] >= after:
                self._cuts.pop(self._living.pop(), None)
                self._living_prevs.pop()
            if self._living:
                self._cuts[self._living[-1]] = after
        self._living.append(number)
        self._living_prevs.append(after)

    def first_number(self) -> int | None:
        """Return the number of the first segment; None without any."""
        return self._numbers[0] if self._numbers else None

    def newest_number(self) -> int | None:
        """Return the number of the newest segment; None without any."""
        return self._numbers[-1] if self._numbers else None

    def first_seqno(self) -> Seqno | None:
        """Return the first seqno that the log holds or, while it is empty, will hold; None without a segment."""
        return Seqno(self._living_prevs[0] + 1) if self._living else None

    def prev_seqno(self, number: int) -> Seqno | None:
        """Return the last seqno before a segment's own; None for a segment that is not known."""
        return self._prevs[bisect_left(self._numbers, number)] if number in self else None

    def start_of(self, seqno: Seqno) -> Place | None:
        """Return the start of the segment that holds a seqno; None for one before the first segment.

        Two segments with one prev_seqno: the earlier one holds no transaction, the later one is right.
        """
        at = bisect_right(self._living_prevs, seqno - 1) - 1
        if at < 0:
            return None
        return Place(Seqno(self._living_prevs[at] + 1), lsn(self._living[at], self._first_offset))

    def lives(self, number: int) -> bool:
        """Whether a segment holds, or may come to hold, a living transaction."""
        at = bisect_left(self._living, number)
        return at < len(self._living) and self._living[at] == number

    def cut_of(self, number: int) -> Seqno | None:
        """Return the last seqno that lives in a segment, if what comes after it there was abandoned; else None.

        That of a segment in which nothing lives lies before its first.
        """
        if self.lives(number):
            return self._cuts.get(number)
        prev_seqno = self.prev_seqno(number)
        # Nothing lives in a segment only where a later one begins with a mark, and goes on from further back.
        return None if prev_seqno is None else self._living_prevs[bisect_left(self._living, number)]

    def lasts(self) -> list[tuple[int, Seqno | None]]:
        """Return (number, last living seqno) of each segment; None for the newest, whose end is not known here."""
        found: list[tuple[int, Seqno | None]] = []
        for at, number in enumerate(self._numbers):
            if at + 1 == len(self._numbers):
                found.append((number, None))
                continue
            # A segment that begins with a mark does not say where the one before it ends, but that one's cut does.
            cut = self.cut_of(number)
            found.append((number, self._prevs[at + 1] if cut is None else cut))
        return found

    def drop_front(self, number: int) -> None:
        """Forget the segments below `number`."""
        at = bisect_left(self._numbers, number)
        for gone in self._numbers[:at]:
            self._cuts.pop(gone, None)
        del self._numbers[:at], self._prevs[:at]
        at = bisect_left(self._living, number)
        del self._living[:at], self._living_prevs[:at]


# --- the stored form --------------------------------------------------------------------------------------

RANGE_FIELDS: Final = (
    ("version", 1), ("first", 8), ("last", 8), ("last_sync", 8), ("last_txn_end", 8), ("prefix", 8), ("front_lsn", 8),
    ("epoch", 8), ("end_lsn", 8), ("history", 16), ("count", 4), ("sync_points", 0), ("crc", 4),
)  # fmt: skip

_RANGE = struct.Struct(">BqqqqqQQQ16sI")
"""A stored range: version, first, last, last_sync, last_txn_end, prefix, front, epoch, end, history, sync points."""


def _image(buckets: Iterable[Bucket], stored_range: bytes) -> dict[int, bytes]:
    image: dict[int, bytes] = {bucket.first: encode_bucket(bucket) for bucket in buckets}
    image[RANGE_KEY] = stored_range
    return image


def _encode_range(
    facts: IndexRange, prefix: Seqno, front: Place | None, sync_tail: list[Seqno], built_from: BuiltFrom
) -> bytes:
    head = _RANGE.pack(
        VALUE_VERSION,
        facts.first,
        facts.last,
        facts.last_sync,
        facts.last_txn_end,
        prefix,
        0 if front is None else front.lsn,
        built_from.epoch,
        built_from.end,
        built_from.history,
        len(sync_tail),
    )
    return seal(head + struct.pack(f">{len(sync_tail)}q", *sync_tail))


def _decode_range(raw: bytes) -> tuple[IndexRange, Seqno, Lsn | None, list[Seqno], BuiltFrom]:
    body = unseal(raw, "the range")
    if len(body) < _RANGE.size:
        raise IndexDamagedError(why="the range is cut short")
    _, first, last, last_sync, last_txn_end, prefix, front, epoch, end, history, count = _RANGE.unpack_from(body)
    if len(body) != _RANGE.size + 8 * count or first > last or last_sync > last or last_txn_end > last:
        raise IndexDamagedError(why="the numbers of the range contradict each other")
    sync_tail = [Seqno(one) for one in struct.unpack_from(f">{count}q", body, _RANGE.size)]
    facts = IndexRange(Seqno(first), Seqno(last), Seqno(last_sync), Seqno(last_txn_end))
    built_from = BuiltFrom(epoch=Epoch(epoch), end=Lsn(end), history=history)
    return facts, Seqno(prefix), Lsn(front) or None, sync_tail, built_from


def _range_facts(raw: bytes) -> tuple[IndexRange, Seqno]:
    facts, prefix, _, _, _ = _decode_range(raw)
    return facts, prefix
