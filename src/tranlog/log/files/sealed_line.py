"""A small file that is one line of `name=value` and its checksum, written over itself in place.

Owns that form; what the values say is its users'. The hard idea: the line has its full size from the start, so writing
it again needs no room on the disk.

Source: docs/format.md.
"""

from __future__ import annotations

from tranlog.checksum import crc32


def sealed_line(line: str, size: int) -> bytes:
    """Return a line of `name=value` with its checksum at the end, to be written over itself: `size` bytes."""
    return f"{line} crc={crc32(line.encode()):08x}".ljust(size - 1).encode() + b"\n"


def parse_line(raw: bytes) -> dict[str, str] | None:
    """Read what `sealed_line` wrote; None for anything else."""
    line, _, crc = raw.decode("ascii", errors="replace").strip().rpartition(" crc=")
    if crc != f"{crc32(line.encode()):08x}":
        return None
    return dict(part.partition("=")[::2] for part in line.split(" "))
