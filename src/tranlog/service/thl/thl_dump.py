"""`thl dump`: the fields of one record.

It is for the day when something is wrong. Cutting a record into its fields is `codecs.fields`'.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

from tranlog.codecs.fields import Field, Found, find_fragment, is_segment_name, record_at, record_fields
from tranlog.codecs.opening import Codec, codec_of
from tranlog.service.frame.command import flag, log_of, option, print_json, say
from tranlog.service.frame.exits import ExitCode
from tranlog.service.thl.thl_list import HexOption, SeqnoOption


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


def dump(
    ctx: typer.Context,
    seqno: SeqnoOption = None,
    fragno: Annotated[
        int | None, option("-fragno", "N", "Which of its fragments; if spilled, the chunk.", min=0)
    ] = None,
    file: Annotated[
        str | None, option("-file", "NAME", "The record at -offset of this segment or spill segment.")
    ] = None,
    offset: Annotated[
        int | None, option("-offset", "N", "Its first byte; default: 0, the segment's header.", min=0)
    ] = None,
    hexadecimal: HexOption = False,
    as_json: Annotated[bool, flag("-json", "One JSON object.")] = False,
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
    if file is None and offset is not None:
        raise typer.BadParameter("goes with -file only", param_hint="-offset")
    if file is not None and fragno is not None:
        raise typer.BadParameter("goes with -seqno only", param_hint="-fragno")
    path = log_of(ctx)
    found: Found | None
    if file is not None:
        if not is_segment_name(file):
            why = "a segment's plain name, such as thl.data.0000000001 or thl.spill.0000000001"
            raise typer.BadParameter(why, param_hint="-file")
        try:
            found = record_at(path, file, offset or 0)
        except ValueError as exc:
            raise typer.BadParameter(str(exc), param_hint="-offset") from exc
    else:
        assert seqno is not None
        if seqno < 0:
            raise typer.BadParameter("a seqno is 0 or more", param_hint="-seqno")
        found = find_fragment(path, seqno, fragno)
    if found is None:
        say(f"Unable to find sequence number: {seqno}" + (f", fragment {fragno}" if fragno else ""))
        return ExitCode.CHECK_FAILED
    fields = record_fields(found, java=codec_of(path) is Codec.TUNGSTEN)
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
