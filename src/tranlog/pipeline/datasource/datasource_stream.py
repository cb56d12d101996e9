"""The log as a stream in Spark: micro-batches of whole transactions, exactly once into sinks that support it.

Owns the offsets and the end of each micro-batch; `datasource_ranges` owns reading. The hard idea: an offset is a GTID,
"done up to and including", and the range of a micro-batch is (start, end]. Spark stores it before it reads. So a batch
that is run again reads the same transactions, or raises an error if this log no longer holds them.

Shape of an offset: `{"gtid": "GTID(1, 15)", "history": "<32 hex digits>"}`, since another log may have the same GTIDs;
before anything was read `{"before": 0}`, with the first seqno. A checkpoint of an earlier release has no history. The
latest offset that is reported also has how far the stream is behind it: `lag_seqnos` and `lag_ms`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from tranlog.errors import LogUnreadableError, NotInLogError, PurgedError
from tranlog.ids import NO_SEQNO, Gtid, Seqno
from tranlog.log.files.holds import hold
from tranlog.log.reading.reader import LogReader
from tranlog.pipeline.datasource.datasource_options import QueryOptions, check_gtid
from tranlog.pipeline.datasource.datasource_ranges import SeqnoRange, cut, last_of, read_range
from tranlog.replication.acting.remote_log import RemoteLog

if TYPE_CHECKING:
    from pyarrow import RecordBatch

Offset = dict[str, Any]
"""As JSON has it."""
GivenP = ParamSpec("GivenP")
ResultT = TypeVar("ResultT")


def _goes_on(
    call: Callable[Concatenate[ThlStreamReader, GivenP], ResultT],
) -> Callable[Concatenate[ThlStreamReader, GivenP], ResultT]:
    """Have a call of Spark's begin again at another node, once, where the one that it asks goes away meanwhile."""

    @functools.wraps(call)
    def both(self: ThlStreamReader, /, *args: GivenP.args, **options: GivenP.kwargs) -> ResultT:
        try:
            return call(self, *args, **options)
        except LogUnreadableError:
            if self.options.node is None:
                raise
            self.stop()
            return call(self, *args, **options)

    return both


class ThlStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches beside the driver, and reads them, as a copy of itself, in the workers."""

    def __init__(self, options: QueryOptions) -> None:
        self.options = options
        self._log: LogReader | None = None
        self._target: Seqno | None = None
        """What Trigger.AvailableNow ends with."""
        self._end: Seqno | None = None
        """The last transaction that this stream is to read, where it has an end."""
        self._planned = NO_SEQNO

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_log": None}

    # --- how far -------------------------------------------------------------------------------------

    @_goes_on
    def initialOffset(self) -> Offset:
        """Return what stands before the first transaction to read. Raises as `ThlReader.partitions`."""
        log = self._reader()
        first = self.options.start.first(log, "start")
        held = log.range().first_seqno
        if first is None:
            first = max(held, 0)
        if first < held:
            raise PurgedError(seqno=first, first=held)
        self._hold(Seqno(first - 1))
        before = log.header(Seqno(first - 1))
        return {"before": first} if before is None else self._at(before.gtid)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the first of the limits that were asked for; `latestOffset` heeds both."""
        options = self.options
        if options.max_transactions is not None:
            return ReadMaxRows(options.max_transactions)
        return ReadAllAvailable() if options.max_bytes is None else ReadMaxBytes(options.max_bytes)

    @_goes_on
    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Return the end of the next micro-batch: committed, whole, within the limits, `start` if there is nothing.

        Raises NotInLogError if `start` was read from another log, PurgedError if this one has purged what comes next.
        """
        log = self._reader()
        done = self._check(start)
        last = self._last()
        if not isinstance(limit, ReadAllAvailable):
            if self.options.max_transactions is not None:
                last = Seqno(min(last, done + self.options.max_transactions))
            if self.options.max_bytes is not None:
                last = self._within(done, last, self.options.max_bytes)
        self._planned = Seqno(max(done, last))
        if last <= done:
            return start
        header = log.header(last)
        assert header is not None, "it was committed"
        return self._at(header.gtid)

    @_goes_on
    def prepareForTriggerAvailableNow(self) -> None:
        """Use the current commit point as the end."""
        self._target = None
        self._target = self._last()

    @_goes_on
    def reportLatestOffset(self) -> Offset | None:
        """Return what is committed by now, and how far behind the stream is: for people, in its progress."""
        log = self._reader()
        found = log.range()
        last = last_of(found, self.options)
        header = log.header(last)
        if header is None:
            return None
        told: Offset = {"gtid": str(header.gtid)}
        planned = log.header(self._planned)
        if self._planned != NO_SEQNO:
            told["lag_seqnos"] = max(0, last - self._planned)
        if planned is not None:
            told["lag_ms"] = max(0, header.tstamp - planned.tstamp)
        return told

    def _last(self) -> Seqno:
        """Return the newest transaction that may be read now."""
        log = self._reader()
        last = last_of(log.range(), self.options)
        if self._target is not None:
            last = min(last, self._target)
        if self._end is None:
            # A time is looked up anew until something later has come.
            end = self.options.end.last(log, "end")
            if end is None:
                return last
            self._end = Seqno(end)
        return min(last, self._end)

    def _within(self, done: Seqno, last: Seqno, limit: int) -> Seqno:
        """Return the last transaction up to which the records' bytes stay within the limit; at least one."""
        total = 0
        if last <= done:
            return last
        with self._reader().cursor() as cursor:
            cursor.seek(Seqno(done + 1))
            while cursor.next_seqno <= last:
                header = cursor.next_header()
                assert header is not None, "it was committed"
                total += cursor.current().size_bytes
                if total > limit and header.seqno > done + 1:
                    return Seqno(header.seqno - 1)
                if total >= limit:
                    return header.seqno
        return last

    # --- what ----------------------------------------------------------------------------------------

    @_goes_on
    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Cut the micro-batch (start, end] into ranges. Raises NotInLogError, PurgedError."""
        done, last = self._check(start), seqno_of(end)
        if last <= done:
            return []
        self._check_history(end)
        self.options.catch_up(self._reader(), last)
        check_gtid(self._reader(), Gtid.parse(end["gtid"]), "this stream's checkpoint")
        return list(cut(self._reader(), done + 1, last, self.options.partitions))

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        """Yield Arrow batches. Raises as a cursor does."""
        assert isinstance(partition, SeqnoRange)
        return read_range(self.options, partition)

    def commit(self, end: Offset) -> None:
        """Move the hold, if one was asked for: the offsets are in Spark's checkpoint. Raises HoldError, ConfigError."""
        self._hold(seqno_of(end))

    def _hold(self, seqno: Seqno) -> None:
        """Keep this transaction, which a restart looks up, and what comes after it."""
        if self.options.hold is not None:
            hold(self._reader().path, self.options.hold, max(seqno, Seqno(0)), holder="a stream of Spark")

    def stop(self) -> None:
        """Close the log."""
        if self._log is not None:
            self._log.close()
            self._log = None

    def _at(self, gtid: Gtid) -> Offset:
        return {"gtid": str(gtid), "history": self._reader().history.hex()}

    def _check(self, offset: Offset) -> Seqno:
        """Return an offset's seqno, if what comes after it is what came after it then."""
        log = self._reader()
        done = seqno_of(offset)
        self._check_history(offset)
        if "gtid" in offset:
            self.options.catch_up(log, done)
        held = log.range()
        if done + 1 < held.first_seqno:
            raise PurgedError(seqno=Seqno(done + 1), first=held.first_seqno)
        if "gtid" in offset:
            gtid = Gtid.parse(offset["gtid"])
            # The transaction read last may have been purged: what follows it is there.
            if gtid.seqno >= held.first_seqno:
                check_gtid(log, gtid, "this stream's checkpoint")
            elif held.epoch < gtid.epoch:
                raise NotInLogError(what="this stream's checkpoint", gtid=gtid, found=f"is in epoch {held.epoch}")
        return done

    def _check_history(self, offset: Offset) -> None:
        """Raise NotInLogError if the log has another history than the offset: its GTIDs may be the same."""
        if "history" in offset and offset["history"] != (found := self._reader().history.hex()):
            what = f"this stream's checkpoint, of the history {offset['history']},"
            raise NotInLogError(what=what, gtid=Gtid.parse(offset["gtid"]), found=f"has the history {found}")

    def _reader(self) -> LogReader:
        if isinstance(self._log, RemoteLog) and self._log.lost:
            self.stop()  # what another node has is under the same GTIDs
        if self._log is None:
            self._log = self.options.open()
        return self._log


def seqno_of(offset: Offset) -> Seqno:
    """Return the seqno up to which an offset has been read."""
    return Gtid.parse(offset["gtid"]).seqno if "gtid" in offset else Seqno(offset["before"] - 1)
