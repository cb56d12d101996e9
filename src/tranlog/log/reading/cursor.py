"""Reading the log forward: seek, then the next transaction, waiting for it where it is not written yet.

Owns the rule that nothing is shown before it is whole and visible, or after it was abandoned. The place in the log is
`walk`'s; what is visible is the writer's (`log`) or the positions file's (`reader`) to say. The hard idea: a window of
bytes is only trusted up to the seqno that was visible *before* it was read, so it is dropped whenever that limit
moves; below the limit every byte is final, and whatever does not fit there is damage.

Source: thl-internals, "Reading from the THL"; docs/format.md.
"""

from __future__ import annotations

from array import array
from collections.abc import Container, Iterator, Sequence
from contextlib import closing
from operator import index
from typing import TYPE_CHECKING, Final, NamedTuple

from tranlog.change import Change
from tranlog.clock import check_seconds
from tranlog.closing import Closing
from tranlog.errors import (
    AbandonedError,
    CorruptRecordError,
    LogClosedError,
    LogError,
    LogUnreadableError,
    PayloadError,
)
from tranlog.header import Passes
from tranlog.ids import NO_SEQNO, Lsn, Seqno, segment_name
from tranlog.log.files.hashing import hash_up_to, record_tag
from tranlog.log.files.holds import KeptHold
from tranlog.log.files.segment import SegmentReader, payload_at
from tranlog.log.files.spilled import SpillFault, SpillReader, fault_error
from tranlog.log.reading.arrow import Unit, read_batches
from tranlog.log.reading.walk import CursorLog, LogWalk, fault_of
from tranlog.log.records.columns import ALL, Block, Selection, scan_block
from tranlog.log.records.format import (
    BAD_CHECKSUM,
    CRC_32,
    CRC_NONE,
    SEQNO_MAX,
    RecordHeader,
    RollbackMark,
    StoredRecord,
    SyncRecord,
    cut_records,
    encode_event,
    parse_event,
    pass_events,
    take_events,
)
from tranlog.log.records.running_hash import after, fold, fold_span, unsigned
from tranlog.log.records.spill import RawChunk, Reference, parse_reference
from tranlog.log.rules.rollback import overtaken
from tranlog.lsn import lsn_offset, lsn_segment, lsn_text
from tranlog.payload import Payload, decode

if TYPE_CHECKING:
    from pyarrow import RecordBatch

LOOK_AGAIN_S: Final = 3600.0
"""A wait without end is a row of waits of this length."""
NEAR_SEQNOS: Final = 16
"""A seek of up to so many seqnos goes on from where the cursor is; a longer one asks the index."""


class StoredTransaction:
    """One transaction as the log holds it: its verdict header at once, its content when asked.

    `header` is the last fragment's: shard, tables and event id speak for the whole. Content is read, and its
    checksum verified, again at each call, fragment by fragment: memory is one fragment, whatever the transaction.
    Threads: like the cursor that gave it.
    """

    __slots__ = ("_fragments", "_places", "_reference", "_start", "_view", "_window", "_window_start", "header")

    def __init__(
        self, view: CursorLog, reader: SegmentReader, start: Lsn, fragments: int, header: RecordHeader
    ) -> None:
        self._view = view
        self._window = reader.window
        self._window_start = reader.start
        self._start = start
        self._fragments = fragments
        self._reference: Reference | None = None
        self._places: array[int] | None = None  # of its chunks, once they were asked for
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
    def oid(self) -> bytes:
        """Whose chunks those of a spilled transaction are. Raises CorruptRecordError."""
        return self._refers_to().oid

    @property
    def start(self) -> Lsn:
        """Where its first record stands."""
        return self._start

    @property
    def checksum(self) -> int | None:
        """See `ReadableTransaction.checksum`."""
        return self.header.crc if self.header.crc_method == CRC_32 else None

    def added(self) -> int:
        """Return what it makes of a running hash of 0, see `running_hash`. Raises as `records`."""
        header = self.header
        if self._fragments == 1 and header.crc_method == CRC_32 and not header.spilled:
            return fold(0, header.crc, header.seqno, header.epoch)
        added, number = 0, lsn_segment(self._start)
        with self._view.segments.opened(number, header.seqno) as file:
            reader = SegmentReader(file, number)
            for record in self.in_log():
                added = fold(added, record_tag(reader, record.header), header.seqno, header.epoch)
        return added

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

    def in_log(self) -> Iterator[StoredRecord]:
        """Yield the records that stand in the log: of a spilled transaction the one that refers to it. Raises as
        `records`."""
        return self._read_records()

    def chunks(self, first: int = 0) -> Iterator[RawChunk]:
        """Yield what a spilled transaction refers to, from chunk `first` on; nothing of any other. Raises as `records`.

        For `Log.put_chunk`.
        """
        if self.header.spilled:
            with closing(self._spill_reader()) as reader:
                places = self._places or reader.places()
                if isinstance(places, SpillFault):
                    raise self._missing(places)
                self._places = places
                for found in reader.chunks(first, places[first:]):
                    if isinstance(found, SpillFault):
                        raise self._missing(found)
                    yield found

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
        with closing(self._spill_reader()) as reader:
            for found in reader.records():
                if isinstance(found, SpillFault):
                    raise self._missing(found)
                yield found

    def _spill_reader(self) -> SpillReader:
        segments = self._view.segments
        return SpillReader(segments.directory, segments.disk, self._refers_to(), self.header, segments.history)

    def _missing(self, fault: SpillFault) -> LogError:
        """Return the error for a fault in what was spilled."""
        segments, header = self._view.segments, self.header
        segments.refresh()
        if header.seqno < segments.first_seqno():  # purged meanwhile, and its spill with it
            return segments.purged(header.seqno)
        return fault_error(fault, header)

    def place_in_window(self) -> int:
        """Return where the record of its one fragment stands in the window that was read; -1 where it is not there."""
        at = lsn_offset(self._start) - self._window_start
        whole = self._fragments == 1 and not self.header.spilled and at + self.header.record_length <= len(self._window)
        return at if whole else -1

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
        with self._view.segments.opened(number, seqno) as file:
            reader = SegmentReader(file, number, checksum=self._view.checksum)
            offset = lsn_offset(self._start)
            for fragno in range(self._fragments):
                outcome = reader.read(offset, verify=False)
                while isinstance(outcome, SyncRecord):
                    offset += outcome.record_length
                    outcome = reader.read(offset, verify=False)
                if not isinstance(outcome, RecordHeader):
                    raise reader.corrupt(offset, seqno, fault_of(outcome))
                if outcome.seqno != seqno or outcome.fragno != fragno:
                    why = f"fragment {fragno} of seqno {seqno} is not where it belongs"
                    raise reader.corrupt(offset, seqno, why)
                yield StoredRecord(outcome, reader.payload(outcome))
                offset += outcome.record_length

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


class Stretch(NamedTuple):
    """Records as bytes: whole transactions up to seqno `last`, or one fragment of it.

    `spilled`: the one record refers to this transaction, whose chunks come before it. `large`: this transaction is too
    large to come as bytes, which are empty here.
    """

    last: Seqno
    raw: bytes
    spilled: StoredTransaction | None
    large: StoredTransaction | None = None

    def chunks(self) -> Iterator[RawChunk]:
        """Yield what `Log.put_chunk` takes before `Log.append_raw` takes the records. Raises as `next`."""
        if self.spilled is not None:
            yield from self.spilled.chunks()


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
        write_set=header.write_set,
        payload=record.payload,
        checksum=True,
    )
    return head + record.payload + trailer


class Cursor(Closing):
    """A place in the log that moves forward, one transaction at a time.

    A new cursor stands at the log's first transaction. Threads: one at a time; any number of cursors beside it.
    """

    def __init__(self, view: CursorLog, *, committed_only: bool = False, kept: KeptHold | None = None) -> None:
        self._view = view
        self._kept = kept
        self._committed_only = committed_only
        self._walk = LogWalk(view, committed_only=committed_only)
        self._next: Seqno = view.segments.first_seqno()
        self._begun = self._next  # where it was placed; what lies between this and _next was returned since
        self._marks = view.segments.marks  # the rollbacks that were applied
        self._told: tuple[RollbackMark, ...] | None = None  # those of which the last AbandonedError spoke
        self._limit = NO_SEQNO
        self._hashed: tuple[Seqno, int] | None = None  # a transaction that was returned, and the running hash up to it
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
        seqno = Seqno(index(seqno))  # 1.0 is equal to a number, and no record has it
        segments = self._view.segments
        if seqno < segments.first_seqno():
            raise segments.purged(seqno)
        walk = self._walk
        if walk.reader is None or not (walk.expect <= seqno < walk.expect + NEAR_SEQNOS):
            walk.leave()
        else:
            place = segments.start_of(seqno)
            if place is None or lsn_segment(place.lsn) != walk.reader.number:
                walk.leave()  # what lies between may be abandoned, or purged
        walk.found = walk.passed = self._hashed = None
        self._next = self._begun = seqno
        if self._kept is not None:
            self._kept.at(seqno, now=True)
        if self._told is not None:
            # What lies before this place is what the caller has left; it may have been abandoned meanwhile as well.
            self._marks, self._told = self._told, None
            self._begun = self._limit = NO_SEQNO
            walk.leave()
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
        if timeout_s != 0.0:
            check_seconds("timeout_s", timeout_s)
        if self._kept is not None:
            self._kept.at(self._next)
        while True:
            wanted = self._next
            header: RecordHeader | None = None
            try:
                if wanted <= self._limit or self._wait(wanted, timeout_s):
                    header = self._walk.advance(wanted)
                    self._next = self._walk.expect
                    self._view.heed()
            except BaseException as exc:
                number = 0 if self._walk.reader is None else self._walk.reader.number
                self._walk.leave()  # the next call starts from the index again, not in the middle of something
                if isinstance(exc, LogError | OSError) and self._view.segments.marks is not self._marks:
                    self._next = wanted
                    self._heed()
                    continue
                if isinstance(exc, OSError):
                    path = self._view.segments.files.path(number)
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
        """Take new rollbacks into account.

        Raises AbandonedError if one of them abandoned what was returned since the last seek.
        """
        segments = self._view.segments
        marks = segments.marks
        seen = self._marks[-1].dead_end if self._marks else Lsn(0)
        returned = Seqno(self._next - 1) if self._next > self._begun else NO_SEQNO
        mark = overtaken(marks, returned, seen)
        if mark is not None:
            self._told = marks
            raise AbandonedError(
                seqno=returned, matchpoint=mark.matchpoint, mark=lsn_text(mark.dead_end), number=mark.number
            )
        self._marks = marks
        self._limit = NO_SEQNO
        self._hashed = None
        self._walk.leave()

    def _overtaken(self) -> bool:
        """Whether a rollback came since the last one applied: what was just read may be abandoned, and does not count.

        `next_header` applies it.
        """
        self._view.heed()
        return self._view.segments.marks is not self._marks

    def pass_over(self, shards: Container[bytes], upto: Seqno, passes: Passes | None = None) -> Seqno:
        """Pass the next transactions that belong to one of `shards` (in UTF-8); return the seqno passed last.

        With `passes` those of which it says so instead: it is asked for one after the other, and what it lets pass is
        passed.

        Ends: before any other transaction, after `upto`, and wherever going on would cost more than a look into
        the bytes read already: then `next_header` goes on. Nothing but the row of seqnos is verified.
        """
        walk, seqno = self._walk, self._next
        at = walk.place_of(seqno)
        if walk.reader is None or at < 0 or self._overtaken():
            return Seqno(seqno - 1)
        limit = min(upto, self._limit, walk.living)
        behind, following, last = pass_events(walk.reader.window, at, seqno, limit, shards, passes)
        if last >= 0:
            self._next = Seqno(following)
            walk.move(behind, self._next, last)
        return Seqno(following - 1)

    def passed(self) -> RecordHeader:
        """Return the header of the transaction that `pass_over` passed last. Raises CorruptRecordError."""
        assert self._walk.passed is not None, "pass_over() has passed nothing since the last seek"
        window, at, place = self._walk.passed
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
        heed, segments = self._view.heed, self._view.segments
        for window, places, seqno, _ in self._blocks():
            for one in cut_records(window, places, seqno):
                heed()
                if segments.marks is not self._marks:
                    self._next = Seqno(one[0])
                    self._heed()
                    break
                yield one

    def stretches(self, *, until: Seqno | None = None, most: int = SEQNO_MAX) -> Iterator[Stretch]:
        """Yield records that stand side by side, as bytes; what `Log.append_raw` takes.

        A transaction whose records have more than `most` bytes, a window's or more, comes without them.
        Checksums are verified. Ends after `until`, and without waiting where there is nothing more now. Moves on by
        stretches. Raises as `next`.
        """
        for window, places, seqno, alone in self._blocks(referring=True, until=until, most=most):
            if self._overtaken():
                self._next = seqno
                self._heed()
            else:
                last = Seqno(seqno + len(places) - 2)
                spilled = alone if alone is not None and alone.header.spilled else None
                yield Stretch(last, window[places[0] : places[-1]], spilled, None if spilled is alone else alone)

    def _blocks(
        self, *, referring: bool = False, until: Seqno | None = None, most: int = SEQNO_MAX
    ) -> Iterator[tuple[bytes, list[int], Seqno, StoredTransaction | None]]:
        """Yield runs of records that stand side by side: bytes, where each begins and the last ends, first seqno.

        `referring`: a spilled transaction is the record that refers to it, and comes with that; else its fragments.
        One of more than `most` bytes comes without these.
        """
        upto = SEQNO_MAX if until is None else until
        begun = NO_SEQNO
        while self._next <= upto:
            walk, seqno = self._walk, self._next
            at = walk.place_of(seqno)
            if walk.reader is not None and at >= 0:
                window, limit = walk.reader.window, min(self._limit, walk.living, upto)
                places: list[int] = []
                behind, following = take_events(window, at, seqno, limit, places, verify=self._view.checksum)
                if not self._overtaken() and places:
                    self._next = Seqno(following)
                    walk.move(behind, self._next, places[-1])
                    places.append(behind)
                    yield window, places, seqno, None
                    continue
            if self.next_header() is None:
                return
            transaction = self.current()
            place = transaction.place_in_window()
            if place >= 0 and begun != seqno:
                begun = self._next = seqno
                walk.move(place, seqno)  # a run begins here: after a sync record, or in the next window
                continue
            spilled = transaction if referring and transaction.header.spilled else None
            if not transaction.header.spilled and transaction.size_bytes > most:
                yield b"", [0, 0], transaction.header.seqno, transaction
                continue
            for raw in self._raw_of(transaction, referring=referring):
                yield raw, [0, len(raw)], transaction.header.seqno, spilled

    def _raw_of(self, transaction: StoredTransaction, *, referring: bool) -> Iterator[bytes]:
        """Yield the bytes of a transaction's records, verified; `referring`: of a spilled one what refers to it."""
        if transaction.header.spilled and not referring:
            for record in transaction.records():
                yield _record_bytes(record)
            return
        number = lsn_segment(transaction.start)
        with self._view.segments.opened(number, transaction.header.seqno) as file:
            for record in transaction.in_log():
                yield file.pread(record.header.record_length, lsn_offset(record.header.lsn))

    def current(self) -> StoredTransaction:
        """Return the transaction whose header `next_header` returned last."""
        assert self._walk.found is not None, "next_header() has not returned a header since the last seek"
        assert self._walk.reader is not None
        return StoredTransaction(self._view, self._walk.reader, *self._walk.found)

    def h(self) -> int:
        """Return the running hash up to the transaction that was returned last, from 0 to 2^64 - 1.

        Cheap where that up to the one before it was asked for; else it is looked up. Raises as `LogReader.h`.
        """
        transaction = self.current()
        seqno = transaction.header.seqno
        if self._hashed is not None and self._hashed[0] == seqno - 1:
            h = after(self._hashed[1], transaction.added(), 1)
        else:
            h = hash_up_to(self._view.segments, seqno, max(self._limit, seqno))
        self._hashed = seqno, h
        return unsigned(h)

    def hashes(self, block: Block) -> list[int]:
        """Return the running hash up to each transaction of the block that was taken last, signed. Raises as `h`."""
        before = Seqno(block.first - 1)
        if self._hashed is None or self._hashed[0] != before:
            self._hashed = before, hash_up_to(self._view.segments, before, max(self._limit, before))
        hashes: list[int] = []
        h = fold_span(block.raw, block.start, block.behind, self._hashed[1], hashes)
        self._hashed = Seqno(before + len(hashes)), h
        if len(block) == len(hashes):
            return hashes
        return [hashes[block.seqno(number) - block.first] for number in range(len(block))]

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

        Ends: after `until`; without `wait`, where there is nothing more now. Raises as `next`.
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
        enough, or nothing more is there now, and holds at least one row. What `selection` leaves out is decided by the
        headers, before a payload is read. Ends as `scan`. Raises as `next`; PayloadError; ConfigError for an
        unknown column; ValueError for no unit, TypeError for no selection; LibraryMissingError where pyarrow is not
        installed.
        """
        return read_batches(self, unit=unit, columns=columns, selection=selection, until=until, wait=wait)

    def block(self, until: Seqno | None, selection: Selection, verdicts: dict[bytes, bool]) -> Block | None:
        """Take the next transactions of one fragment each out of the bytes read already; None where there is none.

        Ends: before any other transaction, after `until`, and at the end of these bytes: then `next` goes on.
        Checksums are verified; what is not wanted is passed over and may leave a block without records.
        """
        walk, seqno = self._walk, self._next
        at = walk.place_of(seqno)
        if walk.reader is None or at < 0:
            return None
        upto = min(self._limit, walk.living, SEQNO_MAX if until is None else until)
        block = Block(walk.reader.window)
        behind, following = scan_block(
            block, at, seqno, upto, checksum=self._view.checksum, selection=selection, verdicts=verdicts
        )
        if self._overtaken() or following == seqno:
            return None
        self._next = Seqno(following)
        walk.move(behind, self._next)
        return block

    def close(self) -> None:
        """Close the files; closing twice is harmless. A hold stays where it is."""
        self._walk.leave()
        self._closed = True
        self._limit = NO_SEQNO  # the next call looks, and hears of it

    def _check_open(self) -> None:
        if self._closed:
            raise LogClosedError("this cursor was closed")

    def _wait(self, wanted: Seqno, timeout_s: float) -> bool:
        self._check_open()
        view = self._view
        limit = view.limit(committed_only=self._committed_only)
        if limit < wanted and timeout_s > 0 and view.segments.marks is self._marks:
            limit = view.wait(wanted, committed_only=self._committed_only, timeout_s=timeout_s)
        if limit > self._limit:
            self._limit = limit
            if self._walk.reader is not None:
                # What was read after the old limit may have been cut and written again since.
                self._walk.reader.forget()
        return wanted <= limit
