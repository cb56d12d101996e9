"""The capture loop: from a source into the log, and the source freed once the log is durable.

Owns the order of the three steps on which "loses and repeats nothing" rests: the source has committed, the log is
synced, the source forgets. Leaves reading to the source and bytes to the log. The hard idea: nothing is remembered
here. Where to go on is the event id of the log's last transaction, so a kill between any two steps costs only work.
What else a source wants to know then is written beside the log, after it was released.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace

from tranlog.capture.holder import holder_of
from tranlog.capture.loading import Loading
from tranlog.capture.verifying import Summing, Verifying
from tranlog.change import HEARTBEAT, NOOP, Fragment
from tranlog.clock import Clock, SystemClock
from tranlog.errors import SourceError
from tranlog.ids import NO_SEQNO, Seqno
from tranlog.log.files.source_notes import read_source_notes, write_source_notes
from tranlog.log.writing.log import Log
from tranlog.option_kinds import ABOVE_0, Bounds, check_bounds, check_kinds
from tranlog.payload import Payload, count_changes, encode
from tranlog.shard import UNKNOWN_SHARD
from tranlog.source.source import ClaimedSource, NotingSource, SendingSource, Source

logger = logging.getLogger(__name__)

_LONGEST_BATCH_S = 2.0
"""A disk that stood still for a minute is no reason to show nothing for another."""
_CHUNK_POLL_S = 0.02
"""Seconds that a wait for the source lasts while a snapshot is open."""
_EXPIRE_EVERY_S = 60.0
"""How often the log is asked to close and give up what is old enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureOptions:
    """How transactions are grouped into syncs. One that finds the source idle after it is synced at once."""

    batch_bytes: int = 4 << 20
    """Payload bytes after which a sync is due, at the next transaction's end."""
    batch_s: float = 0.05
    """Seconds after which a sync is due while the source has ever more: a bound on how late a transaction shows.

    On a disk whose syncs take longer than that, as long as the last one took, up to 2 seconds: else most of the time
    would go to waiting for syncs of next to nothing.
    """
    poll_s: float = 0.5
    """Seconds that one wait for the source lasts; also how late an event given to `run` may be seen."""

    def check(self) -> None:
        """Raise ConfigError for a value that cannot work."""
        check_kinds(self)
        check_bounds(self, _BOUNDS)


_BOUNDS: Bounds = (
    ("batch_bytes", 1, math.inf, "at least one byte"),
    ("batch_s", 0, math.inf, "seconds, not below 0"),
    ("poll_s", ABOVE_0, 60, "seconds above 0, up to 60"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartRead:
    """How far a capture is inside a large transaction, one of several fragments; how large it is only its end tells.

    `changes` and `read_bytes`, of payload, are in the log and not yet complete. `began_at`: ms since 1970.
    """

    changes: int
    read_bytes: int
    began_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureStatus:
    """What a capture has done since it was made, counting only what is durable; beside it, in what it is."""

    source_id: str
    transactions: int
    fragments: int
    payload_bytes: int
    syncs: int
    last_seqno: Seqno
    """The last transaction captured; NO_SEQNO while there is none."""
    last_event_id: str | None
    lag_ms: int | None
    """From the last transaction's commit at the source until it was durable here; None while there is none."""
    in_flight: PartRead | None = None
    """The large transaction that is being read; None for none."""


class Capture:
    """Carries a source's transactions into a log, until told to stop.

    Threads: `run` and `catch_up` by one; `stop` and `status` by any, also from a signal handler.
    """

    def __init__(
        self,
        source: Source,
        log: Log,
        *,
        options: CaptureOptions | None = None,
        clock: Clock | None = None,
        take_source: bool = False,
        summing: Summing | None = None,
        load: tuple[str, ...] | None = None,
    ) -> None:
        """Bring them together; nothing is read or claimed before the first run.

        `take_source`: a source that another log has claimed becomes this one's. `summing`: by which tables are
        verified at a position; None: none are. `load`: tables, () for all, None for none, that are loaded again by
        themselves after a gap.
        """
        self._options = options if options is not None else CaptureOptions()
        self._options.check()
        self._source = source
        self._log = log
        self._clock = clock if clock is not None else SystemClock()
        self._take_source = take_source
        self._stop = threading.Event()
        # appended, complete and not yet durable
        self._batch_last: Fragment | None = None
        self._batch_transactions = 0
        self._batch_fragments = 0
        self._batch_bytes = 0
        self._loading = Loading(source, log, self._clock, load)
        self._verifying = Verifying(source, log, self._clock, summing)
        self._heartbeats: deque[tuple[str, Future[Seqno]]] = deque()
        self._in_flight: PartRead | None = None
        self.begun = False
        """Whether the source has started where the log ends."""
        self._sync_s = 0.0  # how long the last sync took, up to _LONGEST_BATCH_S
        self._status = CaptureStatus(
            source_id=source.source_id,
            transactions=0,
            fragments=0,
            payload_bytes=0,
            syncs=0,
            last_seqno=NO_SEQNO,
            last_event_id=None,
            lag_ms=None,
        )

    def run(self, stop: threading.Event | None = None) -> CaptureStatus:
        """Capture until `stop` is set or called, then return; the log and the source stay open.

        Ends: after the transaction at hand; a large one is left and comes again. Whatever was captured is durable
        then. Raises: PositionLostError and the source's other errors, the log's errors; what is complete is
        durable then unless the log is at fault, and running again goes on where the log ends. DiskFullError is
        among them: nothing is lost, since the source still has what was refused.
        """
        stop = self._stop if stop is None else stop
        self._begin()
        looked = self._clock.monotonic()
        try:
            while not (stop.is_set() or self._stop.is_set()):
                self._take(self._source.read(_CHUNK_POLL_S if self._waits else self._options.poll_s), stop)
                self._beat()
                if not self._loading.waits:  # a source takes one snapshot at a time
                    self._verifying.turn()
                if not self._verifying.waits:
                    self._loading.turn()
                if self._clock.monotonic() - looked >= _EXPIRE_EVERY_S:  # also while nothing comes
                    looked = self._clock.monotonic()
                    self._log.expire()
        finally:
            self._verifying.drop()
            while self._heartbeats:
                self._heartbeats.popleft()[1].cancel()
        return self._status

    def catch_up(self, *, wait_s: float = 0.0) -> CaptureStatus:
        """Capture what the source has by now, and return. Raises as `run`.

        `wait_s`: how long to wait for what a server has not made durable yet; 0 for a source that is none. Up to where
        a server is by now, it is awaited however long that takes.
        """
        self._begin()
        source, now = self._source, self._clock.monotonic
        server = source if isinstance(source, SendingSource) else None
        end = "" if server is None else server.end()
        patient_until = now() + wait_s
        try:
            while not self._stop.is_set():
                before = self._status.transactions
                self._take(source.read(wait_s if server is None else _CHUNK_POLL_S), self._stop)
                while self._goes_on() and not self._stop.is_set():
                    self._take(source.read(_CHUNK_POLL_S), self._stop)
                if server is None:
                    if before == self._status.transactions:
                        break
                elif now() >= patient_until and server.has_given(end):
                    break
        finally:
            self._verifying.drop()
        return self._status

    def _goes_on(self) -> bool:
        loads = not self._verifying.waits and self._loading.goes_on()
        return loads or self._verifying.goes_on()

    @property
    def _waits(self) -> bool:
        return self._loading.waits or self._verifying.is_near

    def heartbeat(self, name: str) -> Future[Seqno]:
        """Have a heartbeat appended after the transaction at hand: an empty transaction with this name.

        The answer comes when it is durable; it is cancelled where `run` ends before.

        Threads: any. It passes through log and pipeline as every transaction does, and no source hears of it; it
        repeats the event id before it, so that capture resumes as if it were not there.
        """
        answer: Future[Seqno] = Future()
        self._heartbeats.append((name, answer))
        return answer

    def _beat(self) -> None:
        """Append the heartbeats that were asked for, between two reads of the source."""
        log = self._log
        beaten: list[tuple[Future[Seqno], Seqno]] = []
        while len(beaten) < len(self._heartbeats):
            name, answer = self._heartbeats[len(beaten)]
            gtid = log.append(
                Fragment(
                    source_id=self._source.source_id,
                    event_id=log.last_event_id() or "",
                    shard_id=UNKNOWN_SHARD,
                    tstamp=self._clock.now_ms(),
                    tables=(),
                    payload=encode(Payload(metadata=((NOOP, HEARTBEAT), (HEARTBEAT, name)))),
                    last=True,
                )
            )
            beaten.append((answer, gtid.seqno))
        if beaten:
            log.commit()
        for answer, seqno in beaten:
            self._heartbeats.popleft()
            answer.set_result(seqno)

    def stop(self) -> None:
        """Make `run` end soon, now and from now on."""
        self._stop.set()
        self._source.stop()

    def status(self) -> CaptureStatus:
        """Return what was done so far, and in what it is."""
        return replace(self._status, in_flight=self._in_flight)

    def _begin(self) -> None:
        """Start the source where the log ends, and free it of what was synced but not freed the last time."""
        log, source = self._log, self._source
        log.commit()
        if isinstance(source, ClaimedSource):
            source.claim(history=log.history, holder=holder_of(log.path, disk=log.disk), take=self._take_source)
        event_id = log.last_event_id()
        if event_id is not None and isinstance(source, NotingSource):
            notes = read_source_notes(log.path, log.disk)
            if notes is not None:
                source.take_notes(notes)
        source.start(event_id)
        self._loading.resume()
        self._take_source = False  # another log that takes it from now on keeps it
        if event_id is not None:
            self._release(event_id)
        self.begun = True

    def _take(self, fragments: Iterator[Fragment], stop: threading.Event) -> None:
        """Carry over what one read of the source gives, and make it durable."""
        log, options, clock = self._log, self._options, self._clock
        parts = size = 0  # of the transaction that is being appended
        began = clock.monotonic()
        try:
            for fragment in fragments:
                if not parts:
                    self._append_due(fragment.event_id)
                if fragment.last and fragment.tables is None:
                    self._loading.note_gap(fragment)
                log.append(fragment)
                parts += 1
                size += len(fragment.payload)
                if fragment.last:
                    self._batch_last = fragment
                    self._batch_transactions += 1
                    self._batch_fragments += parts
                    self._batch_bytes += size
                    parts = size = 0
                    self._in_flight = None
                    waited = clock.monotonic() - began
                    if self._batch_bytes >= options.batch_bytes or waited >= max(options.batch_s, self._sync_s):
                        self._commit()
                        began = clock.monotonic()
                else:
                    before = self._in_flight or PartRead(changes=0, read_bytes=0, began_at=clock.now_ms())
                    changes = before.changes + count_changes(fragment.payload)
                    self._in_flight = replace(before, changes=changes, read_bytes=size)
                if stop.is_set() or self._stop.is_set():
                    break
        except SourceError:
            log.abandon_open()
            log.commit()  # what came whole stays; the source is freed of it next time
            self._forget_batch()
            raise
        except BaseException:
            log.abandon_open()
            self._forget_batch()
            raise
        finally:
            self._in_flight = None
            if isinstance(fragments, Generator):
                fragments.close()
        if parts:
            log.abandon_open()
        if self._batch_last is not None:
            self._commit()
        if not parts:
            self._append_due(None)

    def _append_due(self, event_id: str | None) -> None:
        """Append what belongs to a snapshot that the stream has reached: before the transaction of this event id.

        None: a read has ended.
        """
        if self._verifying.is_due(event_id):
            if self._batch_last is not None:
                self._commit()
            self._verifying.append()
        if self._loading.is_due(event_id):
            self._append_chunk()

    def _append_chunk(self) -> None:
        """Append a load's chunk, behind what is durable then; all that are left where one snapshot serves them."""
        if self._batch_last is not None:
            self._commit()
        self._loading.append()
        while self._loading.is_open and not self._stop.is_set():
            self._loading.append()

    def _commit(self) -> None:
        """Make the batch durable in the log, and only then let the source forget it."""
        began = self._clock.monotonic()
        seqno = self._log.commit()
        self._sync_s = min(self._clock.monotonic() - began, _LONGEST_BATCH_S)
        last = self._batch_last
        assert last is not None
        before = self._status
        self._status = CaptureStatus(
            source_id=before.source_id,
            transactions=before.transactions + self._batch_transactions,
            fragments=before.fragments + self._batch_fragments,
            payload_bytes=before.payload_bytes + self._batch_bytes,
            syncs=before.syncs + 1,
            last_seqno=seqno,
            last_event_id=last.event_id,
            lag_ms=max(self._clock.now_ms() - last.tstamp, 0),
        )
        self._forget_batch()
        self._release(last.event_id)

    def _release(self, event_id: str) -> None:
        """Let the source forget what is durable, and keep what it notes then."""
        source = self._source
        source.release(event_id)
        if isinstance(source, NotingSource) and (notes := source.notes()) is not None:
            write_source_notes(self._log.path, notes, self._log.disk)

    def _forget_batch(self) -> None:
        self._batch_last = None
        self._batch_transactions = 0
        self._batch_fragments = 0
        self._batch_bytes = 0
