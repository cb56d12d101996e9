"""Walking segments from end to end: what they hold, where it stops, and what is proven about it.

Owns the walk; what is found is a value of `recovery`, which also says what it means. The hard idea: the walk stops
at the first bad record and then looks after it for sync records, since only one of those can tell damage from the
torn tail of a crash.

Source: docs/format.md.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import pairwise

from tranlog.change import Fragment
from tranlog.disk import Disk, DiskFile
from tranlog.errors import CorruptRecordError, LogUnreadableError, SegmentGoneError
from tranlog.ids import NO_EPOCH, Epoch, Lsn, Seqno, segment_name
from tranlog.log.files.directory import join, list_segments
from tranlog.log.files.positions import read_published
from tranlog.log.files.segment import UNCHECKED, WINDOW_BYTES, SegmentReader, glance_at, only_zeros, torn_size
from tranlog.log.files.segments import history_borne, one_history
from tranlog.log.records.format import (
    CRC_32,
    CRC_NONE,
    END,
    HEADER,
    SEQNO_MAX,
    SYNC_BYTES,
    SYNC_START,
    BadChecksum,
    End,
    Impossible,
    Outcome,
    Partial,
    RecordHeader,
    RollbackMark,
    RotateRecord,
    SyncRecord,
    parse_event,
    parse_record,
    take_events,
)
from tranlog.log.records.spill import Reference, parse_reference
from tranlog.log.rules.damage import Damage
from tranlog.log.rules.index import SeqnoIndex
from tranlog.log.rules.index_values import BuiltFrom
from tranlog.log.rules.recovery import BadRecord, Checkpoint, SegmentGlance, SegmentScan, Survey, suspicious
from tranlog.lsn import lsn, lsn_offset, lsn_segment

_PAGE_BYTES = 4096
WALK_WHOLE_BYTES = 1 << 20
"""A newest segment of which less than this lies before the stored index's end is walked whole."""


class _Counts:
    """How many records were walked, how many of them are fragments, how many of these have no checksum."""

    __slots__ = ("fragments", "records", "unchecked")

    def __init__(self) -> None:
        self.records = self.fragments = self.unchecked = 0


class _Proof:
    """How far the sync records of a segment prove it durable: up to `offset`, and in it up to `seqno`.

    `behind`: how far those after the bad record do.
    """

    __slots__ = ("behind", "ends", "offset", "seqno")

    def __init__(self, seqno: Seqno) -> None:
        self.offset = self.behind = 0
        self.seqno = seqno
        self.ends = array("Q")  # where the transactions after `seqno` end

    def reach(self, offset: int) -> None:
        """Register that everything before `offset` is durable."""
        if offset > self.offset:
            self.offset = offset
            count = bisect_right(self.ends, offset)
            self.seqno = Seqno(self.seqno + count)
            self.ends = self.ends[count:]


class SegmentScanner:
    """Walks a segment record by record, remembering what it saw; can go on later when the file has grown.

    `before`: the header of the last event before this segment, where it is known. `offset` and `fragno`: begin
    at that record, which is fragment `fragno` of seqno `prev_seqno` + 1, if it is an event. Not for threads.
    """

    def __init__(
        self,
        reader: SegmentReader,
        prev_seqno: Seqno,
        *,
        before: RecordHeader | None = None,
        offset: int = HEADER.size,
        fragno: int = 0,
    ) -> None:
        self._reader = reader
        self._prev_seqno = prev_seqno
        self._offset = offset
        self._good_end = offset
        self._counts = _Counts()
        # the last event, and the last transaction
        self._epoch = NO_EPOCH if before is None else before.epoch
        self._method = None if before is None else before.crc_method
        self._last_seqno = prev_seqno
        self._last_header: RecordHeader | None = None
        self._last_first_lsn: Lsn | None = None
        # the open transaction
        self._fragno = fragno
        self._start = offset
        self._proof = _Proof(prev_seqno)
        self._closed_cleanly = False
        self._next_name: str | None = None
        self._bad: BadRecord | None = None
        self._starts = array("I")
        self._epochs: list[tuple[Seqno, Epoch]] = []
        self._mark: RollbackMark | None = None
        self._references: list[tuple[RecordHeader, Reference]] = []

    def advance(self) -> None:
        """Walk on until the end, or the first bad record. Raises OSError.

        What looks bad may have been written between two looks. So it is looked at once more after the search for what
        proves it durable: what was durable then is there now.
        """
        looked = -1
        while True:
            self._proof.behind = 0 if looked < 0 else proof_behind(self._reader.file, self._reader.number, looked)
            self._bad = self._walk()
            if self._bad is None or self._bad.offset == looked:
                return
            looked = self._bad.offset

    def _walk(self) -> BadRecord | None:
        """Walk on; return the bad record at which that ended, if it did."""
        reader = self._reader
        reader.forget()
        while self._next_name is None:
            self._take_plain_events()
            outcome = reader.read(self._offset, verify=reader.checksum)
            why = self._take(outcome)
            if why:
                return self._fault(outcome, why)
            if why is not None:
                break
            self._counts.records += 1
        size = reader.file.size()
        if only_zeros(reader.file, self._offset, size):
            return None
        return self._fault(
            END, "bytes after the rotate record" if self._next_name else "zeros where a record should be"
        )

    def _fault(self, outcome: Outcome, why: str) -> BadRecord:
        kind, seqno = Damage.RECORD, None
        if isinstance(outcome, RecordHeader):
            seqno = outcome.seqno
            place, belongs = (seqno, outcome.fragno), (self._last_seqno + 1, self._fragno)
            kind = Damage.HOLE if place > belongs else Damage.DUPLICATE if place < belongs else kind
        elif isinstance(outcome, BadChecksum) and outcome.header is not None:
            seqno = outcome.header.seqno
        blank = _blank(self._reader.file, self._offset)
        return BadRecord(offset=self._offset, why=why, kind=kind, seqno=seqno, blank=blank)

    def _take_plain_events(self) -> None:
        """Take the run of ordinary events in the window: checked, one fragment each, of the epoch before."""
        reader = self._reader
        window, start = reader.window, reader.start
        at = self._offset - start
        if self._fragno or self._method != CRC_32 or not 0 <= at < len(window):
            return
        places: list[int] = []
        expected = self._last_seqno + 1
        behind, following = take_events(
            window, at, expected, SEQNO_MAX, places, verify=reader.checksum, within=self._epoch
        )
        if not places:
            return
        last = parse_event(window, places[-1], (reader.number << 32) + start + places[-1])
        assert last is not None, "take_events looked into it"
        taken = following - expected
        self._starts.extend([start + place for place in places])
        self._proof.ends.extend([start + place for place in places[1:]])
        self._proof.ends.append(start + behind)
        self._counts.records += taken
        self._counts.fragments += taken
        self._offset = self._good_end = start + behind
        self._last_seqno = last.seqno
        self._last_header = last
        self._last_first_lsn = last.lsn
        self._closed_cleanly = False

    def _take(self, outcome: Outcome) -> str | None:
        """Take one record; return why it is bad, "" for the end, None to go on."""
        match outcome:
            case RecordHeader():
                why = self._take_event(outcome)
                if why is not None:
                    return why
                self._offset += outcome.record_length
                self._counts.fragments += 1
                self._closed_cleanly = False
                if outcome.last_frag:
                    self._good_end = self._offset
                    self._proof.ends.append(self._offset)
            case SyncRecord():
                durable = outcome.durable_lsn
                if durable > lsn(self._reader.number, self._offset):
                    return "a sync record that proves what follows it"
                if lsn_segment(durable) == self._reader.number:
                    self._proof.reach(lsn_offset(durable))
                self._closed_cleanly = lsn_offset(durable) == self._offset
                self._offset += outcome.record_length
                if self._fragno == 0:
                    self._good_end = self._offset
            case RollbackMark():
                why = self._take_mark(outcome)
                if why is not None:
                    return why
                self._offset += outcome.record_length
                self._good_end = self._offset
            case RotateRecord():
                if self._fragno:
                    return "a rotate record inside a transaction"
                self._next_name = outcome.next_file_name
                self._offset += outcome.record_length
                self._good_end = self._offset
            case End():
                return ""
            case Partial():
                return "the file ends inside the record"
            case BadChecksum() | Impossible():
                return outcome.why
        return None

    def _take_mark(self, mark: RollbackMark) -> str | None:
        if self._mark is not None or self._counts.fragments or self._fragno:
            return "a rollback mark that is not the first record of its segment"
        if mark.epoch < self._epoch:
            return f"a rollback mark of epoch {mark.epoch} after epoch {self._epoch}"
        if mark.last_seqno != self._last_seqno:
            return f"a rollback mark that abandons up to seqno {mark.last_seqno} after {self._last_seqno}"
        self._mark = mark
        self._epoch = mark.matchpoint_epoch
        self._prev_seqno = self._last_seqno = self._proof.seqno = mark.matchpoint_seqno
        self._closed_cleanly = False
        return None

    def _take_event(self, header: RecordHeader) -> str | None:
        expected = self._last_seqno + 1
        if header.seqno != expected or header.fragno != self._fragno:
            return (
                f"seqno {header.seqno} fragment {header.fragno} where seqno {expected} fragment {self._fragno} belongs"
            )
        if self._fragno and header.epoch != self._epoch:
            return f"epoch {header.epoch} inside a transaction of epoch {self._epoch}"
        if header.epoch < self._epoch:
            return f"epoch {header.epoch} after epoch {self._epoch}"
        if header.crc_method == CRC_NONE:
            if self._reader.lacks_checksum(header):
                return UNCHECKED
            self._counts.unchecked += 1
        if header.spilled:
            try:
                reference = parse_reference(self._reader.payload(header))
            except CorruptRecordError as exc:
                return exc.why
            if reference is None:
                return "a reference whose numbers contradict each other"
            self._references.append((header, reference))
        if self._fragno == 0:
            self._start = self._offset
        if header.epoch != self._epoch:
            self._epochs.append((header.seqno, header.epoch))
        self._epoch = header.epoch
        self._method = header.crc_method
        if header.last_frag:
            self._last_seqno = header.seqno
            self._last_first_lsn = lsn(self._reader.number, self._start)
            self._starts.append(self._start)
            self._last_header = header
            self._fragno = 0
        else:
            self._fragno += 1
        return None

    def prove(self, offset: int) -> None:
        """Register, after the walk, that everything before `offset` is durable."""
        self._proof.reach(offset)

    def result(self, behind: Checkpoint | None = None) -> SegmentScan:
        """Return what was found so far.

        `behind`: the checkpoint at whose record the walk began.
        """
        file, bad = self._reader.file, self._bad
        size = file.size()
        written = self._offset if bad is None else max(self._offset, torn_size(file, size))
        return SegmentScan(
            number=self._reader.number,
            prev_seqno=self._prev_seqno,
            size=written,
            records=self._counts.records,
            fragments=self._counts.fragments,
            good_end=self._good_end,
            end=self._offset,
            last_seqno=self._last_seqno,
            last_first_lsn=self._last_first_lsn,
            last_header=self._last_header,
            open_fragments=self._fragno,
            proven=self._proof.offset,
            proven_behind=self._proof.behind,
            proven_seqno=self._proof.seqno,
            closed_cleanly=self._closed_cleanly,
            bad=bad,
            next_name=self._next_name,
            unchecked=self._counts.unchecked,
            starts=self._starts,
            epochs=tuple(self._epochs),
            references=tuple(self._references),
            mark=self._mark,
            epoch=self._epoch if self._mark is None else max(self._epoch, self._mark.epoch),
            behind=behind,
        )


def _blank(file: DiskFile, offset: int) -> bool:
    """Whether zeros stand from `offset` to the end of its page, or in a whole page of the record there.

    So a copy ends that was made while the file was written: page by page it takes what is there.
    """
    end = offset + _PAGE_BYTES - offset % _PAGE_BYTES
    page = file.pread(end - offset, offset)
    if not any(page):
        return True
    length = int.from_bytes(page[:4], "big")
    while end < offset + length:
        page = file.pread(_PAGE_BYTES, end)
        if not any(page):
            return bool(page)
        end += _PAGE_BYTES
    return False


def proof_behind(file: DiskFile, number: int, offset: int) -> int:
    """Return the highest offset of segment `number` that a sync record after `offset` proves; 0 without one.

    The records cannot be walked any more, so their bytes are searched, and with them the payloads. Nothing but the
    sync record that was written at a place has the right checksum there, which covers the place.
    """
    best = 0
    at = offset
    carried = b""
    while True:
        chunk = file.pread(WINDOW_BYTES, at)
        raw = carried + chunk
        base = at - len(carried)
        found = raw.find(SYNC_START)
        while found >= 0:
            outcome = parse_record(raw, found, lsn(number, base + found))
            if isinstance(outcome, SyncRecord) and lsn_segment(outcome.durable_lsn) == number:
                durable = lsn_offset(outcome.durable_lsn)
                if best < durable <= base + found:
                    best = durable
            found = raw.find(SYNC_START, found + 1)
        if len(chunk) < WINDOW_BYTES:
            return best
        carried = raw[-(SYNC_BYTES - 1) :]
        at += len(chunk)


def scan_segment(directory: str, disk: Disk, glance: SegmentGlance, *, checksum: bool) -> SegmentScan:
    """Walk one segment with a whole header from start to end. Raises OSError."""
    assert glance.prev_seqno is not None
    with closing(disk.open(join(directory, segment_name(glance.number)))) as file:
        reader = SegmentReader(file, glance.number, checksum=checksum)
        scanner = SegmentScanner(reader, glance.prev_seqno)
        scanner.advance()
        return scanner.result()


def scan_behind(directory: str, disk: Disk, checkpoint: Checkpoint) -> SegmentScan | None:
    """Walk the checkpoint's segment from its record on; None where that does not stand there, whole. Raises OSError."""
    with closing(disk.open(join(directory, segment_name(checkpoint.number)))) as file:
        reader = SegmentReader(file, checkpoint.number)
        header = reader.read(checkpoint.offset, verify=True)
        if (
            not isinstance(header, RecordHeader)
            or (header.seqno, header.fragno, header.epoch) != (checkpoint.seqno, 0, checkpoint.epoch)
            or header.crc_method != CRC_32
        ):
            return None
        prev_seqno = Seqno(checkpoint.seqno - 1)
        scanner = SegmentScanner(reader, prev_seqno, before=header, offset=checkpoint.offset)
        scanner.advance()
        scanner.prove(checkpoint.end)
        found = scanner.result(checkpoint)
        return found if found.last_seqno >= checkpoint.seqno and found.good_end >= checkpoint.end else None


def checkpoint_of(index: SeqnoIndex, built_from: BuiltFrom) -> Checkpoint | None:
    """Return where a survey may begin, since a stored index only covers what was durable; None for near the start.

    What is not walked is checked against its checksums when it is read, as in the segments before it.
    """
    last = index.prefix_range.last
    place = index.exact(last)
    if place is None or lsn_offset(place) < WALK_WHOLE_BYTES:
        return None
    same = lsn_segment(built_from.end) == lsn_segment(place)
    return Checkpoint(
        number=lsn_segment(place),
        offset=lsn_offset(place),
        seqno=last,
        epoch=built_from.epoch,
        end=lsn_offset(built_from.end) if same else 0,
        history=built_from.history,
    )


def survey(
    directory: str,
    disk: Disk,
    *,
    checksum: bool = True,
    checkpoint: Checkpoint | None = None,
    history: bytes | None = None,
) -> Survey:
    """Glance at every segment and walk the newest ones, back to the last complete transaction.

    A walk through the checkpoint's segment begins there, unless something does not fit. `history` is the log's where
    that is known. Changes nothing. Raises LogMissingError, LogUnreadableError, LogCodecError, LogVersionError,
    ForeignHistoryError, SegmentGoneError.
    """
    published = read_published(directory, disk)  # before anything that it tells of
    glances: list[SegmentGlance] = []
    borne: dict[int, bytes | None] = {}
    scans: deque[SegmentScan] = deque()
    try:
        for number in list_segments(directory, disk):
            with closing(disk.open(join(directory, segment_name(number)))) as file:
                borne[number] = history_borne(file, directory, number)
                glances.append(glance_at(file, number))
        history = one_history(directory, borne, history)
        for row in range(len(glances) - 1, -1, -1):
            if glances[row].prev_seqno is None:
                if glances[row].torn_header and row == len(glances) - 1:
                    continue
                break
            behind = None
            if checkpoint is not None and (checkpoint.number, checkpoint.history) == (glances[row].number, history):
                behind = scan_behind(directory, disk, checkpoint)
            found = scan_segment(directory, disk, glances[row], checksum=checksum) if behind is None else behind
            scans.appendleft(found)
            if found.last_header is not None or (found.bad is not None and row < len(glances) - 1):
                break
        walked = {scan.number for scan in scans}
        suspects = [
            scan_segment(directory, disk, glance, checksum=checksum)
            for glance, following in pairwise(glances)
            if glance.prev_seqno is not None and glance.number not in walked and suspicious(glance, following)
        ]
        matchpoint = _matchpoint_header(directory, disk, glances, scans)
    except FileNotFoundError as exc:
        raise SegmentGoneError(path=str(exc.filename)) from exc
    except OSError as exc:
        raise LogUnreadableError(path=directory, why=exc.strerror or str(exc)) from exc
    return Survey(
        glances=tuple(glances),
        scans=tuple(scans),
        matchpoint=matchpoint,
        suspects=tuple(suspects),
        published=published,
        history=history,
    )


def _matchpoint_header(
    directory: str, disk: Disk, glances: Sequence[SegmentGlance], scans: Sequence[SegmentScan]
) -> RecordHeader | None:
    """Return the last living transaction's header where nothing follows the last rollback mark, else None."""
    mark = next((glance.mark for glance in reversed(glances) if glance.mark is not None), None)
    if mark is None or any(
        scan.last_header is not None and scan.number >= lsn_segment(mark.dead_end) for scan in scans
    ):
        return None
    number, offset = lsn_segment(mark.matchpoint_lsn), lsn_offset(mark.matchpoint_lsn)
    if number < glances[0].number:
        return None  # purged by hand
    with closing(disk.open(join(directory, segment_name(number)))) as file:
        return read_transaction(SegmentReader(file, number), offset, mark.matchpoint_seqno)


def read_transaction(reader: SegmentReader, offset: int, seqno: Seqno) -> RecordHeader | None:
    """Return the last fragment's header of the transaction that begins at `offset`, checksums verified; None if none.

    Raises OSError.
    """
    fragno = 0
    while True:
        outcome = reader.read(offset, verify=True)
        if isinstance(outcome, SyncRecord):
            offset += outcome.record_length
            continue
        if not isinstance(outcome, RecordHeader) or outcome.seqno != seqno or outcome.fragno != fragno:
            return None
        if outcome.last_frag:
            return outcome
        offset += outcome.record_length
        fragno += 1


def read_fragments(file: DiskFile, number: int, offset: int, count: int) -> Iterator[Fragment]:
    """Yield again the first `count` fragments of the transaction that begins at `offset` of an open segment.

    Raises CorruptRecordError, OSError.
    """
    reader = SegmentReader(file, number)
    fragno = 0
    while fragno < count:
        outcome = reader.read(offset, verify=False)
        if isinstance(outcome, RecordHeader) and outcome.fragno == fragno and not outcome.last_frag:
            yield Fragment(
                source_id=outcome.source_id,
                event_id=outcome.event_id,
                shard_id=outcome.shard_id,
                tstamp=outcome.tstamp,
                tables=outcome.tables,
                payload=reader.payload(outcome),
                last=False,
                write_set=outcome.write_set,
            )
            fragno += 1
        elif not isinstance(outcome, SyncRecord):
            raise reader.corrupt(offset, None, f"fragment {fragno} of the open transaction is not where it was written")
        offset += outcome.record_length
