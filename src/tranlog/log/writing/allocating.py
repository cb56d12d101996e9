"""Giving out places to whole transactions, which their threads fill outside the log's lock.

Owns the log's side of an `Allocation`: its place, the beginning and the end of its writing, and its completion.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import get_ident

from tranlog.change import Fragment
from tranlog.disk import DiskFile
from tranlog.errors import AppendOrderError, RecordLimitError
from tranlog.ids import Gtid, Seqno
from tranlog.log.records.format import FRAGNO_MAX, SEQNO_MAX
from tranlog.log.records.spill import Reference
from tranlog.log.rules.prefix import Extent
from tranlog.log.writing.allocation import AllocatedPlace, Allocation, padding_for, referring, size_of
from tranlog.log.writing.appending import Appending
from tranlog.log.writing.log_end import LogEnd
from tranlog.log.writing.spilling import SpilledTransaction


def check_shape(path: str, fragments: Sequence[Fragment]) -> None:
    """Raise AppendOrderError for what is not one whole transaction: it would be stored as none, or as two."""
    count = len(fragments)
    if not count:
        raise AppendOrderError(path=path, why="a transaction without a fragment")
    for number, fragment in enumerate(fragments, 1):
        if fragment.last is not (number == count):
            says = "says that it is the last" if fragment.last else "does not say that it is the last"
            raise AppendOrderError(path=path, why=f"a transaction whose fragment {number} of {count} {says}")


class Allocating:
    """The allocations of one log. Threads: any."""

    def __init__(self, end: LogEnd, appending: Appending) -> None:
        self._end = end
        self._steps = end.steps
        self._appending = appending
        self.syncs = end.syncs
        self.give_way = end.steps.give_way

    def allocate(self, fragments: Sequence[Fragment], reign: int | None = None) -> Allocation:
        """Give a whole transaction its place; one that is too large for the log is spilled first.

        `reign`: the one that it belongs to, if not this.
        """
        end = self._end
        check_shape(end.path, fragments)
        if len(fragments) <= FRAGNO_MAX + 1:
            size = size_of(fragments)
            if size <= end.options.spill_above:
                return self._place(fragments, size, reign)
        spilled = self.begin_spill()
        for fragment in fragments:
            spilled.add(fragment)
        return self.allocate_spilled(spilled, fragments[-1], reign)

    def begin_spill(self) -> SpilledTransaction:
        """Return a transaction that spills, for whoever appends the record that refers to it."""
        with self._steps.lock, self._steps:
            self._end.check_open()
            return self._end.spilling.begin(self._end.pending.epoch)

    def _place(
        self,
        fragments: Sequence[Fragment],
        size: int,
        reign: int | None,
        spilled: SpilledTransaction | None = None,
        reference: Reference | None = None,
    ) -> Allocation:
        """Give a transaction of `size` bytes its place; one that is spilled comes as what refers to it."""
        me = get_ident()
        event_id = fragments[-1].event_id
        end = self._end
        with self._steps.lock, self._steps:
            self._appending.await_turn(me)
            end.check_leads(reign)
            self._appending.check_none_open()
            pending = end.pending
            before = pending.ids
            padding = padding_for(size, before, fragments[-1].tstamp)
            end.journal.prove()
            end.flush()
            end.publish()
            start = pending.start
            stop = start + size + padding
            seqno = self._next_seqno(event_id)
            ids = (fragments[-1].source_id, event_id)
            extent = Extent(seqno, (start,), end=stop, ids=ids, epoch=pending.epoch)
            extent.holder = me
            tstamp, checksum = fragments[-1].tstamp, end.options.checksum
            place = AllocatedPlace(extent, Gtid(pending.epoch, seqno), before, tstamp, checksum=checksum)
            allocation = Allocation(self, place, fragments, padding=padding, spilled=spilled is not None)
            end.prefix.allocate(extent)
            pending.allocate(stop, extent.ids)
            end.places[seqno] = place
            if spilled is not None and reference is not None:
                spilled.end(reference, allocation.gtid)
            return allocation

    def allocate_spilled(self, spilled: SpilledTransaction, last: Fragment, reign: int | None = None) -> Allocation:
        """Give a spilled transaction, whose last fragment is `last`, a place for the record that refers to it."""
        reference = spilled.finish()
        told = referring(last, reference)
        try:
            return self._place([told], size_of([told]), reign, spilled, reference)
        except BaseException:
            spilled.abort()
            raise

    def begin_write(self, extent: Extent) -> DiskFile:
        """For `Allocation` only."""
        with self._steps.lock, self._steps:
            self._check_extent(extent)
            extent.writing = True
            extent.holder = get_ident()
            return self._end.journal.file

    def end_write(self, extent: Extent, failure: OSError | None) -> None:
        """For `Allocation` only."""
        with self._steps.lock, self._steps:
            extent.writing = False
            self._steps.changed.notify_all()
            if failure is not None:
                raise self._end.write_failed(failure) from failure
            self._check_extent(extent)

    def finish(self, extent: Extent, sync: bool) -> None:
        """For `Allocation` only."""
        with self._steps.lock, self._steps:
            self._check_extent(extent)
            extent.done = True
            self._end.places.pop(extent.first, None)
            self._end.flush()
            self._end.publish()
            self._steps.changed.notify_all()
            turn, reign = self._steps.commits.take_turn(extent.last) if sync else extent.last, self._end.reign
        if sync:
            self._steps.commits.wait(turn, extent.last)
            with self._steps.lock, self._steps:
                self._check_extent(extent)
                self._end.check_reign(reign)

    def _check_extent(self, extent: Extent) -> None:
        if extent.refused is not None:
            raise extent.refused
        self._end.check_open()

    def _next_seqno(self, event_id: str) -> Seqno:
        """Return the seqno to assign. Raises RecordLimitError after the last one that there is."""
        if self._end.pending.last >= SEQNO_MAX:
            why = f"the log has reached {SEQNO_MAX}, the last possible seqno"
            raise RecordLimitError(event_id=event_id, why=why)
        return Seqno(self._end.pending.last + 1)
