"""An LSN's two halves: the segment, and the byte offset in it.

Owns how they are packed. Compiled, see `tranlog.compiled`: each commit packs and unpacks several.
"""

from __future__ import annotations

from tranlog.ids import Lsn


def lsn(segment: int, offset: int) -> Lsn:
    """Pack a segment number and a byte offset in it into an LSN; both are unsigned 32-bit."""
    assert 0 <= segment < 1 << 32 and 0 <= offset < 1 << 32
    return Lsn(segment << 32 | offset)


def lsn_segment(position: Lsn) -> int:
    """Return the segment number of an LSN."""
    return position >> 32


def lsn_offset(position: Lsn) -> int:
    """Return the byte offset of an LSN inside its segment."""
    return position & 0xFFFFFFFF


def lsn_text(position: Lsn) -> str:
    """Return an LSN as operators read it: `segment:offset`, both decimal."""
    return f"{position >> 32}:{position & 0xFFFFFFFF}"
