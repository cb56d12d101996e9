"""Where an encoded value ends: what whoever looks for a few values of a row has to pass.

Owns the lengths of values by their tags. Their contents are `row_bytes`'s. Compiled, see `tranlog.compiled`.

Source: docs/format.md.
"""

from __future__ import annotations

from typing import Final

from tranlog.row_bytes import FIRST_UNKNOWN_TAG
from tranlog.types import Tag
from tranlog.varint import read_varint

_FIXED: Final[dict[int, int]] = {Tag.F32: 4, Tag.F64: 8, Tag.INFINITE_DATE: 1, Tag.UUID: 16}
_NUMBERS: Final = frozenset((Tag.I64, Tag.U64, Tag.DATE, Tag.TIME, Tag.DATETIME, Tag.INSTANT))
_SIZED: Final = frozenset((Tag.DECIMAL, Tag.TEXT, Tag.BYTES, Tag.ZERO_DATE, Tag.ENUM, Tag.JSON))
_SIZED_TWICE: Final = frozenset((Tag.CHARSET_BYTES, Tag.OTHER))


def key_in(raw: bytes, key: tuple[int, ...]) -> bytes:
    """Return those of an encoded row's values that stand at the places `key`, in that order. Raises as `pass_value`."""
    if key == (0,):
        return raw[: pass_value(raw, 0)]
    ends = [0]
    for _ in range(max(key) + 1):
        ends.append(pass_value(raw, ends[-1]))
    return b"".join([raw[ends[one] : ends[one + 1]] for one in key])


def pass_value(raw: bytes, at: int) -> int:
    """Return where the value at `at` ends. Raises ValueError, IndexError."""
    tag = raw[at]
    at += 1
    if tag < Tag.I64:
        return at
    fixed = _FIXED.get(tag)
    if fixed is not None:
        return at + fixed
    if tag in _NUMBERS:
        return read_varint(raw, at)[1]
    if tag == Tag.BIT:
        width, at = read_varint(raw, at)
        return at + (width + 7) // 8
    if tag == Tag.SET:
        pieces, at = read_varint(raw, at)
    elif tag in _SIZED or tag >= FIRST_UNKNOWN_TAG:
        pieces = 1
    elif tag in _SIZED_TWICE:
        pieces = 2
    else:
        raise ValueError(f"value tag {tag} at offset {at - 1}; a newer release may have written it")
    for _ in range(pieces):
        size, at = read_varint(raw, at)
        at += size
    return at
