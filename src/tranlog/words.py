"""Numbers of 32 and 64 bits as the files hold them: unsigned, the highest byte first.

Owns writing them. `librt.strings` writes signed ones alone. Compiled, see `tranlog.compiled`.

Source: docs/format.md.
"""

from __future__ import annotations

from librt.strings import BytesWriter, write_i32_be, write_i64_be


def write_u32(out: BytesWriter, number: int) -> None:
    """Write a number from 0 to 2^32 - 1 in four bytes. Raises OverflowError or ValueError for another."""
    write_i32_be(out, number if number <= 0x7FFF_FFFF else number - (1 << 32))


def write_u64(out: BytesWriter, number: int) -> None:
    """Write a number from 0 to 2^64 - 1 in eight bytes. Raises OverflowError or ValueError for another."""
    write_i64_be(out, number if number <= 0x7FFF_FFFF_FFFF_FFFF else number - (1 << 64))
