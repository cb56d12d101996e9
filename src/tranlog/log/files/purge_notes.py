"""What was purged, by whom: left in the log's directory for those who come back for it.

Owns the file `purged` and the error that is built from it. The hard idea: whoever passed a hold will not be there when
its owner comes back, so the reason is written down before the first file goes. It is for people only: without it, or
with a damaged one, a log is the same log, and the error says less.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Annotated, Final

import msgspec

from tranlog.disk import Disk
from tranlog.errors import PurgedError
from tranlog.ids import NO_SEQNO, Seqno
from tranlog.log.files.directory import join, replace_file
from tranlog.log.files.sealed_line import sealed, unsealed

PURGED_NAME: Final = "purged"
NOTES_KEPT: Final = 32
"""So many reasons are kept, the newest; a run of purges by one limit is one of them."""
_NUMBER_MAX: Final = (1 << 63) - 1
_BYTES_MAX: Final = 1 << 20


class PurgeNote(msgspec.Struct, frozen=True, kw_only=True):
    """One reason: everything up to and including `up_to` went by `limit`, the last of it at `at` (ms since 1970).

    `passed` are the holds that still needed something of it.
    """

    up_to: Annotated[int, msgspec.Meta(ge=NO_SEQNO, le=_NUMBER_MAX)]
    limit: str
    at: int
    passed: tuple[str, ...] = ()


def encode_notes(notes: Sequence[PurgeNote]) -> bytes:
    """Return the file: a line of JSON for each note, oldest first, with its checksum after it."""
    return b"".join(sealed(msgspec.json.encode(note)) for note in notes)


def decode_notes(raw: bytes) -> list[PurgeNote]:
    """Read the file; lines that are damaged are left out."""
    notes = []
    for line in raw.splitlines(keepends=True):
        text = unsealed(line)
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
            if text is not None:
                notes.append(msgspec.json.decode(text, type=PurgeNote))
    return notes


def add_note(notes: Sequence[PurgeNote], note: PurgeNote) -> list[PurgeNote]:
    """Return the notes with one more after them: two in a row by one limit that passed nobody are one."""
    kept = list(notes)
    if kept and kept[-1].limit == note.limit and not kept[-1].passed and not note.passed:
        kept.pop()
    return [*kept, note][-NOTES_KEPT:]


def read_notes(path: str, disk: Disk) -> list[PurgeNote]:
    """Return what is known of earlier purges of the log at `path`; nothing where that cannot be read."""
    try:
        with contextlib.closing(disk.open(join(path, PURGED_NAME))) as file:
            return decode_notes(file.pread(_BYTES_MAX, 0))
    except OSError:
        return []


def write_note(path: str, note: PurgeNote, disk: Disk) -> None:
    """Add a note, durable; what was there stays whole until it is replaced. Raises OSError."""
    replace_file(join(path, PURGED_NAME), encode_notes(add_note(read_notes(path, disk), note)), disk)


def purged_error(path: str, disk: Disk, *, seqno: Seqno, first: Seqno) -> PurgedError:
    """Return the error for a seqno before the first one that the log at `path` holds, with what is known of why."""
    for note in read_notes(path, disk):
        if note.up_to >= seqno:
            return PurgedError(
                seqno=seqno, first=first, limit=note.limit, up_to=note.up_to, at_ms=note.at, passed=note.passed
            )
    return PurgedError(seqno=seqno, first=first)
