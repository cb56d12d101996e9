"""Reading the log forward: seek, then the next transaction, waiting for it where it is not written yet.

Owns the position in the log and the rule that nothing is shown before it is whole and visible. Where a seqno lies
is the index's, what is visible the writer's (`log`) or the positions file's (`reader`). The hard idea: a window of
bytes is only trusted up to the seqno that was visible *before* it was read, so it is dropped whenever that limit
moves; below the limit every byte is final, and whatever does not fit there is damage.

Source: seeds/thl-internals, "Reading from the THL"; design/log-format.md, "Who may see what".
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from tranlog.change import Change
from tranlog.errors import (
    AbandonedError,
    CorruptRecordError,
    LogClosedError,
    LogError,
    LogUnreadableError,
    PayloadError,
)
from tranlog.ids import NO_SEQNO, Lsn, Seqno, lsn_offset, lsn_segment, lsn_text, segment_name
from tranlog.log.files.positions import KeptHold
from tranlog.log.files.segment import SegmentReader, payload_at
from tranlog.log.files.segments import Segments
from tranlog.log.files.spilled import SpillFault, SpillReader, fault_error
from tranlog.log.reading.arrow import Unit, read_batches
from tranlog.log.records.columns import ALL, Block, Selection, scan_block
from tranlog.log.records.format import (
    BAD_CHECKSUM,
    CRC_32,
    CRC_NONE,
    HEADER,
    SEQNO_MAX,
    BadChecksum,
    End,
    Impossible,
    Partial,
    RecordHeader,
    RollbackMark,
    RotateRecord,
    SegmentHeader,
    StoredRecord,
    SyncRecord,
    cut_records,
    encode_event,
    parse_event,
    parse_header,
    pass_events,
    skip_events,
    take_events,
)
from tranlog.log.records.spill import Reference, parse_reference
from tranlog.log.rules.bucket import Place
from tranlog.log.rules.rollback import overtaken
from tranlog.payload import Payload, decode

if TYPE_CHECKING:
    from pyarrow import RecordBatch

LOOK_AGAIN_S: Final = 3600.0
"""A wait without end is a row of waits of this length."""
NEAR_SEQNOS: Final = 16
"""A seek so far ahead goes on from where the cursor is; a longer one asks the index."""


class CursorLog(Protocol):
    """What a cursor needs of the log it reads: the writer's own, or a reader's in another process."""

    @property
    def segments(self) -> Segments:
        """The row of segments."""

    @property
    def checksum(self) -> bool:
        """Whether payloads are held against their checksums."""

    def limit(self, *, committed_only: bool) -> Seqno:
        """Return the newest seqno that may be read now."""

    def heed(self) -> None:
        """Have `segments` know every rollback that has returned: before something is returned that was read."""

    def wait(self, seqno: Seqno, *, committed_only: bool, timeout_s: float) -> Seqno:
        """Return the limit once it has reached `seqno`, or after `timeout_s` whatever it is then."""


class StoredTransaction:
    """One transaction as the log holds it: its verdict header at once, its content when asked.

    `header` is the last fragment's: shard, tables and event id speak for the whole. Content is read, and its
    checksum verified, anew at each call, fragment by fragment: memory is one fragment, whatever the transaction.
    Threads: like the cursor that gave it.
    """

    __slots__ = ("_fragments", "_reference", "_start", "_view", "_window", "_window_start", "header")

    def __init__(
        self, view: CursorLog, reader: SegmentReader, start: Lsn, fragments: int, header: RecordHeader
    ) -> None:
        self._view = view
        self._window = reader.window
        self._window_start = reader.start
        self._start = start
        self._fragments = fragments
        self._reference: Reference | None = None
        self.header = header

    @property
    def fragments(self) -> int:
        """How many fragments it has. Of a spilled transaction the reference says it: raises CorruptRecordError."""
        return self._refers_to().fragments if self.header.spilled else self._fragments

    @property
    def size_bytes(self) -> int:
        """How many bytes its records have; of a spilled one its fragments'. Raises CorruptRecordError."""
        if self.header.spilled:
            return self._refers_to().raw_bytes
        return self.header.lsn + self.header.record_length - self._start  # all of it is in one segment

    @property
    def start(self) -> Lsn:
        """Where its first record stands."""
        return self._start

    @property
    def checksum(self) -> int | None:
        """See `ReadableTransaction.checksum`."""
        return self.header.crc if self.header.crc_method == CRC_32 else None

    def payloads(self) -> Iterator[bytes]:
        """Yield each fragment's payload. Raises CorruptRecordError, PurgedError, SegmentGoneError."""
        for record in self.records():
            yield record.payload

    def records(self) -> Iterator[StoredRecord]:
        """Yield each fragment's header and payload. Raises CorruptRecordError, PurgedError, SegmentGoneError."""
        if self.header.spilled:
            yield from self._read_spilled()
        elif self._fragments == 1:
            yield StoredRecord(self.header, self._only_payload())
        else:
            yield from self._read_records()

    def _refers_to(self) -> Reference:
        """Return what the referring record says."""
        if self._reference is None:
            self._reference = parse_reference(self._only_payload())
            if self._reference is None:
                header = self.header
                name, offset = segment_name(lsn_segment(header.lsn)), lsn_offset(header.lsn)
                why = "a reference whose numbers contradict each other"
                raise CorruptRecordError(segment=name, offset=offset, seqno=header.seqno, why=why)
        return self._reference

    def _read_spilled(self) -> Iterator[StoredRecord]:
        segments, header = self._view.segments, self.header
        reader = SpillReader(segments.directory, segments.disk, self._refers_to(), header, segments.history)
        try:
            for found in reader.records():
                if isinstance(found, SpillFault):
                    segments.refresh()
                    if header.seqno < segments.first_seqno():  # purged meanwhile, and its spill with it
                        raise segments.purged(header.seqno)
                    raise fault_error(found, header)
                yield found
        finally:
            reader.close()

    def _only_payload(self) -> bytes:
        """Return the payload of the one fragment, from the window that its header was found in where it fits."""
        header = self.header
        at = lsn_offset(header.lsn) - self._window_start
        unsure = header.crc_method == CRC_NONE and self._view.checksum
        if at >= 0 and at + header.record_length <= len(self._window) and not unsure:
            payload = payload_at(self._window, at, header, checksum=self._view.checksum)
            if payload is None:
                name = segment_name(lsn_segment(header.lsn))
                raise CorruptRecordError(
                    segment=name, offset=lsn_offset(header.lsn), seqno=header.seqno, why=BAD_CHECKSUM
                )
            return payload
        return next(self._read_records()).payload

    def _read_records(self) -> Iterator[StoredRecord]:
        number = lsn_segment(self._start)
        seqno = self.header.seqno
        reader = SegmentReader(self._view.segments.open(number, seqno), number, checksum=self._view.checksum)
        try:
            offset = lsn_offset(self._start)
            for fragno in range(self._fragments):
                outcome = reader.read(offset, verify=False)
                while isinstance(outcome, SyncRecord):
                    offset += outcome.record_length
                    outcome = reader.read(offset, verify=False)
                if not isinstance(outcome, RecordHeader):
                    raise reader.corrupt(offset, seqno, _why(outcome))
                if outcome.seqno != seqno or outcome.fragno != fragno:
                    raise reader.corrupt(offset, seqno, f"fragment {fragno} of seqno {seqno} is not where it belongs")
                yield StoredRecord(outcome, reader.payload(outcome))
                offset += outcome.record_length
        except OSError as exc:
            raise LogUnreadableError(path=self._view.segments.path(number), why=exc.strerror or str(exc)) from exc
        finally:
            self._view.segments.keep_open(number, reader.file)

    def changes(self) -> Iterator[Change]:
        """Yield the changes of all fragments in order. Raises PayloadError as well."""
        for payload in self.payloads():
            yield from self._decode(payload).changes

    def payload(self) -> Payload:
        """Return the whole content at once; for small transactions. Metadata and options are the last fragment's."""
        if self._fragments == 1 and not self.header.spilled:
            return self._decode(self._only_payload())
        parts = [self._decode(payload) for payload in self.payloads()]
        changes = tuple(change for part in parts for change in part.changes)
        return Payload(metadata=parts[-1].metadata, options=parts[-1].options, changes=changes)

    def is_noop(self) -> bool:
        """Whether this is a no-op: a seqno without content, as each start of a writer leaves one."""
        if self._fragments != 1 or self.header.spilled or self.header.tables != ():
            return False
        return self._decode(self._only_payload()).is_noop()

    def _decode(self, raw: bytes) -> Payload:
        try:
            return decode(raw)
        except PayloadError as exc:
            raise PayloadError(why=exc.why, seqno=self.header.seqno) from exc


def _record_bytes(record: StoredRecord) -> bytes:
    """Return a fragment that was spilled as the event record that it would be in the log."""
    header = record.header
    head, trailer = encode_event(
        seqno=header.seqno,
        fragno=header.fragno,
        last_frag=header.last_frag,
        epoch=header.epoch,
        source_id=header.source_id,
        event_id=header.event_id,
        shard_id=header.shard_id,
        tstamp=header.tstamp,
        tables=header.tables,
        payload=record.payload,
        checksum=True,
    )
    return head + record.payload + trailer


def _why(outcome: object) -> str:
    match outcome:
        case BadChecksum() | Impossible():
            return outcome.why
        case Partial():
            return "the file ends inside the record"
        case End():
            return "the records end here, before the last one that was visible"
        case RotateRecord():
            return "a rotate record inside a transaction"
        case _:
            return "something else stands where a record belongs"


class Cursor:
    """A place in the log that moves forward, one transaction at a time.

    A new cursor stands at the log's first transaction. Threads: one at a time; any number of cursors beside it.
    """

    def __init__(self, view: CursorLog, *, committed_only: bool = False, kept: KeptHold | None = None) -> None:
        self._view = view
        self._kept = kept
        self._committed_only = committed_only
        self._reader: SegmentReader | None = None
        self._offset = 0
        self._expect = NO_SEQNO  # seqno of the transaction at _offset
        self._next: Seqno = view.segments.first_seqno()
        self._begun = self._next  # where it was placed; what lies between this and _next was returned since
        self._marks = view.segments.marks  # the rollbacks that were heeded
        self._told: tuple[RollbackMark, ...] | None = None  # those of which the last AbandonedError spoke
        self._living = Seqno(SEQNO_MAX)  # the last seqno that lives in the open segment
        self._limit = NO_SEQNO
        self._last: tuple[SegmentReader, Lsn, int, RecordHeader] | None = None
        self._passed: tuple[bytes, int, Lsn] | None = None  # window, place in it, and LSN of the last one passed over
        self._closed = False
        if kept is not None:
            kept.at(self._next, now=True)

    @property
    def next_seqno(self) -> Seqno:
        """The transaction that `next` returns next."""
        return self._next

    def seek(self, seqno: Seqno) -> None:
        """Stand before `seqno`, also when it is not written yet. Raises PurgedError before the first one held.

        What lies before counts as returned only when this answers an AbandonedError, which it then raises again if
        that was abandoned meanwhile.
        """
        self._check_open()
        segments = self._view.segments
        if seqno < segments.first_seqno():
            raise segments.purged(seqno)
        if self._reader is None or not (self._expect <= seqno < self._expect + NEAR_SEQNOS):
            self._leave()
        else:
            place = segments.start_of(seqno)
            if place is None or lsn_segment(place.lsn) != self._reader.number:
                self._leave()  # what lies between may be abandoned, or purged
        self._last = self._passed = None
        self._next = self._begun = seqno
        if self._kept is not None:
            self._kept.at(seqno, now=True)
        if self._told is not None:
            # What lies before this place is what the caller has left; it may have been abandoned meanwhile as well.
            self._marks, self._told = self._told, None
            self._begun = self._limit = NO_SEQNO
            self._leave()
        if segments.marks is not self._marks:
            self._heed()

    def next(self, timeout_s: float = 0.0) -> StoredTransaction | None:
        """Return the next transaction, or None if none is there within `timeout_s`.

        Raises CorruptRecordError, PurgedError (retention overtook this cursor), SegmentGoneError, AbandonedError (a
        rollback went back to before what this cursor returned since its last seek: that is no longer true; seek).
        """
        return None if self.next_header(timeout_s) is None else self.current()

    def next_header(self, timeout_s: float = 0.0) -> RecordHeader | None:
        """Return the next transaction's verdict header, the last fragment's, passing over payloads unread.

        Moves on like `next`. Checksums cover the whole record and are therefore not verified here, but when the
        payload is read; the header's structure and the unbroken row of seqnos are.
        """
        if self._kept is not None:
            self._kept.at(self._next)
        while True:
            wanted = self._next
            header: RecordHeader | None = None
            try:
                if wanted <= self._limit or self._wait(wanted, timeout_s):
                    header = self._advance(wanted)
                    self._view.heed()
            except BaseException as exc:
                number = 0 if self._reader is None else self._reader.number
                self._leave()  # the next call starts from the index again, not in the middle of something
                if isinstance(exc, LogError | OSError) and self._view.segments.marks is not self._marks:
                    self._next = wanted
                    self._heed()
                    continue
                if isinstance(exc, OSError):
                    path = self._view.segments.path(number)
                    raise LogUnreadableError(path=path, why=exc.strerror or str(exc)) from exc
                raise
            if self._view.segments.marks is self._marks:
                return header
            # A rollback came between: what was read may be abandoned.
            self._next = wanted
            self._heed()
            if header is None:
                return None

    def _heed(self) -> None:
        """Learn of rollbacks. Raises AbandonedError if one of them abandoned what was returned since the last seek."""
        segments = self._view.segments
        marks = segments.marks
        seen = self._marks[-1].dead_end if self._marks else Lsn(0)
        returned = Seqno(self._next - 1) if self._next > self._begun else NO_SEQNO
        mark = overtaken(marks, returned, seen)
        if mark is not None:
            self._told = marks
            raise AbandonedError(
                seqno=returned, matchpoint=mark.matchpoint, mark=lsn_text(mark.dead_end), epoch=mark.epoch
            )
        self._marks = marks
        self._limit = NO_SEQNO
        self._leave()

    def _advance(self, wanted: Seqno) -> RecordHeader:
        if self._reader is None or wanted > self._living:
            self._enter(wanted)
        if self._expect != wanted:
            self._skip_to(wanted)
        reader = self._reader
        assert reader is not None
        window, start, base = reader.window, reader.start, reader.number << 32
        offset = first = self._offset
        fragno = 0
        while True:
            at = offset - start
            header = parse_event(window, at, base | offset) if 0 <= at < len(window) else None
            if header is None:
                self._offset = offset
                header = self._read_slowly(first, fragno, wanted)
                reader = self._reader
                assert reader is not None
                window, start, base = reader.window, reader.start, reader.number << 32
                offset = self._offset
                if header is None:
                    continue
            if header.seqno != wanted or header.fragno != fragno:
                why = f"seqno {header.seqno} fragment {header.fragno} where seqno {wanted} fragment {fragno} belongs"
                raise self._blame(first if fragno else self._before(offset), offset, wanted, why)
            if fragno == 0:
                first = offset
            offset += header.record_length
            if header.last_frag:
                break
            fragno += 1
        self._offset = offset
        self._expect = self._next = Seqno(wanted + 1)
        self._last = (reader, Lsn(base | first), fragno + 1, header)
        return header

    def pass_over(self, shards: Container[bytes], upto: Seqno) -> Seqno:
        """Pass the next transactions that belong to one of `shards` (in UTF-8); return the seqno passed last.

        Ends: in front of any other transaction, behind `upto`, and wherever going on would cost more than a look into
        the bytes read already: then `next_header` goes on. Nothing but the row of seqnos is verified.
        """
        reader, seqno = self._reader, self._next
        at = -1 if reader is None or self._expect != seqno else self._offset - reader.start
        if reader is None or at < 0:
            return Seqno(seqno - 1)
        window = reader.window
        behind, following, last = pass_events(window, at, seqno, min(upto, self._limit, self._living), shards)
        self._view.heed()
        if self._view.segments.marks is not self._marks:
            return Seqno(seqno - 1)  # a rollback came between: `next_header` heeds it
        if last >= 0:
            self._offset = reader.start + behind
            self._expect = self._next = Seqno(following)
            self._last = None
            self._passed = window, last, Lsn(reader.number << 32 | reader.start + last)
        return Seqno(following - 1)

    def passed(self) -> RecordHeader:
        """Return the header of the transaction that `pass_over` passed last. Raises CorruptRecordError."""
        assert self._passed is not None, "pass_over() has passed nothing since the last seek"
        window, at, place = self._passed
        header = parse_event(window, at, place)
        if header is None:
            name, seqno = segment_name(lsn_segment(place)), Seqno(self._next - 1)
            why = "a header that does not fit its record"
            raise CorruptRecordError(segment=name, offset=lsn_offset(place), seqno=seqno, why=why)
        return header

    def raw(self) -> Iterator[tuple[int, bytes]]:
        """Yield the seqno and the bytes of each record that is there now, whole fragments; ends without waiting.

        The cheapest form, for whoever carries or counts records: checksums and the row of seqnos are verified, nothing
        is decoded. A spilled fragment comes as the record that it would be in the log. Moves on by blocks: when it is
        left early, seek. Raises as `next`.
        """
        for window, places, seqno in self._blocks():
            for one in cut_records(window, places, seqno):
                self._view.heed()
                if self._view.segments.marks is not self._marks:
                    self._next = Seqno(one[0])
                    self._heed()
                    break
                yield one

    def _blocks(self) -> Iterator[tuple[bytes, list[int], Seqno]]:
        """Yield runs of records that stand side by side: bytes, where each begins and the last ends, first seqno."""
        while True:
            reader, seqno = self._reader, self._next
            if reader is not None and self._expect == seqno and reader.start <= self._offset:
                window, start = reader.window, reader.start
                places: list[int] = []
                upto = min(self._limit, self._living)
                behind, following = take_events(
                    window, self._offset - start, seqno, upto, places, verify=self._view.checksum
                )
                self._view.heed()
                if places and self._view.segments.marks is self._marks:
                    self._offset = start + behind
                    self._expect = self._next = Seqno(following)
                    self._last = None
                    self._passed = window, places[-1], Lsn(reader.number << 32 | start + places[-1])
                    places.append(behind)
                    yield window, places, seqno
                    continue
            if self.next_header() is None:
                return
            transaction = self.current()
            for raw in self._raw_of(transaction):
                yield raw, [0, len(raw)], transaction.header.seqno

    def _raw_of(self, transaction: StoredTransaction) -> Iterator[bytes]:
        """Yield the bytes of a transaction's records, verified."""
        if transaction.header.spilled:
            for record in transaction.records():
                yield _record_bytes(record)
            return
        number = lsn_segment(transaction.start)
        file = self._view.segments.open(number, transaction.header.seqno)
        try:
            for record in transaction.records():
                yield file.pread(record.header.record_length, lsn_offset(record.header.lsn))
        except OSError as exc:
            path = self._view.segments.path(number)
            raise LogUnreadableError(path=path, why=exc.strerror or str(exc)) from exc
        finally:
            self._view.segments.keep_open(number, file)

    def _skip_to(self, wanted: Seqno) -> None:
        """Move from the place that the index gave to the first record of `wanted`, payloads unread."""
        reader = self._reader
        assert reader is not None
        near = reader.start
        while True:
            at = self._offset - reader.start
            if 0 <= at < len(reader.window):
                self._offset = reader.start + skip_events(reader.window, at, wanted)
            outcome = reader.read(self._offset, verify=False)
            match outcome:
                case RecordHeader():
                    if outcome.fragno == 0 and outcome.seqno <= wanted and reader.start != near:
                        self._view.segments.note(outcome.seqno, outcome.lsn)
                    if outcome.seqno == wanted and outcome.fragno == 0:
                        self._expect = wanted
                        return
                    if outcome.seqno >= wanted:
                        why = f"seqno {outcome.seqno} fragment {outcome.fragno} where seqno {wanted} belongs"
                        raise reader.corrupt(self._offset, outcome.seqno, why)
                    self._offset += outcome.record_length
                case SyncRecord() | RollbackMark():
                    self._offset += outcome.record_length
                case RotateRecord():
                    reader = self._rotate(reader, outcome, wanted)
                    if wanted > self._living:  # what this segment holds under that number was abandoned
                        reader = self._enter(wanted)
                    if self._expect == wanted:
                        return
                case _:
                    raise reader.corrupt(self._offset, wanted, _why(outcome))

    def current(self) -> StoredTransaction:
        """Return the transaction whose header `next_header` returned last."""
        assert self._last is not None, "next_header() has not returned a header since the last seek"
        reader, start, fragments, header = self._last
        return StoredTransaction(self._view, reader, start, fragments, header)

    # --- iterating -----------------------------------------------------------------------------------

    def __iter__(self) -> Cursor:
        return self

    def __next__(self) -> StoredTransaction:
        """Return the next transaction, waiting for it as long as it takes. Raises as `next`; LogClosedError."""
        while (found := self.next(LOOK_AGAIN_S)) is None:
            pass
        return found

    def scan(self, *, until: Seqno | None = None, wait: bool = True) -> Iterator[StoredTransaction]:
        """Yield the transactions from here on, waiting for those that are not there yet.

        Ends: behind `until`; without `wait`, where there is nothing more now. Raises as `next`.
        """
        while until is None or self._next <= until:
            found = self.next(LOOK_AGAIN_S if wait else 0.0)
            if found is not None:
                yield found
            elif not wait:
                return

    def records(self, *, until: Seqno | None = None, wait: bool = True) -> Iterator[StoredRecord]:
        """Yield the raw records, fragment by fragment; moves on by whole transactions. Ends and raises as `scan`."""
        for transaction in self.scan(until=until, wait=wait):
            yield from transaction.records()

    def batches(
        self,
        *,
        unit: Unit = Unit.CHANGE,
        columns: Sequence[str] | None = None,
        selection: Selection = ALL,
        until: Seqno | None = None,
        wait: bool = True,
    ) -> Iterator[RecordBatch]:
        """Yield Arrow record batches of what stands from here on: one row per change, or per transaction.

        Shape: the columns of `log.arrow`, `columns` of them, in the order given; a batch ends where it is large
        enough, or nothing more is there now, and holds at least one row. What `selection` leaves out is told by the
        headers, before a payload is read. Ends as `scan`. Raises as `next`; PayloadError; ConfigError for a column
        that there is not; LibraryMissingError where pyarrow is not installed.
        """
        return read_batches(self, unit=unit, columns=columns, selection=selection, until=until, wait=wait)

    def block(self, until: Seqno | None, selection: Selection, verdicts: dict[bytes, bool]) -> Block | None:
        """Take the next transactions of one fragment each out of the bytes read already; None where there is none.

        Ends: in front of any other transaction, behind `until`, and at the end of these bytes: then `next` goes on.
        Checksums are verified; what is not wanted is passed over and may leave a block without records.
        """
        reader, seqno = self._reader, self._next
        at = -1 if reader is None or self._expect != seqno else self._offset - reader.start
        if reader is None or not 0 <= at < len(reader.window):
            return None
        upto = min(self._limit, self._living, SEQNO_MAX if until is None else until)
        block = Block(reader.window)
        behind, following = scan_block(
            block, at, seqno, upto, checksum=self._view.checksum, selection=selection, verdicts=verdicts
        )
        self._view.heed()
        if following == seqno or self._view.segments.marks is not self._marks:
            return None  # after a rollback `next` heeds it
        self._offset = reader.start + behind
        self._expect = self._next = Seqno(following)
        self._last = self._passed = None
        return block

    def close(self) -> None:
        """Let go of the files; closing twice is harmless. A hold stays where it is."""
        self._leave()
        self._closed = True

    def __enter__(self) -> Cursor:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise LogClosedError("this cursor was closed")

    def _leave(self) -> None:
        if self._reader is not None:
            self._view.segments.keep_open(self._reader.number, self._reader.file)
            self._reader = None
        self._last = None

    def _wait(self, wanted: Seqno, timeout_s: float) -> bool:
        self._check_open()
        view = self._view
        limit = view.limit(committed_only=self._committed_only)
        if limit < wanted and timeout_s > 0 and view.segments.marks is self._marks:
            limit = view.wait(wanted, committed_only=self._committed_only, timeout_s=timeout_s)
        if limit > self._limit:
            self._limit = limit
            if self._reader is not None:
                # What was read behind the old limit may have been cut and written again since.
                self._reader.forget()
        return wanted <= limit

    def _enter(self, wanted: Seqno) -> SegmentReader:
        """Open the segment to read from on the way to `wanted`, and return its reader."""
        segments = self._view.segments
        self._view.limit(committed_only=self._committed_only)  # before the index is asked, to hear of rollbacks
        place = segments.locate(wanted)
        reader = self._open_at(place, wanted)
        if place is None or self._offset == HEADER.size or reader.begins(self._offset, place.seqno):
            return reader
        # The index is wrong here, or the log is damaged: walking there tells which.
        reader = self._open_at(segments.start_of(wanted), wanted)
        if self._expect != wanted:
            self._skip_to(wanted)
            assert self._reader is not None
            reader = self._reader
        segments.misled(place)
        return reader

    def _open_at(self, place: Place | None, wanted: Seqno) -> SegmentReader:
        segments = self._view.segments
        if place is None:
            raise segments.purged(wanted)
        self._offset = lsn_offset(place.lsn)
        self._expect = place.seqno
        return self._open(lsn_segment(place.lsn), wanted)

    def _open(self, number: int, wanted: Seqno) -> SegmentReader:
        segments = self._view.segments
        file = segments.open(number, wanted)
        cut = segments.cut_of(number)
        self._living = Seqno(SEQNO_MAX) if cut is None else cut
        if self._reader is not None:
            segments.keep_open(self._reader.number, self._reader.file)
        self._reader = SegmentReader(file, number, checksum=self._view.checksum)
        return self._reader

    def _before(self, offset: int) -> int:
        """Return where the transaction returned last begins, if it lies in this segment; else `offset`."""
        if self._last is not None:
            start = self._last[1]
        elif self._passed is not None:
            start = self._passed[2]
        else:
            return offset
        if self._reader is None:
            return offset
        return lsn_offset(start) if lsn_segment(start) == self._reader.number else offset

    def _blame(self, first: int, offset: int, seqno: Seqno, why: str) -> CorruptRecordError:
        """Return the error for what was found at `offset`, or for the record from `first` on that misled us there."""
        reader = self._reader
        assert reader is not None
        at = first
        while self._view.checksum and at <= offset:
            outcome = reader.read(at, verify=True)
            if isinstance(outcome, BadChecksum):
                return reader.corrupt(at, seqno, outcome.why)
            if not isinstance(outcome, RecordHeader | SyncRecord):
                break
            at += outcome.record_length
        return reader.corrupt(offset, seqno, why)

    def _read_slowly(self, first: int, fragno: int, wanted: Seqno) -> RecordHeader | None:
        """Take a step that the fast path could not: None after moving on, or a header that passes the window."""
        reader = self._reader
        assert reader is not None
        window = reader.start
        outcome = reader.read(self._offset, verify=False)
        if reader.start != window:
            self._view.limit(committed_only=self._committed_only)  # far from the limit, it hears of rollbacks here
        match outcome:
            case RecordHeader():
                if fragno == 0:
                    self._view.segments.note(outcome.seqno, outcome.lsn)
                return outcome
            case SyncRecord() | RollbackMark():
                self._offset += outcome.record_length
            case RotateRecord():
                if fragno:
                    raise self._blame(first, self._offset, wanted, _why(outcome))
                following = self._rotate(reader, outcome, wanted)
                if self._expect != wanted:
                    why = f"bad header: prev_seqno {self._expect - 1}, but the previous segment ends at {wanted - 1}"
                    raise following.corrupt(0, wanted, why)
            case _:
                start = first if fragno else self._before(self._offset)
                raise self._blame(start, self._offset, wanted, _why(outcome))
        return None

    def _rotate(self, reader: SegmentReader, rotate: RotateRecord, wanted: Seqno) -> SegmentReader:
        number = reader.number + 1
        if rotate.next_file_name != segment_name(number):
            raise reader.corrupt(self._offset, wanted, f"a rotate record that leads to {rotate.next_file_name}")
        segments = self._view.segments
        if not segments.knows(number):
            segments.refresh()
        following = self._open(number, wanted)
        header = parse_header(following.file.pread(HEADER.size, 0))
        if not isinstance(header, SegmentHeader):
            why = header.why if isinstance(header, Impossible) else "bad header: cut short or zeros"
            raise following.corrupt(0, wanted, why)
        self._offset = HEADER.size
        self._expect = Seqno(header.prev_seqno + 1)
        if self._expect > wanted:
            why = f"bad header: prev_seqno {header.prev_seqno}, but the previous segment ends before seqno {wanted}"
            raise following.corrupt(0, wanted, why)
        return following
