"""`thl dump`: the bytes of one record, each field with its name, place and value.

Owns cutting a record into its fields, by the tables of docs/format.md and of the Java replicator's codec; of a
transaction that was spilled also where its chunks stand. The hard idea: it is for the day when something is wrong, so
it says what the bytes are and not what they should be; a field that runs over the record's end is shown as far as it
goes, and the checksum is worked out beside the stored one.

Source: docs/format.md; conformance/tungsten.md B1.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Final
from zlib import crc32

import typer

from tranlog.disk import DiskFile, OsDisk
from tranlog.errors import LogMissingError
from tranlog.ids import Lsn, Seqno, lsn, lsn_offset, lsn_segment
from tranlog.log.files.spilled import SpillFault, SpillReader, fault_error
from tranlog.log.reading.reader import LogReader
from tranlog.log.records import format as native
from tranlog.log.records import spill
from tranlog.service.frame.command import log_of, print_json, say
from tranlog.service.frame.exits import ExitCode
from tranlog.service.thl.thl_list import HexOption, SeqnoOption
from tranlog.tungsten.files.segments import Codec, codec_of
from tranlog.tungsten.reading.reader import Seek, TungstenReader
from tranlog.tungsten.reading.text import time_text
from tranlog.tungsten.records import codec

HEADER_BYTES: Final = 16
_SHOWN_BYTES: Final = 32
"""Bytes of a field that are shown without -hex."""
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
        """Take a string and the NUL behind it."""
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


def field_lines(fields: list[Field], *, hexadecimal: bool) -> Iterator[str]:
    """Yield one line per field: its offset in the record, its bytes' number, name and value; with its bytes below."""
    for field in fields:
        if not field.raw and field.name == "checksum":
            yield f"{'':>6}  {'':>6}  {field.name:<18}{field.value}"
            continue
        yield f"{field.at:>6}  {len(field.raw):>6}  {field.name:<18}{field.value}"
        if hexadecimal:
            yield from _hex_lines(field)


def _hex_lines(field: Field) -> Iterator[str]:
    for start in range(0, len(field.raw), 16):
        piece = field.raw[start : start + 16]
        letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in piece)
        yield f"{field.at + start:>14}: {piece.hex(' '):<47}  {letters}"


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


def dump(
    ctx: typer.Context,
    seqno: SeqnoOption = None,
    fragno: Annotated[
        int | None,
        typer.Option("-fragno", "--fragno", metavar="N", min=0, help="Which fragment of it; if spilled, its chunk."),
    ] = None,
    file: Annotated[
        str | None,
        typer.Option("-file", "--file", metavar="NAME", help="The record at -offset of this segment or spill segment."),
    ] = None,
    offset: Annotated[
        int, typer.Option("-offset", "--offset", metavar="N", min=0, help="Its first byte; 0 is the segment's header.")
    ] = 0,
    hexadecimal: HexOption = False,
    as_json: Annotated[bool, typer.Option("-json", "--json", help="One JSON object.")] = False,
) -> int:
    """Print the fields of one record with their offsets, lengths and values, and whether its checksum holds.

    Of a transaction that was spilled: the record that refers to it, and where each of its chunks stands.

    \b
    Example:
      thl -dir log dump -seqno 5
      thl -dir log dump -seqno 5 -fragno 1 --hex
      thl -dir log dump -file thl.data.0000000001 -offset 16 --hex
      thl -dir log dump -file thl.spill.0000000001 -offset 0
    """
    if (seqno is None) == (file is None):
        raise typer.BadParameter("name one of -seqno and -file", param_hint="-seqno")
    path = log_of(ctx)
    java = codec_of(path) is Codec.TUNGSTEN
    if file is not None:
        found: Found | None = _at(path, file, offset)
    else:
        assert seqno is not None
        if seqno < 0:
            raise typer.BadParameter("a seqno is 0 or more", param_hint="-seqno")
        found = (_java_fragment if java else _native_fragment)(path, seqno, fragno)
    if found is None:
        say(f"Unable to find sequence number: {seqno}" + (f", fragment {fragno}" if fragno else ""))
        return ExitCode.CHECK_FAILED
    if file is not None and offset == 0:
        fields = header_fields(found.raw, java=java, spilled=spill.spill_number(file) is not None)
    else:
        place = lsn(native.segment_number(found.file) or 0, found.offset)
        fields = tungsten_fields(found.raw) if java else native_fields(found.raw, place=place)
    if as_json:
        shown = [
            {"name": one.name, "offset": one.at, "length": len(one.raw), "value": one.value, "hex": one.raw.hex()}
            for one in fields
        ]
        chunks = {"chunks": found.chunks} if found.chunks else {}
        print_json({"file": found.file, "offset": found.offset, "length": len(found.raw), "fields": shown, **chunks})
        return ExitCode.DONE
    print(f"{found.file}, offset {found.offset}: {len(found.raw)} bytes")
    for line in field_lines(fields, hexadecimal=hexadecimal):
        print(line)
    for number, chunk in enumerate(found.chunks):
        of = f"fragments {chunk.first_fragno} to {chunk.last_fragno}"
        print(f"chunk {number}: {chunk.file}, offset {chunk.offset}: {of}")
    return ExitCode.DONE


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
            found = _at(path, native.segment_name(lsn_segment(at)), lsn_offset(at))
            if found.raw[4] == native.REFERENCE_TYPE:
                chunks = tuple(_chunks(path, found.raw, transaction.header))
                if fragno is None:
                    return replace(found, chunks=chunks)
                holding = (one for one in chunks if one.first_fragno <= fragno <= one.last_fragno)
                return next((_at(path, one.file, one.offset) for one in holding), None)
            if not fragno:
                return found
            for record in transaction.records():
                if record.header.fragno == fragno:
                    at = record.header.lsn
                    return _at(path, native.segment_name(lsn_segment(at)), lsn_offset(at))
    return None


def _chunks(path: str, raw: bytes, header: native.RecordHeader) -> Iterator[Chunk]:
    """Yield where the chunks stand that a referring record names. Raises CorruptRecordError, LogUnreadableError."""
    at = next(field.at for field in native_fields(raw) if field.name == spill.REFERENCE_FIELDS[0][0])
    reference = spill.parse_reference(raw[at : at + spill.REFERENCE.size])
    if reference is None:
        return
    reader = SpillReader(path, OsDisk(), reference, header, None)
    try:
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
    finally:
        reader.close()


def _java_fragment(path: str, seqno: int, fragno: int | None) -> Found | None:
    with TungstenReader.open(path, checked=False).cursor(strict=False) as cursor:
        if cursor.seek(seqno) is not Seek.FOUND:
            return None
        while (stored := cursor.next()) is not None and stored.record.seqno == seqno:
            if stored.record.fragno == (fragno or 0):
                return _at(path, stored.segment, stored.record.offset)
    return None


def _at(path: str, name: str, offset: int) -> Found:
    """Read the record at a place. Raises typer.BadParameter where there is none, LogMissingError without the file."""
    spilled = spill.spill_number(name) is not None
    if os.path.basename(name) != name or not (spilled or native.segment_number(name) is not None):
        why = "a segment's plain name, such as thl.data.0000000001 or thl.spill.0000000001"
        raise typer.BadParameter(why, param_hint="-file")
    try:
        file = OsDisk().open(f"{path.rstrip('/')}/{name}")
    except FileNotFoundError as exc:
        raise LogMissingError(path=path, why=f"it holds no {name}") from exc
    try:
        size = spill.SPILL_HEADER_BYTES if spilled else HEADER_BYTES
        return Found(file=name, offset=offset, raw=_record_bytes(file, offset, size))
    finally:
        file.close()


def _record_bytes(file: DiskFile, offset: int, header_bytes: int) -> bytes:
    if offset == 0:
        return file.pread(header_bytes, 0)
    start = file.pread(5, offset)
    length = int.from_bytes(start[:4], "big") if len(start) == 5 else 0
    if length < 9 or offset + length > file.size():
        left = max(file.size() - offset, 0)
        why = f"no whole record begins at {offset}: {left} bytes are left, its length would be {length}"
        raise typer.BadParameter(why, param_hint="-offset")
    return file.pread(length, offset)
