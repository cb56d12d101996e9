"""The bytes of one record of either codec, each field with its name, place and value.

Owns cutting a record into its fields, by the tables of docs/format.md and of the Java replicator's codec; of a
transaction that was spilled also where its chunks stand. The hard idea: it is for the day when something is wrong, so
it says what the bytes are and not what they should be; a field that runs over the record's end is shown as far as it
goes, and the checksum is worked out beside the stored one.

Source: docs/format.md.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Final
from zlib import crc32

from tranlog.codecs.opening import Codec, codec_of
from tranlog.disk import OS_DISK, DiskFile
from tranlog.errors import LogMissingError
from tranlog.ids import Lsn, Seqno, segment_name, segment_number
from tranlog.listing import time_text
from tranlog.log.files.directory import join, open_file, reading
from tranlog.log.files.spilled import SpillFault, SpillReader, fault_error
from tranlog.log.reading.reader import LogReader
from tranlog.log.records import format as native
from tranlog.log.records import spill
from tranlog.lsn import lsn, lsn_offset, lsn_segment
from tranlog.tungsten.reading.reader import Seek, TungstenReader
from tranlog.tungsten.records import codec

HEADER_BYTES: Final = 16
_UNSIGNED: Final = {1: ">B", 2: ">H", 4: ">I", 8: ">Q"}
_MOMENTS: Final = ("tstamp", "written_at")
_PLACES: Final = ("durable_lsn", "matchpoint_lsn", "dead_start", "dead_end", "previous", "first", "last")
_IDS: Final = ("oid", "history")
_TEXTS: Final = ("source_id", "event_id", "shard_id", "next_file_name")


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One field: its name, its bytes from `at` in the record on, and what they say."""

    name: str
    at: int
    raw: bytes
    value: str


def _value(name: str, raw: bytes) -> str:
    if name in _TEXTS:
        return repr(raw.rstrip(b"\0").decode(errors="backslashreplace"))
    if name in _IDS:
        return raw.hex() or "none"
    if len(raw) not in _UNSIGNED or name in ("event", "header_extension"):
        return f"{len(raw)} bytes"
    (number,) = struct.unpack(_UNSIGNED[len(raw)], raw)
    if name in ("magic_number", "crc", "header_crc"):
        return f"0x{number:08X}"
    if name in ("seqno", "prev_seqno", "base_seqno", "matchpoint_seqno", "last_seqno"):
        return str(struct.unpack(">q", raw)[0])
    if name in _MOMENTS:
        return f"{number} ({time_text(number)})"
    if name in _PLACES:
        return f"segment {lsn_segment(number)}, offset {lsn_offset(number)}"
    return str(number)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Where a chunk of a spilled transaction stands, and which of its fragments are in it, both ends included."""

    file: str
    offset: int
    first_fragno: int
    last_fragno: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A record's place and bytes; `chunks` are those that it refers to."""

    file: str
    offset: int
    raw: bytes
    chunks: tuple[Chunk, ...] = ()


class _Cutter:
    """Cuts a record from its first byte on; at its end fields become shorter and then stop."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.at = 0
        self.fields: list[Field] = []

    def take(self, name: str, size: int, value: Callable[[str, bytes], str] = _value) -> bytes:
        piece = self.raw[self.at : self.at + max(size, 0)]
        if piece or size == 0:
            whole = len(piece) == size
            said = value(name, piece) if whole else f"{len(piece)} of {size} bytes: the record ends here"
            self.fields.append(Field(name=name, at=self.at, raw=piece, value=said))
        self.at += len(piece)
        return piece

    def terminated(self, name: str) -> None:
        """Take a string and the NUL after it."""
        end = self.raw.find(0, self.at)
        self.take(name, (end + 1 if end >= 0 else len(self.raw)) - self.at)


def native_fields(raw: bytes, *, place: int = 0) -> list[Field]:
    """Return the fields of a native record; one of an unknown type as far as it is framed.

    `place` is where it stands, an LSN, which the checksum of a sync record covers.
    """
    cut = _Cutter(raw)
    kind = raw[4] if len(raw) > 4 else 0
    tables = {
        native.EVENT_TYPE: native.EVENT_FIELDS,
        native.REFERENCE_TYPE: native.EVENT_FIELDS,
        native.CHUNK_TYPE: spill.CHUNK_FIELDS,
        native.ROTATE_TYPE: native.ROTATE_FIELDS,
        native.SYNC_TYPE: native.SYNC_FIELDS,
        native.MARK_TYPE: native.MARK_FIELDS,
    }
    header_end = 0
    for name, size in tables.get(
        kind, (("record_length", 4), ("record_type", 1), ("body", 0), ("crc_method", 1), ("crc", 4))
    ):
        if size:
            piece = cut.take(name, size)
            if name == "header_length" and len(piece) == 4:
                header_end = cut.at + int.from_bytes(piece, "big")
            elif name == "data_length" and len(piece) == 4:
                header_end = 0
        elif name in _TEXTS:
            cut.terminated(name)
        elif name == "header_extension":
            if header_end > cut.at:
                cut.take(name, header_end - cut.at)
        elif kind == native.REFERENCE_TYPE:
            for part, width in spill.REFERENCE_FIELDS:
                cut.take(part, width)
        else:  # the event, a chunk's fragments, or the body of a type that has no table
            cut.take(name, len(raw) - native.TRAILER.size - cut.at)
    covered = raw[:-4] + (place.to_bytes(8, "big") if kind == native.SYNC_TYPE else b"")
    return [*cut.fields, _checksum(raw, raw[-native.TRAILER.size : -4], raw[-4:], crc32(covered))]


def tungsten_fields(raw: bytes) -> list[Field]:
    """Return the fields of a record of the Java replicator's: event or rotate."""
    cut = _Cutter(raw)
    cut.take("record_length", 4)
    (kind,) = cut.take("record_type", 1) or b"\0"
    if kind == codec.EVENT_TYPE:
        for name, size in (("seqno", 8), ("fragno", 2), ("last_frag", 1), ("epoch_number", 8)):
            cut.take(name, size)
        for name in ("source_id", "event_id", "shard_id"):
            length = cut.take(f"{name}_length", 2)
            cut.take(name, int.from_bytes(length, "big"))
        cut.take("tstamp", 8)
    elif kind == codec.ROTATE_TYPE:
        cut.take("next_segment", 8)
    if len(raw) - codec.TRAILER.size > cut.at:
        cut.take("event", len(raw) - codec.TRAILER.size - cut.at)
    cut.take("crc_type", 1)
    cut.take("crc", 8, lambda name, piece: f"0x{int.from_bytes(piece, 'big'):08X}")
    trailer = len(raw) - codec.TRAILER.size
    return [*cut.fields, _checksum(raw, raw[trailer : trailer + 1], raw[-8:], crc32(raw[4:trailer]))]


def _checksum(raw: bytes, method: bytes, stored: bytes, computed: int) -> Field:
    """Return what the checksum should be, as a field without bytes of its own."""
    if method[:1] == b"\0":
        said = "none is stored"
    else:
        said = (
            "matches"
            if int.from_bytes(stored, "big") == computed
            else f"DOES NOT MATCH: the bytes have 0x{computed:08X}"
        )
    return Field(name="checksum", at=len(raw), raw=b"", value=said)


def header_fields(raw: bytes, *, java: bool, spilled: bool = False) -> list[Field]:
    """Return the fields of a segment's first bytes, or of a spill segment's."""
    cut = _Cutter(raw)
    for name, size in spill.SPILL_HEADER_FIELDS if spilled else native.HEADER_FIELDS:
        cut.take("base_seqno" if java and name == "prev_seqno" else name, size)
    return cut.fields


def record_fields(found: Found, *, java: bool) -> list[Field]:
    """Return the fields of what was found: a record, or the header at a file's beginning."""
    if found.offset == 0:
        return header_fields(found.raw, java=java, spilled=spill.spill_number(found.file) is not None)
    if java:
        return tungsten_fields(found.raw)
    return native_fields(found.raw, place=lsn(segment_number(found.file) or 0, found.offset))


def find_fragment(path: str, seqno: int, fragno: int | None) -> Found | None:
    """Find a fragment's record in a log of either codec, or its chunk; None where the log has none such.

    Raises what opening and reading a log raises.
    """
    return (_java_fragment if codec_of(path) is Codec.TUNGSTEN else _native_fragment)(path, seqno, fragno)


def _native_fragment(path: str, seqno: int, fragno: int | None) -> Found | None:
    with LogReader.open(path, checksum=False) as reader:
        held = reader.range()
        if not held.first_seqno <= seqno <= held.last_seqno:
            return None
        with reader.cursor() as cursor:
            cursor.seek(Seqno(seqno))
            transaction = cursor.next()
            if transaction is None:
                return None
            at = transaction.start
            found = record_at(path, segment_name(lsn_segment(at)), lsn_offset(at))
            if found.raw[4] == native.REFERENCE_TYPE:
                chunks = tuple(_chunks(path, found.raw, transaction.header))
                if fragno is None:
                    return replace(found, chunks=chunks)
                holding = (one for one in chunks if one.first_fragno <= fragno <= one.last_fragno)
                return next((record_at(path, one.file, one.offset) for one in holding), None)
            if not fragno:
                return found
            for record in transaction.records():
                if record.header.fragno == fragno:
                    at = record.header.lsn
                    return record_at(path, segment_name(lsn_segment(at)), lsn_offset(at))
    return None


def _chunks(path: str, raw: bytes, header: native.RecordHeader) -> Iterator[Chunk]:
    """Yield where the chunks stand that a referring record names. Raises CorruptRecordError, LogUnreadableError."""
    at = next(field.at for field in native_fields(raw) if field.name == spill.REFERENCE_FIELDS[0][0])
    reference = spill.parse_reference(raw[at : at + spill.REFERENCE.size])
    if reference is None:
        return
    with closing(SpillReader(path, OS_DISK, reference, header, None)) as reader:
        places = reader.places()
        if isinstance(places, SpillFault):
            raise fault_error(places, header)
        fragno = 0
        for seq, place in enumerate(places):
            found = reader.chunk(Lsn(place), seq, fragno)
            if isinstance(found, SpillFault):
                raise fault_error(found, header)
            count = sum(1 for _ in found)
            file, offset = spill.spill_name(lsn_segment(Lsn(place))), lsn_offset(Lsn(place))
            yield Chunk(file=file, offset=offset, first_fragno=fragno, last_fragno=fragno + count - 1)
            fragno += count


def _java_fragment(path: str, seqno: int, fragno: int | None) -> Found | None:
    with TungstenReader.open(path, checked=False).cursor(strict=False) as cursor:
        if cursor.seek(seqno) is not Seek.FOUND:
            return None
        while (stored := cursor.next()) is not None and stored.record.seqno == seqno:
            if stored.record.fragno == (fragno or 0):
                return record_at(path, stored.segment, stored.record.offset)
    return None


def is_segment_name(name: str) -> bool:
    """Whether this is the plain name of a segment or of a spill segment."""
    return (spill.spill_number(name) or segment_number(name)) is not None


def record_at(path: str, name: str, offset: int) -> Found:
    """Read the record at a place; at 0 it is the header. Raises LogMissingError without the file, LogUnreadableError.

    Raises ValueError where no record begins.
    """
    try:
        file = open_file(join(path, name), OS_DISK)
    except FileNotFoundError as exc:
        raise LogMissingError(path=path, why=f"it holds no {name}") from exc
    with closing(file), reading(join(path, name)):
        size = HEADER_BYTES if spill.spill_number(name) is None else spill.SPILL_HEADER_BYTES
        return Found(file=name, offset=offset, raw=_record_bytes(file, offset, size))


def _record_bytes(file: DiskFile, offset: int, header_bytes: int) -> bytes:
    if offset == 0:
        return file.pread(header_bytes, 0)
    start = file.pread(5, offset) if offset < file.size() else b""
    length = int.from_bytes(start[:4], "big") if len(start) == 5 else 0
    if length < 9 or offset + length > file.size():
        left = max(file.size() - offset, 0)
        raise ValueError(f"no whole record begins at {offset}: {left} bytes are left, its length would be {length}")
    return file.pread(length, offset)
