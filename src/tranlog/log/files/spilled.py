"""Reading what was spilled: a transaction's fragments from its chunks, and what spill segments there are.

Owns the walk over a transaction's chunks and the error that names a bad one. Their bytes are `spill`'s. The hard
idea: memory is one chunk, whatever the transaction: places are collected backwards from the chunks' headers, eight
bytes each, and then the chunks are read forward, one at a time.

Source: tokumx-replication, "Large Transactions"; docs/decisions/0012.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass

from tranlog.disk import Disk, DiskFile
from tranlog.errors import CorruptRecordError, ForeignHistoryError, LogUnreadableError, SegmentGoneError
from tranlog.ids import Gtid, Lsn, segment_name
from tranlog.log.files.directory import join, list_segments, open_file, reading
from tranlog.log.files.segment import SegmentReader
from tranlog.log.records.format import (
    HEADER,
    SEQNO_MAX,
    TRAILER,
    End,
    Impossible,
    RecordHeader,
    RollbackMark,
    RotateRecord,
    StoredRecord,
    SyncRecord,
    skip_events,
)
from tranlog.log.records.spill import (
    CHUNK_HEADER_BYTES,
    SPILL_HEADER_BYTES,
    SPILL_TABLE_NAME,
    ChunkHeader,
    RawChunk,
    Reference,
    SpillTable,
    fragments_of,
    highest,
    open_chunk,
    parse_chunk_header,
    parse_reference,
    parse_spill_header,
    parse_table,
    spill_name,
    spill_number,
)
from tranlog.lsn import lsn_offset, lsn_segment


@dataclass(frozen=True, slots=True, kw_only=True)
class SpillFault:
    """The place in a spill segment where a chunk is missing or damaged."""

    segment: str
    offset: int
    why: str
    missing: bool = False
    """The whole segment is missing."""


def _fault(place: Lsn, why: str, *, missing: bool = False) -> SpillFault:
    return SpillFault(segment=spill_name(lsn_segment(place)), offset=lsn_offset(place), why=why, missing=missing)


class SpillReader:
    """Reads the chunks of one transaction of the log with this history. Not for threads.

    `verdict` is the referring record's header; None while there is none, for raw chunks. What reads raises
    ForeignHistoryError for another log's spill segment.
    """

    def __init__(
        self, directory: str, disk: Disk, reference: Reference, verdict: RecordHeader | None, history: bytes | None
    ) -> None:
        self._history = history
        self._directory = directory
        self._disk = disk
        self._reference = reference
        self._verdict = verdict
        self._files: dict[int, DiskFile] = {}

    def places(self) -> array[int] | SpillFault:
        """Return where the chunks stand, first to last; memory: eight bytes for each. Raises LogUnreadableError."""
        reference = self._reference
        found = array("Q")
        place = reference.last
        for seq in range(reference.chunks - 1, -1, -1):
            header = self._header(place, seq)
            if isinstance(header, SpillFault):
                return header
            found.append(place)
            if seq and not reference.first <= header.previous < place:
                return _fault(place, f"a chunk whose predecessor would be at {header.previous}")
            place = header.previous
        if found[-1] != reference.first:
            return _fault(Lsn(found[-1]), "the first chunk is not where the reference says")
        found.reverse()
        return found

    def _header(self, place: Lsn, seq: int) -> ChunkHeader | SpillFault:
        raw = self._pread(place, CHUNK_HEADER_BYTES)
        if isinstance(raw, SpillFault):
            return raw
        header = parse_chunk_header(raw)
        if isinstance(header, Impossible):
            return _fault(place, header.why)
        if header.oid != self._reference.oid or header.seq != seq:
            belongs = f"chunk {seq} of {self._reference.oid.hex()} belongs"
            return _fault(place, f"chunk {header.seq} of {header.oid.hex()} where {belongs}")
        return header

    def _pread(self, place: Lsn, size: int) -> bytes | SpillFault:
        number = lsn_segment(place)
        path = join(self._directory, spill_name(number))
        try:
            file = self._files.get(number)
            if file is None:
                self.close()  # one is enough: chunks go from segment to segment once
                file = self._disk.open(path)
                self._files[number] = file
                if not bears(file, self._directory, number, self._history):
                    return SpillFault(segment=spill_name(number), offset=0, why="bad header of a spill segment")
            return file.pread(size, lsn_offset(place))
        except FileNotFoundError:
            return _fault(place, "the spill segment is missing", missing=True)
        except OSError as exc:
            raise LogUnreadableError(path=path, why=exc.strerror or str(exc)) from exc

    def chunk(self, place: Lsn, seq: int, fragno: int) -> Iterator[StoredRecord] | SpillFault:
        """Return the fragments of a chunk, the first of them being `fragno`. Raises LogUnreadableError."""
        assert self._verdict is not None
        read = self._read(place, seq)
        if isinstance(read, SpillFault):
            return read
        opened = open_chunk(*read)
        found = opened if isinstance(opened, Impossible) else fragments_of(opened, self._verdict, fragno)
        return _fault(place, found.why) if isinstance(found, Impossible) else found

    def _read(self, place: Lsn, seq: int) -> tuple[ChunkHeader, bytes] | SpillFault:
        header = self._header(place, seq)
        if isinstance(header, SpillFault):
            return header
        raw = self._pread(place, header.record_length)
        return raw if isinstance(raw, SpillFault) else (header, raw)

    def chunks(self, first: int, places: Iterable[int]) -> Iterator[RawChunk | SpillFault]:
        """Yield the chunks from number `first` on, which stand at `places`; a fault is the last thing that comes.

        Each is verified. Raises LogUnreadableError.
        """
        for seq, at in enumerate(places, first):
            place = Lsn(at)
            read = self._read(place, seq)
            if isinstance(read, SpillFault):
                yield read
                return
            header, raw = read
            opened = open_chunk(header, raw)
            if isinstance(opened, Impossible):
                yield _fault(place, opened.why)
                return
            kept = raw[CHUNK_HEADER_BYTES : -TRAILER.size]
            yield RawChunk(header.oid, seq, header.codec, header.raw_length, kept)

    def records(self) -> Iterator[StoredRecord | SpillFault]:
        """Yield each fragment's header and payload, in order; a fault is the last thing that comes.

        Raises LogUnreadableError.
        """
        places = self.places()
        if isinstance(places, SpillFault):
            yield places
            return
        fragno = 0
        last = False
        place = Lsn(0)
        for seq, at in enumerate(places):
            place = Lsn(at)
            found = self.chunk(place, seq, fragno)
            if isinstance(found, SpillFault):
                yield found
                return
            for record in found:
                yield record
                fragno += 1
                last = record.header.last_frag
        if fragno != self._reference.fragments or not last:
            why = f"{fragno} fragments, where the reference says {self._reference.fragments}"
            yield _fault(place, why)

    def close(self) -> None:
        """Close the files; closing twice is harmless."""
        for file in self._files.values():
            file.close()
        self._files = {}


def bears(file: DiskFile, directory: str, number: int, history: bytes | None) -> bool:
    """Whether an open spill segment has a whole header. Raises ForeignHistoryError where it is of another log.

    `history`: the identity of this log's, None while nobody knows it. Raises OSError.
    """
    header = parse_spill_header(file.pread(SPILL_HEADER_BYTES, 0))
    if header is not None and history is not None and header[1] != history:
        raise ForeignHistoryError(path=directory, file=spill_name(number), found=header[1].hex(), history=history.hex())
    return header is not None


def read_spilled(
    directory: str, disk: Disk, verdict: RecordHeader, raw: bytes, history: bytes | None
) -> Iterator[StoredRecord]:
    """Yield the fragments of the transaction whose referring record's event field is `raw`.

    Raises CorruptRecordError, ForeignHistoryError, LogUnreadableError.
    """
    reference = parse_reference(raw)
    if reference is None:
        name, offset = segment_name(lsn_segment(verdict.lsn)), lsn_offset(verdict.lsn)
        why = "a reference whose numbers contradict each other"
        raise CorruptRecordError(segment=name, offset=offset, seqno=verdict.seqno, why=why)
    with closing(SpillReader(directory, disk, reference, verdict, history)) as reader:
        for found in reader.records():
            if isinstance(found, SpillFault):
                raise fault_error(found, verdict)
            yield found


def fault_error(fault: SpillFault, verdict: RecordHeader) -> CorruptRecordError:
    """Return the error for a fault in what transaction `verdict` refers to."""
    return CorruptRecordError(
        segment=fault.segment, offset=fault.offset, seqno=verdict.seqno, why=f"what was spilled is damaged: {fault.why}"
    )


# --- what there is ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SpillStat:
    """One spill segment as people see it; `created_at` is ms since 1970.

    `bytes` are those on disk, `raw_bytes` those of the fragments before compression. `referred_by` is the highest
    transaction that refers into it, None if none does.
    """

    number: int
    name: str
    bytes: int
    raw_bytes: int
    chunks: int
    created_at: int
    referred_by: Gtid | None


def list_spill(directory: str, disk: Disk) -> list[int]:
    """Return the numbers of the spill segments in a log's directory, rising. Raises OSError."""
    numbers = [spill_number(name) for name in disk.list_dir(directory)]
    return sorted(number for number in numbers if number is not None)


def read_table(directory: str, disk: Disk) -> SpillTable | None:
    """Return the table beside the spill segments; None where there is none to believe. Raises OSError."""
    try:
        with closing(disk.open(join(directory, SPILL_TABLE_NAME))) as file:
            return parse_table(file.pread(file.size(), 0))
    except FileNotFoundError:
        return None


def stat_of(directory: str, disk: Disk, number: int, referred_by: Gtid | None) -> SpillStat | None:
    """Describe a spill segment, walking over its chunks' headers; None for one that is gone.

    Raises LogUnreadableError.
    """
    path = join(directory, spill_name(number))
    try:
        file = open_file(path, disk)
    except FileNotFoundError:
        return None
    with closing(file), reading(path):
        size = file.size()
        begun = parse_spill_header(file.pread(SPILL_HEADER_BYTES, 0))
        at, raw_bytes, chunks = SPILL_HEADER_BYTES, 0, 0
        while at < size:
            header = parse_chunk_header(file.pread(CHUNK_HEADER_BYTES, at))
            if isinstance(header, Impossible) or at + header.record_length > size:
                break  # what a crash left, or is being written
            raw_bytes += header.raw_length
            chunks += 1
            at += header.record_length
    return SpillStat(
        number=number,
        name=spill_name(number),
        bytes=size,
        raw_bytes=raw_bytes,
        chunks=chunks,
        created_at=0 if begun is None else begun[0],
        referred_by=referred_by,
    )


def who_refers(
    directory: str, disk: Disk, numbers: Iterable[int], there: Iterable[int], *, ends: int | None = None
) -> dict[int, tuple[Gtid, ...]]:
    """Return which transactions refer into the spill segments `there`, going through the log's segments `numbers`.

    Reads headers of records; abandoned transactions count too. `ends` is where the last segment ends, None: wherever
    its records do. Raises CorruptRecordError where something else stands than a record, FileNotFoundError, OSError.
    """
    found: dict[int, tuple[Gtid, ...]] = {}
    listed, there = list(numbers), list(there)
    for number in listed:
        limit = ends if number == listed[-1] else None
        with closing(SegmentReader(disk.open(join(directory, segment_name(number))), number)) as reader:
            offset = HEADER.size
            while limit is None or offset < limit:
                at = offset - reader.start
                if 0 <= at < len(reader.window):
                    offset = reader.start + skip_events(reader.window, at, SEQNO_MAX)
                    if limit is not None and offset >= limit:
                        break
                outcome = reader.read(offset, verify=False)
                if isinstance(outcome, End | RotateRecord):
                    break
                if not isinstance(outcome, RecordHeader | SyncRecord | RollbackMark):
                    if ends is None and number == listed[-1]:
                        break  # being written
                    raise reader.corrupt(offset, None, "something else is where a record belongs")
                if isinstance(outcome, RecordHeader) and outcome.spilled:
                    reference = parse_reference(reader.payload(outcome))
                    if reference is None:
                        raise reader.corrupt(offset, outcome.seqno, "a reference whose numbers contradict each other")
                    for segment in there:
                        if segment in reference.segments:
                            found[segment] = (*found.get(segment, ()), outcome.gtid)
                offset += outcome.record_length
    return found


def spill_stats(directory: str, disk: Disk) -> list[SpillStat]:
    """Describe each spill segment of a log, as any process may. Raises CorruptRecordError, LogUnreadableError.

    Who refers into it is read from the log, after what the table covers.
    """
    try:
        numbers, table = list_spill(directory, disk), read_table(directory, disk)
        segments = list_segments(directory, disk)
        covers = 0 if table is None or not segments or table.covers > segments[-1] else table.covers
        found = dict(table.referred_by) if table is not None and covers else {}
        for number, gtids in who_refers(directory, disk, [one for one in segments if one >= covers], numbers).items():
            found[number] = (*found.get(number, ()), *gtids)
    except FileNotFoundError as exc:
        raise SegmentGoneError(path=str(exc.filename)) from exc
    except OSError as exc:
        raise LogUnreadableError(path=directory, why=exc.strerror or str(exc)) from exc
    stats = [stat_of(directory, disk, number, highest(found.get(number, ()))) for number in numbers]
    return [one for one in stats if one is not None]
