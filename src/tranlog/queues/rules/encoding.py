"""The bytes of a store's record as it is written.

Owns the head and the checksum; what stands in a body is `records`', and whole groups at once are `runs`'. Compiled, see
`tranlog.compiled`.

Source: docs/format.md, "The message store".
"""

from __future__ import annotations

from librt.strings import BytesWriter
from mypy_extensions import i64, u8

from tranlog.checksum import crc32
from tranlog.ids import Lsn
from tranlog.queues.rules.records import OVERHEAD
from tranlog.words import write_u32, write_u64


def write_head(out: BytesWriter, size: int, type_flags: i64, epoch: int, place: int, of: int) -> None:
    """Have `out` hold a record's first fields: the length of all of it, type and flags in one number, and so on."""
    out.truncate(0)
    write_u32(out, size)
    out.append(u8(type_flags >> 8))
    out.append(u8(type_flags & 0xFF))
    write_u32(out, epoch)
    write_u64(out, place)
    write_u64(out, of)


def encode(record_type: int, flags: int, epoch: int, place: Lsn, undo_prev: Lsn, body: bytes) -> bytes:
    """Return a record's bytes."""
    out = BytesWriter()
    write_head(out, OVERHEAD + len(body), record_type << 8 | flags, epoch, place, undo_prev)
    head = out.getvalue()
    out.truncate(0)
    write_u32(out, crc32(body, crc32(head)))
    return b"".join((head, body, out.getvalue()))
