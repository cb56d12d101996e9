"""Numbers of 32 and 64 bits, the highest byte first."""

from __future__ import annotations

import struct

import pytest
from librt.strings import BytesWriter

from tranlog.words import write_u32, write_u64


@pytest.mark.parametrize("number", [0, 1, 0xFF00, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFE, 0xFFFF_FFFF])
def test_a_number_of_32_bits_is_written_unsigned(number: int) -> None:
    out = BytesWriter()
    write_u32(out, number)
    assert out.getvalue() == struct.pack(">I", number)


@pytest.mark.parametrize("number", [0, 1, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 2, (1 << 64) - 1])
def test_a_number_of_64_bits_is_written_unsigned(number: int) -> None:
    out = BytesWriter()
    write_u64(out, number)
    assert out.getvalue() == struct.pack(">Q", number)


def test_a_larger_number_is_refused() -> None:
    out = BytesWriter()
    with pytest.raises((OverflowError, ValueError)):
        write_u32(out, 1 << 40)
    with pytest.raises((OverflowError, ValueError)):
        write_u64(out, 1 << 70)
    assert out.getvalue() == b""
