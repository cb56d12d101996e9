"""The bytes of a write set, item 02 of a header: hashes of key values by their use, after what concerns the tables.

Owns writing them, and reading them without what they mean, which is `write_set`'s. Compiled, see `tranlog.compiled`.

Source: docs/format.md, "Write sets".
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, TypeAlias

from tranlog.varint import read_varint, varint

ROWS: Final = 1
"""`WriteKind.ROWS`"""
MANY: Final = 4
"""`WriteKind.MANY`"""
ITEM_BYTES_MAX: Final = 60_000
NUMBER_BYTES: Final = 4
_BYTES: Final = [bytes((number,)) for number in range(256)]

Touches: TypeAlias = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""The hashes of key values by `Use`, in its order."""


def encode_write_set(
    kind: int, changes: int, tables: Sequence[tuple[int, frozenset[int]]], touches: Sequence[Sequence[int]]
) -> bytes:
    """Return the bytes of a write set.

    Shape: of each table, in the order of the header's, `Operations` and the ids of its keys; of each `Use`, in its
    order, the hashes.
    """
    pieces = [_BYTES[kind], varint(changes)]
    if kind == ROWS:
        pieces.append(varint(len(tables)))
        for operations, keys in tables:
            pieces.append(_BYTES[operations])
            pieces.append(_ids(keys))
        for hashes in touches:
            pieces.append(_numbers(hashes))
    item = b"".join(pieces)
    return item if len(item) <= ITEM_BYTES_MAX else encode_write_set(MANY, changes, (), ())


def pass_tables(item: bytes, at: int) -> int:
    """Return where in a write set the part of the tables ends, which begins at `at`. Raises IndexError, ValueError."""
    left, end = read_varint(item, at)
    while left:
        count, end = read_varint(item, end + 1)
        end += count * NUMBER_BYTES
        left -= 1
    return end


def read_touches(item: bytes, at: int) -> Touches:
    """Read the hashes, which begin at `at`. Raises IndexError, ValueError."""
    keys, at = read_numbers(item, at)
    rows, at = read_numbers(item, at)
    references, _ = read_numbers(item, at)
    return keys, rows, references


def read_numbers(item: bytes, at: int) -> tuple[tuple[int, ...], int]:
    """Read the numbers at `at`; return them and the place after them. Raises IndexError, ValueError."""
    count, at = read_varint(item, at)
    if not count:
        return (), at
    if count > (len(item) - at) // NUMBER_BYTES:
        raise ValueError(f"{count} numbers announced in a write set of {len(item)} bytes")
    found: tuple[int, ...] = _packing(count).unpack_from(item, at)
    return found, at + count * NUMBER_BYTES


@lru_cache(maxsize=4096)
def _ids(keys: frozenset[int]) -> bytes:
    return _numbers(sorted(keys))


def _numbers(numbers: Sequence[int]) -> bytes:
    return varint(len(numbers)) + _packing(len(numbers)).pack(*numbers)


@lru_cache(maxsize=4096)
def _packing(count: int) -> struct.Struct:
    return struct.Struct(f">{count}I")
