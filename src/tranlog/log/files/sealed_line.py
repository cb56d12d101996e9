"""A line with its checksum at its end: any bytes, or a small file of `name=value` that is written over itself in place.

Owns both forms; what they say is their users'. The hard idea: the latter has its full size from the start, so writing
it again needs no room on the disk.

Source: docs/format.md.
"""

from __future__ import annotations

from tranlog.checksum import crc32


def sealed(text: bytes) -> bytes:
    """Return a text as a line, with its checksum after it."""
    return b"%s crc=%08x\n" % (text, crc32(text))


def unsealed(line: bytes) -> bytes | None:
    """Return the text of a line that `sealed` made; None for anything else."""
    text, _, crc = line.rpartition(b" crc=")
    return text if crc == b"%08x\n" % crc32(text) else None


def sealed_line(line: str, size: int) -> bytes:
    """Return a line of `name=value` with its checksum at the end, to be written over itself: `size` bytes."""
    return f"{line} crc={crc32(line.encode()):08x}".ljust(size - 1).encode() + b"\n"


def parse_line(raw: bytes) -> dict[str, str] | None:
    """Read what `sealed_line` wrote; None for anything else."""
    line, _, crc = raw.decode("ascii", errors="replace").strip().rpartition(" crc=")
    if crc != f"{crc32(line.encode()):08x}":
        return None
    return dict(part.partition("=")[::2] for part in line.split(" "))
