"""Where seqnos lie: the buckets of an index in order, whatever the range of the log is.

Owns what is mapped: learning it, late and in any order, looking it up, cutting it, and which buckets have changed
since they were stored. What the log's range is, and what of it is stored, is `index`'s.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence

from tranlog.ids import NO_SEQNO, Lsn, Seqno
from tranlog.log.rules.bucket import Bucket, encode_bucket
from tranlog.log.rules.index_values import Gap, IndexOptions, Place
from tranlog.lsn import lsn, lsn_offset, lsn_segment


class _Row:
    """The buckets in order, with their first seqnos beside them; replaced, never changed."""

    __slots__ = ("buckets", "firsts")

    def __init__(self, buckets: Iterable[Bucket] = (), firsts: array[int] | None = None) -> None:
        self.buckets = tuple(buckets)
        self.firsts = array("q", [bucket.first for bucket in self.buckets]) if firsts is None else firsts

    def with_last(self, bucket: Bucket) -> _Row:
        """Return the row with one more bucket after it."""
        firsts = self.firsts[:]
        firsts.append(bucket.first)
        return _Row((*self.buckets, bucket), firsts)

    def owner(self, seqno: Seqno) -> int:
        """Return the number of the last bucket that begins at or below a seqno; -1 for none."""
        return bisect_right(self.firsts, seqno) - 1


class Mappings:
    """Buckets, first to last. Threads: changes one at a time, under the owner's lock; lookups at any time."""

    def __init__(self, buckets: Iterable[Bucket] = (), *, options: IndexOptions | None = None) -> None:
        self.options = IndexOptions() if options is None else options
        self._row = _Row(buckets)
        self._dirty: set[Seqno] = set()
        self._dropped: set[Seqno] = set()

    def __len__(self) -> int:
        return len(self._row.buckets)

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        """The buckets, for whoever holds them against the log."""
        return self._row.buckets

    @property
    def dirty(self) -> frozenset[int]:
        """The first seqnos of the buckets that have changed since they were stored."""
        return frozenset(self._dirty)

    @property
    def dropped(self) -> tuple[int, ...]:
        """The first seqnos of stored buckets that are no more, in order."""
        return tuple(sorted(self._dropped))

    # --- learning ------------------------------------------------------------------------------------

    def map(self, seqno: Seqno, position: Lsn, *, dense: bool = True) -> None:
        """Register where a transaction begins; `dense`: all between the last one known and it are mapped, too."""
        row = self._row
        at = row.owner(seqno)
        if at >= 0:
            bucket = row.buckets[at]
            if seqno <= bucket.last:
                if lsn_segment(position) == bucket.segment:
                    bucket.put(seqno, lsn_offset(position))
                return
            if bucket.accepts(seqno, position, self.options, dense=dense):
                if at + 1 < len(row.buckets):  # only the last one changes: a view may hold this one
                    bucket = bucket.copy()
                    self._row = _Row((*row.buckets[:at], bucket, *row.buckets[at + 1 :]))
                bucket.put(seqno, lsn_offset(position))
                self._dirty.add(bucket.first)
                return
        stride = self.options.stride if at < 0 else row.buckets[at].stride_behind(self.options)
        fresh = Bucket(lsn_segment(position), seqno, lsn_offset(position), stride)
        if at + 1 == len(row.buckets):
            self._row = row.with_last(fresh)
        else:
            self._row = _Row((*row.buckets[: at + 1], fresh, *row.buckets[at + 1 :]))
        self._dirty.add(seqno)
        self._dropped.discard(seqno)

    def map_run(self, segment: int, first: Seqno, offsets: Sequence[int]) -> None:
        """Register where transactions begin that follow one another, and what is known, inside a segment."""
        options = self.options
        base = segment << 32
        last = first + len(offsets) - 1
        seqno: int = first
        while seqno <= last:
            row = self._row
            bucket = row.buckets[-1] if row.buckets else None
            if bucket is None or not bucket.accepts(Seqno(seqno), Lsn(base | offsets[seqno - first]), options):
                self.map(Seqno(seqno), Lsn(base | offsets[seqno - first]))
                seqno += 1
                continue
            stride = bucket.stride
            # Up to the next slot nothing is stored but the last one.
            slot = bucket.first + -(-(seqno - bucket.first) // stride) * stride
            end = min(slot, last)
            reach = bucket.reach(options)
            while end > seqno and offsets[end - first] - bucket.offsets[-1] > reach:
                end -= 1
            bucket.put(Seqno(end), offsets[end - first])
            self._dirty.add(bucket.first)
            seqno = end + 1

    def learn(self, place: Place) -> None:
        """Keep a mapping that a reader came by. One that is known, or fits nowhere, is dropped."""
        self.map(place.seqno, place.lsn, dense=False)

    def adopt(self, buckets: Sequence[Bucket]) -> None:
        """Take a stored index's buckets, in order, for what was learned up to their end."""
        if not buckets:
            return
        end = buckets[-1].last
        learned = [bucket for bucket in self._row.buckets if bucket.first > end]
        self._row = _Row((*buckets, *learned))

    def drop(self, place: Place) -> None:
        """Forget the bucket that maps a place, which misleads."""
        row = self._row
        at = row.owner(place.seqno)
        if at >= 0 and row.buckets[at].segment == lsn_segment(place.lsn):
            self._row = _Row((*row.buckets[:at], *row.buckets[at + 1 :]))

    def gap(self, above: Seqno = NO_SEQNO) -> Gap | None:
        """Return the first gap from the bucket of `above` on; None where each bucket meets the next one.

        Those that an index has grown by always meet. There are gaps where it was lost, and began again as a rough one.
        """
        row = self._row
        buckets = row.buckets
        for at in range(max(row.owner(above), 0), len(buckets) - 1):
            place, upto = buckets[at].unbroken(), Seqno(buckets[at + 1].first - 1)
            if place.seqno < upto:
                return Gap(place, upto)
        return None

    def fill(self, gap: Gap, offsets: Sequence[int]) -> bool:
        """Register where the first transactions of a gap begin, in its segment.

        False, and nothing is learned, where the log was rolled back or purged meanwhile, and the gap is not there now.
        """
        assert len(offsets) <= gap.upto - gap.place.seqno
        if self.gap(gap.place.seqno) != gap:
            return False
        row = self._row
        at = row.owner(gap.place.seqno)
        known = row.buckets[at].copy()
        known.cut(gap.place.seqno)
        if known.last == known.first and at:  # it was never told how large the transactions are
            stride = row.buckets[at - 1].stride_behind(self.options)
            known = Bucket(known.segment, known.first, known.last_offset, stride)
        walked = Mappings((known,), options=self.options)
        walked.map_run(known.segment, Seqno(gap.place.seqno + 1), offsets)
        filled = walked.buckets
        self._row = _Row((*row.buckets[:at], *filled, *row.buckets[at + 1 :]))
        self._dirty.update([bucket.first for bucket in filled])
        return True

    # --- looking up ----------------------------------------------------------------------------------

    def below(self, seqno: Seqno) -> Place | None:
        """Return the nearest known place at or below a seqno; None for none."""
        row = self._row
        at = row.owner(seqno)
        return None if at < 0 else row.buckets[at].lte(seqno)

    def exact(self, seqno: Seqno) -> Lsn | None:
        """Return where the record of `seqno` stands; None if that is not mapped."""
        row = self._row
        at = row.owner(seqno)
        return None if at < 0 or seqno > row.buckets[at].last else row.buckets[at].exact(seqno)

    def above(self, seqno: Seqno) -> Place | None:
        """Return the nearest known place at or above a seqno; None for none."""
        row = self._row
        at = row.owner(seqno)
        if at >= 0 and seqno <= row.buckets[at].last:
            return row.buckets[at].gte(seqno)
        if at + 1 == len(row.buckets):
            return None
        following = row.buckets[at + 1]
        return Place(following.first, lsn(following.segment, following.offsets[0]))

    # --- cutting, and storing ------------------------------------------------------------------------

    def forget_above(self, place: Place) -> None:
        """Forget what is mapped above a seqno, and map it exactly, at `place`."""
        self.cut(place.seqno)
        buckets = self._row.buckets
        if not buckets or buckets[-1].last < place.seqno:
            self.map(place.seqno, place.lsn)

    def cut(self, last: Seqno | None) -> None:
        """Drop the mappings above `last`; with None, all."""
        row = self._row
        keep = 0 if last is None else row.owner(last) + 1
        for bucket in row.buckets[keep:]:
            self._dirty.discard(bucket.first)
            self._dropped.add(bucket.first)
        kept = list(row.buckets[:keep])
        if kept and last is not None and kept[-1].last > last:
            # Another object: a reader that holds the old one reads on in what was true when it took it.
            kept[-1] = kept[-1].copy()
            kept[-1].cut(last)
            self._dirty.add(kept[-1].first)
        self._row = _Row(kept)

    def cut_front(self, segment: int) -> None:
        """Drop the buckets of the segments before this one."""
        row = self._row
        gone = [bucket for bucket in row.buckets if bucket.segment < segment]
        self._row = _Row(row.buckets[len(gone) :])
        for bucket in gone:
            self._dirty.discard(bucket.first)
            self._dropped.add(bucket.first)

    def stored(self, puts: Mapping[int, bytes], deletes: Iterable[int]) -> None:
        """Register that these buckets were stored, and these deleted; what has changed since stays to be done."""
        for bucket in self._row.buckets:
            stored = puts.get(bucket.first)
            if stored is not None and stored == encode_bucket(bucket):
                self._dirty.discard(bucket.first)
        self._dropped.difference_update(deletes)
