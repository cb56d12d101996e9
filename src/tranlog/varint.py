"""Numbers, bytes and texts as protobuf writes them: varints of seven bits a byte, each with its length before it.

Owns these four forms, which the payload is made of. Compiled with it, see `tranlog.compiled`.

Source: docs/format.md.
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter

_U64_MAX: Final = (1 << 64) - 1

BYTES: Final = BytesWriter()
"""Each byte at its own place. Compiled code gets a byte from here; a `cast` to one goes through an object of Python."""
BYTES.write(bytes(range(256)))

_LOW: Final = [bytes((low,)) for low in range(0x80, 0x100)]
_ENDS: Final = tuple([bytes((n,)) for n in range(0x80)] + [low + bytes((n,)) for n in range(1, 0x80) for low in _LOW])
"""The varints of the numbers below 2^14, by number."""
_STARTS: Final = tuple([low + high for high in _LOW for low in _LOW])
"""What 14 bits of a varint are that go on. Two tables, since a step per seven bits costs several times as much."""


def varint(number: int) -> bytes:
    """Return the varint of a number from 0."""
    if 0 <= number < 0x4000:
        return _ENDS[number]
    if number < 0:
        raise ValueError(f"{number} is below 0")
    out = b""
    while number >= 0x4000:
        out += _STARTS[number & 0x3FFF]
        number >>= 14
    return out + _ENDS[number]


def write_varint(out: BytesWriter, number: int) -> None:
    """Write the varint of a number from 0."""
    if number < 0x80:
        out.append(BYTES[number])
    else:
        out.write(varint(number))


def sized(raw: bytes) -> bytes:
    """Return bytes preceded by their length."""
    return varint(len(raw)) + raw


def sized_text(text: str) -> bytes:
    """Return a text in UTF-8 preceded by its length."""
    return sized(text.encode())


def zigzag(number: int) -> bytes:
    """Return the varint of a signed number of 64 bits. Raises ValueError for a larger one."""
    folded = number << 1 if number >= 0 else ~(number << 1)
    if folded > _U64_MAX:
        raise ValueError(f"{number} does not fit 64 bits")
    return varint(folded)


class MalformedError(ValueError):
    """Bytes that are none of these forms; whoever reads a payload says so as PayloadError."""


def read_varint(raw: bytes, at: int) -> tuple[int, int]:
    """Read a varint; return it and the place after it. Raises MalformedError, IndexError at the end."""
    byte = raw[at]
    at += 1
    if byte < 0x80:
        return byte, at
    number = byte & 0x7F
    shift = 7
    while True:
        byte = raw[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            if number > _U64_MAX:
                raise MalformedError("a varint of more than 64 bits")
            return number, at
        shift += 7
        if shift > 63:
            raise MalformedError("a varint of more than ten bytes")


def read_sized(raw: bytes, at: int) -> tuple[bytes, int]:
    """Read a length and that many bytes. Raises as `read_varint`."""
    size, at = read_varint(raw, at)
    end = at + size
    if end > len(raw):
        raise MalformedError(f"{size} bytes announced at offset {at}, {len(raw) - at} there")
    return raw[at:end], end


def read_sized_text(raw: bytes, at: int) -> tuple[str, int]:
    """Read a length and a text. Raises as `read_varint`, and UnicodeDecodeError."""
    chunk, at = read_sized(raw, at)
    return chunk.decode(), at


def read_zigzag(raw: bytes, at: int) -> tuple[int, int]:
    """Read a signed number. Raises as `read_varint`."""
    number, at = read_varint(raw, at)
    return number >> 1 ^ -(number & 1), at
